//! The two response fields that every answer carries (contract E-4), by the structured-field rules
//! of RFC 9651.

use journal::contract::{InvocationId, Verdict};

/// What stands in one `Proxy-Status` member of ours (RFC 9209), beside the proxy's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status<'a> {
    /// The error type token.
    pub error: Option<&'a str>,
    /// The status that the origin sent.
    pub received_status: Option<u16>,
    /// The hop that the broker asked, `host:port`.
    pub next_hop: Option<&'a str>,
    /// One sentence, ASCII.
    pub details: Option<&'a str>,
}

/// Our member of `Proxy-Status`.
#[must_use]
pub fn proxy_status(_status: &Status<'_>) -> String {
    String::new()
}

/// `Affiant-Outcome`: the outcome as a token with its parameters.
#[must_use]
pub fn affiant_outcome(_verdict: Verdict, _id: Option<InvocationId>, _replayed: bool) -> String {
    String::new()
}
