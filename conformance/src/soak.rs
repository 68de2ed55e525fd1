//! The soak: mixed traffic with faults for minutes or hours, kills in between, and an audit after
//! each round: what was told, what is on record and what the origin counted agree, the log verifies,
//! and a server that runs long gives back what it took.

use crate::case::MARK;
use crate::http::{Answer, Caller, Counts, Origin, Request, Script, Step};
use crate::kill::{new_id, told};
use crate::ssh::{self, Target};
use crate::subject::{Error, Home, Serving, io};
use journal::contract::Outcome;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Callers at the same time.
const CALLERS: u32 = 8;
/// Rounds that end by a kill take so long at most.
const ROUND: Duration = Duration::from_secs(12);
/// After that time no caller holds a connection any more.
const SETTLES: Duration = Duration::from_secs(5);
/// Descriptors that a server may hold beyond those it began with, when no caller is there: idle
/// connections to the origin.
const SPARE_DESCRIPTORS: usize = 80;

/// What a soak gave.
#[derive(Debug, Clone, Default)]
pub struct Soaked {
    /// Rounds: starts of the server.
    pub rounds: u32,
    /// Kills in the middle of traffic.
    pub kills: u32,
    /// Calls made.
    pub calls: usize,
    /// Calls whose outcome was told to the caller.
    pub told: usize,
    /// What the records say, by outcome.
    pub outcomes: HashMap<String, usize>,
    /// Calls that were told and are not on record.
    pub lost: usize,
    /// Resident memory without mapped files, in KiB: after a third of the undisturbed round, and at
    /// its end.
    pub memory_kib: (usize, usize),
    /// What does not agree.
    pub findings: Vec<String>,
}

/// One call as its caller saw it.
struct Made {
    id: String,
    path: String,
    told: Option<Outcome>,
}

/// The kinds of calls: the first segment of the path, and what the origin does.
fn scripts() -> Vec<Script> {
    let send = |text: &str| Step::Send(text.to_owned().into());
    let head = |line: &str| format!("HTTP/1.1 {line}\r\n{MARK}: 1\r\n");
    let ok = head("200 OK") + "Content-Length: 2\r\n\r\nok";
    let event = "c\r\ndata: tick\n\n\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let stream = head("200 OK") + "Content-Type: text/event-stream\r\n" + chunked + event;
    let big = "x".repeat(200_000);
    let big = head("200 OK") + &format!("Content-Length: {}\r\n\r\n{big}", big.len());
    let failed = head("500 E") + "Content-Length: 2\r\n\r\nno";
    let busy = head("503 E") + "Retry-After: 1\r\nContent-Length: 2\r\n\r\nno";
    let cut = head("200 OK") + "Content-Length: 10\r\n\r\nhalf";
    let script = |kind: &str, steps: Vec<Step>| {
        let all: Vec<Step> = [Step::ReadBody, Step::Apply].into_iter().chain(steps).collect();
        Script::new(&format!("/{kind}/*"), all)
    };
    vec![
        script("ok", vec![send(&ok)]),
        script("big", vec![send(&big)]),
        script("chunked", vec![send(&(head("200 OK") + chunked + "2\r\nok\r\n0\r\n\r\n"))]),
        script("stream", vec![send(&stream), send(&format!("{event}0\r\n\r\n"))]),
        script("stream_cut", vec![send(&stream), Step::Reset]),
        script("failed", vec![send(&failed)]),
        script("busy", vec![send(&busy)]),
        script("cut", vec![send(&cut), Step::Close]),
        script("closed", vec![Step::Close]),
        script("reset", vec![Step::Reset]),
        Script::new("/early/*", [Step::Close]),
    ]
}

const KINDS: [&str; 16] = [
    "ok",
    "ok",
    "ok",
    "ok",
    "ok",
    "big",
    "chunked",
    "stream",
    "stream_cut",
    "failed",
    "busy",
    "cut",
    "closed",
    "reset",
    "early",
    "ok",
];
const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

/// A sequence of numbers that a seed repeats (xorshift, Marsaglia 2003).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (end.max(1) as u64)).unwrap_or_default()
    }

    fn pick(&mut self, of: &[&'static str]) -> &'static str {
        of.get(self.below(of.len())).copied().unwrap_or("ok")
    }
}

struct Soak {
    home: Home,
    clear: Origin,
    secure: Origin,
    target: Target,
    runtime: tokio::runtime::Runtime,
    next: Arc<AtomicU32>,
    seed: u64,
}

/// Soaks the binary for so long.
///
/// # Errors
/// [`Error`] when it can't be started or asked.
pub fn soak(binary: &Path, how_long: Duration, seed: u64) -> Result<Soaked, Error> {
    let soak = Soak::new(binary, seed)?;
    let mut numbers = Numbers(seed | 1);
    let mut soaked = Soaked::default();
    let end = Instant::now() + how_long;
    let mut serving = soak.home.serve(&[])?;
    // The first half is undisturbed, so that growth shows.
    let made = soak.undisturbed(&serving, how_long / 2, &mut soaked)?;
    if !serving.terminate(Duration::from_secs(30)) {
        soaked.findings.push("SIGTERM did not end a server without callers".to_owned());
    }
    drop(serving);
    serving = soak.home.serve(&[])?;
    soak.audit(&serving, made, &mut soaked)?;
    while Instant::now() < end {
        let round = ROUND.min(how_long / 6).mul_f64(0.2 + numbers.below(80) as f64 / 100.0);
        let (stop, callers) = soak.callers(&serving)?;
        std::thread::sleep(round);
        serving.kill();
        soaked.kills += 1;
        stop.send_replace(true);
        let made = soak.runtime.block_on(gathered(callers));
        serving = soak.home.serve(&[])?;
        soak.audit(&serving, made, &mut soaked)?;
    }
    drop(serving);
    soak.home.run(&["journal", "verify"])?;
    Ok(soaked)
}

impl Soak {
    fn new(binary: &Path, seed: u64) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Unexpected(error.to_string());
        let home = Home::new(binary)?;
        let authority = crate::pki::Authority::new("soaked origins").map_err(|e| failed(&e))?;
        let leaf = authority.leaf(&["127.0.0.1"]).map_err(|e| failed(&e))?;
        let config = leaf.server_config().map_err(|e| failed(&e))?;
        let file = home.path().join("origins.pem");
        std::fs::write(&file, authority.pem()).map_err(io("write the CA"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("make a runtime"))?;
        let target = {
            let _entered = runtime.enter();
            target().map_err(io("start a target"))?
        };
        home.secret("soaked", &ssh::user_key().map_err(io("make a key"))?)?;
        home.policy(&format!(
            "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n\
             [[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n\n\
             [[credential]]\nid = \"k\"\nsecret = \"soaked\"\ninject = \"ssh-key\"\n\n\
             [[ssh]]\nname = \"soaked\"\nmatch = {{ host = \"soaked\", port = 22, \
             users = [\"u\"], commands = [\"*\"] }}\naddress = \"{}\"\n\
             host_keys = [\"{}\"]\ncredential = \"k\"\nallow = [\"exec\"]\n",
            file.display(),
            target.address(),
            target.host_key()
        ))?;
        Ok(Self {
            home,
            clear: Origin::start(scripts(), None).map_err(io("start an origin"))?,
            secure: Origin::start(scripts(), Some(config)).map_err(io("start an origin"))?,
            target,
            runtime,
            next: Arc::new(AtomicU32::new(1)),
            seed,
        })
    }

    /// Starts callers that go on until they are stopped.
    fn callers(
        &self,
        serving: &Serving,
    ) -> Result<(watch::Sender<bool>, JoinSet<Vec<Made>>), Error> {
        let (stop, stopped) = watch::channel(false);
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let caller = self.home.caller(serving.http, Duration::from_secs(10));
            let origins = [self.clear.address().to_string(), self.secure.address().to_string()];
            let next = Arc::clone(&self.next);
            let start = u64::from(next.load(Ordering::Relaxed)) << 8 | u64::from(number);
            let numbers = Numbers((self.seed ^ start.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
            let stopped = stopped.clone();
            callers.spawn_on(calls(caller, origins, next, numbers, stopped), self.runtime.handle());
        }
        let gateway = self.home.gateway(serving)?;
        let commands = commands(gateway, Arc::clone(&self.next), stopped);
        callers.spawn_on(commands, self.runtime.handle());
        Ok((stop, callers))
    }

    /// A round without a kill, with what the server holds at a third of it and at its end.
    fn undisturbed(
        &self,
        serving: &Serving,
        how_long: Duration,
        soaked: &mut Soaked,
    ) -> Result<Vec<Made>, Error> {
        let before = descriptors(serving.id())?;
        let (stop, callers) = self.callers(serving)?;
        std::thread::sleep(how_long / 3);
        let early = memory_kib(serving.id())?;
        std::thread::sleep(how_long - how_long / 3);
        stop.send_replace(true);
        let made = self.runtime.block_on(gathered(callers));
        // Callers of HTTP/2 keep their connections for a while.
        std::thread::sleep(SETTLES);
        let late = memory_kib(serving.id())?;
        soaked.memory_kib = (early, late);
        let after = descriptors(serving.id())?;
        if after > before + SPARE_DESCRIPTORS {
            soaked.findings.push(format!("descriptors: {before} at the start, {after} at the end"));
        }
        // Half as much again, and what caches take in their first minutes.
        if late > early + early / 2 + 64 * 1024 {
            soaked.findings.push(format!("memory: {early} KiB at a third, {late} KiB at the end"));
        }
        Ok(made)
    }

    /// Compares the calls of a round with records and counts.
    fn audit(&self, serving: &Serving, made: Vec<Made>, soaked: &mut Soaked) -> Result<(), Error> {
        soaked.rounds += 1;
        let mut counts = self.clear.take_counts();
        counts.extend(self.secure.take_counts());
        counts.extend(self.target.take_counts());
        let mut records = self.records(serving, made.len())?;
        for call in made {
            let count = counts.remove(&call.path).unwrap_or_default();
            let record = records.remove(&call.id);
            soaked.calls += 1;
            soaked.told += usize::from(call.told.is_some());
            let outcome = record.as_ref().map_or("none", |(outcome, _)| outcome);
            *soaked.outcomes.entry(outcome.to_owned()).or_default() += 1;
            let lost = call.told.is_some_and(|told| told != Outcome::NotAttempted);
            soaked.lost += usize::from(record.is_none() && lost);
            if let Some(what) = disagreement(&call, count, record.as_ref()) {
                let Made { id, path, told } = call;
                soaked.findings.push(format!("{path} {id}: {what}; told {told:?}, {count:?}"));
            }
        }
        for (path, count) in counts {
            soaked.findings.push(format!("{path}: {count:?}, and nobody asked"));
        }
        Ok(())
    }

    /// Outcome and state of the newest records, so many at least.
    fn records(
        &self,
        serving: &Serving,
        wanted: usize,
    ) -> Result<HashMap<String, (String, String)>, Error> {
        let caller = self.home.caller(serving.http, Duration::from_secs(30));
        let mut records = HashMap::new();
        let mut cursor = String::new();
        // Calls that were cut before they were admitted have no record, so the end may come first.
        while records.len() < wanted + 500 {
            let request = Request {
                method: "GET",
                tls: false,
                authority: "affiant.internal".to_owned(),
                path: format!("/v1/invocations?limit=500{cursor}"),
                fields: Vec::new(),
                content: None,
                early: None,
            };
            let page: Value = match self.runtime.block_on(caller.call(&request)) {
                Answer::Response(got) if got.status == 200 => serde_json::from_slice(&got.content)
                    .map_err(|error| Error::Unexpected(format!("the list: {error}")))?,
                other @ (Answer::Response(_) | Answer::Nothing(_)) => {
                    return Err(Error::Unexpected(format!("the list: {other:?}")));
                }
            };
            let all = page.get("invocations").and_then(Value::as_array);
            for record in all.into_iter().flatten() {
                let text = |pointer| {
                    record.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                records.insert(text("/invocation_id"), (text("/error/outcome"), text("/state")));
            }
            match page.get("next").and_then(Value::as_str) {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        Ok(records)
    }
}

/// What does not agree about a call, if anything.
fn disagreement(call: &Made, count: Counts, record: Option<&(String, String)>) -> Option<String> {
    if count.requests > 1 {
        return Some("D-7: dispatched again".to_owned());
    }
    let Some((outcome, state)) = record else {
        let nothing = count.requests == 0;
        return (!nothing).then(|| "J-7: dispatched, and not on record".to_owned());
    };
    if state != "settled" {
        return Some(format!("J-2: {state} after a restart"));
    }
    let Ok(outcome) = outcome.parse::<Outcome>() else {
        return Some(format!("M-2: outcome {outcome}"));
    };
    let fits = match outcome {
        Outcome::NotAttempted => count.requests == 0,
        Outcome::Committed | Outcome::Rejected => count.effects == 1,
        Outcome::Unknown => true,
    };
    if !fits {
        return Some(format!("J-7: {outcome} on record"));
    }
    // A told `unknown` may have been settled since: by the broker itself, never by a guess.
    let fits = match call.told {
        None | Some(Outcome::Unknown) => true,
        Some(told) => told == outcome,
    };
    (!fits).then(|| format!("J-7: {outcome} on record"))
}

/// Calls until it is stopped.
async fn calls(
    caller: Caller,
    [clear, secure]: [String; 2],
    next: Arc<AtomicU32>,
    mut numbers: Numbers,
    stopped: watch::Receiver<bool>,
) -> Vec<Made> {
    let mut made = Vec::new();
    while !*stopped.borrow() {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let tls = numbers.below(3) == 0;
        let method = numbers.pick(&METHODS);
        let path = format!("/{}/{number}", numbers.pick(&KINDS));
        let id = new_id(number).to_string();
        let request = Request {
            method,
            tls,
            authority: if tls { secure.clone() } else { clear.clone() },
            path: path.clone(),
            fields: vec![("Affiant-Invocation".to_owned(), id.clone())],
            content: matches!(method, "POST" | "PUT").then(|| vec![b'a'; numbers.below(20_000)]),
            early: None,
        };
        let http2 = tls && numbers.below(2) == 0;
        let answer =
            if http2 { caller.call_h2(&request).await } else { caller.call(&request).await };
        made.push(Made { id, path, told: told(&answer) });
        if matches!(answer, Answer::Nothing(_)) {
            // The server may be gone; the round is about to end.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    made
}

/// Runs commands until it is stopped.
async fn commands(
    gateway: ssh::Gateway,
    next: Arc<AtomicU32>,
    stopped: watch::Receiver<bool>,
) -> Vec<Made> {
    let mut made = Vec::new();
    while !*stopped.borrow() {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let (path, id) = (format!("/command/{number}"), new_id(number));
        let patience = Duration::from_secs(20);
        let ran = ssh::run(&gateway, "soaked", ssh::Asked::Exec, &path, id, patience).await;
        let told = ran.ok().and_then(|ran| ran.told(b"ok"));
        made.push(Made { id: id.to_string(), path, told });
    }
    made
}

fn target() -> std::io::Result<Target> {
    use ssh::Step;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let steps = vec![
        Step::Apply,
        Step::Accept,
        Step::Stdout("ok".into()),
        Step::Eof,
        Step::ExitStatus(0),
        Step::CloseChannel,
    ];
    Target::spawn(listener, ssh::Opening::Serve, steps)
}

async fn gathered(mut callers: JoinSet<Vec<Made>>) -> Vec<Made> {
    let mut all = Vec::new();
    while let Some(made) = callers.join_next().await {
        all.extend(made.unwrap_or_default());
    }
    all
}

fn descriptors(process: u32) -> Result<usize, Error> {
    let listed = std::fs::read_dir(format!("/proc/{process}/fd"));
    Ok(listed.map_err(io("count descriptors"))?.count())
}

fn memory_kib(process: u32) -> Result<usize, Error> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.map_err(io("read the memory of the server"))?;
    // Without the pages of mapped files: the index is one, and grows with its records.
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Error::Unexpected("no RssAnon of the server".to_owned()))
}

impl Soaked {
    /// For people.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut outcomes: Vec<_> = self.outcomes.iter().collect();
        outcomes.sort();
        let outcomes: Vec<String> =
            outcomes.into_iter().map(|(name, count)| format!("{name} {count}")).collect();
        let (early, late) = self.memory_kib;
        let mut out = format!(
            "{} calls in {} rounds, {} kills, {} told, {} lost\non record: {}\nmemory: {early} KiB \
             at a third of the undisturbed half, {late} KiB at its end\n{} findings\n",
            self.calls,
            self.rounds,
            self.kills,
            self.told,
            self.lost,
            outcomes.join(", "),
            self.findings.len()
        );
        for finding in self.findings.iter().take(50) {
            out.push_str(&format!("  {finding}\n"));
        }
        out
    }
}
