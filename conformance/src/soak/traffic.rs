//! The traffic of a soak: callers of every kind, and origins that fail in every way.

use super::Soak;
use crate::case::MARK;
use crate::http::{Answer, Caller, Request, Script, Step};
use crate::kill::{new_id, told};
use crate::numbers::Numbers;
use crate::ssh::{self, Target};
use crate::subject::{Error, Serving};
use journal::contract::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Callers of HTTP at the same time.
const CALLERS: u32 = 8;
/// One in so many callers goes away before its answer.
const LEAVERS: usize = 24;

/// One call as its caller saw it.
pub(super) struct Made {
    pub(super) id: String,
    pub(super) path: String,
    pub(super) told: Option<Outcome>,
}

/// The kinds of calls: the first segment of the path, and what the origin does.
pub(super) fn scripts() -> Vec<Script> {
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

impl Soak {
    /// Starts callers that go on until they are stopped.
    pub(super) fn callers(
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
            let numbers = Numbers::new(self.seed ^ start.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let stopped = stopped.clone();
            let calls = calls(caller, origins, next, self.pace(), numbers, stopped);
            callers.spawn_on(calls, self.runtime.handle());
        }
        let gateway = self.home.gateway(serving)?;
        let commands = commands(gateway, Arc::clone(&self.next), self.pace(), stopped);
        callers.spawn_on(commands, self.runtime.handle());
        Ok((stop, callers))
    }

    /// How long a caller takes for a call at least.
    fn pace(&self) -> Duration {
        self.per_second
            .map_or(Duration::ZERO, |calls| Duration::from_secs_f64(f64::from(CALLERS + 1) / calls))
    }
}

/// Calls until it is stopped.
async fn calls(
    caller: Caller,
    [clear, secure]: [String; 2],
    next: Arc<AtomicU32>,
    pace: Duration,
    mut numbers: Numbers,
    stopped: watch::Receiver<bool>,
) -> Vec<Made> {
    let mut made = Vec::new();
    while !*stopped.borrow() {
        let due = Instant::now() + pace;
        let number = next.fetch_add(1, Ordering::Relaxed);
        let tls = numbers.below(3) == 0;
        let method = numbers.pick(&METHODS).unwrap_or("GET");
        let path = format!("/{}/{number}", numbers.pick(&KINDS).unwrap_or("ok"));
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
        let answer = async {
            if http2 { caller.call_h2(&request).await } else { caller.call(&request).await }
        };
        let stays = if numbers.below(LEAVERS) == 0 {
            Duration::from_millis(numbers.below(30) as u64)
        } else {
            Duration::MAX
        };
        let answer = tokio::time::timeout(stays, answer).await;
        made.push(Made { id, path, told: answer.as_ref().ok().and_then(told) });
        if matches!(answer, Ok(Answer::Nothing(_))) {
            // The server may be gone; the round is about to end.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep_until(due).await;
    }
    made
}

/// Runs commands until it is stopped.
async fn commands(
    gateway: ssh::Gateway,
    next: Arc<AtomicU32>,
    pace: Duration,
    stopped: watch::Receiver<bool>,
) -> Vec<Made> {
    let mut made = Vec::new();
    while !*stopped.borrow() {
        let due = Instant::now() + pace;
        let number = next.fetch_add(1, Ordering::Relaxed);
        let (path, id) = (format!("/command/{number}"), new_id(number));
        let patience = Duration::from_secs(20);
        let ran = ssh::run(&gateway, "soaked", ssh::Asked::Exec, &path, id, patience).await;
        let told = ran.ok().and_then(|ran| ran.told(b"ok"));
        made.push(Made { id: id.to_string(), path, told });
        tokio::time::sleep_until(due).await;
    }
    made
}

pub(super) fn target() -> std::io::Result<Target> {
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

pub(super) async fn gathered(mut callers: JoinSet<Vec<Made>>) -> Result<Vec<Made>, Error> {
    let mut all = Vec::new();
    while let Some(made) = callers.join_next().await {
        all.extend(made.map_err(|error| Error::Unexpected(format!("a caller: {error}")))?);
    }
    Ok(all)
}
