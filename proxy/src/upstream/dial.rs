//! Setting up a new connection: resolve, check, connect, verify. Nothing of a request is known here.

use super::exchange::{Idle, Peer, Wire};
use super::http2;
use super::tls::{self, Trust};
use super::versions::Offer;
use crate::address;
use crate::again::{chance, pause};
use crate::target::{Authority, Host, Scheme};
use journal::contract::{Code, Digest, PeerIdentity, Retry, SetupAttempt, SetupStage, Verdict};
use rustls::AlertDescription;
use rustls_pki_types::ServerName;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

/// Addresses of a name that are tried at most.
const MAX_ADDRESSES: usize = 4;

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Where to, on whose word, and for how long.
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
}

/// Why no connection was set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The resolver failed.
    #[error("the name of the destination could not be resolved")]
    Resolve(#[source] io::Error),
    /// The resolver did not answer.
    #[error("the resolver did not answer in time")]
    ResolveTimeout,
    /// The name has no address.
    #[error("the destination's name has no address")]
    NotFound,
    /// Every address is of a class that policy forbids.
    #[error("the destination's address is private, local or reserved")]
    Prohibited,
    /// TCP failed.
    #[error("the destination could not be connected to")]
    Connect(#[source] io::Error),
    /// TCP or TLS took too long.
    #[error("the connection was not set up in time")]
    Timeout,
    /// The connection broke inside the handshake.
    #[error("the connection broke inside the TLS handshake")]
    Broken(#[source] io::Error),
    /// The origin speaks no version of HTTP that was offered.
    #[error("the origin speaks no version of HTTP that was offered")]
    NoProtocol,
    /// The handshake failed.
    #[error("the TLS handshake failed ({cause})")]
    Tls {
        /// Ours.
        code: Code,
        /// Its name in records.
        cause: &'static str,
    },
    /// The trusted certificates of the policy can't be used.
    #[error("the certificates that policy trusts for this host can't be read")]
    Trust(#[source] tls::Error),
}

impl Error {
    /// The verdict: nothing was dispatched (contract C-1).
    #[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
    pub(crate) fn verdict(&self) -> Verdict {
        let backoff = |code| Verdict::not_connected(Retry::Backoff, code);
        let correct = |code| Verdict::not_connected(Retry::AfterCorrection, code);
        match self {
            Self::Resolve(_) => backoff(Code::DnsError),
            Self::ResolveTimeout => backoff(Code::DnsTimeout),
            Self::NotFound => correct(Code::DestinationNotFound),
            Self::Prohibited => correct(Code::AddressProhibited),
            Self::Connect(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => backoff(Code::ConnectionRefused),
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                    backoff(Code::DestinationUnroutable)
                }
                io::ErrorKind::TimedOut => backoff(Code::ConnectionTimeout),
                _ => backoff(Code::ConnectionTerminated),
            },
            Self::Timeout => backoff(Code::ConnectionTimeout),
            Self::Broken(_) => backoff(Code::ConnectionTerminated),
            Self::NoProtocol => correct(Code::TlsAlertReceived),
            Self::Tls { code, .. } => correct(*code),
            Self::Trust(_) => correct(Code::TlsCertificateError),
        }
    }

    /// The name of the cause in records.
    fn cause(&self) -> String {
        match self {
            Self::Resolve(_) => "DNS_ERROR".to_owned(),
            Self::ResolveTimeout => "DNS_TIMEOUT".to_owned(),
            Self::NotFound => "NAME_NOT_FOUND".to_owned(),
            Self::Prohibited => "ADDRESS_PROHIBITED".to_owned(),
            Self::Connect(error) | Self::Broken(error) => errno(error),
            Self::Timeout => "ETIMEDOUT".to_owned(),
            Self::NoProtocol => "ALERT_NO_APPLICATION_PROTOCOL".to_owned(),
            Self::Tls { cause, .. } => (*cause).to_owned(),
            Self::Trust(_) => "TRUST_UNREADABLE".to_owned(),
        }
    }
}

/// A name of an I/O error for records.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
pub(crate) fn errno(error: &io::Error) -> String {
    let name = match error.kind() {
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::ConnectionReset => "ECONNRESET",
        io::ErrorKind::ConnectionAborted => "ECONNABORTED",
        io::ErrorKind::BrokenPipe => "EPIPE",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::UnexpectedEof => "EOF",
        kind => return error.raw_os_error().map_or(format!("{kind:?}"), |n| format!("ERRNO_{n}")),
    };
    name.to_owned()
}

/// Sets up one connection, in as many rounds as the plan allows for what may pass by itself. Every try
/// is told to `record` (contract C-4); none sends a request byte.
pub(crate) async fn dial(
    plan: &Plan<'_>,
    trust: &Trust,
    mut record: impl FnMut(SetupAttempt),
) -> Result<Idle, Error> {
    let deadline = Instant::now() + plan.timeout;
    let mut n = 0;
    for round in 1.. {
        let error = match dial_once(plan, trust, deadline, &mut n, &mut record).await {
            Ok(idle) => return Ok(idle),
            Err(error) => error,
        };
        let until = Instant::now() + pause(round - 1, chance());
        if round >= plan.rounds || error.verdict().retry() != Retry::Backoff || until >= deadline {
            return Err(error);
        }
        tokio::time::sleep_until(until).await;
    }
    Err(Error::Timeout)
}

async fn dial_once(
    plan: &Plan<'_>,
    trust: &Trust,
    deadline: Instant,
    n: &mut u32,
    record: &mut impl FnMut(SetupAttempt),
) -> Result<Idle, Error> {
    let mut told = |stage: SetupStage, address: Option<SocketAddr>, result: Result<(), &Error>| {
        *n += 1;
        let code = result.err().map_or_else(|| "ok".to_owned(), Error::cause);
        record(SetupAttempt { n: *n, stage, code, address: address.map(|a| a.to_string()) });
    };
    let addresses = match resolve(plan.authority, deadline).await {
        Ok(addresses) => addresses,
        Err(error) => {
            told(SetupStage::Resolve, None, Err(&error));
            return Err(error);
        }
    };
    let allowed = |a: &SocketAddr| plan.private_addresses || address::is_public(a.ip());
    let mut last = Error::NotFound;
    let mut tried = 0;
    for address in addresses.iter().filter(|a| allowed(a)).take(MAX_ADDRESSES) {
        tried += 1;
        match connect(plan, *address, trust, deadline).await {
            Ok(idle) => {
                let stage = match plan.scheme {
                    Scheme::Http => SetupStage::TcpConnect,
                    Scheme::Https => SetupStage::TlsHandshake,
                };
                told(stage, Some(*address), Ok(()));
                return Ok(idle);
            }
            Err((stage, error)) => {
                told(stage, Some(*address), Err(&error));
                last = error;
            }
        }
        // An origin without HTTP/1.1 is asked again, with HTTP/2. Nothing was sent yet.
        if matches!(last, Error::NoProtocol) && plan.offer == Offer::Http11 {
            let plan = Plan { offer: Offer::Http2, ..*plan };
            match connect(&plan, *address, trust, deadline).await {
                Ok(idle) => {
                    told(SetupStage::TlsHandshake, Some(*address), Ok(()));
                    return Ok(idle);
                }
                Err((stage, error)) => {
                    told(stage, Some(*address), Err(&error));
                    last = error;
                }
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    if tried == 0 && !addresses.is_empty() {
        let first = addresses.first().copied();
        told(SetupStage::AddressCheck, first, Err(&Error::Prohibited));
        return Err(Error::Prohibited);
    }
    Err(last)
}

async fn resolve(authority: &Authority, deadline: Instant) -> Result<Vec<SocketAddr>, Error> {
    let name = match &authority.host {
        Host::Address(address) => return Ok(vec![SocketAddr::new(*address, authority.port)]),
        Host::Name(name) => name,
    };
    let looked_up = timeout_at(deadline, tokio::net::lookup_host((name.as_ref(), authority.port)));
    match looked_up.await {
        Err(_) => Err(Error::ResolveTimeout),
        Ok(Ok(addresses)) => {
            let addresses: Vec<_> = addresses.collect();
            if addresses.is_empty() { Err(Error::NotFound) } else { Ok(addresses) }
        }
        Ok(Err(error)) => {
            // The resolver's own kind is only in its words (getaddrinfo: EAI_NONAME, EAI_NODATA).
            let words = error.to_string();
            let unknown = ["not known", "No address associated", "nodename nor servname"];
            if unknown.iter().any(|known| words.contains(known)) {
                Err(Error::NotFound)
            } else {
                Err(Error::Resolve(error))
            }
        }
    }
}

async fn connect(
    plan: &Plan<'_>,
    address: SocketAddr,
    trust: &Trust,
    deadline: Instant,
) -> Result<Idle, (SetupStage, Error)> {
    let tcp = timeout_at(deadline, TcpStream::connect(address))
        .await
        .map_err(|_| (SetupStage::TcpConnect, Error::Timeout))?
        .map_err(|error| (SetupStage::TcpConnect, Error::Connect(error)))?;
    tcp.set_nodelay(true).map_err(|error| (SetupStage::TcpConnect, Error::Connect(error)))?;
    let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1;
    let (wire, identity) = match plan.scheme {
        Scheme::Http => (Wire::Plain(tcp), PeerIdentity::Unverified),
        Scheme::Https => {
            let at = |error| (SetupStage::TlsHandshake, error);
            timeout_at(deadline, handshake(plan, tcp, trust))
                .await
                .map_err(|_| at(Error::Timeout))?
                .map_err(at)?
        }
    };
    let peer = Peer { connection, address, identity, reused: false };
    if !wire.speaks_http2() {
        return Ok(Idle::new(wire, peer));
    }
    let begun = timeout_at(deadline, http2::Connection::begin(wire, peer));
    let at = |error| (SetupStage::TlsHandshake, error);
    let begun = begun.await.map_err(|_| at(Error::Timeout))?;
    begun.map(Idle::on_streams).map_err(|error| at(Error::Broken(error)))
}

async fn handshake(
    plan: &Plan<'_>,
    tcp: TcpStream,
    trust: &Trust,
) -> Result<(Wire, PeerIdentity), Error> {
    let config = trust.config(plan.trust, plan.offer).map_err(Error::Trust)?;
    let name = match &plan.authority.host {
        Host::Address(address) => ServerName::from(*address),
        Host::Name(name) => ServerName::try_from(name.to_string())
            .map_err(|_| Error::Tls { code: Code::TlsProtocolError, cause: "TLS_NAME" })?,
    };
    let tls = TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await;
    let tls = tls.map_err(|error| {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let refused = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        if cause == Some(&refused) {
            return Error::NoProtocol;
        }
        match cause.map(tls::classify) {
            Some((code, cause)) => Error::Tls { code, cause },
            None => Error::Broken(error),
        }
    })?;
    let (_, session) = tls.get_ref();
    let leaf = session.peer_certificates().and_then(<[_]>::first).map(|leaf| Digest::of(leaf));
    let leaf = leaf.ok_or(Error::Tls { code: Code::TlsCertificateError, cause: "CERT_MISSING" })?;
    let resumed = session.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    let identity = PeerIdentity::Tls { name: plan.authority.host.to_string(), leaf, resumed };
    Ok((Wire::Tls(Box::new(tls)), identity))
}

/// Whether the address of a kept connection may carry a call of this grant.
pub(crate) fn is_allowed(address: IpAddr, private_addresses: bool) -> bool {
    private_addresses || address::is_public(address)
}
