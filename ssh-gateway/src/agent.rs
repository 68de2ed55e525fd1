//! A key that lies in an SSH agent: found by its public half, and signed with through the agent's socket
//! (the SSH agent protocol, draft-ietf-sshm-ssh-agent). The private half never comes here.

use policy::Secret;
use policy::credential::Error;
use russh::client::{AuthResult, Handle, Handler};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::{HashAlg, PublicKey};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long an agent may take to say what it holds. It may ask a person before it signs; that has the
/// time of the connection's setup.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key of an agent.
pub(crate) struct AgentKey {
    socket: PathBuf,
    key: PublicKey,
}

/// Finds the key in the agent at the socket that the secret names.
///
/// # Errors
/// [`Error::SourceFailed`] when no agent answers, [`Error::SourceDenied`] when it lacks the key,
/// [`Error::Unreadable`] when it has several and none is named.
pub(crate) async fn find(socket: &Secret, wanted: Option<&str>) -> Result<AgentKey, Error> {
    let socket = Path::new(OsStr::from_bytes(socket.expose())).to_owned();
    let asking = async {
        let mut agent = connect(&socket).await?;
        agent.request_identities().await.map_err(|error| {
            tracing::warn!(%error, "an SSH agent does not say what it holds");
            Error::SourceFailed("the agent does not say which keys it holds")
        })
    };
    let late = |_| Error::SourceFailed("the agent does not answer");
    let held = tokio::time::timeout(PATIENCE, asking).await.map_err(late)??;
    let mut keys = held.into_iter().filter_map(|identity| match identity {
        AgentIdentity::PublicKey { key, .. } => Some(key),
        AgentIdentity::Certificate { .. } => None,
    });
    let key = match wanted {
        Some(wanted) => {
            let wanted = PublicKey::from_openssh(wanted)
                .map_err(|_| Error::Unreadable("policy names a public key that is none"))?;
            keys.find(|key| key.key_data() == wanted.key_data())
                .ok_or(Error::SourceDenied("the agent does not hold the key that policy names"))?
        }
        None => match (keys.next(), keys.next()) {
            (Some(key), None) => key,
            (None, _) => return Err(Error::SourceDenied("the agent holds no key")),
            (Some(_), Some(_)) => {
                let why = "the agent holds several keys, and policy names none by `public_key`";
                return Err(Error::Unreadable(why));
            }
        },
    };
    Ok(AgentKey { socket, key })
}

async fn connect(socket: &Path) -> Result<AgentClient<UnixStream>, Error> {
    AgentClient::connect_uds(socket).await.map_err(|error| {
        tracing::warn!(%error, "an SSH agent can't be reached");
        Error::SourceFailed("no agent answers at its socket")
    })
}

/// Logs in with the key. The inner error: the agent does not sign.
///
/// # Errors
/// When the connection to the target failed.
pub(crate) async fn log_in<H: Handler>(
    held: &AgentKey,
    session: &mut Handle<H>,
    user: &str,
    hash: Option<HashAlg>,
) -> Result<Result<AuthResult, Error>, russh::Error> {
    let mut agent = match connect(&held.socket).await {
        Ok(agent) => agent,
        Err(error) => return Ok(Err(error)),
    };
    let key = held.key.clone();
    match session.authenticate_publickey_with(user, key, hash, &mut agent).await {
        Ok(result) => Ok(Ok(result)),
        Err(russh::AgentAuthError::Send(_)) => Err(russh::Error::SendError),
        Err(russh::AgentAuthError::Key(error)) => {
            tracing::warn!(%error, "an SSH agent does not sign");
            Ok(Err(Error::SourceDenied("the agent does not sign with the key")))
        }
    }
}

impl AgentKey {
    /// Whether it is an RSA key, which signs with a digest that the target names.
    pub(crate) fn is_rsa(&self) -> bool {
        self.key.algorithm().is_rsa()
    }
}
