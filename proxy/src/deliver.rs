//! The writing half of the caller's connection.

mod heads;

pub(crate) use heads::{
    Delivery, Ours, chunk, chunk_size, established, head, intercepting, interim, last_chunk, own,
    problem, reason, status_alone, switching, trailing,
};

use crate::carrier::Carrier;
use crate::handover::HandedOver;
use crate::http2::stream::Stream;
use crate::stream::{Shared, Wire};
use crate::unread::{Connection, Unread};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// What leaves on a stream is counted in pieces of that length.
const PIECE: usize = 256 * 1024;

/// The writing half of the caller's connection.
pub(crate) struct Outbound {
    sink: Sink,
    /// Bytes handed to the connection for the response under way.
    pub(crate) sent: u64,
    aborted: bool,
    /// A caller that takes nothing for so long is gone.
    patience: Duration,
}

enum Sink {
    /// The connection itself.
    Wire(Shared<Wire>),
    /// A stream of an HTTP/2 connection.
    Stream(Box<Stream>),
    /// Nobody waits: the result is on record.
    Nobody,
    /// The broker itself reads the answer; up to so many bytes.
    Kept(Vec<u8>, usize),
}

impl Outbound {
    pub(crate) const fn new(wire: Shared<Wire>, patience: Duration) -> Self {
        Self::of(Sink::Wire(wire), patience)
    }

    const fn of(sink: Sink, patience: Duration) -> Self {
        Self { sink, sent: 0, aborted: false, patience }
    }

    /// What is sent becomes frames of the stream.
    pub(crate) fn stream(stream: Stream, patience: Duration) -> Self {
        Self::of(Sink::Stream(Box::new(stream)), patience)
    }

    /// What is sent goes nowhere: an attempt without a caller.
    pub(crate) const fn nobody() -> Self {
        Self::of(Sink::Nobody, Duration::ZERO)
    }

    /// What is sent is kept for the broker itself.
    pub(crate) const fn kept(limit_bytes: usize) -> Self {
        Self::of(Sink::Kept(Vec::new(), limit_bytes), Duration::ZERO)
    }

    /// What was kept; none when it was too long, or is kept by nobody.
    pub(crate) fn into_kept(self) -> Option<Vec<u8>> {
        match self.sink {
            Sink::Kept(bytes, limit_bytes) if bytes.len() <= limit_bytes => Some(bytes),
            Sink::Kept(..) | Sink::Wire(_) | Sink::Stream(_) | Sink::Nobody => None,
        }
    }

    /// Whether the caller speaks HTTP/2.
    pub(crate) const fn is_stream(&self) -> bool {
        matches!(self.sink, Sink::Stream(_))
    }

    /// What follows the next head comes in chunks, whatever that head says ([`Delivery::Frames`]).
    pub(crate) fn frames_follow(&mut self) {
        if let Sink::Stream(stream) = &mut self.sink {
            stream.chunks_follow();
        }
    }

    /// Whether somebody waits for the answer.
    pub(crate) const fn has_caller(&self) -> bool {
        matches!(self.sink, Sink::Wire(_) | Sink::Stream(_))
    }

    /// Whether nobody waits for the answer any more; `by_end`: nor does a caller that ended its own side.
    pub(crate) fn has_left(&mut self, by_end: bool) -> bool {
        match &mut self.sink {
            Sink::Wire(_) | Sink::Stream(_) if self.aborted => true,
            Sink::Wire(wire) => wire.lock().has_left(by_end),
            Sink::Stream(stream) => stream.has_left(),
            Sink::Nobody | Sink::Kept(..) => true,
        }
    }

    /// Writes and flushes everything. A connection that did not take all of something takes nothing more: what
    /// follows would stand in a place that nobody knows, and an orderly end would make the cut whole.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.aborted {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let sent = self.write(bytes).await;
        if sent.is_err() {
            self.abort();
        }
        sent
    }

    async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let patience = self.patience;
        let wire = match &mut self.sink {
            Sink::Wire(wire) => wire,
            Sink::Stream(stream) => {
                for piece in bytes.chunks(PIECE) {
                    stream.send(piece, patience).await?;
                    self.sent += piece.len() as u64;
                }
                return Ok(());
            }
            Sink::Nobody => return Ok(()),
            Sink::Kept(kept, limit_bytes) => {
                // One byte beyond the limit says that there was more.
                let room = (*limit_bytes + 1).saturating_sub(kept.len()).min(bytes.len());
                kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
                return Ok(());
            }
        };
        while !bytes.is_empty() {
            let written = within(patience, wire.write(bytes)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.sent += written as u64;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        within(patience, wire.flush()).await
    }

    /// Ends the writing direction in order, unless the connection was broken off.
    pub(crate) async fn finish(&mut self) -> io::Result<()> {
        if self.aborted {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match &mut self.sink {
            Sink::Wire(wire) => within(self.patience, wire.shutdown()).await,
            Sink::Stream(stream) => stream.finish(),
            Sink::Nobody | Sink::Kept(..) => Ok(()),
        }
    }

    /// Reads what still comes on the connection until the caller ends its side, as it is, and keeps
    /// nothing of it.
    pub(crate) async fn read_away(&mut self) -> io::Result<()> {
        let Sink::Wire(wire) = &mut self.sink else { return Ok(()) };
        let mut bytes = Vec::with_capacity(8 * 1024);
        while wire.read_buf(&mut bytes).await? > 0 {
            bytes.clear();
        }
        Ok(())
    }

    /// Waits until the head of a response that is to be broken off left.
    pub(crate) async fn begun(&self) {
        match &self.sink {
            Sink::Wire(_) | Sink::Kept(..) | Sink::Nobody => {}
            // Whether it left in time makes no difference to what follows.
            Sink::Stream(stream) => drop(timeout(self.patience, stream.begun()).await),
        }
    }

    /// Breaks the connection off so that the caller sees it: no orderly end follows.
    pub(crate) fn abort(&mut self) {
        self.aborted = true;
        let mut wire = match &mut self.sink {
            Sink::Wire(wire) => wire.lock(),
            Sink::Stream(stream) => return stream.abort(),
            Sink::Nobody | Sink::Kept(..) => return,
        };
        if let Err(error) = wire.abort() {
            tracing::debug!(%error, "the connection could not be set to reset");
        }
    }

    /// Ends the caller's side at once. What marks its end by the connection's own is broken off when the
    /// connection is closed: an end now would look like a whole.
    pub(crate) fn cut(&mut self, ends_by_close: bool) {
        self.abort();
        if let Sink::Wire(wire) = &self.sink
            && !ends_by_close
            && let Err(error) = wire.lock().cut()
        {
            tracing::debug!(%error, "the connection could not be ended");
        }
    }

    /// Whether the caller's host acknowledged every byte and did not reset the connection.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_acknowledged(),
            Sink::Stream(stream) => stream.is_acknowledged(),
            Sink::Nobody | Sink::Kept(..) => Ok(false),
        }
    }

    /// Whether the caller's connection is one of TCP, whose reset says something of what was read.
    pub(crate) fn is_tcp(&self) -> bool {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_tcp(),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => false,
        }
    }

    /// Whether an orderly end is a message of its own: the close_notify of TLS.
    pub(crate) fn ends_with_a_word(&self) -> bool {
        match &self.sink {
            Sink::Wire(wire) => wire.lock().is_tls(),
            Sink::Stream(_) => true,
            Sink::Nobody | Sink::Kept(..) => false,
        }
    }

    /// Keeps a delivery that a reset of the stream's connection takes back.
    pub(crate) fn hand_over(&self, handed_over: HandedOver, unread: &Arc<Unread>) {
        if let Sink::Stream(stream) = &self.sink {
            stream.hand_over(handed_over, unread);
        }
    }

    /// The connection itself, to be asked whether it has ended.
    pub(crate) fn connection(&self) -> Option<Connection> {
        match &self.sink {
            Sink::Wire(wire) => Some(wire.into()),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }

    /// Sends a head that opens what its request asked for: bytes without a frame follow.
    pub(crate) async fn open(&mut self, head: &[u8]) -> io::Result<()> {
        if let Sink::Stream(stream) = &mut self.sink {
            stream.opens();
        }
        self.send(head).await
    }

    /// What an opened stream carries from now on, with what comes on it.
    pub(crate) fn into_carrier(
        self,
        reading: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Option<Carrier> {
        match self.sink {
            Sink::Stream(stream) => stream.into_carrier(reading),
            Sink::Wire(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }

    /// The connection itself, if this is the last handle on it.
    pub(crate) fn into_wire(self) -> Option<Wire> {
        match self.sink {
            Sink::Wire(wire) => wire.into_inner(),
            Sink::Stream(_) | Sink::Nobody | Sink::Kept(..) => None,
        }
    }
}

async fn within<T>(patience: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Bytes in the send queue that the peer has not acknowledged (`SIOCOUTQ`, tcp(7)).
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "rustix leaves it to the caller to pair an opcode with its type")]
pub(crate) fn unacknowledged(tcp: impl std::os::fd::AsFd) -> io::Result<i32> {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: SIOCOUTQ writes one int through the pointer.
    let bytes = unsafe {
        rustix::ioctl::ioctl(tcp, rustix::ioctl::Getter::<SIOCOUTQ, std::ffi::c_int>::new())
    };
    Ok(bytes?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn unacknowledged(_tcp: impl std::os::fd::AsFd) -> io::Result<i32> {
    Ok(i32::MAX)
}
