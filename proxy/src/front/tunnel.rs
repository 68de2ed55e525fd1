//! Tunnels: whether one is opened, and what a caller speaks inside of it.

use super::{Connection, Then, speaks_http2};
use crate::answer::Finished;
use crate::control;
use crate::deliver::{self, Outbound};
use crate::engine::Job;
use crate::head::{Framing, Request};
use crate::http2;
use crate::incoming::{CONTENT_PAUSE, Incoming};
use crate::request::{self, Identity, Tunnel};
use crate::respond::Refusal;
use crate::stream::{self, Inbound, Wire};
use crate::target::{Authority, Host, Scheme};
use policy::{HttpGrant, Snapshot};
use std::sync::Arc;
use tokio::time::timeout;

/// The first byte of a TLS connection: a handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// Opens the tunnel that a stream asks for. `Err`: it is answered otherwise, or was passed through to its
/// end.
pub(crate) async fn open_tunnel(job: &mut Job<'_>) -> Result<(Authority, Identity), Finished> {
    match tunnel(job) {
        Err(refusal) => Err(job.refuse(None, &refusal).await),
        Ok((authority, _, Some((snapshot, grant)))) => {
            Err(job.pass_through(&authority, &snapshot, &grant).await)
        }
        Ok((authority, identity, None)) => match job.out.open(&deliver::intercepting()).await {
            Ok(()) => Ok((authority, identity)),
            Err(_) => Err(Finished { keep: false, pending: None }),
        },
    }
}

impl Connection {
    /// Decides on a tunnel. A refused one is an invocation of its own on record.
    pub(super) async fn connect(
        &mut self,
        head: Request,
        inbound: Inbound,
        framing: Framing,
    ) -> Then {
        let keep_alive = request::keeps_alive(&head);
        let Ok(incoming) = Incoming::begin(inbound, framing, CONTENT_PAUSE).await else {
            return Then::Close { unread: false };
        };
        let mut job = self.job(head, framing, incoming, keep_alive);
        match tunnel(&mut job) {
            Err(refusal) => {
                let finished = job.refuse(None, &refusal).await;
                let incoming = job.incoming;
                self.after(finished, incoming)
            }
            Ok((authority, _, Some((snapshot, grant)))) => {
                let finished = job.pass_through(&authority, &snapshot, &grant).await;
                let incoming = job.incoming;
                self.after(finished, incoming)
            }
            Ok((authority, identity, None)) => {
                let sent = job.out.send(&deliver::intercepting()).await;
                match (sent, job.incoming.into_inbound()) {
                    (Ok(()), Some(inbound)) => Then::Tunnel(inbound, authority, identity),
                    (Ok(()) | Err(_), _) => Then::Close { unread: false },
                }
            }
        }
    }

    /// Finds out what the caller speaks inside of its tunnel, and ends its TLS.
    pub(super) async fn enter(
        mut self,
        mut inbound: Inbound,
        authority: Authority,
        identity: Identity,
    ) -> Option<(Self, Inbound)> {
        if inbound.buffer.is_empty() {
            let first = timeout(self.shared.options.head_timeout, inbound.fill()).await;
            first.ok()?.ok().filter(|length| *length > 0)?;
        }
        if inbound.buffer.first() == Some(&TLS_HANDSHAKE) {
            return self.intercept(inbound, authority, identity).await;
        }
        let scheme = Scheme::Http;
        self.tunnel = Some(Tunnel { scheme, authority, identity, other_name: false });
        Some((self, inbound))
    }

    /// Ends the caller's TLS with a leaf of the home's authority.
    async fn intercept(
        self,
        inbound: Inbound,
        authority: Authority,
        identity: Identity,
    ) -> Option<(Self, Inbound)> {
        let config = self.shared.ca.server_config(&authority.host).ok()?;
        let prefix = inbound.into_buffer();
        let rewound = self.out.into_wire()?.rewind(prefix)?;
        let accepting = tokio_rustls::TlsAcceptor::from(config).accept(rewound);
        let tls = match timeout(self.shared.options.head_timeout, accepting).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                let host = &authority.host;
                tracing::info!(%error, %host, "a caller's TLS handshake failed; it may not trust the CA");
                return None;
            }
            Err(_) => return None,
        };
        let other_name = tls
            .get_ref()
            .1
            .server_name()
            .is_some_and(|name| name.parse::<Host>().is_ok_and(|name| name != authority.host));
        let scheme = Scheme::Https;
        let tunnel = Tunnel { scheme, authority, identity, other_name };
        if speaks_http2(&tls) {
            let rewound = tls.get_ref().0;
            let below = (rewound.below().ok()?, Some(rewound.written()));
            // Boxed: its state is large, and most connections never get here.
            let served = http2::caller::serve(self.shared, tls, below, Some(tunnel), self.shutdown);
            Box::pin(served).await;
            return None;
        }
        let wire = stream::Shared::new(Wire::Tls(Box::new(tls)));
        let inbound = Inbound::new(wire.clone());
        let tunnel = Some(tunnel);
        let out = Outbound::new(wire, self.shared.options.write_timeout);
        let (pending, handed_over) = (Vec::new(), Vec::new());
        Some((Self { out, tunnel, pending, outlived: 0, handed_over, ..self }, inbound))
    }
}

/// A tunnel that may be opened: where to, for whom, and on whose terms when it is not looked into.
type Granted = (Authority, Identity, Option<(Arc<Snapshot>, Box<HttpGrant>)>);

/// Whether the tunnel that the request asks for may be opened.
fn tunnel(job: &mut Job<'_>) -> Result<Granted, Refusal> {
    let shared = Arc::clone(job.shared);
    let authority = Authority::parse(&job.head.target, None);
    job.known.target = match &authority {
        Ok(authority) => Some(format!("https://{authority}")),
        // It may hold a password.
        Err(_) if job.head.target.contains('@') => None,
        Err(_) => Some(format!("https://{}", job.head.target)),
    };
    request::refuse_loop(&job.head, &shared.pseudonym)?;
    let identity = Identity::of(&job.head, &shared.policy);
    let identity = identity.ok_or_else(|| job.unauthenticated())?;
    job.known.agent = Some(identity.agent().to_owned());
    if !matches!(job.framing, Framing::Empty | Framing::Length(0)) {
        return Err(Refusal::Unsupported {
            what: "CONNECT with content",
            field: "request.content",
        });
    }
    let authority = authority.map_err(Refusal::Target)?;
    // The target wins over Host; that is there once, and well-formed.
    request::host(&job.head, authority.port)?;
    control::refuse(&authority)?;
    job.known.caller_id = request::invocation_id(&job.head)?;
    let host = authority.host.to_string();
    let snapshot = shared.policy.snapshot();
    snapshot.tunnel(identity.agent(), &host, authority.port).map_err(Refusal::Denied)?;
    let opaque = snapshot.opaque(identity.agent(), &host, authority.port);
    if let Some(grant) = opaque.map_err(Refusal::Denied)? {
        return Ok((authority, identity, Some((snapshot, Box::new(grant)))));
    }
    // The leaf is made now, while a failure can still be told.
    shared.ca.server_config(&authority.host).map_err(|error| {
        tracing::error!(%error, %host, "no leaf could be made");
        Refusal::Internal
    })?;
    Ok((authority, identity, None))
}
