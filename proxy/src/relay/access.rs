//! What becomes of an exchange whose agent's access ends while it is under way.

use super::{Down, Relay};
use crate::deliver::Delivery;
use crate::respond::Broken;

impl Relay<'_> {
    /// Looks whether the caller may still have it open.
    pub(super) fn look(&mut self) -> Result<(), Broken> {
        match self.parts.caller {
            Some(caller) if !self.access_over && caller.identity().is_none() => self.access_ends(),
            Some(_) | None => Ok(()),
        }
    }

    /// Cuts the caller. A request that is still going out is broken off, as when the caller breaks it off
    /// itself; the answer to a whole one is read on for the record (contract D-4).
    pub(super) fn access_ends(&mut self) -> Result<(), Broken> {
        self.access_over = true;
        self.parts.call.note("access_over", "the agent's access ended; its side was cut");
        if self.sending {
            return Err(Broken::AccessOver);
        }
        self.parts.keep_alive = false;
        self.parts.out.cut(matches!(self.down, Down::Streaming(Delivery::Close)));
        if matches!(self.down, Down::Streaming(_)) {
            self.down = Down::Gone;
        }
        Ok(())
    }
}
