//! Calls that wait for a person (contract V-6), and budgets: across restarts, and among racing callers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{
    Budget, Code, Digest, Dispatch, InvocationId, Outcome, Phase, Preflight, Retry, Spent,
};
use journal::{
    Admission, Call, DecideError, Guard, Invocation, Journal, MAX_HELD, Question, Resumed, append,
    verify,
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn question(lasts: Duration) -> Question<'static> {
    Question { fingerprint: Digest::of(b"pay"), lasts, shown: br#"{"method":"POST"}"# }
}

async fn hold(journal: &Journal, lasts: Duration) -> InvocationId {
    let mut call = admit(journal, "coder", "pay");
    call.preflight(preflight()).unwrap();
    let id = call.id();
    assert!(call.hold(question(lasts)).await.unwrap().is_held());
    id
}

fn said(invocation: &Invocation) -> (Phase, Outcome, Retry, Code) {
    let verdict = invocation.verdict();
    (verdict.phase(), verdict.outcome(), verdict.retry(), verdict.code())
}

async fn resume(journal: &Journal, id: InvocationId) -> Resumed {
    journal.resume(id, &preflight(), None).await.unwrap()
}

fn go(resumed: Resumed) -> Call {
    match resumed {
        Resumed::Go(call) => call,
        Resumed::Waits(_) => panic!("it waits"),
        Resumed::Over(over) => panic!("it is over: {:?}", said(&over)),
        Resumed::Spent(spent) => panic!("{spent}"),
    }
}

fn over(resumed: Resumed) -> Invocation {
    match resumed {
        Resumed::Over(over) => *over,
        Resumed::Go(_) => panic!("it goes on"),
        Resumed::Waits(_) => panic!("it waits"),
        Resumed::Spent(spent) => panic!("{spent}"),
    }
}

fn approved_dispatch() -> Dispatch {
    Dispatch { fingerprint: Digest::of(b"pay"), ..dispatch() }
}

const PENDING: (Phase, Outcome, Retry, Code) =
    (Phase::Validation, Outcome::NotAttempted, Retry::AfterCorrection, Code::ApprovalPending);

/// V-6: a restart loses neither a question nor a decision, and the one approved call is dispatched
/// once.
#[tokio::test]
async fn v_6_a_restart_loses_no_question_and_no_decision() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = hold(&journal, HOUR).await;
    assert_eq!(said(&journal.invocation(id).unwrap().unwrap()), PENDING);
    journal.close().await;
    drop(journal);

    let (journal, recovery) = open(home.path());
    assert!(recovery.not_attempted.is_empty(), "{recovery:?}");
    let held = journal.held();
    assert_eq!((held.len(), held[0].id(), said(&held[0])), (1, id, PENDING));
    assert_eq!(journal.shown(&held[0]).unwrap(), br#"{"method":"POST"}"#);
    assert!(matches!(resume(&journal, id).await, Resumed::Waits(_)));
    let decided = journal.decide(id, true, "alice").await.unwrap();
    let approval = decided.approval().unwrap();
    assert_eq!(approval.decided.as_ref().unwrap().by, "alice");
    journal.close().await;
    drop(journal);

    let (journal, _) = open(home.path());
    let mut call = go(resume(&journal, id).await);
    call.authorize(Some(credential())).unwrap();
    drop(call.dispatch(approved_dispatch()).await.unwrap());
    assert!(over(resume(&journal, id).await).is_dispatched());
    drop(respond(&mut call, 201, b"paid").await);
    drop(call);
    assert!(over(resume(&journal, id).await).is_dispatched());
    assert_eq!(content(&journal, id), b"paid");
    assert!(journal.held().is_empty());
    journal.close().await;
    drop(journal);
    verify(home.path()).unwrap();
}

/// V-6: what was given up before dispatch, in this process or by a restart, is still approved.
#[tokio::test]
async fn v_6_an_approval_outlives_what_broke_off_before_dispatch() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = hold(&journal, HOUR).await;
    journal.decide(id, true, "alice").await.unwrap();
    let mut call = go(resume(&journal, id).await);
    assert!(!over(resume(&journal, id).await).is_settled(), "one goes on with it at a time");
    call.authorize(Some(credential())).unwrap();
    drop(call);
    let mut call = go(resume(&journal, id).await);
    call.authorize(Some(credential())).unwrap();
    journal.close().await;
    drop(call);
    drop(journal);
    let (journal, _) = open(home.path());
    let mut call = go(resume(&journal, id).await);
    call.authorize(Some(credential())).unwrap();
    drop(call.dispatch(approved_dispatch()).await.unwrap());
}

/// V-6: the log takes no dispatch of a held call without an approval, and none of another request.
#[tokio::test]
async fn v_6_only_what_was_approved_is_dispatched() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = hold(&journal, HOUR).await;
    journal.decide(id, true, "alice").await.unwrap();
    let mut call = go(resume(&journal, id).await);
    call.authorize(Some(credential())).unwrap();
    let refused = call.dispatch(dispatch()).await.unwrap_err();
    let append::Error::Illegal(illegal) = refused else { panic!("{refused}") };
    assert_eq!(illegal.reason, "it is not the request that was approved");
    drop(call.dispatch(approved_dispatch()).await.unwrap());
}

/// V-5, V-6: what was approved is bound to policy and credential; if one changed, nothing is sent.
#[tokio::test]
async fn v_5_a_changed_binding_ends_the_call() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut other = credential();
    other.version += 1;
    for changed in [
        Preflight { policy_version: 4, ..preflight() },
        Preflight { route: None, ..preflight() },
        Preflight { credential: Some(other), ..preflight() },
    ] {
        let id = hold(&journal, HOUR).await;
        journal.decide(id, true, "alice").await.unwrap();
        let over = over(journal.resume(id, &changed, None).await.unwrap());
        let expected = (
            Phase::Validation,
            Outcome::NotAttempted,
            Retry::AfterCorrection,
            Code::ApprovalMismatch,
        );
        assert_eq!(said(&over), expected);
        assert_eq!(journal.decide(id, true, "b").await.unwrap_err(), DecideError::NotHeld);
    }
}

/// I-1: a denied approval is `credential_injection`, `not_attempted` and `never`; a decision is made
/// once.
#[tokio::test]
async fn i_1_denied_is_never_and_a_decision_is_made_once() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let (denied, approved) = (hold(&journal, HOUR).await, hold(&journal, HOUR).await);
    let end = journal.decide(denied, false, "alice").await.unwrap();
    let expected =
        (Phase::CredentialInjection, Outcome::NotAttempted, Retry::Never, Code::ApprovalDenied);
    assert_eq!(said(&end), expected);
    assert_eq!(said(&over(resume(&journal, denied).await)), expected);
    assert_eq!(journal.decide(denied, true, "bob").await.unwrap_err(), DecideError::NotHeld);
    journal.decide(approved, true, "alice").await.unwrap();
    for approve in [true, false] {
        let again = journal.decide(approved, approve, "bob").await.unwrap_err();
        assert_eq!(again, DecideError::Decided("alice".to_owned()));
    }
    let never = InvocationId::from_parts(1, 1);
    assert_eq!(journal.decide(never, true, "bob").await.unwrap_err(), DecideError::NotHeld);
}

/// V-6: what nobody decided in time, or used in time, is over. Times of zero need no clock.
#[tokio::test]
async fn v_6_questions_and_approvals_expire() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let expected =
        (Phase::Validation, Outcome::NotAttempted, Retry::AfterCorrection, Code::ApprovalExpired);
    let (asked, swept) =
        (hold(&journal, Duration::ZERO).await, hold(&journal, Duration::ZERO).await);
    assert_eq!(journal.decide(asked, true, "alice").await.unwrap_err(), DecideError::Expired);
    assert_eq!(said(&over(resume(&journal, asked).await)), expected);
    journal.expire_held().unwrap();
    journal.changed(swept).await;
    assert_eq!(said(&journal.invocation(swept).unwrap().unwrap()), expected);
    assert!(journal.held().is_empty());
}

/// K-10, V-6: an equal submission joins the call that waits, by its id or without one; one with an id
/// of its own is another call; another request under that id is refused.
#[tokio::test]
async fn k_10_an_equal_submission_joins_the_call_that_waits() {
    let home = tempfile::tempdir().unwrap();
    for restart in [false, true] {
        let (mut journal, _) = open(home.path());
        let id = hold(&journal, HOUR).await;
        if restart {
            journal.close().await;
            drop(journal);
            journal = open(home.path()).0;
        }
        let try_as = |id: Option<InvocationId>, agent: &str, fingerprint: &str| {
            let mut accepted = accepted(agent, fingerprint);
            accepted.caller_id = id.is_some();
            let guard = Guard { join: true, ..Guard::default() };
            let id = id.unwrap_or_else(|| journal.new_id());
            let admission = journal.admit(id, accepted, guard).unwrap();
            let held = match &admission {
                Admission::Held(held) => Some(held.id()),
                _ => None,
            };
            (name(&admission), held)
        };
        assert_eq!(try_as(Some(id), "coder", "pay"), ("held", Some(id)));
        assert_eq!(try_as(None, "coder", "pay"), ("held", Some(id)));
        assert_eq!(try_as(Some(id), "coder", "other"), ("mismatch", None));
        assert_eq!(try_as(Some(id), "other", "pay"), ("mismatch", None));
        assert_eq!(try_as(None, "other", "pay"), ("new", None));
        assert_eq!(try_as(Some(journal.new_id()), "coder", "pay"), ("new", None));
        journal.decide(id, false, "alice").await.unwrap();
        assert_eq!(try_as(Some(id), "coder", "pay"), ("same request", None));
        assert_eq!(try_as(None, "coder", "pay"), ("new", None));
        journal.close().await;
    }
}

/// V-6, D-7: of many callers that wait for one approval, one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn v_6_one_of_many_waiters_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = hold(&journal, HOUR).await;
    let waiters: Vec<_> = (0..16)
        .map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move {
                loop {
                    match resume(&journal, id).await {
                        Resumed::Waits(_) => journal.decided(id).await,
                        Resumed::Go(mut call) => {
                            call.authorize(Some(credential())).unwrap();
                            drop(call.dispatch(approved_dispatch()).await.unwrap());
                            drop(respond(&mut call, 201, b"paid").await);
                            return 1;
                        }
                        Resumed::Over(_) => return 0,
                        Resumed::Spent(spent) => panic!("{spent}"),
                    }
                }
            })
        })
        .collect();
    journal.decide(id, true, "alice").await.unwrap();
    let mut went_on = 0;
    for waiter in waiters {
        went_on += tokio::time::timeout(Duration::from_secs(60), waiter).await.unwrap().unwrap();
    }
    assert_eq!(went_on, 1);
}

/// A person is not asked more than can be answered.
#[tokio::test]
async fn an_agent_has_a_bounded_number_of_questions() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    for n in 0..MAX_HELD {
        assert!(!journal.holds_enough(Some("coder")), "{n}");
        hold(&journal, HOUR).await;
    }
    assert!(journal.holds_enough(Some("coder")) && !journal.holds_enough(Some("other")));
}

/// I-2: what is shown to a person is not in the log in clear, and not without the key.
#[tokio::test]
async fn i_2_what_is_shown_is_encrypted_in_the_log() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = admit(&journal, "coder", "pay");
    call.preflight(preflight()).unwrap();
    let canary: &[u8] = b"CANARY-of-the-request";
    call.hold(Question { shown: canary, ..question(HOUR) }).await.unwrap();
    assert_eq!(journal.shown(&journal.held()[0]).unwrap(), canary);
    journal.set_result_key(None);
    assert!(journal.shown(&journal.held()[0]).is_err());
    let mut call = admit(&journal, "coder", "pay");
    call.preflight(preflight()).unwrap();
    assert_eq!(call.hold(question(HOUR)).await.unwrap_err(), append::Error::Locked);
    journal.close().await;
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            assert!(!bytes.windows(canary.len()).any(|w| w == canary), "{}", path.display());
        }
    }
}

fn budgeted(journal: &Journal, budget: Budget) -> Result<Call, Spent> {
    let guard = Guard { budget: Some(budget), ..Guard::default() };
    match journal.admit(journal.new_id(), accepted("coder", "x"), guard).unwrap() {
        Admission::New(call) => Ok(call),
        Admission::Spent(spent) => Err(spent),
        other => panic!("{}", name(&other)),
    }
}

async fn use_up(call: &mut Call, content: &[u8]) {
    call.preflight(preflight()).unwrap();
    call.authorize(Some(credential())).unwrap();
    drop(call.dispatch(dispatch()).await.unwrap());
    drop(respond(call, 200, content).await);
}

/// A restart resets no budget, whether the index was kept or is rebuilt; calls that were not
/// dispatched, and those of other agents, count for none.
#[tokio::test]
async fn a_restart_resets_no_budget() {
    let home = tempfile::tempdir().unwrap();
    let budget = Budget { calls_per_hour: Some(2), bytes_per_day: Some(1000), ..Budget::default() };
    let (journal, _) = open(home.path());
    drop(budgeted(&journal, budget).unwrap());
    for _ in 0..2 {
        use_up(&mut budgeted(&journal, budget).unwrap(), b"0123456789").await;
    }
    let spent = budgeted(&journal, budget).unwrap_err();
    assert_eq!((spent.key, spent.limit), ("calls_per_hour", 2));
    for lose_index in [false, true] {
        let spent = {
            let (journal, _) = match lose_index {
                false => {
                    journal.close().await;
                    open(home.path())
                }
                true => {
                    std::fs::remove_dir_all(home.path().join("index")).unwrap();
                    open(home.path())
                }
            };
            let again = budgeted(&journal, budget).unwrap_err();
            let bytes = Budget { bytes_per_day: Some(20), ..Budget::default() };
            assert_eq!(budgeted(&journal, bytes).unwrap_err().key, "bytes_per_day");
            let bytes = Budget { bytes_per_day: Some(21), ..Budget::default() };
            drop(budgeted(&journal, bytes).unwrap());
            journal.close().await;
            again
        };
        assert_eq!((spent.key, spent.limit), ("calls_per_hour", 2), "index lost: {lose_index}");
    }
}

/// Calls under way are bounded; the place is free once the outcome is on record.
#[tokio::test]
async fn concurrent_calls_are_bounded_until_their_outcome() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let budget = Budget { concurrent_calls: Some(1), ..Budget::default() };
    let mut first = budgeted(&journal, budget).unwrap();
    assert_eq!(budgeted(&journal, budget).unwrap_err().key, "concurrent_calls");
    use_up(&mut first, b"").await;
    let second = budgeted(&journal, budget).unwrap();
    drop(second);
    drop(budgeted(&journal, budget).unwrap());
    drop(first);
}

/// An approved call counts when it goes on; a spent budget leaves it approved.
#[tokio::test]
async fn an_approved_call_counts_when_it_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let budget = Budget { calls_per_day: Some(1), ..Budget::default() };
    let id = hold(&journal, HOUR).await;
    journal.decide(id, true, "alice").await.unwrap();
    use_up(&mut budgeted(&journal, budget).unwrap(), b"").await;
    match journal.resume(id, &preflight(), Some(&budget)).await.unwrap() {
        Resumed::Spent(spent) => assert_eq!(spent.key, "calls_per_day"),
        _ => panic!("the budget does not hold"),
    }
    drop(go(resume(&journal, id).await));
}
