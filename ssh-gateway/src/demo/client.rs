//! A client that goes through the gateway as `ssh -J` does.

use crate::Identity;
use journal::contract::InvocationId;
use std::net::SocketAddr;

/// Why the client got no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A hop failed.
    #[error("{step} failed")]
    Hop {
        /// What was tried.
        step: &'static str,
        /// The cause.
        #[source]
        source: russh::Error,
    },
    /// The gateway refused the login.
    #[error("the gateway refused the login of the agent")]
    Login,
    /// The gateway refused the jump, in its own words.
    #[error("the gateway refused the jump: {0}")]
    Refused(String),
    /// It took too long.
    #[error("{0} took too long")]
    TimedOut(&'static str),
}

/// How the client gets in, and where to.
#[derive(Debug, Clone)]
pub struct Login<'a> {
    /// The gateway.
    pub gateway: SocketAddr,
    /// The agent's name.
    pub agent: &'a str,
    /// The agent's token.
    pub token: &'a str,
    /// The target's name, as policy knows it.
    pub host: &'a str,
    /// The target's port.
    pub port: u16,
    /// The user at the target.
    pub user: &'a str,
}

/// What a command gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit status, if one came.
    pub status: Option<u32>,
    /// Exit signal, if one came.
    pub signal: Option<String>,
}

/// A connection through the gateway to one target; both hops' host certificates are verified.
pub struct Client {}

impl Client {
    /// Logs in at the gateway and opens the inner session.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(identity: &Identity, login: &Login<'_>) -> Result<Self, ClientError> {
        let _ = (identity, login);
        todo!()
    }

    /// Runs a command with the given stdin and reads its result to the end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec(
        &self,
        command: &str,
        stdin: &[u8],
        invocation: Option<InvocationId>,
    ) -> Result<Output, ClientError> {
        let _ = (command, stdin, invocation);
        todo!()
    }

    /// Runs a command and goes away, connection and all, once its first output has come or `after`
    /// has passed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec_and_leave(
        self,
        command: &str,
        after: std::time::Duration,
        invocation: Option<InvocationId>,
    ) -> Result<(), ClientError> {
        let _ = (command, after, invocation);
        todo!()
    }
}
