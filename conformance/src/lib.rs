//! Hostile and honest peers that count on their own side what really happened.
//!
//! A peer follows a script and keeps a ledger: which requests arrived, byte for byte, and how many
//! effects it applied. Tests compare the ledger with what the broker's records claim. Nothing in
//! here knows the broker: it sees sockets, and the contract's types at most.

pub mod baseline;
pub mod case;
pub mod cases;
pub mod fields;
pub mod http;
pub mod http2;
pub mod kill;
pub mod matrix;
pub mod nginx;
pub mod numbers;
pub mod peer;
pub mod pki;
pub mod rules;
pub mod service;
pub mod soak;
pub mod ssh;
pub mod subject;
