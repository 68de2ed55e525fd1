//! What carries a caller's connection: TCP, or a stream of an HTTP/2 connection that the caller has with
//! this proxy (RFC 9113 section 8.5), and how far it can be followed that bytes arrived.

use crate::deliver::unacknowledged;
use crate::http2::progress::Progress;
use crate::http2::raw::Writing;
use crate::unread::has_ended;
use futures::FutureExt as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A stream that an accepted CONNECT left open.
pub(crate) struct Stream {
    reading: Box<dyn AsyncRead + Send + Unpin>,
    writing: Writing,
    id: u32,
    progress: Arc<Progress>,
    /// Bytes that the stream took.
    taken: u64,
}

impl Stream {
    pub(crate) fn new(
        reading: Box<dyn AsyncRead + Send + Unpin>,
        writing: Writing,
        id: u32,
        progress: Arc<Progress>,
    ) -> Self {
        progress.carry(id);
        Self { reading, writing, id, progress, taken: 0 }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.progress.carry_no_more(self.id);
    }
}

/// What carries a connection.
pub(crate) enum Carrier {
    Tcp(TcpStream),
    Stream(Box<Stream>),
}

impl Carrier {
    /// A descriptor that belongs to it.
    pub(crate) fn id(&self) -> RawFd {
        match self {
            Self::Tcp(tcp) => tcp.as_raw_fd(),
            Self::Stream(stream) => stream.progress.id(),
        }
    }

    /// Makes the caller see the end as a break.
    pub(crate) fn abort(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_zero_linger(),
            Self::Stream(stream) => {
                stream.writing.reset();
                Ok(())
            }
        }
    }

    /// Ends it at once, both ways and without an orderly end of what it carries.
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        self.abort()?;
        match self {
            Self::Tcp(tcp) => Ok(rustix::net::shutdown(tcp, rustix::net::Shutdown::Both)?),
            // The reset of a stream is all that there is to it.
            Self::Stream(_) => Ok(()),
        }
    }

    /// Whether the caller's host acknowledged every byte.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(tcp) => all_acknowledged(tcp),
            Self::Stream(stream) => {
                stream.progress.carried(stream.id).map(|arrived| arrived >= stream.taken)
            }
        }
    }

    /// Whether the caller is gone; `by_end`: the end of its own side is enough.
    pub(crate) fn has_left(&mut self, by_end: bool) -> bool {
        match self {
            Self::Tcp(tcp) => is_closed(tcp, by_end),
            Self::Stream(stream) => stream.writing.has_left(),
        }
    }

    /// How an HTTP/2 connection above follows its bytes.
    pub(crate) fn below(&self) -> io::Result<Below> {
        match self {
            Self::Tcp(tcp) => Below::tcp(tcp, true),
            Self::Stream(stream) => {
                Ok(Below::Stream { progress: Arc::clone(&stream.progress), id: stream.id })
            }
        }
    }
}

/// Whether the connection is closed in both directions, as after a reset; `by_end`: the peer's alone is
/// enough, whatever it sent before that and nobody read.
pub(crate) fn is_closed(tcp: &TcpStream, by_end: bool) -> bool {
    let interest = Interest::READABLE | Interest::WRITABLE;
    match tcp.ready(interest).now_or_never() {
        Some(Ok(ready)) => ready.is_read_closed() && (by_end || ready.is_write_closed()),
        Some(Err(_)) => true,
        None => false,
    }
}

/// Whether nothing is on its way, and nothing broke.
pub(crate) fn all_acknowledged(tcp: &TcpStream) -> io::Result<bool> {
    if let Some(error) = tcp.take_error()? {
        return Err(error);
    }
    unacknowledged(tcp).map(|bytes| bytes == 0)
}

impl AsyncRead for Carrier {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Stream(stream) => Pin::new(&mut stream.reading).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Stream(stream) => {
                let length = ready!(Pin::new(&mut stream.writing).poll_write(cx, buf))?;
                stream.taken += length as u64;
                Poll::Ready(Ok(length))
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            // One write after the other: a stream copies each into a frame.
            stream @ Self::Stream(_) => {
                let first = bufs.iter().find(|buf| !buf.is_empty());
                Pin::new(stream).poll_write(cx, first.map_or(&[], |buf| buf))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_write_vectored(),
            Self::Stream(_) => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Stream(stream) => Pin::new(&mut stream.writing).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Stream(stream) => Pin::new(&mut stream.writing).poll_shutdown(cx),
        }
    }
}

/// What lies below an HTTP/2 connection, as far as it says what arrived.
#[derive(Debug)]
pub(crate) enum Below {
    /// `exact`: the connection's bytes are TCP's own. Below more TLS, only an empty queue says
    /// something.
    Tcp { fd: OwnedFd, exact: bool },
    /// A stream of another HTTP/2 connection.
    Stream { progress: Arc<Progress>, id: u32 },
    /// Nothing any more.
    Gone { arrived: u64 },
}

impl Below {
    /// # Errors
    /// The descriptor can't be duplicated.
    pub(crate) fn tcp(tcp: impl AsFd, exact: bool) -> io::Result<Self> {
        Ok(Self::Tcp { fd: tcp.as_fd().try_clone_to_owned()?, exact })
    }

    /// How many of so many `written` bytes the caller's host acknowledged, as far as that is known.
    pub(crate) fn arrived(&self, written: u64) -> io::Result<u64> {
        match self {
            Self::Tcp { fd, exact } => {
                rustix::net::sockopt::socket_error(fd)??;
                let open = u64::try_from(unacknowledged(fd.as_fd())?).unwrap_or(u64::MAX);
                Ok(match (*exact, open) {
                    (true, open) => written.saturating_sub(open),
                    (false, 0) => written,
                    (false, _) => 0,
                })
            }
            Self::Stream { progress, id } => progress.carried(*id),
            Self::Gone { arrived } => Ok(*arrived),
        }
    }

    /// Whether the connection has ended, heard of or not; unknown of a stream.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Tcp { fd, .. } => has_ended(fd),
            Self::Stream { .. } | Self::Gone { .. } => false,
        }
    }

    pub(crate) fn id(&self) -> RawFd {
        match self {
            Self::Tcp { fd, .. } => fd.as_raw_fd(),
            Self::Stream { progress, .. } => progress.id(),
            Self::Gone { .. } => -1,
        }
    }
}
