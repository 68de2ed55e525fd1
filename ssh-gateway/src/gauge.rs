//! How much input waits for the targets: of one channel, and of all of the gateway.

use crate::algorithms::WINDOW_BYTES;
use crate::seen::Stop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What a channel may always hold, however much others do: two of the largest packets.
const SHARE_BYTES: usize = 64 << 10;

/// What can still come to a channel that gets no new window: what it was granted before, and what
/// its neighbours' grants leak.
const RESERVE_BYTES: usize = 8 * WINDOW_BYTES as usize;

/// The waiting input of all channels of the gateway.
#[derive(Debug)]
pub(crate) struct Pool {
    waiting_bytes: AtomicUsize,
    limit_bytes: usize,
}

impl Pool {
    /// `limit_bytes`: from there on channels get no new window, and from twice as much they end.
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { waiting_bytes: AtomicUsize::new(0), limit_bytes })
    }
}

/// The waiting input of one channel.
#[derive(Debug)]
pub(crate) struct Gauge {
    waiting_bytes: AtomicUsize,
    limit_bytes: usize,
    pool: Arc<Pool>,
}

impl Gauge {
    /// `limit_bytes`: from there on the channel gets no new window.
    pub(crate) fn new(limit_bytes: usize, pool: &Arc<Pool>) -> Arc<Self> {
        let pool = Arc::clone(pool);
        Arc::new(Self { waiting_bytes: AtomicUsize::new(0), limit_bytes, pool })
    }

    /// Whether the channel is to get no new window.
    pub(crate) fn is_full(&self) -> bool {
        let waiting_bytes = self.waiting_bytes.load(Ordering::Acquire);
        let is_pool_full = self.pool.waiting_bytes.load(Ordering::Acquire) > self.pool.limit_bytes;
        waiting_bytes > if is_pool_full { SHARE_BYTES } else { self.limit_bytes }
    }

    /// Counts input that waits from now on.
    ///
    /// # Errors
    /// Why the channel has to end: it, or all channels together, hold as much as they may.
    pub(crate) fn add(&self, length_bytes: usize) -> Result<(), Stop> {
        let before = self.waiting_bytes.fetch_add(length_bytes, Ordering::AcqRel);
        let all = self.pool.waiting_bytes.fetch_add(length_bytes, Ordering::AcqRel);
        let now = before.saturating_add(length_bytes);
        let hard = self.limit_bytes.saturating_mul(2).saturating_add(RESERVE_BYTES);
        let stop = if now > hard {
            Stop::InputOverflow
        } else if all > self.pool.limit_bytes.saturating_mul(2) && before > SHARE_BYTES {
            Stop::InputPoolFull
        } else {
            return Ok(());
        };
        self.take(length_bytes);
        Err(stop)
    }

    /// Counts input that waits no more.
    pub(crate) fn take(&self, length_bytes: usize) {
        self.waiting_bytes.fetch_sub(length_bytes, Ordering::AcqRel);
        self.pool.waiting_bytes.fetch_sub(length_bytes, Ordering::AcqRel);
    }
}

/// Waits until the space for waiting input is found used up after so long a wait, through no fault of
/// the client's.
pub(crate) async fn stalled(gauge: Option<&Gauge>, patience: Duration, client_waits: &AtomicBool) {
    let Some(gauge) = gauge else { return std::future::pending().await };
    loop {
        tokio::time::sleep(patience).await;
        if gauge.is_full() && !client_waits.load(Ordering::Acquire) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    /// A channel gets no new window from its bound on, and ends by name at the last.
    #[test]
    fn a_channel_is_starved_then_ends() {
        let gauge = Gauge::new(LIMIT, &Pool::new(1 << 30));
        gauge.add(LIMIT).unwrap();
        assert!(!gauge.is_full());
        gauge.add(1).unwrap();
        assert!(gauge.is_full());
        gauge.add(LIMIT + RESERVE_BYTES - 1).unwrap();
        assert_eq!(gauge.add(1), Err(Stop::InputOverflow));
        gauge.take(LIMIT + RESERVE_BYTES);
        assert!(!gauge.is_full());
        gauge.add(1).unwrap();
    }

    /// When all of the gateway hold too much, each keeps its share, and who wants more ends.
    #[test]
    fn all_channels_together_are_bounded() {
        let pool = Pool::new(LIMIT);
        let [one, two, three] = [(); 3].map(|()| Gauge::new(LIMIT, &pool));
        one.add(LIMIT).unwrap();
        two.add(LIMIT).unwrap();
        assert!(two.is_full() && !three.is_full());
        three.add(SHARE_BYTES).unwrap();
        three.add(1).unwrap();
        assert!(three.is_full());
        assert_eq!(three.add(1), Err(Stop::InputPoolFull));
        one.take(LIMIT);
        three.add(1).unwrap();
        three.take(SHARE_BYTES + 2);
        assert!(!two.is_full());
    }
}
