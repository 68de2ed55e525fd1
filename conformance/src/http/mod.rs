//! Origins that follow a script per path, and a caller that reads by the letter.

mod caller;
mod caller_h2;
mod ledger;
mod origin;
mod request;
mod script;

pub use caller::{Answer, Caller, End, Received, Request};
pub use ledger::Seen;
pub use origin::Origin;
pub(crate) use origin::{Shared, Transport};
pub use script::{Accept, Opening, Script, Step};
