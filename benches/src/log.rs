//! The journal against the raw sync rate of the same disk, in one run.
//!
//! A call is what the proxy records of one: five events before the dispatch is durable, a result of
//! 2 KB, five events until it is delivered. Raw is a 4 KiB write and `fdatasync` on a file of zeros.

#[path = "../../journal/tests/common/sample.rs"]
mod sample;

use anyhow::{Context as _, ensure};
use journal::contract::{
    Code, Completion, Confirmation, Digest, RequestSent, ResponseComplete, ResponseStarted, Retry,
    SetupAttempt, SetupStage, Verdict,
};
use journal::{Admission, Guard, Journal, Options, ResultKey, Stats, Stream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const IN_FLIGHT: [usize; 4] = [1, 8, 64, 256];
const RESULT: usize = 2_000;
const ROUNDS: usize = 3;

struct Row {
    raw: f64,
    took: f64,
    cpu: f64,
    /// Of that, the thread that writes the index.
    index_cpu: f64,
    /// What the index takes on the disk.
    index_bytes: u64,
    done: Done,
    stats: Stats,
}

/// What callers have done.
#[derive(Default)]
struct Done {
    calls: u64,
    /// Time in the two appends of a call that it waits for: dispatch and result.
    waited: Duration,
}

/// Runs all rows, each beside a raw one.
pub(crate) fn run(seconds: f64) -> anyhow::Result<()> {
    let length = Duration::from_secs_f64(seconds);
    let home = tempfile::tempdir_in(std::env::var_os("BENCH_DIR").unwrap_or_else(|| ".".into()))?;
    println!("2 KB results, {ROUNDS} rounds of {seconds} s, the medians by the rate against raw");
    println!(
        "{:>9} {:>9} {:>10} {:>8} {:>8} {:>8} {:>10} {:>10} {:>10} {:>8} {:>12} {:>13}",
        "in flight",
        "raw/s",
        "appends/s",
        "waited/s",
        "of raw",
        "in waits",
        "app./sync",
        "CPU us/app",
        "B/call",
        "payload",
        "index B/call",
        "index us/call"
    );
    for in_flight in IN_FLIGHT {
        let mut rows = Vec::new();
        for round in 0..ROUNDS {
            let path = home.path().join(format!("{in_flight}-{round}"));
            rows.push(row(&path, in_flight, length)?);
        }
        // Two records of a call are waited for.
        let waited = |row: &Row| 2.0 * row.done.calls as f64 / row.took;
        rows.sort_by(|a, b| (waited(a) / a.raw).total_cmp(&(waited(b) / b.raw)));
        let Some(row) = rows.get(ROUNDS / 2) else { continue };
        ensure!(row.stats.frames == row.stats.syncs, "one sync per batch");
        ensure!(row.stats.written_bytes.is_multiple_of(4096), "whole blocks");
        println!(
            "{in_flight:>9} {:>9.0} {:>10.0} {:>8.0} {:>8.2} {:>8.2} {:>10.1} {:>10.1} {:>10} {:>8.2} {:>12} {:>13.1}",
            row.raw,
            row.stats.appends as f64 / row.took,
            waited(row),
            waited(row) / row.raw,
            2.0 * row.done.calls as f64 / row.done.waited.as_secs_f64() * in_flight as f64
                / row.raw,
            row.stats.appends as f64 / row.stats.syncs as f64,
            row.cpu * 1e6 / row.stats.appends as f64,
            row.stats.written_bytes / row.done.calls,
            row.stats.written_bytes as f64 / row.stats.payload_bytes as f64,
            row.index_bytes / row.done.calls,
            row.index_cpu * 1e6 / row.done.calls as f64,
        );
    }
    memory(home.path())?;
    scan(&home.path().join("64-0"))
}

/// What the journal takes at most while 256 calls are under way, on top of the process before it.
fn memory(home: &Path) -> anyhow::Result<()> {
    const CALLS: usize = 256;
    for (name, pieces, rounds) in [("2 KB", 0, 20), ("8 MB", 128, 1)] {
        let directory = home.join(format!("memory-{pieces}"));
        // Forgets the peak so far (proc(5), clear_refs).
        std::fs::write("/proc/self/clear_refs", "5").context("reset the peak")?;
        let before = status("VmRSS")?;
        let (journal, _) = Journal::open(Options::new(&directory), Some(key()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..CALLS {
                let journal = journal.clone();
                tasks.spawn(async move {
                    for round in 0..rounds {
                        call(&journal, &format!("{n} {round}"), pieces).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            anyhow::Ok(())
        })?;
        let stats = journal.stats();
        runtime.block_on(journal.close());
        println!(
            "{CALLS} in flight, {name} results: at most {:.0} MB more memory, {:.1} MB of them queued",
            (status("VmHWM")?.saturating_sub(before)) as f64 / 1e3,
            stats.peak_queued_bytes as f64 / 1e6,
        );
        std::fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// A size of this process, in KB.
fn status(name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with(name)).context("no such line")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

fn row(path: &Path, in_flight: usize, length: Duration) -> anyhow::Result<Row> {
    std::fs::create_dir(path)?;
    let before = raw(path, length / 4)?;
    let (journal, _) = Journal::open(Options::new(path.join("journal")), Some(key()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let (begun, used) = (Instant::now(), cpu()?);
    let done = runtime.block_on(load(&journal, in_flight, begun + length))?;
    let (took, used) = (begun.elapsed().as_secs_f64(), cpu()? - used);
    let index_cpu = thread_cpu("journal-index")?;
    let stats = journal.stats();
    runtime.block_on(journal.close());
    let index_bytes = std::fs::metadata(path.join("journal/index/data.mdb"))?.len();
    let after = raw(path, length / 4)?;
    let raw = f64::midpoint(before, after);
    Ok(Row { raw, took, cpu: used, index_cpu, index_bytes, done, stats })
}

/// Syncs per second of 4 KiB writes to a file of zeros.
fn raw(directory: &Path, length: Duration) -> anyhow::Result<f64> {
    const BLOCKS: u64 = 4096;
    let path = directory.join("raw");
    std::fs::write(&path, vec![0; 4096 * BLOCKS as usize])?;
    let file = std::fs::OpenOptions::new().write(true).open(&path)?;
    file.sync_all()?;
    let block = [7; 4096];
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < length {
        file.write_at(&block, count % BLOCKS * 4096)?;
        file.sync_data()?;
        count += 1;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// User and system time of this process, in seconds.
fn cpu() -> anyhow::Result<f64> {
    seconds(&std::fs::read_to_string("/proc/self/stat")?)
}

/// The same of the thread of a name.
fn thread_cpu(name: &str) -> anyhow::Result<f64> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim_end() == name {
            return seconds(&std::fs::read_to_string(task.join("stat"))?);
        }
    }
    anyhow::bail!("there is no thread {name}")
}

/// User and system time in a line of `stat` (proc(5)).
fn seconds(text: &str) -> anyhow::Result<f64> {
    let rest = text.rsplit(')').next().unwrap_or_default();
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

async fn load(journal: &Journal, in_flight: usize, until: Instant) -> anyhow::Result<Done> {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..in_flight {
        let journal = journal.clone();
        tasks.spawn(async move {
            let mut done = Done::default();
            while Instant::now() < until {
                done.waited += call(&journal, &format!("{n} {}", done.calls), 0).await?;
                done.calls += 1;
            }
            anyhow::Ok(done)
        });
    }
    let mut all = Done::default();
    while let Some(done) = tasks.join_next().await {
        let done = done??;
        all.calls += done.calls;
        all.waited += done.waited;
    }
    Ok(all)
}

/// One call, with a result of so many pieces of 64 KiB, or of 2 KB. Gives how long it waited.
async fn call(journal: &Journal, text: &str, pieces: usize) -> anyhow::Result<Duration> {
    let fingerprint = Digest::of(text.as_bytes());
    let admission =
        journal.admit(journal.new_id(), sample::accepted(fingerprint), Guard::default())?;
    let Admission::New(mut call) = admission else { anyhow::bail!("an id is known") };
    call.preflight(sample::preflight())?;
    call.authorize(Some(sample::credential()))?;
    let (stage, code) = (SetupStage::TlsHandshake, "ok".to_owned());
    let address = Some("192.0.2.7:443".to_owned());
    call.setup_attempted(SetupAttempt { n: 1, stage, code, address })?;
    let dispatch = sample::dispatch(9, fingerprint);
    let begun = Instant::now();
    drop(call.dispatch(dispatch).await?);
    let mut waited = begun.elapsed();
    call.request_sent(RequestSent { length_bytes: 0, digest: Digest::of(b"") })?;
    call.response_started(ResponseStarted { status: Some(200), remote_request_id: None })?;
    call.store(Stream::Head, br#"{"status":200,"headers":[["content-type","application/json"]]}"#)
        .await?;
    static PIECE: [u8; 64 << 10] = [5; 64 << 10];
    let content = [3; RESULT];
    for _ in 0..pieces {
        call.store(Stream::Content, &PIECE).await?;
    }
    if pieces == 0 {
        call.store(Stream::Content, &content).await?;
    }
    let length = if pieces == 0 { RESULT } else { pieces * PIECE.len() };
    let complete = ResponseComplete {
        completion: Completion::ContentLength,
        length_bytes: length as u64,
        digest: Digest::of(&content),
        ssh_end: None,
        redacted: false,
    };
    let begun = Instant::now();
    drop(call.commit(complete, Verdict::committed(Retry::Never, Code::Ok), None).await?);
    waited += begun.elapsed();
    call.delivered(Confirmation::Protocol);
    Ok(waited)
}

fn key() -> ResultKey {
    ResultKey::new([7; 32])
}

/// How fast a log is read again: the scan of recovery, a rebuild of the index, a clean opening.
fn scan(path: &Path) -> anyhow::Result<()> {
    let directory = path.join("journal");
    let begun = Instant::now();
    let bytes = journal::verify::scan(&directory).context("scan")?;
    let scanned = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(directory.join("index"))?;
    let begun = Instant::now();
    let (journal, recovery) = Journal::open(Options::new(&directory), Some(key()))?;
    let rebuilt = begun.elapsed().as_secs_f64();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(journal.close());
    let begun = Instant::now();
    let (journal, _) = Journal::open(Options::new(&directory), Some(key()))?;
    let opened = begun.elapsed().as_secs_f64();
    runtime.block_on(journal.close());
    println!(
        "scan {:.0} MB/s of {} MB; index of {} records rebuilt in {rebuilt:.2} s; clean open {:.0} ms",
        bytes as f64 / 1e6 / scanned,
        bytes / 1_000_000,
        recovery.last_sequence,
        opened * 1e3,
    );
    Ok(())
}
