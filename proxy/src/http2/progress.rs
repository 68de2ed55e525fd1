//! What of a caller's HTTP/2 connection arrived, and how much of it is idle talk: the end of each stream is followed from its frame
//! through TLS to the acknowledgement of the caller's host (contract R-5).

use crate::carrier::Below;
use crate::handover::HandedOver;
use crate::http2::frames::{Frames, LongBlocks, Seen};
use crate::unread::{Connection, Unread};
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

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
    below: Arc<Mutex<Below>>,
    streams: Mutex<HashMap<u32, Sent>>,
    /// Streams that carry connections of the caller.
    carriers: Mutex<HashMap<u32, Carried>>,
    /// Deliveries that a reset takes back, and where the connection stood at the end of each.
    handed_over: Mutex<Vec<(u64, HandedOver)>>,
    /// Whether the caller's host reset the connection; whoever hears of it first hears of it alone.
    was_reset: AtomicBool,
    /// Whether the connection is over: nothing leaves any more.
    closed: AtomicBool,
    /// Told when a head left, and when nothing leaves any more.
    began: Notify,
    /// Told when the caller sent too many frames that ask for nothing.
    flooded: Notify,
    long_blocks: LongBlocks,
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

    /// Streams on which the caller sent more fields than a head may have.
    pub(crate) fn long_blocks(&self) -> LongBlocks {
        self.long_blocks.clone()
    }

    /// Waits until the caller has sent more frames that ask for nothing than it may.
    pub(crate) async fn flooded(&self) {
        self.flooded.notified().await;
    }

    /// Waits until the stream's head left, or it is clear that it never will.
    pub(crate) async fn begun(&self, id: u32) {
        loop {
            let mut told = pin!(self.began.notified());
            told.as_mut().enable();
            let open = matches!(self.lock().get(&id), Some(Sent::Open));
            if !open || self.closed.load(Ordering::Acquire) {
                return;
            }
            told.await;
        }
    }

    /// Whether the caller's host acknowledged everything up to the stream's end.
    pub(crate) fn is_acknowledged(&self, id: u32) -> io::Result<bool> {
        let sent = self.lock().get(&id).copied();
        match sent {
            Some(Sent::Flushed(position)) => self.has_arrived(position),
            Some(Sent::Open | Sent::Begun | Sent::Written) | None => {
                self.has_arrived(0).map(|_| false)
            }
        }
    }

    fn has_arrived(&self, position: u64) -> io::Result<bool> {
        Ok(self.arrived()? >= position)
    }

    /// Whether the caller's host acknowledged everything, or never will.
    pub(crate) fn has_arrived_whole(&self) -> bool {
        let written = self.written.load(Ordering::Acquire);
        self.arrived().map_or(true, |arrived| arrived >= written)
    }

    fn arrived(&self) -> io::Result<u64> {
        let arrived = self.below().arrived(self.written.load(Ordering::Acquire));
        arrived.inspect_err(|error| self.broke(error))
    }

    /// Remembers a reset.
    pub(crate) fn broke(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::ConnectionReset {
            self.was_reset.store(true, Ordering::Release);
        }
    }

    fn handed_over(&self) -> MutexGuard<'_, Vec<(u64, HandedOver)>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a delivery that a reset takes back, while nothing else is sent.
    pub(crate) fn hand_over(&self, id: u32, mut handed_over: HandedOver, unread: &Arc<Unread>) {
        let sent = self.lock().get(&id).copied();
        let written = self.written.load(Ordering::Acquire);
        let mut kept = self.handed_over();
        kept.retain(|(position, _)| *position == written);
        match sent {
            Some(Sent::Flushed(position)) if position == written => {
                if self.takes_back() {
                    handed_over.take_back();
                } else {
                    handed_over.list(unread, Connection::Below(Arc::clone(&self.below)));
                    kept.push((position, handed_over));
                }
            }
            Some(Sent::Open | Sent::Begun | Sent::Written | Sent::Flushed(_)) | None => {}
        }
    }

    /// The caller asked for more.
    pub(crate) fn asked_for_more(&self) {
        let handed_over = std::mem::take(&mut *self.handed_over());
        handed_over.into_iter().for_each(|(_, handed_over)| handed_over.asked_for_more());
    }

    /// After the end: a reset takes back what was sent last, because that is what was thrown away
    /// (contract R-5). Of what came before it that is not known.
    pub(crate) fn settle(&self) {
        let written = self.written.load(Ordering::Acquire);
        let takes_back = self.takes_back();
        for (position, handed_over) in self.handed_over().drain(..) {
            if takes_back && position == written {
                handed_over.take_back();
            }
        }
    }

    /// Whether the connection was reset, and that says something of what was read: a stream that
    /// carries it may be reset by a caller that read everything.
    fn takes_back(&self) -> bool {
        let is_tcp = match *self.below() {
            Below::Tcp { .. } => true,
            Below::Stream { .. } | Below::Gone { .. } => false,
        };
        is_tcp && self.was_reset.load(Ordering::Acquire)
    }

    fn below(&self) -> MutexGuard<'_, Below> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what lies below, so that the end of the connection is one for its caller, too, while
    /// calls go on; what arrived by now stays known.
    pub(crate) fn let_go(&self) {
        let arrived = self.arrived().unwrap_or(0);
        let former = std::mem::replace(&mut *self.below(), Below::Gone { arrived });
        // It may hold the last of the connection below, whose end takes locks of its own.
        drop(former);
    }

    /// Follows what a stream carries from now on.
    pub(crate) fn carry(&self, id: u32) {
        self.carriers().insert(id, Carried::default());
    }

    /// Follows it no more.
    pub(crate) fn carry_no_more(&self, id: u32) {
        self.carriers().remove(&id);
    }

    fn carriers(&self) -> MutexGuard<'_, HashMap<u32, Carried>> {
        self.carriers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of the bytes that a stream carries the caller's host acknowledged, as far as that is
    /// known.
    pub(crate) fn carried(&self, id: u32) -> io::Result<u64> {
        if self.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let carried = self.carriers().get(&id).copied();
        match carried.and_then(|carried| carried.flushed) {
            Some((flushed, position)) if self.has_arrived(position)? => Ok(flushed),
            Some(_) | None => Ok(0),
        }
    }

    /// A descriptor that belongs to the connection.
    pub(crate) fn id(&self) -> RawFd {
        self.below().id()
    }
}

/// How far the bytes came that a stream carries.
#[derive(Debug, Clone, Copy, Default)]
struct Carried {
    /// Bytes in frames that were written.
    framed: u64,
    /// So many of them were handed down, where the connection stood at this many bytes.
    flushed: Option<(u64, u64)>,
}

/// The connection's transport, watched.
pub(crate) struct Watched<S> {
    tls: S,
    counts: bool,
    frames: Frames,
    heard: Frames,
    allowance: Allowance,
    progress: Arc<Progress>,
}

/// What a peer may say without asking for anything: a burst, and a rate.
#[derive(Debug)]
pub(crate) struct Allowance {
    left: u32,
    since: Instant,
}

impl Allowance {
    const BURST: u32 = 2000;
    const PER_SECOND: u32 = 200;

    pub(crate) fn new() -> Self {
        Self { left: Self::BURST, since: Instant::now() }
    }

    /// Takes one; false when there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        if seconds > 0 {
            let earned =
                u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(Self::PER_SECOND);
            self.left = self.left.saturating_add(earned).min(Self::BURST);
            self.since = now;
        }
        let (left, taken) = self.left.checked_sub(1).map_or((0, false), |left| (left, true));
        self.left = left;
        taken
    }
}

impl<S> Watched<S> {
    /// `written` counts what the transport hands down to `below`; without it what it takes is counted,
    /// which is enough where only an empty queue says something.
    pub(crate) fn new(tls: S, below: Below, written: Option<Arc<AtomicU64>>) -> Self {
        let counts = written.is_none();
        let written = written.unwrap_or_default();
        let progress = Arc::new(Progress {
            written,
            below: Arc::new(Mutex::new(below)),
            streams: Mutex::default(),
            carriers: Mutex::default(),
            handed_over: Mutex::default(),
            was_reset: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            began: Notify::new(),
            flooded: Notify::new(),
            long_blocks: LongBlocks::default(),
        });
        let (frames, heard) = (Frames::default(), Frames::of_client());
        Self { tls, counts, frames, heard, allowance: Allowance::new(), progress }
    }

    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

impl<S> Drop for Watched<S> {
    fn drop(&mut self) {
        self.progress.closed.store(true, Ordering::Release);
        self.progress.began.notify_waiters();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.tls).poll_read(cx, buf))?;
        let mut idle = 0;
        this.heard.see(buf.filled().get(before..).unwrap_or_default(), |seen| match seen {
            // Hardly any is asked for.
            Seen::Idle | Seen::Settings | Seen::Ack => idle += 1,
            Seen::LongBlock(id) => this.progress.long_blocks.add(id),
            Seen::Begun(_)
            | Seen::Headers(_)
            | Seen::EndStream(_)
            | Seen::Data(..)
            | Seen::GoAway(_) => {}
        });
        let now = Instant::now();
        if (0..idle).any(|_| !this.allowance.take(now)) {
            this.progress.flooded.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = ready!(Pin::new(&mut this.tls).poll_write(cx, buf))?;
        let progress = &this.progress;
        if this.counts {
            progress.written.fetch_add(length as u64, Ordering::AcqRel);
        }
        this.frames.see(buf.get(..length).unwrap_or_default(), |seen| {
            let (id, to) = match seen {
                Seen::Headers(id) => (id, Sent::Begun),
                Seen::EndStream(id) => (id, Sent::Written),
                Seen::Data(id, length) => {
                    if let Some(carried) = progress.carriers().get_mut(&id) {
                        carried.framed += u64::from(length);
                    }
                    return;
                }
                Seen::Begun(_)
                | Seen::GoAway(_)
                | Seen::Idle
                | Seen::Settings
                | Seen::Ack
                | Seen::LongBlock(_) => return,
            };
            if let Some(sent) = progress.lock().get_mut(&id) {
                *sent = to;
            }
            progress.began.notify_waiters();
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
        for carried in this.progress.carriers().values_mut() {
            carried.flushed = Some((carried.framed, position));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A burst is free, a steady rate is, too; what is above both is not.
    #[test]
    fn idle_talk_is_bounded() {
        let mut allowance = Allowance::new();
        let start = allowance.since;
        let taken = (0..3000).filter(|_| allowance.take(start)).count();
        assert_eq!(taken, Allowance::BURST as usize);
        let later = start + Duration::from_secs(2);
        let taken = (0..3000).filter(|_| allowance.take(later)).count();
        assert_eq!(taken, 2 * Allowance::PER_SECOND as usize);
        let much_later = later + Duration::from_secs(3600);
        let taken = (0..3000).filter(|_| allowance.take(much_later)).count();
        assert_eq!(taken, Allowance::BURST as usize);
    }
}
