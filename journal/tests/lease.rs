//! Leases and generations (contract K-6, X-5).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{Code, Ended, InvocationId, Outcome, Retry, Verdict};
use journal::{Journal, append, lease, verify};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

async fn failed(journal: &Journal) -> InvocationId {
    let mut call = admit(journal, "coder", "a");
    call.preflight(preflight()).unwrap();
    let ended = Ended {
        verdict: Verdict::not_injected(Retry::Backoff, Code::BrokerRestarted),
        message: "It ended.".to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    };
    call.end(ended).await.unwrap().id()
}

fn retry(journal: &Journal, n: &str) -> journal::Call {
    let mut call = admit(journal, "coder", n);
    call.preflight(preflight()).unwrap();
    call.authorize(None).unwrap();
    call
}

/// a worker pauses with the lease, the lease runs out, a second one starts; the first is stopped
/// before dispatch.
#[tokio::test]
async fn x_5_a_paused_worker_is_stopped_before_dispatch() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = failed(&journal).await;
    // A time of zero is over at once: no clock is needed.
    let first = journal.lease(id, "first", Duration::ZERO).await.unwrap();
    let second = journal.lease(id, "second", LONG).await.unwrap();
    assert_eq!((first.generation(), second.generation()), (1, 2));
    let (mut paused, mut active) = (retry(&journal, "first"), retry(&journal, "second"));
    let stopped = paused.dispatch_under(&first, None, dispatch()).await.unwrap_err();
    assert_eq!(stopped, lease::Error::Over(1));
    let proof = active.dispatch_under(&second, None, dispatch()).await.unwrap();
    assert_eq!(proof.id(), active.id());
    assert_eq!(
        paused.dispatch_under(&first, None, dispatch()).await.unwrap_err(),
        lease::Error::Over(1)
    );
    assert_eq!(first.renew(LONG).await.unwrap_err(), lease::Error::Over(1));
    assert_eq!(first.release().await.unwrap_err(), lease::Error::Over(1));
    // One retry per lease.
    let again = retry(&journal, "again").dispatch_under(&second, None, dispatch()).await;
    assert!(matches!(again, Err(lease::Error::Append(append::Error::Illegal(_)))), "{again:?}");
    let held = journal.lease(id, "third", LONG).await.unwrap_err();
    assert_eq!(held, lease::Error::Held { holder: "second".to_owned(), generation: 2 });
    drop(respond(&mut active, 200, b"ok").await);
    let known = journal.invocation(id).unwrap().unwrap().lease().unwrap();
    assert_eq!((known.generation, known.retry), (2, Some(active.id())));
    second.release().await.unwrap();
    let (first_id, active_id) = (paused.id(), active.id());
    drop((paused, active));
    journal.close().await;
    verify(home.path()).unwrap();

    // Across processes the generation goes on, and what was dispatched is on record.
    let (journal, _) = open(home.path());
    let outcome = |id| journal.invocation(id).unwrap().unwrap().verdict().outcome();
    assert_eq!(outcome(first_id), Outcome::NotAttempted);
    assert_eq!(outcome(active_id), Outcome::Committed);
    let third = journal.lease(id, "third", LONG).await.unwrap();
    assert_eq!(third.generation(), 3);
    drop(third);
    journal.close().await;
}

/// K-5: a permission that rests on a key ends with it, however long the lease is.
#[tokio::test]
async fn k_5_a_slow_worker_is_stopped_when_its_permission_ends() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = failed(&journal).await;
    let lease = journal.lease(id, "slow", LONG).await.unwrap();
    let mut slow = retry(&journal, "slow");
    let stopped = slow.dispatch_under(&lease, Some(1), dispatch()).await.unwrap_err();
    assert_eq!(stopped, lease::Error::Over(1));
    assert!(!slow.invocation().is_dispatched());
    assert_eq!(journal.invocation(id).unwrap().unwrap().lease().unwrap().retry, None);
    let proof = slow.dispatch_under(&lease, Some(u64::MAX), dispatch()).await.unwrap();
    assert_eq!(proof.id(), slow.id());
    drop(slow);
    lease.release().await.unwrap();
    journal.close().await;
}

/// K-6: a call under way, and a committed one, are not there to be retried.
#[tokio::test]
async fn k_6_only_what_leaves_something_to_try_is_leased() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    let refused = journal.lease(call.id(), "w", LONG).await.unwrap_err();
    assert!(matches!(refused, lease::Error::Append(append::Error::Illegal(_))), "{refused}");
    drop(respond(&mut call, 200, b"done").await);
    assert!(journal.lease(call.id(), "w", LONG).await.is_err());
    let missing = journal.lease(journal.new_id(), "w", LONG).await.unwrap_err();
    assert_eq!(missing, lease::Error::Append(append::Error::NotFound));
    drop(call);
    journal.close().await;
}

/// K-6: of many workers at once one gets the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn k_6_one_of_many_gets_the_lease() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let id = failed(&journal).await;
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let journal = journal.clone();
            tokio::spawn(async move { journal.lease(id, &n.to_string(), LONG).await })
        })
        .collect();
    let mut leases = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            Ok(lease) => leases.push(lease),
            Err(error) => assert!(matches!(error, lease::Error::Held { .. }), "{error}"),
        }
    }
    assert_eq!(leases.len(), 1);
    drop(leases);
    journal.close().await;
}
