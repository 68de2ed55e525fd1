//! Random histories of an action: what its standing allows is never what T-2 forbids (contract T-1,
//! T-2, K-1, K-5).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{
    Accepted, Body, Code, Decision, Digest, Ended, Event, Idempotency, InvocationId, LeaseAcquired,
    LeaseUsed, Outcome, Preflight, RemoteContract, RequestStored, ResponseStarted, ResultCommitted,
    ResultRef, Retry, Sequence, Source, Verdict, after_unknown, settle_http,
};
use journal::{Invocation, Standing};
use proptest::prelude::*;

/// How an attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unknown,
    Status(u16, bool),
    /// It is still under way.
    Open,
    /// The protocol said that nothing was processed.
    NotProcessed,
}

#[derive(Debug, Clone)]
struct History {
    idempotent: bool,
    /// Expiry and contract of the key.
    key: Option<(u64, bool)>,
    max_attempts: u32,
    /// None: the first attempt was not dispatched; whether its failure may pass.
    first: Result<End, bool>,
    retries: Vec<End>,
    /// Leases that led to no dispatch.
    idle_leases: u64,
    now_ms: u64,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Unknown),
        1 => Just(End::Open),
        1 => Just(End::NotProcessed),
        4 => (prop::sample::select(vec![200, 202, 302, 400, 404, 409, 421, 429, 500, 502, 503]), any::<bool>())
            .prop_map(|(status, after)| End::Status(status, after)),
    ]
}

fn history() -> impl Strategy<Value = History> {
    (
        any::<bool>(),
        prop::option::of((500_u64..1500, any::<bool>())),
        1_u32..6,
        prop_oneof![4 => end().prop_map(Ok), 1 => any::<bool>().prop_map(Err)],
        prop::collection::vec(end(), 0..5),
        0_u64..3,
    )
        .prop_map(|(idempotent, key, max_attempts, first, retries, idle_leases)| History {
            idempotent,
            key,
            max_attempts,
            first,
            retries,
            idle_leases,
            now_ms: 1000,
        })
}

struct Maker {
    sequence: u64,
    history: History,
}

impl Maker {
    fn apply(&mut self, invocation: &mut Invocation, source: Source, body: Body) -> bool {
        self.sequence += 1;
        let event = Event { invocation: invocation.id(), at_ms: 1, source, body };
        invocation.apply(Sequence(self.sequence), &event).is_ok()
    }

    fn key(&self) -> Option<Idempotency> {
        let (expires_at_ms, verified) = self.history.key?;
        Some(Idempotency {
            key: "k".into(),
            scope: "s".into(),
            fingerprint: Digest::of(b"f"),
            expires_at_ms,
            remote_contract: if verified {
                RemoteContract::Verified
            } else {
                RemoteContract::Unverified
            },
            added_as: None,
        })
    }

    fn begin(&mut self, n: u128, link: Option<InvocationId>) -> Invocation {
        self.sequence += 1;
        let accepted = Accepted { link, ..accepted("coder", "f") };
        let body = Body::ActionAccepted(accepted.into());
        let id = InvocationId::from_parts(1, n);
        let event = Event { invocation: id, at_ms: 1, source: Source::TransportObserved, body };
        let mut made = Invocation::start(Sequence(self.sequence), &event).unwrap();
        let (idempotent, idempotency) = (self.history.idempotent, self.key());
        let bound = Preflight { idempotent, idempotency, ..preflight() };
        let ours = Source::TransportObserved;
        assert!(self.apply(&mut made, ours, Body::PreflightValidated(bound.into())));
        assert!(self.apply(&mut made, ours, Body::CredentialAuthorized(None)));
        made
    }

    /// Takes an attempt to its end. Verdicts are those that the gateways give at the time 10.
    fn run(&mut self, attempt: &mut Invocation, end: End) {
        let operation = attempt.operation();
        let ours = Source::TransportObserved;
        assert!(self.apply(attempt, ours, Body::DispatchStarted(dispatch().into())));
        let (source, body) = match end {
            End::Open => return,
            End::Unknown => {
                let verdict =
                    Verdict::unknown(after_unknown(&operation, 10), Code::RemoteOutcomeUnknown);
                (ours, Body::InvocationEnded(Box::new(ended(verdict))))
            }
            End::NotProcessed => {
                let verdict = Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed);
                (ours, Body::ResultCommitted(Box::new(ResultCommitted::of(verdict))))
            }
            End::Status(status, after) => {
                let started = ResponseStarted { status: Some(status), remote_request_id: None };
                assert!(self.apply(attempt, ours, Body::RemoteResponseStarted(started)));
                let whole = complete(b"");
                assert!(self.apply(attempt, ours, Body::RemoteResponseComplete(whole)));
                let verdict = settle_http(status, after.then_some(20), &operation, 10);
                let body = Body::ResultCommitted(Box::new(ResultCommitted::of(verdict)));
                (Source::RemoteResponse, body)
            }
        };
        assert!(self.apply(attempt, source, body));
    }

    fn lease(&mut self, first: &mut Invocation) -> Option<u64> {
        let generation = first.lease().map_or(1, |lease| lease.generation + 1);
        let acquired = LeaseAcquired { generation, holder: "w".into(), ttl_ms: 1 };
        let body = Body::LeaseAcquired(acquired);
        self.apply(first, Source::TransportObserved, body).then_some(generation)
    }
}

fn ended(verdict: Verdict) -> Ended {
    Ended { verdict, message: String::new(), field: None, not_before_ms: None, observation: None }
}

/// The history as the projection has it. Retries that the projection itself refuses are left out.
fn made(history: &History) -> (Invocation, Vec<Invocation>) {
    let mut maker = Maker { sequence: 0, history: history.clone() };
    let mut first = maker.begin(1, None);
    let request = ResultRef { chunks: 1, length_bytes: 0, digest: Digest::of(b"") };
    let stored = RequestStored { request, max_attempts: history.max_attempts };
    assert!(maker.apply(&mut first, Source::TransportObserved, Body::RequestStored(stored)));
    match history.first {
        Ok(end) => maker.run(&mut first, end),
        Err(passes) => {
            let retry = if passes { Retry::Backoff } else { Retry::AfterCorrection };
            let verdict = Verdict::not_connected(retry, Code::ConnectionRefused);
            let body = Body::InvocationEnded(Box::new(ended(verdict)));
            assert!(maker.apply(&mut first, Source::TransportObserved, body));
        }
    }
    let mut retries = Vec::new();
    for (n, end) in (2..).zip(&history.retries) {
        let Some(generation) = maker.lease(&mut first) else { break };
        let mut retry = maker.begin(n, Some(first.id()));
        let used = Body::LeaseUsed(LeaseUsed { generation, retry: retry.id() });
        if !maker.apply(&mut first, Source::TransportObserved, used) {
            break;
        }
        maker.run(&mut retry, *end);
        retries.push(retry);
    }
    for _ in 0..history.idle_leases {
        maker.lease(&mut first);
    }
    (first, retries)
}

/// What the contract forbids, told from the history alone: `Some` reason not to send.
fn forbidden(history: &History, made: usize) -> Option<&'static str> {
    let dispatched: Vec<End> =
        history.first.ok().into_iter().chain(history.retries[..made].iter().copied()).collect();
    let complete = |end: &End| match end {
        End::Status(status, _) => !matches!(status, 429 | 503 | 400..=499),
        End::Unknown | End::Open | End::NotProcessed => false,
    };
    // That one attempt failed says nothing of another one that is in doubt.
    let in_doubt = dispatched.contains(&End::Unknown);
    let failed = |end: &End| matches!(end, End::Status(500.., _));
    if dispatched.iter().any(|end| complete(end) && !(in_doubt && failed(end))) {
        return Some("a complete result is on record");
    }
    let key = history.key.is_some_and(|(expires, verified)| verified && history.now_ms < expires);
    if dispatched.contains(&End::Open) {
        return Some("an attempt is under way");
    }
    if dispatched.contains(&End::Unknown) && !history.idempotent && !key {
        return Some("an attempt is in doubt, and nothing makes a repeat safe");
    }
    let leases = history.retries[..made].len() as u64 + history.idle_leases;
    if 1 + leases >= u64::from(history.max_attempts) && dispatched.contains(&End::Unknown) {
        return Some("the budget is spent");
    }
    if dispatched.is_empty() && history.first == Err(false) {
        return Some("something has to be corrected first");
    }
    if let (Some(End::Status(400..=420 | 422..=424 | 426..=428, _)), false) =
        (dispatched.last(), dispatched.contains(&End::Unknown))
    {
        return Some("the remote refused for good");
    }
    if let (Some(End::Status(429 | 503, _)), false) =
        (dispatched.last(), dispatched.contains(&End::Unknown))
        && !history.idempotent
        && !key
    {
        return Some("the remote refused for now, and nothing makes a repeat safe");
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// T-1, T-2: no history leads to a dispatch that the contract forbids; and the instruction of an
    /// action in doubt is never softer than that of its attempts.
    #[test]
    fn t_2_no_history_allows_what_is_forbidden(history in history()) {
        let (first, retries) = made(&history);
        let standing = Standing::of(&first, &retries, history.now_ms);
        let under_way = std::iter::once(&first).chain(&retries).any(|a| !a.is_settled());
        let sends = match standing.decision {
            Decision::RetryNewAttempt | Decision::RetrySameKey | Decision::RetryWhenAllowed => {
                !under_way
            }
            Decision::Fetch
            | Decision::StopForCorrection
            | Decision::Reconcile
            | Decision::ReturnRecordedResult => false,
        };
        // A history may be longer than what the projection let happen.
        let reason = forbidden(&history, retries.len());
        if let (true, Some(reason)) = (sends, reason) {
            panic!("{:?} although {reason}: {history:?}", standing.decision);
        }
        let any_unknown =
            std::iter::once(&first).chain(&retries).any(|a| a.verdict().outcome() == Outcome::Unknown);
        let committed = |a: &&Invocation| a.verdict().outcome() == Outcome::Committed;
        let all = || std::iter::once(&first).chain(&retries);
        if all().filter(committed).any(|a| !a.has_failed()) {
            prop_assert_eq!(standing.verdict.outcome(), Outcome::Committed);
        } else if any_unknown {
            prop_assert_eq!(standing.verdict.outcome(), Outcome::Unknown);
        } else if !under_way {
            let any = all().any(|a| committed(&a));
            prop_assert_eq!(any, standing.verdict.outcome() == Outcome::Committed);
        }
    }
}

/// The generator reaches what is allowed as well: the property does not hold for want of dispatches.
#[test]
fn t_2_every_decision_is_reached() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..3000 {
        let history = history().new_tree(&mut runner).unwrap().current();
        let (first, retries) = made(&history);
        let decision = Standing::of(&first, &retries, history.now_ms).decision;
        *seen.entry(decision.as_str()).or_insert(0) += 1;
    }
    for decision in Decision::ALL {
        if *decision != Decision::Fetch {
            assert!(seen.get(decision.as_str()).is_some_and(|n| *n > 20), "{decision}: {seen:?}");
        }
    }
}
