//! The whole journal on the simulated disk: crashes, failures, a full disk.

mod capacity;
#[path = "../tests/common/mod.rs"]
pub(crate) mod common;

use crate::contract::{
    Code, Digest, Ended, InvocationId, Outcome, Retry, SetupAttempt, SetupStage, Verdict,
};
use crate::log::disk::Disk;
use crate::log::sim::{Fault, Random, Sim};
use crate::verify::verify_on;
use crate::{Admission, Guard, Journal, Options, Recovery, State, append, open, startup};
use common::{
    accepted, admit, complete, content, credential, dispatch, dispatched, key, preflight, respond,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn options(index: &Path) -> Options {
    Options { segment_bytes: 256 << 10, durable: false, ..Options::new(index) }
}

fn open_sim(sim: &Sim, index: &Path, inline: bool) -> Result<(Journal, Recovery), open::Error> {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (core, recovery) = startup::open_on(disk, None, &options(index), Some(key()), inline)?;
    Ok((Journal::from_core(core), recovery))
}

/// What the journal has promised so far.
#[derive(Default)]
struct Promises {
    dispatched: Vec<InvocationId>,
    committed: Vec<(InvocationId, Vec<u8>)>,
    ended: Vec<(InvocationId, Verdict)>,
    /// Held, and whether approved.
    held: Vec<(InvocationId, bool)>,
    /// The call whose dispatch was refused its proof: nothing was sent.
    unsent: Option<InvocationId>,
}

impl Promises {
    /// Dispatches, and notes what came of it.
    async fn dispatch(&mut self, call: &mut crate::Call) -> Result<(), append::Error> {
        self.unsent = Some(call.id());
        drop(call.dispatch(dispatch()).await?);
        self.unsent = None;
        self.dispatched.push(call.id());
        Ok(())
    }
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

/// Calls of every kind, until the journal fails.
async fn work(journal: &Journal, promises: &mut Promises) -> Result<(), append::Error> {
    for round in 0..3_u8 {
        // Committed, with a result of several chunks.
        let mut call = admit_or(journal, round)?;
        start(&mut call)?;
        promises.dispatch(&mut call).await?;
        let body = vec![round; 70_000];
        call.response_started(crate::contract::ResponseStarted {
            status: Some(200),
            remote_request_id: None,
        })?;
        call.store(crate::Stream::Content, &body).await?;
        let verdict = Verdict::committed(Retry::Never, Code::Ok);
        drop(call.commit(complete(&body), verdict, None).await?);
        promises.committed.push((call.id(), body));
        drop(call);
        // Never dispatched.
        let mut call = admit_or(journal, round)?;
        start(&mut call)?;
        let verdict = Verdict::not_connected(Retry::Backoff, Code::ConnectionRefused);
        drop(call.end(ended(verdict)).await?);
        promises.ended.push((call.id(), verdict));
        drop(call);
        // Dispatched, and unknown.
        let mut call = admit_or(journal, round)?;
        start(&mut call)?;
        promises.dispatch(&mut call).await?;
        let verdict = Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown);
        drop(call.end(ended(verdict)).await?);
        promises.ended.push((call.id(), verdict));
        drop(call);
        // Held for a person, and decided.
        let mut call = admit_or(journal, round)?;
        let id = call.id();
        call.preflight(preflight())?;
        let lasts = Duration::from_secs(3600);
        let fingerprint = Digest::of(b"x");
        call.hold(crate::Question { fingerprint, lasts, shown: b"x" }).await?;
        promises.held.push((id, false));
        match journal.decide(id, true, "alice").await {
            Ok(_) => {}
            Err(crate::DecideError::Append(error)) => return Err(error),
            Err(other) => panic!("{other}"),
        }
        promises.held.retain(|(held, _)| *held != id);
        promises.held.push((id, true));
        // Dispatched, and still under way when the crash comes, or given up.
        let mut call = admit_or(journal, round)?;
        start(&mut call)?;
        promises.dispatch(&mut call).await?;
    }
    Ok(())
}

fn admit_or(journal: &Journal, round: u8) -> Result<crate::Call, append::Error> {
    let accepted = common::accepted("coder", &format!("{round}"));
    match journal.admit(journal.new_id(), accepted, crate::Guard::default())? {
        crate::Admission::New(call) => Ok(call),
        other => panic!("{}", common::name(&other)),
    }
}

fn start(call: &mut crate::Call) -> Result<(), append::Error> {
    call.preflight(preflight())?;
    call.authorize(Some(credential()))?;
    let (n, stage, code) = (1, SetupStage::TlsHandshake, "ok".to_owned());
    call.setup_attempted(SetupAttempt { n, stage, code, address: None })
}

/// J-7 and R-1, for everything that was promised.
fn check(journal: &Journal, promises: &Promises, what: &str) {
    for id in &promises.dispatched {
        let found = journal.invocation(*id).unwrap();
        let found = found.unwrap_or_else(|| panic!("{what}: {id} is lost"));
        assert!(found.is_dispatched(), "{what}");
        assert_ne!(found.verdict().outcome(), Outcome::NotAttempted, "{what}");
        assert!(found.is_settled(), "{what}");
    }
    for (id, decided) in &promises.held {
        let found = journal.held().into_iter().find(|held| held.id() == *id);
        let found = found.unwrap_or_else(|| panic!("{what}: {id} waits no more"));
        let approved = found.approval().is_some_and(|it| it.covers(Digest::of(b"x")));
        assert!(approved || !decided, "{what}: a decision is lost");
    }
    for (id, body) in &promises.committed {
        assert_eq!(&content(journal, *id), body, "{what}");
    }
    for (id, verdict) in &promises.ended {
        let found = journal.invocation(*id).unwrap().unwrap();
        assert_eq!(found.state(), State::Ended(*verdict), "{what}");
        assert!(!journal.events(*id).unwrap().is_empty());
    }
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap()
}

/// J-7, X-2: a crash at every write and sync of whole calls; a kill or a power cut; the index kept
/// or lost.
#[tokio::test]
async fn j_7_a_crash_at_every_call_of_the_disk_keeps_every_promise() {
    crash_at_every_call(false).await;
}

/// The same where each caller writes its frames itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j_7_a_crash_at_every_call_of_a_leader_keeps_every_promise() {
    crash_at_every_call(true).await;
}

async fn crash_at_every_call(leads: bool) {
    let whole = Sim::new();
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open_sim(&whole, home.path(), true).unwrap();
    let mut promises = Promises::default();
    bounded(work(&journal, &mut promises)).await.unwrap();
    bounded(journal.close()).await;
    assert_eq!(journal.stats().led > 0, leads);
    let mut points = 0;
    for call in 1..=whole.calls() {
        for variant in 0..2 {
            let what = format!("call {call}, variant {variant}");
            let home = tempfile::tempdir().unwrap();
            let sim = Sim::new();
            sim.fault_at(call, Fault::Crash);
            let mut promises = Promises::default();
            if let Ok((journal, _)) = open_sim(&sim, home.path(), true) {
                drop(bounded(work(&journal, &mut promises)).await);
                bounded(journal.close()).await;
            }
            let after = match variant {
                0 => sim.after_kill(),
                _ => sim.after_power_cut(&mut Random::new(call)),
            };
            if call % 2 == 0 {
                std::fs::remove_dir_all(home.path().join("index")).unwrap();
            }
            let (journal, _) = open_sim(&after, home.path(), true)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            check(&journal, &promises, &what);
            bounded(journal.close()).await;
            verify_on(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            points += 1;
        }
    }
    println!("{points} crash points over {} calls", whole.calls());
}

/// A failed write or sync at every call: what was promised holds, new calls are refused until the
/// log was recovered, and then service resumes in the same process.
#[tokio::test]
async fn a_failure_poisons_and_service_resumes_without_a_restart() {
    fail_at_every_call().await;
}

/// The same where each caller writes its frames itself: the writer thread recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaders_failure_poisons_and_service_resumes_without_a_restart() {
    fail_at_every_call().await;
}

/// D-1, J-7: a call that is admitted while the log comes back was not interrupted: nothing ends it, and
/// nothing says that its dispatch did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_1_a_call_that_comes_as_the_log_comes_back_goes_on() {
    let (sim, home) = (Sim::new(), tempfile::tempdir().unwrap());
    let (journal, _) = open_sim(&sim, home.path(), true).unwrap();
    // Many calls in memory: looking through them takes a while.
    let held: Vec<_> = (0..4000).map(|n| admit(&journal, "coder", &format!("held {n}"))).collect();
    // All of them are on the disk before this one.
    let durable = bounded(dispatched(&journal, "coder", "durable")).await;
    sim.fault_at(sim.calls() + 1, Fault::Fail);
    let mut failing = admit(&journal, "coder", "failing");
    failing.preflight(preflight()).unwrap();
    failing.authorize(Some(credential())).unwrap();
    bounded(failing.dispatch(dispatch())).await.unwrap_err();
    let at_once = journal.clone();
    let came = tokio::task::spawn_blocking(move || {
        let mut came = Vec::new();
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while came.len() < 500 && std::time::Instant::now() < until {
            let accepted = accepted("coder", &format!("new {}", came.len()));
            let admission = at_once.admit(at_once.new_id(), accepted, Guard::default());
            if let Ok(Admission::New(call)) = admission {
                came.push(call);
            }
        }
        came
    });
    let mut came = bounded(came).await.unwrap();
    bounded(async {
        // Those that were interrupted are ended one by one.
        for call in &held {
            while !journal.invocation(call.id()).unwrap().unwrap().is_settled() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
    assert_eq!((came.len(), journal.stats().reopened), (500, 1));
    for call in &mut came {
        call.preflight(preflight()).unwrap();
    }
    drop((came, held, durable, failing));
    bounded(journal.close()).await;
}

async fn fail_at_every_call() {
    let whole = Sim::new();
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open_sim(&whole, home.path(), true).unwrap();
    let opened = whole.calls();
    bounded(work(&journal, &mut Promises::default())).await.unwrap();
    bounded(journal.close()).await;
    let mut turned_up = 0;
    for (call, fault) in
        (opened + 1..=whole.calls()).flat_map(|call| [(call, Fault::Fail), (call, Fault::FailLate)])
    {
        let what = format!("call {call}: {fault:?}");
        let home = tempfile::tempdir().unwrap();
        let sim = Sim::new();
        let (journal, _) = open_sim(&sim, home.path(), true).unwrap();
        sim.fault_at(call, fault);
        let mut promises = Promises::default();
        if bounded(work(&journal, &mut promises)).await.is_ok() {
            bounded(journal.close()).await;
            continue;
        }
        bounded(async {
            while journal.ready().is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let mut call = dispatched(&journal, "coder", "after").await;
        let id = call.id();
        assert_eq!(respond(&mut call, 200, b"after").await.id(), id, "{what}");
        bounded(async {
            for id in &promises.dispatched {
                journal.changed(*id).await;
            }
        })
        .await;
        check(&journal, &promises, &what);
        turned_up += u32::from(check_unsent(&journal, promises.unsent, &what).await);
        assert_eq!(journal.stats().reopened, 1, "{what}");
        drop(call);
        bounded(journal.close()).await;
        verify_on(&sim).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (journal, _) = open_sim(&sim, home.path(), true).unwrap();
        check(&journal, &promises, &what);
        check_unsent(&journal, promises.unsent, &what).await;
        assert_eq!(content(&journal, id), b"after");
        bounded(journal.close()).await;
    }
    // A disk can have what it said it failed to take.
    assert!(turned_up > 0);
}

/// D-1: whoever was refused the proof of a dispatch sent nothing, and the record says so, also where the
/// dispatch turns up on the disk. Gives whether it did.
async fn check_unsent(journal: &Journal, unsent: Option<InvocationId>, what: &str) -> bool {
    let Some(id) = unsent else { return false };
    bounded(journal.changed(id)).await;
    let Some(found) = journal.invocation(id).unwrap() else { return false };
    assert_eq!(found.verdict().outcome(), Outcome::NotAttempted, "{what}");
    assert!(!found.evidence().dispatch_started, "{what}");
    let events = journal.events(id).unwrap();
    events.iter().any(|(_, event)| event.body.name() == "DISPATCH_WITHDRAWN")
}

/// D-1, R-6: a call from before the failure can't append any more, and recovery has ended it.
#[tokio::test]
async fn a_call_from_before_a_failure_is_superseded() {
    let home = tempfile::tempdir().unwrap();
    let sim = Sim::new();
    let (journal, _) = open_sim(&sim, home.path(), true).unwrap();
    let mut call = dispatched(&journal, "coder", "a").await;
    let fresh = admit(&journal, "coder", "b");
    let mut other = dispatched(&journal, "coder", "c").await;
    sim.fault_at(sim.calls() + 1, Fault::Fail);
    let verdict = Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown);
    assert_eq!(other.end(ended(verdict)).await.unwrap_err(), append::Error::Indeterminate);
    let refused =
        journal.admit(journal.new_id(), common::accepted("coder", "d"), crate::Guard::default());
    let reason = append::Reason::Recovering;
    assert_eq!(refused.err(), Some(append::Error::Unavailable(reason)));
    bounded(async {
        while journal.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        journal.changed(call.id()).await;
        journal.changed(fresh.id()).await;
        journal.changed(other.id()).await;
    })
    .await;
    let superseded = append::Error::Unavailable(append::Reason::Superseded);
    assert_eq!(call.end(ended(verdict)).await.unwrap_err(), superseded);
    let code = |id| journal.invocation(id).unwrap().unwrap().verdict().code();
    assert_eq!(code(call.id()), Code::ResultNotStored);
    assert_eq!(code(fresh.id()), Code::JournalUnavailable);
    assert_eq!(code(other.id()), Code::ResultNotStored);
    let outcome = journal.invocation(fresh.id()).unwrap().unwrap().verdict().outcome();
    assert_eq!(outcome, Outcome::NotAttempted);
    drop((call, fresh, other));
    bounded(journal.close()).await;
}

/// J-7, X-2: a crash at every write, sync, rename and removal of retention; what stays is whole, what
/// the log proves is the same with and without the index, and a later pass finishes the work.
#[tokio::test]
async fn j_7_a_crash_at_every_call_of_retention_keeps_what_stays() {
    let base = Sim::new();
    let base_home = tempfile::tempdir().unwrap();
    let (journal, _) = open_keeping(&base, base_home.path()).unwrap();
    let mut promises = Promises::default();
    for _ in 0..3 {
        bounded(work(&journal, &mut promises)).await.unwrap();
    }
    expiring(&journal).await;
    bounded(journal.close()).await;
    let (journal, _) = open_keeping(&base, base_home.path()).unwrap();
    bounded(journal.close()).await;
    let setup = || {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("index")).unwrap();
        for name in ["checkpoint.key", "checkpoint.pub", "index/data.mdb"] {
            std::fs::copy(base_home.path().join(name), home.path().join(name)).unwrap();
        }
        let sim = base.copy();
        let (journal, _) = open_keeping(&sim, home.path()).unwrap();
        (sim, home, journal)
    };
    let (sim, _home, journal) = setup();
    let begun = sim.calls();
    let done = maintain(&journal).await.unwrap();
    assert!(done.removed_segments > 1 && done.carried_forward > 1, "{done:?}");
    assert!(done.rewritten_segments > 0, "{done:?}");
    let calls = sim.calls() - begun;
    bounded(journal.close()).await;
    for call in 1..=calls {
        for variant in 0..2 {
            let what = format!("call {call}, variant {variant}");
            let (sim, home, journal) = setup();
            sim.fault_at(sim.calls() + call, Fault::Crash);
            drop(maintain(&journal).await);
            bounded(journal.close()).await;
            let after = match variant {
                0 => sim.after_kill(),
                _ => sim.after_power_cut(&mut Random::new(call * 2 + variant)),
            };
            if call % 2 == 0 {
                std::fs::remove_dir_all(home.path().join("index")).unwrap();
            }
            verify_on(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let (journal, _) =
                open_keeping(&after, home.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
            // Unknown ones guard, so they stay whatever their age is.
            for id in &promises.dispatched {
                let kept = promises.committed.iter().any(|(committed, _)| committed == id);
                let found = journal.invocation(*id).unwrap();
                assert!(kept || found.is_some_and(|found| found.is_dispatched()), "{what}: {id}");
            }
            let done = maintain(&journal).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(done.removed_segments > 0 || call > 1, "{what}");
            bounded(journal.close()).await;
            verify_on(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            std::fs::remove_dir_all(home.path().join("index")).unwrap();
            let (journal, _) =
                open_keeping(&after, home.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
            bounded(journal.close()).await;
        }
    }
    println!("{} crash points in retention", calls * 2);
}

/// A call whose result expires at once.
async fn expiring(journal: &Journal) {
    let mut call = admit(journal, "coder", "short");
    call.preflight(crate::contract::Preflight { keep_seconds: 0, ..preflight() }).unwrap();
    call.authorize(None).unwrap();
    drop(call.dispatch(dispatch()).await.unwrap());
    drop(respond(&mut call, 200, &[9; 20_000]).await);
}

/// Two segments may stay.
fn open_keeping(sim: &Sim, index: &Path) -> Result<(Journal, Recovery), open::Error> {
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let retention = crate::Retention { max_age: None, max_bytes: Some(700 << 10) };
    let options = Options { retention, ..options(index) };
    let (core, recovery) = startup::open_on(disk, None, &options, Some(key()), true)?;
    Ok((Journal::from_core(core), recovery))
}

async fn maintain(journal: &Journal) -> Result<crate::Maintained, crate::maintain::Error> {
    bounded(async {
        while journal.stats().healthy
            && journal.stats().indexed_sequence < journal.stats().durable_sequence
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let journal = journal.clone();
    bounded(tokio::task::spawn_blocking(move || journal.maintain())).await.unwrap()
}
