//! One exchange on one connection to an origin.
//!
//! ```text
//!  Idle ── dispatch(proof) ──► (Sender, Receiver) ── rejoin ──► Idle
//! ```
//!
//! An [`Idle`] connection has no way to write. The one way to a [`Sender`] takes the journal's
//! proof that the dispatch is durable, by value (contract D-1), and a proof is good for one
//! exchange (contract D-7). There is no resend, no retry and no redirect in here.

use super::http2;
use crate::body::{self, Decoder, Step};
use crate::head::{self, Fields, Framing};
use crate::stream::Shared;
use bytes::{Bytes, BytesMut};
use journal::Dispatched;
use journal::contract::{Completion, PeerIdentity};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
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
    Streams(http2::Connection),
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
    pub(super) fn on_streams(connection: http2::Connection) -> Self {
        let peer = connection.peer().clone();
        Self { transport: Transport::Streams(connection), peer, since: Instant::now() }
    }

    /// The connection, if it carries many exchanges.
    pub(crate) const fn streams(&self) -> Option<&http2::Connection> {
        match &self.transport {
            Transport::Wire(_) => None,
            Transport::Streams(connection) => Some(connection),
        }
    }

    /// Waits until the origin takes an exchange.
    pub(crate) async fn ready(self) -> io::Result<Self> {
        let transport = match self.transport {
            Transport::Streams(connection) => Transport::Streams(connection.ready().await?),
            wire @ Transport::Wire(_) => wire,
        };
        Ok(Self { transport, ..self })
    }

    /// Whether the connection can carry a request of this head.
    pub(crate) fn can_carry(&self, head: &[u8]) -> bool {
        self.streams().is_none() || http2::can_carry(head)
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
            Transport::Streams(connection) => connection.again().is_some(),
        }
    }

    /// Crosses the dispatch boundary: the proof is used up.
    pub(crate) fn dispatch(self, proof: Dispatched) -> (Sender, Receiver) {
        drop(proof);
        match self.transport {
            Transport::Streams(connection) => {
                let (sender, receiver) = connection.exchange();
                let receiver =
                    Receiver { side: Side::Stream(receiver), peer: self.peer, interim: 0 };
                (Sender::Stream(sender), receiver)
            }
            Transport::Wire(wire) => {
                let wire = Shared::new(wire);
                let sender =
                    WireSender { wire: wire.clone(), chunked: false, left: 0, ended: false };
                let (buffer, decoder) = (BytesMut::new(), Decoder::Empty);
                let side = Side::Wire(WireReceiver { wire, buffer, decoder, keep: false });
                (Sender::Wire(sender), Receiver { side, peer: self.peer, interim: 0 })
            }
        }
    }
}

/// Sends the one request of an exchange.
pub(crate) enum Sender {
    Wire(WireSender),
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
            Self::Stream(sender) => sender.finish(trailers),
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
    Wire(WireReceiver),
    Stream(http2::Receiver),
}

impl Receiver {
    /// Whether any byte of a response is there.
    pub(crate) fn has_bytes(&self) -> bool {
        match &self.side {
            Side::Wire(receiver) => !receiver.buffer.is_empty(),
            Side::Stream(_) => false,
        }
    }

    /// Whether the origin said that it wants HTTP/1.1.
    pub(crate) fn is_http11_required(&self) -> bool {
        match &self.side {
            Side::Wire(_) => false,
            Side::Stream(receiver) => receiver.is_http11_required(),
        }
    }

    /// Reads the next response head; `method` decides the framing of a final one, `upgrade` whether
    /// a WebSocket was asked for. Cancel-safe.
    pub(crate) async fn head(&mut self, method: &str, upgrade: bool) -> Result<Received, Error> {
        let received = match &mut self.side {
            Side::Wire(receiver) => receiver.head(method, upgrade).await?,
            Side::Stream(receiver) => receiver.head().await?,
        };
        if matches!(received, Received::Interim(_)) {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(Error::Interim);
            }
        }
        Ok(received)
    }

    /// The next piece of content. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Piece, Error> {
        match &mut self.side {
            Side::Wire(receiver) => receiver.next().await,
            Side::Stream(receiver) => receiver.next().await,
        }
    }
}

/// Sends on a connection of HTTP/1.1.
pub(crate) struct WireSender {
    wire: Shared<Wire>,
    chunked: bool,
    left: u64,
    ended: bool,
}

impl WireSender {
    async fn head(
        &mut self,
        mut head: Zeroizing<Vec<u8>>,
        framing: Framing,
        content: &[Bytes],
    ) -> io::Result<()> {
        match framing {
            Framing::Empty | Framing::Close => {}
            Framing::Length(length) => self.left = length,
            Framing::Chunked => self.chunked = true,
        }
        // One write for what is small; the buffer must not grow, or it would leave copies behind.
        let mut rest = content;
        if !self.chunked
            && let [first, more @ ..] = content
            && first.len() <= head.capacity() - head.len()
        {
            self.count(first.len())?;
            head.extend_from_slice(first);
            rest = more;
        }
        self.wire.write_all(&head).await?;
        drop(head);
        for piece in rest {
            self.write(piece).await?;
        }
        self.wire.flush().await
    }

    fn count(&mut self, length: usize) -> io::Result<()> {
        // A body byte too many would be read as the next request.
        self.left = self.left.checked_sub(length as u64).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(())
    }

    async fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.chunked {
            self.wire.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            self.wire.write_all(piece).await?;
            self.wire.write_all(b"\r\n").await
        } else {
            self.count(piece.len())?;
            self.wire.write_all(piece).await
        }
    }

    async fn content(&mut self, piece: &[u8]) -> io::Result<()> {
        self.write(piece).await?;
        self.wire.flush().await
    }

    /// `trailers`: only chunks have room for them.
    async fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
        if self.chunked {
            let mut last = b"0\r\n".to_vec();
            for (name, value) in trailers.iter() {
                for part in [name, b": ", value, b"\r\n"] {
                    last.extend_from_slice(part);
                }
            }
            last.extend_from_slice(b"\r\n");
            self.wire.write_all(&last).await?;
            self.wire.flush().await?;
        } else if self.left != 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.ended = true;
        Ok(())
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
    /// The response content's framing is malformed.
    #[error("the response content is malformed: {0}")]
    Content(#[source] body::Fault),
    /// Too many interim responses.
    #[error("the origin sent too many interim responses")]
    Interim,
    /// The origin switched protocols without being asked.
    #[error("the origin switched protocols unasked")]
    Switched,
    /// The protocol itself says that the request was not processed (contract C-6).
    #[error("the origin refused the stream and did not process the request")]
    NotProcessed,
    /// The origin reset the stream.
    #[error("the origin reset the stream")]
    Reset(Option<h2::Reason>),
    /// The frames of the stream were malformed.
    #[error("the response's frames are malformed")]
    Stream,
}

impl Error {
    /// A name of the cause for records.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Io(error) => crate::upstream::dial::errno(error),
            Self::Closed => "EOF".to_owned(),
            Self::Head(_) => "BAD_HEAD".to_owned(),
            Self::Content(_) => "BAD_FRAMING".to_owned(),
            Self::Interim => "TOO_MANY_INTERIM".to_owned(),
            Self::Switched => "UNASKED_SWITCH".to_owned(),
            Self::NotProcessed => "NOT_PROCESSED".to_owned(),
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

/// Receives on a connection of HTTP/1.1.
struct WireReceiver {
    wire: Shared<Wire>,
    buffer: BytesMut,
    decoder: Decoder,
    keep: bool,
}

impl WireReceiver {
    async fn fill(&mut self) -> Result<(), Error> {
        self.buffer.reserve(16 * 1024);
        match self.wire.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Error::Closed),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Io(error)),
        }
    }

    async fn head(&mut self, method: &str, upgrade: bool) -> Result<Received, Error> {
        let head = self.one_head().await?;
        match head.status {
            101 => {
                let switched = head.fields.has_member("connection", "upgrade")
                    && head.fields.has_member("upgrade", "websocket");
                if upgrade && switched {
                    Ok(Received::Switched(head))
                } else {
                    Err(Error::Switched)
                }
            }
            100..=199 => Ok(Received::Interim(head)),
            _ => {
                let framing = head::response_framing(&head, method).map_err(Error::Head)?;
                self.decoder = framing.into();
                self.keep = framing != Framing::Close && keeps_alive(&head);
                Ok(Received::Final(head))
            }
        }
    }

    async fn one_head(&mut self) -> Result<head::Response, Error> {
        let mut searched = 0;
        loop {
            match head::find_end(&self.buffer, &mut searched) {
                Some(Ok(end)) => {
                    let head = self.buffer.split_to(end).freeze();
                    return head::response(&head).map_err(Error::Head);
                }
                Some(Err(fault)) => return Err(Error::Head(fault)),
                None => self.fill().await?,
            }
        }
    }

    async fn next(&mut self) -> Result<Piece, Error> {
        loop {
            match self.decoder.step(&mut self.buffer).map_err(Error::Content)? {
                Step::Data(data) => return Ok(Piece::Data(data)),
                Step::End(completion, trailers) => return Ok(Piece::End(completion, trailers)),
                Step::More => match self.fill().await {
                    // TLS without close_notify is an error of its own, so this end is orderly.
                    Err(Error::Closed) if self.decoder == Decoder::Close => {
                        self.decoder = Decoder::Done;
                        return Ok(Piece::End(Completion::CloseDelimited, Fields::default()));
                    }
                    filled => filled?,
                },
            }
        }
    }
}

/// The connection after an upgrade, and what came on it already. None: it carries streams.
pub(crate) fn into_upgraded(sender: Sender, receiver: Receiver) -> Option<(Shared<Wire>, Bytes)> {
    drop(sender);
    match receiver.side {
        Side::Wire(receiver) => Some((receiver.wire, receiver.buffer.freeze())),
        Side::Stream(_) => None,
    }
}

/// The connection of a tunnel that nobody looks into. It carries no exchange.
pub(crate) fn into_tunnel(idle: Idle, proof: Dispatched) -> Option<Shared<Wire>> {
    let (sender, receiver) = idle.dispatch(proof);
    into_upgraded(sender, receiver).map(|(wire, _)| wire)
}

fn keeps_alive(head: &head::Response) -> bool {
    match head.version {
        head::Version::Http11 => !head.fields.has_member("connection", "close"),
        head::Version::Http10 => head.fields.has_member("connection", "keep-alive"),
    }
}

/// The connection after a complete exchange, if it may carry another one. One that carries many needs
/// no giving back.
pub(crate) fn rejoin(sender: Sender, receiver: Receiver) -> Option<Idle> {
    let (Sender::Wire(sender), Side::Wire(side)) = (sender, receiver.side) else { return None };
    let sound = sender.ended && side.keep && side.decoder == Decoder::Done;
    // Bytes beyond the response would be taken for the next one's.
    if !sound || !side.buffer.is_empty() {
        return None;
    }
    drop(sender);
    let wire = side.wire.into_inner()?;
    Some(Idle::new(wire, Peer { reused: true, ..receiver.peer }))
}
