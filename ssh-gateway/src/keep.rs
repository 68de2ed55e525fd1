//! What is kept of a session, and in which form: the output of a command as it is, a recording of a
//! shell, the list of operations of an sftp session. Everything goes to the encrypted result store;
//! of an sftp session the first operations also stand in the journal itself.

use crate::cast::{About, Cast};
use crate::downstream::End;
use crate::redact::Needles;
use crate::request::{Destination, Preparation, Request};
use crate::sftp::Sftp;
use journal::contract::KeepResult;
use journal::{Call, Stream};
use policy::SshGrant;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The note on one operation of an sftp session.
const SFTP: &str = "SFTP";
/// The note on all of them.
const SFTP_TOTALS: &str = "SFTP_TOTALS";
/// The note on the recording of a shell.
const RECORDING: &str = "RECORDING";
/// Operations of one session in the journal itself; the rest is counted there.
const MAX_NOTES: u64 = 200;

/// The observer of an sftp session: the feeder shows it requests, the relay replies.
pub(crate) type Watch = Arc<Mutex<Sftp>>;

pub(crate) fn watching(watch: &Watch) -> MutexGuard<'_, Sftp> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Form {
    Output,
    Recording { cast: Cast, began: Instant },
    Operations(Watch),
}

/// Keeps one session.
pub(crate) struct Keeper {
    form: Form,
    needles: Needles,
    is_keeping: bool,
    kept_bytes: u64,
    limit_bytes: u64,
    noted: u64,
    /// The first line of a recording, until something follows it.
    header: Option<String>,
}

impl Keeper {
    pub(crate) fn new(
        destination: &Destination,
        request: &Request,
        preparation: &Preparation,
        grant: &SshGrant,
        needles: &Needles,
    ) -> Self {
        let mut header = None;
        let form = match request {
            Request::Shell => {
                let terminal = preparation.terminal.as_ref();
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                header = Some(Cast::header(&About {
                    size: terminal.map(|terminal| {
                        let [columns, rows, _, _] = terminal.size;
                        [columns, rows]
                    }),
                    term: terminal.map(|terminal| terminal.term.as_str()),
                    title: &destination.target(),
                    began_s: since.as_secs(),
                }));
                Form::Recording { cast: Cast::default(), began: Instant::now() }
            }
            Request::Subsystem(name) if name == "sftp" => Form::Operations(Watch::default()),
            Request::Exec(_) | Request::Subsystem(_) | Request::Forward { .. } => Form::Output,
        };
        Self {
            form,
            needles: needles.clone(),
            is_keeping: grant.keep == KeepResult::Full,
            kept_bytes: 0,
            limit_bytes: grant.keep_bytes,
            noted: 0,
            header,
        }
    }

    /// The observer, if this is an sftp session.
    pub(crate) fn watch(&self) -> Option<Watch> {
        match &self.form {
            Form::Operations(watch) => Some(Arc::clone(watch)),
            Form::Output | Form::Recording { .. } => None,
        }
    }

    /// Takes output as the client gets it.
    pub(crate) async fn output(&mut self, call: &mut Call, stream: Stream, data: &[u8]) {
        match &mut self.form {
            Form::Output => self.store(call, stream, data).await,
            Form::Recording { cast, began } => {
                if let Some(line) = cast.output(began.elapsed(), stream == Stream::Stderr, data) {
                    self.record(call, &line).await;
                }
            }
            Form::Operations(_) => {}
        }
    }

    /// Takes a new size of the terminal.
    pub(crate) async fn resized(&mut self, call: &mut Call, size: [u32; 2]) {
        if let Form::Recording { began, .. } = &self.form {
            let line = Cast::resized(began.elapsed(), size);
            self.record(call, &line).await;
        }
    }

    /// Looks at stdout as the target sent it.
    pub(crate) async fn replies(&mut self, call: &mut Call, data: &[u8]) {
        if let Form::Operations(watch) = &self.form {
            let done = watching(watch).reply(data);
            self.list(call, done).await;
        }
    }

    /// The end of the session.
    pub(crate) async fn finish(&mut self, call: &mut Call, end: Option<&End>) {
        match &self.form {
            Form::Output => {}
            Form::Recording { began, .. } => {
                let took = began.elapsed();
                let mark = match end {
                    Some(End::Status(status)) => format!("exit status {status}"),
                    Some(End::Signal { signal, .. }) => format!("exit signal {signal}"),
                    Some(End::Closed) | None => "ended without exit status".to_owned(),
                };
                self.record(call, &Cast::mark(took, &mark)).await;
                let detail = json!({
                    "form": "asciicast-v2",
                    "length_bytes": self.kept_bytes,
                    "seconds": took.as_secs(),
                    "kept": self.is_keeping,
                });
                call.note(RECORDING, &detail.to_string());
            }
            Form::Operations(watch) => {
                let (left, totals) = {
                    let mut watch = watching(watch);
                    let left = watch.finish();
                    (left, watch.totals())
                };
                self.list(call, left).await;
                let detail = json!({
                    "operations": totals.operations,
                    "noted": self.noted,
                    "questions": totals.questions,
                    "read_bytes": totals.read_bytes,
                    "written_bytes": totals.written_bytes,
                    "whole": totals.is_whole,
                });
                call.note(SFTP_TOTALS, &detail.to_string());
            }
        }
    }

    async fn list(&mut self, call: &mut Call, done: Vec<Value>) {
        for operation in done {
            let line = cleaned(&self.needles, operation).to_string();
            if self.noted < MAX_NOTES {
                self.noted += 1;
                call.note(SFTP, &line);
            }
            self.store(call, Stream::Stdout, format!("{line}\n").as_bytes()).await;
        }
    }

    async fn record(&mut self, call: &mut Call, line: &str) {
        if let Some(header) = self.header.take() {
            self.store(call, Stream::Stdout, header.as_bytes()).await;
        }
        self.store(call, Stream::Stdout, line.as_bytes()).await;
    }

    async fn store(&mut self, call: &mut Call, stream: Stream, data: &[u8]) {
        if !self.is_keeping {
            return;
        }
        let with_this = self.kept_bytes.saturating_add(data.len() as u64);
        if with_this > self.limit_bytes {
            self.is_keeping = false;
            match self.form {
                // Half of an output says other things than the whole.
                Form::Output => {
                    call.discard_result();
                    call.note("RESULT_NOT_KEPT", "the output is longer than the route keeps");
                }
                Form::Recording { .. } | Form::Operations(_) => {
                    call.note("RESULT_CUT", "what is kept ends at the bound of the route");
                }
            }
            return;
        }
        self.kept_bytes = with_this;
        if let Err(error) = call.store(stream, data).await {
            self.is_keeping = false;
            call.discard_result();
            call.note("RESULT_NOT_KEPT", &error.to_string());
            tracing::error!(id = %call.id(), %error, "a result can't be stored");
        }
    }
}

/// A name may hold the credential as well (contract I-4). It is looked for before JSON escapes it.
fn cleaned(needles: &Needles, value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(needles.clean(&text).0),
        Value::Array(values) => {
            Value::Array(values.into_iter().map(|value| cleaned(needles, value)).collect())
        }
        Value::Object(members) => Value::Object(
            members.into_iter().map(|(name, value)| (name, cleaned(needles, value))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}
