//! The outer hop: who is there, and where do they want to jump to.
//!
//! An agent jumps on by `direct-tcpip`, or asks the gateway itself by a session. A login as
//! `USER%TARGET` is a session with that target. The text of a refusal is all that the user sees.

use crate::control::Name;
use crate::gateway::Shared;
use crate::inner::{self, Jump, Slot};
use crate::invocation::record_refusal;
use crate::line::Line;
use crate::opaque::{self, Entrance};
use crate::own;
use crate::request::Destination;
use crate::respond;
use journal::contract::{Accepted, Code, Ended, Gateway, Retry, Verdict};
use russh::keys::PublicKey;
use russh::server::{
    Auth, ChannelOpenHandle, Handler, Msg, PublicKeyOffer, Response, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, Pty};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The methods of the outer login.
pub(crate) fn methods() -> MethodSet {
    MethodSet::from(
        &[MethodKind::PublicKey, MethodKind::Password, MethodKind::KeyboardInteractive][..],
    )
}

/// As what somebody logged in.
#[derive(Debug, Clone)]
enum Entry {
    /// An agent, to jump on or to ask the gateway itself.
    Agent(String),
    /// An agent with a session at a target.
    Target(Arc<Destination>),
}

impl Entry {
    fn of(name: &Name<'_>, agent: String) -> Self {
        match *name {
            Name::Agent(_) => Self::Agent(agent),
            Name::Target { user, host, port } => Self::Target(Arc::new(Destination {
                agent,
                host: host.to_owned(),
                port,
                user: user.to_owned(),
            })),
        }
    }
}

/// The engine's handler of one outer session.
pub(crate) struct Outer {
    shared: Arc<Shared>,
    line: Arc<Line>,
    entry: Option<Entry>,
    /// Channels on which a command was asked for: there is one per channel (RFC 4254 section 6.5).
    started: HashSet<ChannelId>,
    tries: usize,
    /// Whether somebody tried to log in with a token or a key that is not the agent's.
    refused: Arc<AtomicBool>,
    logged_in: Option<oneshot::Sender<()>>,
    channels: Arc<AtomicUsize>,
}

impl Outer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        line: Arc<Line>,
        refused: Arc<AtomicBool>,
        logged_in: oneshot::Sender<()>,
    ) -> Self {
        Self {
            shared,
            line,
            entry: None,
            started: HashSet::new(),
            tries: 0,
            refused,
            logged_in: Some(logged_in),
            channels: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// Judges a token; compared in constant time by policy.
    fn try_token(&mut self, login: &str, token: &str) -> Auth {
        if self.tries >= self.shared.options.max_login_attempts {
            return refused(MethodSet::empty());
        }
        self.tries += 1;
        let policy = &self.shared.policy;
        let token = token.trim_end_matches(['\r', '\n']);
        let name = Name::parse(login);
        let agent = name.as_ref().and_then(|name| match name {
            Name::Agent(agent) => policy.authenticate(agent, token).then(|| (*agent).to_owned()),
            Name::Target { .. } => policy.agent_by_token(token),
        });
        if let Some((name, agent)) = name.zip(agent) {
            self.entry = Some(Entry::of(&name, agent));
            return Auth::Accept;
        }
        self.refused.store(true, Ordering::Release);
        if self.tries >= self.shared.options.max_login_attempts {
            refused(MethodSet::empty())
        } else {
            refused(methods())
        }
    }

    /// What the key lets its owner in as.
    fn entry_by_key(&self, login: &str, key: &PublicKey) -> Option<Entry> {
        let name = Name::parse(login)?;
        let agent = match name {
            Name::Agent(agent) => self
                .accepts_key(agent, key)
                .then(|| agent.to_owned())
                .filter(|agent| self.shared.knows_agent(agent)),
            Name::Target { .. } => {
                self.shared.agents().into_iter().find(|agent| self.accepts_key(agent, key))
            }
        };
        agent.map(|agent| Entry::of(&name, agent))
    }

    /// Whether the key is the agent's: registered in policy, or the agent's own key file.
    fn accepts_key(&self, agent: &str, key: &PublicKey) -> bool {
        let registered =
            key.to_openssh().is_ok_and(|line| self.shared.policy.authenticate_key(agent, &line));
        let known = registered || self.shared.identity.accepts(agent, key);
        known && self.shared.policy.is_current(agent)
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

fn refused(methods: MethodSet) -> Auth {
    Auth::Reject { proceed_with_methods: Some(methods), partial_success: false }
}

impl Handler for Outer {
    type Error = russh::Error;

    async fn auth_none(&mut self, _user: &str) -> Result<Auth, Self::Error> {
        Ok(refused(methods()))
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
        if self.entry_by_key(user, offer.public_key).is_some() {
            Ok(Auth::Accept)
        } else {
            Ok(refused(methods()))
        }
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        self.entry = self.entry_by_key(user, key.public_key);
        if self.entry.is_some() {
            return Ok(Auth::Accept);
        }
        self.refused.store(true, Ordering::Release);
        Ok(refused(methods()))
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
        let (Some(slot), Some(entry)) = (slot, self.entry.clone()) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        reply.accept().await;
        let (shared, line) = (Arc::clone(&self.shared), Arc::clone(&self.line));
        let handle = session.handle();
        tokio::spawn(async move {
            match entry {
                Entry::Agent(agent) => own::serve(shared, line, agent, channel, handle).await,
                Entry::Target(destination) => {
                    inner::serve_channel(shared, line, destination, channel, handle).await;
                }
            }
            drop(slot);
        });
        Ok(())
    }

    fn adjust_window(&mut self, channel: ChannelId, current: u32) -> u32 {
        // Jumps are slowed down inside.
        if self.started.contains(&channel) { self.line.window() } else { current }
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
        let (Some(slot), Some(entry)) = (slot, self.entry.clone()) else {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        };
        let to = (host.to_owned(), port);
        let (shared, line) = (Arc::clone(&self.shared), Arc::clone(&self.line));
        let entrance = Entrance { channel, handle: session.handle(), reply, line };
        tokio::spawn(async move {
            match entry {
                Entry::Agent(agent) => jump(shared, agent, to, entrance).await,
                Entry::Target(destination) => {
                    inner::forward(shared, destination, to, entrance).await;
                }
            }
            drop(slot);
        });
        Ok(())
    }
}

/// A jump on: ended here, or relayed as it is where policy says so.
async fn jump(shared: Arc<Shared>, agent: String, (host, port): (String, u32), to: Entrance) {
    let refuse = |reason| ChannelOpenFailure::Other { code: 1, reason };
    let port = match judge(&shared, &agent, &host, port).await {
        Ok(port) => port,
        Err(reason) => return to.reply.reject(refuse(reason)).await,
    };
    let relayed = shared.policy.snapshot().ssh_relay(&agent, &host, port);
    let jump = Jump { agent, host, port };
    match relayed {
        Ok(None) => {
            let Entrance { channel, reply, line, .. } = to;
            reply.accept().await;
            inner::serve(shared, line, jump, channel.into_stream()).await;
        }
        Ok(Some(grant)) => opaque::serve(shared, jump, grant, to).await,
        Err(denial) => {
            let target = jump_target(&jump.host, u32::from(port));
            let reason = refuse_jump(
                &shared,
                &jump.agent,
                target,
                (denial.verdict(), denial.message, denial.field),
            );
            to.reply.reject(refuse(reason.await)).await;
        }
    }
}

/// Whether the agent may jump there; a refusal is recorded and explained.
async fn judge(shared: &Shared, agent: &str, host: &str, port: u32) -> Result<u16, String> {
    let (verdict, message, field) = match u16::try_from(port).ok().filter(|port| *port != 0) {
        None => {
            let verdict = Verdict::refused(Retry::AfterCorrection, Code::InvalidTarget);
            (verdict, "The target's port is none.".to_owned(), "target.port".to_owned())
        }
        Some(_) if !shared.policy.is_current(agent) => {
            let verdict = Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated);
            (
                verdict,
                "The agent of this login was removed, or its access ended.".to_owned(),
                "agent".to_owned(),
            )
        }
        Some(port) => match shared.policy.snapshot().ssh_target(agent, host, port) {
            Ok(()) => return Ok(port),
            Err(denial) => (denial.verdict(), denial.message, denial.field),
        },
    };
    let target = jump_target(host, port);
    Err(refuse_jump(shared, agent, target, (verdict, message, field)).await)
}

/// Records the refusal of a jump; answers what the client is told.
async fn refuse_jump(
    shared: &Shared,
    agent: &str,
    target: String,
    (verdict, message, field): (Verdict, String, String),
) -> String {
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: Some(agent.to_owned()),
        action: "jump".to_owned(),
        target,
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: None,
    };
    let ended =
        Ended { verdict, message, field: Some(field), not_before_ms: None, observation: None };
    respond::summary(&record_refusal(shared, accepted, ended).await)
}

/// The target of a jump as records name it: the host comes from the client, so only plain names and
/// addresses are kept.
fn jump_target(host: &str, port: u32) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.len() > 255 || !host.chars().all(plain) {
        return String::new();
    }
    if host.contains(':') {
        format!("ssh://[{host}]:{port}")
    } else {
        format!("ssh://{host}:{port}")
    }
}

/// Records a connection on which nobody logged in though somebody tried.
pub(crate) async fn record_refused_login(shared: &Shared) {
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: None,
        action: "login".to_owned(),
        target: String::new(),
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: None,
    };
    let ended = Ended {
        verdict: Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated),
        message: "Nobody logged in: the token or key is not the agent's.".to_owned(),
        field: Some("request.login".to_owned()),
        not_before_ms: None,
        observation: None,
    };
    drop(record_refusal(shared, accepted, ended).await);
}
