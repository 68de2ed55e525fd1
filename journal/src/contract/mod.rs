//! The vocabulary of records that outlive the process: verdicts, codes, events, evidence, envelope.
//!
//! Plain data and pure functions. There is no I/O, no clock, no randomness, no `async` and no type
//! of an outside protocol in here: times and ids are arguments. A change to anything that is
//! serialised is a change of the log format (see `FORMAT.md`).

mod approval;
mod batch;
mod budget;
mod code;
mod decision;
mod envelope;
mod event;
mod evidence;
mod fact;
mod id;
mod instruction;
mod key_place;
mod lease;
mod refusal;
mod signal;
mod verdict;
mod wire;

pub use approval::{
    Approval, ApprovalDecided, ApprovalRequested, ApprovalState, Ruling, is_bound_alike,
};
pub use batch::{Member, Said, judge_members, member_of};
pub use budget::{Budget, LONGEST_MS, Spent, Usage};
pub use code::Code;
pub use decision::{Decision, decide};
pub use envelope::{Envelope, Problem};
pub use event::{Body, Completion, Confirmation, Event, Gateway, KeepResult, SetupStage, Source};
pub use evidence::{Evidence, Idempotency, RemoteContract};
pub use fact::{
    Accepted, BatchMembers, CredentialUse, Delivered, DeliveryFailed, Dispatch, DispatchWithdrawn,
    Ended, Fact, JOB, JobTracked, MembersJudged, Noted, Observation, PeerIdentity, Preflight,
    RepeatAnswered, RequestSent, RequestStored, ResponseComplete, ResponseStarted, ResultCommitted,
    ResultExpired, ResultRef, SetupAttempt, SshEnd,
};
pub use id::{Digest, Fingerprint, InvocationId, ParseIdError, Sequence};
pub use instruction::{
    Operation, RetryAfter, after_unknown, settle_http, settle_ssh, settle_ssh_compare,
};
pub use key_place::KeyPlace;
pub use lease::{LeaseAcquired, LeaseReleased, LeaseRenewed, LeaseUsed};
pub use signal::{LocalName, Signal, SignalName};
pub use verdict::{IllegalVerdict, Outcome, Phase, Retry, Verdict};
pub use wire::UnknownName;
