//! The kill matrix (contract X-2): the real binary is struck while it carries a call, started again,
//! and compared with what the origin counted.
//!
//! Three ways to strike. `strace` attaches to a thread that waits, counts its system calls from there,
//! and at the n-th sends SIGKILL or gives back an error. A test build ends itself at a named place
//! of an event's course (`AFFIANT_FAILPOINT`). Any build is killed at any moment of a call. What the caller was told, what is on record after the
//! restart and what the origin saw must agree.

mod compare;
mod far;
mod tracer;
pub mod under_way;

pub(crate) use compare::told;
pub use tracer::{Blow, Point, Threads};

use crate::http::{Answer, Request};
use crate::ssh;
use crate::subject::{Error, Home, Serving, io};
use far::Far;
use journal::contract::{InvocationId, Outcome};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracer::Tracer;

/// A caller's patience; a kill ends calls at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// A process that was struck is gone within that time.
const STRUCK: Duration = Duration::from_millis(300);
/// After a disk error, calls are taken again within that time.
const RESUMES: Duration = Duration::from_secs(15);

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

/// The call that is struck.
struct Struck {
    path: String,
    id: InvocationId,
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

    /// The gateway of a scene over SSH. It asks the server for its settings, so it is made before a
    /// blow may fall.
    fn gateway(&self, serving: &Serving) -> Result<Option<ssh::Gateway>, Error> {
        match &self.far {
            Far::Origin { .. } => Ok(None),
            Far::Target(_) => self.home.gateway(serving).map(Some),
        }
    }

    /// One call under an id.
    fn call(&self, serving: &Serving, path: &str, id: InvocationId) -> Result<Got, Error> {
        self.call_by(serving, self.gateway(serving)?.as_ref(), path, id)
    }

    fn call_by(
        &self,
        serving: &Serving,
        gateway: Option<&ssh::Gateway>,
        path: &str,
        id: InvocationId,
    ) -> Result<Got, Error> {
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
            Far::Target(_) => {
                let missing = || Error::Unexpected("no gateway for a command".to_owned());
                self.command(gateway.ok_or_else(missing)?, path, id)
            }
        }
    }

    fn ask(&self, serving: &Serving, request: &Request) -> Answer {
        self.runtime.block_on(self.home.caller(serving.http, PATIENCE).call(request))
    }

    fn command(
        &self,
        gateway: &ssh::Gateway,
        command: &str,
        id: InvocationId,
    ) -> Result<Got, Error> {
        let ran = ssh::run(gateway, "struck", ssh::Asked::Exec, command, id, PATIENCE);
        let ran = self.runtime.block_on(ran).map_err(io("run ssh"))?;
        Ok(Got { told: ran.told(b"first, last"), shown: format!("{ran:?}") })
    }

    /// One call of a test build that ends itself where an event reaches a stage; then a restart and
    /// the comparison.
    ///
    /// # Errors
    /// [`Error`] when the broker can't be started.
    pub fn fail_at(&mut self, stage: &str, event: &str) -> Result<Strike, Error> {
        let struck = self.next();
        let place = format!("AFFIANT_FAILPOINT={stage}:{event}:{}", struck.id);
        let mut serving = self.home.serve(&["env", &place])?;
        let got = self.call(&serving, &struck.path, struck.id)?;
        let hit = serving.ended_within(STRUCK);
        let (outcome, findings) = self.after(serving, Blow::Kill, &struck, &got)?;
        Ok(Strike { hit, outcome, findings })
    }

    /// One call of any build, killed when it has gone on for a part of the time that a call takes;
    /// then a restart and the comparison.
    ///
    /// # Errors
    /// [`Error`] when the broker can't be started.
    pub fn kill_at(&mut self, part: f64) -> Result<Strike, Error> {
        let struck = self.next();
        let serving = self.home.serve(&[])?;
        let gateway = self.gateway(&serving)?;
        let gateway = gateway.as_ref();
        let begin = Instant::now();
        self.warm_up(&serving, gateway)?;
        let moment = begin.elapsed().mul_f64(part);
        let stage = &*self;
        let got = std::thread::scope(|scope| {
            let call = scope.spawn(|| stage.call_by(&serving, gateway, &struck.path, struck.id));
            std::thread::sleep(moment);
            let hit = !call.is_finished();
            serving.strike()?;
            let panicked = |_| Error::Unexpected("the caller's thread ended".to_owned());
            Ok::<_, Error>((hit, call.join().map_err(panicked)??))
        });
        let (hit, got) = got?;
        let (outcome, findings) = self.after(serving, Blow::Kill, &struck, &got)?;
        Ok(Strike { hit, outcome, findings })
    }

    /// The next call to be struck.
    fn next(&mut self) -> Struck {
        self.strikes += 1;
        Struck { path: format!("/struck/{}", self.strikes), id: new_id(self.strikes) }
    }

    /// A call before the one that is struck.
    fn warm_up(&self, serving: &Serving, gateway: Option<&ssh::Gateway>) -> Result<(), Error> {
        let path = format!("/warm/{}", self.strikes);
        self.call_by(serving, gateway, &path, new_id(1_000_000 + self.strikes)).map(drop)
    }

    /// One call, struck at the point; then a restart and the comparison.
    ///
    /// # Errors
    /// [`Error`] when the broker or strace can't be started.
    pub fn strike(&mut self, point: Point) -> Result<Strike, Error> {
        let struck = self.next();
        let by: &[&str] = match point.threads {
            Threads::Writer => &["env", "TOKIO_WORKER_THREADS=1"],
            Threads::Named(_) | Threads::Segments => &[],
        };
        let mut serving = self.home.serve(by)?;
        let gateway = self.gateway(&serving)?;
        let gateway = gateway.as_ref();
        self.warm_up(&serving, gateway)?;
        let tracer = Tracer::attach(serving.id(), &self.home.path().join("journal"), point)?;
        let got = self.call_by(&serving, gateway, &struck.path, struck.id)?;
        let mut stopped = None;
        let hit = match point.blow {
            Blow::Kill => serving.ended_within(STRUCK),
            Blow::Eio | Blow::Enospc | Blow::Erofs => {
                let hit = tracer.stop()?;
                if hit && !self.resumes(&serving)? {
                    let blow = point.blow.injection();
                    stopped = Some(format!("R-6: no call was taken for {RESUMES:?} after {blow}"));
                }
                hit
            }
        };
        let (outcome, mut findings) = self.after(serving, point.blow, &struck, &got)?;
        findings.extend(stopped);
        Ok(Strike { hit, outcome, findings })
    }

    /// Restarts and compares; the outcome on record, and what does not agree.
    fn after(
        &self,
        serving: Serving,
        blow: Blow,
        struck: &Struck,
        got: &Got,
    ) -> Result<(Option<Outcome>, Vec<String>), Error> {
        let Struck { path, id } = struck;
        let mut findings = Vec::new();
        serving.kill();
        let serving = self.home.serve(&[])?;
        let record = self.record(&serving, *id)?;
        let outcome = self.compare(path, got, record.as_ref(), blow, &mut findings);
        // K-10: the same submission again never acts a second time, unless nothing was sent.
        let again = self.call(&serving, path, *id)?;
        if self.far.count(path) > 1 {
            findings.push(format!("K-10: the same id was dispatched again: {}", again.shown));
        }
        drop(serving);
        self.home.run(&["journal", "verify"])?;
        Ok((outcome, findings))
    }

    /// Whether calls are taken again, without a restart.
    fn resumes(&self, serving: &Serving) -> Result<bool, Error> {
        let until = Instant::now() + RESUMES;
        let mut tries = 0;
        while Instant::now() < until {
            tries += 1;
            let path = format!("/after/{}/{tries}", self.strikes);
            self.call(serving, &path, new_id(2_000_000 + self.strikes * 1000 + tries))?;
            if self.far.effects(&path) == 1 {
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
}

/// A fresh id of an invocation.
pub(crate) fn new_id(number: u32) -> InvocationId {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = now.as_nanos() ^ (u128::from(number) << 64);
    InvocationId::from_parts(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), random)
}
