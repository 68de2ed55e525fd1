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

use super::fact::{
    Accepted, BatchMembers, CredentialUse, Delivered, DeliveryFailed, Dispatch, DispatchWithdrawn,
    Ended, Fact, JobTracked, MembersJudged, Noted, Preflight, RepeatAnswered, RequestSent,
    RequestStored, ResponseComplete, ResponseStarted, ResultCommitted, ResultExpired, SetupAttempt,
};
use super::lease::{LeaseAcquired, LeaseReleased, LeaseRenewed, LeaseUsed};
use super::wire::wire_enum;
use super::{ApprovalDecided, ApprovalRequested, InvocationId};
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
