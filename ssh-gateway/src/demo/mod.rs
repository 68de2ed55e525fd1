//! An SSH target and a client inside the process, for `affiant demo` and for tests: nothing has to
//! be installed.

mod client;
mod target;

pub use client::{Client, ClientError, Login, Output};
pub use target::{Target, TargetError};
