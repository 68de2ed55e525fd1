//! Which channels of one connection get new window: those whose input is taken.
//!
//! The SSH engine fills a channel's window up by itself once less than half of one target is left.
//! The target is one for all channels, and can be changed only when some channel was just filled
//! up. So a channel whose input is not taken is starved by a target of [`STARVED`] bytes for all, and
//! the target is raised for a neighbour when its packet comes next:
//!
//! ```text
//!  filled up   | and then
//!  a full one  | the packet that comes next is longer than a starved channel can send, and the
//!              | neighbour that sent last has used half of its window: raise the target
//!  a neighbour | it has its window: back to STARVED. If the one before was a neighbour as well, no
//!              | full channel is sending, and the target can stay high
//! ```
//!
//! A neighbour that has used its window up sends no long packets any more. It is filled up a little
//! when it is due: after the channel that came before it the last time.
//!
//! A raise goes to a full channel where the guess at the neighbour was wrong. What leaks so waits
//! like the rest, and slows the connection down at last (see [`crate::line`]).

use crate::algorithms::WINDOW_BYTES;
use crate::gauge::Gauge;
use std::collections::HashMap;
use std::sync::Arc;

/// The target that starves: the least that the engine still fills up, and so still asks about.
const STARVED: u32 = 2;

/// A channel with less left than this is filled up to its whole window.
const HALF: u32 = WINDOW_BYTES / 2;

/// The target for a neighbour that has used its window up: two of the largest packets.
const LITTLE: u32 = 64 << 10;

/// One channel's input.
struct Window {
    /// Of its waiting input; none for a channel whose reader never waits.
    gauge: Option<Arc<Gauge>>,
    left_bytes: u32,
}

impl Window {
    fn is_full(&self) -> bool {
        self.gauge.as_ref().is_some_and(|gauge| gauge.is_full())
    }
}

/// The channels of one connection, by the engine's numbers.
#[derive(Default)]
pub(crate) struct Windows {
    channels: HashMap<u32, Window>,
    /// The channel that was filled up last, and whether it was full.
    last: Option<(u32, bool)>,
    /// The full channel that was filled up before a neighbour that has used its window up.
    herald: Option<u32>,
    /// The neighbour of full channels that sent last.
    sender: Option<u32>,
}

impl Windows {
    /// A channel opens, with the engine's first window.
    pub(crate) fn open(&mut self, channel: u32, gauge: Option<Arc<Gauge>>) {
        let window = Window { gauge, left_bytes: WINDOW_BYTES };
        self.channels.insert(channel, window);
    }

    pub(crate) fn close(&mut self, channel: u32) {
        self.channels.remove(&channel);
    }

    /// Input came, and left so much of the channel's window.
    pub(crate) fn received(&mut self, channel: u32, left_bytes: u32) {
        if let Some(window) = self.channels.get_mut(&channel) {
            window.left_bytes = left_bytes;
            if !window.is_full() {
                self.sender = Some(channel);
            }
        }
    }

    /// Whether a channel is being starved.
    pub(crate) fn is_any_full(&self) -> bool {
        self.channels.values().any(Window::is_full)
    }

    /// The engine filled a channel up to its target; answers the next target. `next_is_long`: the
    /// next packet is there, and is no starved channel's.
    pub(crate) fn filled(&mut self, channel: u32, target: u32, next_is_long: bool) -> u32 {
        let mut is_full = false;
        if let Some(window) = self.channels.get_mut(&channel) {
            window.left_bytes = target;
            is_full = window.is_full();
        }
        let last = self.last.replace((channel, is_full));
        match last {
            Some((herald, true)) if !is_full && target == STARVED => self.herald = Some(herald),
            Some(_) | None => {}
        }
        if !self.is_any_full() || !(is_full || last.is_some_and(|(_, was_full)| was_full)) {
            return WINDOW_BYTES;
        }
        let left_bytes = self.sender().map(|window| window.left_bytes);
        match left_bytes {
            Some(left_bytes) if next_is_long && left_bytes < HALF && self.is_nobody_else_long() => {
                WINDOW_BYTES
            }
            Some(0..=STARVED) if self.herald == Some(channel) => LITTLE,
            Some(_) | None => STARVED,
        }
    }

    /// Whether no full channel is both able to send a long packet and to be filled up after it.
    fn is_nobody_else_long(&self) -> bool {
        let long = |window: &Window| (STARVED + 1..HALF).contains(&window.left_bytes);
        !self.channels.values().any(|window| window.is_full() && long(window))
    }

    /// The neighbour that sent last.
    fn sender(&self) -> Option<&Window> {
        let sender = self.sender.and_then(|channel| self.channels.get(&channel));
        sender.filter(|window| !window.is_full())
    }
}

#[cfg(test)]
mod tests;
