//! One connection of a caller: request after request, and the tunnel that it may turn into.

mod tunnel;

pub(crate) use tunnel::open_tunnel;

use crate::answer::Finished;
use crate::carrier::{Below, Carrier};
use crate::control;
use crate::deliver::Outbound;
use crate::engine::{self, Job, Known};
use crate::handover::{HandedOver, Pending};
use crate::head::{self, Fields, Framing, Request, Version};
use crate::http2;
use crate::incoming::{CONTENT_PAUSE, Incoming};
use crate::proxy::Shared;
use crate::request::{self, Identity, Tunnel};
use crate::respond::Refusal;
use crate::stream::{self, Inbound, Link, Wire};
use crate::target::Authority;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a closing connection waits for the caller to take what was sent.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// How long the confirmation of a delivery is waited for before the connection is ended.
pub(crate) const BEFORE_END: Duration = Duration::from_millis(250);

/// A connection and what it has become.
struct Connection {
    shared: Arc<Shared>,
    out: Outbound,
    tunnel: Option<Tunnel>,
    /// Deliveries that are not confirmed yet; more than one only when the caller pipelines.
    pending: Vec<Pending>,
    /// So many of them, the first, have another answer after them.
    outlived: usize,
    /// Deliveries that a reset takes back, until the caller asks for more.
    handed_over: Vec<HandedOver>,
    shutdown: watch::Receiver<bool>,
}

/// What came at a request boundary.
enum Next {
    Head(Request),
    Fault(head::Fault),
    /// The end; whether the caller's side came to it in order.
    Closed(bool),
}

/// What becomes of the connection after a request.
enum Then {
    Go(Inbound),
    /// Nothing of a next request can be read. `unread`: something of this one may come still.
    Close {
        unread: bool,
    },
    /// The tunnel is granted.
    Tunnel(Inbound, Authority, Identity),
}

/// Serves one accepted connection to its end.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    tcp: TcpStream,
    tls: Option<TlsAcceptor>,
    shutdown: watch::Receiver<bool>,
) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "the caller's connection is gone already");
        return;
    }
    let link = match tls {
        None => Link::Plain(Carrier::Tcp(tcp)),
        Some(acceptor) => match timeout(shared.options.head_timeout, acceptor.accept(tcp)).await {
            Ok(Ok(tls)) if speaks_http2(&tls) => {
                let Ok(below) = Below::tcp(tls.get_ref().0, false) else { return };
                // What TLS hands to TCP is not counted: an empty queue says that all of it arrived.
                let below = (below, None);
                return Box::pin(http2::caller::serve(shared, tls, below, None, shutdown)).await;
            }
            Ok(Ok(tls)) => Link::Tls(Box::new(tls)),
            Ok(Err(error)) => {
                tracing::info!(%error, "a caller's TLS handshake with the proxy failed");
                return;
            }
            Err(_) => return,
        },
    };
    let wire = stream::Shared::new(Wire::Plain(link));
    let inbound = Inbound::new(wire.clone());
    let out = Outbound::new(wire, shared.options.write_timeout);
    let mut connection = Connection {
        shared,
        out,
        tunnel: None,
        pending: Vec::new(),
        outlived: 0,
        handed_over: Vec::new(),
        shutdown,
    };
    let Some((inbound, authority, identity)) = connection.requests(inbound).await else { return };
    if let Some((mut connection, inbound)) = connection.enter(inbound, authority, identity).await {
        // Inside a tunnel there is no second one.
        drop(connection.requests(inbound).await);
    }
}

fn speaks_http2<S>(tls: &TlsStream<S>) -> bool {
    tls.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// Serves what a caller does inside of a tunnel on a stream (RFC 9113 section 8.5). Boxed with its type
/// written out: an HTTP/2 connection may be inside of one.
pub(crate) fn inside(
    shared: Arc<Shared>,
    carrier: Carrier,
    authority: Authority,
    identity: Identity,
    shutdown: watch::Receiver<bool>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let wire = stream::Shared::new(Wire::Plain(Link::Plain(carrier)));
        let inbound = Inbound::new(wire.clone());
        let out = Outbound::new(wire, shared.options.write_timeout);
        let connection = Connection {
            shared,
            out,
            tunnel: None,
            pending: Vec::new(),
            outlived: 0,
            handed_over: Vec::new(),
            shutdown,
        };
        if let Some((mut connection, inbound)) =
            connection.enter(inbound, authority, identity).await
        {
            drop(connection.requests(inbound).await);
        }
    })
}

impl Connection {
    /// Serves requests until the connection ends, or turns into a tunnel.
    async fn requests(&mut self, mut inbound: Inbound) -> Option<(Inbound, Authority, Identity)> {
        loop {
            let then = match self.next_head(&mut inbound).await {
                Next::Closed(orderly) => {
                    if orderly {
                        self.close(false).await;
                    }
                    self.pending.drain(..).for_each(Pending::fail);
                    return None;
                }
                Next::Fault(fault) => {
                    self.refuse_head(inbound, fault).await;
                    return None;
                }
                Next::Head(head) => self.request(head, inbound).await,
            };
            match then {
                Then::Go(next) => inbound = next,
                Then::Close { unread } => {
                    self.close(unread).await;
                    return None;
                }
                Then::Tunnel(inbound, authority, identity) => {
                    return Some((inbound, authority, identity));
                }
            }
        }
    }

    /// Reads the next head; confirms the last delivery meanwhile.
    async fn next_head(&mut self, inbound: &mut Inbound) -> Next {
        let head_timeout = self.shared.options.head_timeout;
        let mut deadline = Instant::now() + self.shared.options.keep_alive;
        let (mut searched, mut begun) = (0, false);
        let mut pause = Duration::from_millis(1);
        if *self.shutdown.borrow() && inbound.buffer.is_empty() {
            return Next::Closed(true);
        }
        // What is buffered was sent before the last response was acknowledged, perhaps.
        let mut acknowledged = false;
        loop {
            while searched == 0 && inbound.buffer.starts_with(b"\r\n") {
                drop(inbound.buffer.split_to(2));
            }
            // Empty lines before a request are no beginning of one, and buy no time.
            let partial = matches!(inbound.buffer.as_ref(), [] | [b'\r']);
            if !partial && !std::mem::replace(&mut begun, true) {
                deadline = Instant::now() + head_timeout;
            }
            match head::find_end(&inbound.buffer, &mut searched) {
                Some(Ok(end)) => {
                    let bytes = inbound.buffer.split_to(end).freeze();
                    return head::request(&bytes).map_or_else(Next::Fault, Next::Head);
                }
                Some(Err(fault)) => return Next::Fault(fault),
                None => {}
            }
            let look = if self.pending.is_empty() { deadline } else { Instant::now() + pause };
            tokio::select! {
                read = inbound.fill() => match read {
                    Ok(0) => return Next::Closed(true),
                    Err(error) => {
                        self.broke(&error);
                        // TLS without close_notify, but not a reset.
                        return Next::Closed(error.kind() == io::ErrorKind::UnexpectedEof);
                    }
                    Ok(_) => {
                        // A request that came after the acknowledgement shows that the caller has
                        // the response; one that was on its way before shows nothing.
                        let before = std::mem::take(&mut self.handed_over);
                        self.confirm(acknowledged);
                        self.handed_over.clear();
                        before.into_iter().for_each(HandedOver::asked_for_more);
                    }
                },
                () = sleep_until(look.min(deadline)) => {
                    if Instant::now() >= deadline {
                        return Next::Closed(true);
                    }
                    pause = (pause * 2).min(Duration::from_millis(500));
                    if acknowledged {
                        self.confirm(false);
                    }
                    acknowledged = self.is_acknowledged();
                }
                _ = self.shutdown.changed(), if partial => return Next::Closed(true),
            }
        }
    }

    /// Whether the transport says that every byte arrived. After a reset nothing did.
    fn is_acknowledged(&mut self) -> bool {
        match self.out.is_acknowledged() {
            Ok(acknowledged) => acknowledged,
            Err(error) => {
                self.pending.drain(..).for_each(Pending::fail);
                self.broke(&error);
                false
            }
        }
    }

    /// Takes back what a reset says that nobody read (contract R-5).
    fn broke(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionReset && self.out.is_tcp() {
            self.handed_over.drain(..).for_each(HandedOver::take_back);
        }
    }

    /// Records what the transport says of the last response; `asked`: the caller asked for the next
    /// one after that.
    fn confirm(&mut self, asked: bool) {
        if !self.pending.is_empty() && self.is_acknowledged() {
            let outlived = std::mem::take(&mut self.outlived);
            let pending = self.pending.drain(..);
            match asked {
                true => pending.for_each(Pending::confirm),
                false => {
                    let last = |(at, pending): (usize, Pending)| {
                        pending.arrived().filter(|_| at >= outlived)
                    };
                    for mut handed_over in pending.enumerate().filter_map(last) {
                        if let Some(connection) = self.out.connection() {
                            handed_over.list(&self.shared.unread, connection);
                        }
                        self.handed_over.push(handed_over);
                    }
                }
            }
        }
    }

    /// Waits for the last confirmation.
    async fn conclude(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            self.confirm(false);
            if self.pending.is_empty() || Instant::now() >= until {
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the connection so that the caller can read what was sent, even while it still sends.
    async fn close(&mut self, unread: bool) {
        // A caller that has closed already answers anything more with a reset, after which nobody
        // can tell any more what it read. The end itself may be what it waits for, so not for long.
        self.conclude(BEFORE_END).await;
        self.is_acknowledged();
        if self.out.ends_with_a_word() {
            // What a reset throws away from here on may be that word alone.
            self.handed_over.clear();
        }
        if self.out.finish().await.is_ok()
            && unread
            // Closing with unread bytes would reset the connection and destroy the answer.
            && let Ok(Err(error)) = timeout(LINGER, self.out.read_away()).await
            && error.kind() == io::ErrorKind::ConnectionReset
        {
            self.pending.drain(..).for_each(Pending::fail);
            self.broke(&error);
        }
        self.conclude(LINGER).await;
        self.pending.drain(..).for_each(Pending::fail);
    }

    async fn request(&mut self, head: Request, inbound: Inbound) -> Then {
        self.confirm(false);
        // A reset from here on speaks of the answer to this request; what came before may be read.
        self.handed_over.clear();
        self.outlived = self.pending.len();
        let framing = match engine::framing(&head) {
            Ok(framing) => framing,
            Err(refusal) => return self.refuse_unread(head, inbound, &refusal).await,
        };
        if head.method == "CONNECT" && self.tunnel.is_none() {
            return self.connect(head, inbound, framing).await;
        }
        let keep_alive = request::keeps_alive(&head) && !*self.shutdown.borrow();
        let Ok(incoming) = Incoming::begin(inbound, framing, CONTENT_PAUSE).await else {
            return Then::Close { unread: false };
        };
        let going_down = *self.shutdown.borrow();
        let mut job = self.job(head, framing, incoming, keep_alive);
        let finished = if going_down {
            job.refuse(None, &Refusal::ShuttingDown).await
        } else if control::is_meant(&job.head, job.tunnel) {
            control::answer(&mut job).await
        } else {
            job.run().await
        };
        let incoming = job.incoming;
        self.after(finished, incoming)
    }

    fn job(
        &mut self,
        head: Request,
        framing: Framing,
        incoming: Incoming,
        keep_alive: bool,
    ) -> Job<'_> {
        self.out.sent = 0;
        Job {
            shared: &self.shared,
            tunnel: self.tunnel.as_ref(),
            head,
            framing,
            incoming,
            out: &mut self.out,
            keep_alive,
            known: Known::default(),
            again: None,
        }
    }

    fn after(&mut self, finished: Finished, incoming: Incoming) -> Then {
        self.pending.extend(finished.pending);
        if finished.keep && incoming.is_ended() {
            return incoming.into_inbound().map_or(Then::Close { unread: true }, Then::Go);
        }
        Then::Close { unread: true }
    }

    /// Answers a request whose content can't be found.
    async fn refuse_unread(&mut self, head: Request, inbound: Inbound, refusal: &Refusal) -> Then {
        let Ok(incoming) = Incoming::begin(inbound, Framing::Empty, CONTENT_PAUSE).await else {
            return Then::Close { unread: false };
        };
        let mut job = self.job(head, Framing::Empty, incoming, false);
        drop(job.refuse(None, refusal).await);
        Then::Close { unread: true }
    }

    async fn refuse_head(&mut self, inbound: Inbound, fault: head::Fault) {
        let head = Request {
            method: String::new(),
            target: String::new(),
            version: Version::Http11,
            fields: Fields::default(),
        };
        let then = self.refuse_unread(head, inbound, &Refusal::Head(fault)).await;
        if let Then::Close { unread } = then {
            self.close(unread).await;
        }
    }
}
