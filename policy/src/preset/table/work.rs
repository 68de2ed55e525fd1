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

pub(super) const LINEAR: Preset = Preset {
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

pub(super) const NOTION: Preset = Preset {
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

pub(super) const SLACK: Preset = Preset {
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
