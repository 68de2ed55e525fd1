//! The caller's connection as a transport: one socket, read and written at the same time, that can
//! be handed to a pingora session for reading and taken back.
//!
//! Pingora never writes to it: response heads and content are ours (its session would replace
//! `Date` and has no trailers), so the write side that it sees refuses.

use crate::body::{self, Decoder, Step};
use crate::carrier::{Below, Carrier, all_acknowledged, is_closed};
use crate::deliver;
use crate::head::{Fields, Framing};
use crate::unread::has_ended;
use async_trait::async_trait;
use bytes::BytesMut;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// One connection shared by its reader and its writer.
pub(crate) struct Shared<W>(Arc<Mutex<W>>);

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W> Shared<W> {
    pub(crate) fn new(wire: W) -> Self {
        Self(Arc::new(Mutex::new(wire)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that does not keep it.
    pub(crate) fn downgrade(&self) -> WeakShared<W> {
        WeakShared(Arc::downgrade(&self.0))
    }

    /// The connection back, if this is the last handle on it.
    pub(crate) fn into_inner(self) -> Option<W> {
        let mutex = Arc::try_unwrap(self.0).ok()?;
        Some(mutex.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A handle on a connection that does not keep it.
pub(crate) struct WeakShared<W>(Weak<Mutex<W>>);

impl<W> Clone for WeakShared<W> {
    fn clone(&self) -> Self {
        Self(Weak::clone(&self.0))
    }
}

impl<W> WeakShared<W> {
    /// The connection, if it is there.
    pub(crate) fn upgrade(&self) -> Option<Shared<W>> {
        self.0.upgrade().map(Shared)
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Shared<W> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(cx, buf)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Shared<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(cx)
    }
}

/// A connection with bytes that were read from it too early (a ClientHello right after CONNECT).
pub(crate) struct Rewound {
    link: Link,
    prefix: BytesMut,
    /// Bytes written so far.
    written: Arc<AtomicU64>,
}

impl Rewound {
    /// The count of bytes written, which goes on counting.
    pub(crate) fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    /// How an HTTP/2 connection above follows its bytes.
    pub(crate) fn below(&self) -> io::Result<Below> {
        match &self.link {
            Link::Plain(carrier) => carrier.below(),
            Link::Tls(tls) => Below::tcp(tls.get_ref().0, false),
        }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if take_prefix(&mut self.prefix, buf) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.link).poll_read(cx, buf)
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let length = ready!(Pin::new(&mut self.link).poll_write(cx, buf))?;
        self.written.fetch_add(length as u64, Ordering::AcqRel);
        Poll::Ready(Ok(length))
    }

    /// The records of one write leave in one call.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = ready!(Pin::new(&mut self.link).poll_write_vectored(cx, bufs))?;
        self.written.fetch_add(length as u64, Ordering::AcqRel);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        self.link.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

fn take_prefix(prefix: &mut BytesMut, buf: &mut ReadBuf<'_>) -> bool {
    if prefix.is_empty() {
        return false;
    }
    let length = prefix.len().min(buf.remaining());
    buf.put_slice(&prefix.split_to(length));
    if prefix.is_empty() {
        *prefix = BytesMut::new();
    }
    true
}

/// The caller's connection to this proxy; TLS where the listener speaks it.
pub(crate) type Link = crate::wire::Wire<Carrier, TlsStream<TcpStream>>;

/// The caller's connection: to this proxy, or inside an intercepted tunnel.
pub(crate) type Wire = crate::wire::Wire<Link, TlsStream<Rewound>>;

impl Wire {
    fn link(&self) -> &Link {
        match self {
            Self::Plain(link) => link,
            Self::Tls(tls) => &tls.get_ref().0.link,
        }
    }

    fn id(&self) -> RawFd {
        match self.link() {
            Link::Plain(carrier) => carrier.id(),
            Link::Tls(tls) => tls.get_ref().0.as_raw_fd(),
        }
    }

    /// Makes the caller see the end as a break.
    pub(crate) fn abort(&mut self) -> io::Result<()> {
        let link = match self {
            Self::Plain(link) => link,
            Self::Tls(tls) => &mut tls.get_mut().0.link,
        };
        match link {
            Link::Plain(carrier) => carrier.abort(),
            Link::Tls(tls) => tls.get_ref().0.set_zero_linger(),
        }
    }

    /// Ends the connection at once, both ways, with no word of TLS.
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        let link = match self {
            Self::Plain(link) => link,
            Self::Tls(tls) => &mut tls.get_mut().0.link,
        };
        match link {
            Link::Plain(carrier) => carrier.cut(),
            Link::Tls(tls) => {
                let tcp = tls.get_ref().0;
                tcp.set_zero_linger()?;
                Ok(rustix::net::shutdown(tcp, rustix::net::Shutdown::Both)?)
            }
        }
    }

    /// Whether the caller's host acknowledged every byte.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        match self.link() {
            Link::Plain(carrier) => carrier.is_acknowledged(),
            Link::Tls(tls) => all_acknowledged(tls.get_ref().0),
        }
    }

    /// Whether the caller is gone; `by_end`: the end of its own side is enough.
    pub(crate) fn has_left(&mut self, by_end: bool) -> bool {
        let link = match self {
            Self::Plain(link) => link,
            Self::Tls(tls) => &mut tls.get_mut().0.link,
        };
        match link {
            Link::Plain(carrier) => carrier.has_left(by_end),
            Link::Tls(tls) => is_closed(tls.get_ref().0, by_end),
        }
    }

    /// Whether it is a TCP connection of its own, and no stream of another one.
    pub(crate) fn is_tcp(&self) -> bool {
        match self.link() {
            Link::Plain(Carrier::Tcp(_)) | Link::Tls(_) => true,
            Link::Plain(Carrier::Stream(_)) => false,
        }
    }

    /// Whether the connection has ended, heard of or not; unknown of a stream.
    pub(crate) fn has_ended(&self) -> bool {
        match self.link() {
            Link::Plain(Carrier::Tcp(tcp)) => has_ended(tcp),
            Link::Tls(tls) => has_ended(tls.get_ref().0),
            Link::Plain(Carrier::Stream(_)) => false,
        }
    }

    /// Whether TLS ends on this host.
    pub(crate) fn is_tls(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::Plain(link) => match link {
                Link::Tls(_) => true,
                Link::Plain(_) => false,
            },
        }
    }

    /// The clear-text stream with what was read too early, to put TLS on it.
    pub(crate) fn rewind(self, prefix: BytesMut) -> Option<Rewound> {
        match self {
            Self::Plain(link) => Some(Rewound { link, prefix, written: Arc::default() }),
            Self::Tls(_) => None,
        }
    }
}

/// The reading half: what is buffered comes first.
pub(crate) struct Inbound {
    wire: Shared<Wire>,
    fd: RawFd,
    /// Bytes read and not yet used.
    pub(crate) buffer: BytesMut,
    /// What a session reads instead of what comes.
    chunks: Option<Chunks>,
}

impl Inbound {
    pub(crate) fn new(wire: Shared<Wire>) -> Self {
        let fd = wire.lock().id();
        Self { wire, fd, buffer: BytesMut::new(), chunks: None }
    }

    /// Gives a session chunks of ours to read, until they end, behind a head of its own.
    pub(crate) fn rechunk(&mut self, head: &[u8]) -> Chunks {
        let chunks = Chunks::behind(head);
        chunks.take(&mut self.buffer);
        self.chunks = Some(chunks.clone());
        chunks
    }

    /// Reads as it comes again.
    pub(crate) fn read_plain(&mut self) {
        self.chunks = None;
    }

    fn poll_rechunked(
        &mut self,
        chunks: &Chunks,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; 8 * 1024];
        while !chunks.give(buf)? {
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.wire).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                break;
            }
            self.buffer.extend_from_slice(read.filled());
            chunks.take(&mut self.buffer);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once into the buffer; 0 is the end of the stream. Cancel-safe.
    pub(crate) async fn fill(&mut self) -> io::Result<usize> {
        self.buffer.reserve(8 * 1024);
        self.wire.read_buf(&mut self.buffer).await
    }

    /// Gives up the reading half.
    pub(crate) fn into_buffer(self) -> BytesMut {
        self.buffer
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl AsyncRead for Inbound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(chunks) = self.chunks.clone() {
            return self.poll_rechunked(&chunks, cx, buf);
        }
        if take_prefix(&mut self.buffer, buf) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.wire).poll_read(cx, buf)
    }
}

/// Chunked content, read by the letter of [`Decoder`] and chunked anew for a session, which drops
/// trailers and takes fewer sizes than RFC 9112 section 7.1 has: so the two can't disagree about where
/// the content ends.
#[derive(Clone)]
pub(crate) struct Chunks(Arc<Mutex<Rechunked>>);

struct Rechunked {
    decoder: Decoder,
    /// What the session reads next.
    out: BytesMut,
    end: Option<Result<Fields, body::Fault>>,
}

impl Chunks {
    fn behind(head: &[u8]) -> Self {
        let (decoder, out) = (Decoder::from(Framing::Chunked), BytesMut::from(head));
        Self(Arc::new(Mutex::new(Rechunked { decoder, out, end: None })))
    }

    fn lock(&self) -> MutexGuard<'_, Rechunked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trailer section, or what is wrong; none before the end.
    pub(crate) fn end(&self) -> Option<Result<Fields, body::Fault>> {
        self.lock().end.clone()
    }

    /// Takes what belongs to the content, and leaves what is behind its end.
    fn take(&self, bytes: &mut BytesMut) {
        let mut guard = self.lock();
        let this = &mut *guard;
        while this.end.is_none() {
            match this.decoder.step(bytes) {
                Ok(Step::Data(data)) => {
                    this.out.extend_from_slice(&deliver::chunk_size(data.len()));
                    this.out.extend_from_slice(&data);
                    this.out.extend_from_slice(b"\r\n");
                }
                Ok(Step::More) => return,
                Ok(Step::End(_, trailers)) => {
                    this.out.extend_from_slice(b"0\r\n\r\n");
                    this.end = Some(Ok(trailers));
                }
                Err(fault) => this.end = Some(Err(fault)),
            }
        }
    }

    /// Fills the buffer with what is there; whether nothing more is to be read for it.
    ///
    /// # Errors
    /// When nothing is left before the fault in malformed content.
    fn give(&self, buf: &mut ReadBuf<'_>) -> io::Result<bool> {
        let mut this = self.lock();
        if take_prefix(&mut this.out, buf) {
            return Ok(true);
        }
        match this.end {
            Some(Err(_)) => Err(io::ErrorKind::InvalidData.into()),
            Some(Ok(_)) => Ok(true),
            None => Ok(false),
        }
    }
}

impl AsyncWrite for Inbound {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[async_trait]
impl Shutdown for Inbound {
    async fn shutdown(&mut self) {}
}

impl UniqueID for Inbound {
    fn id(&self) -> UniqueIDType {
        self.fd
    }
}

impl Ssl for Inbound {}

impl GetTimingDigest for Inbound {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for Inbound {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for Inbound {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

impl Peek for Inbound {}
