//! Secrets in the store: sealed versions under a name.

use crate::{store, vault};

/// What is known of a secret without opening it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The name.
    pub name: String,
    /// The newest version, 1 for the first.
    pub version: u64,
    /// When it was set, milliseconds since 1970.
    pub set_at_ms: u64,
}

/// Why a change of secrets failed. Holds no secret bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name can't be a secret's name.
    #[error(
        "a secret's name has 1 to 128 letters, digits, '.', '_', '-' or '/', and starts with a letter or digit"
    )]
    Name,
    /// There is no such secret.
    #[error("there is no secret of that name")]
    Unknown,
    /// The value has no bytes.
    #[error("the value is empty")]
    Empty,
    /// The value is too long.
    #[error("the value is longer than 1 MiB")]
    TooLong,
    /// The vault refused.
    #[error(transparent)]
    Vault(#[from] vault::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}
