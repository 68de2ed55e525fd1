//! The kill matrix (contract X-2): the real binary is struck at one system call of one of its
//! threads while it carries a call, started again, and compared with what the origin counted.
//!
//! `strace` strikes: it attaches to a thread that waits, counts its calls from there, and at the
//! n-th sends SIGKILL or gives back EIO. What the caller was told, what is on record after the
//! restart and what the origin saw must agree.

use crate::case::MARK;
use crate::fields;
use crate::http::{Answer, End, Origin, Received, Request, Script, Step};
use crate::subject::{Error, Home, Serving, end, io};
use journal::contract::{InvocationId, Outcome};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A caller's patience; a kill ends calls at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a disk error, calls are taken again within that time.
const RESUMES: Duration = Duration::from_secs(15);

/// What a system call ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The process is killed before the call.
    Kill,
    /// The call fails as a broken disk fails.
    Eio,
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

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scene {
    /// Whether both sides use TLS.
    pub tls: bool,
    /// Whether the response is streamed.
    pub streamed: bool,
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

/// A home, an origin and the scene between them.
pub struct Stage {
    home: Home,
    origin: Origin,
    scene: Scene,
    strikes: u32,
}

impl Stage {
    /// Sets the stage with the binary.
    ///
    /// # Errors
    /// [`Error`]
    pub fn new(
        binary: &Path,
        scene: Scene,
        identity: Option<(Arc<rustls::ServerConfig>, &str)>,
    ) -> Result<Self, Error> {
        let home = Home::new(binary)?;
        let (tls, trust) = match identity {
            None => (None, String::new()),
            Some((config, pem)) => {
                let file = home.path().join("origins.pem");
                std::fs::write(&file, pem).map_err(io("write the CA"))?;
                let file = file.display();
                let trust = format!("[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{file}\"\n");
                (Some(config), trust)
            }
        };
        home.policy(&format!(
            "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n{trust}"
        ))?;
        let origin = Origin::start(vec![script(scene)], tls).map_err(io("start an origin"))?;
        Ok(Self { home, origin, scene, strikes: 0 })
    }

    /// The home, for what a test does beside the strikes.
    #[must_use]
    pub const fn home(&self) -> &Home {
        &self.home
    }

    fn request(&self, path: &str, id: Option<InvocationId>) -> Request {
        let fields = id.map(|id| ("Affiant-Invocation".to_owned(), id.to_string()));
        Request {
            method: "POST",
            tls: self.scene.tls,
            authority: self.origin.address().to_string(),
            path: path.to_owned(),
            fields: fields.into_iter().collect(),
            content: Some(b"amount=1".to_vec()),
        }
    }

    fn call(&self, serving: &Serving, request: &Request) -> Result<Answer, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io("make a runtime"))?;
        let caller = self.home.caller(serving.http, PATIENCE);
        Ok(runtime.block_on(caller.call(request)))
    }

    fn count(&self, path: &str) -> usize {
        self.origin.seen().iter().filter(|seen| seen.target().ends_with(path)).count()
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
        self.call(&serving, &self.request(&format!("/warm/{}", self.strikes), None))?;
        let tracer = Tracer::attach(serving.id(), &self.home.path().join("journal"), point)?;
        let answer = self.call(&serving, &self.request(&path, Some(id)))?;
        let mut findings = Vec::new();
        let hit = match point.blow {
            Blow::Kill => serving.ended_within(Duration::from_millis(300)),
            Blow::Eio => {
                let hit = tracer.stop()?;
                if hit && !self.resumes(&serving)? {
                    findings.push(format!("R-6: no call was taken for {RESUMES:?} after EIO"));
                }
                hit
            }
        };
        serving.kill();
        let serving = self.home.serve(&[])?;
        let record = self.record(&serving, id)?;
        let outcome = self.compare(&path, &answer, record.as_ref(), point, &mut findings);
        // K-10: the same submission again never acts a second time, unless nothing was sent.
        let again = self.call(&serving, &self.request(&path, Some(id)))?;
        if self.count(&path) > 1 {
            findings.push(format!("K-10: the same id was dispatched again: {again:?}"));
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
            self.call(serving, &self.request(&path, None))?;
            if self.origin.effects(&path) == 1 {
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
        };
        match self.call(serving, &request)? {
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
        answer: &Answer,
        record: Option<&Value>,
        point: Point,
        findings: &mut Vec<String>,
    ) -> Option<Outcome> {
        let (count, effects) = (self.count(path), self.origin.effects(path));
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
        if record.is_some() && text("/state") != Some("settled") {
            findings.push(format!("J-2: after the restart it is {:?}", text("/state")));
        }
        if let Some(told) = told(answer) {
            let fits = match told {
                // What is on record may be less than what was true: after a failed sync nobody
                // knows which of the last events a restart will find.
                Outcome::NotAttempted => {
                    let weaker = matches!(outcome, None | Some(Outcome::NotAttempted))
                        || (point.blow == Blow::Eio && outcome == Some(Outcome::Unknown));
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

fn script(scene: Scene) -> Script {
    let send = |text: String| Step::Send(text.into());
    let steps = if scene.streamed {
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
        let blow = match point.blow {
            Blow::Kill => "signal=SIGKILL",
            Blow::Eio => "error=EIO",
        };
        let Point { calls, nth, .. } = point;
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
