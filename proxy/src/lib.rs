//! The HTTP gateway: a forward proxy that intercepts TLS, injects credentials, records every call
//! before its first byte leaves, and tells the caller what is known of its outcome.

mod address;
mod answer;
mod body;
mod ca;
mod control;
mod deliver;
mod engine;
mod fingerprint;
mod front;
mod head;
mod incoming;
mod outgoing;
mod proxy;
mod record;
mod redact;
mod relay;
pub mod render;
mod request;
mod respond;
mod stream;
mod target;
mod upstream;

pub use ca::{Ca, Error as CaError};
pub use proxy::{Control, Error, Options, Proxy};
