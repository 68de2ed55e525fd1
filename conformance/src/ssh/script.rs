//! What a target does, step by step.

use crate::peer::Way;
use bytes::Bytes;

/// A stage of the setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The connection is there.
    Connected,
    /// Both versions were said.
    Versions,
    /// The login is asked for.
    Login,
    /// A channel is asked for.
    Channel,
}

/// What a target does with a connection before the request that the broker brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Serves it.
    Serve,
    /// Gives it up at a stage.
    Ends(Stage, Way),
    /// Says that it speaks HTTP, and closes.
    NotSsh,
    /// Says that its first packet is 4 GB long, and nothing more.
    LongPacket,
    /// Signs the exchange with another key than it shows.
    BadSignature,
    /// Refuses every login.
    RefuseLogin,
    /// Refuses the session channel.
    RefuseChannel,
}

/// One step of a target after it has read the request for a command, a shell or a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Applies the effect: the ledger counts it.
    Apply,
    /// Accepts the request.
    Accept,
    /// Refuses the request.
    Refuse,
    /// Reads stdin to its end.
    ReadStdin,
    /// Sends what was read of stdin on stdout.
    Echo,
    /// Sends on stdout.
    Stdout(Bytes),
    /// Sends on stderr.
    Stderr(Bytes),
    /// Sends on a channel that nobody opened.
    Elsewhere(Bytes),
    /// Sends on stdout until the peer ends the connection, whatever window it gives.
    Flood,
    /// Lets the peer send so many bytes more.
    Grant(u32),
    /// Waits until the owner of the target says `go`.
    Await,
    /// Sends an exit status.
    ExitStatus(u32),
    /// Sends an exit signal.
    ExitSignal(&'static str),
    /// Ends both output streams.
    Eof,
    /// Closes the channel.
    CloseChannel,
    /// Sends SSH_MSG_DISCONNECT and closes the connection.
    Disconnect,
    /// Sends the payload of a packet as it is.
    Message(Bytes),
    /// Sends bytes that are no packet.
    Bytes(Bytes),
    /// Waits until the peer has answered all that was sent before, and then goes on: what comes next
    /// can't overtake it.
    Settle,
    /// Closes the connection in order.
    Close,
    /// Resets the connection.
    Reset,
    /// Sends nothing more and keeps the connection open.
    Stall,
}
