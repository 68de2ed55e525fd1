//! The one place that turns typed failures into answers: verdict, status, `Proxy-Status` error,
//! message and field. Exhaustive; nothing is down-cast and no text of a library passes through.

use crate::pump::Cause;
use crate::upstream::tls::Alert;
use crate::upstream::{dial, exchange};
use crate::{head, incoming, target};
use journal::contract::{Code, Operation, Phase, Retry, Spent, Verdict, after_unknown};
use journal::{Invocation, Standing, append};
use policy::{Denial, credential};

mod account;

pub(crate) use account::{Account, UPGRADE_FAILED, forbids_retry, may_repeat};

/// Why a call ended before dispatch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("The request is malformed: {0}.")]
    Head(#[source] head::Fault),
    #[error("The request's content is malformed or did not arrive: {0}.")]
    Content(#[source] incoming::Error),
    #[error("{}.", capitalised(.0))]
    Target(#[source] target::Error),
    #[error("Affiant-Invocation must be \"act_\" and a ULID, given once.")]
    InvocationId,
    #[error("Send agent and token by Proxy-Authorization (Basic or Bearer).")]
    Unauthenticated,
    #[error(
        "The agent or token of Proxy-Authorization is not known, or its access has ended; ask an \
         operator for a token."
    )]
    AccessOver,
    #[error("The request names another host than the tunnel it came through.")]
    AuthorityMismatch {
        /// The field that differs.
        field: &'static str,
    },
    #[error("{what} is not supported; use plain HTTP/1.1 requests.")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Where.
        field: &'static str,
    },
    #[error("The request carries an expectation other than 100-continue.")]
    Expectation,
    #[error("The request passed through this proxy before; correct the proxy configuration.")]
    Loop,
    #[error("{}", .0.message)]
    Denied(#[source] Denial),
    #[error("The content is longer than the {limit_bytes} bytes that the route allows.")]
    PayloadLimit {
        /// The route's limit.
        limit_bytes: u64,
    },
    #[error("{0}.")]
    Key(#[source] policy::key::Unreadable),
    /// Of which agent that request is, and whether it is of this one, is not told.
    #[error("The id or key stands for another request; use a new one.")]
    Mismatch,
    #[error("An equal request, {}, is in flight or in doubt; follow its instruction.", .0.id())]
    InDoubt(Box<Invocation>),
    #[error(
        "A request that begins like this one, {}, may or may not be this one; if this is another \
         action, send it with a new Affiant-Invocation id.",
        .0.id()
    )]
    InDoubtBeginning(Box<Invocation>),
    #[error("{}; try again when there is room.", capitalised(.0))]
    Spent(#[source] Spent),
    #[error("As many calls as one agent may have wait for a person's approval already.")]
    HoldsEnough,
    #[error("Affiant-Wait is a number of seconds, given once.")]
    Wait,
    #[error(
        "A call that a person approves has at most 1 MiB of content, all of which is approved."
    )]
    TooLongToApprove,
    #[error("What would be sent is not what was approved; nothing was sent.")]
    ApprovalMismatch,
    #[error("The journal can't take this call now, so it was not sent; try again later.")]
    Journal(#[source] append::Error),
    #[error("The vault is locked; an operator unlocks it with `affiant vault unlock`.")]
    VaultLocked,
    #[error("The credential can't be used: {0}.")]
    Credential(#[source] credential::Error),
    #[error("{}; nothing was sent.", capitalised(.0))]
    Dial(#[source] dial::Failure),
    #[error("The proxy could not do its part; nothing was sent.")]
    Internal,
    #[error("The proxy is shutting down; nothing was sent.")]
    ShuttingDown,
}

fn capitalised(error: &impl ToString) -> String {
    let text = error.to_string();
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

impl Refusal {
    /// Phase, retry and code; the outcome is `not_attempted`. `latest_ms`: what expiries are judged by.
    pub(crate) fn verdict(&self, latest_ms: u64) -> Verdict {
        let correct = |code| Verdict::refused(Retry::AfterCorrection, code);
        match self {
            Self::Head(_) | Self::Expectation => correct(Code::InvalidRequest),
            Self::Content(incoming::Error::Malformed) => correct(Code::InvalidRequest),
            Self::Content(incoming::Error::Gone | incoming::Error::Stalled) => {
                Verdict::refused(Retry::Backoff, Code::CallerGone)
            }
            Self::Target(_) => correct(Code::InvalidTarget),
            Self::InvocationId => correct(Code::InvalidInvocationId),
            Self::Unauthenticated | Self::AccessOver => correct(Code::AgentUnauthenticated),
            Self::AuthorityMismatch { .. } => correct(Code::AuthorityMismatch),
            Self::Unsupported { .. } => correct(Code::UnsupportedAction),
            Self::Loop => correct(Code::LoopDetected),
            Self::Denied(denial) => denial.verdict(),
            Self::PayloadLimit { .. } | Self::TooLongToApprove => correct(Code::PayloadLimit),
            Self::Spent(_) | Self::HoldsEnough => Verdict::budget_spent(),
            Self::Wait => correct(Code::InvalidRequest),
            Self::ApprovalMismatch => Verdict::approval_mismatch(),
            Self::Key(_) => correct(Code::IdempotencyKeyUnreadable),
            Self::Mismatch => Verdict::key_mismatch(),
            Self::InDoubt(earlier) | Self::InDoubtBeginning(earlier) => {
                Verdict::in_doubt_duplicate(
                    // K-5: what its key allowed is over with the key.
                    Standing::of(earlier, &[], latest_ms).verdict.retry(),
                )
            }
            Self::Journal(_) => Verdict::refused(Retry::Backoff, Code::JournalUnavailable),
            Self::VaultLocked => Verdict::not_injected(Retry::AfterCorrection, Code::VaultLocked),
            Self::Credential(error) => error.verdict(),
            Self::Dial(failure) => failure.error.verdict(),
            Self::Internal => Verdict::refused(Retry::Backoff, Code::InternalError),
            Self::ShuttingDown => Verdict::refused(Retry::Backoff, Code::ShuttingDown),
        }
    }

    /// The path of the field that the caller can correct (contract V-2).
    pub(crate) fn field(&self) -> Option<String> {
        let field = match self {
            Self::Head(fault) => fault.field(),
            Self::Content(_) | Self::PayloadLimit { .. } | Self::TooLongToApprove => {
                "request.content"
            }
            Self::Spent(spent) => return Some(format!("budget.{}", spent.key)),
            Self::HoldsEnough | Self::ApprovalMismatch => "approval",
            Self::Wait => "request.headers.affiant-wait",
            Self::Target(_) => "request.target",
            Self::InvocationId => "request.headers.affiant-invocation",
            Self::Unauthenticated | Self::AccessOver => "request.headers.proxy-authorization",
            Self::AuthorityMismatch { field } | Self::Unsupported { field, .. } => field,
            Self::Expectation => "request.headers.expect",
            Self::Loop => "request.headers.via",
            Self::Denied(denial) => return Some(denial.field.clone()),
            Self::Key(unreadable) => return Some(unreadable.field.clone()),
            Self::Mismatch => "request",
            Self::VaultLocked | Self::Credential(_) => "credential",
            Self::InDoubtBeginning(_) => "request.content",
            Self::InDoubt(_)
            | Self::Journal(_)
            | Self::Dial(_)
            | Self::Internal
            | Self::ShuttingDown => return None,
        };
        Some(field.to_owned())
    }

    /// When there is room again, where that is known.
    pub(crate) const fn not_before_ms(&self) -> Option<u64> {
        if let Self::Spent(spent) = self { Some(spent.not_before_ms) } else { None }
    }

    /// Status and `Proxy-Status` of the answer.
    pub(crate) fn account(&self) -> Account {
        match self {
            Self::Dial(failure) => Account::of_setup(failure),
            Self::Expectation => Account::of_expectation(),
            Self::Head(_)
            | Self::Content(_)
            | Self::Target(_)
            | Self::InvocationId
            | Self::Unauthenticated
            | Self::AccessOver
            | Self::AuthorityMismatch { .. }
            | Self::Unsupported { .. }
            | Self::Loop
            | Self::Denied(_)
            | Self::PayloadLimit { .. }
            | Self::Key(_)
            | Self::Mismatch
            | Self::InDoubt(_)
            | Self::InDoubtBeginning(_)
            | Self::Spent(_)
            | Self::HoldsEnough
            | Self::Wait
            | Self::TooLongToApprove
            | Self::ApprovalMismatch
            | Self::Journal(_)
            | Self::VaultLocked
            | Self::Credential(_)
            | Self::Internal
            // Neither code nor outcome depends on the time.
            | Self::ShuttingDown => Account::of(self.verdict(u64::MAX)),
        }
    }

    /// The earlier invocation that this refusal points to.
    pub(crate) fn follow(&self) -> Option<&Invocation> {
        if let Self::InDoubt(earlier) | Self::InDoubtBeginning(earlier) = self {
            Some(earlier)
        } else {
            None
        }
    }
}

/// Why a dispatched call ended without a deciding result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The request could not be written, and no response came.
    #[error("The connection to the origin ended while the request was sent.")]
    Send(#[source] std::io::Error),
    /// No response began in time.
    #[error("The origin did not begin a response in time.")]
    ResponseTimeout,
    /// The origin took no more of the request.
    #[error("The origin stopped taking the request.")]
    WriteTimeout,
    /// The response stopped coming.
    #[error("The origin stopped sending inside its response.")]
    ReadTimeout,
    /// The response did not begin or not end as it should.
    #[error("{}", received(.error))]
    Receive {
        /// What happened.
        #[source]
        error: exchange::Error,
        /// Whether response bytes were received before.
        begun: bool,
    },
    /// The caller did not send the content that it declared.
    #[error("The request was broken off: {0}.")]
    Caller(#[source] incoming::Error),
    /// The content grew over the limit while it was sent.
    #[error("The content grew over the route's limit; the request was broken off.")]
    PayloadLimit,
    /// A gRPC response without its status (contract S-9).
    #[error("The gRPC response ended without a status.")]
    NoGrpcStatus,
    /// A hop says behind the content that there is more of it, which was lost (contract C-8).
    #[error("A proxy on the way says that the response is incomplete.")]
    Hop {
        /// Its own account.
        said: String,
    },
    /// Nobody waits for the response any more, and it passed the bounds for that.
    #[error("The caller went away, and the response did not end within bounds.")]
    Unattended,
    /// The access of the agent ended while it sent its request, or while the rest was read for the record.
    #[error("The access of the agent ended, and what it had open with it.")]
    AccessOver,
    /// The broker goes down, and its time for calls under way is over.
    #[error("The broker stopped before the response was complete.")]
    Stopped,
    /// The upstream proxy did not take its credential, and forwarded nothing.
    #[error("The upstream proxy refused the credential that it was shown; nothing was forwarded.")]
    ParentAuth,
    /// The result could not be recorded (contract R-6).
    #[error("The origin answered, but the answer could not be recorded.")]
    NotStored(#[source] append::Error),
}

/// What is said of a response that did not come in whole.
fn received(error: &exchange::Error) -> String {
    if let exchange::Error::Certificate(alert) = error {
        return format!(
            "The origin refused the client certificate of the connection, or that there was none ({}); \
             nothing was processed.",
            alert.name
        );
    }
    format!("The origin's response was not received in whole: {error}.")
}

impl Broken {
    /// Whether what was waited for did not come in its time.
    pub(crate) const fn is_wait(&self) -> bool {
        match self {
            Self::ResponseTimeout | Self::WriteTimeout | Self::ReadTimeout | Self::Unattended => {
                true
            }
            Self::Send(_)
            | Self::Receive { .. }
            | Self::Caller(_)
            | Self::PayloadLimit
            | Self::NoGrpcStatus
            | Self::Hop { .. }
            | Self::AccessOver
            | Self::Stopped
            | Self::ParentAuth
            | Self::NotStored(_) => false,
        }
    }

    /// Phase, retry and code; the outcome is `unknown`.
    pub(crate) fn verdict(&self, operation: &Operation, at_ms: u64) -> Verdict {
        let retry = after_unknown(operation, at_ms);
        let code = match self {
            Self::Send(_) | Self::AccessOver => Code::RemoteOutcomeUnknown,
            Self::ResponseTimeout | Self::WriteTimeout => Code::ResponseTimeout,
            Self::ReadTimeout => Code::ReadTimeout,
            Self::Receive { error, begun } => match error {
                // The protocol's own word, or nothing that it could speak of: no doubt (contract C-6).
                exchange::Error::NotProcessed | exchange::Error::Unsent => {
                    return Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed);
                }
                exchange::Error::Io(_) | exchange::Error::Closed | exchange::Error::Reset(_)
                    if *begun =>
                {
                    Code::RemoteResultIncomplete
                }
                exchange::Error::Io(_) | exchange::Error::Closed | exchange::Error::Reset(_) => {
                    Code::RemoteOutcomeUnknown
                }
                exchange::Error::Certificate(_) => {
                    return Verdict::rejected(Retry::AfterCorrection, Code::RemoteNotProcessed);
                }
                exchange::Error::Head(_)
                | exchange::Error::Coding(_)
                | exchange::Error::Content(_)
                | exchange::Error::Interim
                | exchange::Error::Stream
                | exchange::Error::Switched
                | exchange::Error::Upgrade => Code::RemoteProtocolError,
            },
            Self::Caller(_) | Self::Unattended => Code::CallerCancelled,
            Self::PayloadLimit => Code::PayloadLimit,
            Self::NoGrpcStatus | Self::Hop { .. } => Code::RemoteResultIncomplete,
            Self::Stopped => Code::BrokerRestarted,
            Self::ParentAuth => {
                return Verdict::rejected(Retry::AfterCorrection, Code::RemoteNotProcessed);
            }
            Self::NotStored(_) => {
                return Verdict::unknown(retry, Code::ResultNotStored).in_delivery();
            }
        };
        Verdict::unknown(retry, code)
    }

    /// Status and `Proxy-Status` of the answer, where one is still possible.
    pub(crate) fn account(&self, verdict: Verdict) -> Account {
        let account = Account::of(verdict);
        match self {
            Self::Send(error) => match Alert::behind(error) {
                Some(alert) => Account { error: "tls_alert_received", ..account }.alert(alert),
                None => account,
            },
            Self::WriteTimeout => Account { error: "connection_write_timeout", ..account },
            Self::ParentAuth => Account {
                status: 502,
                error: "proxy_configuration_error",
                received_status: Some(407),
                ..account
            },
            Self::Receive { error, .. } => account.of_response(error),
            Self::Caller(_) => Account::of_caller(),
            Self::Hop { said } => Account { earlier: Some(said.clone()), ..account },
            Self::ResponseTimeout
            | Self::ReadTimeout
            | Self::PayloadLimit
            | Self::NoGrpcStatus
            | Self::Unattended
            | Self::AccessOver
            | Self::Stopped
            | Self::NotStored(_) => account,
        }
    }

    /// The transport's words, reduced to a name.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Send(error) => dial::errno(error),
            Self::ResponseTimeout | Self::ReadTimeout => "TIMEOUT".to_owned(),
            Self::WriteTimeout => "WRITE_TIMEOUT".to_owned(),
            Self::ParentAuth => "PROXY_HTTP_407".to_owned(),
            Self::Receive { error, .. } => error.cause(),
            Self::Caller(incoming::Error::Malformed) => "CALLER_MALFORMED".to_owned(),
            Self::Caller(incoming::Error::Gone) => "CALLER_GONE".to_owned(),
            Self::Caller(incoming::Error::Stalled) => "CALLER_STALLED".to_owned(),
            Self::PayloadLimit => "PAYLOAD_LIMIT".to_owned(),
            Self::Unattended => "UNATTENDED".to_owned(),
            Self::NoGrpcStatus => "NO_GRPC_STATUS".to_owned(),
            Self::AccessOver => Cause::AccessOver.as_str().to_owned(),
            Self::Hop { .. } => "HOP_FAILED".to_owned(),
            Self::Stopped => Cause::BrokerStopped.as_str().to_owned(),
            Self::NotStored(_) => "JOURNAL".to_owned(),
        }
    }
}

/// Moves a verdict of `unknown` into the phase of delivery.
trait InDelivery {
    fn in_delivery(self) -> Self;
}

impl InDelivery for Verdict {
    fn in_delivery(self) -> Self {
        Self::new(Phase::ResultDelivery, self.outcome(), self.retry(), self.code()).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-6: a refused client certificate is told in one way, whatever the operation is.
    #[test]
    fn c_6_a_refused_certificate_is_told_as_what_it_is() {
        let alert = Alert { id: 116, name: "certificate_required" };
        let error = exchange::Error::Certificate(alert);
        let broken = Broken::Receive { error, begun: false };
        let operation = Operation { idempotent: false, idempotency: None };
        let verdict = broken.verdict(&operation, 0);
        assert_eq!(verdict, Verdict::rejected(Retry::AfterCorrection, Code::RemoteNotProcessed));
        let account = broken.account(verdict);
        assert_eq!((account.status, account.error), (502, "tls_alert_received"));
        assert_eq!(broken.cause(), "ALERT_CERTIFICATE_REQUIRED");
        assert_eq!(
            broken.to_string(),
            "The origin refused the client certificate of the connection, or that there was none \
             (certificate_required); nothing was processed."
        );
    }
}
