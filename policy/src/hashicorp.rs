//! A server of HashiCorp Vault, and what is read from it.

use crate::SecretRef;
use std::path::PathBuf;
use std::sync::Arc;

/// A secret in HashiCorp Vault (`vault:PATH#FIELD`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashicorp {
    /// The server.
    pub server: Arc<Server>,
    /// What is read, as it stands in the API below `/v1/`: `secret/data/pay`, `database/creds/app`.
    pub path: String,
    /// What of it is the secret: a field, or a text with `{fields}`.
    pub field: Field,
}

/// What of an answer is the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// One field.
    Named(String),
    /// A text between which fields stand: pairs of a text and the field behind it, and the last text.
    Joined(Vec<(String, String)>, String),
}

impl Field {
    /// Reads `token`, or `{username}:{password}`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(['{', '}']);
        if is_name(text) {
            return Some(Self::Named(text.to_owned()));
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}')?;
            if !is_name(name) || before.contains('}') {
                return None;
            }
            parts.push((before.to_owned(), name.to_owned()));
            rest = after;
        }
        (!parts.is_empty() && !rest.contains('}')).then(|| Self::Joined(parts, rest.to_owned()))
    }
}

/// Where a server is and who we are there. What is not said is read from the environment of the
/// broker, under the names that HashiCorp's own client uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Server {
    /// Its address; none: `VAULT_ADDR`.
    pub address: Option<String>,
    /// The namespace; none: `VAULT_NAMESPACE`, or none.
    pub namespace: Option<String>,
    /// Certificates that are trusted for it beside the system's; none: `VAULT_CACERT`, or none.
    pub ca_file: Option<PathBuf>,
    /// How we show who we are.
    pub login: Login,
}

/// How we show who we are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Login {
    /// By `VAULT_TOKEN`.
    #[default]
    Environment,
    /// By a token from this source.
    Token(SecretRef),
    /// By a role (AppRole).
    AppRole {
        /// Where the method is mounted.
        mount: String,
        /// The id of the role.
        role_id: String,
        /// Its secret.
        secret_id: SecretRef,
    },
}
