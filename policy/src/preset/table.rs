//! The table of presets. Conservative: what no public document promises is not promised here.

use super::{Attach, Key, Line, Preset, Repeat, Source};
use journal::contract::RemoteContract;

/// The day of the review.
const DATE: &str = "2026-11-30";

const fn source(url: &'static str) -> Source {
    Source { url, date: DATE, read: false }
}

/// A document whose words were read, in a stored copy, on the day of the review.
const fn read(url: &'static str) -> Source {
    Source { url, date: DATE, read: true }
}

const fn line(
    methods: &'static [&'static str],
    paths: &'static [&'static str],
    repeat: Repeat,
    why: &'static str,
    source: Source,
) -> Line {
    Line { methods, paths, repeat, why, source }
}

const POST: &[&str] = &["POST"];
const ALL: &[&str] = &["/**"];
const NOT: Repeat = Repeat::NotPromised;
const YES: Repeat = Repeat::Harmless;

/// All presets, by name.
pub const PRESETS: &[Preset] = &[
    ANTHROPIC,
    AWS,
    CLOUDFLARE,
    GEMINI,
    GITHUB,
    GITLAB,
    GOOGLE_CLOUD,
    JIRA,
    LINEAR,
    NOTION,
    OPENAI,
    SENDGRID,
    SLACK,
    STRIPE,
    TWILIO,
];

const ANTHROPIC: Preset = Preset {
    name: "anthropic",
    title: "Anthropic API",
    hosts: &["api.anthropic.com"],
    path: None,
    attach: Attach::Header("x-api-key"),
    secret: "an API key",
    source: read("https://docs.anthropic.com/en/api/overview"),
    lines: &[
        line(
            POST,
            &["/v1/messages/count_tokens"],
            YES,
            "counts without creating a message",
            source("https://docs.anthropic.com/en/api/messages-count-tokens"),
        ),
        line(
            POST,
            &["/v1/messages", "/v1/complete"],
            YES,
            "inference; a repeat costs tokens and changes nothing at the service",
            source("https://docs.anthropic.com/en/api/messages"),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates batches, files and members; no key contract is published",
            source("https://docs.anthropic.com/en/api/creating-message-batches"),
        ),
    ],
    note: "Requests that let the service call remote MCP servers act beyond the service: give such calls a route with `idempotent = false`. A batch is followed by a route for `POST /v1/messages/batches` with `job = { pointer = \"/id\", path = \"/v1/messages/batches/{id}\", done = { status = 200, pointer = \"/processing_status\", equals = [\"ended\"] } }`.",
};

const AWS: Preset = Preset {
    name: "aws",
    title: "Amazon Web Services",
    hosts: &["*.amazonaws.com"],
    path: None,
    attach: Attach::Sigv4,
    secret: "an access key, `ACCESS_KEY_ID:SECRET_ACCESS_KEY` or with `:SESSION_TOKEN`",
    source: source("https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html"),
    lines: &[
        line(
            &["GET", "HEAD", "POST"],
            &["/"],
            NOT,
            "the query protocol performs its `Action` by GET as well as by POST",
            read("https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html"),
        ),
        line(
            POST,
            ALL,
            NOT,
            "a client token stands in the query or the content and differs by service",
            read("https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html"),
        ),
    ],
    note: "Client tokens (`ClientToken`, `ClientRequestToken`) are passed on as they are. They stand outside of headers, where policy does not look yet, so an unknown outcome is reconciled rather than repeated.",
};

const CLOUDFLARE: Preset = Preset {
    name: "cloudflare",
    title: "Cloudflare API",
    hosts: &["api.cloudflare.com"],
    path: Some("/client/v4/**"),
    attach: Attach::Bearer,
    secret: "an API token",
    source: source("https://developers.cloudflare.com/fundamentals/api/how-to/make-api-calls/"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; no key contract is published",
        source("https://developers.cloudflare.com/api/"),
    )],
    note: "",
};

const GEMINI: Preset = Preset {
    name: "gemini",
    title: "Google Gemini API",
    hosts: &["generativelanguage.googleapis.com"],
    path: None,
    attach: Attach::Header("x-goog-api-key"),
    secret: "an API key",
    source: source("https://ai.google.dev/gemini-api/docs/api-key"),
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
            "inference; a repeat costs tokens and changes nothing at the service",
            source("https://ai.google.dev/api/generate-content"),
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

const GITHUB: Preset = Preset {
    name: "github",
    title: "GitHub REST and GraphQL API",
    hosts: &["api.github.com", "uploads.github.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "a personal access token or an installation token",
    source: read("https://docs.github.com/en/rest/authentication/authenticating-to-the-rest-api"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; GraphQL mutations are POST too; no key contract is published",
        source(
            "https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api",
        ),
    )],
    note: "",
};

const GITLAB: Preset = Preset {
    name: "gitlab",
    title: "GitLab REST and GraphQL API",
    hosts: &["gitlab.com"],
    path: Some("/api/**"),
    attach: Attach::Header("private-token"),
    secret: "a personal, project or group access token",
    source: read("https://docs.gitlab.com/api/rest/authentication/"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; GraphQL mutations are POST too; no key contract is published",
        source("https://docs.gitlab.com/api/rest/"),
    )],
    note: "For an installation of your own write `match = { host = \"gitlab.example.com\" }`.",
};

const GOOGLE_CLOUD: Preset = Preset {
    name: "google-cloud",
    title: "Google Cloud APIs",
    hosts: &["*.googleapis.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an access token; it is short-lived, so name a source that renews it",
    source: source("https://cloud.google.com/docs/authentication/rest"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "a request id stands in the query or the content, and not every service takes one",
        source("https://google.aip.dev/155"),
    )],
    note: "Request ids (`requestId`) are passed on as they are. They stand outside of headers, where policy does not look yet, so an unknown outcome is reconciled rather than repeated.",
};

const JIRA: Preset = Preset {
    name: "jira",
    title: "Jira Cloud",
    hosts: &["*.atlassian.net"],
    path: Some("/rest/**"),
    attach: Attach::Basic,
    secret: "`EMAIL:API_TOKEN`",
    source: source("https://developer.atlassian.com/cloud/jira/platform/basic-auth-for-rest-apis/"),
    lines: &[
        line(
            POST,
            &[
                "/rest/api/*/search",
                "/rest/api/*/search/jql",
                "/rest/api/*/search/approximate-count",
            ],
            YES,
            "searches",
            source(
                "https://developer.atlassian.com/cloud/jira/platform/rest/v3/api-group-issue-search/",
            ),
        ),
        line(
            &["PUT"],
            &["/rest/api/*/issue/*"],
            NOT,
            "`update` can hold operations that add, a comment for example",
            source("https://developer.atlassian.com/cloud/jira/platform/rest/v3/api-group-issues/"),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates; no key contract is published",
            source("https://developer.atlassian.com/cloud/jira/platform/rest/v3/intro/"),
        ),
    ],
    note: "The preset covers every site of Atlassian's cloud: name your own with `match = { host = \"yours.atlassian.net\" }`.",
};

const LINEAR: Preset = Preset {
    name: "linear",
    title: "Linear API",
    hosts: &["api.linear.app"],
    path: None,
    attach: Attach::Header("authorization"),
    secret: "a personal API key; for an OAuth token write `inject = \"bearer\"` instead of the preset",
    source: read("https://linear.app/developers/graphql"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "queries and mutations share one address; no key contract is published",
        read("https://linear.app/developers/graphql"),
    )],
    note: "",
};

const NOTION: Preset = Preset {
    name: "notion",
    title: "Notion API",
    hosts: &["api.notion.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an integration token",
    source: read("https://developers.notion.com/reference/authentication"),
    lines: &[
        line(
            POST,
            &["/v1/search", "/v1/databases/*/query", "/v1/data_sources/*/query"],
            YES,
            "searches",
            source("https://developers.notion.com/reference/post-search"),
        ),
        line(
            &["POST", "PATCH"],
            ALL,
            NOT,
            "creates; PATCH on children appends; no key contract is published",
            source("https://developers.notion.com/reference/patch-block-children"),
        ),
    ],
    note: "",
};

const OPENAI: Preset = Preset {
    name: "openai",
    title: "OpenAI API",
    hosts: &["api.openai.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an API key",
    source: source("https://platform.openai.com/docs/api-reference/authentication"),
    lines: &[
        line(
            POST,
            &["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/moderations"],
            YES,
            "inference; a repeat costs tokens, and stores another copy only where the request says `store`",
            source("https://platform.openai.com/docs/api-reference/chat/create"),
        ),
        line(
            POST,
            &["/v1/responses"],
            NOT,
            "stores its result unless told otherwise, and can call tools that act elsewhere",
            source("https://platform.openai.com/docs/api-reference/responses/create"),
        ),
        line(
            POST,
            ALL,
            NOT,
            "creates files, batches, jobs and images; no key contract is published",
            source("https://platform.openai.com/docs/api-reference/batch/create"),
        ),
    ],
    note: "For clients that send `store = false` and no hosted tools to `/v1/responses`, a route of its own with `idempotent = true` is right. A batch is followed by a route for `POST /v1/batches` with `job = { pointer = \"/id\", path = \"/v1/batches/{id}\", done = { status = 200, pointer = \"/status\", equals = [\"completed\"] }, failed = { pointer = \"/status\", equals = [\"failed\", \"expired\", \"cancelled\"] } }`.",
};

const SENDGRID: Preset = Preset {
    name: "sendgrid",
    title: "Twilio SendGrid",
    hosts: &["api.sendgrid.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an API key",
    source: source(
        "https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/authentication",
    ),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "sends mail and creates; no key contract is published",
        source("https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send"),
    )],
    note: "",
};

const SLACK: Preset = Preset {
    name: "slack",
    title: "Slack Web API",
    hosts: &["slack.com"],
    path: Some("/api/**"),
    attach: Attach::Bearer,
    secret: "a bot or user token",
    source: read("https://docs.slack.dev/apis/web-api/"),
    lines: &[
        line(
            &["GET", "POST"],
            &[
                "/api/api.test",
                "/api/auth.test",
                "/api/conversations.list",
                "/api/conversations.info",
                "/api/conversations.history",
                "/api/conversations.members",
                "/api/conversations.replies",
                "/api/users.list",
                "/api/users.info",
            ],
            YES,
            "reads",
            source("https://docs.slack.dev/reference/methods"),
        ),
        line(
            &[],
            ALL,
            NOT,
            "methods are called by GET as well as by POST, writing ones included",
            read("https://docs.slack.dev/apis/web-api/"),
        ),
    ],
    note: "",
};

const STRIPE: Preset = Preset {
    name: "stripe",
    title: "Stripe API",
    hosts: &["api.stripe.com", "files.stripe.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "a secret or restricted key",
    source: read("https://docs.stripe.com/api/authentication"),
    lines: &[
        line(
            POST,
            &["/v1/**"],
            Repeat::WithKey(Key {
                header: "idempotency-key",
                retention_hours: 24,
                contract: RemoteContract::Verified,
            }),
            "the first status and content are kept at least 24 hours and answered again, errors included; parameters are compared",
            read("https://docs.stripe.com/api/idempotent_requests"),
        ),
        line(
            &["POST", "DELETE"],
            &["/v2/**"],
            NOT,
            "v2 takes keys, but performs failed work again and may answer differently",
            read("https://docs.stripe.com/api/idempotent_requests"),
        ),
    ],
    note: "",
};

const TWILIO: Preset = Preset {
    name: "twilio",
    title: "Twilio REST API",
    hosts: &["api.twilio.com"],
    path: None,
    attach: Attach::Basic,
    secret: "`ACCOUNT_SID:AUTH_TOKEN` or `API_KEY_SID:API_KEY_SECRET`",
    source: read("https://www.twilio.com/docs/usage/requests-to-twilio"),
    lines: &[line(
        POST,
        ALL,
        NOT,
        "sends messages, places calls and creates; no key contract is published",
        source("https://www.twilio.com/docs/messaging/api/message-resource"),
    )],
    note: "",
};
