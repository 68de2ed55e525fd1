//! The kill matrix (contract X-2): the real binary is struck while it carries a call, started again,
//! and compared with what the origin counted.
//!
//! Two ways to strike. `strace` attaches to a thread that waits, counts its system calls from there,
//! and at the n-th sends SIGKILL or gives back an error. A test build ends itself at a named place
//! of an event's course (`AFFIANT_FAILPOINT`). What the caller was told, what is on record after the
//! restart and what the origin saw must agree.

pub mod under_way;

use crate::case::MARK;
use crate::fields;
use crate::http::{Answer, End, Origin, Received, Request, Script, Step};
use crate::pki::Authority;
use crate::ssh::{self, Target};
use crate::subject::{Error, Home, Serving, end, io};
use journal::contract::{InvocationId, Outcome};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A caller's patience; a kill ends calls at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// A process that was struck is gone within that time.
const STRUCK: Duration = Duration::from_millis(300);
/// After a disk error, calls are taken again within that time.
const RESUMES: Duration = Duration::from_secs(15);

/// What a system call ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The process is killed before the call.
    Kill,
    /// The call fails as a broken disk fails.
    Eio,
    /// The call fails as a full disk fails.
    Enospc,
    /// The call fails as a file system that became read-only fails.
    Erofs,
}

impl Blow {
    /// As strace injects it.
    const fn injection(self) -> &'static str {
        match self {
            Self::Kill => "signal=SIGKILL",
            Self::Eio => "error=EIO",
            Self::Enospc => "error=ENOSPC",
            Self::Erofs => "error=EROFS",
        }
    }
}

/// Which threads are struck; each counts on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The writer of the journal, in a process where it writes every frame: one with a single
    /// worker. So each write and each sync of a call is a point.
    Writer,
    /// Those of that name.
    Named(&'static str),
    /// All, where they touch the journal's segments: callers write frames themselves.
    Segments,
}

/// Where the process is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The threads that are struck.
    pub threads: Threads,
    /// The system calls that are counted, as strace names them.
    pub calls: &'static str,
    /// Which of them, from 1.
    pub nth: u32,
    /// What happens there.
    pub blow: Blow,
}

/// The stages of an event's course at which a test build can end itself.
pub const STAGES: [&str; 5] = ["queue", "write", "sync", "tell", "act"];

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// A POST.
    Http {
        /// Whether both sides use TLS.
        tls: bool,
        /// Whether the response is streamed.
        streamed: bool,
    },
    /// A command.
    Ssh {
        /// Whether its output comes in parts, with time between.
        streamed: bool,
    },
}

/// What one strike showed.
#[derive(Debug, Clone)]
pub struct Strike {
    /// Whether the call was still under way at that count: no more points after a miss.
    pub hit: bool,
    /// The outcome on record after the restart; `None` if there is no record.
    pub outcome: Option<Outcome>,
    /// What does not agree.
    pub findings: Vec<String>,
}

/// What is at the far end.
enum Far {
    Origin { origin: Origin, tls: bool },
    Target(Target),
}

/// What the caller got.
struct Got {
    told: Option<Outcome>,
    shown: String,
}

/// A home, an origin or a target, and the scene between them.
pub struct Stage {
    home: Home,
    far: Far,
    strikes: u32,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    /// Sets the stage with the binary.
    ///
    /// # Errors
    /// [`Error`]
    pub fn new(binary: &Path, scene: Scene) -> Result<Self, Error> {
        let home = Home::new(binary)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(io("make a runtime"))?;
        let far = match scene {
            Scene::Http { tls, streamed } => Far::origin(&home, tls, streamed)?,
            Scene::Ssh { streamed } => {
                let _entered = runtime.enter();
                Far::target(&home, streamed)?
            }
        };
        Ok(Self { home, far, strikes: 0, runtime })
    }

    /// The home, for what a test does beside the strikes.
    #[must_use]
    pub const fn home(&self) -> &Home {
        &self.home
    }

    /// One call under an id.
    fn call(&self, serving: &Serving, path: &str, id: InvocationId) -> Result<Got, Error> {
        match &self.far {
            Far::Origin { origin, tls } => {
                let request = Request {
                    method: "POST",
                    tls: *tls,
                    authority: origin.address().to_string(),
                    path: path.to_owned(),
                    fields: vec![("Affiant-Invocation".to_owned(), id.to_string())],
                    content: Some(b"amount=1".to_vec()),
                    early: None,
                };
                let answer = self.ask(serving, &request);
                Ok(Got { told: told(&answer), shown: format!("{answer:?}") })
            }
            Far::Target(_) => self.command(serving, path, id),
        }
    }

    fn ask(&self, serving: &Serving, request: &Request) -> Answer {
        self.runtime.block_on(self.home.caller(serving.http, PATIENCE).call(request))
    }

    fn command(&self, serving: &Serving, command: &str, id: InvocationId) -> Result<Got, Error> {
        let gateway = self.home.gateway(serving)?;
        let ran = ssh::run(&gateway, "struck", ssh::Asked::Exec, command, id, PATIENCE);
        let ran = self.runtime.block_on(ran).map_err(io("run ssh"))?;
        Ok(Got { told: ran.told(b"first, last"), shown: format!("{ran:?}") })
    }

    fn count(&self, path: &str) -> usize {
        match &self.far {
            Far::Origin { origin, .. } => {
                origin.seen().iter().filter(|seen| seen.target().ends_with(path)).count()
            }
            Far::Target(target) => {
                target.requests().iter().filter(|asked| *asked == path.as_bytes()).count()
            }
        }
    }

    fn effects(&self, path: &str) -> usize {
        match &self.far {
            Far::Origin { origin, .. } => origin.effects(path),
            Far::Target(target) => target.effects_of(path.as_bytes()),
        }
    }

    /// One call of a test build that ends itself where an event reaches a stage; then a restart and
    /// the comparison.
    ///
    /// # Errors
    /// [`Error`] when the broker can't be started.
    pub fn fail_at(&mut self, stage: &str, event: &str) -> Result<Strike, Error> {
        self.strikes += 1;
        let path = format!("/struck/{}", self.strikes);
        let id = new_id(self.strikes);
        let place = format!("AFFIANT_FAILPOINT={stage}:{event}:{id}");
        let mut serving = self.home.serve(&["env", &place])?;
        let got = self.call(&serving, &path, id)?;
        let hit = serving.ended_within(STRUCK);
        self.after(serving, Blow::Kill, hit, &path, id, &got, Vec::new())
    }

    /// One call, struck at the point; then a restart and the comparison.
    ///
    /// # Errors
    /// [`Error`] when the broker or strace can't be started.
    pub fn strike(&mut self, point: Point) -> Result<Strike, Error> {
        self.strikes += 1;
        let path = format!("/struck/{}", self.strikes);
        let id = new_id(self.strikes);
        let by: &[&str] = match point.threads {
            Threads::Writer => &["env", "TOKIO_WORKER_THREADS=1"],
            Threads::Named(_) | Threads::Segments => &[],
        };
        let mut serving = self.home.serve(by)?;
        let warm = format!("/warm/{}", self.strikes);
        self.call(&serving, &warm, new_id(1_000_000 + self.strikes))?;
        let tracer = Tracer::attach(serving.id(), &self.home.path().join("journal"), point)?;
        let got = self.call(&serving, &path, id)?;
        let mut findings = Vec::new();
        let hit = match point.blow {
            Blow::Kill => serving.ended_within(STRUCK),
            Blow::Eio | Blow::Enospc | Blow::Erofs => {
                let hit = tracer.stop()?;
                if hit && !self.resumes(&serving)? {
                    let blow = point.blow.injection();
                    findings.push(format!("R-6: no call was taken for {RESUMES:?} after {blow}"));
                }
                hit
            }
        };
        self.after(serving, point.blow, hit, &path, id, &got, findings)
    }

    /// Restarts and compares.
    #[expect(clippy::too_many_arguments, reason = "all of what one strike left behind")]
    fn after(
        &self,
        serving: Serving,
        blow: Blow,
        hit: bool,
        path: &str,
        id: InvocationId,
        got: &Got,
        mut findings: Vec<String>,
    ) -> Result<Strike, Error> {
        serving.kill();
        let serving = self.home.serve(&[])?;
        let record = self.record(&serving, id)?;
        let outcome = self.compare(path, got, record.as_ref(), blow, &mut findings);
        // K-10: the same submission again never acts a second time, unless nothing was sent.
        let again = self.call(&serving, path, id)?;
        if self.count(path) > 1 {
            findings.push(format!("K-10: the same id was dispatched again: {}", again.shown));
        }
        drop(serving);
        self.home.run(&["journal", "verify"])?;
        Ok(Strike { hit, outcome, findings })
    }

    /// Whether calls are taken again, without a restart.
    fn resumes(&self, serving: &Serving) -> Result<bool, Error> {
        let until = std::time::Instant::now() + RESUMES;
        let mut tries = 0;
        while std::time::Instant::now() < until {
            tries += 1;
            let path = format!("/after/{}/{tries}", self.strikes);
            self.call(serving, &path, new_id(2_000_000 + self.strikes * 1000 + tries))?;
            if self.effects(&path) == 1 {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(false)
    }

    fn record(&self, serving: &Serving, id: InvocationId) -> Result<Option<Value>, Error> {
        let request = Request {
            method: "GET",
            tls: false,
            authority: "affiant.internal".to_owned(),
            path: format!("/v1/invocations/{id}"),
            fields: Vec::new(),
            content: None,
            early: None,
        };
        match self.ask(serving, &request) {
            Answer::Response(got) if got.status == 200 => {
                let record = serde_json::from_slice(&got.content);
                record.map(Some).map_err(|error| Error::Unexpected(format!("the record: {error}")))
            }
            Answer::Response(got) if got.status == 404 => Ok(None),
            other @ (Answer::Response(_) | Answer::Nothing(_)) => {
                Err(Error::Unexpected(format!("the record can't be read: {other:?}")))
            }
        }
    }

    /// What was told, what is on record and what was counted agree. Gives the outcome on record.
    fn compare(
        &self,
        path: &str,
        got: &Got,
        record: Option<&Value>,
        blow: Blow,
        findings: &mut Vec<String>,
    ) -> Option<Outcome> {
        let (count, effects) = (self.count(path), self.effects(path));
        if count > 1 {
            findings.push(format!("D-7: dispatched {count} times"));
        }
        let text = |pointer| record.and_then(|r| r.pointer(pointer)).and_then(Value::as_str);
        let outcome: Option<Outcome> = text("/error/outcome").and_then(|text| text.parse().ok());
        let fits = match outcome {
            None | Some(Outcome::NotAttempted) => count == 0,
            Some(Outcome::Committed | Outcome::Rejected) => effects == 1,
            Some(Outcome::Unknown) => true,
        };
        if !fits {
            findings
                .push(format!("J-7: {outcome:?} on record, {count} requests, {effects} effects"));
        }
        // M-3: what only the process knew permits nothing after it. Neither a POST nor a command is
        // known to be repeatable here.
        let permits = matches!(text("/error/retry"), Some("backoff" | "same_idempotency_key"));
        if outcome == Some(Outcome::Unknown) && permits {
            findings.push(format!("M-3: unknown, and on record {:?}", text("/error/retry")));
        }
        if record.is_some() && text("/state") != Some("settled") {
            findings.push(format!("J-2: after the restart it is {:?}", text("/state")));
        }
        if let Some(told) = got.told {
            let fits = match told {
                // What is on record may be less than what was true: after a failed sync nobody
                // knows which of the last events a restart will find.
                Outcome::NotAttempted => {
                    let weaker = matches!(outcome, None | Some(Outcome::NotAttempted))
                        || (blow != Blow::Kill && outcome == Some(Outcome::Unknown));
                    count == 0 && weaker
                }
                Outcome::Committed | Outcome::Rejected => outcome == Some(told),
                Outcome::Unknown => {
                    matches!(outcome, Some(Outcome::Unknown | Outcome::Committed))
                }
            };
            if !fits {
                findings.push(format!("J-7: told {told}, on record {outcome:?}, {count} requests"));
            }
        }
        outcome
    }
}

/// The outcome that a whole answer told at its end.
pub(crate) fn told(answer: &Answer) -> Option<Outcome> {
    let Answer::Response(got) = answer else { return None };
    let whole = |got: &Received| got.end == End::Whole;
    let field = got.trailer("affiant-outcome").or_else(|| {
        // A stream's head says `unknown` until its trailers say more.
        let streams = got.field("transfer-encoding").is_some() && got.field(MARK).is_some();
        got.field("affiant-outcome").filter(|_| !streams)
    });
    field.filter(|_| whole(got)).and_then(|field| fields::outcome(field).ok()).map(|s| s.outcome)
}

impl Far {
    fn origin(home: &Home, tls: bool, streamed: bool) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Unexpected(error.to_string());
        let mut trust = String::new();
        let mut config = None;
        if tls {
            let authority = Authority::new("struck origins").map_err(|e| failed(&e))?;
            let leaf = authority.leaf(&["127.0.0.1"]).map_err(|e| failed(&e))?;
            config = Some(leaf.server_config().map_err(|e| failed(&e))?);
            let file = home.path().join("origins.pem");
            std::fs::write(&file, authority.pem()).map_err(io("write the CA"))?;
            let file = file.display();
            trust = format!("[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{file}\"\n");
        }
        home.policy(&format!(
            "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n{trust}"
        ))?;
        let origin =
            Origin::start(vec![script(streamed)], config).map_err(io("start an origin"))?;
        Ok(Self::Origin { origin, tls })
    }

    /// Within a runtime.
    fn target(home: &Home, streamed: bool) -> Result<Self, Error> {
        use ssh::Step;
        let mut steps = vec![Step::Apply, Step::Accept, Step::Stdout("first, ".into())];
        if streamed {
            steps.push(Step::Settle);
        }
        steps.extend([
            Step::Stdout("last".into()),
            Step::Eof,
            Step::ExitStatus(0),
            Step::CloseChannel,
        ]);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("listen"))?;
        let target = Target::spawn(listener, ssh::Opening::Serve, steps);
        let target = target.map_err(io("start a target"))?;
        home.secret("struck", &ssh::user_key().map_err(io("make a key"))?)?;
        home.policy(&format!(
            "[[credential]]\nid = \"k\"\nsecret = \"struck\"\ninject = \"ssh-key\"\n\n\
             [[ssh]]\nname = \"struck\"\nmatch = {{ host = \"struck\", port = 22, \
             users = [\"u\"], commands = [\"*\"] }}\naddress = \"{}\"\n\
             host_keys = [\"{}\"]\ncredential = \"k\"\nallow = [\"exec\"]\n\
             private_addresses = \"allow\"\n",
            target.address(),
            target.host_key()
        ))?;
        Ok(Self::Target(target))
    }
}

fn script(streamed: bool) -> Script {
    let send = |text: String| Step::Send(text.into());
    let steps = if streamed {
        let kind = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked";
        let head = format!("HTTP/1.1 200 OK\r\n{MARK}: 1\r\n{kind}\r\n\r\nc\r\ndata: tick\n\n\r\n");
        let rest = "c\r\ndata: tock\n\n\r\n0\r\n\r\n".to_owned();
        vec![Step::ReadBody, Step::Apply, send(head), send(rest)]
    } else {
        let head = format!("HTTP/1.1 200 OK\r\n{MARK}: 1\r\nContent-Length: 2\r\n\r\nok");
        vec![Step::ReadBody, Step::Apply, send(head)]
    };
    Script::new("*", steps)
}

pub(crate) fn new_id(number: u32) -> InvocationId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = now.as_nanos() ^ (u128::from(number) << 64);
    InvocationId::from_parts(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), random)
}

/// strace on the threads of one name.
struct Tracer {
    child: Child,
    /// It tells of new threads, so somebody has to listen.
    _said: Option<Lines<BufReader<ChildStderr>>>,
    log: tempfile::NamedTempFile,
}

impl Tracer {
    fn attach(process: u32, journal: &Path, point: Point) -> Result<Self, Error> {
        let log = tempfile::NamedTempFile::new().map_err(io("make a file for strace"))?;
        let Point { calls, nth, .. } = point;
        let blow = point.blow.injection();
        let mut command = Command::new("strace");
        command.arg("-o").arg(log.path());
        command.args(["-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{blow}:when={nth}")]);
        let threads = match point.threads {
            Threads::Writer => threads(process, "journal-writer")?,
            Threads::Named(name) => threads(process, name)?,
            Threads::Segments => {
                command.arg("-f");
                for file in std::fs::read_dir(journal).map_err(io("list the segments"))? {
                    let path = file.map_err(io("list the segments"))?.path();
                    if path.extension().is_some_and(|extension| extension == "seg") {
                        command.arg("-P").arg(path);
                    }
                }
                vec![process.to_string()]
            }
        };
        if threads.is_empty() {
            return Err(Error::Unexpected(format!("no thread for {:?}", point.threads)));
        }
        for thread in &threads {
            command.args(["-p", thread]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(io("start strace"))?;
        let mut lines = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        for _ in &threads {
            match lines.as_mut().and_then(Iterator::next) {
                Some(Ok(line)) if line.contains("attached") => {}
                other => {
                    end(&mut child);
                    return Err(Error::Unexpected(format!("strace did not attach: {other:?}")));
                }
            }
        }
        Ok(Self { child, _said: lines, log })
    }

    /// Detaches; whether it injected anything.
    fn stop(mut self) -> Result<bool, Error> {
        let process = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(process) = process {
            let sent = rustix::process::kill_process(process, rustix::process::Signal::TERM);
            sent.map_err(|error| io("stop strace")(error.into()))?;
        }
        self.child.wait().map_err(io("wait for strace"))?;
        let log = std::fs::read_to_string(self.log.path()).map_err(io("read strace's file"))?;
        Ok(log.contains("(INJECTED)"))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The ids of a process's threads of that name.
fn threads(process: u32, name: &str) -> Result<Vec<String>, Error> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).map_err(io("list threads"))?;
    let mut found = Vec::new();
    for task in tasks {
        let path = task.map_err(io("list threads"))?.path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.trim() == name
            && let Some(id) = path.file_name()
        {
            found.push(id.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}
