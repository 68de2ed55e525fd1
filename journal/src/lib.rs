//! The evidence of Affiant: contract types, projection and recovery (pure), log and result store.
//!
//! ```text
//!  Call ──► projection (check) ──► queue ──► writer thread ──► segments   (the only truth)
//!                                               │ durable
//!                                               └──► projector thread ──► LMDB index (derived)
//! ```
//!
//! The log is the only evidence. The index can be deleted at any time and is rebuilt from the log.
//! Nothing in here knows an outside protocol, sends a request or decides a policy.

pub mod action;
pub mod append;
pub mod checkpoint;
pub mod contract;
pub mod export;
pub mod failpoint;
pub mod lease;
pub mod maintain;
pub mod open;
pub mod projection;
pub mod read;
pub mod repair;
pub mod result;
pub mod seal;
pub mod tally;
pub mod verify;

mod admission;
mod call;
mod clock;
mod core;
mod enqueue;
mod entry;
mod guard;
mod held;
mod index;
mod key;
mod ledger;
mod list;
mod live;
mod log;
mod options;
mod projector;
mod queue;
mod reopen;
mod replay;
mod retry;
mod startup;
mod strangers;
mod whole_file;
mod writer;

#[cfg(test)]
extern crate self as journal;
#[cfg(test)]
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test names one variant and fails on all others"
)]
mod tests;

pub use call::{Call, Dispatched, Settled};
pub use guard::{Admission, Choice, Guard, Key, Outstanding};
pub use held::{DecideError, MAX_HELD, Question, Resumed};
pub use lease::Lease;
pub use live::{Journal, Ticket};
pub use options::{Filter, Maintained, Options, Page, Recovery, Retention, Stats};
pub use projection::{Delivery, IllegalEvent, Invocation, LeaseState, Standing, State};
pub use result::{ResultKey, StoredResult, Stream};
pub use retry::StoredRequest;
pub use strangers::Strangers;
pub use verify::{Against, Verified, verify, verify_against};
