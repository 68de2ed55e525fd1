//! Tunnels that ended before anything was sent in them: `not_attempted` (contract D-1), and why.

use super::{Passed, record};
use crate::answer::{Finished, not_before};
use crate::engine::Job;
use crate::hello::{Fault, Hello};
use crate::pump::Cause;
use journal::Call;
use journal::append;
use journal::contract::{Code, Ended, Observation, Retry, Verdict};

/// Why nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unsent {
    #[error(
        "The TLS inside the tunnel asked for another host than the tunnel's; nothing was sent to it."
    )]
    OtherName,
    #[error("What the tunnel began with can't be read as TLS; nothing of it was sent.")]
    Unreadable,
    #[error("The caller ended its side inside its TLS ClientHello; nothing of it was sent.")]
    CutHello,
    #[error("The agent's access ended before anything was sent in the tunnel.")]
    AgentOver,
    #[error("Policy stopped to allow the tunnel before anything was sent in it.")]
    PolicyOver,
    #[error("The caller broke off before it sent anything in the tunnel.")]
    CallerGone,
    #[error("The caller broke off inside its TLS ClientHello; nothing of it was sent.")]
    CallerGoneInHello,
    #[error("The caller sent nothing in the tunnel for too long.")]
    Silent,
    #[error("The caller's TLS ClientHello did not come whole in time; nothing of it was sent.")]
    SlowHello,
    #[error("The connection to the destination ended before anything was sent.")]
    OriginGone,
    #[error("The proxy is shutting down; nothing was sent.")]
    Stopped,
    #[error("The journal can't take this call now, so nothing was sent; try again later.")]
    Journal(#[source] append::Error),
}

impl Unsent {
    fn verdict(&self) -> Verdict {
        let correct = |code| Verdict::refused(Retry::AfterCorrection, code);
        let later = |code| Verdict::refused(Retry::Backoff, code);
        match self {
            Self::OtherName => correct(Code::AuthorityMismatch),
            Self::Unreadable | Self::CutHello => correct(Code::InvalidRequest),
            Self::AgentOver => correct(Code::AgentUnauthenticated),
            Self::PolicyOver => correct(Code::TargetNotAllowed),
            Self::CallerGone | Self::CallerGoneInHello | Self::Silent | Self::SlowHello => {
                later(Code::CallerGone)
            }
            Self::OriginGone => Verdict::not_connected(Retry::Backoff, Code::ConnectionTerminated),
            Self::Stopped => later(Code::ShuttingDown),
            Self::Journal(_) => later(Code::JournalUnavailable),
        }
    }

    /// The path of the field that the caller can correct (contract V-2).
    const fn field(&self) -> Option<&'static str> {
        match self {
            Self::OtherName => Some("tls.server_name"),
            Self::Unreadable | Self::CutHello => Some("tls.client_hello"),
            Self::AgentOver => Some("request.headers.proxy-authorization"),
            Self::PolicyOver => Some("request.target"),
            Self::CallerGone
            | Self::CallerGoneInHello
            | Self::Silent
            | Self::SlowHello
            | Self::OriginGone
            | Self::Stopped
            | Self::Journal(_) => None,
        }
    }
}

impl Job<'_> {
    /// Ends a tunnel whose first byte never left.
    pub(super) async fn stopped_before(
        &mut self,
        mut call: Call,
        mut passed: Passed,
        hello: &Hello<'_>,
    ) -> Finished {
        let fault = hello.fault();
        if let Some(Fault::OtherName(name)) = fault {
            call.note("other_name", name);
        }
        if let Some(alert) = fault.map(Fault::alert)
            && self.out.send(&alert).await.is_ok()
        {
            // The end says it, too, to a client that is gone.
            passed.to_caller += alert.len() as u64;
        }
        let why = match passed.cause {
            Cause::OtherName => Unsent::OtherName,
            Cause::Unreadable => Unsent::Unreadable,
            Cause::CutHello => Unsent::CutHello,
            Cause::AccessOver if self.identity().is_none() => Unsent::AgentOver,
            Cause::AccessOver => Unsent::PolicyOver,
            Cause::OriginBroke | Cause::BadFrames => Unsent::OriginGone,
            Cause::BrokerStopped => Unsent::Stopped,
            Cause::Idle if hello.has_begun() => Unsent::SlowHello,
            Cause::Idle => Unsent::Silent,
            Cause::Closed | Cause::CallerLeft | Cause::CallerBroke if hello.has_begun() => {
                Unsent::CallerGoneInHello
            }
            Cause::Closed | Cause::CallerLeft | Cause::CallerBroke => Unsent::CallerGone,
        };
        end(call, passed, &why).await
    }
}

/// Records it.
pub(super) async fn end(call: Call, passed: Passed, why: &Unsent) -> Finished {
    let verdict = why.verdict();
    let ended = Ended {
        verdict,
        message: why.to_string(),
        field: why.field().map(str::to_owned),
        not_before_ms: not_before(verdict, call.now_ms()),
        observation: Some(Observation {
            length_bytes: passed.to_caller,
            cause: passed.cause.as_str().to_owned(),
            recording: None,
        }),
    };
    record(call, passed, ended).await
}
