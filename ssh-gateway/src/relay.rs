//! Between a command under way and its client: output is stored and passed on, input is fed, and
//! every fact about the end is kept for the verdict.
//!
//! Two tasks. The relay reads the target and may wait for a slow client: that stalls this command's
//! own connection only, which is the back-pressure that is wanted. The feeder writes stdin and may
//! wait for a slow target: the spool in between takes the client's bytes meanwhile.

mod feed;
mod mark;

use crate::Options;
use crate::downstream::{Absence, Downstream, End, signal_name};
use crate::flag::{raised, said};
use crate::jump::LOGIN_OVER;
use crate::keep::Keeper;
use crate::redact::{Needles, Redactor};
use crate::request::Lifetime;
use crate::seen::{Seen, Stop};
use crate::spool::Spool;
use crate::upstream::Running;
use bytes::Bytes;
use feed::{Fed, Feeder, Progress};
use journal::contract::{ResponseStarted, SignalName};
use journal::{Call, Stream};
use mark::LastLine;
use policy::SshGrant;
use russh::{ChannelMsg, Sig};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long the end of the streams waits for the end of the command. Until then, what went wrong
/// can still be explained on stderr; a command that closes its streams and runs on is not held up
/// longer.
const EOF_HOLD: Duration = Duration::from_secs(1);

/// How long a request that was refused is listened to: what follows may contradict the refusal.
const REFUSAL_HOLD: Duration = Duration::from_millis(500);

/// How long a command may take to end after it was told to.
const KILL_TIME: Duration = Duration::from_secs(5);

/// How long a few bytes wait that could be the beginning of an echoed credential.
const ECHO_HOLD: Duration = Duration::from_millis(50);

/// The note on a stdin that had not ended when the command did: length and digest.
pub(crate) const STDIN_SO_FAR: &str = "STDIN_SO_FAR";

/// One command's relay.
pub(crate) struct Relay<'a> {
    pub(crate) call: &'a mut Call,
    pub(crate) downstream: &'a mut Downstream,
    pub(crate) grant: &'a SshGrant,
    pub(crate) options: &'a Options,
    pub(crate) lifetime: Lifetime,
    keeper: Keeper,
    needles: Needles,
    filters: [Redactor; 2],
    deadline: Option<Instant>,
    read_on: Option<Instant>,
    /// Output that is still read for a client that has gone.
    read_on_bytes: Option<u64>,
    eof_hold: Option<Instant>,
    /// When a refusal counts as the end: a target may leave the channel to be closed by its client.
    refused: Option<Instant>,
    is_over: bool,
    echo_hold: Option<Instant>,
    last_line: LastLine,
    /// Says why, when more input came than may wait.
    overflow: watch::Receiver<Option<Stop>>,
    /// Turns true when the gateway ends.
    cutting: watch::Receiver<bool>,
    /// Whether output waits for the client: then it is not the target that takes no input.
    client_waits: Arc<AtomicBool>,
    /// Whether the client has ended its input.
    has_whole_input: bool,
    seen: Seen,
}

impl<'a> Relay<'a> {
    pub(crate) fn new(
        call: &'a mut Call,
        downstream: &'a mut Downstream,
        grant: &'a SshGrant,
        options: &'a Options,
        lifetime: Lifetime,
        (keeper, needles): (Keeper, &Needles),
        (overflow, cutting): (watch::Receiver<Option<Stop>>, watch::Receiver<bool>),
    ) -> Self {
        let filter = || {
            // Lengths stand in the stream of a subsystem, and the other side waits for all of it.
            if keeper.watch().is_some() {
                Redactor::framed(needles.clone())
            } else {
                Redactor::new(needles.clone())
            }
        };
        let filters = [filter(), filter()];
        let deadline = Instant::now().checked_add(grant.limits.response_timeout);
        Self {
            call,
            downstream,
            grant,
            options,
            lifetime,
            keeper,
            needles: needles.clone(),
            filters,
            deadline: deadline.filter(|_| lifetime == Lifetime::Command),
            read_on: None,
            read_on_bytes: None,
            eof_hold: None,
            refused: None,
            is_over: false,
            echo_hold: None,
            last_line: LastLine::default(),
            overflow,
            cutting,
            client_waits: Arc::default(),
            has_whole_input: false,
            seen: Seen::default(),
        }
    }

    /// Runs until the target closes the channel, its connection is gone, or a bound is met.
    pub(crate) async fn run(mut self, running: &mut Running, spool: Spool) -> Seen {
        let (told, mut fed) = mpsc::unbounded_channel();
        let (size, mut resized) = watch::channel([0; 2]);
        let progress = Arc::<Mutex<Progress>>::default();
        let feeder = Feeder {
            write: Arc::clone(&running.write),
            lost: running.lost(),
            limit_bytes: self.grant.limits.request_bytes,
            patience: self.grant.limits.idle_timeout,
            client_waits: Arc::clone(&self.client_waits),
            told,
            size,
            progress: Arc::clone(&progress),
            watch: self.keeper.watch(),
        };
        let feeder = tokio::spawn(feeder.run(spool));
        if running.is_forwarding {
            self.seen.is_forwarding = true;
            self.started();
            self.downstream.accept().await;
        }
        let mut left = false;
        while self.seen.stop.is_none() && !self.seen.closed && !self.is_over {
            let holds = [self.deadline, self.read_on, self.eof_hold, self.echo_hold, self.refused];
            let wake = holds.into_iter().flatten().min();
            tokio::select! {
                message = running.read.wait() => match message {
                    Some(message) => self.take(message).await,
                    None => {
                        self.cut_off(running.violation());
                        break;
                    }
                },
                Some(news) = fed.recv() => self.heed(news).await,
                Ok(()) = resized.changed() => {
                    let size = *resized.borrow_and_update();
                    self.keeper.resized(self.call, size).await;
                }
                stop = said(&mut self.overflow) => self.seen.stop = Some(stop),
                () = raised(&mut self.cutting) => self.seen.stop = Some(Stop::GatewayEnds),
                () = self.downstream.gone(), if !left => {
                    left = true;
                    if self.grant.kill_on_cancel {
                        drop(running.write.signal(Sig::TERM).await);
                    }
                    self.leave().await;
                }
                () = sleep_until(wake) => self.expire().await,
            }
        }
        feeder.abort();
        while let Ok(news) = fed.try_recv() {
            // What made the feeder stop is no news any more; a whole input still is.
            if matches!(news, Fed::Complete(_)) {
                self.heed(news).await;
            }
        }
        self.note_stdin(&progress);
        self.flush().await;
        self.keeper.finish(self.call, self.seen.end.as_ref()).await;
        self.seen.completed = self.grant.is_completed_by(self.last_line.line());
        self.seen.is_refusal = match &self.seen.end {
            Some(End::Status(status)) => self.grant.refused_status == Some(*status),
            Some(End::Signal { .. } | End::Closed) | None => false,
        };
        self.seen.redacted |= self.filters.iter().any(Redactor::found);
        self.seen
    }

    /// The connection is gone. What followed a refusal takes nothing from it.
    fn cut_off(&mut self, violation: Option<&'static str>) {
        if self.seen.accepted != Some(false) {
            self.seen.violation = self.seen.violation.or(violation);
        }
    }

    /// Keeps what the target had of a stdin that did not end, for a comparison with a repeat.
    fn note_stdin(&mut self, progress: &Mutex<Progress>) {
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        if !progress.ended {
            let (length_bytes, digest) = (progress.sum.length_bytes(), progress.sum.digest());
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
        } else if let ChannelMsg::ExitSignal {
            signal_name: said,
            core_dumped,
            error_message,
            lang_tag,
        } = message
        {
            let name = self.clean(signal_name(&said));
            let (message, language) = (self.clean(&error_message), self.clean(&lang_tag));
            let signal = SignalName::of(&name);
            self.ended(End::Signal { signal, core_dumped, message, language });
        } else if let ChannelMsg::Success = message {
            self.started();
        } else if let ChannelMsg::Failure = message {
            if self.seen.accepted.is_none() {
                self.seen.accepted = Some(false);
                self.refused = Instant::now().checked_add(REFUSAL_HOLD);
            }
        } else if let ChannelMsg::Close = message {
            self.seen.closed = true;
        }
    }

    /// A word of the target's that goes on record or to the client, without the credential in it
    /// (contract I-2, I-4).
    fn clean(&mut self, word: &str) -> String {
        let (clean, found) = self.needles.clean(word);
        self.seen.redacted |= found;
        clean
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
        let length_bytes = data.len() as u64;
        let received_bytes = self.seen.tally.whole().length_bytes().saturating_add(length_bytes);
        if self.grant.output_bytes.is_some_and(|limit_bytes| received_bytes > limit_bytes) {
            self.seen.stop = Some(Stop::OutputLimit);
            return;
        }
        if let Some(left_bytes) = &mut self.read_on_bytes {
            *left_bytes = left_bytes.saturating_sub(length_bytes);
            if *left_bytes == 0 {
                self.seen.stop = Some(Stop::ReadOnOver);
                return;
            }
        }
        if extended.is_none() {
            self.keeper.replies(self.call, &data).await;
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
        let stream = if extended.is_none() { Stream::Stdout } else { Stream::Stderr };
        if extended.is_none() && self.grant.completion.is_some() {
            self.last_line.push(&data);
        }
        self.keeper.output(self.call, stream, &data).await;
        // Summed while the client's session encrypts it.
        let sent = data.clone();
        self.send(extended, data).await;
        self.seen.tally.push(stream, &sent);
    }

    /// Sends output, for as long as nothing stops the command.
    async fn send(&mut self, extended: Option<u32>, data: Bytes) {
        if self.seen.stop.is_some() {
            return self.downstream.send(extended, data).await;
        }
        let (deadline, overflow, cutting) = (self.deadline, &mut self.overflow, &mut self.cutting);
        let stop = async {
            tokio::select! {
                () = sleep_until(deadline) => Stop::Deadline,
                stop = said(overflow) => stop,
                () = raised(cutting) => Stop::GatewayEnds,
            }
        };
        self.client_waits.store(true, Ordering::Release);
        self.seen.stop = self.downstream.send_unless(extended, data, stop).await;
        self.client_waits.store(false, Ordering::Release);
    }

    /// What the filters held back is clear at the end.
    async fn flush(&mut self) {
        let [stdout, stderr] = &mut self.filters;
        let (out, err) = (stdout.finish(), stderr.finish());
        self.pass(None, out).await;
        self.pass(Some(1), err).await;
    }

    async fn heed(&mut self, news: Fed) {
        match news {
            Fed::Complete(sent) => {
                self.has_whole_input = true;
                if let Err(error) = self.call.request_sent(sent) {
                    tracing::warn!(%error, "REQUEST_SENT is not on record");
                }
            }
            Fed::Abandoned => {
                // What ends with its login is ended, and noted, by `leave`.
                let absence = self.downstream.absence();
                let ends = absence != Absence::LoginOver && !self.grant.kill_on_cancel;
                if self.lifetime == Lifetime::Session && ends {
                    self.seen.stop = Some(Stop::ClientGone(absence));
                }
            }
            Fed::Stopped(stop) => self.seen.stop = Some(stop),
        }
    }

    /// The client has gone: read on for the record, or end what was for it alone (contract D-4).
    ///
    /// A login that is over ends every session and forwarding. A command is read to its end all the
    /// same: what it did is worth knowing.
    async fn leave(&mut self) {
        let why = self.downstream.absence();
        match why {
            Absence::Left => {
                self.call.note("CALLER_GONE", "the client left before the end of the command");
            }
            Absence::Stalled => {
                self.call.note("CALLER_STALLED", "the client took no output for too long");
            }
            Absence::LoginOver => {
                self.call.note("LOGIN_OVER", LOGIN_OVER);
                if self.lifetime == Lifetime::Command {
                    self.downstream.turn_out(&format!("affiant: {LOGIN_OVER}\n")).await;
                }
            }
        }
        let ends = match (self.lifetime, why) {
            (Lifetime::Command, _) => false,
            (Lifetime::Session | Lifetime::Attached, Absence::LoginOver) => true,
            (Lifetime::Session | Lifetime::Attached, _) if self.grant.kill_on_cancel => false,
            // A client that only counts as gone ends no input any more.
            (Lifetime::Session, Absence::Stalled) | (Lifetime::Attached, _) => true,
            (Lifetime::Session, Absence::Left) => false,
        };
        if ends {
            self.seen.stop = Some(Stop::ClientGone(why));
        }
        self.read_on_bytes = Some(self.options.read_on_bytes);
        // One that was told to end: what it says to that is the result.
        let patience = if self.grant.kill_on_cancel { KILL_TIME } else { self.options.read_on };
        self.read_on = Instant::now().checked_add(patience);
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
            // A client whose input has ended would close the channel, and get no status any more.
            if self.seen.is_forwarding || !self.has_whole_input {
                self.downstream.eof().await;
            }
        }
        self.is_over = is_over(self.refused);
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
