//! The upstream hop: one connection per command, set up stage by stage (contract C-1, C-2).
//!
//! ```text
//!  resolve ─► address check ─► TCP ─► key exchange, host key ─► login ─► channel ─► terminal, env
//!                                                                                        │
//!                                            Ready ──── start(Dispatched, request) ────► Running
//! ```
//!
//! Invariant: [`Ready::start`] is the only way to send a request that starts something, and it
//! takes the proof of a durable `DISPATCH_STARTED` by value (contract D-1, D-3). Stdin can only be
//! written on a [`Running`].

mod error;
mod login;
mod verify;

pub(crate) use error::Error;

use crate::Options;
use crate::address;
use crate::agent::AgentKey;
use crate::algorithms;
use crate::known_hosts::Place;
use crate::request::{INVOCATION_VARIABLE, Preparation, Request, Terminal};
use error::{tcp_code, timeout_at};
use journal::Dispatched;
use journal::contract::{InvocationId, PeerIdentity, SetupAttempt, SetupStage};
use policy::{Secret, SshGrant};
use russh::client::{Handle, Msg};
use russh::keys::{Certificate, PrivateKey};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use verify::{Pins, Verifier, Witness};

/// What the gateway logs in with.
pub(crate) enum Login {
    /// Nothing: the target takes the user as it comes.
    None,
    /// A private key.
    Key(Arc<PrivateKey>),
    /// A password.
    Password(Secret),
    /// A secret that answers every hidden question.
    Answer(Secret),
    /// A key that an agent signs with.
    Agent(AgentKey),
    /// A key of this session alone, with a certificate for it.
    Certificate(Arc<PrivateKey>, Box<Certificate>),
}

/// Where to, as whom, and with what.
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a Options,
    pub(crate) grant: &'a SshGrant,
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) user: &'a str,
    pub(crate) login: &'a Login,
    pub(crate) preparation: &'a Preparation,
    /// The action, by its first attempt: its name for a target that is told one.
    pub(crate) operation: InvocationId,
    /// Whether a channel for a command is needed; a forwarding opens its own at dispatch.
    pub(crate) session_channel: bool,
}

/// A connection with everything set up and nothing started.
pub(crate) struct Ready {
    session: Handle<Verifier>,
    channel: Option<Channel<Msg>>,
    witness: Witness,
    address: SocketAddr,
    fingerprint: String,
    terminal_refused: bool,
}

/// A command that was asked for: its channel, both ways.
pub(crate) struct Running {
    session: Handle<Verifier>,
    pub(crate) read: ChannelReadHalf,
    pub(crate) write: Arc<ChannelWriteHalf<Msg>>,
    witness: Witness,
    /// Whether the channel itself was what was asked for, and is open.
    pub(crate) is_forwarding: bool,
}

/// What came of a request.
pub(crate) enum Started {
    /// It is under way.
    Running(Box<Running>),
    /// The target refused the channel that was asked for.
    Refused,
    /// The connection ended first.
    Lost(&'static str),
    /// The target said in time neither that it opened the channel nor that it refuses to.
    NotOpened,
    /// The client left before the target said so.
    Left,
}

impl Ready {
    /// The address of the peer.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The verified host key (contract C-5).
    pub(crate) fn peer(&self) -> PeerIdentity {
        PeerIdentity::SshHost { fingerprint: self.fingerprint.clone() }
    }

    /// Whether the target refused the terminal that the client asked for.
    pub(crate) const fn terminal_refused(&self) -> bool {
        self.terminal_refused
    }

    /// Sends the request, want-reply. The proof says that the dispatch is on record.
    ///
    /// An engine that is gone already shows as a channel without messages. `patience` bounds the
    /// wait for a forwarding: the target dials before it answers, and may never do; `left` ends it, too.
    pub(crate) async fn start(
        self,
        dispatched: Dispatched,
        request: &Request,
        patience: Duration,
        left: impl Future<Output = ()>,
    ) -> Started {
        tracing::debug!(id = %dispatched.id(), sequence = %dispatched.sequence(), "dispatch");
        let (channel, is_forwarding) = match (self.channel, request) {
            (Some(channel), _) => (channel, false),
            (None, Request::Forward { host, port }) => {
                let (host, port) = (host.as_str(), u32::from(*port));
                let opening = self.session.channel_open_direct_tcpip(host, port, "127.0.0.1", 0);
                let opened = tokio::select! {
                    opened = tokio::time::timeout(patience, opening) => opened,
                    () = left => {
                        disconnect(&self.session).await;
                        return Started::Left;
                    }
                };
                match opened {
                    Ok(Ok(channel)) => (channel, true),
                    Ok(Err(russh::Error::ChannelOpenFailure(_))) => {
                        disconnect(&self.session).await;
                        return Started::Refused;
                    }
                    Ok(Err(_)) => return Started::Lost(self.witness.cause()),
                    Err(_) => {
                        disconnect(&self.session).await;
                        return Started::NotOpened;
                    }
                }
            }
            (None, Request::Exec(_) | Request::Shell | Request::Subsystem(_)) => {
                return Started::Lost("NO_CHANNEL");
            }
        };
        let (read, write) = channel.split();
        let sent = match request {
            Request::Exec(command) => write.exec(true, command.as_slice()).await,
            Request::Shell => write.request_shell(true).await,
            Request::Subsystem(name) => write.request_subsystem(true, name.as_str()).await,
            Request::Forward { .. } => Ok(()),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "the request was not taken by the engine");
        }
        let (session, write, witness) = (self.session, Arc::new(write), self.witness);
        Started::Running(Box::new(Running { session, read, write, witness, is_forwarding }))
    }

    /// Ends a connection on which nothing was started.
    pub(crate) async fn abandon(self) {
        disconnect(&self.session).await;
    }
}

impl Running {
    /// What ended the connection, in one word; for diagnosis only (contract E-3).
    pub(crate) fn cause(&self) -> &'static str {
        self.witness.cause()
    }

    /// How the target broke the protocol, if that ended the connection.
    pub(crate) fn violation(&self) -> Option<&'static str> {
        self.witness.violation()
    }

    /// Turns true when the connection is gone.
    pub(crate) fn lost(&self) -> watch::Receiver<bool> {
        self.witness.lost()
    }

    /// Closes the channel and the connection.
    pub(crate) async fn finish(self) {
        let closing = async {
            drop(self.write.close().await);
            disconnect(&self.session).await;
        };
        drop(tokio::time::timeout(Duration::from_secs(2), closing).await);
    }
}

async fn disconnect(session: &Handle<Verifier>) {
    let goodbye = session.disconnect(russh::Disconnect::ByApplication, "", "");
    drop(tokio::time::timeout(Duration::from_secs(1), goodbye).await);
}

/// Sets a connection up to where a request can be sent. Every try goes to `record` with the stage
/// that it reached (contract C-4); nothing that starts something is sent.
///
/// # Errors
/// [`Error`] with the stage that failed; the last try is recorded then, too.
pub(crate) async fn open(
    plan: &Plan<'_>,
    record: &mut (dyn FnMut(SetupAttempt) + Send),
) -> Result<Ready, Error> {
    let mut n = 1;
    let deadline = Instant::now() + plan.grant.limits.connect_timeout;
    let failed = |n: u32, error: Error, address: Option<SocketAddr>| {
        let attempt = SetupAttempt {
            n,
            stage: error.stage(),
            code: error.evidence(),
            address: address.map(|address| address.to_string()),
        };
        (attempt, error)
    };
    let prepared = async {
        let pins = Pins::parse(plan.grant, places(plan))?;
        let addresses = resolve(plan.grant, plan.host, plan.port, deadline).await?;
        Ok((pins, addresses))
    };
    let (pins, addresses) = match prepared.await {
        Ok(prepared) => prepared,
        Err(error) => {
            let (attempt, error) = failed(n, error, None);
            record(attempt);
            return Err(error);
        }
    };
    let mut dead = |error: Error, address| {
        let (attempt, error) = failed(n, error, Some(address));
        record(attempt);
        n += 1;
        error
    };
    let (stream, address) = reach(addresses, deadline, &mut dead).await?;
    let established = establish(plan, pins, stream, address, deadline).await;
    match established {
        Ok(ready) => {
            let stage = SetupStage::SshEnvironment;
            let code = "ok".to_owned();
            record(SetupAttempt { n, stage, code, address: Some(address.to_string()) });
            Ok(ready)
        }
        Err(error) => {
            let (attempt, error) = failed(n, error, Some(address));
            record(attempt);
            Err(error)
        }
    }
}

/// Connects to a target whose session is not looked into; every try goes to `record`.
///
/// # Errors
/// [`Error`] with the stage that failed.
pub(crate) async fn dial(
    grant: &SshGrant,
    host: &str,
    port: u16,
    record: &mut (dyn FnMut(SetupAttempt) + Send),
) -> Result<(TcpStream, SocketAddr), Error> {
    let deadline = Instant::now() + grant.limits.connect_timeout;
    let mut n = 0;
    let mut tell = |stage, code, address: Option<SocketAddr>| {
        n += 1;
        record(SetupAttempt { n, stage, code, address: address.map(|a| a.to_string()) });
    };
    let addresses = match resolve(grant, host, port, deadline).await {
        Ok(addresses) => addresses,
        Err(error) => {
            tell(error.stage(), error.evidence(), None);
            return Err(error);
        }
    };
    let mut dead = |error: Error, address| {
        tell(error.stage(), error.evidence(), Some(address));
        error
    };
    let (stream, address) = reach(addresses, deadline, &mut dead).await?;
    tell(SetupStage::TcpConnect, "ok".to_owned(), Some(address));
    Ok((stream, address))
}

/// Connects to the first address that is alive; each that is not goes to `dead`.
async fn reach(
    addresses: Vec<SocketAddr>,
    deadline: Instant,
    dead: &mut (dyn FnMut(Error, SocketAddr) -> Error + Send),
) -> Result<(TcpStream, SocketAddr), Error> {
    let count = addresses.len();
    let mut last = Error::NotFound;
    for (index, address) in addresses.into_iter().enumerate() {
        match connect(address, share(deadline, count.saturating_sub(index))).await {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => last = dead(error, address),
        }
    }
    Err(last)
}

/// What the target is called: by the client, and by the route's address.
fn places(plan: &Plan<'_>) -> Vec<Place> {
    let named = Place::new(plan.host, plan.port);
    let dialled = plan.grant.address.as_deref().and_then(|address| {
        let (host, port) = address.rsplit_once(':')?;
        Some(Place::new(host, port.parse().ok()?))
    });
    std::iter::once(named).chain(dialled).collect()
}

/// The addresses that may be dialled.
async fn resolve(
    grant: &SshGrant,
    host: &str,
    port: u16,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, Error> {
    let named;
    let authority = match grant.address.as_deref() {
        Some(address) => address,
        None if host.contains(':') => {
            named = format!("[{host}]:{port}");
            &named
        }
        None => {
            named = format!("{host}:{port}");
            &named
        }
    };
    let looked_up = timeout_at(deadline, SetupStage::Resolve, tokio::net::lookup_host(authority));
    let found: Vec<SocketAddr> = looked_up.await?.map_err(Error::Resolve)?.collect();
    if found.is_empty() {
        return Err(Error::NotFound);
    }
    if grant.private_addresses {
        return Ok(found);
    }
    let public: Vec<_> =
        found.iter().copied().filter(|address| address::is_public(address.ip())).collect();
    if public.is_empty() { Err(Error::AddressProhibited) } else { Ok(public) }
}

/// When one of so many addresses has had its share of the time: a dead one leaves the others theirs.
fn share(deadline: Instant, count: usize) -> Instant {
    let now = Instant::now();
    let left = deadline.saturating_duration_since(now);
    now + left / u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

async fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpStream, Error> {
    let connecting = timeout_at(deadline, SetupStage::TcpConnect, TcpStream::connect(address));
    let stream = connecting.await?.map_err(Error::Tcp)?;
    stream.set_nodelay(true).map_err(Error::Tcp)?;
    Ok(stream)
}

async fn establish(
    plan: &Plan<'_>,
    pins: Pins,
    stream: TcpStream,
    address: SocketAddr,
    deadline: Instant,
) -> Result<Ready, Error> {
    let certificates = pins.has_authority();
    let config = algorithms::client_config(plan.options, pins.key_types(), certificates);
    let (verifier, witness) = Verifier::new(pins);
    let handshake = russh::client::connect_stream(config, stream, verifier);
    let mut session = timeout_at(deadline, SetupStage::SshKex, handshake)
        .await?
        .map_err(|error| Error::handshake(error, &witness))?;
    let fingerprint = witness.accepted().ok_or(Error::Closed(SetupStage::SshHostKey))?;
    login::login(plan, &mut session, deadline).await?;
    let (mut channel, mut terminal_refused) = (None, false);
    if plan.session_channel {
        let opening = timeout_at(deadline, SetupStage::SshChannel, session.channel_open_session());
        let mut opened = opening.await?.map_err(Error::channel)?;
        terminal_refused = prepare(plan, &mut opened, deadline).await?;
        channel = Some(opened);
    }
    Ok(Ready { session, channel, witness, address, fingerprint, terminal_refused })
}

/// Terminal and variables. Answers whether the terminal was refused: OpenSSH goes on without.
async fn prepare(
    plan: &Plan<'_>,
    channel: &mut Channel<Msg>,
    deadline: Instant,
) -> Result<bool, Error> {
    let stage = SetupStage::SshEnvironment;
    let closed = |_| Error::Closed(stage);
    let preparation = plan.preparation;
    let passing = preparation.variables.iter();
    for (name, value) in passing.filter(|(name, _)| plan.grant.passes_variable(name)) {
        channel.set_env(false, name.as_str(), value.as_str()).await.map_err(closed)?;
    }
    if plan.grant.passes_variable(INVOCATION_VARIABLE) {
        let id = plan.operation.to_string();
        channel.set_env(false, INVOCATION_VARIABLE, id).await.map_err(closed)?;
    }
    let Some(Terminal { term, size: [columns, rows, width, height], modes }) =
        &preparation.terminal
    else {
        return Ok(false);
    };
    channel
        .request_pty(true, term, *columns, *rows, *width, *height, modes)
        .await
        .map_err(closed)?;
    let answer = async {
        while let Some(message) = channel.wait().await {
            if matches!(message, ChannelMsg::Success) {
                return Ok(false);
            }
            if matches!(message, ChannelMsg::Failure) {
                return Ok(true);
            }
            if matches!(message, ChannelMsg::Close) {
                break;
            }
        }
        Err(Error::Closed(stage))
    };
    timeout_at(deadline, stage, answer).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-1, C-4: an address that does not answer takes its share of the time, not that of the others.
    #[tokio::test]
    async fn c_4_a_dead_address_leaves_the_others_their_time() {
        // A listener whose queue is full: further connections get no answer.
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dead_address = dead.local_addr().unwrap();
        let mut fillers = Vec::new();
        let quick = Duration::from_millis(300);
        while let Ok(stream) = tokio::time::timeout(quick, TcpStream::connect(dead_address)).await {
            fillers.push(stream.unwrap());
        }
        let live = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live_address = live.local_addr().unwrap();
        let mut told = Vec::new();
        let mut note = |error: Error, address| {
            told.push((error.evidence(), address));
            error
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let addresses = vec![dead_address, live_address];
        let (_stream, address) = reach(addresses, deadline, &mut note).await.unwrap();
        assert_eq!(address, live_address);
        assert_eq!(told, [("TIMEOUT".to_owned(), dead_address)]);
    }
}
