//! SSH targets that follow a script, on an implementation of the transport of their own (RFC 4253
//! with curve25519-sha256, ssh-ed25519 and aes256-gcm): what no library would send can be sent, and
//! nothing is shared with the gateway's engine. The other end is stock OpenSSH.

mod cases;
mod client;
mod exchange;
mod judge;
mod jump;
mod play;
mod raw;
mod script;
mod target;
mod wire;

pub use cases::{Case, Expected, Truth, cases};
pub(crate) use client::run;
pub use jump::{Jump, gateway};
pub use play::{Asked, Gateway, Placed, Row, rows};
pub use raw::Raw;
pub use script::{Opening, Stage, Step};
pub use target::{Target, user_key};
