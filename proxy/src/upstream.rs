//! The way to the origin: setting a connection up, keeping it, and the one exchange at a time that
//! it carries.

pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod http2;
pub(crate) mod pool;
pub(crate) mod tls;
pub(crate) mod versions;
