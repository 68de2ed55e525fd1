//! The truth matrix: every case in every shape and under every contract, played through a broker
//! and judged by what the origin counted.
//!
//! Two scores, both to be zero. A *lie* is a claim that the origin's count or the script refutes:
//! `not_attempted` after the peer saw a byte, a cut content passed on as whole, a second dispatch, a
//! permission to repeat what must not be repeated. A *shrug* is a fact that was there and was not
//! told: `unknown` where a complete answer came, a bare error where nothing was sent.

mod judge;
mod plan;
mod play;
mod report;

pub use judge::{Finding, Kind};
pub use plan::{Error as PlanError, Plan, Row, rows};
pub(crate) use report::at_a_time;
pub use report::{Played, Report, Tally};

use crate::http::Caller;

/// How a broker tells what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// By `Affiant-Outcome`, problem details and the control API.
    Affiant,
    /// By status and framing, and `Proxy-Status` where it has one.
    Plain,
}

/// Where origins listen.
pub const LOOPBACK: &str = "127.0.0.1";

/// The broker under test.
#[derive(Clone)]
pub struct Broker {
    /// Its name in reports.
    pub name: String,
    /// How it is called.
    pub caller: Caller,
    /// How it speaks.
    pub dialect: Dialect,
    /// Whether it was set up with the policy of the plan.
    pub contracts: bool,
    /// How an origin's host is named to it. Some certify names only, and no addresses.
    pub host: &'static str,
    /// Whether it takes HTTP/2 from callers.
    pub http2: bool,
}
