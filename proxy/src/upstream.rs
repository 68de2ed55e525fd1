//! The way to the origin: setting a connection up, keeping it, and the one exchange at a time that
//! it carries.

pub(crate) mod dial;
pub(crate) mod exchange;
mod extended;
mod facts;
mod http1;
pub(crate) mod http2;
pub(crate) mod parent;
mod pinned;
pub(crate) mod pool;
mod race;
mod resolve;
pub(crate) mod tls;
pub(crate) mod versions;
