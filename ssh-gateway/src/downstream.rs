//! The client's side of one session channel: output, end, and whether it arrived.
//!
//! Every wait here ends when the client goes away or leaves its output unread for too long.

use crate::respond::{self, Unopened};
use crate::spool::{Attendance, Presence, SessionLife};
use bytes::Bytes;
use journal::contract::{Confirmation, Envelope, SignalName, SshEnd};
use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{ChannelWriteHalf, Sig};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long the client may take to answer the question whether it got everything.
const CONFIRM: Duration = Duration::from_secs(3);

/// How a command ended, with what the client is shown of it.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// Exit status.
    Status(u32),
    /// Exit signal.
    Signal {
        /// The signal.
        signal: SignalName,
        /// Whether core was dumped.
        core_dumped: bool,
        /// The target's words, free of the credential (contract I-4).
        message: String,
        /// Their language, just so.
        language: String,
    },
    /// The orderly close of a forwarding, or a route's own mark of completion.
    Closed,
}

impl End {
    /// The end as records have it.
    pub(crate) fn to_record(&self) -> Option<SshEnd> {
        match self {
            Self::Status(status) => Some(SshEnd::ExitStatus(*status)),
            Self::Signal { signal, .. } => Some(SshEnd::ExitSignal(signal.clone())),
            Self::Closed => None,
        }
    }

    /// The end from a record.
    pub(crate) fn from_record(end: &SshEnd) -> Self {
        match end {
            SshEnd::ExitStatus(status) => Self::Status(*status),
            SshEnd::ExitSignal(name) => Self::Signal {
                signal: name.clone(),
                core_dumped: false,
                message: String::new(),
                language: String::new(),
            },
        }
    }
}

/// The signal's name without `SIG` (RFC 4254 section 6.10).
pub(crate) fn signal_name(signal: &Sig) -> &str {
    match signal {
        Sig::ABRT => "ABRT",
        Sig::ALRM => "ALRM",
        Sig::FPE => "FPE",
        Sig::HUP => "HUP",
        Sig::ILL => "ILL",
        Sig::INT => "INT",
        Sig::KILL => "KILL",
        Sig::PIPE => "PIPE",
        Sig::QUIT => "QUIT",
        Sig::SEGV => "SEGV",
        Sig::TERM => "TERM",
        Sig::USR1 => "USR1",
        Sig::Custom(name) => name,
    }
}

/// Why a client is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absence {
    /// It left.
    Left,
    /// It counts as gone, because it takes no output.
    Stalled,
    /// Its login does not hold any more.
    LoginOver,
}

/// Who takes the output.
enum Client {
    /// A client on a channel of its own.
    Channel { write: ChannelWriteHalf<Msg>, handle: Handle, session: SessionLife },
    /// Nobody: the result is there to be fetched.
    Nobody { _stays: watch::Sender<Presence> },
    /// The broker itself, which reads stdout afterwards.
    Broker { stdout: Kept, _stays: watch::Sender<Presence> },
}

/// The stdout of a command that the broker asked for.
pub(crate) type Kept = Arc<Mutex<Vec<u8>>>;

/// The client's side of one session channel.
pub(crate) struct Downstream {
    client: Client,
    presence: watch::Receiver<Presence>,
    stall: Duration,
    has_terminal: bool,
    /// The answer to the opening of a forwarding, held back until it is decided.
    reply: Option<ChannelOpenHandle>,
    is_forwarding: bool,
    stalled: bool,
    eof_sent: bool,
    closed: bool,
    sent_bytes: u64,
}

impl Downstream {
    pub(crate) fn new(
        write: ChannelWriteHalf<Msg>,
        handle: Handle,
        attendance: Attendance,
        stall: Duration,
        has_terminal: bool,
    ) -> Self {
        let Attendance { presence, session } = attendance;
        let client = Client::Channel { write, handle, session };
        Self { has_terminal, ..Self::of(client, presence, stall) }
    }

    fn of(client: Client, presence: watch::Receiver<Presence>, stall: Duration) -> Self {
        Self {
            client,
            presence,
            stall,
            has_terminal: false,
            reply: None,
            is_forwarding: false,
            stalled: false,
            eof_sent: false,
            closed: false,
            sent_bytes: 0,
        }
    }

    /// The side of a command that nobody waits for.
    pub(crate) fn nobody() -> Self {
        let (stays, presence) = watch::channel(Presence::There);
        Self::of(Client::Nobody { _stays: stays }, presence, Duration::ZERO)
    }

    /// The side of a command that the broker asks for. Its output is bounded by the route.
    pub(crate) fn kept() -> (Self, Kept) {
        let (stays, presence) = watch::channel(Presence::There);
        let stdout = Kept::default();
        let client = Client::Broker { stdout: Arc::clone(&stdout), _stays: stays };
        (Self::of(client, presence, Duration::ZERO), stdout)
    }

    /// Makes it a forwarding, whose opening is answered by what comes of it.
    pub(crate) fn held(mut self, reply: ChannelOpenHandle) -> Self {
        self.reply = Some(reply);
        self.is_forwarding = true;
        self
    }

    /// Lets a forwarding begin.
    pub(crate) async fn accept(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.accept().await;
        }
    }

    /// Whether the client has gone, or counts as gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.stalled || *self.presence.borrow() != Presence::There
    }

    /// Why it has gone; for a client that has.
    pub(crate) fn absence(&self) -> Absence {
        if self.is_login_over() {
            Absence::LoginOver
        } else if self.stalled {
            Absence::Stalled
        } else {
            Absence::Left
        }
    }

    fn is_login_over(&self) -> bool {
        *self.presence.borrow() == Presence::LoginOver
    }

    /// Content bytes that the client's window took.
    pub(crate) const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Waits until the client has gone.
    pub(crate) async fn gone(&mut self) {
        if !self.stalled {
            left(&mut self.presence).await;
        }
    }

    /// Sends output, as extended data of that code if there is one. Waits for the client's window.
    pub(crate) async fn send(&mut self, extended: Option<u32>, data: Bytes) {
        let ended: Option<()> = self.send_unless(extended, data, std::future::pending()).await;
        debug_assert!(ended.is_none(), "what never comes came");
    }

    /// Like [`Downstream::send`], until `end` comes; then the client gets no more.
    pub(crate) async fn send_unless<T>(
        &mut self,
        extended: Option<u32>,
        data: Bytes,
        end: impl Future<Output = T>,
    ) -> Option<T> {
        if self.is_gone() || data.is_empty() {
            return None;
        }
        let length_bytes = data.len() as u64;
        let write = match &self.client {
            Client::Channel { write, .. } => write,
            Client::Nobody { .. } => return None,
            Client::Broker { stdout, .. } => {
                if extended.is_none() {
                    let mut stdout = stdout.lock().unwrap_or_else(PoisonError::into_inner);
                    stdout.extend_from_slice(&data);
                }
                return None;
            }
        };
        // Not cancel-safe: after a cut write nothing is written here any more.
        let mut ended = None;
        let sent = tokio::select! {
            biased;
            sent = async {
                match extended {
                    None => write.data_bytes(data).await,
                    Some(code) => write.extended_data_bytes(code, data).await,
                }
            } => sent.is_ok(),
            () = left(&mut self.presence) => false,
            () = tokio::time::sleep(self.stall) => false,
            end = end => {
                ended = Some(end);
                false
            }
        };
        if sent {
            self.sent_bytes += length_bytes;
        } else {
            self.stalled = true;
        }
        ended
    }

    /// Tells the client that both streams have ended.
    pub(crate) async fn eof(&mut self) {
        if let Client::Channel { write, .. } = &self.client
            && !self.is_gone()
            && !self.eof_sent
        {
            self.eof_sent = true;
            self.bounded(write.eof()).await;
        }
    }

    /// Tells the end of the command, and finds out whether the client has everything. The channel
    /// stays open. The streams end last: a client whose own input has ended closes the channel then,
    /// and the engine sends nothing on a channel that its peer has closed.
    pub(crate) async fn end(&mut self, end: &End) -> Option<Confirmation> {
        // A status would make output that was cut off look whole.
        if self.is_gone() {
            return None;
        }
        let Client::Channel { write, handle, .. } = &self.client else { return None };
        match end {
            End::Status(status) => self.bounded(write.exit_status(*status)).await,
            End::Signal { signal, core_dumped, message, language } => {
                let id = write.id();
                let request = handle.exit_signal_request(
                    id,
                    Sig::Custom(signal.as_str().to_owned()),
                    *core_dumped,
                    message.clone(),
                    language.clone(),
                );
                self.bounded(request).await;
            }
            End::Closed if self.is_forwarding => {}
            End::Closed => self.bounded(write.exit_status(0)).await,
        }
        let handle = handle.clone();
        let is_confirmed = self.is_confirmed(&handle).await;
        self.eof().await;
        is_confirmed.then_some(Confirmation::Protocol)
    }

    /// Closes the channel.
    pub(crate) async fn close(mut self) {
        self.shut().await;
    }

    async fn shut(&mut self) {
        if let Client::Channel { write, .. } = &self.client
            && !std::mem::replace(&mut self.closed, true)
        {
            self.bounded(write.close()).await;
        }
    }

    /// Says something on stderr, if that is still open.
    pub(crate) async fn explain(&mut self, text: &str) {
        if self.eof_sent {
            return;
        }
        let text = if self.has_terminal { text.replace('\n', "\r\n") } else { text.to_owned() };
        match &self.client {
            // It gets nothing more but the reason for that.
            Client::Channel { write, .. } if self.is_login_over() && !self.stalled => {
                let told = write.extended_data_bytes(1, Bytes::from(text));
                drop(tokio::time::timeout(CONFIRM, told).await);
            }
            Client::Channel { .. } | Client::Nobody { .. } | Client::Broker { .. } => {
                self.send(Some(1), Bytes::from(text)).await;
            }
        }
    }

    /// Ends the channel of a client whose login is over, while what it began is still read on.
    pub(crate) async fn turn_out(&mut self, text: &str) {
        self.explain(text).await;
        if let Client::Channel { write, .. } = &self.client {
            self.bounded(write.exit_status(255)).await;
        }
        self.shut().await;
    }

    /// Explains on stderr why there is no committed result, and ends with exit status 255, which is
    /// what OpenSSH users expect of a transport failure (contract E-5).
    pub(crate) async fn fail(self, envelope: &Envelope) {
        self.fail_with("", envelope).await;
    }

    /// As [`Self::fail`], with a note before.
    pub(crate) async fn fail_with(self, note: &str, envelope: &Envelope) {
        let text = format!("{note}{}", respond::lines(envelope));
        self.fail_saying(Unopened::of(envelope.error.verdict), &text).await;
    }

    /// As [`Self::fail`], where there is no envelope.
    pub(crate) async fn fail_saying(mut self, why: Unopened, text: &str) {
        if let Some(reply) = self.reply.take() {
            let reason = text.lines().next().unwrap_or_default().to_owned();
            return reply.reject(why.saying(reason)).await;
        }
        if self.is_forwarding || self.closed {
            return self.close().await;
        }
        self.explain(text).await;
        if let Client::Channel { write, .. } = &self.client {
            self.bounded(write.exit_status(255)).await;
        }
        self.eof().await;
        self.close().await;
    }

    /// Asks the client something that it answers in order, after all that was sent before.
    ///
    /// The engine's handle has no keepalive of its own. Ending a forwarding that was never begun is
    /// a global request with a reply, refused by every client (RFC 4254 section 4). An answer that
    /// is missing because the session ended shows as a client that is gone.
    async fn is_confirmed(&mut self, handle: &Handle) -> bool {
        if self.is_gone() {
            return false;
        }
        let question = handle.cancel_forward_tcpip(String::new(), 0);
        let answered = tokio::select! {
            biased;
            () = left(&mut self.presence) => false,
            // The content of the answer says nothing; that there is one does.
            answer = tokio::time::timeout(CONFIRM, question) => answer.is_ok(),
        };
        // An answer that a lost session leaves out comes as if it were one.
        let stands = match &self.client {
            Client::Channel { session, .. } => session.goes_on(),
            Client::Nobody { .. } | Client::Broker { .. } => false,
        };
        answered && stands && !self.is_gone()
    }

    async fn bounded<E>(&self, work: impl Future<Output = Result<(), E>>) {
        // A session that is gone takes nothing, which shows elsewhere.
        drop(tokio::time::timeout(self.stall, work).await);
    }
}

/// Waits until the client is not there any more. A sender that is gone without a word counts as well.
async fn left(presence: &mut watch::Receiver<Presence>) {
    drop(presence.wait_for(|presence| *presence != Presence::There).await);
}
