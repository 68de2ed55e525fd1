//! The stored request, and where an action with retries stands (contract T-1 to T-3, K-5, J-3).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{
    Accepted, Body, Code, Decision, Ended, InvocationId, Noted, Outcome, Preflight, RemoteContract,
    ResultCommitted, Retry, Source, Verdict, after_unknown,
};
use journal::{Admission, Against, Call, Guard, Journal, result, verify_against};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
const CANARY: &str = "canary-in-a-stored-request";

fn ended(verdict: Verdict) -> Ended {
    let message = "It ended.".to_owned();
    Ended { verdict, message, field: None, not_before_ms: None, observation: None }
}

fn content_of(length: usize) -> Vec<u8> {
    let mut content = CANARY.repeat(length / CANARY.len() + 1).into_bytes();
    content.truncate(length);
    content
}

async fn begun(journal: &Journal, length: usize, most: u32) -> Call {
    begun_as(journal, preflight(), length, most).await
}

async fn begun_as(journal: &Journal, bound: Preflight, length: usize, most: u32) -> Call {
    let mut call = admit(journal, "coder", "a");
    call.preflight(bound).unwrap();
    call.authorize(None).unwrap();
    let content = content_of(length);
    let (one, two) = content.split_at(length / 3);
    call.store_request(b"POST /x HTTP/1.1\r\n\r\n", &[one, two], most).unwrap();
    assert_eq!(call.dispatch(dispatch()).await.unwrap().id(), call.id());
    call
}

/// T-3: request and result of one call are apart, encrypted, whole after a restart, and verified.
#[tokio::test]
async fn t_3_a_stored_request_comes_back_as_it_was() {
    for length in [0, 1, 150_000, 1 << 20] {
        let home = tempfile::tempdir().unwrap();
        let (journal, _) = open(home.path());
        let mut call = begun(&journal, length, 3).await;
        let id = call.id();
        let check = |journal: &Journal| {
            let stored = journal.request(id).unwrap();
            assert_eq!(&stored.head[..], b"POST /x HTTP/1.1\r\n\r\n");
            assert!(stored.content[..] == content_of(length)[..]);
            assert_eq!(stored.max_attempts, 3);
        };
        check(&journal);
        drop(respond(&mut call, 200, b"the result").await);
        check(&journal);
        assert_eq!(content(&journal, id), b"the result");
        drop(call);
        journal.close().await;
        drop(journal);
        let against = Against { key: Some(key()), checkpoint: None };
        let verified = verify_against(home.path(), against).unwrap();
        assert_eq!(verified.results, 2, "the request and the result");
        let (journal, _) = open(home.path());
        check(&journal);
        assert_eq!(content(&journal, id), b"the result");
        journal.close().await;
        for file in std::fs::read_dir(home.path()).unwrap() {
            let Ok(bytes) = std::fs::read(file.unwrap().path()) else { continue };
            assert!(!bytes.windows(CANARY.len()).any(|w| w == CANARY.as_bytes()));
        }
    }
}

/// Without a key nothing is stored, and the call goes on; one without a stored request has none.
#[tokio::test]
async fn a_request_without_a_key_is_not_stored() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    journal.set_result_key(None);
    let mut call = admit(&journal, "coder", "a");
    call.preflight(preflight()).unwrap();
    call.authorize(None).unwrap();
    let stored = call.store_request(b"head", &[], 2).unwrap_err();
    assert_eq!(stored, journal::append::Error::Locked);
    assert_eq!(call.dispatch(dispatch()).await.unwrap().id(), call.id());
    assert!(matches!(journal.request(call.id()), Err(result::Error::NotKept)));
    drop(call);
    journal.close().await;
}

/// Dispatches a retry of `first` under a lease of its own, and ends it.
async fn retried(
    journal: &Journal,
    first: InvocationId,
    end: impl AsyncFn(&mut Call),
) -> InvocationId {
    let lease = journal.lease(first, "w", LONG).await.unwrap();
    let accepted = Accepted { link: Some(first), ..accepted("coder", "a") };
    let admitted = journal.admit(journal.new_id(), accepted, Guard::default()).unwrap();
    let Admission::New(mut call) = admitted else { panic!("{}", name(&admitted)) };
    call.preflight(preflight()).unwrap();
    call.authorize(None).unwrap();
    assert_eq!(call.dispatch_under(&lease, None, dispatch()).await.unwrap().id(), call.id());
    end(&mut call).await;
    lease.release().await.unwrap();
    call.id()
}

/// T-3: attempts and budget are on record; spent, the last evidence comes with `reconcile`, and a
/// restart changes neither.
#[tokio::test]
async fn t_3_a_spent_budget_ends_in_reconcile_and_a_restart_resets_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = begun(&journal, 10, 3).await;
    let id = call.id();
    let unknown = Verdict::unknown(Retry::Backoff, Code::RemoteOutcomeUnknown);
    let give_up = async |call: &mut Call| drop(call.end(ended(unknown)).await.unwrap());
    give_up(&mut call).await;
    drop(call);
    let standing = |journal: &Journal| {
        let first = journal.invocation(id).unwrap().unwrap();
        journal.standing(&first).unwrap()
    };
    assert_eq!(
        (standing(&journal).attempts, standing(&journal).verdict.retry()),
        (1, Retry::Backoff)
    );
    let one = retried(&journal, id, give_up).await;
    assert_eq!((standing(&journal).attempts, standing(&journal).by), (2, one));
    // A lease without a dispatch counts as well: nobody knows what its worker did before.
    journal.lease(id, "w", LONG).await.unwrap().release().await.unwrap();
    let spent = standing(&journal);
    assert_eq!((spent.attempts, spent.max_attempts), (3, Some(3)));
    assert_eq!(
        (spent.verdict.outcome(), spent.verdict.retry(), spent.decision),
        (Outcome::Unknown, Retry::Reconcile, Decision::Reconcile)
    );
    journal.close().await;
    drop(journal);
    let (journal, _) = open(home.path());
    assert_eq!(standing(&journal), spent);
    let first = journal.invocation(one).unwrap().unwrap();
    assert_eq!(journal.first_attempt(first).unwrap().retries(), [one]);
    journal.close().await;
}

/// J-3, J-5: the result of a retry settles the first attempt as late evidence; the attempt's own
/// facts stay, and its id leads to the result.
#[tokio::test]
async fn j_3_a_retry_settles_what_was_unknown() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = begun(&journal, 10, 3).await;
    let id = call.id();
    let unknown = Verdict::unknown(Retry::Backoff, Code::RemoteOutcomeUnknown);
    drop(call.end(ended(unknown)).await.unwrap());
    let before = journal.invocation(id).unwrap().unwrap().evidence();
    let retry = retried(&journal, id, async |call: &mut Call| {
        drop(respond(call, 200, b"the one result").await);
    })
    .await;
    let verdict = Verdict::committed(Retry::Never, Code::Ok);
    let late = ResultCommitted { observed_by: Some(retry), ..ResultCommitted::of(verdict) };
    let body = Body::ResultCommitted(Box::new(late));
    journal.record(id, Source::RemoteQuery, body.clone()).unwrap().durable().await.unwrap();
    let first = journal.invocation(id).unwrap().unwrap();
    let after = first.evidence();
    assert_eq!(first.verdict(), verdict);
    assert_eq!((after.response_complete, after.source), (false, Some(Source::RemoteQuery)));
    assert_eq!(after.dispatch_sequence, before.dispatch_sequence);
    assert_eq!(first.message(), "The remote, asked later, decided the outcome of this call.");
    let standing = journal.standing(&first).unwrap();
    assert_eq!((standing.by, standing.decision), (retry, Decision::ReturnRecordedResult));
    assert_eq!(content(&journal, id), b"the one result");
    // Settled once, for good.
    assert!(journal.record(id, Source::OperatorAttested, body).is_err());
    drop(call);
    journal.close().await;
}

/// A copy of the log as a crash now would leave it: what is durable, and no index.
fn crashed(home: &std::path::Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(home).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}

/// T-3: a restart between any two steps of a retry changes neither the attempts that count nor the
/// instruction, whatever makes the repeat safe.
#[tokio::test]
async fn t_3_a_restart_between_any_two_steps_changes_nothing() {
    let far = u64::MAX - 1;
    for (contract, instruction) in [
        (Contract::Nothing, Retry::Reconcile),
        (Contract::Idempotent, Retry::Backoff),
        (Contract::Key(RemoteContract::Verified, far), Retry::SameIdempotencyKey),
        (Contract::OwnKey(RemoteContract::Verified, far), Retry::SameIdempotencyKey),
        (Contract::Key(RemoteContract::Verified, 1), Retry::Reconcile),
        (Contract::OwnKey(RemoteContract::Unverified, far), Retry::Reconcile),
    ] {
        restarted_at_every_step(contract, instruction).await;
    }
}

async fn restarted_at_every_step(contract: Contract, instruction: Retry) {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = begun_as(&journal, contract.preflight(), 10, 4).await;
    let id = call.id();
    let given = after_unknown(&contract.operation(), journal.latest_ms());
    assert_eq!(given, instruction);
    let unknown = Verdict::unknown(given, Code::RemoteOutcomeUnknown);
    drop(call.end(ended(unknown)).await.unwrap());
    drop(call);
    let steps = std::cell::Cell::new(0);
    let check = async |journal: &Journal, what: &str| {
        // Whatever was queued before this note is durable with it.
        let note = Body::Noted(Noted { name: "step".to_owned(), detail: what.to_owned() });
        let ticket = journal.record(id, Source::TransportObserved, note).unwrap();
        ticket.durable().await.unwrap();
        let of = |journal: &Journal| {
            let first = journal.invocation(id).unwrap().unwrap();
            let standing = journal.standing(&first).unwrap();
            let verdict = standing.verdict;
            (standing.attempts, standing.decision, verdict.outcome(), verdict.retry())
        };
        let copy = crashed(home.path());
        let (restarted, _) = open(copy.path());
        assert_eq!(of(&restarted), of(journal), "after {what}");
        restarted.close().await;
        steps.set(steps.get() + 1);
        of(journal)
    };
    check(&journal, "the end of the first attempt").await;
    let lease = journal.lease(id, "w", LONG).await.unwrap();
    let leased = check(&journal, "the lease").await;
    assert_eq!((leased.0, leased.3), (2, instruction));
    let accepted = Accepted { link: Some(id), ..accepted("coder", "a") };
    let admitted = journal.admit(journal.new_id(), accepted, Guard::default()).unwrap();
    let Admission::New(mut call) = admitted else { panic!("{}", name(&admitted)) };
    check(&journal, "the admission").await;
    call.preflight(contract.preflight()).unwrap();
    check(&journal, "the preflight").await;
    call.authorize(None).unwrap();
    check(&journal, "the credential").await;
    assert_eq!(call.dispatch_under(&lease, None, dispatch()).await.unwrap().id(), call.id());
    check(&journal, "the dispatch").await;
    lease.renew(LONG).await.unwrap();
    check(&journal, "the renewal").await;
    drop(respond(&mut call, 200, b"ok").await);
    // Nobody waits for a retry: its result is there to be fetched.
    call.delivery_failed(0);
    let settled = check(&journal, "the result").await;
    assert_eq!((settled.1, settled.2), (Decision::Fetch, Outcome::Committed));
    let verdict = Verdict::committed(Retry::Never, Code::Ok);
    let late = ResultCommitted { observed_by: Some(call.id()), ..ResultCommitted::of(verdict) };
    let first = journal.invocation(id).unwrap().unwrap();
    assert!(journal.settle_doubt(&[&first], Source::RemoteQuery, &late).await.unwrap());
    assert_eq!(check(&journal, "the late evidence").await, settled);
    lease.release().await.unwrap();
    assert_eq!(check(&journal, "the release").await, settled);
    assert_eq!(steps.get(), 10);
    drop(call);
    journal.close().await;
}
