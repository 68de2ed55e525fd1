//! Modes of injection whose token a service mints: what is asked for, and where.

use crate::SecretRef;
use std::collections::BTreeMap;

/// A token that is fetched with the secret, kept while it is good, and sent in the secret's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Who mints it.
    pub from: Mint,
    /// The header field that carries it, lower case.
    pub name: String,
    /// How it stands there.
    pub form: Form,
}

/// Who mints a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mint {
    /// An OAuth 2.0 authorization server (RFC 6749).
    Oauth2(Oauth2),
    /// GitHub, for an installation of an app.
    GithubApp(GithubApp),
}

/// How a token stands in its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// With `{secret}` for the token.
    Format(String),
    /// As the password of this user (`Authorization: Basic`).
    Basic(String),
}

/// A client of an authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oauth2 {
    /// The token endpoint.
    pub url: String,
    /// The client's name there.
    pub client_id: String,
    /// What the credential's secret is.
    pub grant: Grant,
    /// How the client shows who it is.
    pub client_auth: ClientAuth,
    /// The scope asked for.
    pub scope: Option<String>,
    /// More parameters (`audience`, `resource`).
    pub params: BTreeMap<String, String>,
}

/// What is exchanged for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// Nothing but who the client is; the credential's secret is the client's (section 4.4).
    ClientCredentials,
    /// The credential's secret, a refresh token in the vault (section 6), shown by a client with this
    /// secret of its own, if it has one.
    RefreshToken(Option<SecretRef>),
}

/// How a client shows who it is (RFC 6749 section 2.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// `Authorization: Basic`.
    Basic,
    /// In the content.
    Body,
    /// By its name alone: a public client.
    None,
}

/// An installation of a GitHub App.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GithubApp {
    /// Where the API is.
    pub api: String,
    /// The id of the app, or of its client.
    pub app_id: String,
    /// The installation.
    pub installation_id: u64,
    /// The repositories that the token is for; empty: all of the installation.
    pub repositories: Vec<String>,
    /// What the token may do; empty: all that the installation may.
    pub permissions: BTreeMap<String, String>,
}

impl Mint {
    /// The mode's name in policy and records.
    #[must_use]
    pub const fn mode(&self) -> &'static str {
        match self {
            Self::Oauth2(_) => "oauth2",
            Self::GithubApp(_) => "github-app",
        }
    }
}
