//! What the client sends on one channel, queued so that taking it never waits for the target.
//!
//! The engine delivers channel messages inside its session loop. A reader that waited for the
//! target would stop the whole connection, so everything goes through here: bounded by the channel's
//! [`Gauge`], which keeps new window from it long before the bound.

use crate::flag::raised;
use crate::gateway::Standing;
use crate::gauge::Gauge;
use crate::seen::Stop;
use bytes::Bytes;
use russh::{ChannelMsg, ChannelReadHalf, Sig};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How often a login is looked at whose client sends nothing. Input is never passed on without a look.
const LOOK: Duration = Duration::from_millis(500);

/// What a message costs beside its bytes, in memory.
const MESSAGE_BYTES: usize = 128;

/// The longest name of a signal; RFC 4254 section 6.10 has none above 6.
const SIGNAL_BYTES: usize = 32;

/// Whether a channel's client is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is.
    There,
    /// It has closed the channel, or its connection is gone.
    Left,
    /// Its login does not hold any more: nothing that it sends counts.
    LoginOver,
}

/// One message of the client for a command under way.
#[derive(Debug)]
pub(crate) enum Input {
    /// Bytes of stdin.
    Data(Bytes),
    /// The end of stdin.
    Eof,
    /// A new terminal size: columns, rows, width and height in pixels.
    WindowChange([u32; 4]),
    /// A signal for the command.
    Signal(Sig),
}

impl Input {
    /// What it costs to let it wait.
    fn cost_bytes(&self) -> usize {
        let content = match self {
            Self::Data(data) => data.len(),
            Self::Eof | Self::WindowChange(_) | Self::Signal(_) => 0,
        };
        content.saturating_add(MESSAGE_BYTES)
    }
}

/// Where a channel's input comes from.
pub(crate) struct Inlet {
    /// Of the input that waits.
    pub(crate) gauge: Arc<Gauge>,
    /// Turns true, or loses its sender, with the session: a channel whose opening is still to be
    /// answered does not end by itself then.
    pub(crate) session_over: watch::Receiver<bool>,
}

/// What is known of a channel's client.
pub(crate) struct Attendance {
    /// Whether it is there.
    pub(crate) presence: watch::Receiver<Presence>,
    /// The session that it came by.
    pub(crate) session: SessionLife,
}

/// Tells whether a session lives.
pub(crate) struct SessionLife(watch::Receiver<bool>);

impl SessionLife {
    /// Whether it does. The engine drops its handler, and with it the other end of this flag, before it
    /// gives up the questions that got no answer: after such an end this is false, however soon it is
    /// asked.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self.0.has_changed(), Ok(false))
    }
}

/// The consuming side.
#[derive(Debug)]
pub(crate) struct Spool {
    returned: VecDeque<Input>,
    inputs: mpsc::UnboundedReceiver<Input>,
    overflow: watch::Receiver<Option<Stop>>,
    /// None: the input was there already.
    gauge: Option<Arc<Gauge>>,
}

impl Spool {
    /// Says why, when more stdin came than the bounds allow; what followed was dropped. Told beside
    /// the queue, whose consumer waits for the target just then.
    pub(crate) fn overflow(&self) -> watch::Receiver<Option<Stop>> {
        self.overflow.clone()
    }

    /// The gauge of what waits here, if the client can send more.
    pub(crate) fn gauge(&self) -> Option<Arc<Gauge>> {
        self.gauge.clone()
    }

    fn took(&self, input: &Input) {
        if let Some(gauge) = &self.gauge {
            gauge.take(input.cost_bytes());
        }
    }

    /// The next message; none when the client has gone and everything was taken.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        if let Some(input) = self.returned.pop_front() {
            return Some(input);
        }
        let input = self.inputs.recv().await?;
        self.took(&input);
        Some(input)
    }
}

impl Spool {
    /// Input that is there already, and ends.
    pub(crate) fn stored(content: Bytes) -> Self {
        let (flag, overflow) = watch::channel(None);
        tokio::spawn(stay_down(flag));
        let data = (!content.is_empty()).then_some(Input::Data(content));
        Self {
            returned: data.into_iter().chain([Input::Eof]).collect(),
            inputs: mpsc::unbounded_channel().1,
            overflow,
            gauge: None,
        }
    }

    /// Puts back what was taken, in order: it comes first again. The caller bounds it.
    pub(crate) fn put_back(&mut self, inputs: Vec<Input>) {
        for input in inputs.into_iter().rev() {
            self.returned.push_front(input);
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.inputs.close();
        while let Ok(input) = self.inputs.try_recv() {
            self.took(&input);
        }
    }
}

/// Reads a channel from here on into a spool, until the client has closed it, its connection is gone,
/// or its login is over.
pub(crate) fn spool(
    mut read: ChannelReadHalf,
    inlet: Inlet,
    standing: Standing,
) -> (Spool, Attendance) {
    let Inlet { gauge, mut session_over } = inlet;
    let session = SessionLife(session_over.clone());
    let (sender, inputs) = mpsc::unbounded_channel();
    let (presence, is_there) = watch::channel(Presence::There);
    let (overflow, is_full) = watch::channel(None);
    let returned = VecDeque::new();
    let spool = Spool { returned, inputs, overflow: is_full, gauge: Some(Arc::clone(&gauge)) };
    tokio::spawn(async move {
        let mut open = true;
        let end = loop {
            let message = async {
                tokio::select! {
                    // What came before the end of the session comes first.
                    biased;
                    message = read.wait() => message,
                    () = raised(&mut session_over) => None,
                }
            };
            match tokio::time::timeout(LOOK, message).await {
                Ok(None | Some(ChannelMsg::Close)) => break Presence::Left,
                Ok(Some(_)) | Err(_) if !standing.holds() => break Presence::LoginOver,
                Ok(Some(message)) if open => {
                    open = forward(message, &sender, &overflow, &gauge);
                }
                Ok(Some(_)) | Err(_) => {}
            }
        };
        // Told before the input ends: whoever sees that end can ask why.
        presence.send_replace(end);
        drop(sender);
        if end == Presence::LoginOver {
            drain(&mut read).await;
        }
        stay_down(overflow).await;
    });
    (spool, Attendance { presence: is_there, session })
}

/// Takes what still comes, so that nothing of the connection waits for it.
async fn drain(read: &mut ChannelReadHalf) {
    while let Some(message) = read.wait().await {
        if matches!(message, ChannelMsg::Close) {
            return;
        }
    }
}

/// The flag of an overflow that never was stays down until nobody looks any more.
async fn stay_down(overflow: watch::Sender<Option<Stop>>) {
    overflow.closed().await;
}

/// Queues one message; false when nothing more is to be queued.
fn forward(
    message: ChannelMsg,
    sender: &mpsc::UnboundedSender<Input>,
    overflow: &watch::Sender<Option<Stop>>,
    gauge: &Gauge,
) -> bool {
    let input = if let ChannelMsg::Data { data } = message {
        if data.is_empty() {
            return true;
        }
        Input::Data(data)
    } else if let ChannelMsg::Eof = message {
        Input::Eof
    } else if let ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height } =
        message
    {
        Input::WindowChange([col_width, row_height, pix_width, pix_height])
    } else if let ChannelMsg::Signal { signal } = message {
        if matches!(&signal, Sig::Custom(name) if name.len() > SIGNAL_BYTES) {
            return true;
        }
        Input::Signal(signal)
    } else {
        return true;
    };
    let cost_bytes = input.cost_bytes();
    if let Err(stop) = gauge.add(cost_bytes) {
        overflow.send_replace(Some(stop));
        return false;
    }
    let taken = sender.send(input).is_ok();
    if !taken {
        gauge.take(cost_bytes);
    }
    taken
}
