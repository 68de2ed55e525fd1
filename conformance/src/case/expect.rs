//! What an honest broker says, from truth, method and the route's contract (contract S-3, S-4, K-1).

use super::{Contract, Method, Truth};
use journal::contract::{Code, Outcome, Phase, Retry};

/// One honest answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// What is known of execution.
    pub outcome: Outcome,
    /// Where the broker stopped.
    pub phase: Phase,
    /// The instructions that fit; the first is the most that evidence supports.
    pub retry: Vec<Retry>,
    /// The codes that fit.
    pub codes: Vec<Code>,
    /// Whether dispatch began.
    pub dispatched: bool,
    /// Whether a complete response head was received; `None` where a race decides.
    pub head: Option<bool>,
    /// Whether a complete answer exists.
    pub complete: bool,
    /// What has to reach the caller as it is.
    pub answer: Option<(u16, String)>,
}

/// Every honest answer.
#[must_use]
pub fn expect(truth: &Truth, method: Method, contract: Contract) -> Vec<Expected> {
    match truth {
        Truth::Either(truths) => {
            truths.iter().flat_map(|truth| expect(truth, method, contract)).collect()
        }
        Truth::Untouched(codes) => vec![Expected {
            outcome: Outcome::NotAttempted,
            phase: Phase::ConnectionSetup,
            retry: vec![Retry::Backoff, Retry::AfterCorrection],
            codes: codes.to_vec(),
            dispatched: false,
            head: Some(false),
            complete: false,
            answer: None,
        }],
        Truth::Refused => vec![Expected {
            outcome: Outcome::Rejected,
            phase: Phase::RemoteExecution,
            retry: vec![Retry::Backoff],
            codes: vec![Code::RemoteNotProcessed],
            dispatched: true,
            head: Some(false),
            complete: false,
            answer: None,
        }],
        Truth::Open { codes, head } => vec![open(codes, Some(*head), method, contract)],
        Truth::Passed { content, codes } => {
            let answer = Some((101, content.clone()));
            vec![Expected { answer, ..open(codes, None, method, contract) }]
        }
        Truth::Grpc { status, content } => {
            vec![answered(200, content, settled(by_grpc(*status), false, method, contract))]
        }
        Truth::Misleading { status, shown, content } => {
            vec![answered(*shown, content, settled(*status, false, method, contract))]
        }
        Truth::Settled { status, retry_after, content } => {
            vec![answered(*status, content, settled(*status, *retry_after, method, contract))]
        }
    }
}

fn open(codes: &[Code], head: Option<bool>, method: Method, contract: Contract) -> Expected {
    Expected {
        outcome: Outcome::Unknown,
        phase: Phase::RemoteExecution,
        retry: vec![match repeatable(method, contract) {
            Repeatable::Known => Retry::Backoff,
            Repeatable::WithKey => Retry::SameIdempotencyKey,
            Repeatable::No => Retry::Reconcile,
        }],
        codes: codes.to_vec(),
        dispatched: true,
        head,
        complete: false,
        answer: None,
    }
}

fn answered(status: u16, content: &str, verdict: (Outcome, Retry, Code)) -> Expected {
    let (outcome, retry, code) = verdict;
    Expected {
        outcome,
        phase: Phase::RemoteExecution,
        retry: vec![retry],
        codes: vec![code],
        dispatched: true,
        head: Some(true),
        complete: true,
        answer: Some((status, content.to_owned())),
    }
}

/// The status of HTTP that decides as a status of gRPC does (contract S-9): a refusal of the service
/// is one; a failure says nothing of what was done before it.
const fn by_grpc(status: u8) -> u16 {
    match status {
        0 => 200,
        3 | 5 | 6 | 7 | 9 | 11 | 12 | 16 => 400,
        _ => 500,
    }
}

enum Repeatable {
    Known,
    WithKey,
    No,
}

fn repeatable(method: Method, contract: Contract) -> Repeatable {
    let by_method = match method {
        Method::Get | Method::Head | Method::Put | Method::Delete => true,
        Method::Post => false,
    };
    match contract {
        Contract::Idempotent => Repeatable::Known,
        Contract::Once => Repeatable::No,
        Contract::Plain | Contract::Key if by_method => Repeatable::Known,
        Contract::Key => Repeatable::WithKey,
        Contract::Plain => Repeatable::No,
    }
}

fn settled(
    status: u16,
    retry_after: bool,
    method: Method,
    contract: Contract,
) -> (Outcome, Retry, Code) {
    let repeatable = repeatable(method, contract);
    match status {
        429 | 503 => {
            let safe = match repeatable {
                Repeatable::Known | Repeatable::WithKey => retry_after,
                Repeatable::No => false,
            };
            let retry = if safe { Retry::Backoff } else { Retry::Reconcile };
            (Outcome::Rejected, retry, Code::RemoteRejected)
        }
        421 | 425 => (Outcome::Rejected, Retry::Backoff, Code::RemoteNotProcessed),
        400..=499 => (Outcome::Rejected, Retry::AfterCorrection, Code::RemoteRejected),
        500..=599 => {
            let retry = match repeatable {
                Repeatable::Known => Retry::Backoff,
                Repeatable::WithKey => Retry::SameIdempotencyKey,
                Repeatable::No => Retry::Never,
            };
            (Outcome::Committed, retry, Code::RemoteFailed)
        }
        _ => (Outcome::Committed, Retry::Never, Code::Ok),
    }
}
