//! The parsers of peer input and of the log, taken into this crate by path so that what is private
//! to its crate can be fuzzed, and the properties that hold for every input.
//!
//! Nothing of it is built for unit tests: those of the parsers belong to the parsers' crates.

#![cfg_attr(not(test), allow(dead_code, unused_imports, reason = "only the parsers are used"))]

#[cfg(not(test))]
#[rustfmt::skip]
#[path = "../../../proxy/src/body.rs"]
mod body;
#[cfg(not(test))]
pub mod checks;
#[cfg(not(test))]
#[rustfmt::skip]
#[path = "../../../journal/src/log/format.rs"]
mod format;
#[cfg(not(test))]
#[rustfmt::skip]
#[path = "../../../proxy/src/head.rs"]
mod head;
#[cfg(not(test))]
#[rustfmt::skip]
#[path = "../../../ssh-gateway/src/sftp.rs"]
mod sftp;
