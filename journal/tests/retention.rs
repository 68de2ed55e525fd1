//! What leaves the log, what stays, and that both are proven.

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
    Body, Confirmation, Idempotency, InvocationId, Outcome, Preflight, RemoteContract,
    ResultExpired, Sequence,
};
use journal::export::{Exported, Fact, export};
use journal::{
    Against, Journal, Maintained, Options, Retention, State, open, result, verify, verify_against,
};
use std::path::Path;
use std::time::Duration;

fn keeping(directory: &Path, retention: Retention) -> Journal {
    let options =
        Options { retention, guard_horizon: Duration::ZERO, ..common::options(directory) };
    Journal::open(options, Some(key())).unwrap().0
}

fn by_size(bytes: u64) -> Retention {
    Retention { max_age: None, max_bytes: Some(bytes) }
}

fn by_age(age: Duration) -> Retention {
    Retention { max_age: Some(age), max_bytes: None }
}

/// Delivered calls with results of 40 KB.
async fn calls(journal: &Journal, count: u8) -> Vec<InvocationId> {
    let mut ids = Vec::new();
    for n in 0..count {
        let mut call = dispatched(journal, "coder", &format!("call {n} {}", ids.len())).await;
        drop(respond(&mut call, 200, &[n; 40_000]).await);
        call.delivered(Confirmation::Protocol);
        ids.push(call.id());
    }
    ids
}

/// Waits until the index has seen everything, so that a pass can act on it.
async fn indexed(journal: &Journal) {
    tokio::time::timeout(Duration::from_secs(20), async {
        while journal.stats().indexed_sequence < journal.stats().durable_sequence {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

async fn maintain(journal: &Journal) -> Maintained {
    indexed(journal).await;
    let journal = journal.clone();
    tokio::task::spawn_blocking(move || journal.maintain().unwrap()).await.unwrap()
}

fn segments(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".seg"))
        .collect();
    names.sort();
    names
}

fn exported(directory: &Path, since: u64) -> Vec<Exported> {
    let mut all = Vec::new();
    export::<journal::verify::Error>(directory, Sequence(since), &mut |record| {
        all.push(record);
        Ok(())
    })
    .unwrap();
    all
}

/// Segments leave by size; a call under way is re-stated and goes on; the log proves it all without
/// the index, across the removed part.
#[tokio::test]
async fn segments_leave_by_size_and_an_open_call_stays() {
    let home = tempfile::tempdir().unwrap();
    let journal = keeping(home.path(), by_size(2 << 20));
    let mut open_call = dispatched(&journal, "coder", "open").await;
    let ids = calls(&journal, 60).await;
    let before = verify(home.path()).unwrap();
    let done = maintain(&journal).await;
    assert!(done.removed_segments >= 2, "{done:?}");
    assert!(done.carried_forward >= 1 && done.removed_invocations > 10, "{done:?}");
    assert_eq!(journal.invocation(ids[0]).unwrap(), None);
    assert!(matches!(journal.result(ids[0]), Err(result::Error::NotFound)));
    assert_eq!(content(&journal, ids[59]), vec![59; 40_000]);
    assert!(journal.invocation(open_call.id()).unwrap().unwrap().is_dispatched());
    assert_eq!(maintain(&journal).await.removed_segments, 0);
    drop(respond(&mut open_call, 200, b"late").await);
    let id = open_call.id();
    drop(open_call);
    let seen = journal.invocation(id).unwrap();
    journal.close().await;

    let after =
        verify_against(home.path(), Against { key: Some(key()), ..Against::default() }).unwrap();
    assert!(after.removed_sequence.0 > 0 && after.last_sequence > before.last_sequence);
    let first = &exported(home.path(), 0)[0];
    assert!(first.sequence > after.removed_sequence);

    // The index is rebuilt from what is left.
    std::fs::remove_dir_all(home.path().join("index")).unwrap();
    let journal = keeping(home.path(), by_size(2 << 20));
    let rebuilt = journal.invocation(id).unwrap().unwrap();
    assert_eq!(rebuilt.verdict().outcome(), Outcome::Committed);
    assert_eq!(rebuilt.first_sequence(), seen.unwrap().first_sequence());
    assert!(!journal.events(id).unwrap().is_empty());
    assert_eq!(content(&journal, id), b"late");
    assert_eq!(journal.invocation(ids[0]).unwrap(), None);
    assert_eq!(content(&journal, ids[59]), vec![59; 40_000]);
    journal.close().await;
    verify(home.path()).unwrap();
}

/// Everything that is old enough leaves, and what an equal request must still find stays (K-11).
#[tokio::test]
async fn segments_leave_by_age_but_k_11_still_finds_what_guards() {
    let home = tempfile::tempdir().unwrap();
    let options = Options { retention: by_age(Duration::ZERO), ..common::options(home.path()) };
    let (journal, _) = Journal::open(options.clone(), Some(key())).unwrap();
    let guarding = match journal.admit(journal.new_id(), accepted("a", "pay"), guarded()).unwrap() {
        journal::Admission::New(mut call) => {
            call.preflight(preflight()).unwrap();
            call.authorize(None).unwrap();
            drop(call.dispatch(dispatch()).await.unwrap());
            call.id()
        }
        other => panic!("{}", name(&other)),
    };
    journal.changed(guarding).await;
    let ids = calls(&journal, 30).await;
    journal.close().await;
    let (journal, _) = Journal::open(options, Some(key())).unwrap();
    let done = maintain(&journal).await;
    assert!(done.removed_segments >= 2, "{done:?}");
    assert_eq!(journal.invocation(ids[0]).unwrap(), None);
    let again = journal.admit(journal.new_id(), accepted("a", "pay"), guarded()).unwrap();
    assert_eq!(name(&again), "in doubt");
    let kept = exported(home.path(), 0);
    let restated: Vec<_> =
        kept.iter().filter(|record| matches!(record.fact, Fact::CarriedForward(_))).collect();
    assert_eq!(restated.len() as u64, done.carried_forward);
    journal.close().await;
    verify(home.path()).unwrap();
}

/// K-3, K-5, K-11: a key stays known for as long as the remote keeps it, and what guards for as long as the
/// longest window, however short the horizon was when the journal was opened.
#[tokio::test]
async fn k_3_a_key_stays_known_until_it_is_over() {
    let home = tempfile::tempdir().unwrap();
    let journal = keeping(home.path(), by_age(Duration::ZERO));
    let submit = |journal: &Journal, fingerprint: &str, key: &str, window| {
        let guard = journal::Guard {
            window,
            key: Some(journal::Key {
                scope: "pay".to_owned(),
                key: key.to_owned(),
                is_verified: true,
                choice: journal::Choice::Given { by_fingerprint: true },
            }),
            ..journal::Guard::default()
        };
        journal.admit(journal.new_id(), accepted("coder", fingerprint), guard).unwrap()
    };
    let lost = async |fingerprint: &str, key: &str, expires_at_ms, window| {
        let bound = Contract::Key(RemoteContract::Verified, expires_at_ms).operation();
        let idempotency = bound.idempotency.map(|b| Idempotency { key: key.to_owned(), ..b });
        let journal::Admission::New(mut call) = submit(&journal, fingerprint, key, window) else {
            panic!("{fingerprint} is known");
        };
        call.preflight(Preflight { idempotency, ..preflight() }).unwrap();
        call.authorize(None).unwrap();
        drop(call.dispatch(dispatch()).await.unwrap());
    };
    lost("kept", "k-kept", u64::MAX - 1, None).await;
    lost("over", "k-over", 1, None).await;
    lost("guarded", "k-guarded", 1, Some(Duration::from_secs(3600))).await;
    calls(&journal, 30).await;
    journal.guard_for(Duration::from_secs(3600));
    let done = maintain(&journal).await;
    assert!(done.removed_segments >= 2, "{done:?}");
    assert_eq!(name(&submit(&journal, "another", "k-kept", None)), "mismatch");
    let window = Some(Duration::from_secs(3600));
    assert_eq!(name(&submit(&journal, "guarded", "k-guarded", window)), "in doubt");
    drop(submit(&journal, "another", "k-over", None));
    journal.close().await;
    let journal = keeping(home.path(), by_age(Duration::ZERO));
    indexed(&journal).await;
    maintain(&journal).await;
    assert_eq!(name(&submit(&journal, "another", "k-kept", None)), "mismatch", "after a restart");
    journal.close().await;
    verify(home.path()).unwrap();
}

/// An expired result is dropped from its sealed segment; the evidence, and every other result in
/// that segment, stays.
#[tokio::test]
async fn an_expired_result_is_dropped_and_its_evidence_stays() {
    let home = tempfile::tempdir().unwrap();
    let journal = keeping(home.path(), Retention::default());
    let mut call = admit(&journal, "coder", "short");
    call.preflight(journal::contract::Preflight { keep_seconds: 0, ..preflight() }).unwrap();
    call.authorize(None).unwrap();
    drop(call.dispatch(dispatch()).await.unwrap());
    drop(respond(&mut call, 200, &[9; 150_000]).await);
    let short = call.id();
    drop(call);
    let ids = calls(&journal, 3).await;
    assert!(matches!(journal.result(short), Err(result::Error::Expired)));
    assert_eq!(maintain(&journal).await.dropped_chunks, 0, "the youngest segment is left alone");
    journal.close().await;
    let journal = keeping(home.path(), Retention::default());
    let events = journal.events(short).unwrap().len();
    let done = maintain(&journal).await;
    // The head, two full chunks and the rest.
    assert_eq!((done.rewritten_segments, done.dropped_chunks), (1, 4), "{done:?}");
    assert_eq!(maintain(&journal).await, Maintained::default());
    assert!(matches!(journal.result(short), Err(result::Error::Expired)));
    assert_eq!(journal.events(short).unwrap().len(), events);
    assert!(matches!(journal.invocation(short).unwrap().unwrap().state(), State::Committed(_)));
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(content(&journal, *id), vec![n as u8; 40_000]);
    }
    journal.close().await;
    let against = Against { key: Some(key()), ..Against::default() };
    assert_eq!(verify_against(home.path(), against).unwrap().results, 3);
    // A rewritten segment is read like any other.
    std::fs::remove_dir_all(home.path().join("index")).unwrap();
    let journal = keeping(home.path(), Retention::default());
    assert!(matches!(journal.result(short), Err(result::Error::Expired)));
    assert_eq!(content(&journal, ids[2]), vec![2; 40_000]);
    journal.close().await;
}

/// A route with a bound on the bytes of its results: the oldest go first, at once for readers and then
/// from the disk; evidence stays and says so, also with a new index; other routes keep theirs.
#[tokio::test]
async fn a_route_keeps_no_more_bytes_than_it_may_and_the_oldest_go_first() {
    let home = tempfile::tempdir().unwrap();
    let journal = keeping(home.path(), Retention::default());
    let free = calls(&journal, 2).await;
    let mut bounded = Vec::new();
    for n in 0..5_u8 {
        let mut call = admit(&journal, "coder", &format!("bounded {n}"));
        let route = Some("bounded".to_owned());
        let keep_total_bytes = Some(100_000);
        call.preflight(Preflight { route, keep_total_bytes, ..preflight() }).unwrap();
        call.authorize(None).unwrap();
        drop(call.dispatch(dispatch()).await.unwrap());
        drop(respond(&mut call, 200, &[n; 40_000]).await);
        bounded.push(call.id());
    }
    let done = maintain(&journal).await;
    assert_eq!((done.expired_results, done.dropped_chunks), (3, 0), "{done:?}");
    let check = |journal: &Journal| {
        for (n, id) in bounded.iter().enumerate() {
            if n < 3 {
                assert!(matches!(journal.result(*id), Err(result::Error::Expired)), "{n}");
                let found = journal.invocation(*id).unwrap().unwrap();
                assert!(found.is_result_evicted() && found.result().is_some());
                let events = journal.events(*id).unwrap();
                let told = events.iter().find_map(|(_, event)| match &event.body {
                    Body::ResultExpired(expired) => Some(expired.clone()),
                    _ => None,
                });
                let total_bytes = 200_000 - 40_000 * n as u64;
                assert_eq!(told, Some(ResultExpired { total_bytes, limit_bytes: 100_000 }));
            } else {
                assert_eq!(content(journal, *id), vec![n as u8; 40_000]);
            }
        }
        for (n, id) in free.iter().enumerate() {
            assert_eq!(content(journal, *id), vec![n as u8; 40_000]);
        }
    };
    indexed(&journal).await;
    check(&journal);
    journal.close().await;
    // The segment is sealed now, so the chunks go: three heads and three contents.
    let journal = keeping(home.path(), Retention::default());
    let done = maintain(&journal).await;
    assert_eq!((done.expired_results, done.dropped_chunks), (0, 6), "{done:?}");
    check(&journal);
    assert_eq!(maintain(&journal).await, Maintained::default());
    journal.close().await;
    let against = Against { key: Some(key()), ..Against::default() };
    assert_eq!(verify_against(home.path(), against).unwrap().results, 4);
    std::fs::remove_dir_all(home.path().join("index")).unwrap();
    let journal = keeping(home.path(), Retention::default());
    check(&journal);
    assert_eq!(maintain(&journal).await.expired_results, 0);
    journal.close().await;
}

/// A log without its beginning needs an anchor, signed by its own key.
#[tokio::test]
async fn a_missing_beginning_without_a_signed_anchor_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let journal = keeping(home.path(), by_size(1 << 20));
    calls(&journal, 40).await;
    maintain(&journal).await;
    journal.close().await;
    let anchor = home.path().join("anchor");
    let note = std::fs::read_to_string(&anchor).unwrap();
    assert!(note.starts_with("affiant-journal/"), "{note}");
    std::fs::remove_file(&anchor).unwrap();
    let refused = Journal::open(common::options(home.path()), None).unwrap_err();
    assert!(matches!(refused, open::Error::Damaged(_)), "{refused}");
    assert!(verify(home.path()).is_err());
    let forged = note.replace('\u{2014}', "\u{2014} x");
    std::fs::write(&anchor, forged).unwrap();
    let refused = Journal::open(common::options(home.path()), None).unwrap_err();
    assert!(matches!(refused, open::Error::Checkpoint(_)), "{refused}");
    std::fs::write(&anchor, note).unwrap();
    // Somebody removes one segment more.
    let first = segments(home.path())[0].clone();
    std::fs::remove_file(home.path().join(first)).unwrap();
    let refused = Journal::open(common::options(home.path()), None).unwrap_err();
    assert!(matches!(refused, open::Error::Damaged(_)), "{refused}");
}
