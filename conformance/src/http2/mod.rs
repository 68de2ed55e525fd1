//! HTTP/2 on the origin's side, frame by frame: what a library would never send can be sent.

mod frames;
mod script;
mod session;

pub use frames::kind;
pub use script::{Last, OnStream, Step};
pub(crate) use session::serve;
