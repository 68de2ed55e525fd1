//! The SSH gateway: ends the inner session of `ssh -J`, injects the credential, and puts the
//! dispatch of every command on durable record before the target can hear of it.
//!
//! ```text
//!  client ══ outer hop (agent logs in) ══╗
//!         ── inner hop (host certificate of the target's name, `none`) ──► one task per command
//!                                                                             │
//!        admit ─► decide ─► inject ─► connect ─► DISPATCH_STARTED durable ─► request ─► relay
//!                                                                             │
//!        answer ◄─ exit status held back until RESULT_COMMITTED is durable ◄──┘
//! ```
//!
//! One upstream connection per command: a stall stops that command alone, and the target's own log
//! lines up with our records. russh is used as released and only in this crate.
//!
//! Besides, `ssh 'USER%TARGET'@GATEWAY` leads to a target without a jump, and `ssh AGENT@GATEWAY
//! inv ...` reads the agent's own records.
//!
//! What it does not do: it asks nobody and learns no host key by itself, and it forwards no agents
//! or displays. Three limits come with the engine. A client
//! that closes its stdout early is not seen, so an endless producer (`ssh t yes | head -1`) runs on
//! until the route's `output_bytes`, its `response_timeout` or the user ends it. A variable whose
//! value is not UTF-8 ends the inner connection. A command is accepted before its verdict is known,
//! and a refusal is told by stderr and exit status 255.

mod address;
mod agent;
mod algorithms;
mod alive;
mod cast;
mod channel;
mod client_config;
mod control;
mod delivery;
pub mod demo;
mod door;
mod downstream;
mod flag;
mod gateway;
mod gauge;
mod hop;
mod identity;
mod invocation;
mod jump;
mod keep;
mod known_hosts;
mod line;
mod opaque;
mod options;
mod own;
mod redact;
mod relay;
mod repeat;
mod replay;
mod request;
mod respond;
mod seen;
mod sftp;
mod spool;
mod stored;
mod tally;
mod upstream;
mod windows;

pub use client_config::{ClientConfig, client_config};
pub use control::Control;
pub use gateway::Gateway;
pub use identity::{Error as IdentityError, Identity};
pub use options::Options;
pub use stored::StoredCommand;
