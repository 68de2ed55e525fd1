//! HTTP/1.1 origins that follow a script per path.

mod origin;
mod script;

pub use origin::{Origin, Seen};
pub use script::{Script, Step};
