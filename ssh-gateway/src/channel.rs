//! One channel of a session with a target: what precedes the request, then the request itself.

use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::invocation::{self, Job};
use crate::opaque::Entrance;
use crate::request::{Destination, Preparation, Request, Terminal};
use crate::respond::Unopened;
use crate::spool::{Inlet, spool};
use russh::server::{Handle, Msg};
use russh::{Channel, ChannelId, ChannelMsg, ChannelReadHalf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of a counted number of places.
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Slot {
    /// Takes a place, if one is free.
    pub(crate) fn take(count: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let taken = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            (taken < limit).then_some(taken + 1)
        });
        taken.is_ok().then(|| Self(Arc::clone(count)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs what serves a channel. Where that fails, the channel is closed, so that nobody waits on it.
pub(crate) async fn closing(
    channel: ChannelId,
    handle: Handle,
    serving: impl Future<Output = ()> + Send + 'static,
) {
    // What it says of the failure can hold anything.
    if tokio::spawn(serving).await.is_err() {
        tracing::error!("what served a channel has failed");
        if handle.close(channel).await.is_err() {
            tracing::debug!("its session had ended before");
        }
    }
}

/// A forwarding through the target, if policy lets it.
pub(crate) async fn forward(
    shared: Arc<Shared>,
    destination: Arc<Destination>,
    (host, port): (String, u32),
    entrance: Entrance,
) {
    let Entrance { channel, handle, reply, inlet } = entrance;
    let Ok(port) = u16::try_from(port) else {
        let reason = "affiant: the port is none".to_owned();
        return reply.reject(Unopened::Prohibited.saying(reason)).await;
    };
    let _under_way = shared.under_way();
    let (read, write) = channel.split();
    let (spool, attendance) = spool(read, inlet, shared.standing(&destination.agent));
    let stall = shared.options.client_stall;
    let downstream = Downstream::new(write, handle, attendance, stall, false).held(reply);
    let (request, preparation) = (Request::Forward { host, port }, Preparation::default());
    invocation::run(Job { shared, destination, request, preparation }, downstream, spool).await;
}

/// One session channel: what precedes the request, then the request itself.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    inlet: Inlet,
    destination: Arc<Destination>,
    channel: Channel<Msg>,
    handle: Handle,
) {
    let (mut read, write) = channel.split();
    let Some((request, preparation)) = prepare(&mut read).await else { return };
    let _under_way = shared.under_way();
    let (spool, attendance) = spool(read, inlet, shared.standing(&destination.agent));
    let has_terminal = preparation.terminal.is_some();
    let stall = shared.options.client_stall;
    let downstream = Downstream::new(write, handle, attendance, stall, has_terminal);
    invocation::run(Job { shared, destination, request, preparation }, downstream, spool).await;
}

/// Collects terminal and variables until a request comes; none when the client leaves before.
pub(crate) async fn prepare(read: &mut ChannelReadHalf) -> Option<(Request, Preparation)> {
    let mut preparation = Preparation::default();
    loop {
        let message = read.wait().await?;
        if let ChannelMsg::Exec { command, .. } = message {
            return Some((Request::Exec(command), preparation));
        } else if let ChannelMsg::RequestShell { .. } = message {
            return Some((Request::Shell, preparation));
        } else if let ChannelMsg::RequestSubsystem { name, .. } = message {
            return Some((Request::Subsystem(name), preparation));
        } else if let ChannelMsg::SetEnv { variable_name, variable_value, .. } = message {
            preparation.set(variable_name, variable_value);
        } else if let ChannelMsg::RequestPty {
            term,
            col_width,
            row_height,
            pix_width,
            pix_height,
            terminal_modes,
            ..
        } = message
        {
            preparation.terminal = Some(Terminal {
                term,
                size: [col_width, row_height, pix_width, pix_height],
                modes: terminal_modes,
            });
        } else if let ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height } =
            message
        {
            if let Some(terminal) = &mut preparation.terminal {
                terminal.size = [col_width, row_height, pix_width, pix_height];
            }
        } else if let ChannelMsg::Close = message {
            return None;
        }
    }
}
