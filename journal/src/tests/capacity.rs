//! Room on the disk and in memory: what is full refuses before dispatch, and nothing is lost.

use super::*;
use crate::queue;

/// on a full disk calls are refused before dispatch, every dispatched one can still be
/// settled with its result, and service resumes when there is room.
#[tokio::test]
async fn r_6_a_full_disk_refuses_before_dispatch_and_settles_what_is_dispatched() {
    let home = tempfile::tempdir().unwrap();
    let sim = Sim::new();
    let (journal, _) = open_sim(&sim, home.path(), false).unwrap();
    bounded(async {
        // Two spares are there before the disk is full.
        while sim.names().len() < 3 || journal.stats().available_bytes < 1 << 30 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    sim.set_free(0);
    let mut under_way = Vec::new();
    let refused = bounded(async {
        loop {
            // A call that is over uses up space and makes the journal notice.
            let admission = journal.admit(
                journal.new_id(),
                common::accepted("coder", "x"),
                crate::Guard::default(),
            );
            let mut call = match admission {
                Ok(crate::Admission::New(call)) => call,
                Ok(other) => panic!("{}", common::name(&other)),
                Err(error) => return error,
            };
            start(&mut call).unwrap();
            if call.reserve(2_000).is_err() {
                drop(call);
                continue;
            }
            assert_eq!(call.dispatch(dispatch()).await.unwrap().id(), call.id());
            if under_way.len() < 3 {
                under_way.push(call);
            } else {
                assert_eq!(respond(&mut call, 200, &[5; 2_000]).await.id(), call.id());
            }
        }
    })
    .await;
    assert_eq!(refused, append::Error::Unavailable(append::Reason::NoCapacity));
    assert!(journal.stats().healthy, "nothing failed");
    let mut ids = Vec::new();
    for mut call in under_way {
        ids.push(respond(&mut call, 200, &[6; 2_000]).await.id());
    }
    for id in ids {
        assert_eq!(content(&journal, id), [6; 2_000]);
    }
    sim.set_free(1 << 30);
    bounded(async {
        while journal.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut call = dispatched(&journal, "coder", "after").await;
    assert_eq!(respond(&mut call, 200, b"after").await.id(), call.id());
    assert_eq!(journal.stats().reopened, 0);
    drop(call);
    bounded(journal.close()).await;
    verify_on(&sim).unwrap();
}

/// R-6, J-7: while the file system is read-only nothing is dispatched and recovery fails; when it is
/// writable again service resumes in the same process, and every promise holds.
#[tokio::test]
async fn r_6_a_read_only_disk_is_recovered_without_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let sim = Sim::new();
    let (journal, _) = open_sim(&sim, home.path(), true).unwrap();
    let mut promises = Promises::default();
    bounded(work(&journal, &mut promises)).await.unwrap();
    let mut call = dispatched(&journal, "coder", "under way").await;
    promises.dispatched.push(call.id());
    let mut waiting = admit(&journal, "coder", "waiting");
    start(&mut waiting).unwrap();
    sim.set_read_only(true);
    promises.unsent = Some(waiting.id());
    let refused = waiting.dispatch(dispatch()).await.unwrap_err();
    assert_eq!(refused, append::Error::Indeterminate);
    let verdict = Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown);
    let recovering = append::Error::Unavailable(append::Reason::Recovering);
    assert_eq!(call.end(ended(verdict)).await.unwrap_err(), recovering);
    // One refusal was the write's; the others are attempts to recover.
    bounded(async {
        while sim.refused() < 3 {
            assert_eq!(journal.ready().unwrap_err(), recovering);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!((journal.stats().reopened, journal.stats().healthy), (0, false));
    sim.set_read_only(false);
    bounded(async {
        while journal.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        journal.changed(call.id()).await;
    })
    .await;
    assert_eq!(journal.stats().reopened, 1);
    check(&journal, &promises, "after");
    assert!(!check_unsent(&journal, promises.unsent, "after").await, "it never reached the disk");
    let mut after = dispatched(&journal, "coder", "after").await;
    assert_eq!(respond(&mut after, 200, b"after").await.id(), after.id());
    drop((call, waiting, after));
    bounded(journal.close()).await;
    verify_on(&sim).unwrap();
}

/// memory is bounded. While nothing is written, results stop at half of the queue's limit and calls
/// are refused at the whole; nothing is lost by that.
#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "it stalls the writer thread; the test's tasks only try"
)]
async fn r_6_a_stalled_disk_fills_the_queue_to_its_bound_and_no_further() {
    const CALLS: usize = 640;
    const CHUNK: u64 = 64 << 10;
    let home = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Sim::new());
    let options = options(home.path());
    let (core, _) = startup::open_on(disk, None, &options, Some(key()), true).unwrap();
    let journal = Journal::from_core(Arc::clone(&core));
    let mut calls = Vec::new();
    for n in 0..CALLS {
        calls.push(dispatched(&journal, "coder", &n.to_string()).await);
    }
    let stalled = core.writer.lock();
    let body = vec![7; 4 * CHUNK as usize];
    let storing: Vec<_> = calls
        .into_iter()
        .map(|mut call| {
            let body = body.clone();
            tokio::spawn(async move { respond(&mut call, 200, &body).await.id() })
        })
        .collect();
    for _ in 0..CALLS {
        tokio::task::yield_now().await;
    }
    let half = queue::LIMIT / 2;
    let stats = journal.stats();
    assert!(stats.queued_bytes > half, "{}", stats.queued_bytes);
    // Nobody adds a chunk above the half; the events of the calls are small.
    let bound = half + CHUNK + 256 + CALLS as u64 * 1_024;
    assert!(stats.peak_queued_bytes <= bound, "{} above {bound}", stats.peak_queued_bytes);
    let mut noting = admit(&journal, "coder", "notes");
    let refused = loop {
        let accepted = common::accepted("coder", "more");
        match journal.admit(journal.new_id(), accepted, crate::Guard::default()) {
            Ok(_) => noting.note("filler", &"x".repeat(90 << 10)),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, append::Error::Unavailable(append::Reason::QueueFull));
    let bound = queue::LIMIT + (128 << 10);
    assert!(journal.stats().peak_queued_bytes <= bound);
    drop(stalled);
    for stored in storing {
        assert_eq!(content(&journal, bounded(stored).await.unwrap()), body);
    }
    bounded(async {
        while journal.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop(noting);
    bounded(journal.close()).await;
    assert_eq!(journal.stats().held_invocations, 0);
}
