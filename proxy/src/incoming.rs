//! The content of a request, read through a pingora session.
//!
//! The head was judged already ([`crate::head`]); the session gets a head of ours that says nothing
//! but the framing, so that both can't disagree about where the content ends.

use crate::head::{Fields, Framing};
use crate::http2::frames::LongBlocks;
use crate::http2::from_map;
use crate::http2::raw::Reading;
use crate::stream::{Chunks, Inbound};
use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use journal::contract::Digest;
use pingora_core::protocols::http::ServerSession;
use sha2::{Digest as _, Sha256};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::task::consume_budget;
use tokio::time::timeout;

/// Pause inside content where nothing else is said.
pub(crate) const CONTENT_PAUSE: Duration = Duration::from_secs(60);

/// Why the content did not come in whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The chunk framing is malformed.
    #[error("the content's framing is malformed")]
    Malformed,
    /// The caller went away.
    #[error("the caller's connection ended inside the content")]
    Gone,
    /// The caller stopped sending.
    #[error("the caller stopped sending")]
    Stalled,
}

impl From<Box<pingora_error::Error>> for Error {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
    fn from(error: Box<pingora_error::Error>) -> Self {
        use pingora_error::ErrorType::{ConnectionClosed, ReadError, ReadTimedout};
        match error.etype() {
            ReadTimedout => Self::Stalled,
            ConnectionClosed | ReadError => Self::Gone,
            _ => Self::Malformed,
        }
    }
}

enum Source {
    /// Read to its end, or there was none: the connection stands at the next request.
    Ended(Inbound),
    Open(Box<ServerSession>),
    /// A stream of an HTTP/2 connection.
    Stream(Box<RecvStream>, LongBlocks),
    StreamEnded,
    /// A stream that is no content, but what comes behind its head.
    Tunnel(Box<RecvStream>),
    /// Content that was stored, not yet read.
    Stored(Bytes),
    /// The session could not be begun.
    Lost,
}

/// The content of one request.
pub(crate) struct Incoming {
    source: Source,
    declared: Option<u64>,
    length: u64,
    digest: Sha256,
    /// The chunks that the session reads.
    chunks: Option<Chunks>,
    trailers: Fields,
    /// How long the caller may pause; of a session, it keeps its own.
    idle: Duration,
    /// Whether the caller was asked for it.
    asked: bool,
}

impl Incoming {
    /// Begins reading content of the framing from the connection.
    pub(crate) async fn begin(
        mut inbound: Inbound,
        framing: Framing,
        idle: Duration,
    ) -> Result<Self, Error> {
        let head = match framing {
            Framing::Empty | Framing::Close | Framing::Length(0) => {
                return Ok(Self::new(Source::Ended(inbound), Some(0)));
            }
            Framing::Length(length) => {
                format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n")
            }
            Framing::Chunked => {
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()
            }
        };
        let declared = match framing {
            Framing::Length(length) => Some(length),
            Framing::Empty | Framing::Close | Framing::Chunked => None,
        };
        let chunks = declared.is_none().then(|| inbound.rechunk(head.as_bytes()));
        if chunks.is_none() {
            let mut buffer = BytesMut::with_capacity(head.len() + inbound.buffer.len());
            buffer.extend_from_slice(head.as_bytes());
            buffer.extend_from_slice(&inbound.buffer);
            inbound.buffer = buffer;
        }
        let mut session = ServerSession::new_http1(Box::new(inbound));
        if !session.read_request().await? {
            return Err(Error::Gone);
        }
        session.set_read_timeout(Some(idle));
        if let ServerSession::H1(h1) = &mut session {
            h1.set_pipelining_enabled(true);
        }
        Ok(Self { chunks, ..Self::new(Source::Open(Box::new(session)), declared) })
    }

    /// The content of a stream.
    pub(crate) fn stream(content: RecvStream, framing: Framing, long: LongBlocks) -> Self {
        let declared = match framing {
            Framing::Length(length) => Some(length),
            Framing::Empty => Some(0),
            Framing::Close | Framing::Chunked => None,
        };
        let ended = content.is_end_stream();
        let source = match ended {
            true => Source::StreamEnded,
            false => Source::Stream(Box::new(content), long),
        };
        Self::new(source, declared)
    }

    /// No content: the stream belongs to what the request opens.
    pub(crate) fn tunnel(stream: RecvStream) -> Self {
        Self::new(Source::Tunnel(Box::new(stream)), Some(0))
    }

    /// Content that was stored earlier.
    pub(crate) fn stored(content: Bytes) -> Self {
        let declared = Some(content.len() as u64);
        let source = if content.is_empty() { Source::StreamEnded } else { Source::Stored(content) };
        Self::new(source, declared)
    }

    fn new(source: Source, declared: Option<u64>) -> Self {
        let (chunks, trailers) = (None, Fields::default());
        let (length, digest, idle) = (0, Sha256::new(), CONTENT_PAUSE);
        Self { source, declared, length, digest, chunks, trailers, idle, asked: false }
    }

    /// How long the caller may pause inside its content from now on.
    pub(crate) fn set_idle(&mut self, idle: Duration) {
        self.idle = idle;
        if let Source::Open(session) = &mut self.source {
            session.set_read_timeout(Some(idle));
        }
    }

    /// The declared length; none for chunks.
    pub(crate) const fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// Whether the caller is still to be asked for it; after this it was.
    pub(crate) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true) && !self.is_ended()
    }

    /// Whether nothing is left to read.
    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.source, Source::Ended(_) | Source::StreamEnded | Source::Tunnel(_))
    }

    /// Content bytes read so far.
    pub(crate) const fn length(&self) -> u64 {
        self.length
    }

    /// Content bytes read so far, and their digest.
    pub(crate) fn so_far(&self) -> (u64, Digest) {
        (self.length, Digest(self.digest.clone().finalize().into()))
    }

    /// The trailer section, once the content ended.
    pub(crate) const fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// The next piece, or `None` at the proven end. However small the pieces are that came together,
    /// others get their turn between them. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        consume_budget().await;
        loop {
            let session = match &mut self.source {
                Source::Open(session) => session,
                Source::Stream(..) => return self.next_of_stream().await,
                Source::Stored(content) => {
                    let content = std::mem::take(content);
                    self.source = Source::StreamEnded;
                    self.length += content.len() as u64;
                    self.digest.update(&content);
                    return Ok(Some(content));
                }
                Source::Ended(_) | Source::StreamEnded | Source::Tunnel(_) | Source::Lost => {
                    return Ok(None);
                }
            };
            let malformed = |chunks: &Option<Chunks>| {
                matches!(chunks.as_ref().and_then(Chunks::end), Some(Err(_)))
            };
            if malformed(&self.chunks) {
                return Err(Error::Malformed);
            }
            let read = session.read_request_body().await;
            if malformed(&self.chunks) {
                return Err(Error::Malformed);
            }
            match read? {
                Some(piece) if piece.is_empty() => {}
                Some(piece) => {
                    self.length += piece.len() as u64;
                    self.digest.update(&piece);
                    return Ok(Some(piece));
                }
                None => {
                    self.end().await?;
                    return Ok(None);
                }
            }
        }
    }

    /// As [`Incoming::next`], from frames.
    async fn next_of_stream(&mut self) -> Result<Option<Bytes>, Error> {
        let Source::Stream(stream, long) = &mut self.source else { return Ok(None) };
        loop {
            let read = timeout(self.idle, stream.data()).await.map_err(|_| Error::Stalled)?;
            match read {
                Some(Ok(piece)) => {
                    let released = stream.flow_control().release_capacity(piece.len());
                    released.map_err(|_| Error::Gone)?;
                    if piece.is_empty() {
                        continue;
                    }
                    self.length += piece.len() as u64;
                    self.digest.update(&piece);
                    return Ok(Some(piece));
                }
                Some(Err(error)) if error.is_library() => return Err(Error::Malformed),
                Some(Err(_)) => return Err(Error::Gone),
                None => {
                    let trailers = timeout(self.idle, stream.trailers()).await;
                    let trailers =
                        trailers.map_err(|_| Error::Stalled)?.map_err(|_| Error::Gone)?;
                    self.trailers = trailers.as_ref().map(from_map).unwrap_or_default();
                    let long = long.has(stream.stream_id().as_u32());
                    self.source = Source::StreamEnded;
                    if long || self.trailers.fault_in_frames(0).is_some() {
                        return Err(Error::Malformed);
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Takes the connection back from the session after its proven end. Awaits nothing that pends:
    /// the content is read already.
    async fn end(&mut self) -> Result<(), Error> {
        let Source::Open(session) = std::mem::replace(&mut self.source, Source::Lost) else {
            return Ok(());
        };
        let ServerSession::H1(h1) = *session else { return Err(Error::Gone) };
        let (stream, rest) = h1.reuse().await?.ok_or(Error::Gone)?.into_parts();
        let mut inbound = stream.into_any().downcast::<Inbound>().map_err(|_| Error::Gone)?;
        if let Some(mut rest) = rest {
            rest.unsplit(std::mem::take(&mut inbound.buffer));
            inbound.buffer = rest;
        }
        inbound.read_plain();
        if let Some(chunks) = self.chunks.take() {
            let end = chunks.end().ok_or(Error::Malformed)?;
            self.trailers = end.map_err(|_| Error::Malformed)?;
        }
        self.source = Source::Ended(*inbound);
        Ok(())
    }

    /// What comes behind the request, if its content was read to its end. No content can be read
    /// after that.
    pub(crate) fn take_rest(&mut self) -> Option<Box<dyn AsyncRead + Send + Unpin>> {
        match std::mem::replace(&mut self.source, Source::Lost) {
            Source::Ended(inbound) => Some(Box::new(inbound)),
            Source::Tunnel(stream) => Some(Box::new(Reading::new(*stream))),
            Source::Open(_)
            | Source::Stream(..)
            | Source::Stored(_)
            | Source::StreamEnded
            | Source::Lost => None,
        }
    }

    /// The connection at the next request, if the content was read to its end.
    pub(crate) fn into_inbound(self) -> Option<Inbound> {
        match self.source {
            Source::Ended(inbound) => Some(inbound),
            Source::Open(_)
            | Source::Stream(..)
            | Source::Tunnel(_)
            | Source::Stored(_)
            | Source::StreamEnded
            | Source::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::Carrier;
    use crate::stream::{Link, Shared, Wire};
    use tokio::net::{TcpListener, TcpStream};

    /// Chunks of a byte that came together do not keep the thread: others get their turn after a bounded
    /// number, and nothing of them is lost.
    #[tokio::test]
    async fn small_chunks_leave_others_their_turn() {
        const CHUNKS: usize = 20_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let tcp = TcpStream::connect(address).await.expect("connect");
        let mut inbound = Inbound::new(Shared::new(Wire::Plain(Link::Plain(Carrier::Tcp(tcp)))));
        let chunks = [b"1\r\nx\r\n".repeat(CHUNKS), b"0\r\n\r\n".to_vec()].concat();
        inbound.buffer.extend_from_slice(&chunks);
        let incoming = Incoming::begin(inbound, Framing::Chunked, CONTENT_PAUSE).await;
        let mut incoming = incoming.expect("begun");
        {
            let all = async { while incoming.next().await.expect("well-formed").is_some() {} };
            tokio::pin!(all);
            assert!(futures::poll!(all.as_mut()).is_pending(), "all was read in one turn");
            timeout(CONTENT_PAUSE, all).await.expect("in time");
        }
        assert_eq!((incoming.length(), incoming.is_ended()), (CHUNKS as u64, true));
    }
}
