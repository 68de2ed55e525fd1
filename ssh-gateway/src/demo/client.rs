//! A client that goes through the gateway as `ssh -J` does.

use crate::{Identity, algorithms};
use journal::contract::InvocationId;
use russh::client::{AuthResult, Config, Handle, Handler, Msg, Session};
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey, PublicKeyOrCertificate};
use russh::{Channel, ChannelId, ChannelMsg, ChannelOpenFailure, Disconnect, Preferred};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};

/// How long each step of a connection may take.
const STEP: Duration = Duration::from_secs(20);

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
#[derive(Clone)]
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

impl std::fmt::Debug for Login<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("gateway", &self.gateway)
            .field("agent", &self.agent)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
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
pub struct Client {
    outer: Handle<Checker>,
    inner: Handle<Checker>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Logs in at the gateway and opens the inner session.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connect(identity: &Identity, login: &Login<'_>) -> Result<Self, ClientError> {
        let told = Arc::new(OnceLock::new());
        let checker = |name: &str| Checker {
            ca: identity.ca_public().clone(),
            name: name.into(),
            told: Arc::clone(&told),
        };
        let step = "the connection to the gateway";
        let stream = bounded(step, tokio::net::TcpStream::connect(login.gateway))
            .await?
            .map_err(|error| ClientError::Hop { step, source: error.into() })?;
        let name = login.gateway.ip().to_string();
        let mut outer = handshake(step, stream, checker(&name)).await?;
        let logging_in = outer.authenticate_password(login.agent, login.token);
        accepted(step, bounded(step, logging_in).await?)?;
        let jumping =
            outer.channel_open_direct_tcpip(login.host, u32::from(login.port), "127.0.0.1", 0);
        let step = "the jump";
        let jump = bounded(step, jumping).await?.map_err(|source| match told.get() {
            Some(reason) => ClientError::Refused(reason.clone()),
            None => ClientError::Hop { step, source },
        })?;
        let step = "the session with the target";
        let mut inner = handshake(step, jump.into_stream(), checker(login.host)).await?;
        let logging_in = inner.authenticate_none(login.user);
        accepted(step, bounded(step, logging_in).await?)?;
        Ok(Self { outer, inner })
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
        let (mut read, write) = self.start(command, invocation).await?.split();
        let stdin = bytes::Bytes::copy_from_slice(stdin);
        let feeding = async {
            // Output says what became of a command that takes no input.
            if write.data_bytes(stdin).await.is_ok() {
                drop(write.eof().await);
            }
            std::future::pending().await
        };
        let mut output = Output::default();
        let reading = async {
            while let Some(message) = read.wait().await {
                output.take(message);
            }
        };
        tokio::select! {
            () = reading => {}
            () = feeding => {}
        }
        Ok(output)
    }

    /// Runs a command, sends it a signal once its first output has come, and reads to the end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec_and_signal(
        &self,
        command: &str,
        signal: &str,
    ) -> Result<Output, ClientError> {
        let (mut read, write) = self.start(command, None).await?.split();
        let mut output = Output::default();
        let mut signal = Some(russh::Sig::Custom(signal.to_owned()));
        while let Some(message) = read.wait().await {
            output.take(message);
            if let Some(signal) = signal.take_if(|_| !output.stdout.is_empty()) {
                let step = "the signal";
                let sent = bounded(step, write.signal(signal)).await?;
                sent.map_err(|source| ClientError::Hop { step, source })?;
            }
        }
        Ok(output)
    }

    /// Runs a command and goes away, connection and all, once its first output has come or `after`
    /// has passed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec_and_leave(
        self,
        command: &str,
        after: Duration,
        invocation: Option<InvocationId>,
    ) -> Result<(), ClientError> {
        let mut channel = self.start(command, invocation).await?;
        let first_output = async {
            while let Some(message) = channel.wait().await {
                if matches!(message, ChannelMsg::Data { .. }) {
                    break;
                }
            }
        };
        // Both ends of the wait are welcome.
        drop(tokio::time::timeout(after, first_output).await);
        let leaving = self.outer.disconnect(Disconnect::ByApplication, "", "");
        bounded("leaving", leaving)
            .await?
            .map_err(|source| ClientError::Hop { step: "leaving", source })
    }

    async fn start(
        &self,
        command: &str,
        invocation: Option<InvocationId>,
    ) -> Result<Channel<Msg>, ClientError> {
        let step = "the command";
        let failed = |source| ClientError::Hop { step, source };
        let opening = self.inner.channel_open_session();
        let channel = bounded(step, opening).await?.map_err(failed)?;
        if let Some(id) = invocation {
            let variable = crate::request::INVOCATION_VARIABLE;
            channel.set_env(false, variable, id.to_string()).await.map_err(failed)?;
        }
        channel.exec(true, command).await.map_err(failed)?;
        Ok(channel)
    }
}

impl Output {
    fn take(&mut self, message: ChannelMsg) {
        if let ChannelMsg::Data { data } = message {
            self.stdout.extend_from_slice(&data);
        } else if let ChannelMsg::ExtendedData { data, .. } = message {
            self.stderr.extend_from_slice(&data);
        } else if let ChannelMsg::ExitStatus { exit_status } = message {
            self.status = Some(exit_status);
        } else if let ChannelMsg::ExitSignal { signal_name, .. } = message {
            self.signal = Some(crate::downstream::signal_name(&signal_name).to_owned());
        }
    }
}

async fn handshake<S>(
    step: &'static str,
    stream: S,
    checker: Checker,
) -> Result<Handle<Checker>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = Arc::new(Config {
        preferred: Preferred {
            host_key_certificates: Cow::Borrowed(&[Algorithm::Ed25519]),
            key: Cow::Borrowed(algorithms::KEY_TYPES),
            ..Preferred::DEFAULT
        },
        ..Config::default()
    });
    bounded(step, russh::client::connect_stream(config, stream, checker))
        .await?
        .map_err(|source| ClientError::Hop { step, source })
}

async fn bounded<T>(step: &'static str, work: impl Future<Output = T>) -> Result<T, ClientError> {
    tokio::time::timeout(STEP, work).await.map_err(|_| ClientError::TimedOut(step))
}

fn accepted(
    step: &'static str,
    result: Result<AuthResult, russh::Error>,
) -> Result<(), ClientError> {
    match result {
        Ok(AuthResult::Success) => Ok(()),
        Ok(AuthResult::Failure { .. }) => Err(ClientError::Login),
        Err(source) => Err(ClientError::Hop { step, source }),
    }
}

/// Takes a host certificate of our CA for the expected name, and nothing else.
struct Checker {
    ca: PublicKey,
    name: String,
    /// The words with which a channel was refused.
    told: Arc<OnceLock<String>>,
}

impl Checker {
    fn trusts(&self, certificate: &Certificate) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ca = self.ca.fingerprint(HashAlg::Sha256);
        certificate.cert_type() == CertType::Host
            && certificate.valid_principals().contains(&self.name)
            && certificate.validate_at(now, [&ca]).is_ok()
    }
}

impl Handler for Checker {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        Ok(key.certificate().is_some_and(|certificate| self.trusts(certificate)))
    }
    async fn channel_open_failure(
        &mut self,
        _channel: ChannelId,
        _reason: ChannelOpenFailure,
        description: &str,
        _language: &str,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.told.get_or_init(|| description.to_owned());
        Ok(())
    }
}
