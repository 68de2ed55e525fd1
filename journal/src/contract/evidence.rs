//! What an answer shows of how the broker knows (contract E-2).

use super::{
    Completion, Digest, Fingerprint, InvocationId, PeerIdentity, Sequence, SetupAttempt, Source,
    SshEnd, wire::wire_enum,
};
use serde::{Deserialize, Serialize};

wire_enum! {
    /// What policy says of the remote's idempotency contract (contract K-1).
    "remote contract" enum RemoteContract {
        /// The service accepts the key, compares the request, keeps the first result and returns it.
        Verified = "verified",
        /// A key is sent, but nothing is promised for a repeat.
        Unverified = "unverified",
    }
}

/// The four facts stored before dispatch (contract K-2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// The key that goes out with the request.
    pub key: String,
    /// The remote scope.
    pub scope: String,
    /// The fingerprint that the key stands for.
    pub fingerprint: Fingerprint,
    /// When the remote may forget the key, in milliseconds since 1970 (contract K-5).
    pub expires_at_ms: u64,
    /// What policy says of the remote.
    pub remote_contract: RemoteContract,
    /// The header field that the broker adds it in, where it is a key of the broker's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub added_as: Option<String>,
}

/// What keys of the broker's own begin with; a ULID follows.
const OWN_KEY: &str = "req_";

impl Idempotency {
    /// A key of the broker's own, named by an id that stands for nothing else.
    #[must_use]
    pub fn own_key(id: InvocationId) -> String {
        let text = id.to_string();
        format!("{OWN_KEY}{}", text.rsplit('_').next().unwrap_or_default())
    }

    /// Whether a text has the form of a key of the broker's own.
    #[must_use]
    pub fn is_own_key(text: &str) -> bool {
        text.strip_prefix(OWN_KEY)
            .is_some_and(|ulid| format!("act_{ulid}").parse::<InvocationId>().is_ok())
    }

    /// Whether the same key goes out in the same place, whatever else is said of it now. The key of
    /// the broker's own is chosen once, and every later attempt takes it from the record.
    #[must_use]
    pub fn is_same_key(&self, other: &Self) -> bool {
        self.scope == other.scope
            && self.added_as == other.added_as
            && (self.added_as.is_some() || self.key == other.key)
    }
}

/// The evidence of one invocation. Never holds secrets, whole authorization headers or unfiltered
/// remote content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Whether `DISPATCH_STARTED` is on record.
    pub dispatch_started: bool,
    /// Whether the request left in full.
    pub request_complete: bool,
    /// Whether a final response head (SSH: an acceptance) was read.
    pub response_headers_received: bool,
    /// Whether the response was read to its completion marker.
    pub response_complete: bool,
    /// Number of the attempt, 0 before dispatch.
    pub attempt: u32,
    /// Tries at connection setup.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub attempts: Vec<SetupAttempt>,
    /// Journal sequence of the dispatch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dispatch_sequence: Option<Sequence>,
    /// The connection, unique within one process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connection: Option<u64>,
    /// Whether that connection carried requests before.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connection_reused: Option<bool>,
    /// Who was proven to be at the other end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<PeerIdentity>,
    /// Fingerprint of the request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<Fingerprint>,
    /// What proved the response complete.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completion: Option<Completion>,
    /// The HTTP status of the remote.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// How the SSH command ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ssh_end: Option<SshEnd>,
    /// The remote's own id of the request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remote_request_id: Option<String>,
    /// Digest of the response content.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub response_digest: Option<Digest>,
    /// Content bytes of the response seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub response_bytes: Option<u64>,
    /// Whether an echoed credential was replaced.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub redacted: bool,
    /// Whether the stored result can be fetched by the invocation id.
    #[serde(default)]
    pub result_stored: bool,
    /// The idempotency key and its contract.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idempotency: Option<Idempotency>,
    /// The source of the event that decided the outcome.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<Source>,
}
