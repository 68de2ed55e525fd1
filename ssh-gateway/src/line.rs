//! The client's connection as the engine sees it: it can be cut from outside, and it can be read
//! more slowly.
//!
//! Flow control is by windows, channel by channel (see [`crate::windows`]). Reading pauses only to keep
//! the few bytes of starved channels from coming as fast as they can, where nothing else comes.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Bytes that are read ahead while a channel is being starved.
const AHEAD_BYTES: usize = 256 << 10;
/// Reads up to here can be the few bytes of starved channels.
const FEW_BYTES: usize = 4 << 10;
/// The pause after these.
const FEW_PAUSE: Duration = Duration::from_millis(10);
/// What everything on one client connection shares.
#[derive(Debug)]
pub(crate) struct Line {
    cut: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    received_bytes: AtomicU64,
    is_starving: AtomicBool,
    next_packet_bytes: AtomicU32,
}

impl Line {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            cut: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            received_bytes: AtomicU64::new(0),
            is_starving: AtomicBool::new(false),
            next_packet_bytes: AtomicU32::new(0),
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

    /// Says whether a channel is being starved.
    pub(crate) fn starve(&self, is_starving: bool) {
        self.is_starving.store(is_starving, Ordering::Release);
    }

    fn is_starving(&self) -> bool {
        self.is_starving.load(Ordering::Acquire)
    }

    /// The length of the packet that follows the one that the engine read last; nothing, where it is
    /// not here yet.
    pub(crate) fn next_packet_bytes(&self) -> u32 {
        self.next_packet_bytes.load(Ordering::Acquire)
    }

    /// The pause after `read_bytes` were read.
    fn pause(&self, read_bytes: usize) -> Option<Duration> {
        let are_few = (1..=FEW_BYTES).contains(&read_bytes);
        (self.is_starving() && are_few).then_some(FEW_PAUSE)
    }
}

/// The byte stream of a [`Line`].
///
/// The engine reads packet by packet, no byte further. So what comes after the packet that it works
/// at is here, and begins with its length, which no cipher that we offer hides (RFC 5647 section 7.2,
/// and the encrypt-then-mac modes of OpenSSH).
pub(crate) struct Stream<S> {
    inner: S,
    line: Arc<Line>,
    pause: Pin<Box<Sleep>>,
    paused: bool,
    ahead: Ahead,
}

/// What was read ahead. Takes no memory before.
#[derive(Default)]
struct Ahead {
    bytes: Vec<u8>,
    rest: Range<usize>,
}

impl Ahead {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.rest.clone()).unwrap_or_default()
    }

    /// Moves what there is, as far as it fits.
    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let length = self.rest.len().min(buf.remaining());
        buf.put_slice(self.rest().get(..length).unwrap_or_default());
        self.rest.start += length;
    }

    /// Reads all that is there, once everything was given; answers how much.
    fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        inner: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.bytes.resize(AHEAD_BYTES, 0);
        let mut buf = ReadBuf::new(&mut self.bytes);
        ready!(Pin::new(&mut *inner).poll_read(cx, &mut buf))?;
        loop {
            let before = buf.filled().len();
            // An end, or an error, shows again when there is nothing more to give.
            match Pin::new(&mut *inner).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if before < buf.filled().len() && buf.remaining() > 0 => {}
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        self.rest = 0..buf.filled().len();
        Poll::Ready(Ok(self.rest.len()))
    }
}

impl<S> Stream<S> {
    pub(crate) fn new(inner: S, line: Arc<Line>) -> Self {
        let pause = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self { inner, line, pause, paused: false, ahead: Ahead::default() }
    }

    /// Gives of what was read ahead.
    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        self.ahead.give(buf);
        let next = self.ahead.rest().first_chunk().map_or(0, |length| u32::from_be_bytes(*length));
        self.line.next_packet_bytes.store(next, Ordering::Release);
    }

    /// Counts what came, and pauses after it at need.
    fn came(&mut self, read_bytes: usize) {
        self.line.received_bytes.fetch_add(read_bytes as u64, Ordering::AcqRel);
        if let Some(pause) = self.line.pause(read_bytes) {
            self.pause.as_mut().reset(Instant::now() + pause);
            self.paused = true;
        }
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
        let this = &mut *self;
        if this.ahead.rest.is_empty() {
            if this.paused {
                ready!(this.pause.as_mut().poll(cx));
                this.paused = false;
            }
            if !this.line.is_starving() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
                this.came(buf.filled().len().saturating_sub(before));
                this.line.next_packet_bytes.store(0, Ordering::Release);
                return Poll::Ready(Ok(()));
            }
            let read_bytes = ready!(this.ahead.poll_fill(&mut this.inner, cx))?;
            this.came(read_bytes);
        }
        this.give(buf);
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
    fn reading_pauses_after_a_starved_channels_few_bytes() {
        let line = Line::new();
        assert_eq!(line.pause(FEW_BYTES), None);
        line.starve(true);
        assert_eq!(line.pause(FEW_BYTES + 1), None);
        assert_eq!(line.pause(FEW_BYTES), Some(FEW_PAUSE));
        assert_eq!(line.pause(0), None);
    }

    /// What is read ahead is given byte for byte, and the next packet's length is known.
    #[tokio::test]
    async fn the_next_packets_length_is_known_while_a_channel_starves() {
        let (near, mut far) = tokio::io::duplex(1024);
        let line = Line::new();
        let mut stream = Stream::new(near, Arc::clone(&line));
        far.write_all(b"\0\0\0\x03abc\0\0\x01\0xy").await.unwrap();
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).await.unwrap();
        assert_eq!((byte, line.next_packet_bytes()), ([0], 0));
        line.starve(true);
        let mut rest = [0; 6];
        stream.read_exact(&mut rest).await.unwrap();
        assert_eq!((&rest, line.next_packet_bytes()), (b"\0\0\x03abc", 256));
        line.starve(false);
        drop(far);
        let mut last = Vec::new();
        stream.read_to_end(&mut last).await.unwrap();
        assert_eq!((last.as_slice(), line.next_packet_bytes()), (&b"\0\0\x01\0xy"[..], 0));
    }

    #[tokio::test]
    async fn a_cut_line_wakes_its_reader() {
        let (near, _far) = tokio::io::duplex(64);
        let line = Line::new();
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
