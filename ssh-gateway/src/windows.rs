//! Which channels of one connection get new window: those whose input is taken.
//!
//! The SSH engine fills a channel's window up by itself once less than half of one target is left.
//! The target is one for all channels, and can be changed only when some channel was just filled
//! up. So a channel whose input is not taken is starved by a target of [`STARVED`] bytes for all, and
//! the target is raised for a neighbour when its packet comes next:
//!
//! ```text
//!  filled up   | and then
//!  any         | the packet that comes next is longer than a starved channel can send, and the
//!              | neighbour that sent last has used half of its window: raise the target, as far as
//!              | that fills no full channel up which still has window of before
//!  a full one  | it came before a neighbour that has used its window up, the last time: raise the
//!              | target a little, for that one sends no long packets any more
//!  a neighbour | with STARVED, and no full channel has sent anything since the fill before: raise
//! ```
//!
//! A raise goes to a full channel where the guess at the neighbour was wrong. What leaks so waits
//! like the rest, within the bounds of its [`Gauge`].

use crate::algorithms::WINDOW_BYTES;
use crate::gauge::Gauge;
use std::collections::HashMap;
use std::sync::Arc;

/// The target that starves: the least that the engine still fills up, and so still asks about.
const STARVED: u32 = 2;

/// The longest that a client sends in one go beside what it was seen to send: two packets.
const AHEAD_BYTES: u32 = 64 << 10;

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
    /// The full channel that was filled up last, if no neighbour was since.
    last_full: Option<u32>,
    /// Whether no full channel has sent anything since a channel was filled up.
    is_quiet: bool,
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
            if window.is_full() {
                self.is_quiet = false;
            } else {
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
        let was_quiet = std::mem::replace(&mut self.is_quiet, true);
        let last_full = std::mem::replace(&mut self.last_full, is_full.then_some(channel));
        if !is_full && target == STARVED && last_full.is_some() {
            self.herald = last_full;
        }
        if !self.is_any_full() || (!is_full && target == STARVED && was_quiet) {
            return WINDOW_BYTES;
        }
        match self.sender().map(|window| window.left_bytes) {
            Some(left_bytes) if next_is_long && left_bytes < self.harmless() / 2 => self.harmless(),
            Some(0..=STARVED) if self.herald == Some(channel) => LITTLE.min(self.harmless()),
            Some(_) | None => STARVED,
        }
    }

    fn full(&self) -> impl Iterator<Item = &Window> {
        self.channels.values().filter(|window| window.is_full())
    }

    /// The highest target that fills no full channel up but those that have nothing left.
    fn harmless(&self) -> u32 {
        let open = self.full().map(|window| window.left_bytes).filter(|left| *left > STARVED);
        let least = open.min().map(|left| left.saturating_sub(AHEAD_BYTES).saturating_mul(2));
        least.map_or(WINDOW_BYTES, |target| target.clamp(STARVED, WINDOW_BYTES))
    }

    /// The neighbour that sent last.
    fn sender(&self) -> Option<&Window> {
        let sender = self.sender.and_then(|channel| self.channels.get(&channel));
        sender.filter(|window| !window.is_full())
    }
}

#[cfg(test)]
mod tests;
