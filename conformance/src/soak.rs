//! The soak: mixed traffic with faults for minutes or hours, kills in between, and an audit after
//! each round: what was told, what is on record and what the origin counted agree, the log verifies,
//! and a server that runs long gives back what it took.

mod audit;
mod traffic;

use crate::http::Origin;
use crate::numbers::Numbers;
use crate::ssh::{self, Target};
use crate::subject::{Error, Home, Serving, io};
use audit::Books;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};
use traffic::{Made, gathered, scripts, target};

/// Rounds that end by a kill take so long at most.
const ROUND: Duration = Duration::from_secs(12);
/// After that time no caller holds a connection any more.
const SETTLES: Duration = Duration::from_secs(5);
/// Descriptors that a server may hold beyond those it began with, when no caller is there: idle
/// connections to the origin.
const SPARE_DESCRIPTORS: usize = 80;

/// How to soak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Soaking {
    /// The whole of it.
    pub how_long: Duration,
    /// What decides which calls are made.
    pub seed: u64,
    /// Calls per second, of all callers together; as many as they can without it.
    pub per_second: Option<f64>,
}

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
    /// Records in the journal at the end.
    pub on_record: usize,
    /// Descriptors before the undisturbed round and after it.
    pub descriptors: (usize, usize),
    /// Resident memory without mapped files, in KiB: after a third of the undisturbed round, and at
    /// its end.
    pub memory_kib: (usize, usize),
    /// What does not agree.
    pub findings: Vec<String>,
}

struct Soak {
    home: Home,
    clear: Origin,
    secure: Origin,
    target: Target,
    runtime: tokio::runtime::Runtime,
    next: Arc<AtomicU32>,
    books: Books,
    seed: u64,
    per_second: Option<f64>,
}

/// Soaks the binary for so long.
///
/// # Errors
/// [`Error`] when it can't be started or asked.
pub fn soak(binary: &Path, soaking: Soaking) -> Result<Soaked, Error> {
    let Soaking { how_long, seed, .. } = soaking;
    let mut soak = Soak::new(binary, soaking)?;
    let mut numbers = Numbers::new(seed);
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
        let made = soak.runtime.block_on(gathered(callers))?;
        serving = soak.home.serve(&[])?;
        soak.audit(&serving, made, &mut soaked)?;
    }
    soak.audit_all(&serving, &mut soaked)?;
    drop(serving);
    soak.home.run(&["journal", "verify"])?;
    Ok(soaked)
}

impl Soak {
    fn new(binary: &Path, soaking: Soaking) -> Result<Self, Error> {
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
            books: Books::default(),
            seed: soaking.seed,
            per_second: soaking.per_second,
        })
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
        let made = self.runtime.block_on(gathered(callers))?;
        // Callers of HTTP/2 keep their connections for a while.
        std::thread::sleep(SETTLES);
        let late = memory_kib(serving.id())?;
        soaked.memory_kib = (early, late);
        let after = descriptors(serving.id())?;
        soaked.descriptors = (before, after);
        if after > before + SPARE_DESCRIPTORS {
            soaked.findings.push(format!("descriptors: {before} at the start, {after} at the end"));
        }
        // Half as much again, and what caches take in their first minutes.
        if late > early + early / 2 + 24 * 1024 {
            soaked.findings.push(format!("memory: {early} KiB at a third, {late} KiB at the end"));
        }
        Ok(made)
    }
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
        let (before, after) = self.descriptors;
        let mut out = format!(
            "{} calls in {} rounds, {} kills, {} told, {} lost\n{} records: {}\nmemory: {early} KiB \
             at a third of the undisturbed half, {late} KiB at its end\ndescriptors: {before} before \
             it, {after} after it\n{} findings\n",
            self.calls,
            self.rounds,
            self.kills,
            self.told,
            self.lost,
            self.on_record,
            outcomes.join(", "),
            self.findings.len()
        );
        for finding in self.findings.iter().take(50) {
            out.push_str(&format!("  {finding}\n"));
        }
        out
    }
}
