//! The inner hop: the session that the client believes to have with the target.
//!
//! The outer login proved who the client is, so `none` is enough here, and OpenSSH tries it first.
//! Requests that precede the command are answered on the spot; the command itself is answered with
//! success at once and explained on stderr if it is refused: a bare failure would tell the user
//! nothing, and the engine can't hold an answer back without stopping the connection. Each session
//! channel becomes one task.

use crate::algorithms;
use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::invocation::{self, Job};
use crate::line::Line;
use crate::opaque::Entrance;
use crate::request::{Destination, Preparation, Request, Terminal};
use crate::spool::spool;
use russh::server::{Auth, ChannelOpenHandle, Handle, Handler, Msg, Session, VerifiedPublicKey};
use russh::{
    Channel, ChannelId, ChannelMsg, ChannelOpenFailure, ChannelReadHalf, ChannelStream, Disconnect,
    MethodKind, MethodSet, Pty,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use tokio::sync::oneshot;

/// Where a jump leads.
pub(crate) struct Jump {
    pub(crate) agent: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Serves the inner session on the jump's channel until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    line: Arc<Line>,
    jump: Jump,
    stream: ChannelStream<Msg>,
) {
    let names = [jump.host.as_str()];
    let certificate = match shared.identity.host_certificate(&names, SystemTime::now()) {
        Ok(certificate) => certificate,
        Err(error) => {
            tracing::error!(%error, "no host certificate for a target");
            return;
        }
    };
    let methods = MethodSet::from(&[MethodKind::None, MethodKind::PublicKey][..]);
    let host_key = shared.identity.host_key();
    let config = algorithms::server_config(&shared.options, host_key, certificate, methods);
    let grace = shared.options.login_grace;
    let (logged_in, login) = oneshot::channel();
    let handler = Inner {
        shared,
        line,
        jump,
        destination: None,
        logged_in: Some(logged_in),
        channels: Arc::new(AtomicUsize::new(0)),
        started: HashSet::new(),
    };
    let starting = tokio::time::timeout(grace, russh::server::run_stream(config, stream, handler));
    let session = match starting.await {
        Ok(Ok(session)) => session,
        Ok(Err(_)) | Err(_) => return,
    };
    let handle = session.handle();
    // The sender goes with the handler, so this also ends with the session.
    if tokio::time::timeout(grace, login).await.is_err() {
        let text = "login took too long".to_owned();
        drop(handle.disconnect(Disconnect::ByApplication, text, String::new()).await);
    }
    drop(handle);
    if let Err(error) = session.await {
        tracing::debug!(%error, "an inner session ended");
    }
}

/// The engine's handler of one inner session.
struct Inner {
    shared: Arc<Shared>,
    line: Arc<Line>,
    jump: Jump,
    destination: Option<Arc<Destination>>,
    logged_in: Option<oneshot::Sender<()>>,
    channels: Arc<AtomicUsize>,
    /// Channels on which a command was asked for: there is one per channel (RFC 4254 section 6.5).
    started: HashSet<ChannelId>,
}

impl Inner {
    fn enter(&mut self, user: &str) {
        let Jump { agent, host, port } = &self.jump;
        self.destination = Some(Arc::new(Destination {
            agent: agent.clone(),
            host: host.clone(),
            port: *port,
            user: user.to_owned(),
        }));
    }

    /// Answers a request that starts something: the first one of the channel.
    fn start(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        if self.started.insert(channel) {
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }
}

impl Handler for Inner {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, Self::Error> {
        self.enter(user);
        Ok(Auth::Accept)
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        self.enter(user);
        Ok(Auth::Accept)
    }

    async fn auth_succeeded(&mut self, _session: &mut Session) -> Result<(), Self::Error> {
        if self.logged_in.take().is_some_and(|logged_in| logged_in.send(()).is_err()) {
            tracing::debug!("nobody waits for this login any more");
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let slot = Slot::take(&self.channels, self.shared.options.max_channels);
        let (Some(slot), Some(destination)) = (slot, self.destination.clone()) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        reply.accept().await;
        let (shared, line) = (Arc::clone(&self.shared), Arc::clone(&self.line));
        let handle = session.handle();
        tokio::spawn(async move {
            serve_channel(shared, line, destination, channel, handle).await;
            drop(slot);
        });
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _originator: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let slot = Slot::take(&self.channels, self.shared.options.max_channels);
        let (Some(slot), Some(destination)) = (slot, self.destination.clone()) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let (shared, line) = (Arc::clone(&self.shared), Arc::clone(&self.line));
        let to = (host.to_owned(), port);
        let entrance = Entrance { channel, handle: session.handle(), reply, line };
        tokio::spawn(async move {
            forward(shared, destination, to, entrance).await;
            drop(slot);
        });
        Ok(())
    }

    fn adjust_window(&mut self, _channel: ChannelId, _current: u32) -> u32 {
        self.line.window()
    }

    async fn channel_close(
        &mut self,
        channel: ChannelId,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.started.remove(&channel);
        Ok(())
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _term: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_success(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single_connection: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        _value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        // Which variables pass is the route's to say, and the route is known with the command.
        session.channel_success(channel)
    }

    async fn shell_request(
        &mut self,
        channel: ChannelId,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, session)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        _command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, session)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.start(channel, session)
    }
}

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

/// A forwarding through the target, if policy lets it.
pub(crate) async fn forward(
    shared: Arc<Shared>,
    destination: Arc<Destination>,
    (host, port): (String, u32),
    entrance: Entrance,
) {
    let Entrance { channel, handle, reply, line } = entrance;
    let Ok(port) = u16::try_from(port) else {
        let reason = "affiant: the port is none".to_owned();
        return reply.reject(ChannelOpenFailure::Other { code: 1, reason }).await;
    };
    let _under_way = shared.under_way();
    let (read, write) = channel.split();
    let (spool, gone) = spool(read, line);
    let stall = shared.options.client_stall;
    let downstream = Downstream::new(write, handle, gone, stall, false).held(reply);
    let (request, preparation) = (Request::Forward { host, port }, Preparation::default());
    invocation::run(Job { shared, destination, request, preparation }, downstream, spool).await;
}

/// One session channel: what precedes the request, then the request itself.
pub(crate) async fn serve_channel(
    shared: Arc<Shared>,
    line: Arc<Line>,
    destination: Arc<Destination>,
    channel: Channel<Msg>,
    handle: Handle,
) {
    let (mut read, write) = channel.split();
    let Some((request, preparation)) = prepare(&mut read).await else { return };
    let _under_way = shared.under_way();
    let (spool, gone) = spool(read, line);
    let has_terminal = preparation.terminal.is_some();
    let stall = shared.options.client_stall;
    let downstream = Downstream::new(write, handle, gone, stall, has_terminal);
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
