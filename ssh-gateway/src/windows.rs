//! Which channels of one connection get new window: those whose input is taken.
//!
//! The SSH engine fills a channel's window up by itself once less than half of one target is left.
//! The target is one for all channels, and can be changed only when some channel was just filled
//! up. So a channel whose input is not taken is starved by a target of [`STARVED`] bytes for all, and
//! the target is raised when a neighbour's packet is likely to come next. What tells:
//!
//! ```text
//!  the next packet is longer than any full channel can send: a neighbour's, of those that have so
//!  much window. The one whose packets follow this channel's has used half of its window: raise. Some
//!  other has used nearly all: raise a little.
//!
//!  a neighbour has used its window up, and sends no long packets any more:
//!    it was filled up twice, and no full channel sent anything in between: raise.
//!    this channel was filled up before it, of late: raise a little.
//!    neither: raise by a scrap, now and then. Then its packets are long again.
//! ```
//!
//! A raise goes to a full channel where the guess at the neighbour was wrong. What leaks so waits
//! like the rest, within the bounds of its [`Gauge`]. No rule depends on one neighbour alone, or on
//! an order that stays: two of them, or a client that changes its order, froze one that did.

use crate::algorithms::WINDOW_BYTES;
use crate::gauge::Gauge;
use std::collections::HashMap;
use std::sync::Arc;

/// The target that starves: the least that the engine still fills up, and so still asks about.
const STARVED: u32 = 2;

/// Packets above are no starved channel's, whose few bytes make at most so much.
const LONG_PACKET_BYTES: u32 = 128;

/// The target for a neighbour that has used its window up: two of the largest packets.
const LITTLE: u32 = 64 << 10;

/// The same where it is anybody's guess whether the neighbour's packet comes next.
const SCRAP: u32 = 4 << 10;

/// What a packet has beside its content, at most: headers and padding.
const OVERHEAD_BYTES: u32 = 64;

/// One channel's input.
struct Window {
    gauge: Arc<Gauge>,
    left_bytes: u32,
    /// The channels that were filled up before this one when it had used its window up: the last, and
    /// the other one, where they change.
    heralds: [Option<u32>; 2],
    /// The channel whose packet came after this one's, the last time.
    follower: Option<u32>,
    /// When it was filled up last, by the count of packets.
    filled_at: Option<u64>,
}

impl Window {
    fn is_full(&self) -> bool {
        self.gauge.is_full()
    }

    /// A neighbour of full channels that has used its window up.
    fn is_hungry(&self) -> bool {
        !self.is_full() && self.left_bytes <= STARVED
    }

    /// It was filled up after that channel.
    fn follows(&mut self, channel: Option<u32>) {
        let [last, _] = self.heralds;
        if last != channel {
            self.heralds = [channel, last];
        }
    }
}

/// The channels of one connection, by the engine's numbers.
#[derive(Default)]
pub(crate) struct Windows {
    channels: HashMap<u32, Window>,
    /// The channel that was filled up last.
    last_filled: Option<u32>,
    /// The channel whose packet came last.
    sender: Option<u32>,
    /// Packets that came.
    packets: u64,
    /// When a full channel sent something last, by the count of packets.
    full_sent_at: u64,
    /// Windows that were filled up.
    fills: u32,
}

impl Windows {
    /// A channel opens, with the engine's first window. One whose gauge nobody holds any more was
    /// refused.
    pub(crate) fn open(&mut self, channel: u32, gauge: Arc<Gauge>) {
        self.channels.retain(|_, window| Arc::strong_count(&window.gauge) > 1);
        let window = Window {
            gauge,
            left_bytes: WINDOW_BYTES,
            heralds: [None; 2],
            follower: None,
            filled_at: None,
        };
        self.channels.insert(channel, window);
    }

    pub(crate) fn close(&mut self, channel: u32) {
        self.channels.remove(&channel);
    }

    /// Input came, and left so much of the channel's window.
    pub(crate) fn received(&mut self, channel: u32, left_bytes: u32) {
        if let Some(window) = self.channels.get_mut(&channel) {
            self.packets += 1;
            window.left_bytes = left_bytes;
            if window.is_full() {
                self.full_sent_at = self.packets;
            }
            let before = self.sender.replace(channel);
            if let Some(before) = before.and_then(|before| self.channels.get_mut(&before)) {
                before.follower = Some(channel);
            }
        }
    }

    /// Whether a channel is being starved.
    pub(crate) fn is_any_full(&self) -> bool {
        self.channels.values().any(Window::is_full)
    }

    /// The engine filled a channel up to its target; answers the next target. `next_bytes`: the length
    /// of the packet that comes next, or nothing, where it is not here yet.
    pub(crate) fn filled(&mut self, channel: u32, target: u32, next_bytes: u32) -> u32 {
        self.fills = self.fills.wrapping_add(1);
        let before = self.last_filled.replace(channel);
        let mut has_quiet_neighbours = false;
        if let Some(window) = self.channels.get_mut(&channel) {
            window.left_bytes = target;
            let filled_before = window.filled_at.replace(self.packets + 1);
            if target == STARVED && !window.is_full() {
                window.follows(before);
                has_quiet_neighbours = filled_before.is_some_and(|at| self.full_sent_at <= at);
            }
        }
        if has_quiet_neighbours || !self.is_any_full() {
            return WINDOW_BYTES;
        }
        self.for_a_long_packet(channel, next_bytes)
            .or_else(|| self.for_a_hungry_one(channel))
            .unwrap_or(STARVED)
    }

    /// The target for a packet that is longer than any full channel can send, if it comes next.
    fn for_a_long_packet(&self, channel: u32, next_bytes: u32) -> Option<u32> {
        let content_bytes = next_bytes.saturating_sub(OVERHEAD_BYTES);
        let can_send = |window: &&Window| window.left_bytes >= content_bytes;
        if next_bytes <= LONG_PACKET_BYTES
            || self.channels.values().any(|window| window.is_full() && can_send(&window))
        {
            return None;
        }
        let least =
            self.channels.values().filter(can_send).map(|window| window.left_bytes).min()?;
        let follower = self.channels.get(&channel).and_then(|window| window.follower);
        let likely = follower.or(self.sender).and_then(|number| self.channels.get(&number));
        let likely = likely.filter(can_send).map_or(least, |window| window.left_bytes);
        if likely < WINDOW_BYTES / 2 {
            Some(WINDOW_BYTES)
        } else {
            (least < LITTLE / 2).then_some(LITTLE)
        }
    }

    /// The target for a neighbour that has used its window up, if there is one beside this channel.
    fn for_a_hungry_one(&self, channel: u32) -> Option<u32> {
        let others = self.channels.iter().filter(|(number, _)| **number != channel);
        let hungry: Vec<&Window> =
            others.map(|(_, window)| window).filter(|window| window.is_hungry()).collect();
        if hungry.iter().any(|window| window.heralds.contains(&Some(channel))) {
            return Some(LITTLE);
        }
        let channels = u32::try_from(self.channels.len()).unwrap_or(u32::MAX);
        (!hungry.is_empty() && self.is_turn(channels)).then_some(SCRAP)
    }

    /// Once in so many times, and never in step with a client's order: the count is scattered by an
    /// odd multiplier.
    fn is_turn(&self, one_in: u32) -> bool {
        let scattered = self.fills.wrapping_mul(0x9E37_79B9) >> 16;
        scattered.checked_rem(one_in) == Some(0)
    }
}

#[cfg(test)]
mod tests;
