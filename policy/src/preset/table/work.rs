//! Services that teams work with.

use super::super::{Attach, Preset};
use super::{ALL, NOT, POST, YES, line, read, source};

pub(super) const JIRA: Preset = Preset {
    name: "jira",
    title: "Jira Cloud",
    hosts: &["*.atlassian.net"],
    path: Some("/rest/**"),
    attach: Attach::Basic,
    secret: "`EMAIL:API_TOKEN`",
    source: read(
        "https://developer.atlassian.com/cloud/jira/service-desk/basic-auth-for-rest-apis/",
    ),
    mints: &[],
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
            read(
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

pub(super) const LINEAR: Preset = Preset {
    name: "linear",
    title: "Linear API",
    hosts: &["api.linear.app"],
    path: None,
    attach: Attach::Header("authorization"),
    secret: "a personal API key; for an OAuth token write `inject = \"bearer\"` instead of the preset",
    source: read("https://linear.app/developers/graphql"),
    mints: &[],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "queries and mutations share one address; no key contract is published",
        read("https://linear.app/developers/graphql"),
    )],
    note: "",
};

pub(super) const NOTION: Preset = Preset {
    name: "notion",
    title: "Notion API",
    hosts: &["api.notion.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "an integration token",
    source: read("https://developers.notion.com/reference/authentication"),
    mints: &[],
    lines: &[
        line(
            POST,
            &["/v1/search", "/v1/databases/*/query", "/v1/data_sources/*/query"],
            YES,
            "searches",
            read(
                "https://github.com/makenotion/notion-mcp-server/blob/main/scripts/notion-openapi.json",
            ),
        ),
        line(
            &["POST", "PATCH"],
            ALL,
            NOT,
            "creates; PATCH on children appends; no key contract is published",
            read(
                "https://github.com/makenotion/notion-mcp-server/blob/main/scripts/notion-openapi.json",
            ),
        ),
    ],
    note: "",
};

pub(super) const SLACK: Preset = Preset {
    name: "slack",
    title: "Slack Web API",
    hosts: &["slack.com"],
    path: Some("/api/**"),
    attach: Attach::Bearer,
    secret: "a bot or user token",
    source: read("https://docs.slack.dev/apis/web-api/"),
    mints: &[],
    lines: &[
        line(
            &["GET", "POST"],
            &["/api/conversations.history"],
            YES,
            "reads messages",
            read("https://docs.slack.dev/reference/methods/conversations.history"),
        ),
        line(
            &[],
            ALL,
            NOT,
            "methods are called by GET as well as by POST, writing ones included",
            read("https://docs.slack.dev/apis/web-api/"),
        ),
    ],
    note: "Other methods that only read can be given a route of their own with `idempotent = true`.",
};
