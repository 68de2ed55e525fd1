//! The case language: what a peer does, what that makes true, and which rule says so.
//!
//! A [`Case`] is written once for all methods and transports. With a [`Shape`] it gives the peer's
//! script and the [`Truth`]: what an honest broker can know at the end. From truth, method and the
//! route's contract [`expect`] derives outcome, instruction and evidence, in code that shares
//! nothing with the broker's.

mod expect;
mod grpc;
mod http1;
mod http2;
mod table;
mod websocket;

pub use expect::{Expected, expect};

use crate::http::{Opening, Step};
use crate::http2::Step as Frame;
use journal::contract::Code;
use std::sync::Arc;

/// A field that every scripted response carries, so that a relayed response is told from one that
/// the broker made.
pub const MARK: &str = "Conformance-Origin";

/// What a caller of a WebSocket sends without waiting for the switch: a masked text message.
pub const EARLY: &[u8] = b"\x81\x85\0\0\0\0early";

/// How caller and broker, and broker and origin, speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pairing {
    /// HTTP/1.1 on both sides.
    Http1,
    /// HTTP/2 between caller and broker, in a tunnel; HTTP/1.1 between broker and origin.
    Http2Caller,
    /// HTTP/1.1 between caller and broker; HTTP/2, which alone it speaks, between broker and origin.
    Http2Origin,
    /// HTTP/2 on both sides.
    Http2,
    /// gRPC, by HTTP/2 on both sides.
    Grpc,
    /// A WebSocket, by HTTP/1.1 on both sides.
    WebSocket,
    /// A WebSocket, by HTTP/2 (RFC 8441) between caller and broker alone.
    WebSocketCaller,
    /// A WebSocket, by HTTP/2 between broker and origin alone.
    WebSocketOrigin,
    /// A WebSocket, by HTTP/2 on both sides.
    WebSocketStreams,
}

impl Pairing {
    /// The name in ids of rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "h1",
            Self::Http2Caller => "h2-h1",
            Self::Http2Origin => "h1-h2",
            Self::Http2 => "h2",
            Self::Grpc => "grpc",
            Self::WebSocket => "ws",
            Self::WebSocketCaller => "ws-h2-h1",
            Self::WebSocketOrigin => "ws-h1-h2",
            Self::WebSocketStreams => "ws-h2",
        }
    }

    /// Whether the caller speaks HTTP/2.
    #[must_use]
    pub const fn caller_speaks_http2(self) -> bool {
        match self {
            Self::Http2Caller
            | Self::Http2
            | Self::Grpc
            | Self::WebSocketCaller
            | Self::WebSocketStreams => true,
            Self::Http1 | Self::Http2Origin | Self::WebSocket | Self::WebSocketOrigin => false,
        }
    }

    /// Whether the origin speaks HTTP/2.
    #[must_use]
    pub const fn origin_speaks_http2(self) -> bool {
        match self {
            Self::Http2Origin
            | Self::Http2
            | Self::Grpc
            | Self::WebSocketOrigin
            | Self::WebSocketStreams => true,
            Self::Http1 | Self::Http2Caller | Self::WebSocket | Self::WebSocketCaller => false,
        }
    }

    /// Whether the two sides speak different protocols.
    #[must_use]
    pub const fn is_crossed(self) -> bool {
        self.caller_speaks_http2() != self.origin_speaks_http2()
    }

    /// Whether the caller asks for a WebSocket.
    #[must_use]
    pub const fn is_websocket(self) -> bool {
        match self {
            Self::WebSocket
            | Self::WebSocketCaller
            | Self::WebSocketOrigin
            | Self::WebSocketStreams => true,
            Self::Http1 | Self::Http2Caller | Self::Http2Origin | Self::Http2 | Self::Grpc => false,
        }
    }
}

/// What a case is about: which pairings it means something in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// An origin of HTTP/1.1.
    Http1,
    /// An origin of HTTP/2.
    Http2,
    /// A service of gRPC.
    Grpc,
    /// A WebSocket at an origin of HTTP/1.1.
    WebSocket,
    /// A WebSocket at an origin of HTTP/2.
    WebSocketStreams,
}

impl Family {
    const fn fits(self, pairing: Pairing) -> bool {
        matches!(
            (self, pairing),
            (Self::Http1, Pairing::Http1 | Pairing::Http2Caller)
                | (Self::Http2, Pairing::Http2Origin | Pairing::Http2)
                | (Self::Grpc, Pairing::Grpc)
                | (Self::WebSocket, Pairing::WebSocket | Pairing::WebSocketCaller)
                | (Self::WebSocketStreams, Pairing::WebSocketOrigin | Pairing::WebSocketStreams)
        )
    }
}

/// Every case.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = http1::cases();
    cases.extend(http2::cases());
    cases.extend(grpc::cases());
    cases.extend(websocket::cases());
    cases
}

/// The method of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// PUT
    Put,
    /// POST
    Post,
    /// DELETE
    Delete,
}

impl Method {
    /// Every method of the matrix.
    pub const ALL: [Self; 5] = [Self::Get, Self::Head, Self::Put, Self::Post, Self::Delete];

    /// As it stands in a request.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }

    /// Whether its requests carry content here.
    #[must_use]
    pub const fn has_content(self) -> bool {
        matches!(self, Self::Put | Self::Post)
    }
}

/// What the route declares of repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Contract {
    /// Nothing: the method decides.
    Plain,
    /// `idempotent = true`.
    Idempotent,
    /// `idempotent = false`.
    Once,
    /// A verified idempotency key, and the request carries one.
    Key,
}

impl Contract {
    /// The name in ids of rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Idempotent => "idempotent",
            Self::Once => "once",
            Self::Key => "key",
        }
    }
}

/// What a case is played with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// The protocols.
    pub pairing: Pairing,
    /// The method.
    pub method: Method,
    /// Whether both sides use TLS.
    pub tls: bool,
    /// Whether the connection to the origin served a request before.
    pub reused: bool,
    /// Whether the response is an event stream, which has to be passed on as it comes.
    pub streamed: bool,
}

impl Shape {
    /// Whether a response with content has it on the wire.
    #[must_use]
    pub const fn bodied(&self) -> bool {
        !matches!(self.method, Method::Head)
    }
}

/// The identity that the origin shows over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A certificate of the trusted authority for the right name.
    Trusted,
    /// A certificate of another authority.
    Stranger,
    /// A certificate for another name.
    WrongName,
    /// A certificate that expired.
    Expired,
}

/// What stands at the other end.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Whether anything listens.
    pub listens: bool,
    /// What it does with connections.
    pub opening: Opening,
    /// What it shows over TLS.
    pub identity: Identity,
    /// What it does with the request.
    pub steps: Vec<Step>,
    /// The same on a connection of HTTP/2.
    pub frames: Vec<Frame>,
    /// What became of the connection with the request before this one.
    pub then: Then,
}

/// What an origin does with the connection of an earlier request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It takes further requests.
    Serves,
    /// It closes it, which makes it stale.
    Closes,
    /// It says that it takes no further stream (RFC 9113 section 5.1.2), and leaves it open.
    IsFull,
}

/// What a perfect observer at the broker's place can know at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// Nothing of the request was handed to a transport that leads to the origin.
    Untouched(&'static [Code]),
    /// The origin may have acted, and no complete, deciding answer exists.
    Open {
        /// The codes that say so rightly.
        codes: &'static [Code],
        /// Whether a complete response head was there.
        head: bool,
    },
    /// The protocol itself says that the request was not processed (contract C-6).
    Refused,
    /// The connection became a WebSocket: what passes inside is not judged.
    Passed {
        /// What comes to the caller.
        content: String,
        /// The codes that tell its end rightly.
        codes: &'static [Code],
    },
    /// A complete answer of gRPC exists.
    Grpc {
        /// Its `grpc-status`.
        status: u8,
        /// Its content.
        content: String,
    },
    /// A complete answer exists.
    Settled {
        /// Its status.
        status: u16,
        /// Whether it names a time for a repeat.
        retry_after: bool,
        /// Its content.
        content: String,
    },
    /// A complete answer exists whose status would tell this caller that its WebSocket is open.
    Misleading {
        /// Its status.
        status: u16,
        /// The status that the caller gets.
        shown: u16,
        /// Its content.
        content: String,
    },
    /// The specification or a race leaves more than one honest answer.
    Either(Vec<Truth>),
}

type Script = Arc<dyn Fn(&Shape) -> Peer + Send + Sync>;
type Oracle = Arc<dyn Fn(&Shape) -> Truth + Send + Sync>;
type Filter = Arc<dyn Fn(&Shape) -> bool + Send + Sync>;

/// One case.
#[derive(Clone)]
pub struct Case {
    /// Its name, unique.
    pub name: String,
    /// Where it means something.
    pub family: Family,
    /// The contract rules and RFC sections that it holds.
    pub rule: &'static str,
    /// Bytes of request content, for methods that have any.
    pub request_bytes: usize,
    script: Script,
    truth: Oracle,
    applies: Filter,
}

impl Case {
    /// The peer of this case.
    #[must_use]
    pub fn peer(&self, shape: &Shape) -> Peer {
        (self.script)(shape)
    }

    /// What is true at the end.
    #[must_use]
    pub fn truth(&self, shape: &Shape) -> Truth {
        (self.truth)(shape)
    }

    /// Whether the case means anything in this shape.
    #[must_use]
    pub fn applies(&self, shape: &Shape) -> bool {
        self.family.fits(shape.pairing) && (self.applies)(shape)
    }
}
