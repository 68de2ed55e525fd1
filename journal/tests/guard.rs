//! K-3, K-10 and K-11: when an earlier invocation answers.

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
    Accepted, Body, Code, Confirmation, DeliveryFailed, Digest, Ended, Idempotency, InvocationId,
    Operation, Preflight, RemoteContract, Retry, Source, Verdict,
};
use journal::{Admission, Call, Choice, Guard, Journal, Key};
use std::time::Duration;

fn submit(journal: &Journal, agent: &str, fingerprint: &str) -> Admission {
    journal.admit(journal.new_id(), accepted(agent, fingerprint), guarded()).unwrap()
}

fn new(admission: Admission) -> Call {
    match admission {
        Admission::New(call) => call,
        other => panic!("{}", name(&other)),
    }
}

async fn advance(call: &mut Call) {
    call.preflight(preflight()).unwrap();
    call.authorize(None).unwrap();
    assert_eq!(call.dispatch(dispatch()).await.unwrap().id(), call.id());
}

fn unknown() -> Ended {
    Ended {
        verdict: Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown),
        message: "It closed.".to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    }
}

fn not_attempted() -> Ended {
    let verdict = Verdict::not_connected(Retry::Backoff, Code::ConnectionRefused);
    Ended { verdict, ..unknown() }
}

/// Runs one earlier call to an end and says what an equal submission gets, at once, from the index
/// alone, and after a restart.
async fn check<F>(expected: &str, end: F)
where
    F: AsyncFn(&mut Call),
{
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    let id = call.id();
    advance(&mut call).await;
    end(&mut call).await;
    drop(call);
    let seen = |journal: &Journal| {
        let admission = submit(journal, "coder", "a");
        if let Admission::InDoubt(earlier) | Admission::Settled(earlier) = &admission {
            assert_eq!(earlier.id(), id);
        }
        let seen = name(&admission);
        if let Admission::New(call) = admission {
            // Made not_attempted, so that the next question meets the first call again.
            drop(call);
        }
        seen
    };
    assert_eq!(seen(&journal), expected);
    let other = submit(&journal, "other", "a");
    assert_eq!(name(&other), "new", "another agent");
    drop(other);
    assert_eq!(name(&submit(&journal, "coder", "b")), "new", "another request");
    journal.close().await;
    let (journal, _) = open(home.path());
    assert_eq!(seen(&journal), expected, "after a restart");
    journal.close().await;
}

#[tokio::test]
async fn k_11_unknown_guards() {
    check("in doubt", async |call| drop(call.end(unknown()).await.unwrap())).await;
}

#[tokio::test]
async fn k_11_a_5xx_guards_even_when_delivered() {
    check("settled", async |call| {
        drop(respond(call, 500, b"no").await);
        call.delivered(Confirmation::Protocol);
    })
    .await;
}

#[tokio::test]
async fn k_11_a_result_that_was_not_handed_over_guards() {
    check("settled", async |call| {
        drop(respond(call, 200, b"yes").await);
        call.delivery_failed(1);
    })
    .await;
    check("settled", async |call| drop(respond(call, 200, b"yes").await)).await;
}

#[tokio::test]
async fn k_11_a_delivered_2xx_and_4xx_do_not_guard() {
    for status in [200, 404] {
        check("new", async |call| {
            drop(respond(call, status, b"x").await);
            call.delivered(Confirmation::Protocol);
        })
        .await;
    }
}

/// a delivery that is taken back guards at once, also where only the index knew the call.
#[tokio::test]
async fn k_11_a_delivery_that_is_taken_back_guards() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    let id = call.id();
    advance(&mut call).await;
    drop(respond(&mut call, 200, b"yes").await);
    assert!(call.delivered(Confirmation::Transport));
    assert!(!call.delivered(Confirmation::Protocol), "it is on record");
    drop(call);
    journal.close().await;
    let (journal, _) = open(home.path());
    drop(new(submit(&journal, "coder", "a")));
    let failed = Body::DeliveryFailed(DeliveryFailed { length_bytes: 3 });
    drop(journal.record(id, Source::TransportObserved, failed).unwrap());
    assert_eq!(name(&submit(&journal, "coder", "a")), "settled");
    journal.close().await;
    let (journal, _) = open(home.path());
    assert_eq!(name(&submit(&journal, "coder", "a")), "settled", "after a restart");
    journal.close().await;
}

/// A call that was interrupted by a restart is unknown, and guards.
#[tokio::test]
async fn k_11_given_up_after_dispatch_guards() {
    check("in doubt", async |_| ()).await;
}

#[tokio::test]
async fn k_11_not_attempted_never_guards() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    assert_eq!(name(&submit(&journal, "coder", "a")), "in doubt", "in flight");
    drop(call.end(not_attempted()).await.unwrap());
    assert_eq!(name(&submit(&journal, "coder", "a")), "new");
    journal.close().await;
}

#[tokio::test]
async fn k_11_off_by_window_and_for_an_id_of_the_callers_own() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    advance(&mut call).await;
    drop(call.end(unknown()).await.unwrap());
    let again = |guard: Guard, caller_id| {
        let accepted = Accepted { caller_id, ..accepted("coder", "a") };
        let admission = journal.admit(journal.new_id(), accepted, guard).unwrap();
        name(&admission)
    };
    assert_eq!(again(guarded(), false), "in doubt");
    assert_eq!(again(Guard::default(), false), "new");
    let narrow = Guard { window: Some(Duration::ZERO), ..Guard::default() };
    assert_eq!(again(narrow, false), "new");
    assert_eq!(again(guarded(), true), "new");
    journal.close().await;
}

/// K-11: late evidence of a rejection, handed over, opens the way; before that it does not.
#[tokio::test]
async fn k_11_late_evidence_changes_the_answer() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    let id = call.id();
    advance(&mut call).await;
    drop(call.end(unknown()).await.unwrap());
    drop(call);
    let verdict = Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected);
    let committed = journal::contract::ResultCommitted::of(verdict);
    let body = journal::contract::Body::ResultCommitted(Box::new(committed));
    journal.record(id, Source::OperatorAttested, body).unwrap().durable().await.unwrap();
    assert_eq!(name(&submit(&journal, "coder", "a")), "settled");
    let delivered = journal::contract::Delivered { confirmation: Confirmation::Acknowledged };
    let body = journal::contract::Body::ResultDelivered(delivered);
    journal.record(id, Source::TransportObserved, body).unwrap().durable().await.unwrap();
    assert_eq!(name(&submit(&journal, "coder", "a")), "new");
    journal.close().await;
}

/// K-10: the same id and an equal fingerprint answer from the record; anything else is a mismatch.
#[tokio::test]
async fn k_10_an_id_stands_for_one_request_of_one_agent() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = InvocationId::from_parts(1_764_476_760_000, 99);
    let again = |journal: &Journal, agent: &str, fingerprint: Option<&str>| {
        let fingerprint = fingerprint.map(|text| Digest::of(text.as_bytes()));
        let accepted = Accepted { fingerprint, caller_id: true, ..accepted(agent, "") };
        journal.admit(id, accepted, guarded()).unwrap()
    };
    let mut call = new(again(&journal, "coder", Some("a")));
    for round in 0..3 {
        assert_eq!(name(&again(&journal, "coder", Some("a"))), "same request", "{round}");
        assert_eq!(name(&again(&journal, "coder", Some("b"))), "mismatch", "{round}");
        assert_eq!(name(&again(&journal, "coder", None)), "mismatch", "{round}");
        assert_eq!(name(&again(&journal, "other", Some("a"))), "mismatch", "{round}");
        if round == 0 {
            advance(&mut call).await;
        } else if round == 1 {
            drop(respond(&mut call, 200, b"yes").await);
            call.delivered(Confirmation::Protocol);
        }
    }
    drop(call);
    journal.close().await;
    let (journal, _) = open(home.path());
    match again(&journal, "coder", Some("a")) {
        Admission::SameRequest(earlier) => assert!(earlier.is_settled()),
        other => panic!("{}", name(&other)),
    }
    assert_eq!(name(&again(&journal, "coder", Some("b"))), "mismatch");
    journal.close().await;
}

/// K-3: a key with another request is a mismatch; with the same request it is new; an attempt that
/// never left does not bind it; an expired one neither (K-5).
#[tokio::test]
async fn k_3_a_key_stands_for_one_request() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let guard = || Guard { key: Some(key()), ..Guard::default() };
    let submit = |journal: &Journal, agent: &str, fingerprint: &str| {
        journal.admit(journal.new_id(), accepted(agent, fingerprint), guard()).unwrap()
    };
    let mut call = new(submit(&journal, "coder", "x"));
    call.preflight(bound("x", u64::MAX)).unwrap();
    assert_eq!(name(&submit(&journal, "coder", "a")), "mismatch", "in flight");
    drop(call.end(not_attempted_injection()).await.unwrap());
    drop(call);

    let mut call = new(submit(&journal, "coder", "a"));
    call.preflight(bound("a", u64::MAX)).unwrap();
    call.authorize(None).unwrap();
    drop(call.dispatch(dispatch()).await.unwrap());
    drop(call.end(unknown()).await.unwrap());
    drop(call);
    let check = |journal: &Journal| {
        assert_eq!(name(&submit(journal, "coder", "b")), "mismatch");
        assert_eq!(name(&submit(journal, "other", "a")), "mismatch");
        assert_eq!(name(&submit(journal, "coder", "a")), "new");
    };
    check(&journal);
    journal.close().await;
    let (journal, _) = open(home.path());
    check(&journal);
    journal.close().await;

    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = new(submit(&journal, "coder", "a"));
    call.preflight(bound("a", 1)).unwrap();
    call.authorize(None).unwrap();
    drop(call.dispatch(dispatch()).await.unwrap());
    drop(call);
    assert_eq!(name(&submit(&journal, "coder", "b")), "new", "the key has expired");
    journal.close().await;
}

fn key() -> Key {
    Key {
        scope: "pay".to_owned(),
        key: "k1".to_owned(),
        is_verified: true,
        choice: Choice::Given { by_fingerprint: true },
    }
}

/// What a request with that key is bound to.
fn bound(fingerprint: &str, expires_at_ms: u64) -> Preflight {
    Preflight {
        idempotency: Some(Idempotency {
            key: "k1".to_owned(),
            scope: "pay".to_owned(),
            fingerprint: Digest::of(fingerprint.as_bytes()),
            expires_at_ms,
            remote_contract: RemoteContract::Verified,
            added_as: None,
        }),
        ..preflight()
    }
}

/// K-5, K-11: the earliest use of a key counts. A resubmission under a key that is still kept is let
/// through, and expires with that use; once it may be forgotten, the guard holds again. Both after a
/// restart as well.
#[tokio::test]
async fn k_5_k_11_a_resubmission_does_not_renew_its_key() {
    let submit = |journal: &Journal| {
        let guard = Guard { key: Some(key()), ..guarded() };
        journal.admit(journal.new_id(), accepted("coder", "a"), guard).unwrap()
    };
    // Loses a call whose key would expire then; gives when it does.
    let lose = async |mut call: Call, expires_at_ms| {
        let expiry = |operation: &Operation| operation.idempotency.as_ref().unwrap().expires_at_ms;
        let idempotency = bound("a", expires_at_ms).idempotency;
        let mut judged = Operation { idempotent: false, idempotency };
        call.preflight(bound("a", expires_at_ms)).unwrap();
        call.bind_key(&mut judged);
        call.authorize(None).unwrap();
        drop(call.dispatch(dispatch()).await.unwrap());
        drop(call.end(unknown()).await.unwrap());
        let recorded = expiry(&call.invocation().operation());
        assert_eq!(expiry(&judged), recorded, "what judges it agrees with the record");
        recorded
    };
    let far = u64::MAX - 9;
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    assert_eq!(lose(new(submit(&journal)), far).await, far);
    assert_eq!(lose(new(submit(&journal)), u64::MAX).await, far);
    journal.close().await;
    let (journal, _) = open(home.path());
    assert_eq!(lose(new(submit(&journal)), u64::MAX).await, far, "from the index");
    // A use that ends sooner ends all, as when policy's retention is less now.
    let call = new(submit(&journal));
    let last = call.id();
    assert_eq!(lose(call, 1).await, 1);
    let check = |journal: &Journal| match submit(journal) {
        Admission::InDoubt(earlier) => assert_eq!(earlier.id(), last),
        other => panic!("{}", name(&other)),
    };
    check(&journal);
    journal.close().await;
    let (journal, _) = open(home.path());
    check(&journal);
    // A key that was not used with this request before is kept, and lifts the window.
    let other = Key { key: "k2".to_owned(), ..key() };
    let guard = |key| Guard { key: Some(key), ..guarded() };
    let again = |key| {
        let admission =
            journal.admit(journal.new_id(), accepted("coder", "a"), guard(key)).unwrap();
        name(&admission)
    };
    assert_eq!(again(Key { is_verified: false, ..other.clone() }), "in doubt");
    assert_eq!(again(other), "new");
    journal.close().await;
}

fn not_attempted_injection() -> Ended {
    Ended {
        verdict: Verdict::not_injected(Retry::AfterCorrection, Code::SecretMissing),
        ..unknown()
    }
}

/// K-11: of many equal submissions at once exactly one is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k_11_of_concurrent_equal_submissions_one_is_new() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move {
                match submit(&journal, "coder", "a") {
                    Admission::New(call) => Some(call),
                    other => {
                        assert_eq!(name(&other), "in doubt");
                        None
                    }
                }
            })
        })
        .collect();
    let mut calls = Vec::new();
    for task in tasks {
        calls.extend(task.await.unwrap());
    }
    assert_eq!(calls.len(), 1);
    journal.close().await;
}

/// K-11: those that the caller knows as others do not guard, the next one does.
#[tokio::test]
async fn k_11_an_equal_request_that_is_known_as_another_does_not_guard() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut ids = Vec::new();
    let guard = |others: &[InvocationId]| Guard { others: others.to_vec(), ..guarded() };
    for n in 0..70 {
        let admit = |guard| journal.admit(journal.new_id(), accepted("coder", "a"), guard).unwrap();
        if let Some(newest) = ids.last() {
            // All but the newest are named: it guards, whatever the number of the others.
            match admit(guard(&ids[..n - 1])) {
                Admission::InDoubt(earlier) => assert_eq!(earlier.id(), *newest),
                other => panic!("{}", name(&other)),
            }
        }
        let mut call = new(admit(guard(&ids)));
        advance(&mut call).await;
        drop(call.end(unknown()).await.unwrap());
        ids.push(call.id());
    }
    // The oldest guards as well, from the index alone.
    journal.close().await;
    let (journal, _) = open(home.path());
    match journal.admit(journal.new_id(), accepted("coder", "a"), guard(&ids[1..])).unwrap() {
        Admission::InDoubt(earlier) => assert_eq!(earlier.id(), ids[0]),
        other => panic!("{}", name(&other)),
    }
    journal.close().await;
}
