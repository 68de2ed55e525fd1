//! The SSH gateway: ends the inner session of `ssh -J`, injects the credential, and puts the
//! dispatch of every command on durable record before the target can hear of it.

mod address;
mod algorithms;
mod client_config;
pub mod demo;
mod downstream;
mod flag;
mod gateway;
mod identity;
mod inner;
mod invocation;
mod line;
mod options;
mod outer;
mod redact;
mod relay;
mod replay;
mod request;
mod respond;
mod spool;
mod upstream;

pub use client_config::{ClientConfig, client_config};
pub use gateway::Gateway;
pub use identity::{Error as IdentityError, Identity};
pub use options::Options;
