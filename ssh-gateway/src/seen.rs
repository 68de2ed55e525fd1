//! Everything that was seen of one command.

use crate::downstream::{Absence, End};
use crate::tally::{Sum, Tally};
use serde_json::{Value, json};

/// Why the gateway stopped reading by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The output passed the route's bound.
    OutputLimit,
    /// The input passed the route's bound.
    InputLimit,
    /// The target took no stdin for the route's time, and the channel's space for it was used up.
    InputStalled,
    /// More stdin came than the channel's space takes, though it got no new window.
    InputOverflow,
    /// More stdin came, and the space of all channels together is used up.
    InputPoolFull,
    /// The route's time for the command is over.
    Deadline,
    /// The target opened no forwarding in the time that the route gives a connection.
    NotOpened,
    /// The client has gone, and with it what the session was for.
    ClientGone(Absence),
    /// The client has gone, and what is read on for it is used up: time, or output.
    ReadOnOver,
}

/// Everything that was seen of one command.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The target's answer to the request.
    pub(crate) accepted: Option<bool>,
    /// Exit status or signal.
    pub(crate) end: Option<End>,
    /// The end of both streams.
    pub(crate) eof: bool,
    /// The orderly close of the channel.
    pub(crate) closed: bool,
    /// Output after the exit status.
    pub(crate) output_after_end: bool,
    /// What broke the protocol.
    pub(crate) violation: Option<&'static str>,
    /// Whether the last line of stdout met the route's mark of completion.
    pub(crate) completed: Option<bool>,
    /// Whether the exit status says, by the route's contract, that nothing was changed (contract K-9).
    pub(crate) is_refusal: bool,
    /// Whether it was a forwarding, which ends by its close alone.
    pub(crate) is_forwarding: bool,
    /// Why the gateway stopped reading.
    pub(crate) stop: Option<Stop>,
    /// The output, as the client gets it.
    pub(crate) tally: Tally,
    /// Whether an echoed credential was replaced.
    pub(crate) redacted: bool,
}

impl Seen {
    /// Both streams with length and digest, and which of the facts about the end came before the
    /// channel was over (contract S-1, S-8).
    pub(crate) fn streams(&self) -> String {
        let sum = |sum: &Sum| -> Value {
            json!({ "length_bytes": sum.length_bytes(), "digest": sum.digest() })
        };
        let detail = json!({
            "stdout": sum(self.tally.stdout()),
            "stderr": sum(self.tally.stderr()),
            "eof": self.eof,
            "end": self.end.as_ref().and_then(End::to_record),
            "close": self.closed,
        });
        detail.to_string()
    }
}
