//! The JSON that errors of the broker's own carry (contract E-1).

use super::{Evidence, InvocationId, Verdict};
use serde::{Deserialize, Serialize};

/// The envelope: media type `application/problem+json` (RFC 9457 members may stand beside it).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The invocation.
    pub invocation_id: InvocationId,
    /// What happened, and what to do next.
    pub error: Problem,
    /// How the broker knows.
    pub evidence: Evidence,
}

/// The verdict with its words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Phase, outcome, retry and code.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// One sentence for people.
    pub message: String,
    /// The path of the field that the caller can correct.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field: Option<String>,
    /// When a repeat may follow, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_before_ms: Option<u64>,
    /// The earlier invocation whose instruction holds instead (contract K-11).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub follow: Option<InvocationId>,
}
