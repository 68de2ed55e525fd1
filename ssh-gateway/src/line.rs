//! The client's TCP connection as the engine sees it: it can be cut from outside, and it is read
//! more slowly the more stdin waits for slow targets.
//!
//! The SSH engine gives the client new window on receipt, whatever happens to the bytes, so flow
//! control has to act below it. Slowing the socket leaves the engine free to write, so output,
//! window and keepalives go on.

use crate::algorithms::WINDOW_BYTES;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that a slowed reader takes per pause.
const STEP_BYTES: usize = 32 << 10;
/// The share of the spool, one in so many, that fills before reading slows down.
const FREE_SHARE: usize = 16;
/// The window of a client whose stdin waits: two of the largest packets that OpenSSH sends.
const SLOW_WINDOW_BYTES: u32 = 64 << 10;
/// The longest pause per step: at a full spool 256 KiB a second still come in, so that a client
/// that goes away, grants window or starts something else is heard.
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// What everything on one client connection shares.
#[derive(Debug)]
pub(crate) struct Line {
    cut: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    received_bytes: AtomicU64,
    spooled_bytes: AtomicUsize,
    spool_limit_bytes: usize,
}

impl Line {
    pub(crate) fn new(spool_limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            cut: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            received_bytes: AtomicU64::new(0),
            spooled_bytes: AtomicUsize::new(0),
            spool_limit_bytes,
        })
    }

    /// Ends the connection: the engine reads its end and can't write.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.reader.wake();
        self.writer.wake();
    }

    /// Bytes that came so far, of whatever kind.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Acquire)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Counts bytes of stdin that wait; false when even the reserve is used up.
    #[must_use]
    pub(crate) fn spool(&self, length_bytes: usize) -> bool {
        let before = self.spooled_bytes.fetch_add(length_bytes, Ordering::AcqRel);
        before.saturating_add(length_bytes) <= self.spool_limit_bytes.saturating_mul(2)
    }

    pub(crate) fn unspool(&self, length_bytes: usize) {
        self.spooled_bytes.fetch_sub(length_bytes, Ordering::AcqRel);
    }

    /// The window to grant a client on its channels. While stdin waits it is small, so that little
    /// is ahead of the client's own grants of window: without that, a command that answers as it
    /// reads would slow its own output down to the speed of a full spool.
    pub(crate) fn window(&self) -> u32 {
        let spooled = self.spooled_bytes.load(Ordering::Acquire);
        if spooled <= self.spool_limit_bytes.max(1) / FREE_SHARE {
            WINDOW_BYTES
        } else {
            SLOW_WINDOW_BYTES
        }
    }

    /// The pause after `read_bytes` were read: none below a share of the limit, then doubling seven
    /// times up to [`PAUSE_MAX`] per step.
    fn pause(&self, read_bytes: usize) -> Option<Duration> {
        let spooled = self.spooled_bytes.load(Ordering::Acquire);
        let limit = self.spool_limit_bytes.max(1);
        if spooled <= limit / FREE_SHARE || read_bytes == 0 {
            return None;
        }
        let doublings = spooled.min(limit).saturating_mul(7) / limit;
        let step = Duration::from_millis(1 << doublings).min(PAUSE_MAX);
        Some(step.mul_f64(read_bytes as f64 / STEP_BYTES as f64))
    }
}

/// The byte stream of a [`Line`].
pub(crate) struct Stream<S> {
    inner: S,
    line: Arc<Line>,
    pause: Pin<Box<Sleep>>,
    paused: bool,
}

impl<S> Stream<S> {
    pub(crate) fn new(inner: S, line: Arc<Line>) -> Self {
        Self { inner, line, pause: Box::pin(tokio::time::sleep(Duration::ZERO)), paused: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.line.reader.register(cx.waker());
        if self.line.is_cut() {
            return Poll::Ready(Ok(()));
        }
        if self.paused {
            ready!(self.pause.as_mut().poll(cx));
            self.paused = false;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let read_bytes = buf.filled().len().saturating_sub(before);
        self.line.received_bytes.fetch_add(read_bytes as u64, Ordering::AcqRel);
        if let Some(pause) = self.line.pause(read_bytes) {
            self.pause.as_mut().reset(Instant::now() + pause);
            self.paused = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.line.writer.register(cx.waker());
        if self.line.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.writer.register(cx.waker());
        if self.line.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn reading_slows_down_as_stdin_waits() {
        let line = Line::new(32 << 20);
        assert_eq!(line.pause(STEP_BYTES), None);
        assert!(line.spool(2 << 20));
        assert_eq!(line.pause(STEP_BYTES), None);
        assert!(line.spool(14 << 20));
        assert_eq!(line.pause(STEP_BYTES), Some(Duration::from_millis(8)));
        assert_eq!(line.window(), SLOW_WINDOW_BYTES);
        assert!(line.spool(48 << 20));
        assert_eq!(line.pause(STEP_BYTES), Some(PAUSE_MAX));
        assert!(!line.spool(1));
        line.unspool((64 << 20) + 1);
        assert_eq!(line.window(), WINDOW_BYTES);
        assert_eq!(line.pause(STEP_BYTES), None);
    }

    #[tokio::test]
    async fn a_cut_line_wakes_its_reader() {
        let (near, _far) = tokio::io::duplex(64);
        let line = Line::new(1 << 20);
        let mut stream = Stream::new(near, Arc::clone(&line));
        let reader = tokio::spawn(async move {
            let mut byte = [0; 1];
            let read = stream.read(&mut byte).await.unwrap();
            (read, stream.write(b"x").await.is_err())
        });
        tokio::task::yield_now().await;
        line.cut();
        let ended = tokio::time::timeout(Duration::from_secs(5), reader).await;
        assert_eq!(ended.unwrap().unwrap(), (0, true));
    }
}
