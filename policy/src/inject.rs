//! How a secret is attached to a request.

use crate::{Secret, credential};

/// A mode of injection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inject {
    /// `Authorization: Bearer <secret>`.
    Bearer,
    /// `Authorization: Basic`, the secret being `user:password`.
    Basic,
    /// A header of its own.
    Header {
        /// The field name, lower case.
        name: String,
        /// The value with `{secret}` in it; none: the secret alone.
        format: Option<String>,
    },
    /// SSH: password.
    Password,
    /// SSH: private key, OpenSSH PEM text.
    SshKey,
    /// A mode that the policy language knows and this build can't perform.
    Unsupported(String),
}

impl Inject {
    /// The mode's name in policy and records.
    #[must_use]
    pub fn mode(&self) -> &str {
        match self {
            Self::Bearer => "bearer",
            Self::Basic => "basic",
            Self::Header { .. } => "header",
            Self::Password => "password",
            Self::SshKey => "ssh-key",
            Self::Unsupported(mode) => mode,
        }
    }

    /// The lower-case name of the header field that the mode sets.
    #[must_use]
    pub fn header_name(&self) -> Option<&str> {
        match self {
            Self::Bearer | Self::Basic => Some("authorization"),
            Self::Header { name, .. } => Some(name),
            Self::Password | Self::SshKey | Self::Unsupported(_) => None,
        }
    }

    /// Builds the header field: lower-case name and value.
    ///
    /// # Errors
    /// [`credential::Error::Unreadable`] when the value can't stand in a header (line ends, NUL) or
    /// lacks the form that the mode needs; [`credential::Error::Unsupported`] for a mode that sets
    /// no header.
    pub fn header(&self, secret: &Secret) -> Result<(String, Secret), credential::Error> {
        let _ = secret;
        todo!()
    }
}
