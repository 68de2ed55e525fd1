//! Why a credential could not be had.

use journal::contract::{Code, Retry, Verdict};

/// Why a credential could not be had. No variant holds secret bytes or the reference to a secret
/// (contract I-2, V-3); `id` is the credential's id in policy, for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The vault is locked.
    #[error("the vault is locked; an operator unlocks it with `affiant vault unlock`")]
    Locked,
    /// Policy names a secret that its source does not hold.
    #[error("the secret of this credential is not set; an operator sets it")]
    Missing,
    /// The secret can't be decrypted or has the wrong form for the mode.
    #[error("the secret of this credential can't be used: {0}")]
    Unreadable(&'static str),
    /// A source outside of the vault failed.
    #[error("the source of this credential failed: {0}")]
    SourceFailed(&'static str),
    /// The mode of injection, or the kind of source, is known but not supported.
    #[error("this build does not support {0}")]
    Unsupported(&'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Locked => Code::VaultLocked,
            Self::Missing => Code::SecretMissing,
            Self::Unreadable(_) => Code::SecretUnreadable,
            Self::SourceFailed(_) => Code::SecretSourceFailed,
            Self::Unsupported(_) => Code::InjectionUnsupported,
        }
    }

    /// The verdict: `credential_injection`, `not_attempted` (contract I-1).
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        let retry = match self {
            Self::Locked | Self::Missing | Self::Unreadable(_) | Self::Unsupported(_) => {
                Retry::AfterCorrection
            }
            Self::SourceFailed(_) => Retry::Backoff,
        };
        Verdict::not_injected(retry, self.code())
    }
}
