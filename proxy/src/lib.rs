//! The HTTP gateway: a forward proxy that intercepts TLS, injects credentials, records every call
//! before its first byte leaves, and tells the caller what is known of its outcome.

mod ca;
mod proxy;
pub mod render;

pub use ca::{Ca, Error as CaError};
pub use proxy::{Control, Error, Options, Proxy};
