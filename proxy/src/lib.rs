//! The HTTP gateway: a forward proxy that intercepts TLS, injects credentials, records every call
//! before its first byte leaves, and tells the caller what is known of its outcome.
//!
//! ```text
//!  caller ─► front ─► head ─► request ─► policy ─► journal ─► credential ─► dial / pool
//!             │                 └─ refuse: answer ◄─────────────────────────────┘
//!             │                                    DISPATCH_STARTED, durable: the proof
//!             └◄─ deliver ◄─ commit ◄─ relay ◄──────────── exchange ◄───────────┘
//! ```
//!
//! What holds here, and what is deliberately absent:
//!
//! - A connection to an origin has no method that writes; [`journal::Dispatched`], taken by value,
//!   is the only way to one that has (contract D-1).
//! - There is no resend, no retry and no following of redirects, in here or below (D-7).
//! - A response that is held goes out only after its outcome is durable (R-1); a streamed one says
//!   `unknown` until its trailers.
//! - The heads of both sides are parsed and written by this crate, byte for byte; pingora reads the
//!   content of requests, and chunks are judged a second time beside it. No head is repaired: what
//!   is doubtful is refused. A caller of HTTP/2 is served by the same engine: its streams take and
//!   give what HTTP/1.1 would, and frames are the transport.
//! - The credential is in one buffer that is zeroed, and in the search that redacts it, and nowhere
//!   else: not in an error, a record, a log line or a pool key (I-2). Towards an origin of HTTP/2 it
//!   is in the frames, too, until they are sent; no table of the header compression keeps it.
//! - Identity and policy are asked for every request, inside of tunnels as well.

mod access;
mod address;
mod again;
mod ahead;
mod answer;
mod batch;
mod body;
mod ca;
mod carrier;
mod connect;
mod control;
mod deliver;
mod engine;
mod fingerprint;
mod front;
mod grpc;
mod handover;
mod head;
mod held;
mod hello;
mod hops;
mod http2;
mod incoming;
mod inject;
mod job;
mod judge;
mod key;
mod listener;
mod outgoing;
mod packed;
mod passage;
mod pieces;
mod proxy;
mod pump;
mod reconcile;
mod record;
mod redact;
mod redirect;
mod relay;
pub mod render;
mod request;
mod respond;
mod retry;
mod stored;
mod stream;
mod target;
mod unread;
mod upstream;
mod websocket;
mod wire;

pub use ca::{Ca, Error as CaError};
pub use handover::Fetched;
pub use listener::{Error as ListenerError, ListenerIdentity};
pub use proxy::{Control, Error, Options, Proxy};
