//! The two sides of an exchange on a stream: its request as frames, and the response to it.

use super::super::exchange::{Error, Piece, Received};
use super::super::facts::{Facts, Listened, Taken};
use crate::body;
use crate::head::{self, Fields, Framing, Version};
use crate::http2::raw::{Reading, Writing, failed};
use crate::http2::{from_map, to_map};
use crate::request::is_upgrade;
use crate::websocket::{self, Opening};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use journal::contract::Completion;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

/// The two sides of one exchange, which has a place on its connection.
pub(super) fn pair(
    send: SendRequest<Bytes>,
    facts: Arc<Facts>,
    taken: Taken,
) -> (Sender, Receiver) {
    let (tell, told) = oneshot::channel();
    let taken = Arc::new(taken);
    let sender = Sender {
        send: Some(send),
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
pub(in crate::upstream) fn fault(head: &[u8]) -> Option<head::Fault> {
    request(head).err()
}

impl Sender {
    pub(in crate::upstream) async fn head(
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

    pub(in crate::upstream) async fn content(&mut self, piece: &[u8]) -> io::Result<()> {
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

    pub(in crate::upstream) async fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
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
pub(in crate::upstream) fn into_rest(
    sender: Sender,
    receiver: Receiver,
) -> Option<(Rest, Writing)> {
    let mut sender = sender;
    let writing = Writing::new(sender.stream.take()?);
    let reading = Reading::new(receiver.body?);
    Some((Rest { reading, _taken: Arc::clone(&sender.taken) }, writing))
}

/// What comes on such a stream, which keeps its place.
pub(in crate::upstream) struct Rest {
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
        if let Some(alert) = self.facts.refused.get() {
            return Error::Certificate(*alert);
        }
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

    /// The exchange is given up, after its time to wait.
    pub(in crate::upstream) fn waited_in_vain(&self) {
        if let Some(listened) = &self.listened {
            listened.waited_in_vain();
        }
    }

    /// Whether the origin said that it wants HTTP/1.1.
    pub(in crate::upstream) fn is_http11_required(&self) -> bool {
        self.facts.http11_required.load(Ordering::Acquire)
    }

    /// Cancel-safe.
    pub(in crate::upstream) async fn head(
        &mut self,
        method: &str,
        opening: Option<&Opening>,
    ) -> Result<Received, Error> {
        if let Some(told) = &mut self.told {
            // A stream that could not be opened any more lies above whatever a GOAWAY names. Without one it
            // is as certain: the library has nothing of the request.
            let going_away = &self.facts.going_away;
            let refused = &self.facts.refused;
            let unopened = |_| match (refused.get(), going_away.load(Ordering::Acquire)) {
                (Some(alert), _) => Error::Certificate(*alert),
                (None, true) => Error::NotProcessed,
                (None, false) => Error::Unsent,
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
            return if opening.covers(&head) {
                Ok(Received::Switched(with_accept(head, opening)))
            } else {
                Err(Error::Upgrade)
            };
        }
        Ok(Received::Final(head))
    }

    /// Cancel-safe.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Piece, Error> {
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
