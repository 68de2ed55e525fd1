//! The compiled policy of one version: pure decisions over an immutable index.

use crate::{Denial, Diagnostic, Explanation, HttpAction, HttpGrant, SshAction, SshGrant};
use std::path::PathBuf;

/// The compiled policy of one version. Immutable; every invocation is bound to one (contract V-5).
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    version: u64,
}

impl Snapshot {
    /// The version in the store; 0 when the text was only checked, or no policy was applied yet
    /// (then everything is denied).
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Findings that do not prevent the policy from being applied.
    #[must_use]
    pub fn warnings(&self) -> &[Diagnostic] {
        todo!()
    }

    /// Whether the agent may open a tunnel there at all: some route leads there, or egress is open.
    ///
    /// # Errors
    /// [`Denial`] with `TARGET_NOT_ALLOWED` or `INVALID_TARGET`.
    pub fn tunnel(&self, agent: &str, host: &str, port: u16) -> Result<(), Denial> {
        let _ = (agent, host, port);
        todo!()
    }

    /// Decides one HTTP action. The most specific matching route wins; nothing matching is denied
    /// unless `egress = "allow"`.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn http(&self, action: &HttpAction<'_>) -> Result<HttpGrant, Denial> {
        let _ = action;
        todo!()
    }

    /// Whether the agent may reach the SSH target with some user and request.
    ///
    /// # Errors
    /// [`Denial`] with `TARGET_NOT_ALLOWED` or `INVALID_TARGET`.
    pub fn ssh_target(&self, agent: &str, host: &str, port: u16) -> Result<(), Denial> {
        let _ = (agent, host, port);
        todo!()
    }

    /// Decides one SSH action.
    ///
    /// # Errors
    /// [`Denial`].
    pub fn ssh(&self, action: &SshAction<'_>) -> Result<SshGrant, Denial> {
        let _ = action;
        todo!()
    }

    /// Explains the decision on an HTTP action.
    #[must_use]
    pub fn explain_http(&self, action: &HttpAction<'_>) -> Explanation {
        let _ = action;
        todo!()
    }

    /// Explains the decision on an SSH action.
    #[must_use]
    pub fn explain_ssh(&self, action: &SshAction<'_>) -> Explanation {
        let _ = action;
        todo!()
    }

    /// Files with certificates that are trusted for the host beside the system's roots.
    #[must_use]
    pub fn trust_for(&self, host: &str) -> Vec<PathBuf> {
        let _ = host;
        todo!()
    }

    /// Host names and ports of all SSH routes whose host is a plain name, for `affiant ssh-config`.
    #[must_use]
    pub fn ssh_hosts(&self) -> Vec<(String, u16)> {
        todo!()
    }

    /// Names of all agents that routes mention, without `*`.
    #[must_use]
    pub fn agents(&self) -> Vec<String> {
        todo!()
    }
}
