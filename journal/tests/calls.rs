//! The course of calls on real files: append, read, reopen.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;
#[path = "calls/results.rs"]
mod results;

use common::*;
use journal::contract::{
    Body, Code, Confirmation, Delivered, Ended, Gateway, KeepResult, Noted, Outcome, Phase,
    Preflight, RepeatAnswered, Retry, Source, Verdict,
};
use journal::{
    Delivery, Filter, Journal, Options, ResultKey, State, Stream, append, open, read, result,
    verify,
};
use std::time::Duration;

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap()
}

fn ended(verdict: Verdict) -> Ended {
    Ended {
        verdict,
        message: "It ended.".to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    }
}

/// S-1: a whole call is readable at once, and the same after a restart.
#[tokio::test]
async fn r_1_a_call_reads_the_same_before_and_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (journal, recovery) = open(home.path());
    assert_eq!(recovery.last_sequence.0, 0);
    let mut call = dispatched(&journal, "coder", "a").await;
    let body: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let settled = respond(&mut call, 200, &body).await;
    assert_eq!(settled.verdict(), Verdict::committed(Retry::Never, Code::Ok));
    let id = call.id();
    let seen = journal.invocation(id).unwrap().unwrap();
    assert_eq!(seen.state(), State::Committed(settled.verdict()));
    assert_eq!(content(&journal, id), body);
    call.delivered(Confirmation::Protocol);
    drop(call);
    journal.close().await;

    let (journal, recovery) = open(home.path());
    assert_eq!((recovery.replayed, recovery.rebuilt), (0, false));
    assert!(recovery.unknown.is_empty() && recovery.not_attempted.is_empty());
    let again = journal.invocation(id).unwrap().unwrap();
    assert_eq!(again.delivery(), Delivery::Delivered(Confirmation::Protocol));
    assert_eq!(content(&journal, id), body);
    let names: Vec<_> =
        journal.events(id).unwrap().iter().map(|(_, event)| event.body.name()).collect();
    assert_eq!(
        names,
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "DISPATCH_STARTED",
            "REQUEST_SENT",
            "REMOTE_RESPONSE_STARTED",
            "REMOTE_RESPONSE_COMPLETE",
            "RESULT_COMMITTED",
            "RESULT_DELIVERED"
        ]
    );
    let page = journal.list(&Filter::default()).unwrap();
    assert_eq!(page.invocations, [again]);
    assert_eq!(page.next, None);
    journal.close().await;
}

/// J-2, J-7, R-2: what a restart concludes for calls in every state.
#[tokio::test]
async fn j_7_a_restart_ends_what_was_under_way() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let fresh = admit(&journal, "coder", "1");
    let mut validated = admit(&journal, "coder", "2");
    validated.preflight(preflight()).unwrap();
    let under_way = dispatched(&journal, "coder", "3").await;
    let mut committed = dispatched(&journal, "coder", "4").await;
    assert_eq!(respond(&mut committed, 200, b"yes").await.id(), committed.id());
    let ids = [fresh.id(), validated.id(), under_way.id(), committed.id()];
    journal.close().await;
    // Their end can't be recorded any more.
    drop((fresh, validated, under_way, committed));
    let (journal, recovery) = open(home.path());
    let sorted = |mut ids: Vec<_>| {
        ids.sort_unstable();
        ids
    };
    assert_eq!(sorted(recovery.not_attempted), sorted(ids[..2].to_vec()));
    assert_eq!(recovery.unknown, ids[2..3]);
    assert_eq!(recovery.undelivered, ids[3..]);
    let facts = |n: usize| {
        let found = journal.invocation(ids[n]).unwrap().unwrap();
        let verdict = found.verdict();
        (verdict.phase(), verdict.outcome(), verdict.retry(), verdict.code())
    };
    let (restarted, not) = (Code::BrokerRestarted, Outcome::NotAttempted);
    assert_eq!(facts(0), (Phase::Validation, not, Retry::Backoff, restarted));
    assert_eq!(facts(1), (Phase::CredentialInjection, not, Retry::Backoff, restarted));
    assert_eq!(facts(2), (Phase::RemoteExecution, Outcome::Unknown, Retry::Reconcile, restarted));
    assert_eq!(
        facts(3),
        (Phase::ResultDelivery, Outcome::Committed, Retry::FetchResult, Code::DeliveryFailed)
    );
    assert_eq!(content(&journal, ids[3]), b"yes");
    let events = journal.events(ids[2]).unwrap();
    assert_eq!(events.last().unwrap().1.source, Source::Recovered);
    journal.close().await;
    // A second restart finds nothing to end.
    let (journal, recovery) = open(home.path());
    assert_eq!((recovery.unknown.len(), recovery.not_attempted.len()), (0, 0));
    assert_eq!(recovery.undelivered.len(), 0);
    journal.close().await;
}

/// D-1: a call that is dropped records its own end.
#[tokio::test]
async fn d_1_a_dropped_call_ends_by_its_last_boundary() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let fresh = admit(&journal, "coder", "1");
    let under_way = dispatched(&journal, "coder", "2").await;
    let ids = [fresh.id(), under_way.id()];
    drop((fresh, under_way));
    bounded(journal.changed(ids[0])).await;
    bounded(journal.changed(ids[1])).await;
    let verdict = |id| journal.invocation(id).unwrap().unwrap().verdict();
    assert_eq!(verdict(ids[0]), Verdict::refused(Retry::Backoff, Code::InternalError));
    let unknown = Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown);
    assert_eq!(verdict(ids[1]), unknown);
    journal.close().await;
}

/// D-1: nothing is durable before the dispatch says so, and nobody sees what is not durable.
#[tokio::test]
async fn d_1_dispatch_is_durable_when_it_returns() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = admit(&journal, "coder", "a");
    call.preflight(preflight()).unwrap();
    call.authorize(None).unwrap();
    let proof = call.dispatch(dispatch()).await.unwrap();
    assert!(journal.stats().durable_sequence >= proof.sequence());
    assert_eq!(journal.invocation(call.id()).unwrap().unwrap().state(), State::Dispatched);
    let found = verify(home.path()).unwrap();
    assert_eq!((found.last_sequence, found.events, found.invocations), (proof.sequence(), 4, 1));
    let illegal = call.preflight(preflight()).unwrap_err();
    assert!(matches!(illegal, append::Error::Illegal(_)), "{illegal}");
    let again = call.dispatch(dispatch()).await.unwrap_err();
    assert!(matches!(again, append::Error::Illegal(_)), "{again}");
    drop(call);
    journal.close().await;
}

/// J-3: only late facts can be recorded beside a call.
#[tokio::test]
async fn j_3_late_facts_and_nothing_else_are_recorded_beside_a_call() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    let id = call.id();
    let observed = Source::TransportObserved;
    let dispatch = Body::DispatchStarted(dispatch().into());
    assert!(matches!(journal.record(id, observed, dispatch), Err(append::Error::Illegal(_))));
    let delivered = || Body::ResultDelivered(Delivered { confirmation: Confirmation::Fetched });
    assert!(matches!(journal.record(id, observed, delivered()), Err(append::Error::Illegal(_))));
    let note = Body::Noted(Noted { name: "n".to_owned(), detail: "d".to_owned() });
    journal.record(id, observed, note.clone()).unwrap().durable().await.unwrap();
    let repeat = Body::RepeatAnswered(RepeatAnswered { by_id: true });
    journal.record(id, observed, repeat).unwrap().durable().await.unwrap();
    let unknown = journal.record(journal.new_id(), observed, note);
    assert_eq!(unknown.err(), Some(append::Error::NotFound));
    assert_eq!(respond(&mut call, 200, b"x").await.id(), id);
    drop(call);
    journal.record(id, observed, delivered()).unwrap().durable().await.unwrap();
    let found = journal.invocation(id).unwrap().unwrap();
    assert_eq!(found.delivery(), Delivery::Delivered(Confirmation::Fetched));
    let twice = journal.record(id, observed, delivered());
    assert!(matches!(twice, Err(append::Error::Illegal(_))));
    journal.close().await;
    let closed = journal.record(id, observed, delivered());
    assert_eq!(closed.err(), Some(append::Error::Closed));
    assert!(matches!(journal.invocation(id), Err(read::Error::Index(_))));
    let refused = journal.admit(journal.new_id(), accepted("a", "b"), journal::Guard::default());
    assert_eq!(refused.err(), Some(append::Error::Closed));
}

/// Lists: newest first, filters, pages; the same from memory, from the index and after a restart.
#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut ids = Vec::new();
    for n in 0..7 {
        let agent = if n % 2 == 0 { "even" } else { "odd" };
        let mut call = admit(&journal, agent, &n.to_string());
        ids.push(call.id());
        // Times are in milliseconds, and are to differ.
        if n == 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let verdict = match n {
            0..3 => Verdict::refused(Retry::Never, Code::TargetNotAllowed),
            _ => Verdict::not_connected(Retry::Backoff, Code::ConnectionRefused),
        };
        assert_eq!(call.end(ended(verdict)).await.unwrap().id(), call.id());
    }
    ids.reverse();
    let check = |journal: &Journal| {
        let list = |filter: Filter| {
            let page = journal.list(&filter).unwrap();
            let ids: Vec<_> = page.invocations.iter().map(|found| found.id()).collect();
            (ids, page.next)
        };
        assert_eq!(list(Filter::default()).0, ids);
        let agent = Some("odd".to_owned());
        let odd: Vec<_> = ids.iter().copied().skip(1).step_by(2).collect();
        assert_eq!(list(Filter { agent, ..Filter::default() }).0, odd);
        let phase = Some(Phase::Validation);
        assert_eq!(list(Filter { phase, ..Filter::default() }).0, ids[4..]);
        let code = Some(Code::TargetNotAllowed);
        assert_eq!(list(Filter { code, ..Filter::default() }).0, ids[4..]);
        assert_eq!(list(Filter { not_code: code, ..Filter::default() }).0, ids[..4]);
        let outcome = Some(Outcome::Committed);
        assert_eq!(list(Filter { outcome, ..Filter::default() }).0, []);
        let gateway = Some(Gateway::Ssh);
        assert_eq!(list(Filter { gateway, ..Filter::default() }).0, []);
        let since_ms = Some(u64::MAX);
        assert_eq!(list(Filter { since_ms, ..Filter::default() }).0, []);
        let at = |id: &journal::contract::InvocationId| {
            journal.invocation(*id).unwrap().unwrap().accepted_at_ms()
        };
        let since = at(&ids[2]);
        let recent: Vec<_> = ids.iter().copied().filter(|id| at(id) >= since).collect();
        assert!((3..7).contains(&recent.len()));
        let since_ms = Some(since);
        assert_eq!(list(Filter { since_ms, ..Filter::default() }).0, recent);
        let mut cursor = None;
        let mut paged = Vec::new();
        loop {
            let (page, next) = list(Filter { limit: 3, cursor, ..Filter::default() });
            assert!(page.len() <= 3);
            paged.extend(page);
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(paged, ids);
        let bad = Filter { cursor: Some("x".to_owned()), ..Filter::default() };
        assert!(matches!(journal.list(&bad), Err(read::Error::Cursor)));
    };
    check(&journal);
    journal.close().await;
    let (journal, _) = open(home.path());
    check(&journal);
    journal.close().await;
}

/// Issue 3, 8: one process per home; readers work beside it.
#[tokio::test]
async fn a_second_open_is_refused_and_verify_works_beside() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let second = Journal::open(options(home.path()), None);
    assert!(matches!(second.err(), Some(open::Error::InUse(path)) if path == home.path()));
    let mut call = dispatched(&journal, "coder", "a").await;
    assert_eq!(respond(&mut call, 200, &[1; 100_000]).await.id(), call.id());
    let found = verify(home.path()).unwrap();
    assert_eq!((found.invocations, found.chunks, found.torn_bytes), (1, 3, 0));
    drop(call);
    journal.close().await;
}

/// Files are for their owner alone.
#[tokio::test]
async fn files_have_mode_0600() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("journal");
    let (journal, _) = open(&directory);
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&directory) & 0o777, 0o700);
    for name in ["lock", "00000001.seg", "index/data.mdb", "index/lock.mdb"] {
        assert_eq!(mode(&directory.join(name)) & 0o777, 0o600, "{name}");
    }
    journal.close().await;
}

/// Rules 6 and 9: a lost or broken index is rebuilt; a log older than the index is refused.
#[tokio::test]
async fn rule_9_the_index_is_rebuilt_and_rule_6_an_old_log_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    let id = call.id();
    assert_eq!(respond(&mut call, 200, b"kept").await.id(), id);
    call.delivered(Confirmation::Protocol);
    drop(call);
    journal.close().await;
    let old = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, old.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let index = home.path().join("index");
    for broken in [false, true] {
        if broken {
            std::fs::write(index.join("data.mdb"), [0xff; 8192]).unwrap();
        } else {
            std::fs::remove_dir_all(&index).unwrap();
        }
        let (journal, recovery) = open(home.path());
        assert!(recovery.rebuilt, "broken: {broken}");
        assert_eq!(content(&journal, id), b"kept");
        assert_eq!(journal.events(id).unwrap().len(), 9);
        let call = admit(&journal, "coder", &format!("{broken}"));
        drop(call);
        journal.close().await;
    }
    // The index of now beside the log of then.
    std::fs::create_dir(old.path().join("index")).unwrap();
    std::fs::copy(index.join("data.mdb"), old.path().join("index/data.mdb")).unwrap();
    let refused = Journal::open(options(old.path()), Some(key())).err();
    assert!(matches!(refused, Some(open::Error::Damaged(_))), "{refused:?}");
}

/// Rules 4 and 5: damage inside acknowledged data refuses the start, names the place, and is left
/// as it is.
#[tokio::test]
async fn rule_5_damage_is_named_and_nothing_is_changed() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    for n in 0..3 {
        let mut call = dispatched(&journal, "coder", &n.to_string()).await;
        assert_eq!(respond(&mut call, 200, b"x").await.id(), call.id());
    }
    journal.close().await;
    let path = home.path().join("00000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2 * 4096 + 100] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let found = match Journal::open(options(home.path()), Some(key())) {
        Err(open::Error::Damaged(found)) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!((found.segment, found.offset, found.frame), (1, 8192, 2));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let same = verify(home.path()).unwrap_err().to_string();
    assert!(same.starts_with("segment 1, offset 8192, frame 2, sequence "), "{same}");
}

/// J-4, J-6: 512 appenders at once: every wait ends, sequences have no gap, and the order of
/// sequence is the order of the chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn j_4_of_512_appenders_none_waits_for_ever_and_the_chain_holds() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) =
        Journal::open(Options { segment_bytes: 4 << 20, ..options(home.path()) }, Some(key()))
            .unwrap();
    let calls = (0..512).map(|n| {
        let journal = journal.clone();
        tokio::spawn(async move {
            for round in 0..3 {
                let mut call = dispatched(&journal, "coder", &format!("{n} {round}")).await;
                let body = vec![n as u8; 2_000];
                let settled = respond(&mut call, 200, &body).await;
                assert_eq!(content(&journal, settled.id()), body);
                call.delivered(Confirmation::Protocol);
            }
        })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        bounded(call).await.unwrap();
    }
    let stats = journal.stats();
    assert_eq!(stats.reserved_bytes, 0);
    journal.close().await;
    let stats = journal.stats();
    assert_eq!((stats.syncs, stats.queued_bytes), (stats.frames, 0));
    let found = verify(home.path()).unwrap();
    let expected = 512 * 3;
    assert_eq!(found.invocations, expected);
    assert_eq!(found.events, expected * 9);
    assert_eq!(found.chunks, expected * 2);
    assert_eq!(found.last_sequence.0, expected * 11);
    println!("{} appends in {} syncs, {} bytes", stats.appends, stats.syncs, stats.written_bytes);
}

/// Rule 9: a process that is gone leaves a call under way behind; what its log says without the rule is
/// "under way" for ever, and with it the call is in doubt from the first moment that anybody can ask.
#[tokio::test]
async fn rule_9_without_the_end_at_opening_a_lost_call_stays_under_way() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let call = dispatched(&journal, "coder", "a").await;
    let id = call.id();
    // The image of a killed process.
    let image = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), image.path().join(entry.file_name())).unwrap();
        }
    }
    let mut settled = 0;
    journal::export::export::<journal::verify::Error>(
        image.path(),
        journal::contract::Sequence(0),
        &mut |record| {
            let text = serde_json::to_string(&record).unwrap();
            settled += u32::from(text.contains("INVOCATION_ENDED"));
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(settled, 0, "the log alone leaves it open");
    let (after, recovery) = open(image.path());
    assert_eq!(recovery.unknown, [id]);
    let found = after.invocation(id).unwrap().unwrap();
    assert_eq!(found.verdict().outcome(), journal::contract::Outcome::Unknown);
    after.close().await;
    drop(call);
    journal.close().await;
}
