//! A jump that is relayed as it is (`intercept = false`): the caller's own session with the target,
//! of which nothing is seen but bytes.
//!
//! Who was connected, where to and how much is on record; what was done there is not, so the
//! outcome is `unknown` by nature (contract S-1, S-6).

use crate::door::Jump;
use crate::downstream::{Absence, Downstream};
use crate::flag::{raised, said};
use crate::gateway::Shared;
use crate::gauge::stalled;
use crate::invocation::{Refusal, end_refused, not_recorded, refuse, sentence};
use crate::jump::LOGIN_OVER;
use crate::relay::STDIN_SO_FAR;
use crate::respond::Unopened;
use crate::spool::{Inlet, Input, Spool, spool};
use crate::tally::Sum;
use crate::upstream;
use bytes::Bytes;
use journal::contract::{
    Accepted, Code, Digest, Dispatch, Ended, Gateway, KeepResult, Observation, PeerIdentity,
    Preflight, RequestSent, ResponseStarted, Retry, Verdict,
};
use journal::{Admission, Call, Guard};
use policy::SshGrant;
use russh::Channel;
use russh::server::{ChannelOpenHandle, Handle, Msg};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::watch;

/// How long the other side may take to follow the one that ended a session.
const FOLLOWS: Duration = Duration::from_secs(1);
/// Bytes per read of the target.
const READ_BYTES: usize = 32 << 10;
/// Causes in records: the target ended the session, or its client left.
const TARGET_ENDED: &str = "EOF";
const CLIENT_LEFT: &str = "CALLER_GONE";
/// The drain had no more time for it.
const CUT: &str = "BROKER_STOPPED";

/// The client's side of the jump.
pub(crate) struct Entrance {
    pub(crate) channel: Channel<Msg>,
    pub(crate) handle: Handle,
    pub(crate) reply: ChannelOpenHandle,
    pub(crate) inlet: Inlet,
}

/// Relays one jump to its end.
pub(crate) async fn serve(shared: Arc<Shared>, jump: Jump, grant: SshGrant, entrance: Entrance) {
    let _under_way = shared.under_way();
    let Entrance { channel, handle, reply, inlet } = entrance;
    let (read, write) = channel.split();
    let (spool, attendance) = spool(read, inlet, shared.standing(&jump.agent));
    let stall = shared.options.client_stall;
    let mut downstream = Downstream::new(write, handle, attendance, stall, false).held(reply);
    let host = if jump.host.contains(':') { format!("[{}]", jump.host) } else { jump.host.clone() };
    let target = format!("ssh://{host}:{}", jump.port);
    let fingerprint =
        Digest::of(format!("affiant ssh relay 1 {} {target}", jump.agent.name).as_bytes());
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: Some(jump.agent.name.clone()),
        action: "relay".to_owned(),
        target,
        command: None,
        fingerprint: Some(fingerprint),
        caller_id: false,
        counted: false,
        link: None,
    };
    let id = shared.journal.new_id();
    let budget = shared.policy.snapshot().budget(&jump.agent.name);
    let guard = Guard { budget, ..Guard::default() };
    let admitted = shared.journal.admit(id, accepted.clone(), guard);
    if let Ok(Admission::Spent(spent)) = admitted {
        return refuse(&shared, downstream, accepted, spent.into()).await;
    }
    let Ok(Admission::New(mut call)) = admitted else {
        tracing::error!(%id, "the journal can't take a jump");
        let text = "affiant: the journal can't take the record of this jump";
        return downstream.fail_saying(Unopened::Shortage, text).await;
    };
    match begin(&shared, &mut call, &jump, &grant, fingerprint).await {
        Ok(stream) => {
            downstream.accept().await;
            let bounds = (grant.limits.idle_timeout, shared.cutting());
            let ended = relay(stream, spool, &mut downstream, &mut call, bounds).await;
            if let Err(error) = call.end(ended).await {
                tracing::error!(%id, %error, "the end of a relayed jump is not on record");
            }
            downstream.eof().await;
            downstream.close().await;
        }
        Err(refusal) => end_refused(call, downstream, refusal).await,
    }
}

/// To a connection whose use is on record.
async fn begin(
    shared: &Shared,
    call: &mut Call,
    jump: &Jump,
    grant: &SshGrant,
    fingerprint: Digest,
) -> Result<TcpStream, Refusal> {
    let preflight = Preflight {
        policy_version: shared.policy.snapshot().version(),
        would_deny: None,
        route: Some(grant.route.clone()),
        credential: None,
        idempotent: false,
        idempotency: None,
        keep: KeepResult::None,
        keep_seconds: 0,
        keep_total_bytes: None,
    };
    call.preflight(preflight).map_err(|error| not_recorded(&error))?;
    call.authorize(None).map_err(|error| not_recorded(&error))?;
    let mut record = |attempt| {
        if let Err(error) = call.setup_attempted(attempt) {
            tracing::warn!(%error, "SETUP_ATTEMPTED is not on record");
        }
    };
    let dialled = upstream::dial(grant, &jump.host, jump.port, &mut record).await;
    let (stream, address) = dialled.map_err(|error| {
        Refusal::new(error.verdict(), sentence(&error.to_string()), error.field())
    })?;
    let dispatch = Dispatch {
        attempt: 1,
        connection: shared.next_connection(),
        reused: false,
        address: address.to_string(),
        peer: PeerIdentity::Unverified,
        fingerprint,
    };
    // The caller's first byte may already begin something.
    match call.dispatch(dispatch).await {
        Ok(_dispatched) => Ok(stream),
        Err(error) => {
            tracing::error!(id = %call.id(), %error, "DISPATCH_STARTED is not on record");
            let verdict = Verdict::not_connected(Retry::Backoff, Code::JournalUnavailable);
            let message = "The journal can't take the dispatch record, so nothing was sent.";
            Err(Refusal::new(verdict, message, None))
        }
    }
}

/// Passes bytes both ways until the target's side has ended, or the client has gone.
async fn relay(
    stream: TcpStream,
    spool: Spool,
    downstream: &mut Downstream,
    call: &mut Call,
    (patience, mut cutting): (Duration, watch::Receiver<bool>),
) -> Ended {
    let (mut from, to) = stream.into_split();
    let mut overflow = spool.overflow();
    let (word, mut stopped) = watch::channel(None);
    let client_waits = Arc::<AtomicBool>::default();
    let sum = Arc::<Mutex<Sum>>::default();
    let sender =
        Sender { patience, client_waits: Arc::clone(&client_waits), word, sum: Arc::clone(&sum) };
    let mut sending = tokio::spawn(sender.run(spool, to));
    let mut buffer = vec![0; READ_BYTES];
    let mut length_bytes = 0_u64;
    let cause = loop {
        tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(0) => break TARGET_ENDED,
                Ok(length) => {
                    if length_bytes == 0 {
                        let started = ResponseStarted { status: None, remote_request_id: None };
                        drop(call.response_started(started));
                    }
                    length_bytes = length_bytes.saturating_add(length as u64);
                    let data = buffer.get(..length).unwrap_or_default();
                    client_waits.store(true, Ordering::Release);
                    let data = Bytes::copy_from_slice(data);
                    let cut = downstream.send_unless(None, data, raised(&mut cutting)).await;
                    client_waits.store(false, Ordering::Release);
                    if cut.is_some() {
                        break CUT;
                    }
                }
                Err(_) => break "RESET",
            },
            stop = said(&mut stopped) => break stop,
            () = raised(&mut cutting) => break CUT,
            _ = said(&mut overflow) => break "INPUT_OVERFLOW",
            () = downstream.gone() => break match downstream.absence() {
                Absence::Left => CLIENT_LEFT,
                Absence::Stalled => "CALLER_STALLED",
                Absence::LoginOver => {
                    // What waits for the target is not passed on any more.
                    sending.abort();
                    call.note("LOGIN_OVER", LOGIN_OVER);
                    "LOGIN_OVER"
                }
            },
        }
    };
    // Whoever of the two ends a session first, the other's channel follows.
    let (code, patience) = match cause {
        TARGET_ENDED | CLIENT_LEFT => (Code::NotJudged, FOLLOWS),
        CUT => (Code::BrokerRestarted, Duration::ZERO),
        _ => (Code::RemoteOutcomeUnknown, Duration::ZERO),
    };
    let is_whole = matches!(tokio::time::timeout(patience, &mut sending).await, Ok(Ok(())));
    sending.abort();
    note_sent(call, &sum, is_whole);
    Ended {
        verdict: Verdict::unknown(Retry::Reconcile, code),
        message: "The session was relayed as it is; what was done in it is not known here."
            .to_owned(),
        field: None,
        not_before_ms: None,
        observation: Some(Observation { length_bytes, cause: cause.to_owned(), recording: None }),
    }
}

/// Records what the target had of its client.
fn note_sent(call: &mut Call, sum: &Mutex<Sum>, is_whole: bool) {
    let sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
    let (length_bytes, digest) = (sum.length_bytes(), sum.digest());
    if is_whole {
        drop(call.request_sent(RequestSent { length_bytes, digest }));
    } else {
        call.note(STDIN_SO_FAR, &format!("{length_bytes} {digest}"));
    }
}

/// The way to the target.
struct Sender {
    /// How long the target may take nothing while the space for waiting input is used up.
    patience: Duration,
    client_waits: Arc<AtomicBool>,
    /// Why it stopped.
    word: watch::Sender<Option<&'static str>>,
    /// What it passed on so far.
    sum: Arc<Mutex<Sum>>,
}

impl Sender {
    /// Passes the client's bytes on.
    async fn run(self, mut spool: Spool, mut to: OwnedWriteHalf) {
        let gauge = spool.gauge();
        while let Some(input) = spool.next().await {
            let data = match input {
                Input::Data(data) => data,
                Input::Eof => break,
                Input::WindowChange(_) | Input::Signal(_) => continue,
            };
            tokio::select! {
                written = to.write_all(&data) => if written.is_err() {
                    break;
                },
                () = stalled(gauge.as_deref(), self.patience, &self.client_waits) => {
                    self.word.send_replace(Some("INPUT_STALLED"));
                    break;
                }
            }
            self.sum.lock().unwrap_or_else(PoisonError::into_inner).push(&data);
        }
        drop(to.shutdown().await);
    }
}
