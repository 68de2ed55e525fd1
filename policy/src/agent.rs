//! Agents: who may call.

use crate::store;

/// What the store knows of an agent; never its token.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The name.
    pub name: String,
    /// When it was added, milliseconds since 1970.
    pub added_at_ms: u64,
    /// When its token was last set, milliseconds since 1970.
    pub token_set_at_ms: u64,
    /// Registered SSH public keys, each `algorithm base64`.
    pub keys: Vec<String>,
}

/// Why a change of agents failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name can't be an agent's name.
    #[error(
        "an agent's name has 1 to 64 letters, digits, '.', '_' or '-', and starts with a letter or digit"
    )]
    Name,
    /// There is such an agent.
    #[error("agent {0:?} exists already; `affiant agent rotate` gives it a new token")]
    Exists(String),
    /// There is no such agent.
    #[error("there is no agent {0:?}")]
    Unknown(String),
    /// The text is not an OpenSSH public key line.
    #[error("this is not an OpenSSH public key line (`ssh-ed25519 AAAA...`)")]
    Key,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}
