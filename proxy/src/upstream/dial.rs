//! Setting up a new connection: resolve, check, connect, verify. Nothing of a request is known here.

mod error;

pub(super) use error::is_exhausted;
pub(crate) use error::{Error, Failure, errno};

use super::exchange::{Idle, Link, Peer, Wire};
use super::http2;
use super::parent::{self, Parent};
use super::race::{self, Try};
use super::resolve::Names;
use super::tls::{Client, Trust};
use super::versions::Offer;
use crate::address;
use crate::again::{chance, pause};
use crate::target::{Authority, Host, Scheme};
use journal::contract::{Code, Digest, PeerIdentity, Retry, SetupAttempt, SetupStage};
use rustls_pki_types::ServerName;
use std::collections::VecDeque;
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
