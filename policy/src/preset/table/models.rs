//! Services that run models.

use super::super::{Attach, Job, Mint, Preset};
use super::{ALL, NOT, POST, YES, line, of_beta, read, source, starts};

pub(super) const ANTHROPIC: Preset = Preset {
    name: "anthropic",
    title: "Anthropic API",
    hosts: &["api.anthropic.com"],
    path: None,
    attach: Attach::Header("x-api-key"),
    secret: "an API key",
    source: read("https://docs.anthropic.com/en/api/overview"),
    mints: &[],
    lines: &[
        line(
            POST,
            &["/v1/messages/count_tokens"],
            YES,
            "counts without creating a message",
            read("https://docs.anthropic.com/en/api/messages-count-tokens"),
        ),
        of_beta(
            &["mcp-client-*"],
            line(
                POST,
                &["/v1/messages"],
                NOT,
                "the service calls remote MCP servers, which act elsewhere",
                read("https://docs.claude.com/en/docs/agents-and-tools/mcp-connector"),
            ),
        ),
        line(
            POST,
            &["/v1/messages"],
            YES,
            "inference without state; a repeat costs tokens, and runs the service's own tools again",
            read(
                "https://github.com/anthropics/anthropic-sdk-python/blob/main/src/anthropic/resources/messages/messages.py",
            ),
        ),
        starts(
            BATCH,
            line(
                POST,
                &["/v1/messages/batches"],
                NOT,
                "creates a batch; no key contract is published",
                read("https://platform.claude.com/docs/en/api/java/messages/batches/retrieve"),
            ),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates files and members, cancels batches; no key contract is published",
            read("https://platform.claude.com/docs/en/api/cli/beta/messages/batches"),
        ),
    ],
    note: "A request with `container` goes on in a container that exists, where code that runs twice can have two effects: give such calls a route with `idempotent = false`.",
};

/// What a batch came to stands in its results, request by request.
const BATCH: Job = Job {
    pointer: "/id",
    path: "/v1/messages/batches/{id}",
    state: "/processing_status",
    done: &["ended"],
    failed: &[],
};

pub(super) const GEMINI: Preset = Preset {
    name: "gemini",
    title: "Google Gemini API",
    hosts: &["generativelanguage.googleapis.com"],
    path: None,
    attach: Attach::Header("x-goog-api-key"),
    secret: "an API key",
    source: source("https://ai.google.dev/gemini-api/docs/api-key"),
    mints: &[],
    lines: &[
        line(
            POST,
            &[
                "/*/models/*:generateContent",
                "/*/models/*:streamGenerateContent",
                "/*/models/*:countTokens",
                "/*/models/*:embedContent",
                "/*/models/*:batchEmbedContents",
            ],
            YES,
            "inference; a repeat costs tokens",
            read("https://googleapis.github.io/js-genai/classes/models.Models.html"),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates files, caches, tunings and batch jobs; no key contract is published",
            read("https://ai.google.dev/api/batch-api"),
        ),
    ],
    note: "",
};

pub(super) const OPENAI: Preset = Preset {
    name: "openai",
    title: "OpenAI API",
    hosts: &["api.openai.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an API key",
    source: source("https://platform.openai.com/docs/api-reference/authentication"),
    mints: &[
        Mint::Path("/v1/organization/admin_api_keys/**"),
        Mint::Path("/v1/organization/projects/*/service_accounts"),
        Mint::Path("/v1/realtime/client_secrets"),
        Mint::Path("/v1/realtime/sessions"),
        Mint::Path("/v1/realtime/transcription_sessions"),
    ],
    lines: &[
        line(
            POST,
            &["/v1/chat/completions"],
            YES,
            "inference; a repeat costs tokens, and keeps another copy of a chat where `store` is on",
            read(
                "https://github.com/openai/openai-python/blob/main/src/openai/types/chat/completion_create_params.py",
            ),
        ),
        line(
            POST,
            &["/v1/embeddings", "/v1/moderations"],
            YES,
            "embeds or classifies what it is sent; a repeat costs tokens",
            read("https://platform.openai.com/docs/api-reference/embeddings/create"),
        ),
        line(
            POST,
            &["/v1/responses"],
            NOT,
            "stores its result unless told otherwise, and can call tools that act elsewhere",
            source("https://platform.openai.com/docs/api-reference/responses/create"),
        ),
        starts(
            Job {
                pointer: "/id",
                path: "/v1/batches/{id}",
                state: "/status",
                done: &["completed"],
                failed: &["failed", "expired", "cancelled"],
            },
            line(
                POST,
                &["/v1/batches"],
                NOT,
                "creates a batch; no key contract is published",
                read("https://github.com/openai/openai-python/blob/main/src/openai/types/batch.py"),
            ),
        ),
        starts(
            Job {
                pointer: "/id",
                path: "/v1/fine_tuning/jobs/{id}",
                state: "/status",
                done: &["succeeded"],
                failed: &["failed", "cancelled"],
            },
            line(
                POST,
                &["/v1/fine_tuning/jobs"],
                NOT,
                "creates a job; no key contract is published",
                read(
                    "https://github.com/openai/openai-python/blob/main/src/openai/types/fine_tuning/fine_tuning_job.py",
                ),
            ),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates files, images and more; no key contract is published",
            source("https://platform.openai.com/docs/api-reference/introduction"),
        ),
    ],
    note: "For clients that send `store = false` and no hosted tools to `/v1/responses`, a route of its own with `idempotent = true` is right.",
};
