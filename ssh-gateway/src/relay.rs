//! Between a command under way and its client: output is stored and passed on, input is fed, and
//! every fact about the end is kept for the verdict.
//!
//! Two tasks. The relay reads the target and may wait for a slow client: that stalls this command's
//! own connection only, which is the back-pressure that is wanted. The feeder writes stdin and may
//! wait for a slow target: the spool in between takes the client's bytes meanwhile.

use crate::Options;
use crate::downstream::{Downstream, End};
use crate::flag::raised;
use crate::redact::{Needles, Redactor};
use crate::spool::{Input, Spool};
use crate::upstream::Running;
use bytes::Bytes;
use journal::contract::{Digest, KeepResult, RequestSent, ResponseStarted};
use journal::{Call, Stream};
use policy::SshGrant;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelWriteHalf, Sig};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long the end of the streams waits for the end of the command. Until then, what went wrong
/// can still be explained on stderr; a command that closes its streams and runs on is not held up
/// longer.
const EOF_HOLD: Duration = Duration::from_secs(1);

/// How long a command may take to end after it was told to.
const KILL_TIME: Duration = Duration::from_secs(5);

/// How long a few bytes wait that could be the beginning of an echoed credential.
const ECHO_HOLD: Duration = Duration::from_millis(50);

/// Why the gateway stopped reading by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The output passed the route's bound.
    OutputLimit,
    /// The input passed the route's bound.
    InputLimit,
    /// The target took stdin too slowly, and the spool is full.
    InputStalled,
    /// The route's time for the command is over.
    Deadline,
    /// The client has gone, and with it what the session was for.
    ClientGone,
    /// The client has gone, and the time to read on for it is over.
    ReadOnOver,
}

/// Everything that was seen of one command.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The target's answer to the request.
    pub(crate) accepted: Option<bool>,
    /// Exit status or signal.
    pub(crate) end: Option<End>,
    /// The end of both streams.
    pub(crate) eof: bool,
    /// The orderly close of the channel.
    pub(crate) closed: bool,
    /// Output after the exit status.
    pub(crate) output_after_end: bool,
    /// What broke the protocol.
    pub(crate) violation: Option<&'static str>,
    /// Whether the last line of stdout met the route's mark of completion.
    pub(crate) completed: Option<bool>,
    /// Whether it was a forwarding, which ends by its close alone.
    pub(crate) is_forwarding: bool,
    /// Why the gateway stopped reading.
    pub(crate) stop: Option<Stop>,
    /// Content bytes, stdout and stderr together.
    pub(crate) length_bytes: u64,
    /// Whether an echoed credential was replaced.
    pub(crate) redacted: bool,
    pub(crate) hasher: Sha256,
}

impl Seen {
    /// Digest of the content in the order of arrival.
    pub(crate) fn digest(&self) -> Digest {
        Digest(self.hasher.clone().finalize().into())
    }
}

/// The note on a stdin that had not ended when the command did: length and digest.
pub(crate) const STDIN_SO_FAR: &str = "STDIN_SO_FAR";

/// The last line of a stream that is not empty, as far as a mark of completion can be long.
#[derive(Debug, Default)]
struct LastLine {
    line: Vec<u8>,
    is_over: bool,
}

/// Longer lines are no marks.
const MAX_MARK_BYTES: usize = 4096;

impl LastLine {
    fn push(&mut self, data: &[u8]) {
        for byte in data {
            if *byte == b'\n' {
                self.is_over = true;
                continue;
            }
            if std::mem::take(&mut self.is_over) {
                self.line.clear();
            }
            if self.line.len() <= MAX_MARK_BYTES {
                self.line.push(*byte);
            }
        }
    }

    fn get(&self) -> &[u8] {
        self.line.strip_suffix(b"\r").unwrap_or(&self.line)
    }
}

/// How far the feeder is.
#[derive(Default)]
struct Progress {
    hasher: Sha256,
    length_bytes: u64,
    ended: bool,
}

/// What the feeder tells.
enum Fed {
    /// The client ended stdin, and all of it was passed on.
    Complete(RequestSent),
    /// It stopped.
    Stopped(Stop),
}

/// One command's relay.
pub(crate) struct Relay<'a> {
    pub(crate) call: &'a mut Call,
    pub(crate) downstream: &'a mut Downstream,
    pub(crate) grant: &'a SshGrant,
    pub(crate) options: &'a Options,
    /// Whether a client that is gone ends it.
    pub(crate) interactive: bool,
    filters: [Redactor; 2],
    keeping: bool,
    kept_bytes: u64,
    deadline: Option<Instant>,
    read_on: Option<Instant>,
    eof_hold: Option<Instant>,
    echo_hold: Option<Instant>,
    last_line: LastLine,
    seen: Seen,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        call: &'a mut Call,
        downstream: &'a mut Downstream,
        grant: &'a SshGrant,
        options: &'a Options,
        interactive: bool,
        needles: &Needles,
    ) -> Self {
        let deadline = Instant::now().checked_add(grant.limits.response_timeout);
        Self {
            call,
            downstream,
            grant,
            options,
            interactive,
            filters: [Redactor::new(needles.clone()), Redactor::new(needles.clone())],
            keeping: grant.keep == KeepResult::Full,
            kept_bytes: 0,
            deadline: if interactive { None } else { deadline },
            read_on: None,
            eof_hold: None,
            echo_hold: None,
            last_line: LastLine::default(),
            seen: Seen::default(),
        }
    }

    /// Runs until the target closes the channel, its connection is gone, or a bound is met.
    pub(crate) async fn run(mut self, running: &mut Running, spool: Spool) -> Seen {
        let (told, mut fed) = mpsc::unbounded_channel();
        let mut overflow = spool.overflow();
        let progress = Arc::<Mutex<Progress>>::default();
        let feeder = tokio::spawn(feed(
            spool,
            Arc::clone(&running.write),
            running.lost(),
            self.grant.limits.request_bytes,
            told,
            Arc::clone(&progress),
        ));
        if running.is_forwarding {
            self.seen.is_forwarding = true;
            self.started();
            self.downstream.accept().await;
        }
        let mut left = false;
        while self.seen.stop.is_none() && !self.seen.closed {
            let holds = [self.deadline, self.read_on, self.eof_hold, self.echo_hold];
            let wake = holds.into_iter().flatten().min();
            tokio::select! {
                message = running.read.wait() => match message {
                    Some(message) => self.take(message).await,
                    None => break,
                },
                Some(news) = fed.recv() => self.heed(news),
                () = raised(&mut overflow) => self.seen.stop = Some(Stop::InputStalled),
                () = self.downstream.gone(), if !left => {
                    left = true;
                    if self.grant.kill_on_cancel {
                        drop(running.write.signal(Sig::TERM).await);
                    }
                    self.leave();
                }
                () = sleep_until(wake) => self.expire().await,
            }
        }
        feeder.abort();
        while let Ok(news) = fed.try_recv() {
            // What made the feeder stop is no news any more; a whole input still is.
            if matches!(news, Fed::Complete(_)) {
                self.heed(news);
            }
        }
        self.note_stdin(&progress);
        self.flush().await;
        self.seen.completed = self.grant.is_completed_by(self.last_line.get());
        self.seen.redacted = self.filters.iter().any(Redactor::found);
        self.seen
    }

    /// Keeps what the target had of a stdin that did not end, for a comparison with a repeat.
    fn note_stdin(&mut self, progress: &Mutex<Progress>) {
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        if !progress.ended {
            let Progress { length_bytes, hasher, .. } = &*progress;
            let digest = Digest(hasher.clone().finalize().into());
            self.call.note(STDIN_SO_FAR, &format!("{length_bytes} {digest}"));
        }
    }

    /// One message of the target.
    async fn take(&mut self, message: ChannelMsg) {
        if let ChannelMsg::Data { data } = message {
            self.output(None, data).await;
        } else if let ChannelMsg::ExtendedData { data, ext } = message {
            self.output(Some(ext), data).await;
        } else if let ChannelMsg::Eof = message {
            self.seen.eof = true;
            let hold = if self.seen.is_forwarding { Duration::ZERO } else { EOF_HOLD };
            self.eof_hold = Instant::now().checked_add(hold);
        } else if let ChannelMsg::ExitStatus { exit_status } = message {
            self.ended(End::Status(exit_status));
        } else if let ChannelMsg::ExitSignal { signal_name, core_dumped, error_message, lang_tag } =
            message
        {
            self.ended(End::Signal {
                signal: signal_name,
                core_dumped,
                message: error_message,
                language: lang_tag,
            });
        } else if let ChannelMsg::Success = message {
            self.started();
        } else if let ChannelMsg::Failure = message {
            if self.seen.accepted.is_none() {
                self.seen.accepted = Some(false);
            }
        } else if let ChannelMsg::Close = message {
            self.seen.closed = true;
        }
    }

    /// The target accepted the request: by its answer, or by what only a started command sends.
    fn started(&mut self) {
        match self.seen.accepted {
            None => {
                self.seen.accepted = Some(true);
                let started = ResponseStarted { status: None, remote_request_id: None };
                if let Err(error) = self.call.response_started(started) {
                    tracing::warn!(%error, "REMOTE_RESPONSE_STARTED is not on record");
                }
            }
            Some(true) => {}
            Some(false) => self.seen.violation = Some("output of a request that was refused"),
        }
    }

    fn ended(&mut self, end: End) {
        self.started();
        if self.seen.end.is_some() {
            self.seen.violation = Some("a second exit status or signal");
        } else {
            self.seen.end = Some(end);
        }
    }

    async fn output(&mut self, extended: Option<u32>, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.started();
        if self.seen.eof {
            self.seen.violation = Some("output after the end of the streams");
            return;
        }
        self.seen.output_after_end |= self.seen.end.is_some();
        let received_bytes = self.seen.length_bytes.saturating_add(data.len() as u64);
        if self.grant.output_bytes.is_some_and(|limit_bytes| received_bytes > limit_bytes) {
            self.seen.stop = Some(Stop::OutputLimit);
            return;
        }
        let [stdout, stderr] = &mut self.filters;
        let clean = if extended.is_none() { stdout.push(data) } else { stderr.push(data) };
        let is_waiting = self.filters.iter().any(Redactor::is_waiting);
        self.echo_hold = if is_waiting { Instant::now().checked_add(ECHO_HOLD) } else { None };
        self.pass(extended, clean).await;
    }

    /// Stores and delivers bytes that are clear.
    async fn pass(&mut self, extended: Option<u32>, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.seen.hasher.update(&data);
        self.seen.length_bytes = self.seen.length_bytes.saturating_add(data.len() as u64);
        if extended.is_none() && self.grant.completion.is_some() {
            self.last_line.push(&data);
        }
        let stream = if extended.is_none() { Stream::Stdout } else { Stream::Stderr };
        self.keep(stream, &data).await;
        self.downstream.send(extended, data).await;
    }

    async fn keep(&mut self, stream: Stream, data: &[u8]) {
        if !self.keeping {
            return;
        }
        self.kept_bytes = self.kept_bytes.saturating_add(data.len() as u64);
        if self.kept_bytes > self.grant.keep_bytes {
            self.keeping = false;
            self.call.discard_result();
            self.call.note("RESULT_NOT_KEPT", "the output is longer than the route keeps");
        } else if let Err(error) = self.call.store(stream, data).await {
            self.keeping = false;
            self.call.discard_result();
            self.call.note("RESULT_NOT_KEPT", &error.to_string());
            tracing::error!(id = %self.call.id(), %error, "a result can't be stored");
        }
    }

    /// What the filters held back is clear at the end.
    async fn flush(&mut self) {
        let [stdout, stderr] = &mut self.filters;
        let (out, err) = (stdout.finish(), stderr.finish());
        self.pass(None, out).await;
        self.pass(Some(1), err).await;
    }

    fn heed(&mut self, news: Fed) {
        match news {
            Fed::Complete(sent) => {
                if let Err(error) = self.call.request_sent(sent) {
                    tracing::warn!(%error, "REQUEST_SENT is not on record");
                }
            }
            Fed::Stopped(stop) => self.seen.stop = Some(stop),
        }
    }

    /// The client has gone: read on for the record, or end what was for it alone (contract D-4).
    fn leave(&mut self) {
        self.call.note("CALLER_GONE", "the client left before the end of the command");
        if self.grant.kill_on_cancel {
            // It was told to end: what it says to that is the result.
            self.read_on = Instant::now().checked_add(KILL_TIME);
        } else if self.interactive {
            self.seen.stop = Some(Stop::ClientGone);
        } else {
            self.read_on = Instant::now().checked_add(self.options.read_on);
        }
    }

    async fn expire(&mut self) {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.echo_hold) {
            self.echo_hold = None;
            let [stdout, stderr] = &mut self.filters;
            let (out, err) = (stdout.release(), stderr.release());
            self.pass(None, out).await;
            self.pass(Some(1), err).await;
        }
        if is_over(self.eof_hold) {
            self.eof_hold = None;
            self.flush().await;
            self.downstream.eof().await;
        }
        if is_over(self.read_on) {
            self.seen.stop = Some(Stop::ReadOnOver);
        } else if is_over(self.deadline) {
            self.seen.stop = Some(Stop::Deadline);
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Passes the client's input on, in order. Ends with the target, or with the client: then stdin
/// ends, too.
async fn feed(
    mut spool: Spool,
    write: Arc<ChannelWriteHalf<Msg>>,
    mut lost: watch::Receiver<bool>,
    limit_bytes: u64,
    told: mpsc::UnboundedSender<Fed>,
    progress: Arc<Mutex<Progress>>,
) {
    while let Some(input) = spool.next().await {
        let passed = match input {
            Input::Data(data) => {
                if count(&progress, &data) > limit_bytes {
                    drop(told.send(Fed::Stopped(Stop::InputLimit)));
                    return;
                }
                // A writer that waits for window is not woken when its connection dies.
                tokio::select! {
                    passed = write.data_bytes(data) => passed,
                    () = raised(&mut lost) => return,
                }
            }
            Input::Eof => {
                drop(told.send(Fed::Complete(end(&progress))));
                write.eof().await
            }
            Input::WindowChange([columns, rows, width, height]) => {
                write.window_change(columns, rows, width, height).await
            }
            Input::Signal(signal) => write.signal(signal).await,
        };
        if passed.is_err() {
            return;
        }
    }
    if !progress.lock().unwrap_or_else(PoisonError::into_inner).ended {
        drop(write.eof().await);
    }
}

/// Counts bytes of stdin; answers how many there are.
fn count(progress: &Mutex<Progress>, data: &[u8]) -> u64 {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    progress.hasher.update(data);
    progress.length_bytes = progress.length_bytes.saturating_add(data.len() as u64);
    progress.length_bytes
}

/// Marks the end of stdin.
fn end(progress: &Mutex<Progress>) -> RequestSent {
    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
    progress.ended = true;
    let digest = Digest(progress.hasher.clone().finalize().into());
    RequestSent { length_bytes: progress.length_bytes, digest }
}
