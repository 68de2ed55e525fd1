//! One exchange on one connection to an origin.
//!
//! ```text
//!  Idle ── dispatch(proof) ──► (Sender, Receiver) ── rejoin ──► Idle
//! ```
//!
//! An [`Idle`] connection has no way to write. The one way to a [`Sender`] takes the journal's
//! proof that the dispatch is durable, by value (contract D-1), and a proof is good for one
//! exchange (contract D-7). There is no resend, no retry and no redirect in here.

use super::tls::Alert;
use super::{http1, http2};
use crate::body;
use crate::head::{self, Fields, Framing};
use crate::render;
use crate::stream::Shared;
use crate::websocket::Opening;
use bytes::Bytes;
use journal::Dispatched;
use journal::contract::{Completion, PeerIdentity};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::consume_budget;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

/// Interim responses before a final one, at most.
const MAX_INTERIM: u32 = 32;

/// The connection to the next hop; TLS only towards an upstream proxy.
pub(crate) type Link = crate::wire::Wire<TcpStream, TlsStream<TcpStream>>;

/// The transport to an origin.
pub(crate) type Wire = crate::wire::Wire<Link, TlsStream<Link>>;

impl Wire {
    fn tcp(&self) -> &TcpStream {
        let link = match self {
            Self::Plain(link) => link,
            Self::Tls(tls) => tls.get_ref().0,
        };
        match link {
            Link::Plain(tcp) => tcp,
            Link::Tls(tls) => tls.get_ref().0,
        }
    }

    /// The alert that refused the client's certificate, if the error is that. Not where another TLS lies
    /// below, whose alert it may be.
    pub(super) fn refused_certificate(&self, error: &io::Error) -> Option<Alert> {
        let Self::Tls(tls) = self else { return None };
        let (link, session) = tls.get_ref();
        match link {
            Link::Plain(_) => Alert::of_refused_certificate(error, session),
            Link::Tls(_) => None,
        }
    }

    /// Whether both sides agreed on HTTP/2.
    pub(super) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// Whether nothing came and nothing ended while the connection lay idle.
    fn is_quiet(&mut self) -> bool {
        let mut byte = [0; 1];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(self.tcp(), &mut byte, flags) {
            Err(error) if error == rustix::io::Errno::AGAIN => return true,
            Ok((0, _)) | Err(_) => return false,
            Ok(_) => {}
        }
        // Bytes are there. On TLS they may be a session ticket, which is no content.
        if matches!(self, Self::Plain(Link::Plain(_))) {
            return false;
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut buf = ReadBuf::new(&mut byte);
        Pin::new(self).poll_read(&mut cx, &mut buf).is_pending()
    }
}

/// What is known of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Unique within the process.
    pub(crate) connection: u64,
    pub(crate) address: SocketAddr,
    pub(crate) identity: PeerIdentity,
    /// Whether it carried an exchange before.
    pub(crate) reused: bool,
}

enum Transport {
    Wire(Wire),
    Streams(http2::Place),
}

/// A connection that can carry an exchange now, and can't be written to.
pub(crate) struct Idle {
    transport: Transport,
    peer: Peer,
    since: Instant,
}

impl Idle {
    pub(super) fn new(wire: Wire, peer: Peer) -> Self {
        Self { transport: Transport::Wire(wire), peer, since: Instant::now() }
    }

    /// One more exchange on a connection that carries many.
    pub(super) fn on_streams(place: http2::Place) -> Self {
        let peer = place.connection().peer().clone();
        Self { transport: Transport::Streams(place), peer, since: Instant::now() }
    }

    /// The connection, if it carries many exchanges.
    pub(crate) const fn streams(&self) -> Option<&http2::Connection> {
        match &self.transport {
            Transport::Wire(_) => None,
            Transport::Streams(place) => Some(place.connection()),
        }
    }

    /// Waits until the origin takes an exchange.
    pub(crate) async fn ready(self) -> io::Result<Self> {
        let transport = match self.transport {
            Transport::Streams(place) => Transport::Streams(place.ready().await?),
            wire @ Transport::Wire(_) => wire,
        };
        Ok(Self { transport, ..self })
    }

    /// Whether the connection can become a WebSocket; asks the origin, if it has to.
    pub(crate) async fn carries_websockets(&self) -> bool {
        match &self.transport {
            Transport::Wire(_) => true,
            Transport::Streams(place) => place.carries_websockets().await,
        }
    }

    /// Why the connection can't carry a request of this head, if so.
    pub(crate) fn fault(&self, head: &[u8]) -> Option<head::Fault> {
        self.streams().and_then(|_| http2::fault(head))
    }

    pub(crate) const fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) const fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn idle_for(&self) -> std::time::Duration {
        self.since.elapsed()
    }

    pub(super) fn is_quiet(&mut self) -> bool {
        match &mut self.transport {
            Transport::Wire(wire) => wire.is_quiet(),
            Transport::Streams(place) => !place.connection().is_over(),
        }
    }

    /// Crosses the dispatch boundary: the proof is used up. What came, or ended, since the connection
    /// was looked at last is no answer to this request, and nothing is written after it.
    pub(crate) fn dispatch(self, proof: Dispatched) -> (Sender, Receiver) {
        drop(proof);
        match self.transport {
            Transport::Streams(place) => {
                let (sender, receiver) = place.exchange();
                let receiver =
                    Receiver { side: Side::Stream(receiver), peer: self.peer, interim: 0 };
                (Sender::Stream(sender), receiver)
            }
            Transport::Wire(mut wire) => {
                let sound = !self.peer.reused || wire.is_quiet();
                let (sender, receiver) = http1::exchange(wire, sound, !self.peer.reused);
                let side = Side::Wire(receiver);
                (Sender::Wire(sender), Receiver { side, peer: self.peer, interim: 0 })
            }
        }
    }
}

/// Sends the one request of an exchange.
pub(crate) enum Sender {
    Wire(http1::Sender),
    Stream(http2::Sender),
}

impl Sender {
    /// Sends the head, and the content that is at hand with it.
    pub(crate) async fn head(
        &mut self,
        head: Zeroizing<Vec<u8>>,
        framing: Framing,
        content: &[Bytes],
    ) -> io::Result<()> {
        match self {
            Self::Wire(sender) => sender.head(head, framing, content).await,
            Self::Stream(sender) => sender.head(head, framing, content).await,
        }
    }

    /// Sends one piece of content.
    pub(crate) async fn content(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Self::Wire(sender) => sender.content(piece).await,
            Self::Stream(sender) => sender.content(piece).await,
        }
    }

    /// Sends the end of the content. Must follow the last byte, and only that.
    pub(crate) async fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
        match self {
            Self::Wire(sender) => sender.finish(trailers).await,
            Self::Stream(sender) => sender.finish(trailers).await,
        }
    }
}

/// Receives the one response of an exchange.
pub(crate) struct Receiver {
    side: Side,
    peer: Peer,
    /// Interim responses so far.
    interim: u32,
}

enum Side {
    Wire(http1::Receiver),
    Stream(http2::Receiver),
}

impl Receiver {
    /// Whether any byte of a response is there.
    pub(crate) fn has_bytes(&self) -> bool {
        match &self.side {
            Side::Wire(receiver) => receiver.has_bytes(),
            Side::Stream(_) => false,
        }
    }

    /// The exchange is given up, after its time to wait. A connection that carries one at a time ends with it.
    pub(crate) fn waited_in_vain(&self) {
        match &self.side {
            Side::Wire(_) => {}
            Side::Stream(receiver) => receiver.waited_in_vain(),
        }
    }

    /// Whether the origin said that it wants HTTP/1.1.
    pub(crate) fn is_http11_required(&self) -> bool {
        match &self.side {
            Side::Wire(_) => false,
            Side::Stream(receiver) => receiver.is_http11_required(),
        }
    }

    /// Whether the response comes in frames.
    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self.side, Side::Stream(_))
    }

    /// Reads the next response head; `method` decides the framing of a final one, `opening` whether
    /// a WebSocket begins. Cancel-safe.
    pub(crate) async fn head(
        &mut self,
        method: &str,
        opening: Option<&Opening>,
    ) -> Result<Received, Error> {
        let received = match &mut self.side {
            Side::Wire(receiver) => receiver.head(method, opening).await?,
            Side::Stream(receiver) => receiver.head(method, opening).await?,
        };
        if matches!(received, Received::Interim(_)) {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(Error::Interim);
            }
        }
        Ok(received)
    }

    /// The next piece of content. However small the pieces are that came together, others get their turn
    /// between them. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Piece, Error> {
        consume_budget().await;
        match &mut self.side {
            Side::Wire(receiver) => receiver.next().await,
            Side::Stream(receiver) => receiver.next().await,
        }
    }
}

/// Why no complete response was received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The connection broke.
    #[error("the connection to the origin broke")]
    Io(#[source] io::Error),
    /// The connection was closed before the response was complete.
    #[error("the origin closed the connection")]
    Closed,
    /// The response head is malformed.
    #[error("the response head is malformed: {0}")]
    Head(#[source] head::Fault),
    /// `Transfer-Encoding` is not exactly `chunked`; the coding that it names instead, or too often.
    #[error("the response head is malformed: {fault}", fault = head::Fault::TransferEncoding)]
    Coding(Option<&'static str>),
    /// The response content's framing is malformed.
    #[error("the response content is malformed: {0}")]
    Content(#[source] body::Fault),
    /// Too many interim responses.
    #[error("the origin sent too many interim responses")]
    Interim,
    /// The origin switched protocols without being asked.
    #[error("the origin switched protocols unasked")]
    Switched,
    /// The origin switched to something else than what was asked for.
    #[error("the origin answered the upgrade with what was not asked for or not offered")]
    Upgrade,
    /// The protocol itself says that the request was not processed (contract C-6).
    #[error("the origin refused the stream and did not process the request")]
    NotProcessed,
    /// The handshake ended over the client's certificate: nothing was processed (contract C-6).
    #[error("the origin refused the client certificate ({name})", name = .0.name)]
    Certificate(Alert),
    /// No stream could be opened, and nothing of the request was sent.
    #[error("the origin took no more streams at that moment, and nothing was sent")]
    Unsent,
    /// The origin reset the stream.
    #[error("the origin reset the stream")]
    Reset(Option<h2::Reason>),
    /// The frames of the stream were malformed.
    #[error("the response's frames are malformed")]
    Stream,
}

impl Error {
    /// What is wrong with the framing that a head declares.
    pub(super) fn of_framing(fault: head::Fault, head: &head::Response) -> Self {
        if fault != head::Fault::TransferEncoding {
            return Self::Head(fault);
        }
        let codings = || {
            let members = head.fields.members("transfer-encoding");
            members.filter_map(|member| member.split(|byte| *byte == b';').next())
        };
        let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
        let coding = codings().find(|coding| !is_chunked(coding)).or_else(|| codings().next());
        Self::Coding(coding.and_then(render::coding))
    }

    /// Whether what came is against the protocol.
    pub(crate) const fn is_malformed(&self) -> bool {
        match self {
            Self::Head(_)
            | Self::Coding(_)
            | Self::Content(_)
            | Self::Interim
            | Self::Switched
            | Self::Upgrade
            | Self::Stream => true,
            Self::Io(_)
            | Self::Closed
            | Self::NotProcessed
            | Self::Certificate(_)
            | Self::Unsent
            | Self::Reset(_) => false,
        }
    }

    /// A name of the cause for records.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Io(error) => crate::upstream::dial::errno(error),
            Self::Closed => "EOF".to_owned(),
            Self::Head(_) | Self::Coding(_) => "BAD_HEAD".to_owned(),
            Self::Content(_) => "BAD_FRAMING".to_owned(),
            Self::Interim => "TOO_MANY_INTERIM".to_owned(),
            Self::Switched => "UNASKED_SWITCH".to_owned(),
            Self::Upgrade => "BAD_UPGRADE".to_owned(),
            Self::NotProcessed => "NOT_PROCESSED".to_owned(),
            Self::Certificate(alert) => alert.cause(),
            Self::Unsent => "NO_STREAM".to_owned(),
            Self::Reset(reason) => {
                reason.map_or_else(|| "RESET".to_owned(), |r| format!("RESET_{}", u32::from(r)))
            }
            Self::Stream => "BAD_FRAMES".to_owned(),
        }
    }
}

/// A response head.
pub(crate) enum Received {
    /// One that settles nothing (contract S-5).
    Interim(head::Response),
    Final(head::Response),
    /// The connection speaks WebSocket from here on.
    Switched(head::Response),
}

/// A piece of response content, or its proven end.
pub(crate) enum Piece {
    Data(Bytes),
    End(Completion, Fields),
}

/// A connection that stopped carrying exchanges.
pub(crate) struct Opened {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// What came on it already.
    pub(crate) early: Bytes,
}

/// What a WebSocket passes through after its opening.
pub(crate) fn into_upgraded(sender: Sender, receiver: Receiver) -> Option<Opened> {
    match (sender, receiver.side) {
        (Sender::Wire(sender), Side::Wire(receiver)) => {
            drop(sender);
            let (wire, early) = receiver.into_rest();
            Some(Opened { reader: Box::new(wire.clone()), writer: Box::new(wire), early })
        }
        (Sender::Stream(sender), Side::Stream(receiver)) => {
            let (reader, writer) = http2::into_rest(sender, receiver)?;
            let early = Bytes::new();
            Some(Opened { reader: Box::new(reader), writer: Box::new(writer), early })
        }
        (Sender::Wire(_), Side::Stream(_)) | (Sender::Stream(_), Side::Wire(_)) => None,
    }
}

/// The way to the origin of a tunnel that nobody looks into, before anything is sent on it.
pub(crate) struct Unopened(Shared<Wire>);

impl Unopened {
    /// Crosses the dispatch boundary: the proof is used up (contract D-1).
    pub(crate) fn open(self, proof: Dispatched) -> Box<dyn AsyncWrite + Send + Unpin> {
        drop(proof);
        Box::new(self.0)
    }
}

/// The connection of a tunnel that nobody looks into. It carries no exchange: what the origin sends can
/// be read before anything is dispatched.
pub(crate) fn into_tunnel(idle: Idle) -> Option<(Box<dyn AsyncRead + Send + Unpin>, Unopened)> {
    let Transport::Wire(wire) = idle.transport else { return None };
    let wire = Shared::new(wire);
    Some((Box::new(wire.clone()), Unopened(wire)))
}

/// The connection after a complete exchange, if it may carry another one. One that carries many needs
/// no giving back.
pub(crate) fn rejoin(sender: Sender, receiver: Receiver) -> Option<Idle> {
    let (Sender::Wire(sender), Side::Wire(side)) = (sender, receiver.side) else { return None };
    let wire = http1::rejoin(sender, side)?;
    Some(Idle::new(wire, Peer { reused: true, ..receiver.peer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    /// An origin's chunks of a byte do not keep the thread either.
    #[tokio::test]
    async fn small_chunks_leave_others_their_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (mut far, _) = listener.accept().await.expect("far");
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let answer = [head, b"1\r\nx\r\n".repeat(2000), b"0\r\n\r\n".to_vec()].concat();
        far.write_all(&answer).await.expect("written");
        let (_sender, side) = http1::exchange(Wire::Plain(Link::Plain(near)), true, true);
        let identity = PeerIdentity::Unverified;
        let peer = Peer { connection: 1, address, identity, reused: false };
        let mut receiver = Receiver { side: Side::Wire(side), peer, interim: 0 };
        assert!(matches!(receiver.head("GET", None).await, Ok(Received::Final(_))));
        let mut length = 0;
        {
            let all = async {
                while let Piece::Data(data) = receiver.next().await.expect("well-formed") {
                    length += data.len();
                }
            };
            tokio::pin!(all);
            assert!(futures::poll!(all.as_mut()).is_pending(), "all was read in one turn");
            tokio::time::timeout(Duration::from_secs(20), all).await.expect("in time");
        }
        assert_eq!(length, 2000);
    }
}
