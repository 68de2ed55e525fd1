//! The engine's handler of one SSH session of a client: the outer one with the gateway, and the
//! inner one that the client believes to have with the target. They differ in who gets in
//! ([`Door`]) and as what ([`Entry`]), and in nothing else.
//!
//! Requests that precede a command are answered on the spot; the command itself is answered with
//! success at once and explained on stderr if it is refused: a bare failure would tell the user
//! nothing, and the engine can't hold an answer back without stopping the connection. Each session
//! channel becomes one task.

use crate::channel::{self, Slot};
use crate::door::{Door, Entry, refusal};
use crate::gateway::Shared;
use crate::gauge::Gauge;
use crate::jump;
use crate::line::Line;
use crate::opaque::Entrance;
use crate::own;
use crate::spool::Inlet;
use crate::windows::Windows;
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, Pty};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::sync::{oneshot, watch};

/// The handler of one session.
pub(crate) struct Hop {
    shared: Arc<Shared>,
    line: Arc<Line>,
    windows: Windows,
    door: Door,
    entry: Option<Entry>,
    logged_in: Option<oneshot::Sender<()>>,
    channels: Arc<AtomicUsize>,
    /// Goes with the session.
    over: watch::Sender<bool>,
    /// Channels on which a command was asked for: there is one per channel (RFC 4254 section 6.5).
    started: HashSet<ChannelId>,
}

impl Hop {
    pub(crate) fn new(
        shared: Arc<Shared>,
        line: Arc<Line>,
        door: Door,
        logged_in: oneshot::Sender<()>,
    ) -> Self {
        Self {
            shared,
            line,
            windows: Windows::default(),
            door,
            entry: None,
            logged_in: Some(logged_in),
            channels: Arc::new(AtomicUsize::new(0)),
            over: watch::Sender::new(false),
            started: HashSet::new(),
        }
    }

    fn enter(&mut self, entry: Option<Entry>) -> Auth {
        self.entry = entry;
        if self.entry.is_some() { Auth::Accept } else { self.door.refuse() }
    }

    fn try_token(&mut self, login: &str, token: &str) -> Auth {
        match self.door.by_token(&self.shared, login, token) {
            Ok(entry) => self.enter(Some(entry)),
            Err(refusal) => refusal,
        }
    }

    /// Answers a request that starts something: the first one of the channel.
    fn start(&mut self, channel: ChannelId, session: &mut Session) -> Result<(), russh::Error> {
        if self.started.insert(channel) {
            session.channel_success(channel)
        } else {
            session.channel_failure(channel)
        }
    }

    /// The way in of a channel's input, whose gauge bounds its window from now on.
    fn inlet(&mut self, channel: ChannelId) -> Inlet {
        let limit_bytes = self.shared.options.stdin_spool_bytes;
        let gauge = Gauge::new(limit_bytes, &self.shared.pool);
        self.windows.open(channel.into(), Arc::clone(&gauge));
        Inlet { gauge, session_over: self.over.subscribe() }
    }

    /// Input came on a channel.
    fn received(&mut self, channel: ChannelId, session: &Session) {
        self.windows.received(channel.into(), session.window_size(&channel));
        self.line.starve(self.windows.is_any_full());
    }

    /// A place for one more channel, and who asks for it.
    fn admit(&self) -> Option<(Slot, Entry)> {
        let slot = Slot::take(&self.channels, self.shared.options.max_channels)?;
        Some((slot, self.entry.clone()?))
    }
}

impl Handler for Hop {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, Self::Error> {
        // A client that only asks for the methods proves nothing, and is refused without a mark.
        self.entry = self.door.freely(user);
        let is_in = self.entry.is_some();
        Ok(if is_in { Auth::Accept } else { refusal(self.door.methods()) })
    }

    async fn auth_password(&mut self, user: &str, password: &str) -> Result<Auth, Self::Error> {
        Ok(self.try_token(user, password))
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, Self::Error> {
        let Some(mut response) = response else {
            return Ok(Auth::Partial {
                name: "".into(),
                instructions: "".into(),
                prompts: vec![(format!("Affiant token of {user}: ").into(), false)].into(),
            });
        };
        let answer = response.next().unwrap_or_default();
        let answer = zeroize::Zeroizing::new(answer.to_vec());
        let token = std::str::from_utf8(&answer).unwrap_or_default();
        Ok(self.try_token(user, token))
    }

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        // An offer proves nothing and is refused without a mark: clients offer every key they have.
        let is_known = self.door.by_key(&self.shared, user, offer.public_key).is_some();
        Ok(if is_known { Auth::Accept } else { refusal(self.door.methods()) })
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        let entry = self.door.by_key(&self.shared, user, key.public_key);
        Ok(self.enter(entry))
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
        let Some((slot, entry)) = self.admit() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        reply.accept().await;
        let (shared, inlet) = (Arc::clone(&self.shared), self.inlet(channel.id()));
        let (id, handle) = (channel.id(), session.handle());
        let of_channel = handle.clone();
        let serving = async move {
            match entry {
                Entry::Agent(agent) => own::serve(shared, inlet, agent, channel, handle).await,
                Entry::Target(destination) => {
                    channel::serve(shared, inlet, destination, channel, handle).await;
                }
            }
            drop(slot);
        };
        tokio::spawn(channel::closing(id, of_channel, serving));
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
        let Some((slot, entry)) = self.admit() else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let to = (host.to_owned(), port);
        let shared = Arc::clone(&self.shared);
        let inlet = self.inlet(channel.id());
        let (id, handle) = (channel.id(), session.handle());
        let entrance = Entrance { channel, handle: handle.clone(), reply, inlet };
        let serving = async move {
            match entry {
                Entry::Agent(agent) => jump::serve(shared, agent, to, entrance).await,
                Entry::Target(destination) => {
                    channel::forward(shared, destination, to, entrance).await;
                }
            }
            drop(slot);
        };
        tokio::spawn(channel::closing(id, handle, serving));
        Ok(())
    }

    fn adjust_window(&mut self, channel: ChannelId, current: u32) -> u32 {
        self.windows.filled(channel.into(), current, self.line.next_packet_bytes())
    }

    async fn data(
        &mut self,
        channel: ChannelId,
        _data: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.received(channel, session);
        Ok(())
    }

    async fn extended_data(
        &mut self,
        channel: ChannelId,
        _code: u32,
        _data: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.received(channel, session);
        Ok(())
    }

    async fn channel_close(
        &mut self,
        channel: ChannelId,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.started.remove(&channel);
        self.windows.close(channel.into());
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
