//! HTTP/2 towards origins: many exchanges on one connection, each released by a proof of its own.
//!
//! The library below resends nothing. What it can't tell, the last stream of a GOAWAY, is read off
//! the wire beside it, and so is that an answer began, which voids every word that nothing was
//! processed.

use super::exchange::{Error, Peer, Piece, Received, Wire};
use super::facts::{Facts, Listened, Taken};
use crate::body;
use crate::head::{self, Fields, Framing, Version};
use crate::http2::frames::{Frames, Seen};
use crate::http2::progress::Allowance;
use crate::http2::raw::{Reading, Writing, failed};
use crate::http2::{READ_BYTES, from_map, to_map};
use crate::request::is_upgrade;
use crate::websocket::{self, Opening};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use journal::contract::Completion;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Mutex, oneshot};
use zeroize::Zeroizing;

/// Bytes a stream, and a connection, may have on the way to us.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// A connection that carries many exchanges. It has no method that writes; a stream does.
#[derive(Clone)]
pub(crate) struct Connection {
    send: SendRequest<Bytes>,
    peer: Peer,
    facts: Arc<Facts>,
    /// Asks whether the origin's settings are here; taken by the first who does.
    ping: Arc<Mutex<Option<PingPong>>>,
}

/// Room for one exchange on a connection: one of the streams that the origin takes at a time. Above that
/// number the library keeps a request, and sends it whenever a stream is free, be its caller long gone.
pub(crate) struct Place {
    connection: Connection,
    taken: Taken,
}

impl Connection {
    /// Begins HTTP/2 on a connection that agreed to it, for a first exchange. Sends the preface, and no
    /// request byte.
    pub(super) async fn begin(wire: Wire, peer: Peer) -> io::Result<Place> {
        let facts = Arc::new(Facts::default());
        let (frames, sent) = (Frames::default(), Frames::of_client());
        let acks = Allowance::new();
        let watched = Watched { wire, frames, sent, acks, facts: Arc::clone(&facts) };
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(READ_BYTES).unwrap_or(u32::MAX));
        let (send, mut connection) = builder.handshake(watched).await.map_err(io::Error::other)?;
        let ping = Arc::new(Mutex::new(connection.ping_pong()));
        let ended = Arc::clone(&facts);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to an origin ended");
            }
            ended.closed.store(true, Ordering::Release);
            ended.changed.notify_waiters();
        });
        let taken = facts.take_place(1).ok_or(io::ErrorKind::NotConnected)?;
        Ok(Place { connection: Self { send, peer, facts, ping }, taken })
    }

    pub(super) const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the connection takes no exchange any more.
    pub(super) fn is_over(&self) -> bool {
        self.facts.closed.load(Ordering::Acquire) || self.facts.going_away.load(Ordering::Acquire)
    }

    /// Whether an exchange is under way on it.
    pub(super) fn is_busy(&self) -> bool {
        self.facts.places_taken() > 0
    }

    /// Room for another exchange on the same connection, if there is any.
    pub(super) fn place(&self) -> Option<Place> {
        // Before its settings came, nobody knows how many streams the origin takes.
        let limit = match self.facts.settled.load(Ordering::Acquire) {
            true => self.send.current_max_send_streams(),
            false => 1,
        };
        let taken = self.facts.take_place(limit).filter(|_| !self.is_over())?;
        let connection = Self { peer: Peer { reused: true, ..self.peer.clone() }, ..self.clone() };
        Some(Place { connection, taken })
    }
}

impl Place {
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the library takes one more stream.
    pub(super) async fn ready(self) -> io::Result<Self> {
        let connection = self.connection;
        let send = connection.send.ready().await.map_err(io::Error::other)?;
        Ok(Self { connection: Connection { send, ..connection }, ..self })
    }

    /// Whether the origin takes an extended CONNECT (RFC 8441 section 3). Its settings come before its
    /// answer to a ping does.
    pub(super) async fn carries_websockets(&self) -> bool {
        let mut ping = self.connection.ping.lock().await;
        if let Some(asking) = ping.as_mut()
            && asking.ping(Ping::opaque()).await.is_ok()
        {
            *ping = None;
        }
        self.connection.send.is_extended_connect_protocol_enabled()
    }

    /// The two sides of an exchange; the caller has given up its proof.
    pub(super) fn exchange(self) -> (Sender, Receiver) {
        let (tell, told) = oneshot::channel();
        let (facts, taken) = (self.connection.facts, Arc::new(self.taken));
        let sender = Sender {
            send: Some(self.connection.send),
            stream: None,
            id: 0,
            opening: false,
            tell: Some(tell),
            facts: Arc::clone(&facts),
            taken: Arc::clone(&taken),
        };
        let receiver = Receiver {
            told: Some(told),
            response: None,
            body: None,
            bodiless: false,
            listened: None,
            facts,
            _taken: taken,
        };
        (sender, receiver)
    }
}

/// The transport below the library.
struct Watched {
    wire: Wire,
    /// What comes, and what goes.
    frames: Frames,
    sent: Frames,
    /// What the origin may acknowledge without being asked. Pings of its own are not counted: a server that
    /// measures the way asks at each round of it.
    acks: Allowance,
    facts: Arc<Facts>,
}

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.wire).poll_read(cx, buf))?;
        let (facts, mut acks) = (&this.facts, 0);
        this.frames.see(buf.filled().get(before..).unwrap_or_default(), |seen| match seen {
            Seen::GoAway(last) => {
                facts.last_stream.store(last, Ordering::Release);
                facts.going_away.store(true, Ordering::Release);
            }
            Seen::Begun(id) => facts.answer_begun(id),
            Seen::LongBlock(id) => facts.long_blocks.add(id),
            Seen::Ack => acks += 1,
            Seen::Settings => facts.settled.store(true, Ordering::Release),
            Seen::Headers(_) | Seen::EndStream(_) | Seen::Data(..) | Seen::Idle => {}
        });
        let now = Instant::now();
        if (0..acks).any(|_| !this.acks.take(now)) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.wire).poll_write(cx, buf))?;
        let facts = &this.facts;
        this.sent.see(buf.get(..written).unwrap_or_default(), |seen| {
            if let Seen::EndStream(id) = seen {
                facts.ended.insert(id);
                facts.changed.notify_waiters();
            }
        });
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

/// Sends the one request of an exchange as frames.
pub(crate) struct Sender {
    send: Option<SendRequest<Bytes>>,
    stream: Option<SendStream<Bytes>>,
    id: u32,
    /// Whether the stream stays open behind the request: it asks for a WebSocket.
    opening: bool,
    tell: Option<oneshot::Sender<(ResponseFuture, Listened)>>,
    facts: Arc<Facts>,
    taken: Arc<Taken>,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.facts.ended.remove(&self.id);
    }
}

/// The request of HTTP/1.1 as HTTP/2 has it, and whether it asks for a WebSocket: then it is an
/// extended CONNECT (RFC 8441 section 4). Values are marked so that no table keeps them.
fn request(head: &[u8]) -> Result<(http::Request<()>, bool), head::Fault> {
    // A copy that the library keeps until it has sent it.
    let head = head::request_within(&Bytes::copy_from_slice(head), head::OF_OURS)?;
    let authority = head.fields.first("host").unwrap_or_default();
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(authority)
        .path_and_query(head.target.as_str())
        .build()
        .map_err(|_| head::Fault::Target)?;
    let mut fields = to_map(&head.fields).ok_or(head::Fault::FieldValue)?;
    fields.remove(http::header::HOST);
    fields.values_mut().for_each(|value| value.set_sensitive(true));
    let opening = is_upgrade(&head);
    if opening {
        fields.remove(http::header::SEC_WEBSOCKET_KEY);
    }
    let mut request = http::Request::builder()
        .method(if opening { "CONNECT" } else { head.method.as_str() })
        .uri(uri)
        .version(http::Version::HTTP_2)
        .body(())
        .map_err(|_| head::Fault::StartLine)?;
    *request.headers_mut() = fields;
    if opening {
        request.extensions_mut().insert(Protocol::from_static(websocket::PROTOCOL));
    }
    Ok((request, opening))
}

/// Why frames can't carry the request, if so.
pub(super) fn fault(head: &[u8]) -> Option<head::Fault> {
    request(head).err()
}

impl Sender {
    pub(super) async fn head(
        &mut self,
        head: Zeroizing<Vec<u8>>,
        framing: Framing,
        content: &[Bytes],
    ) -> io::Result<()> {
        let (request, opening) = request(&head).map_err(io::Error::other)?;
        drop(head);
        self.opening = opening;
        let ended = matches!(framing, Framing::Empty | Framing::Length(0)) && !opening;
        let mut send = self.send.take().ok_or(io::ErrorKind::NotConnected)?;
        let tell = self.tell.take();
        // On a failure no stream was opened, and dropping `tell` says so.
        let (response, stream, listened) = self.open(&mut send, request, ended)?;
        self.stream = (!ended).then_some(stream);
        if let Some(tell) = tell {
            // Nobody waits any more when the exchange was given up.
            drop(tell.send((response, listened)));
        }
        for piece in content {
            self.content(piece).await?;
        }
        Ok(())
    }

    /// Opens the stream, if the origin still takes as many: else nothing of the request may be handed to
    /// the library. It is listened on before its request can leave.
    fn open(
        &mut self,
        send: &mut SendRequest<Bytes>,
        request: http::Request<()>,
        ended: bool,
    ) -> io::Result<(ResponseFuture, SendStream<Bytes>, Listened)> {
        if self.facts.places_taken() > send.current_max_send_streams() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let ((response, stream), listened) = self.facts.listened(|| {
            let (response, stream) = send.send_request(request, ended).map_err(failed)?;
            let id = response.stream_id().as_u32();
            self.id = id;
            Ok::<_, io::Error>(((response, stream), id))
        })?;
        Ok((response, stream, listened))
    }

    pub(super) async fn content(&mut self, piece: &[u8]) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut left = Bytes::copy_from_slice(piece);
        while !left.is_empty() {
            stream.reserve_capacity(left.len());
            let room = poll_fn(|cx| stream.poll_capacity(cx)).await;
            let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(failed)?;
            let piece = left.split_to(room.min(left.len()));
            if !piece.is_empty() {
                stream.send_data(piece, false).map_err(failed)?;
            }
        }
        Ok(())
    }

    pub(super) async fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
        if self.opening {
            return Ok(());
        }
        if let Some(stream) = self.stream.as_mut() {
            let trailers = to_map(trailers).ok_or(io::ErrorKind::InvalidData)?;
            if trailers.is_empty() {
                stream.send_data(Bytes::new(), true).map_err(failed)?;
            } else {
                stream.send_trailers(trailers).map_err(failed)?;
            }
        }
        self.facts.ended(self.id).await
    }
}

/// The response that opens a WebSocket as a caller of HTTP/1.1 expects it: with the answer to its
/// key, which an origin of HTTP/2 never saw.
fn with_accept(head: head::Response, opening: &Opening) -> head::Response {
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> =
        head.fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    fields.retain(|(name, _)| name != b"sec-websocket-accept");
    if let Some(accept) = &opening.accept {
        fields.push((b"Sec-WebSocket-Accept".to_vec(), accept.as_bytes().to_vec()));
    }
    head::Response { fields: fields.into_iter().collect(), ..head }
}

/// The stream behind the opening of a WebSocket.
pub(super) fn into_rest(sender: Sender, receiver: Receiver) -> Option<(Rest, Writing)> {
    let mut sender = sender;
    let writing = Writing::new(sender.stream.take()?);
    let reading = Reading::new(receiver.body?);
    Some((Rest { reading, _taken: Arc::clone(&sender.taken) }, writing))
}

/// What comes on such a stream, which keeps its place.
pub(super) struct Rest {
    reading: Reading,
    _taken: Arc<Taken>,
}

impl AsyncRead for Rest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reading).poll_read(cx, buf)
    }
}

/// Receives the one response of an exchange.
pub(crate) struct Receiver {
    told: Option<oneshot::Receiver<(ResponseFuture, Listened)>>,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    /// Whether the response has no content by its method or status.
    bodiless: bool,
    listened: Option<Listened>,
    facts: Arc<Facts>,
    _taken: Arc<Taken>,
}

impl Receiver {
    /// What the protocol proves by the error (RFC 9113 section 8.7, contract C-6). That the origin
    /// wants HTTP/1.1 says nothing of what it did.
    fn error(&self, error: &h2::Error) -> Error {
        let said = error.reason().filter(|_| error.is_remote());
        if said == Some(Reason::HTTP_1_1_REQUIRED) {
            self.facts.http11_required.store(true, Ordering::Release);
        }
        let refused = said == Some(Reason::REFUSED_STREAM) && error.is_reset();
        let listened = self.listened.as_ref();
        let above = listened.is_some_and(Listened::is_above_last);
        // Any part of an answer contradicts whoever says that nothing was processed.
        let answered = listened.is_some_and(Listened::is_answered);
        if (refused || above) && !answered {
            return Error::NotProcessed;
        }
        if listened.is_some_and(Listened::has_long_block) {
            return match self.body.is_some() {
                true => Error::Content(body::Fault::TrailerTooLong),
                false => Error::Head(head::Fault::TooLong),
            };
        }
        // A GOAWAY of our own says that the origin broke the protocol.
        if error.is_io() || (error.is_go_away() && error.is_remote()) {
            return Error::Closed;
        }
        if error.is_remote() { Error::Reset(error.reason()) } else { Error::Stream }
    }

    /// Whether the origin said that it wants HTTP/1.1.
    pub(super) fn is_http11_required(&self) -> bool {
        self.facts.http11_required.load(Ordering::Acquire)
    }

    /// Cancel-safe.
    pub(super) async fn head(
        &mut self,
        method: &str,
        opening: Option<&Opening>,
    ) -> Result<Received, Error> {
        if let Some(told) = &mut self.told {
            // A stream that could not be opened any more lies above whatever a GOAWAY names. Without one it
            // is as certain: the library has nothing of the request.
            let going_away = &self.facts.going_away;
            let unopened = |_| match going_away.load(Ordering::Acquire) {
                true => Error::NotProcessed,
                false => Error::Unsent,
            };
            let (response, listened) = told.await.map_err(unopened)?;
            self.told = None;
            self.listened = Some(listened);
            self.response = Some(response);
        }
        let Some(response) = &mut self.response else { return Err(Error::Closed) };
        let got = poll_fn(|cx| {
            if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
                return Poll::Ready(interim.map(|interim| (interim.map(|()| None), true)));
            }
            let response = ready!(Pin::new(&mut *response).poll(cx));
            Poll::Ready(response.map(|response| (response.map(Some), false)))
        });
        let got = got.await;
        let (response, interim) = got.map_err(|error| self.error(&error))?;
        let (parts, body) = response.into_parts();
        let head = head::Response {
            status: parts.status.as_u16(),
            reason: crate::deliver::reason(parts.status.as_u16()).as_bytes().to_vec(),
            version: Version::Http11,
            fields: from_map(&parts.headers),
        };
        if let Some(fault) = head.fields.fault_in_frames(0) {
            return Err(Error::Head(fault));
        }
        if head.status == 101 {
            // There is no such thing here (RFC 9113 section 8.6), and a caller of HTTP/1.1 would
            // take it for a switch.
            return Err(Error::Switched);
        }
        if interim {
            return Ok(Received::Interim(head));
        }
        if head.status > 599 {
            return Err(Error::Head(head::Fault::StartLine));
        }
        head::response_framing(&head, method).map_err(|fault| Error::of_framing(fault, &head))?;
        self.response = None;
        self.bodiless = head::is_bodiless(method, head.status);
        self.body = body;
        if let Some(opening) = opening.filter(|_| (200..300).contains(&head.status)) {
            return Ok(Received::Switched(with_accept(head, opening)));
        }
        Ok(Received::Final(head))
    }

    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Piece, Error> {
        let Some(body) = &mut self.body else { return Err(Error::Closed) };
        let next = body.data().await;
        match next {
            // The library takes such content for a response's own (RFC 9113 section 8.1.1); behind the
            // head of HTTP/1.1 it would be the next response.
            Some(Ok(piece)) if self.bodiless && !piece.is_empty() => Err(Error::Stream),
            Some(Ok(piece)) => {
                if let Err(error) = body.flow_control().release_capacity(piece.len()) {
                    return Err(self.error(&error));
                }
                Ok(Piece::Data(piece))
            }
            Some(Err(error)) => Err(self.error(&error)),
            None => match body.trailers().await {
                Ok(trailers) => {
                    let trailers = trailers.as_ref().map(from_map).unwrap_or_default();
                    if self.listened.as_ref().is_some_and(Listened::has_long_block) {
                        return Err(Error::Content(body::Fault::TrailerTooLong));
                    }
                    if let Some(fault) = trailers.fault_in_frames(0) {
                        return Err(Error::Content(body::Fault::of_trailers(fault)));
                    }
                    Ok(Piece::End(Completion::EndStream, trailers))
                }
                Err(error) => Err(self.error(&error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::exchange::Link;
    use journal::contract::PeerIdentity;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// C-6: after a GOAWAY no stream can be opened any more, so that a request that was to open one was not
    /// processed; that is known at once.
    #[tokio::test]
    async fn c_6_a_goaway_before_the_stream_is_opened() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        tokio::spawn(async move {
            let mut origin = h2::server::handshake(far).await.expect("handshake");
            origin.graceful_shutdown();
            while origin.accept().await.is_some() {}
        });
        let identity = PeerIdentity::Unverified;
        let peer = Peer { connection: 1, address, identity, reused: true };
        let begun = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await;
        let place = begun.expect("begun");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while !place.connection().is_over() {
            assert!(tokio::time::Instant::now() < until, "no GOAWAY came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (mut sender, mut receiver) = place.exchange();
        let head = Zeroizing::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        assert!(sender.head(head, Framing::Empty, &[]).await.is_err());
        let answer =
            tokio::time::timeout(Duration::from_secs(20), receiver.head("GET", None)).await;
        assert!(matches!(answer.expect("at once"), Err(Error::NotProcessed)));
    }

    /// D-1, C-6: where the origin takes no stream any more, nothing of a request is handed to the library, which
    /// would keep it; that nothing was sent is known at once.
    #[tokio::test]
    async fn c_6_no_stream_is_free_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (mut far, _) = listener.accept().await.expect("far");
        let identity = PeerIdentity::Unverified;
        let peer = Peer { connection: 1, address, identity, reused: true };
        let place = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await.expect("begun");
        assert!(place.connection().place().is_none(), "its settings are not known yet");
        // SETTINGS_MAX_CONCURRENT_STREAMS with the value 0.
        far.write_all(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]).await.expect("settings");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while place.connection().send.current_max_send_streams() != 0 {
            assert!(tokio::time::Instant::now() < until, "no settings came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let connection = place.connection().clone();
        let (mut sender, mut receiver) = place.exchange();
        let head = Zeroizing::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        let sent = sender.head(head, Framing::Empty, &[]).await;
        assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::QuotaExceeded));
        let answer =
            tokio::time::timeout(Duration::from_secs(20), receiver.head("GET", None)).await;
        assert!(matches!(answer.expect("at once"), Err(Error::Unsent)));
        assert_eq!(connection.facts.places_taken(), 1);
        drop((sender, receiver));
        assert_eq!(connection.facts.places_taken(), 0);
        // Nothing but the preface, settings and their acknowledgement went out.
        drop(connection);
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), far.read_to_end(&mut all)).await;
        read.expect("in time").expect("read");
        let mut begun = Vec::new();
        Frames::of_client().see(&all, |seen| begun.push(seen));
        assert!(begun.iter().all(|seen| !matches!(seen, Seen::Begun(_))), "{begun:?}");
        assert!(begun.contains(&Seen::Ack), "{begun:?}");
    }

    /// D-2: a request is complete when its last frame was handed to the transport, and not when the library
    /// has taken it.
    #[tokio::test]
    async fn d_2_the_end_of_a_request_is_its_last_frame() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        let served = tokio::spawn(async move {
            let mut origin = h2::server::handshake(far).await.expect("handshake");
            let (request, _respond) = origin.accept().await.expect("open").expect("a request");
            let mut content = request.into_body();
            let all = async { while content.data().await.is_some() {} };
            // The connection has to be driven for its streams to go on.
            tokio::select! { () = all => content.is_end_stream(), _ = origin.accept() => false }
        });
        let peer =
            Peer { connection: 1, address, identity: PeerIdentity::Unverified, reused: false };
        let begun = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await;
        let (mut sender, _receiver) = begun.expect("begun").exchange();
        let head = Zeroizing::new(b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        sender.head(head, Framing::Chunked, &[Bytes::from_static(b"abc")]).await.expect("head");
        let none = Fields::default();
        {
            // Nothing else runs meanwhile: the frames are in the library.
            let finish = sender.finish(&none);
            tokio::pin!(finish);
            assert!(futures::poll!(finish.as_mut()).is_pending());
            let finished = tokio::time::timeout(Duration::from_secs(20), finish).await;
            finished.expect("in time").expect("the end left");
        }
        assert!(served.await.expect("served"));
        assert!(sender.facts.ended.is_empty());
    }
}
