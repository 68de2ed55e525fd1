//! Credentials: from a reference in policy to the secret itself.

mod github;
mod hashicorp;
mod mint;
mod oauth2;
pub(crate) mod program;
mod remote;

use crate::{Credential, Inject, Policy, Secret, SecretRef, secrets, vault};
use journal::contract::{Code, CredentialUse, Retry, Verdict};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

pub(crate) use hashicorp::Book as Leased;
pub(crate) use mint::Book as Minted;

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
    /// A placeholder stands in the request that the credential of the route does not replace.
    #[error("the request holds a placeholder that no credential of its route stands for")]
    Stray,
    /// A source outside of the vault failed.
    #[error("the source of this credential failed: {0}")]
    SourceFailed(&'static str),
    /// A source outside of the vault refuses us.
    #[error("the source of this credential refuses: {0}")]
    SourceDenied(&'static str),
    /// What is needed to ask a source outside of the vault is not there.
    #[error("the source of this credential is not set up: {0}")]
    SourceUnset(&'static str),
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
            Self::Missing | Self::Stray => Code::SecretMissing,
            Self::Unreadable(_) => Code::SecretUnreadable,
            Self::SourceFailed(_) => Code::SecretSourceFailed,
            Self::SourceDenied(_) => Code::SecretSourceDenied,
            Self::SourceUnset(_) => Code::SecretSourceUnset,
            Self::Unsupported(_) => Code::InjectionUnsupported,
        }
    }

    /// The verdict: `credential_injection`, `not_attempted` (contract I-1).
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        let retry = match self {
            Self::Locked
            | Self::Missing
            | Self::Stray
            | Self::Unreadable(_)
            | Self::SourceDenied(_)
            | Self::SourceUnset(_)
            | Self::Unsupported(_) => Retry::AfterCorrection,
            Self::SourceFailed(_) => Retry::Backoff,
        };
        Verdict::not_injected(retry, self.code())
    }
}

impl Policy {
    /// What the invocation is bound to before the secret is touched (contract V-5): id, newest
    /// version (0 for a source without versions, or an absent secret) and mode.
    #[must_use]
    pub fn bind(&self, credential: &Credential) -> CredentialUse {
        let version = self.version_of(&credential.secret);
        let mode = credential.inject.mode().to_owned();
        CredentialUse { id: credential.id.clone(), version, mode }
    }

    /// The newest secret of a credential, and what to record of it.
    ///
    /// # Errors
    /// [`Error`], which never shows the secret or its reference.
    pub fn credential(&self, credential: &Credential) -> Result<(Secret, CredentialUse), Error> {
        let bound = self.bind(credential);
        Ok((self.credential_bound(credential, &bound)?, bound))
    }

    /// The secret of a credential in exactly the version that the invocation is bound to.
    ///
    /// # Errors
    /// [`Error`], which never shows the secret or its reference.
    pub fn credential_bound(
        &self,
        credential: &Credential,
        bound: &CredentialUse,
    ) -> Result<Secret, Error> {
        if let Inject::Token(token) = &credential.inject {
            return self.token(credential, token, bound);
        }
        self.source(&credential.secret, bound.version)
    }

    fn version_of(&self, secret: &SecretRef) -> u64 {
        match secret {
            SecretRef::Vault(name) => self.newest(name).unwrap_or(0),
            SecretRef::Env(_)
            | SecretRef::File(_)
            | SecretRef::Agent(_)
            | SecretRef::Exec(_)
            | SecretRef::Hashicorp(_) => 0,
        }
    }

    /// The newest secret that a reference leads to.
    fn newest_of(&self, secret: &SecretRef) -> Result<Secret, Error> {
        self.source(secret, self.version_of(secret))
    }

    /// The secret that a reference leads to; of those in the vault, the version.
    fn source(&self, secret: &SecretRef, version: u64) -> Result<Secret, Error> {
        match secret {
            SecretRef::Vault(name) => self.open_in_vault(name, version),
            SecretRef::Env(name) => {
                use std::os::unix::ffi::OsStringExt as _;
                let value = std::env::var_os(name).ok_or(Error::Missing)?;
                Some(Secret::new(value.into_vec())).filter(|s| !s.is_empty()).ok_or(Error::Missing)
            }
            SecretRef::File(path) => from_file(path),
            SecretRef::Agent(path) => {
                use std::os::unix::ffi::OsStrExt as _;
                Ok(Secret::new(path.as_os_str().as_bytes().to_vec()))
            }
            SecretRef::Exec(arguments) => program::run(arguments, program::TIME),
            SecretRef::Hashicorp(wanted) => self.leased_secret(wanted),
        }
    }

    /// What policy takes from variables and files. No program is run, and no server asked, for what
    /// may not be needed.
    pub(crate) fn secrets_at_hand(&self) -> Vec<Secret> {
        let snapshot = self.snapshot();
        let sources = snapshot.credentials().iter().map(|credential| &credential.secret);
        let at_hand = sources.filter(|source| match source {
            SecretRef::Env(_) | SecretRef::File(_) => true,
            SecretRef::Vault(_)
            | SecretRef::Agent(_)
            | SecretRef::Exec(_)
            | SecretRef::Hashicorp(_) => false,
        });
        at_hand.filter_map(|source| self.source(source, 0).ok()).collect()
    }

    /// What took the place of a version of a secret, if something did.
    fn rotated(&self, name: &str, version: u64) -> Result<Option<Secret>, Error> {
        match self.open_in_vault(&secrets::rotated_name(name), version) {
            Ok(secret) => Ok(Some(secret)),
            Err(Error::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn newest(&self, name: &str) -> Option<u64> {
        let state = self.state();
        state.secrets.get(name).filter(|n| !n.removed).map(|n| n.version)
    }

    fn open_in_vault(&self, name: &str, version: u64) -> Result<Secret, Error> {
        match self.open_now(name, version) {
            // The master key may have been changed between two looks; then the next one fits.
            Err(Error::Unreadable(_) | Error::Locked) => {
                drop(self.state());
                self.open_now(name, version)
            }
            other => other,
        }
    }

    fn open_now(&self, name: &str, version: u64) -> Result<Secret, Error> {
        let sealed = self.sealed(name, version).map_err(|error| {
            tracing::error!(%error, "a sealed secret can't be read");
            Error::Unreadable("its record in the store can't be read")
        })?;
        let sealed = sealed.ok_or(Error::Missing)?;
        match self.vault.open_sealed(name, version, &sealed) {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) => Err(Error::Unreadable("it was sealed by another key, or changed")),
            Err(vault::Error::Locked) => Err(Error::Locked),
            Err(error) => {
                tracing::error!(%error, "the vault failed");
                Err(Error::Unreadable("the vault failed"))
            }
        }
    }
}

/// Files with certificates that policy trusts for the host of a URL.
fn trust_of(policy: &Policy, url: &str) -> Vec<PathBuf> {
    host_of(url).map(|host| policy.snapshot().trust_for(host)).unwrap_or_default()
}

/// The host of a URL, an IPv6 literal in brackets.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    match authority.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => Some(host),
        Some(_) | None => Some(authority),
    }
}

/// Whether secrets may go to a URL: over TLS, or in clear text within this machine.
pub(crate) fn may_carry_secrets(url: &str) -> bool {
    let Some(host) = host_of(url).filter(|h| !h.is_empty() && !h.contains('@')) else {
        return false;
    };
    let plain = url.bytes().all(|c| c.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&c));
    let local = || {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    plain && (url.starts_with("https://") || (url.starts_with("http://") && local()))
}

/// Reads a secret from a file, without one line end at its end.
fn from_file(path: &Path) -> Result<Secret, Error> {
    const LENGTH_BYTES: u64 = 1 << 20;
    let failed = |error: io::Error| {
        if error.kind() == io::ErrorKind::NotFound {
            Error::Missing
        } else {
            Error::SourceFailed("its file can't be read")
        }
    };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len().min(LENGTH_BYTES);
    // Sized at once: growing would leave copies behind.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 2);
    let read = file.take(LENGTH_BYTES + 1).read_to_end(&mut bytes);
    let secret = Zeroizing::new(bytes);
    read.map_err(failed)?;
    if u64::try_from(secret.len()).unwrap_or(u64::MAX) > LENGTH_BYTES {
        return Err(Error::Unreadable("its file is longer than 1 MiB"));
    }
    trimmed(secret)
}

/// Takes bytes as a secret, without one line end at their end.
fn trimmed(mut secret: Zeroizing<Vec<u8>>) -> Result<Secret, Error> {
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
    if secret.is_empty() {
        return Err(Error::Missing);
    }
    Ok(Secret::new(std::mem::take(&mut *secret)))
}
