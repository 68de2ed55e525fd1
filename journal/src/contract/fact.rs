//! What events say: the facts that each of them puts on record.

use super::event::{Completion, Confirmation, Gateway, KeepResult, SetupStage};
use super::{
    Code, Digest, Fingerprint, Idempotency, InvocationId, Member, Sequence, SignalName, Verdict,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Deref;
use std::sync::Arc;

/// A fact that is read from several places and changed from none. Serialised as the fact itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Fact<T>(Arc<T>);

impl<T> Clone for Fact<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Fact<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> From<T> for Fact<T> {
    fn from(fact: T) -> Self {
        Self(Arc::new(fact))
    }
}

impl<T: Serialize> Serialize for Fact<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        T::serialize(self, serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fact<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

/// What the caller asked for, before policy was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// Which gateway took the call.
    pub gateway: Gateway,
    /// The agent, if one was authenticated.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub agent: Option<String>,
    /// The HTTP method, or the SSH request (`exec`, `shell`, `subsystem:sftp`).
    pub action: String,
    /// The target without userinfo, query values or secrets: `https://host:port/path`,
    /// `ssh://user@host:port`. Empty when it could not be read.
    pub target: String,
    /// SSH: the digest of the exact command bytes. Commands can hold secrets, so the text is kept
    /// only as the route says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command: Option<String>,
    /// The digest of what makes a request the same request. Absent when the request was refused
    /// before it could be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<Fingerprint>,
    /// Whether the id came from the caller (contract K-10).
    #[serde(default)]
    pub caller_id: bool,
    /// Whether it counts for a budget of its agent, once it is dispatched.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub counted: bool,
    /// An earlier invocation that this one refers to (a refused repeat, a redirect, a job).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<InvocationId>,
}

/// The action of a job that a submission started (contract M-7).
pub const JOB: &str = "JOB";

impl Accepted {
    /// Whether it is a job that a submission started: nothing that a caller asked for by itself.
    #[must_use]
    pub fn is_job(&self) -> bool {
        self.action == JOB
    }
}

/// What the invocation is bound to (contract V-5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preflight {
    /// The policy snapshot that decided.
    pub policy_version: u64,
    /// Under `egress = "observe"`: the code that the call would have been refused with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub would_deny: Option<Code>,
    /// The deciding route, or none under `egress = "allow"`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub route: Option<String>,
    /// The credential that will be injected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub credential: Option<CredentialUse>,
    /// Whether the operation is known to be idempotent (contract S-4).
    pub idempotent: bool,
    /// The key and its contract, stored before dispatch (contract K-2).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idempotency: Option<Idempotency>,
    /// What is kept of the result.
    pub keep: KeepResult,
    /// How long the result is kept, in seconds.
    pub keep_seconds: u64,
    /// How many bytes of results the route keeps in total; the oldest go first. None: no bound.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub keep_total_bytes: Option<u64>,
}

/// Which credential is used and how; never the credential (contract I-2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialUse {
    /// The credential's id in policy.
    pub id: String,
    /// The secret's version, a number that says nothing about its value.
    pub version: u64,
    /// The mode of injection.
    pub mode: String,
}

/// One try at setting up a connection (contract C-4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupAttempt {
    /// 1 for the first.
    pub n: u32,
    /// The stage reached.
    pub stage: SetupStage,
    /// `ok`, or an errno or protocol name such as `ECONNREFUSED`, `CERT_EXPIRED`.
    pub code: String,
    /// The address dialled, `ip:port`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
}

/// Who was proven to be at the other end (contract C-5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PeerIdentity {
    /// Clear text: nobody was proven.
    Unverified,
    /// TLS: the name that was verified and the digest of the leaf certificate.
    Tls {
        /// The verified name.
        name: String,
        /// SHA-256 of the leaf's DER.
        leaf: Digest,
        /// Whether the session was resumed.
        resumed: bool,
    },
    /// SSH: the host key as OpenSSH prints it (`SHA256:...`).
    SshHost {
        /// The fingerprint.
        fingerprint: String,
    },
}

/// The crossing of the dispatch boundary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The connection, unique within the process.
    pub connection: u64,
    /// Whether the connection carried requests before (contract C-3).
    pub reused: bool,
    /// The address of the peer.
    pub address: String,
    /// The verified identity.
    pub peer: PeerIdentity,
    /// The fingerprint of what will be sent (contract V-6).
    pub fingerprint: Fingerprint,
}

/// The request left in full (contract D-2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSent {
    /// Content bytes as the caller sent them.
    pub length_bytes: u64,
    /// Their digest.
    pub digest: Digest,
}

/// The response began (contract D-2, D-3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseStarted {
    /// HTTP: the final status. SSH: absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
    /// The remote's own id of the request (`x-request-id` and the like).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remote_request_id: Option<String>,
}

/// How an SSH command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SshEnd {
    /// The exit status.
    ExitStatus(u32),
    /// The exit signal, without `SIG`.
    ExitSignal(SignalName),
}

/// A job is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTracked {
    /// The job, as an invocation.
    pub job: InvocationId,
}

/// The members of a batch, as the request names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMembers {
    /// In the order of the request.
    pub ids: Vec<String>,
    /// Whether the remote applies all of them or none.
    pub is_atomic: bool,
}

/// The members of a batch, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersJudged {
    /// In the order of the request.
    pub members: Vec<Member>,
}

/// The response was read to its end (contract S-1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseComplete {
    /// What proved it.
    pub completion: Completion,
    /// Content bytes as received (SSH: stdout and stderr together).
    pub length_bytes: u64,
    /// Digest of the content in the order of arrival.
    pub digest: Digest,
    /// SSH: the end of the command.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ssh_end: Option<SshEnd>,
    /// Whether an echoed credential was replaced (contract I-4).
    #[serde(default)]
    pub redacted: bool,
}

/// Where the stored result lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultRef {
    /// Number of chunks.
    pub chunks: u32,
    /// Content bytes kept.
    pub length_bytes: u64,
    /// Digest of what is kept.
    pub digest: Digest,
}

/// A deciding result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultCommitted {
    /// The verdict that it gives.
    pub verdict: Verdict,
    /// The stored result, when the route keeps one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub result: Option<ResultRef>,
    /// When a repeat may follow, in milliseconds since 1970, for [`super::Retry::Backoff`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_before_ms: Option<u64>,
    /// Late evidence: the invocation that brought it, a retry or a query (contract J-3, K-7).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub observed_by: Option<InvocationId>,
    /// Late evidence: an operator's words (contract J-5).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub note: Option<String>,
}

impl ResultCommitted {
    /// A verdict alone.
    #[must_use]
    pub const fn of(verdict: Verdict) -> Self {
        Self { verdict, result: None, not_before_ms: None, observed_by: None, note: None }
    }
}

/// The stored request, and the budget that policy gives its retries (contract T-3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestStored {
    /// Where it lies; digest and length are those of its content.
    pub request: ResultRef,
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
}

/// A dispatch is taken back: its flush failed, so no proof of it was handed out, and the same process
/// found it on record afterwards (contract D-1). Ends the invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DispatchWithdrawn {
    /// The sequence of the `DISPATCH_STARTED`.
    pub dispatch: Sequence,
    /// `not_attempted`.
    pub verdict: Verdict,
    /// One sentence for people.
    pub message: String,
}

/// The end of an attempt without a deciding result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The verdict.
    pub verdict: Verdict,
    /// One sentence for people: what happened and what to do next. Free of secrets.
    pub message: String,
    /// The path of the field that the caller can correct (contract V-2).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub field: Option<String>,
    /// When a repeat may follow, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_before_ms: Option<u64>,
    /// What was observed at the end, for diagnosis.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub observation: Option<Observation>,
}

/// What was seen of an incomplete exchange.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Content bytes received before the end.
    pub length_bytes: u64,
    /// The transport's own words, reduced to a kind (`ECONNRESET`, `EOF`); internal (E-3).
    pub cause: String,
    /// What was recorded of a session until then: a diagnosis, never its result (contract S-2).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recording: Option<ResultRef>,
}

/// A stored result is over before its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultExpired {
    /// Bytes of results that the route kept.
    pub total_bytes: u64,
    /// Bytes that it keeps at most.
    pub limit_bytes: u64,
}

/// The hand-over was confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// By what.
    pub confirmation: Confirmation,
}

/// The hand-over failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryFailed {
    /// Bytes that the caller's connection took before it failed.
    pub length_bytes: u64,
}

/// A repeat was answered from the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatAnswered {
    /// Whether the repeat named the invocation id (K-10) or was recognised by its fingerprint (K-11).
    pub by_id: bool,
}

/// A fact beside the course of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// A stable name of the fact.
    pub name: String,
    /// Free of secrets.
    pub detail: String,
}
