//! What an origin does with a request on a stream, step by step.

use bytes::Bytes;

/// The last stream that a GOAWAY names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// A stream before the request's own: it was not processed (RFC 9113 section 6.8).
    Before,
    /// The request's own stream.
    This,
    /// The highest that can be: an end that is announced.
    Highest,
}

/// Where a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStream {
    /// The request's own stream.
    This,
    /// The connection.
    Connection,
    /// A stream that nobody opened.
    Unopened,
}

/// One step of an origin after it has read the HEADERS of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reads the content to its END_STREAM.
    ReadBody,
    /// Reads one frame of the content.
    ReadSome,
    /// Reads so many bytes of what a stream that was opened carries.
    ReadBytes(usize),
    /// Applies the effect: the ledger counts it.
    Apply,
    /// HEADERS: `:status` and field lines as they are, names included.
    Head {
        /// The status.
        status: u16,
        /// Field lines.
        fields: Vec<(String, String)>,
        /// Whether END_STREAM is set.
        end: bool,
    },
    /// HEADERS of these lines alone: trailers, or a head without `:status`.
    Lines {
        /// Field lines.
        fields: Vec<(String, String)>,
        /// Whether END_STREAM is set.
        end: bool,
    },
    /// One DATA frame.
    Data {
        /// Its content.
        content: Bytes,
        /// Whether END_STREAM is set.
        end: bool,
    },
    /// RST_STREAM with an error code.
    ResetStream(u32),
    /// GOAWAY with an error code.
    GoAway(Last, u32),
    /// A frame as it is.
    Frame {
        /// Its type.
        kind: u8,
        /// Its flags.
        flags: u8,
        /// Its stream.
        on: OnStream,
        /// Its payload.
        payload: Bytes,
    },
    /// Bytes that are no frame.
    Bytes(Bytes),
    /// Closes the connection in order.
    Close,
    /// Closes the transport without the close_notify of TLS.
    CutTls,
    /// Resets the connection.
    Reset,
    /// Reads and sends nothing more and keeps the connection open.
    Stall,
}
