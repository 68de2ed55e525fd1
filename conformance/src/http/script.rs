//! What an origin does with a request, step by step.

use super::Seen;
use crate::http2;
use crate::peer::Way;
use bytes::Bytes;
use std::time::Duration;

/// One step of an origin after it has read the head of a request.
#[derive(Debug, Clone)]
pub enum Step {
    /// Reads the content to its end.
    ReadBody,
    /// Reads so many bytes of the content, undecoded.
    ReadBytes(usize),
    /// Applies the effect: the ledger counts it.
    Apply,
    /// Sends bytes as they are.
    Send(Bytes),
    /// Switches to a WebSocket by a 101, with what comes behind it in the same write.
    Switch {
        /// How the request's key is answered.
        answer: Accept,
        /// The first bytes inside.
        after: Bytes,
    },
    /// Sends bytes one at a time, each in a write of its own.
    Drip(Bytes),
    /// Sends back what comes, while it comes: so many bytes, or all until the other side ends.
    Echo(u64),
    /// Waits before the next step.
    Pause(Duration),
    /// Waits until [`super::Origin::release`] or [`super::Origin::release_one`] lets it go on.
    Hold,
    /// Goes on with the steps that the request decides, as far as it was read.
    Then(fn(&Seen) -> Vec<Step>),
    /// Closes the connection in order (over TLS with close_notify).
    Close,
    /// Ends the sending direction in order, then reads until the other side closes.
    Linger,
    /// Closes the transport without the close_notify of TLS.
    CutTls,
    /// Resets the connection.
    Reset,
    /// Sends nothing more and keeps the connection open.
    Stall,
}

/// How the key of an upgrade is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// As RFC 6455 section 4.2.2 has it.
    Right,
    /// With something else.
    Wrong,
    /// As it should be, and with an extension.
    Extended,
}

/// What an origin does with a new connection, before any request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Opening {
    /// Serves it.
    #[default]
    Serve,
    /// Serves it, and over HTTP/2 takes no extended CONNECT.
    WithoutWebSockets,
    /// Gives it up at once, unread.
    GivesUp(Way),
    /// Reads the first bytes (of TLS: the ClientHello), then closes.
    CloseAfterHello,
    /// Reads the first bytes, then answers in clear text.
    ClearText,
    /// Reads and never answers.
    Silent,
}

/// What happens at one path.
#[derive(Debug, Clone)]
pub struct Script {
    /// The path it stands for; `/a/*` for every path below `/a`, `*` for every path that has no script
    /// of its own.
    pub path: String,
    /// The steps. A script that does not close keeps the connection for a next request.
    pub steps: Vec<Step>,
    /// The steps on a connection of HTTP/2.
    pub frames: Vec<http2::Step>,
}

impl Script {
    /// A script from steps.
    pub fn new(path: &str, steps: impl Into<Vec<Step>>) -> Self {
        Self { path: path.to_owned(), steps: steps.into(), frames: Vec::new() }
    }

    /// A script for connections of HTTP/2.
    pub fn on_streams(path: &str, frames: impl Into<Vec<http2::Step>>) -> Self {
        Self { path: path.to_owned(), steps: Vec::new(), frames: frames.into() }
    }

    /// Applies the effect and answers with status, extra field lines and a framed body.
    #[must_use]
    pub fn answer(path: &str, status: u16, fields: &[(&str, &str)], body: &str) -> Self {
        Self::new(path, [Step::ReadBody, Step::Apply, Step::Send(response(status, fields, body))])
    }

    /// Applies the effect and closes without a byte: the lost answer.
    #[must_use]
    pub fn apply_and_close(path: &str) -> Self {
        Self::new(path, [Step::ReadBody, Step::Apply, Step::Close])
    }
}

/// A whole response with `Content-Length`.
fn response(status: u16, fields: &[(&str, &str)], body: &str) -> Bytes {
    let mut text = format!("HTTP/1.1 {status} Scripted\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.push_str(body);
    Bytes::from(text)
}
