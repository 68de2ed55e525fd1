//! What an answer shows of how the broker knows (contract E-2).

use super::{
    Completion, Digest, Fingerprint, InvocationId, KeyPlace, PeerIdentity, Sequence, SetupAttempt,
    Source, SshEnd, wire::wire_enum,
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
    /// Where the broker adds it, if it is a key of the broker's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub added_as: Option<KeyPlace>,
}

/// What keys of the broker's own in header fields begin with; a ULID follows.
const OWN_KEY: &str = "req_";
/// Bytes of a UUID that name; the others show who made it.
const NAMING: usize = 12;

impl Idempotency {
    /// A key of the broker's own, named by an id that stands for nothing else: in header fields
    /// `req_` and a ULID, elsewhere a UUID, because the services that take keys there ask for one.
    #[must_use]
    pub fn own_key(id: InvocationId, place: &KeyPlace) -> String {
        let text = id.to_string();
        match place {
            KeyPlace::Header(_) => {
                format!("{OWN_KEY}{}", text.rsplit('_').next().unwrap_or_default())
            }
            KeyPlace::Query(_) | KeyPlace::Form(_) | KeyPlace::Json(_) => uuid_of(&text),
        }
    }

    /// Whether a text has the form of a key of the broker's own.
    #[must_use]
    pub fn is_own_key(text: &str) -> bool {
        let ulid = text.strip_prefix(OWN_KEY);
        ulid.is_some_and(|ulid| format!("act_{ulid}").parse::<InvocationId>().is_ok())
            || is_own_uuid(text)
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

/// A UUID of version 4 (RFC 9562 section 5.4) for a text. Its last four bytes are a digest of the
/// others, so that it can be told from a caller's own.
fn uuid_of(text: &str) -> String {
    let Digest(mut digest) = Digest::of(text.as_bytes());
    let [_, _, _, _, _, _, version, _, variant, ..] = &mut digest;
    *version = 0x40 | (*version & 0x0f);
    *variant = 0x80 | (*variant & 0x3f);
    let naming = digest.get(..NAMING).unwrap_or_default();
    let hex: String = naming.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = format!("{hex}{}", check_of(&hex));
    let mut out = String::with_capacity(36);
    for (at, digit) in hex.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            out.push('-');
        }
        out.push(digit);
    }
    out
}

/// The digits that show who made a UUID of these digits.
fn check_of(naming: &str) -> String {
    let Digest(digest) = Digest::of(format!("affiant key {naming}").as_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

fn is_own_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23].map(|at| text.as_bytes().get(at) == Some(&b'-'));
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let halves = hex.split_at_checked(2 * NAMING);
    text.len() == 36
        && dashes == [true; 4]
        && halves.is_some_and(|(naming, check)| check == check_of(naming))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// K-2, K-3: keys of the broker's own have the form that their place asks for, and are told from
    /// a caller's.
    #[test]
    fn k_3_keys_of_our_own_are_known_by_their_form() {
        let id: InvocationId = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().expect("id");
        let header = Idempotency::own_key(id, &KeyPlace::Header("k".into()));
        assert_eq!(header, "req_01ARZ3NDEKTSV4RRFFQ69G5FAV");
        let uuid = Idempotency::own_key(id, &KeyPlace::Query("k".into()));
        assert_eq!(uuid, Idempotency::own_key(id, &KeyPlace::Json("/k".into())));
        let fixed: Vec<char> =
            [8, 13, 14, 18, 23].map(|at| uuid.chars().nth(at).expect("c")).into();
        assert_eq!((uuid.len(), &*fixed), (36, &['-', '-', '4', '-', '-'][..]), "{uuid}");
        assert!("89ab".contains(uuid.chars().nth(19).expect("variant")), "{uuid}");
        assert!(Idempotency::is_own_key(&header) && Idempotency::is_own_key(&uuid));
        for other in [
            "6ba7b810-9dad-41d1-80b4-00c04fd430c8",
            &uuid.to_uppercase(),
            &uuid.replace('-', ""),
            "req_x",
            "",
            "\u{e9}",
        ] {
            assert!(!Idempotency::is_own_key(other), "{other}");
        }
    }
}
