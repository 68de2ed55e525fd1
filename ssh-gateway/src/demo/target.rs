//! A scripted SSH target: the command says how the target behaves, well or badly.

use std::net::SocketAddr;

/// Why the target could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No address to listen on.
    #[error("the demo target cannot listen")]
    Listen(#[source] std::io::Error),
    /// No key could be made.
    #[error("the demo target cannot make its keys")]
    Keys(#[source] russh::keys::ssh_key::Error),
}

/// A running target on loopback. It ends when it is dropped.
///
/// | command | what the target does |
/// |---|---|
/// | `echo TEXT` | TEXT on stdout, exit status 0 |
/// | `warn TEXT` | TEXT on stderr, exit status 3 |
/// | `exit N` | exit status N |
/// | `signal NAME` | exit signal NAME |
/// | `cat` | stdin on stdout until its end, exit status 0 |
/// | `flood N` | N bytes on stdout, exit status 0 |
/// | `sleep MS` | waits, exit status 0 |
/// | `vanish` | accepts, does its effect, closes the channel without an exit status |
/// | `drop` | accepts, does its effect, closes the connection |
/// | `cut` | accepts, half of the output, exit status 0, then closes the connection |
/// | `mute` | never answers the request |
/// | `refuse` | refuses the request; no effect |
/// | `twice` | sends two exit statuses |
///
/// Every command that it starts counts as one effect.
pub struct Target {}

impl Target {
    /// Starts a target on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When it can't listen.
    pub async fn start() -> Result<Self, TargetError> {
        todo!()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        todo!()
    }

    /// Its host key, as policy pins it: `ssh-ed25519 AAAA...`.
    #[must_use]
    pub fn host_key(&self) -> String {
        todo!()
    }

    /// The private key that logs in as any user, OpenSSH PEM text.
    #[must_use]
    pub fn user_key(&self) -> policy::Secret {
        todo!()
    }

    /// How many commands it started.
    #[must_use]
    pub fn effects(&self) -> usize {
        todo!()
    }
}
