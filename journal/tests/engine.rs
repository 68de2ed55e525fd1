//! The engine itself against random histories: what it really dispatches, counted by what it sends
//! with (contract T-1 to T-3, K-1, K-5, K-6).
//!
//! Nothing in here looks at an instruction or a standing: what the contract forbids is told from the
//! history of what the remote did, at the moment of each dispatch.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::action::{self, Error, Leave, Repeat};
use journal::contract::{
    Accepted, Code, Dispatch, Ended, InvocationId, RemoteContract, ResultCommitted, Retry, Source,
    Verdict, after_unknown, settle_http,
};
use journal::{Admission, Call, Invocation, Journal};
use proptest::prelude::*;
use std::sync::Mutex;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

/// What becomes of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Set-up failed; whether time can mend it.
    NotSent(bool),
    Unknown,
    /// The worker was dropped after the dispatch.
    Dropped,
    /// The protocol said that nothing was processed.
    NotProcessed,
    /// A complete response, with a time to come back or without.
    Status(u16, bool),
}

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Step {
    Retry,
    /// Several workers at once.
    Retries,
    Restart,
    /// A person says that it was carried out.
    Attest,
}

#[derive(Debug, Clone)]
struct History {
    contract: Contract,
    max_attempts: u32,
    /// Of the attempts, in order; the first one is the call itself.
    ends: Vec<End>,
    steps: Vec<Step>,
}

fn end() -> impl Strategy<Value = End> {
    let statuses = vec![200, 202, 302, 400, 404, 409, 421, 429, 500, 502, 503];
    prop_oneof![
        1 => any::<bool>().prop_map(End::NotSent),
        3 => Just(End::Unknown),
        1 => Just(End::Dropped),
        1 => Just(End::NotProcessed),
        3 => (prop::sample::select(statuses), any::<bool>())
            .prop_map(|(status, after)| End::Status(status, after)),
    ]
}

fn history() -> impl Strategy<Value = History> {
    let far = u64::MAX - 1;
    let contracts = vec![
        Contract::Nothing,
        Contract::Idempotent,
        Contract::Key(RemoteContract::Verified, far),
        Contract::Key(RemoteContract::Verified, 1),
        Contract::Key(RemoteContract::Unverified, far),
        Contract::OwnKey(RemoteContract::Verified, far),
        Contract::OwnKey(RemoteContract::Verified, 1),
    ];
    let step = prop_oneof![
        6 => Just(Step::Retry),
        2 => Just(Step::Retries),
        2 => Just(Step::Restart),
        1 => Just(Step::Attest),
    ];
    (
        prop::sample::select(contracts),
        1_u32..6,
        prop::collection::vec(end(), 8),
        prop::collection::vec(step, 1..8),
    )
        .prop_map(|(contract, max_attempts, ends, steps)| History {
            contract,
            max_attempts,
            ends,
            steps,
        })
}

/// What the remote was sent, and what it did.
#[derive(Debug, Default)]
struct Seen {
    /// Ends of the attempts begun so far, sent or not.
    begun: Vec<End>,
    attested: bool,
    under_way: usize,
    /// Retries that were dispatched.
    dispatched: usize,
}

impl Seen {
    /// What the contract forbids, told from the history alone: `Some` reason not to send.
    fn forbids(&self, contract: Contract, max_attempts: u32) -> Option<&'static str> {
        let key = match contract {
            Contract::Key(remote, expires) | Contract::OwnKey(remote, expires) => {
                remote == RemoteContract::Verified && expires > 1
            }
            Contract::Nothing | Contract::Idempotent => false,
        };
        let safe = contract == Contract::Idempotent || key;
        let sent = || self.begun.iter().filter(|end| !matches!(end, End::NotSent(_)));
        let in_doubt = sent().any(|end| matches!(end, End::Unknown | End::Dropped));
        let complete = |end: &&End| match end {
            End::Status(400..=499 | 503, _) => false,
            End::Status(500.., _) => !in_doubt,
            End::Status(..) => true,
            End::NotSent(_) | End::Unknown | End::Dropped | End::NotProcessed => false,
        };
        if self.under_way > 0 {
            return Some("an attempt is under way");
        }
        if self.attested && in_doubt {
            return Some("a person stated the outcome");
        }
        if sent().any(|end| complete(&end)) {
            return Some("a complete result is on record");
        }
        if in_doubt && !safe {
            return Some("an attempt is in doubt, and nothing makes a repeat safe");
        }
        if self.begun.len() >= max_attempts as usize {
            return Some("the budget is spent");
        }
        // A retry that was not sent has its own record, and says nothing of the action.
        match sent().next_back().or(self.begun.first()) {
            Some(End::NotSent(false)) => Some("something has to be corrected first"),
            Some(End::Status(400..=420 | 422..=428, _)) if !in_doubt => {
                Some("the remote refused for good")
            }
            Some(End::Status(429 | 503, after)) if !(in_doubt || safe && *after) => {
                Some("the remote refused for now, and nothing makes a repeat safe")
            }
            _ => None,
        }
    }
}

/// Sends for the engine, and counts.
struct Sender<'a> {
    journal: &'a Journal,
    history: &'a History,
    seen: &'a Mutex<Seen>,
}

impl Repeat for Sender<'_> {
    fn lease_time(&self, _: &Invocation) -> Option<Duration> {
        Some(LONG)
    }

    async fn attempt(&self, leave: Leave<'_>) -> Result<InvocationId, Error> {
        let first = &leave.action.first;
        let operation = self.history.contract.operation();
        if !leave.is_backed_by(&operation) {
            return Err(Error::PolicyChanged);
        }
        let accepted = Accepted { link: Some(first.id()), ..accepted("coder", "a") };
        let guard = leave.action.guard(Some(LONG), &operation);
        let call = match self.journal.admit(self.journal.new_id(), accepted, guard)? {
            Admission::New(call) => call,
            Admission::InDoubt(other) | Admission::Settled(other) => {
                return Err(Error::Repeated(other.id()));
            }
            other => panic!("{}", name(&other)),
        };
        let end = self.next();
        let id = call.id();
        run(self.journal, call, end, self.history, |call| async {
            let record = Dispatch { attempt: leave.number(), ..dispatch() };
            let mut call = call;
            let not_after_ms = leave.standing.not_after_ms;
            let proof = call.dispatch_under(leave.lease, not_after_ms, record).await.unwrap();
            assert_eq!(proof.id(), call.id());
            {
                let mut seen = self.seen.lock().unwrap();
                let reason = seen.forbids(self.history.contract, self.history.max_attempts);
                assert_eq!(reason, None, "{seen:?} {:?}", self.history);
                seen.under_way += 1;
                seen.dispatched += 1;
            }
            // Others get their chance while it is under way.
            tokio::task::yield_now().await;
            self.seen.lock().unwrap().under_way -= 1;
            // K-2, K-3: the key is the one on record.
            assert_eq!(call.invocation().operation().idempotency, first.operation().idempotency);
            call
        })
        .await;
        self.seen.lock().unwrap().begun.push(end);
        Ok(id)
    }
}

impl Sender<'_> {
    fn next(&self) -> End {
        self.history.ends[self.seen.lock().unwrap().begun.len() % self.history.ends.len()]
    }
}

fn ended(verdict: Verdict) -> Ended {
    let message = "It ended.".to_owned();
    Ended { verdict, message, field: None, not_before_ms: None, observation: None }
}

/// Takes a call to its end, as a gateway would. `send` dispatches it.
async fn run<F: Future<Output = Call>>(
    journal: &Journal,
    mut call: Call,
    end: End,
    history: &History,
    send: impl FnOnce(Call) -> F,
) {
    let operation = history.contract.operation();
    call.preflight(history.contract.preflight()).unwrap();
    call.authorize(None).unwrap();
    if call.invocation().accepted().link.is_none() {
        call.store_request(b"POST /x HTTP/1.1\r\n\r\n", &[b"x"], history.max_attempts).unwrap();
    }
    if let End::NotSent(may_pass) = end {
        let retry = if may_pass { Retry::Backoff } else { Retry::AfterCorrection };
        let verdict = Verdict::not_connected(retry, Code::ConnectionRefused);
        drop(call.end(ended(verdict)).await.unwrap());
        return;
    }
    let mut call = send(call).await;
    match end {
        End::NotSent(_) | End::Dropped => drop(call),
        End::Unknown => {
            let retry = after_unknown(&operation, journal.latest_ms());
            let verdict = Verdict::unknown(retry, Code::RemoteOutcomeUnknown);
            drop(call.end(ended(verdict)).await.unwrap());
        }
        End::NotProcessed => {
            let verdict = Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed);
            drop(call.reject(verdict, None, None).await.unwrap());
        }
        End::Status(status, after) => {
            let after = after.then_some(1);
            let verdict = settle_http(status, after, &operation, journal.latest_ms());
            let sent = journal::contract::RequestSent {
                length_bytes: 1,
                digest: journal::contract::Digest::of(b"x"),
            };
            call.request_sent(sent).unwrap();
            let started = journal::contract::ResponseStarted {
                status: Some(status),
                remote_request_id: None,
            };
            call.response_started(started).unwrap();
            drop(call.commit(complete(b""), verdict, None).await.unwrap());
        }
    }
}

/// Where the action stands, as far as a restart may not change it.
fn standing(journal: &Journal, id: InvocationId) -> String {
    let first = journal.invocation(id).unwrap().unwrap();
    let standing = journal.standing(&first).unwrap();
    let verdict = standing.verdict;
    format!("{} {} {} {}", standing.attempts, standing.decision, verdict.outcome(), verdict.retry())
}

async fn play(history: &History) -> usize {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(home.path());
    let seen = Mutex::new(Seen::default());
    let call = admit(&journal, "coder", "a");
    let id = call.id();
    let end = history.ends[0];
    run(&journal, call, end, history, |mut call| async {
        drop(call.dispatch(dispatch()).await.unwrap());
        call
    })
    .await;
    seen.lock().unwrap().begun.push(end);
    for step in &history.steps {
        let sender = Sender { journal: &journal, history, seen: &seen };
        match step {
            Step::Retry => drop(action::once(&journal, &sender, id, "w").await),
            Step::Retries => {
                let worker = |name| action::once(&journal, &sender, id, name);
                let all = tokio::join!(worker("a"), worker("b"), worker("c"));
                drop(all);
            }
            Step::Restart => {
                let before = standing(&journal, id);
                journal.close().await;
                drop(journal);
                (journal, _) = open(home.path());
                assert_eq!(standing(&journal, id), before, "T-3: {history:?}");
            }
            Step::Attest => {
                let first = journal.invocation(id).unwrap().unwrap();
                let retries = journal.retries(&first).unwrap();
                let attempts: Vec<_> = std::iter::once(&first).chain(&retries).collect();
                let late = ResultCommitted::of(Verdict::committed(Retry::Never, Code::Ok));
                let settled = journal.settle_doubt(&attempts, Source::OperatorAttested, &late);
                if settled.await.unwrap() {
                    seen.lock().unwrap().attested = true;
                }
            }
        }
    }
    journal.close().await;
    seen.into_inner().unwrap().dispatched
}

fn play_alone(history: &History) -> usize {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(play(history))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 120,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// T-1 to T-3, K-6: the engine dispatches nothing that the contract forbids, whatever happened
    /// before, with restarts and other workers in between; a restart changes neither the attempts that
    /// count nor the instruction.
    #[test]
    fn t_2_the_engine_dispatches_nothing_that_is_forbidden(history in history()) {
        play_alone(&history);
    }
}

/// The property does not hold for want of dispatches: what is allowed is sent.
#[test]
fn t_2_the_engine_dispatches_what_is_allowed() {
    let far = u64::MAX - 1;
    let of = |contract, ends: &[End]| History {
        contract,
        max_attempts: 4,
        ends: ends.to_vec(),
        steps: vec![Step::Retry, Step::Restart, Step::Retries, Step::Retry, Step::Retry],
    };
    let (unknown, later) = (End::Unknown, End::Status(503, true));
    for (contract, ends, expected) in [
        (Contract::Idempotent, &[unknown][..], 3),
        (Contract::Key(RemoteContract::Verified, far), &[unknown], 3),
        (Contract::OwnKey(RemoteContract::Verified, far), &[unknown], 3),
        (Contract::OwnKey(RemoteContract::Verified, far), &[unknown, End::Status(200, false)], 1),
        (Contract::Idempotent, &[unknown, End::Status(500, false), End::Status(200, false)], 2),
        (Contract::Idempotent, &[later], 3),
        (Contract::Nothing, &[End::NotProcessed], 3),
        (Contract::Nothing, &[unknown], 0),
        (Contract::Nothing, &[later], 0),
        (Contract::Key(RemoteContract::Verified, 1), &[unknown], 0),
        (Contract::Key(RemoteContract::Unverified, far), &[unknown], 0),
    ] {
        assert_eq!(play_alone(&of(contract, ends)), expected, "{contract:?} {ends:?}");
    }
}
