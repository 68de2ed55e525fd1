//! Setting up a new connection: resolve, check, connect, verify. Nothing of a request is known here.

use super::exchange::{Idle, Link, Peer, Wire};
use super::http2;
use super::parent::{self, Parent};
use super::race::{self, Try};
use super::resolve::Names;
use super::tls::{Alert, Client, Error as TlsError, Trust};
use super::versions::Offer;
use crate::address;
use crate::again::{chance, pause};
use crate::hops::Said;
use crate::target::{Authority, Host, Scheme};
use journal::contract::{Code, Digest, PeerIdentity, Retry, SetupAttempt, SetupStage, Verdict};
use rustls_pki_types::ServerName;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Addresses of a name that are tried at most.
const MAX_ADDRESSES: usize = 8;

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Where to, on whose word, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) authority: &'a Authority,
    pub(crate) private_addresses: bool,
    pub(crate) trust: &'a [PathBuf],
    pub(crate) timeout: Duration,
    /// The versions of HTTP that are offered.
    pub(crate) offer: Offer,
    /// How often all addresses are tried, within the time (contract C-4).
    pub(crate) rounds: u32,
    /// The upstream proxy.
    pub(crate) parent: Option<&'a Parent>,
    /// Whether what is not TLS needs a tunnel through that proxy, too.
    pub(crate) tunnel: bool,
    /// Shown in the handshake.
    pub(crate) client: Option<&'a Client>,
}

/// Why no connection was set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The resolver failed; with the response code where there was a response.
    #[error("the name of the destination could not be resolved")]
    Resolve {
        /// The name of the code.
        rcode: Option<&'static str>,
        /// The code of the extended error (RFC 8914).
        info_code: Option<u16>,
    },
    /// The resolver did not answer.
    #[error("the resolver did not answer in time")]
    ResolveTimeout,
    /// The name has no address.
    #[error("the destination's name has no address")]
    NotFound,
    /// Every address is of a class that policy forbids.
    #[error("the destination's address is private, local or reserved")]
    Prohibited,
    /// The broker itself has no descriptor, or no memory, for a socket.
    #[error("the broker is out of descriptors or memory for a connection")]
    Exhausted(#[source] io::Error),
    /// TCP failed.
    #[error("the destination could not be connected to")]
    Connect(#[source] io::Error),
    /// TCP or TLS took too long.
    #[error("the connection was not set up in time")]
    Timeout,
    /// The connection broke inside the set-up.
    #[error("the connection broke while it was set up")]
    Broken(#[source] io::Error),
    /// The origin speaks no version of HTTP that was offered.
    #[error("the origin speaks no version of HTTP that was offered")]
    NoProtocol,
    /// The origin speaks HTTP/2 alone, and takes no WebSocket over it.
    #[error("the origin speaks HTTP/2 alone and takes no WebSocket over it")]
    NoWebSocket,
    /// The handshake failed.
    #[error("the TLS handshake failed ({cause})")]
    Tls {
        /// Ours.
        code: Code,
        /// Its name in records.
        cause: String,
        /// What the other side said.
        alert: Option<Alert>,
    },
    /// The trusted certificates of the policy, or the client's own, can't be used.
    #[error("the certificates that policy names for this host can't be used")]
    Trust(#[source] TlsError),
    /// The upstream proxy opened no tunnel.
    #[error("the upstream proxy answered {status} and opened no tunnel")]
    Refused {
        /// Its answer.
        status: u16,
        /// Its `Proxy-Status`.
        said: Said,
    },
    /// What the upstream proxy sent is no response.
    #[error("the upstream proxy did not answer in HTTP/1.1")]
    ParentSpeech,
}

impl Error {
    /// Of a connection that broke inside its set-up.
    pub(crate) fn of_set_up(error: io::Error) -> Self {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        cause.map(super::tls::failure).unwrap_or(Self::Broken(error))
    }

    /// The verdict: nothing was dispatched (contract C-1).
    pub(crate) fn verdict(&self) -> Verdict {
        let backoff = |code| Verdict::not_connected(Retry::Backoff, code);
        let correct = |code| Verdict::not_connected(Retry::AfterCorrection, code);
        match self {
            Self::Resolve { .. } => backoff(Code::DnsError),
            Self::ResolveTimeout => backoff(Code::DnsTimeout),
            Self::NotFound => correct(Code::DestinationNotFound),
            Self::Prohibited => correct(Code::AddressProhibited),
            Self::Exhausted(_) => backoff(Code::ResourcesExhausted),
            Self::Connect(error) => backoff(connect_code(error)),
            Self::Timeout => backoff(Code::ConnectionTimeout),
            Self::Broken(_) => backoff(Code::ConnectionTerminated),
            Self::NoProtocol => correct(Code::TlsAlertReceived),
            Self::NoWebSocket => correct(Code::UnsupportedAction),
            Self::Tls { code, .. } => correct(*code),
            Self::Trust(_) => correct(Code::TlsCertificateError),
            Self::Refused { status: 429 | 500.., .. } => backoff(Code::ProxyTunnelRefused),
            Self::Refused { .. } => correct(Code::ProxyTunnelRefused),
            Self::ParentSpeech => correct(Code::ProxyTunnelRefused),
        }
    }

    /// The name of the cause in records.
    fn cause(&self) -> String {
        match self {
            Self::Resolve { rcode, info_code } => {
                let name = rcode.map_or("DNS_ERROR".to_owned(), |rcode| format!("DNS_{rcode}"));
                info_code.map_or(name.clone(), |code| format!("{name}_{code}"))
            }
            Self::ResolveTimeout => "DNS_TIMEOUT".to_owned(),
            Self::NotFound => "NAME_NOT_FOUND".to_owned(),
            Self::Prohibited => "ADDRESS_PROHIBITED".to_owned(),
            Self::Exhausted(error) | Self::Connect(error) | Self::Broken(error) => errno(error),
            Self::Timeout => "ETIMEDOUT".to_owned(),
            Self::NoProtocol => "ALERT_NO_APPLICATION_PROTOCOL".to_owned(),
            Self::NoWebSocket => "NO_EXTENDED_CONNECT".to_owned(),
            Self::Tls { cause, .. } => cause.clone(),
            Self::Trust(_) => "TRUST_UNREADABLE".to_owned(),
            Self::Refused { status, .. } => format!("PROXY_HTTP_{status}"),
            Self::ParentSpeech => "PROXY_SPEECH".to_owned(),
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn connect_code(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Code::ConnectionRefused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            Code::DestinationUnroutable
        }
        io::ErrorKind::TimedOut => Code::ConnectionTimeout,
        _ => Code::ConnectionTerminated,
    }
}

/// Whether the error is a lack of our own.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// A name of an I/O error for records.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
pub(crate) fn errno(error: &io::Error) -> String {
    if let Some(alert) = Alert::behind(error) {
        return alert.cause();
    }
    let name = match error.kind() {
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::ConnectionReset => "ECONNRESET",
        io::ErrorKind::ConnectionAborted => "ECONNABORTED",
        io::ErrorKind::BrokenPipe => "EPIPE",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::UnexpectedEof => "EOF",
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => "EMFILE",
        _ if error.raw_os_error() == Some(rustix::io::Errno::NFILE.raw_os_error()) => "ENFILE",
        kind => return error.raw_os_error().map_or(format!("{kind:?}"), |n| format!("ERRNO_{n}")),
    };
    name.to_owned()
}

/// A failed set-up, and how far the way was known.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What failed.
    pub(crate) error: Error,
    /// The hop that was asked, by its address or name.
    pub(crate) hop: String,
    /// The upstream proxy on the way.
    pub(crate) parent: Option<Box<Authority>>,
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = &self.parent else { return write!(f, "{}", self.error) };
        match &self.error {
            Error::Resolve { .. } => {
                write!(f, "the name of the upstream proxy {parent} could not be resolved")
            }
            Error::NotFound => write!(f, "the name of the upstream proxy {parent} has no address"),
            Error::Connect(_) => write!(f, "the upstream proxy {parent} could not be connected to"),
            Error::Timeout => {
                write!(f, "the way through the upstream proxy {parent} was not set up in time")
            }
            Error::Tls { cause, .. } => write!(
                f,
                "the TLS handshake on the way through the upstream proxy {parent} failed ({cause})"
            ),
            Error::ResolveTimeout
            | Error::Prohibited
            | Error::Exhausted(_)
            | Error::Broken(_)
            | Error::NoProtocol
            | Error::NoWebSocket
            | Error::Trust(_)
            | Error::Refused { .. }
            | Error::ParentSpeech => write!(f, "{}", self.error),
        }
    }
}

/// Tells each try of one set-up, numbered (contract C-4).
struct Told<F> {
    n: u32,
    record: F,
}

impl<F: FnMut(SetupAttempt)> Told<F> {
    fn tell(&mut self, stage: SetupStage, address: Option<SocketAddr>, code: String) {
        self.n += 1;
        let address = address.map(|address| address.to_string());
        (self.record)(SetupAttempt { n: self.n, stage, code, address });
    }
}

/// What sets connections up.
pub(crate) struct Dialer {
    trust: Trust,
    names: Names,
}

impl Dialer {
    /// Trusts the system's roots; asks these name servers, or the system's.
    pub(crate) fn new(servers: &[SocketAddr]) -> Result<Self, rustls::Error> {
        Ok(Self { trust: Trust::load()?, names: Names::new(servers) })
    }

    /// Sets up one connection, in as many rounds as the plan allows for what may pass by itself.
    /// Every try is told to `record` (contract C-4); none sends a request byte.
    pub(crate) async fn dial(
        &self,
        plan: &Plan<'_>,
        record: impl FnMut(SetupAttempt),
    ) -> Result<Idle, Failure> {
        let deadline = Instant::now() + plan.timeout;
        let mut told = Told { n: 0, record };
        let mut round = 1;
        loop {
            let failure = match self.dial_once(plan, deadline, &mut told).await {
                Ok(idle) => return Ok(idle),
                Err(failure) => failure,
            };
            let until = Instant::now() + pause(round - 1, chance());
            let passes = failure.error.verdict().retry() == Retry::Backoff;
            if round >= plan.rounds || !passes || until >= deadline {
                return Err(failure);
            }
            tokio::time::sleep_until(until).await;
            round += 1;
        }
    }

    async fn dial_once<F: FnMut(SetupAttempt)>(
        &self,
        plan: &Plan<'_>,
        deadline: Instant,
        told: &mut Told<F>,
    ) -> Result<Idle, Failure> {
        let next = plan.parent.map_or(plan.authority, |parent| &parent.authority);
        let fail = |error, address: Option<SocketAddr>| {
            let hop = address.map_or_else(|| next.to_string(), |address| address.to_string());
            Failure {
                error,
                hop,
                parent: plan.parent.map(|parent| Box::new(parent.authority.clone())),
            }
        };
        let mut left = match self.addresses(plan, next, deadline, told).await {
            Ok(left) => left,
            Err((error, address)) => return Err(fail(error, address)),
        };
        let (mut plan, mut last) = (*plan, fail(Error::NotFound, None));
        loop {
            let won = race::connect(&mut left, deadline, |address, tried| {
                let error = match tried {
                    Try::Connected => return,
                    Try::Overtaken => {
                        let code = "OVERTAKEN".to_owned();
                        return told.tell(SetupStage::TcpConnect, Some(address), code);
                    }
                    Try::Failed(error) if is_exhausted(error) => Error::Exhausted(again(error)),
                    Try::Failed(error) => Error::Connect(again(error)),
                    Try::TimedOut => Error::Timeout,
                };
                told.tell(SetupStage::TcpConnect, Some(address), error.cause());
                last = fail(error, Some(address));
            });
            let Some((tcp, address)) = won.await else { return Err(last) };
            let (stage, error) = match self.set_up(&plan, tcp, address, deadline).await {
                Ok(idle) => {
                    told.tell(plan.last_stage(), Some(address), "ok".to_owned());
                    return Ok(idle);
                }
                Err(failed) => failed,
            };
            told.tell(stage, Some(address), error.cause());
            if matches!(error, Error::NoProtocol) && plan.offer == Offer::Http11 {
                // An origin without HTTP/1.1 is asked again, with HTTP/2. Nothing was sent yet.
                plan.offer = Offer::Http2;
                left.push_front(address);
            }
            let decided = matches!(error, Error::Refused { .. } | Error::Trust(_));
            last = fail(error, Some(address));
            if decided || Instant::now() >= deadline {
                return Err(last);
            }
        }
    }

    /// The addresses that may be dialled, checked, in the order of trying.
    async fn addresses<F: FnMut(SetupAttempt)>(
        &self,
        plan: &Plan<'_>,
        next: &Authority,
        deadline: Instant,
        told: &mut Told<F>,
    ) -> Result<VecDeque<SocketAddr>, (Error, Option<SocketAddr>)> {
        // The operator named the proxy: its address is not the caller's choice. Literal targets are
        // judged all the same; names are the proxy's to resolve.
        let through = plan.parent.is_some();
        if let Host::Address(address) = plan.authority.host
            && through
            && !is_allowed(address, plan.private_addresses)
        {
            let address = Some(SocketAddr::new(address, plan.authority.port));
            told.tell(SetupStage::AddressCheck, address, Error::Prohibited.cause());
            return Err((Error::Prohibited, address));
        }
        let resolved = match &next.host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => self.names.resolve(name, deadline).await,
        };
        let all: Vec<_> = match resolved {
            Ok(all) => all.into_iter().map(|address| SocketAddr::new(address, next.port)).collect(),
            Err(error) => {
                told.tell(SetupStage::Resolve, None, error.cause());
                return Err((error, None));
            }
        };
        let allowed = |a: &&SocketAddr| through || is_allowed(a.ip(), plan.private_addresses);
        let left: VecDeque<_> = all.iter().filter(allowed).take(MAX_ADDRESSES).copied().collect();
        if left.is_empty() && !all.is_empty() {
            let first = all.first().copied();
            told.tell(SetupStage::AddressCheck, first, Error::Prohibited.cause());
            return Err((Error::Prohibited, first));
        }
        Ok(left)
    }

    /// From TCP to a connection that carries exchanges.
    async fn set_up(
        &self,
        plan: &Plan<'_>,
        tcp: TcpStream,
        address: SocketAddr,
        deadline: Instant,
    ) -> Result<Idle, (SetupStage, Error)> {
        let of = |stage| move |error| (stage, error);
        tcp.set_nodelay(true).map_err(|error| (SetupStage::TcpConnect, Error::Connect(error)))?;
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let link = timeout_at(deadline, self.link(plan, tcp))
            .await
            .unwrap_or(Err(Error::Timeout))
            .map_err(of(SetupStage::ProxyTunnel))?;
        let (wire, identity) = match plan.scheme {
            Scheme::Http => (Wire::Plain(link), PeerIdentity::Unverified),
            Scheme::Https => timeout_at(deadline, self.handshake(plan, link))
                .await
                .unwrap_or(Err(Error::Timeout))
                .map_err(of(SetupStage::TlsHandshake))?,
        };
        let peer = Peer { connection, address, identity, reused: false };
        if !wire.speaks_http2() {
            return Ok(Idle::new(wire, peer));
        }
        let begun = timeout_at(deadline, http2::Connection::begin(wire, peer)).await;
        let begun = begun.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        begun
            .map(Idle::on_streams)
            .map_err(|error| (SetupStage::TlsHandshake, Error::Broken(error)))
    }

    /// The connection to the origin, directly or through the upstream proxy.
    async fn link(&self, plan: &Plan<'_>, tcp: TcpStream) -> Result<Link, Error> {
        let Some(parent) = plan.parent else { return Ok(Link::Plain(tcp)) };
        let mut link = match parent.scheme {
            Scheme::Http => Link::Plain(tcp),
            Scheme::Https => {
                let config = self.trust.config(&parent.trust, Offer::Http11);
                let config = config.map_err(Error::Trust)?;
                Link::Tls(Box::new(tls(config, &parent.authority.host, tcp).await?))
            }
        };
        if plan.scheme == Scheme::Https || plan.tunnel {
            parent::tunnel(&mut link, parent, plan.authority).await?;
        }
        Ok(link)
    }

    async fn handshake(&self, plan: &Plan<'_>, link: Link) -> Result<(Wire, PeerIdentity), Error> {
        let config = match plan.client {
            None => self.trust.config(plan.trust, plan.offer),
            Some(client) => self.trust.with_client(plan.trust, plan.offer, client),
        };
        let tls = tls(config.map_err(Error::Trust)?, &plan.authority.host, link).await?;
        let (_, session) = tls.get_ref();
        let leaf = session.peer_certificates().and_then(<[_]>::first).map(|leaf| Digest::of(leaf));
        let missing = || Error::Tls {
            code: Code::TlsCertificateError,
            cause: "CERT_MISSING".to_owned(),
            alert: None,
        };
        let leaf = leaf.ok_or_else(missing)?;
        let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        let identity = PeerIdentity::Tls { name: plan.authority.host.to_string(), leaf, resumed };
        Ok((Wire::Tls(Box::new(tls)), identity))
    }
}

impl Plan<'_> {
    /// The stage that a set-up ends with.
    const fn last_stage(&self) -> SetupStage {
        match (self.scheme, self.parent) {
            (Scheme::Https, _) => SetupStage::TlsHandshake,
            (Scheme::Http, Some(_)) if self.tunnel => SetupStage::ProxyTunnel,
            (Scheme::Http, _) => SetupStage::TcpConnect,
        }
    }
}

/// One handshake, as far as a verified certificate of the host.
async fn tls<S: AsyncRead + AsyncWrite + Unpin>(
    config: std::sync::Arc<rustls::ClientConfig>,
    host: &Host,
    stream: S,
) -> Result<TlsStream<S>, Error> {
    let name = match host {
        Host::Address(address) => ServerName::from(*address),
        Host::Name(name) => ServerName::try_from(name.to_string()).map_err(|_| Error::Tls {
            code: Code::TlsProtocolError,
            cause: "TLS_NAME".to_owned(),
            alert: None,
        })?,
    };
    TlsConnector::from(config).connect(name, stream).await.map_err(Error::of_set_up)
}

/// The error once more: the library's own can't be copied.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Whether an address may carry a call of this grant.
pub(crate) fn is_allowed(address: IpAddr, private_addresses: bool) -> bool {
    private_addresses || address::is_public(address)
}
