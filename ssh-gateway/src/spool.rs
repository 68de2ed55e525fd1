//! What the client sends on one channel, queued so that taking it never waits for the target.
//!
//! The engine delivers channel messages inside its session loop. A reader that waited for the
//! target would stop the whole connection, so everything goes through here: bounded by the
//! connection's [`Line`], which slows the socket down long before the bound.

use crate::gateway::Standing;
use crate::line::Line;
use bytes::Bytes;
use russh::{ChannelMsg, ChannelReadHalf, Sig};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How often a login is looked at whose client sends nothing. Input is never passed on without a look.
const LOOK: Duration = Duration::from_millis(500);

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

/// The consuming side.
#[derive(Debug)]
pub(crate) struct Spool {
    returned: VecDeque<Input>,
    inputs: mpsc::UnboundedReceiver<Input>,
    overflow: watch::Receiver<bool>,
    line: Arc<Line>,
}

impl Spool {
    /// Is raised when more stdin waits than the bound allows; what followed was dropped. Told beside
    /// the queue, whose consumer waits for the target just then.
    pub(crate) fn overflow(&self) -> watch::Receiver<bool> {
        self.overflow.clone()
    }

    /// The next message; none when the client has gone and everything was taken.
    pub(crate) async fn next(&mut self) -> Option<Input> {
        if let Some(input) = self.returned.pop_front() {
            return Some(input);
        }
        let input = self.inputs.recv().await?;
        if let Input::Data(data) = &input {
            self.line.unspool(data.len());
        }
        Some(input)
    }
}

impl Spool {
    /// Input that is there already, and ends.
    pub(crate) fn stored(content: Bytes) -> Self {
        let (flag, overflow) = watch::channel(false);
        tokio::spawn(stay_down(flag));
        let data = (!content.is_empty()).then_some(Input::Data(content));
        Self {
            returned: data.into_iter().chain([Input::Eof]).collect(),
            inputs: mpsc::unbounded_channel().1,
            overflow,
            line: Line::new(0),
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
            if let Input::Data(data) = input {
                self.line.unspool(data.len());
            }
        }
    }
}

/// Reads a channel from here on into a spool, until the client has closed it, its connection is gone,
/// or its login is over.
pub(crate) fn spool(
    mut read: ChannelReadHalf,
    line: Arc<Line>,
    standing: Standing,
) -> (Spool, watch::Receiver<Presence>) {
    let (sender, inputs) = mpsc::unbounded_channel();
    let (presence, is_there) = watch::channel(Presence::There);
    let (overflow, is_full) = watch::channel(false);
    let returned = VecDeque::new();
    let spool = Spool { returned, inputs, overflow: is_full, line: Arc::clone(&line) };
    tokio::spawn(async move {
        let mut open = true;
        let end = loop {
            match tokio::time::timeout(LOOK, read.wait()).await {
                Ok(None | Some(ChannelMsg::Close)) => break Presence::Left,
                Ok(Some(_)) | Err(_) if !standing.holds() => break Presence::LoginOver,
                Ok(Some(message)) if open => {
                    open = forward(message, &sender, &overflow, &line);
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
    (spool, is_there)
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
async fn stay_down(overflow: watch::Sender<bool>) {
    overflow.closed().await;
}

/// Queues one message; false when nothing more is to be queued.
fn forward(
    message: ChannelMsg,
    sender: &mpsc::UnboundedSender<Input>,
    overflow: &watch::Sender<bool>,
    line: &Line,
) -> bool {
    if let ChannelMsg::Data { data } = message {
        if data.is_empty() {
            return true;
        }
        let length_bytes = data.len();
        if !line.spool(length_bytes) {
            line.unspool(length_bytes);
            overflow.send_replace(true);
            return false;
        }
        let taken = sender.send(Input::Data(data)).is_ok();
        if !taken {
            line.unspool(length_bytes);
        }
        return taken;
    }
    let input = if let ChannelMsg::Eof = message {
        Input::Eof
    } else if let ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height } =
        message
    {
        Input::WindowChange([col_width, row_height, pix_width, pix_height])
    } else if let ChannelMsg::Signal { signal } = message {
        Input::Signal(signal)
    } else {
        return true;
    };
    sender.send(input).is_ok()
}
