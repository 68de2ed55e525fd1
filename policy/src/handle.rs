//! The handle on a home's policy: newest snapshot, agents, secrets, vault.

use crate::{Credential, Diagnostic, Secret, Snapshot, Vault, agent, credential, secrets, store};
use journal::contract::CredentialUse;
use std::path::Path;
use std::sync::Arc;

/// The handle on a home's policy. Several processes may hold one; every look sees what was
/// committed last, at the price of one read of mapped memory.
#[derive(Debug)]
pub struct Policy {}

/// One version in the history.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct VersionInfo {
    /// 1 for the first.
    pub version: u64,
    /// When it was applied, milliseconds since 1970.
    pub applied_at_ms: u64,
    /// Who applied it.
    pub who: String,
    /// The file it came from, as named then.
    pub file: String,
    /// `sha256:` of the text.
    pub digest: journal::contract::Digest,
    /// The version whose text this one brought back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback_of: Option<u64>,
}

/// Opening a home's policy.
pub mod open {
    use std::path::PathBuf;

    /// Why a home's policy can't be opened or created.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// There is no policy store in this home.
        #[error("{0} holds no policy store; `affiant init` makes one")]
        NotInitialised(PathBuf),
        /// A file or directory can't be used.
        #[error("cannot use {path}")]
        Io {
            /// The path.
            path: PathBuf,
            /// The cause.
            #[source]
            source: std::io::Error,
        },
        /// The vault refused.
        #[error(transparent)]
        Vault(#[from] crate::vault::Error),
        /// The store failed.
        #[error(transparent)]
        Store(#[from] crate::store::Error),
    }
}

/// Applying a policy text.
pub mod apply {
    use crate::Diagnostic;

    /// Why a policy text was not applied. The version in force stays.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// The text has errors, in the order of the text.
        #[error("the policy has {} error(s); the version in force stays", .0.len())]
        Refused(Vec<Diagnostic>),
        /// The store failed.
        #[error(transparent)]
        Store(#[from] crate::store::Error),
    }
}

/// Bringing an old policy text back.
pub mod rollback {
    /// Why an old text was not brought back.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// There is no such version.
        #[error("there is no policy version {0}; `affiant policy history` lists them")]
        Unknown(u64),
        /// The old text is no longer a valid policy, or the store failed.
        #[error(transparent)]
        Apply(#[from] super::apply::Error),
    }
}

impl Policy {
    /// Opens the policy of a home. A vault with a key file is unlocked by it.
    ///
    /// # Errors
    /// [`open::Error`].
    pub fn open(home: &Path) -> Result<Self, open::Error> {
        let _ = home;
        todo!()
    }

    /// Creates store and vault key where they are missing, and opens them. With a passphrase the
    /// vault's key is derived from it, else a key file is made. Changes nothing that exists.
    ///
    /// # Errors
    /// [`open::Error`].
    pub fn init(home: &Path, passphrase: Option<&Secret>) -> Result<Self, open::Error> {
        let _ = (home, passphrase);
        todo!()
    }

    /// The snapshot in force.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        todo!()
    }

    /// Checks a text without applying it.
    ///
    /// # Errors
    /// All findings, in the order of the text.
    pub fn check(text: &str, file: &str) -> Result<Snapshot, Vec<Diagnostic>> {
        let _ = (text, file);
        todo!()
    }

    /// Checks a text and makes it the version in force; answers its number.
    ///
    /// # Errors
    /// [`apply::Error`]; the version in force stays.
    pub fn apply(&self, text: &str, file: &str, who: &str) -> Result<u64, apply::Error> {
        let _ = (text, file, who);
        todo!()
    }

    /// All versions, newest first.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn history(&self) -> Result<Vec<VersionInfo>, store::Error> {
        todo!()
    }

    /// The text of a version, byte for byte; none if there is no such version.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn source_text(&self, version: u64) -> Result<Option<String>, store::Error> {
        let _ = version;
        todo!()
    }

    /// Applies the text of an old version as a new one; answers the new number.
    ///
    /// # Errors
    /// [`rollback::Error`]; the version in force stays.
    pub fn rollback(&self, version: u64, who: &str) -> Result<u64, rollback::Error> {
        let _ = (version, who);
        todo!()
    }

    /// Whether the token is this agent's, in constant time.
    #[must_use]
    pub fn authenticate(&self, agent: &str, token: &str) -> bool {
        let _ = (agent, token);
        todo!()
    }

    /// The agent whose token this is.
    #[must_use]
    pub fn agent_by_token(&self, token: &str) -> Option<String> {
        let _ = token;
        todo!()
    }

    /// Whether the SSH public key (`algorithm base64`, a comment may follow) is registered for the
    /// agent.
    #[must_use]
    pub fn authenticate_key(&self, agent: &str, key: &str) -> bool {
        let _ = (agent, key);
        todo!()
    }

    /// Adds an agent; answers its token, which is not kept and can't be shown again.
    ///
    /// # Errors
    /// [`agent::Error`].
    pub fn add_agent(&self, name: &str) -> Result<Secret, agent::Error> {
        let _ = name;
        todo!()
    }

    /// Gives an agent a new token; the old one ends at once.
    ///
    /// # Errors
    /// [`agent::Error`].
    pub fn rotate_agent(&self, name: &str) -> Result<Secret, agent::Error> {
        let _ = name;
        todo!()
    }

    /// Removes an agent.
    ///
    /// # Errors
    /// [`agent::Error`].
    pub fn remove_agent(&self, name: &str) -> Result<(), agent::Error> {
        let _ = name;
        todo!()
    }

    /// Registers an SSH public key line for an agent.
    ///
    /// # Errors
    /// [`agent::Error`].
    pub fn add_agent_key(&self, name: &str, line: &str) -> Result<(), agent::Error> {
        let _ = (name, line);
        todo!()
    }

    /// All agents by name.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn list_agents(&self) -> Result<Vec<agent::Info>, store::Error> {
        todo!()
    }

    /// Seals a secret as a new version; answers the version.
    ///
    /// # Errors
    /// [`secrets::Error`].
    pub fn set_secret(&self, name: &str, value: &Secret) -> Result<u64, secrets::Error> {
        let _ = (name, value);
        todo!()
    }

    /// All secrets by name, without their values.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn list_secrets(&self) -> Result<Vec<secrets::Info>, store::Error> {
        todo!()
    }

    /// Removes a secret with all its versions. Its version numbers are not used again.
    ///
    /// # Errors
    /// [`secrets::Error`].
    pub fn remove_secret(&self, name: &str) -> Result<(), secrets::Error> {
        let _ = name;
        todo!()
    }

    /// The vault.
    #[must_use]
    pub fn vault(&self) -> &Vault {
        todo!()
    }

    /// What the invocation is bound to before the secret is touched (contract V-5): id, newest
    /// version (0 for a source without versions, or an absent secret) and mode.
    #[must_use]
    pub fn bind(&self, credential: &Credential) -> CredentialUse {
        let _ = credential;
        todo!()
    }

    /// The newest secret of a credential, and what to record of it.
    ///
    /// # Errors
    /// [`credential::Error`], none of which shows the secret or its reference.
    pub fn credential(
        &self,
        credential: &Credential,
    ) -> Result<(Secret, CredentialUse), credential::Error> {
        let _ = credential;
        todo!()
    }

    /// The secret of a credential in exactly the version that the invocation is bound to.
    ///
    /// # Errors
    /// [`credential::Error`], none of which shows the secret or its reference.
    pub fn credential_bound(
        &self,
        credential: &Credential,
        bound: &CredentialUse,
    ) -> Result<Secret, credential::Error> {
        let _ = (credential, bound);
        todo!()
    }
}
