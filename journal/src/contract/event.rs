//! Events: past facts of one invocation, appended in order and never changed (contract J-1).
//!
//! ```text
//!  ACTION_ACCEPTED ─► PREFLIGHT_VALIDATED ─► CREDENTIAL_AUTHORIZED ─► DISPATCH_STARTED
//!        │                   │                 │  ▲                        │
//!        │                   │       REQUEST_STORED,                       ▼
//!        │                   │       SETUP_ATTEMPTED (any number)          │
//!        │                   │                 │              REQUEST_SENT, REMOTE_RESPONSE_STARTED,
//!        ▼                   ▼                 ▼              REMOTE_RESPONSE_COMPLETE
//!   INVOCATION_ENDED (not_attempted)                                       │
//!                                     INVOCATION_ENDED (unknown) ◄─────────┤
//!                                                 │ late evidence          ▼
//!                                                 └──────────────► RESULT_COMMITTED
//!                                                                          │
//!                               DELIVERY_FAILED, RESULT_DELIVERED, REPEAT_ANSWERED
//! ```

use super::lease::{LeaseAcquired, LeaseReleased, LeaseRenewed, LeaseUsed};
use super::wire::wire_enum;
use super::{
    ApprovalDecided, ApprovalRequested, Digest, Fact, Fingerprint, Idempotency, InvocationId,
    Member, Sequence, Verdict,
};
use serde::{Deserialize, Serialize};

wire_enum! {
    /// Which gateway took the call.
    "gateway" enum Gateway {
        /// The HTTP proxy.
        Http = "http",
        /// The SSH gateway.
        Ssh = "ssh",
    }
}

wire_enum! {
    /// How the broker knows (contract J-5).
    "source" enum Source {
        /// Seen on a connection of the broker's own.
        TransportObserved = "transport_observed",
        /// Said by the remote on the connection of the attempt.
        RemoteResponse = "remote_response",
        /// Learned by asking the remote later.
        RemoteQuery = "remote_query",
        /// Stated by a person.
        OperatorAttested = "operator_attested",
        /// Concluded from the log itself after a restart.
        Recovered = "recovered",
    }
}

wire_enum! {
    /// The stage of connection setup (contract C-1, C-2).
    "stage" enum SetupStage {
        /// Name resolution.
        Resolve = "resolve",
        /// The check of the resolved addresses.
        AddressCheck = "address_check",
        /// TCP.
        TcpConnect = "tcp_connect",
        /// The CONNECT tunnel of an upstream proxy.
        ProxyTunnel = "proxy_tunnel",
        /// TLS, certificate verification included.
        TlsHandshake = "tls_handshake",
        /// SSH version and key exchange.
        SshKex = "ssh_kex",
        /// SSH host key or host certificate.
        SshHostKey = "ssh_host_key",
        /// SSH user authentication.
        SshAuth = "ssh_auth",
        /// SSH session channel.
        SshChannel = "ssh_channel",
        /// Environment, terminal and whatever else precedes the SSH request.
        SshEnvironment = "ssh_environment",
    }
}

wire_enum! {
    /// The protocol fact that proved a result complete (contract D-2, S-1).
    "completion marker" enum Completion {
        /// The declared length was read in full.
        ContentLength = "content_length",
        /// The terminating chunk was read.
        Chunked = "chunked",
        /// HTTP/2 END_STREAM.
        EndStream = "end_stream",
        /// The connection's orderly close, for a response without a length.
        CloseDelimited = "close_delimited",
        /// The response has no content by rule (HEAD, 204, 304).
        NoContent = "no_content",
        /// SSH: exit status, end of both streams, and close.
        ExitStatus = "exit_status",
        /// SSH: exit signal, end of both streams, and close.
        ExitSignal = "exit_signal",
    }
}

wire_enum! {
    /// What a route keeps of a result.
    "keep" enum KeepResult {
        /// Status, selected headers and content.
        Full = "full",
        /// Status, selected headers and the digest of the content.
        Digest = "digest",
        /// The outcome alone.
        None = "none",
    }
}

wire_enum! {
    /// What confirmed the hand-over to the caller (contract R-5).
    "confirmation" enum Confirmation {
        /// The whole response was accepted by the caller's connection, which then went on to a next
        /// request or an orderly close.
        Protocol = "protocol",
        /// Every byte was acknowledged by the caller's host, and the connection was not reset.
        Transport = "transport",
        /// The caller said so (`POST .../ack`).
        Acknowledged = "acknowledged",
        /// The caller read the stored result to its end.
        Fetched = "fetched",
    }
}

/// One event of one invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The invocation that it belongs to.
    pub invocation: InvocationId,
    /// Wall clock, milliseconds since 1970. Data, never order (contract J-4).
    pub at_ms: u64,
    /// How the broker knows.
    pub source: Source,
    /// What happened.
    #[serde(flatten)]
    pub body: Body,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data")]
pub enum Body {
    /// The broker took the call on record. First event of every invocation.
    #[serde(rename = "ACTION_ACCEPTED")]
    ActionAccepted(Fact<Accepted>),
    /// Policy allows the call; what it is bound to is fixed (contract V-5).
    #[serde(rename = "PREFLIGHT_VALIDATED")]
    PreflightValidated(Fact<Preflight>),
    /// The call is held until a person decides (contract V-6).
    #[serde(rename = "APPROVAL_REQUESTED")]
    ApprovalRequested(Box<ApprovalRequested>),
    /// A person decided.
    #[serde(rename = "APPROVAL_DECIDED")]
    ApprovalDecided(ApprovalDecided),
    /// The credential was obtained and may be used, or none is needed.
    #[serde(rename = "CREDENTIAL_AUTHORIZED")]
    CredentialAuthorized(Option<CredentialUse>),
    /// The request is stored, so that it can be sent again (contract T-3). Before its dispatch.
    #[serde(rename = "REQUEST_STORED")]
    RequestStored(RequestStored),
    /// The request is a batch of these members (contract D-5). Before its dispatch.
    #[serde(rename = "BATCH_MEMBERS")]
    BatchMembers(BatchMembers),
    /// One try at setting up a connection ended (contract C-4).
    #[serde(rename = "SETUP_ATTEMPTED")]
    SetupAttempted(SetupAttempt),
    /// From here on bytes may reach the remote (contract D-1). Durable before the first of them.
    #[serde(rename = "DISPATCH_STARTED")]
    DispatchStarted(Fact<Dispatch>),
    /// The dispatch on record was never acknowledged, and nothing was sent.
    #[serde(rename = "DISPATCH_WITHDRAWN")]
    DispatchWithdrawn(Box<DispatchWithdrawn>),
    /// The request left in full.
    #[serde(rename = "REQUEST_SENT")]
    RequestSent(RequestSent),
    /// The final response head was read, or the SSH request was accepted.
    #[serde(rename = "REMOTE_RESPONSE_STARTED")]
    RemoteResponseStarted(ResponseStarted),
    /// The remote accepted a job, which is an invocation of its own (contract M-7).
    #[serde(rename = "JOB_TRACKED")]
    JobTracked(JobTracked),
    /// What the complete response says of each member of a batch (contract D-5).
    #[serde(rename = "MEMBERS_JUDGED")]
    MembersJudged(MembersJudged),
    /// The response was read to its completion marker.
    #[serde(rename = "REMOTE_RESPONSE_COMPLETE")]
    RemoteResponseComplete(ResponseComplete),
    /// A deciding result, durable and bound to the invocation id (contract R-1).
    #[serde(rename = "RESULT_COMMITTED")]
    ResultCommitted(Box<ResultCommitted>),
    /// The attempt ended without a deciding result.
    #[serde(rename = "INVOCATION_ENDED")]
    InvocationEnded(Box<Ended>),
    /// The caller has the whole result (contract R-5).
    #[serde(rename = "RESULT_DELIVERED")]
    ResultDelivered(Delivered),
    /// The caller did not get the whole result (contract R-2).
    #[serde(rename = "DELIVERY_FAILED")]
    DeliveryFailed(DeliveryFailed),
    /// The stored result is over before its time: its route keeps no more bytes.
    #[serde(rename = "RESULT_EXPIRED")]
    ResultExpired(ResultExpired),
    /// A repeat of the call was answered from the record (contract K-10, K-11).
    #[serde(rename = "REPEAT_ANSWERED")]
    RepeatAnswered(RepeatAnswered),
    /// A fact beside the course of events; it changes no state.
    #[serde(rename = "NOTED")]
    Noted(Noted),
    /// A worker took the right to retry the invocation (contract K-6).
    #[serde(rename = "LEASE_ACQUIRED")]
    LeaseAcquired(LeaseAcquired),
    /// It keeps that right for longer.
    #[serde(rename = "LEASE_RENEWED")]
    LeaseRenewed(LeaseRenewed),
    /// It used that right: the named invocation is the retry. Right before its `DISPATCH_STARTED`.
    #[serde(rename = "LEASE_USED")]
    LeaseUsed(LeaseUsed),
    /// It gave that right back.
    #[serde(rename = "LEASE_RELEASED")]
    LeaseReleased(LeaseReleased),
}

impl Body {
    /// The event's name in records.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ActionAccepted(_) => "ACTION_ACCEPTED",
            Self::PreflightValidated(_) => "PREFLIGHT_VALIDATED",
            Self::ApprovalRequested(_) => "APPROVAL_REQUESTED",
            Self::ApprovalDecided(_) => "APPROVAL_DECIDED",
            Self::CredentialAuthorized(_) => "CREDENTIAL_AUTHORIZED",
            Self::RequestStored(_) => "REQUEST_STORED",
            Self::BatchMembers(_) => "BATCH_MEMBERS",
            Self::MembersJudged(_) => "MEMBERS_JUDGED",
            Self::SetupAttempted(_) => "SETUP_ATTEMPTED",
            Self::DispatchStarted(_) => "DISPATCH_STARTED",
            Self::DispatchWithdrawn(_) => "DISPATCH_WITHDRAWN",
            Self::RequestSent(_) => "REQUEST_SENT",
            Self::RemoteResponseStarted(_) => "REMOTE_RESPONSE_STARTED",
            Self::JobTracked(_) => "JOB_TRACKED",
            Self::RemoteResponseComplete(_) => "REMOTE_RESPONSE_COMPLETE",
            Self::ResultCommitted(_) => "RESULT_COMMITTED",
            Self::InvocationEnded(_) => "INVOCATION_ENDED",
            Self::ResultDelivered(_) => "RESULT_DELIVERED",
            Self::DeliveryFailed(_) => "DELIVERY_FAILED",
            Self::ResultExpired(_) => "RESULT_EXPIRED",
            Self::RepeatAnswered(_) => "REPEAT_ANSWERED",
            Self::Noted(_) => "NOTED",
            Self::LeaseAcquired(_) => "LEASE_ACQUIRED",
            Self::LeaseRenewed(_) => "LEASE_RENEWED",
            Self::LeaseUsed(_) => "LEASE_USED",
            Self::LeaseReleased(_) => "LEASE_RELEASED",
        }
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
    pub would_deny: Option<super::Code>,
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
    ExitSignal(String),
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
