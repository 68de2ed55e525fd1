//! Services that keep code, and registries of packages.

use super::super::{Attach, Mint, Preset};
use super::{ALL, NOT, POST, YES, line, read, source};

pub(super) const GITHUB: Preset = Preset {
    name: "github",
    title: "GitHub REST and GraphQL API",
    hosts: &["api.github.com", "uploads.github.com"],
    path: None,
    attach: Attach::Bearer,
    secret: "a personal access token or an installation token",
    source: read("https://docs.github.com/en/rest/authentication/authenticating-to-the-rest-api"),
    mints: &[Mint::Path("/app/installations/*/access_tokens")],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; GraphQL mutations are POST too; no key contract is published",
        read(
            "https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api",
        ),
    )],
    note: "",
};

pub(super) const GITLAB: Preset = Preset {
    name: "gitlab",
    title: "GitLab REST and GraphQL API",
    hosts: &["gitlab.com"],
    path: Some("/api/**"),
    attach: Attach::Header("private-token"),
    secret: "a personal, project or group access token",
    source: read("https://docs.gitlab.com/api/rest/authentication/"),
    mints: &[
        Mint::Path("/api/*/personal_access_tokens/**"),
        Mint::Path("/api/*/user/personal_access_tokens"),
        Mint::Path("/api/*/users/*/personal_access_tokens"),
        Mint::Path("/api/*/users/*/impersonation_tokens/**"),
        Mint::Path("/api/*/groups/*/access_tokens/**"),
        Mint::Path("/api/*/groups/*/deploy_tokens/**"),
        Mint::Path("/api/*/groups/*/service_accounts/*/personal_access_tokens/**"),
        Mint::Path("/api/*/projects/*/access_tokens/**"),
        Mint::Path("/api/*/projects/*/deploy_tokens/**"),
    ],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "creates; GraphQL mutations are POST too; no key contract is published",
        source("https://docs.gitlab.com/api/rest/"),
    )],
    note: "For an installation of your own write `match = { host = \"gitlab.example.com\" }`.",
};

pub(super) const NPM: Preset = Preset {
    name: "npm",
    title: "npm registries",
    hosts: &[],
    path: None,
    attach: Attach::Bearer,
    secret: "an access token that may publish",
    source: read("https://github.com/npm/cli/blob/latest/docs/lib/content/commands/npm-publish.md"),
    mints: &[Mint::Path("/-/npm/v1/tokens/**")],
    lines: &[
        line(
            POST,
            &["/-/npm/v1/security/advisories/bulk"],
            YES,
            "asks which versions have advisories",
            read("https://github.com/npm/cli/blob/latest/docs/lib/content/commands/npm-audit.md"),
        ),
        line(
            &["PUT", "POST", "DELETE"],
            ALL,
            NOT,
            "publishing is a PUT, and fails if name and version exist: a repeat would be refused though the first was carried out",
            read("https://github.com/npm/cli/blob/latest/docs/lib/content/commands/npm-publish.md"),
        ),
    ],
    note: "A version that is published can't be published again, so nothing is published twice; whether a publication in doubt was carried out is seen at the version itself, `GET /NAME/VERSION`. With the preset, the agent's own `_authToken` can be any text.",
};

pub(super) const PYPI: Preset = Preset {
    name: "pypi",
    title: "Python package indexes",
    hosts: &[],
    path: None,
    attach: Attach::Basic,
    secret: "`__token__:API_TOKEN`, or `USER:PASSWORD`",
    source: read("https://github.com/pypi/warehouse/blob/main/docs/user/api/upload.md"),
    mints: &[],
    lines: &[line(
        POST,
        ALL,
        NOT,
        "an upload; the API is not standardised, and indexes differ in whether they take an equal file again or refuse its name",
        read("https://peps.python.org/pep-0694/"),
    )],
    note: "The index that twine uploads to by default takes an equal file again as done (<https://github.com/pypa/twine/issues/354>, read 2026-11-30) and no other file of a name that was used (<https://github.com/pypa/packaging-problems/issues/74>, read 2026-11-30). Its reference promises neither, so `idempotent = true` is a decision of the route's. An upload in doubt is seen in the index, by file name and digest.",
};
