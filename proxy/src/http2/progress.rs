//! What of a caller's HTTP/2 connection arrived: the end of each stream is followed from its frame
//! through TLS to the acknowledgement of the caller's host (contract R-5).

use crate::deliver::unacknowledged;
use crate::http2::frames::{Frames, Seen};
use crate::stream::Rewound;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

/// How far a stream's end came.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Open,
    /// Its head left.
    Begun,
    /// In the buffers of TLS, perhaps.
    Written,
    /// Handed to TCP, which stood at this many bytes then.
    Flushed(u64),
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Bytes handed to TCP.
    written: Arc<AtomicU64>,
    /// Whether these are TCP's own bytes. Below more TLS, only an empty queue says something.
    exact: bool,
    fd: OwnedFd,
    streams: Mutex<HashMap<u32, Sent>>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Sent>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a stream from now on.
    pub(crate) fn follow(&self, id: u32) {
        self.lock().insert(id, Sent::Open);
    }

    /// Follows it no more.
    pub(crate) fn forget(&self, id: u32) {
        self.lock().remove(&id);
    }

    /// Whether the stream's head left.
    pub(crate) fn has_begun(&self, id: u32) -> bool {
        !matches!(self.lock().get(&id), Some(Sent::Open))
    }

    /// Whether the caller's host acknowledged everything up to the stream's end.
    pub(crate) fn is_acknowledged(&self, id: u32) -> io::Result<bool> {
        rustix::net::sockopt::socket_error(&self.fd)??;
        let Some(Sent::Flushed(position)) = self.lock().get(&id).copied() else {
            return Ok(false);
        };
        let open = u64::try_from(unacknowledged(self.fd.as_fd())?).unwrap_or(u64::MAX);
        if !self.exact {
            return Ok(open == 0);
        }
        Ok(self.written.load(Ordering::Acquire).saturating_sub(open) >= position)
    }
}

/// The connection's transport, watched.
pub(crate) struct Watched {
    tls: TlsStream<Rewound>,
    frames: Frames,
    progress: Arc<Progress>,
}

impl Watched {
    /// # Errors
    /// The descriptor can't be duplicated.
    pub(crate) fn new(tls: TlsStream<Rewound>) -> io::Result<Self> {
        let rewound = tls.get_ref().0;
        let exact = rewound.is_exact();
        let (fd, written) = (rewound.as_fd().try_clone_to_owned()?, rewound.written());
        let progress = Arc::new(Progress { written, exact, fd, streams: Mutex::default() });
        Ok(Self { tls, frames: Frames::default(), progress })
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = ready!(Pin::new(&mut this.tls).poll_write(cx, buf))?;
        let progress = &this.progress;
        this.frames.see(buf.get(..length).unwrap_or_default(), |seen| {
            let (id, to) = match seen {
                Seen::Headers(id) => (id, Sent::Begun),
                Seen::EndStream(id) => (id, Sent::Written),
                Seen::GoAway(_) => return,
            };
            if let Some(sent) = progress.lock().get_mut(&id) {
                *sent = to;
            }
        });
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.tls).poll_flush(cx))?;
        let position = this.progress.written.load(Ordering::Acquire);
        for sent in this.progress.lock().values_mut() {
            if matches!(sent, Sent::Written) {
                *sent = Sent::Flushed(position);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
