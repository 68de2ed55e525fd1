//! Who gets in at a hop, and as what.
//!
//! The gateway's own door takes an agent's token or key. The door of a jump's inner session takes
//! `none` and any key: the outer login has proved who is there, and OpenSSH tries `none` first.

use crate::control::Name;
use crate::gateway::Shared;
use crate::request::{Agent, Destination};
use russh::keys::PublicKey;
use russh::server::Auth;
use russh::{MethodKind, MethodSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// As what somebody logged in.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// An agent, to jump on or to ask the gateway itself.
    Agent(Agent),
    /// An agent with a session at a target.
    Target(Arc<Destination>),
}

impl Entry {
    fn of(name: &Name<'_>, agent: Agent) -> Self {
        match *name {
            Name::Agent(_) => Self::Agent(agent),
            Name::Target { user, host, port } => Self::target(agent, host, port, user),
        }
    }

    fn target(agent: Agent, host: &str, port: u16, user: &str) -> Self {
        let (host, user) = (host.to_owned(), user.to_owned());
        Self::Target(Arc::new(Destination { agent, host, port, user }))
    }
}

/// Where a jump leads.
#[derive(Debug)]
pub(crate) struct Jump {
    pub(crate) agent: Agent,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The way in at one hop.
#[derive(Debug)]
pub(crate) enum Door {
    /// Of the gateway.
    Gateway {
        tries: usize,
        /// Whether somebody tried to log in with a token or a key that is not the agent's.
        refused: Arc<AtomicBool>,
    },
    /// Of the session inside a jump.
    Jump(Jump),
}

impl Door {
    /// The methods that it takes.
    pub(crate) fn methods(&self) -> MethodSet {
        match self {
            Self::Gateway { .. } => MethodSet::from(
                &[MethodKind::PublicKey, MethodKind::Password, MethodKind::KeyboardInteractive][..],
            ),
            Self::Jump(_) => MethodSet::from(&[MethodKind::None, MethodKind::PublicKey][..]),
        }
    }

    /// Lets in without a proof.
    pub(crate) fn freely(&self, user: &str) -> Option<Entry> {
        match self {
            Self::Gateway { .. } => None,
            Self::Jump(Jump { agent, host, port }) => {
                Some(Entry::target(agent.clone(), host, *port, user))
            }
        }
    }

    /// Judges a token; compared in constant time by policy.
    pub(crate) fn by_token(
        &mut self,
        shared: &Shared,
        login: &str,
        token: &str,
    ) -> Result<Entry, Auth> {
        let limit = shared.options.max_login_attempts;
        let methods = self.methods();
        let Self::Gateway { tries, refused } = self else { return Err(refusal(methods)) };
        if *tries >= limit {
            return Err(refusal(MethodSet::empty()));
        }
        *tries += 1;
        let policy = &shared.policy;
        let token = token.trim_end_matches(['\r', '\n']);
        let name = Name::parse(login);
        let agent = name.as_ref().and_then(|name| match name {
            Name::Agent(agent) => policy.authenticate(agent, token).then(|| (*agent).to_owned()),
            Name::Target { .. } => policy.agent_by_token(token),
        });
        let agent = agent.and_then(|agent| shared.agent(&agent));
        if let Some((name, agent)) = name.zip(agent) {
            return Ok(Entry::of(&name, agent));
        }
        refused.store(true, Ordering::Release);
        Err(refusal(if *tries >= limit { MethodSet::empty() } else { methods }))
    }

    /// What the key lets its owner in as.
    pub(crate) fn by_key(&self, shared: &Shared, login: &str, key: &PublicKey) -> Option<Entry> {
        if let Self::Jump(_) = self {
            return self.freely(login);
        }
        let name = Name::parse(login)?;
        let agent = match name {
            Name::Agent(agent) => {
                shared.agent(agent).filter(|agent| accepts(shared, &agent.name, key))
            }
            Name::Target { .. } => {
                let mut agents = shared.agents().into_iter();
                agents.find(|agent| accepts(shared, &agent.name, key))
            }
        };
        agent.map(|agent| Entry::of(&name, agent))
    }

    /// Refuses a proof that was none.
    pub(crate) fn refuse(&self) -> Auth {
        match self {
            Self::Gateway { refused, .. } => refused.store(true, Ordering::Release),
            Self::Jump(_) => {}
        }
        refusal(self.methods())
    }
}

/// Whether the key is the agent's: registered in policy, or the agent's own key file.
fn accepts(shared: &Shared, agent: &str, key: &PublicKey) -> bool {
    let registered =
        key.to_openssh().is_ok_and(|line| shared.policy.authenticate_key(agent, &line));
    registered || shared.identity.accepts(agent, key)
}

/// A refusal after which these methods go on.
pub(crate) fn refusal(methods: MethodSet) -> Auth {
    Auth::Reject { proceed_with_methods: Some(methods), partial_success: false }
}
