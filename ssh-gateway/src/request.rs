//! What one session channel asks for, and what makes two of them the same.

use journal::contract::{Digest, Fingerprint};
use policy::{SshAction, SshRequest};
use russh::Pty;

/// The variable by which a caller names the invocation itself (contract K-10). It passes on as the name
/// of the action, and only where the route's list says so.
pub(crate) const INVOCATION_VARIABLE: &str = "AFFIANT_INVOCATION";

/// Variables per channel at most.
const MAX_VARIABLES: usize = 64;

/// An agent, by one login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent {
    pub(crate) name: String,
    /// When its token was set. A later one ends what was logged in before.
    pub(crate) token_set_at_ms: u64,
}

/// Where a session leads: the inner connection of one agent.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) agent: Agent,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
}

impl Destination {
    /// The place that a record names, for an agent.
    pub(crate) fn of_record(agent: Agent, target: &str) -> Option<Self> {
        let (user, place) = target.strip_prefix("ssh://")?.rsplit_once('@')?;
        let (host, port) = place.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let (host, user) = (bare.to_owned(), user.to_owned());
        Some(Self { agent, host, port: port.parse().ok()?, user })
    }

    /// The target as records name it.
    pub(crate) fn target(&self) -> String {
        let Self { host, port, user, .. } = self;
        if host.contains(':') {
            format!("ssh://{user}@[{host}]:{port}")
        } else {
            format!("ssh://{user}@{host}:{port}")
        }
    }
}

/// How long a request lasts, and what its client's leaving means for it (contract D-4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// The route's time bounds it. It is read to its end without its client.
    Command,
    /// It lasts as long as its input. A client that ended the input may leave: the rest is read to
    /// its end. One that leaves before ends it.
    Session,
    /// It ends with its client: a program under a terminal, or a connection onwards.
    Attached,
}

/// The request that starts something at the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// A command, its exact bytes.
    Exec(Vec<u8>),
    /// An interactive shell.
    Shell,
    /// A subsystem.
    Subsystem(String),
    /// A connection onwards from the target.
    Forward {
        /// The host as the target resolves it.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Request {
    /// The action's name in records.
    pub(crate) fn action(&self) -> String {
        match self {
            Self::Exec(_) => "exec".to_owned(),
            Self::Shell => "shell".to_owned(),
            Self::Subsystem(name) => format!("subsystem:{name}"),
            Self::Forward { host, port } => format!("forward:{host}:{port}"),
        }
    }

    /// The digest that stands for the command in records. The text can hold secrets.
    pub(crate) fn command(&self) -> Option<String> {
        match self {
            Self::Exec(command) => Some(Digest::of(command).to_string()),
            Self::Shell | Self::Subsystem(_) | Self::Forward { .. } => None,
        }
    }

    /// How long it lasts, with or without a terminal.
    pub(crate) const fn lifetime(&self, has_terminal: bool) -> Lifetime {
        match self {
            Self::Forward { .. } => Lifetime::Attached,
            Self::Exec(_) | Self::Shell | Self::Subsystem(_) if has_terminal => Lifetime::Attached,
            Self::Exec(_) => Lifetime::Command,
            Self::Shell | Self::Subsystem(_) => Lifetime::Session,
        }
    }

    /// The action as policy decides it.
    pub(crate) fn to_action<'a>(&'a self, destination: &'a Destination) -> SshAction<'a> {
        SshAction {
            agent: &destination.agent.name,
            host: &destination.host,
            port: destination.port,
            user: &destination.user,
            request: match self {
                Self::Exec(command) => SshRequest::Exec(command),
                Self::Shell => SshRequest::Shell,
                Self::Subsystem(name) => SshRequest::Subsystem(name),
                Self::Forward { host, port } => SshRequest::Forward { host, port: *port },
            },
        }
    }

    /// The digest over agent, user, host, port, kind of request and exact command bytes (contract
    /// K-10, K-11). Each part goes in with its length, so that no two lists look alike.
    pub(crate) fn fingerprint(&self, destination: &Destination) -> Fingerprint {
        let place;
        let (kind, detail): (&str, &[u8]) = match self {
            Self::Exec(command) => ("exec", command),
            Self::Shell => ("shell", b""),
            Self::Subsystem(name) => ("subsystem", name.as_bytes()),
            Self::Forward { host, port } => {
                place = format!("{host}:{port}");
                ("forward", place.as_bytes())
            }
        };
        let port = destination.port.to_be_bytes();
        let parts: [&[u8]; 7] = [
            b"affiant ssh 1",
            destination.agent.name.as_bytes(),
            destination.user.as_bytes(),
            destination.host.as_bytes(),
            &port,
            kind.as_bytes(),
            detail,
        ];
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Digest::of(&bytes)
    }
}

/// A terminal, as the client asked for it.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    pub(crate) term: String,
    /// Columns, rows, width and height in pixels.
    pub(crate) size: [u32; 4],
    pub(crate) modes: Vec<(Pty, u32)>,
}

/// What precedes the request on a channel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preparation {
    pub(crate) terminal: Option<Terminal>,
    pub(crate) variables: Vec<(String, String)>,
    /// The caller's own invocation id, as text.
    pub(crate) invocation: Option<String>,
}

impl Preparation {
    /// Takes a variable; whether it passes on is the route's to say.
    pub(crate) fn set(&mut self, name: String, value: String) {
        if name == INVOCATION_VARIABLE {
            self.invocation = Some(value);
        } else if self.variables.len() < MAX_VARIABLES {
            self.variables.push((name, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination() -> Destination {
        let agent = Agent { name: "a".into(), token_set_at_ms: 1 };
        Destination { agent, host: "h".into(), port: 22, user: "u".into() }
    }

    /// K-10, K-11: every part counts, and none runs into the next.
    #[test]
    fn k_11_fingerprint_covers_agent_user_host_port_kind_and_bytes() {
        let base = Request::Exec(b"ls".to_vec()).fingerprint(&destination());
        assert_eq!(base, Request::Exec(b"ls".to_vec()).fingerprint(&destination()));
        let mut others = vec![
            Request::Exec(b"ls ".to_vec()).fingerprint(&destination()),
            Request::Exec(b"ls\xff".to_vec()).fingerprint(&destination()),
            Request::Subsystem("ls".into()).fingerprint(&destination()),
            Request::Shell.fingerprint(&destination()),
        ];
        let changes: [fn(&mut Destination); 5] = [
            |d| d.agent.name = "b".into(),
            |d| d.user = "uh".into(),
            |d| d.host = "g".into(),
            |d| d.port = 23,
            |d| (d.user, d.host) = ("uh".into(), String::new()),
        ];
        for change in changes {
            let mut changed = destination();
            change(&mut changed);
            others.push(Request::Exec(b"ls".to_vec()).fingerprint(&changed));
        }
        others.push(base);
        let count = others.len();
        others.sort();
        others.dedup();
        assert_eq!(others.len(), count);
    }

    #[test]
    fn the_invocation_id_is_taken_out_of_the_variables() {
        let mut preparation = Preparation::default();
        for name in ["LANG", "LC_ALL", INVOCATION_VARIABLE] {
            preparation.set(name.to_owned(), "x".to_owned());
        }
        let names: Vec<_> = preparation.variables.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["LANG", "LC_ALL"]);
        assert_eq!(preparation.invocation.as_deref(), Some("x"));
    }

    #[test]
    fn targets_are_written_as_uris() {
        assert_eq!(destination().target(), "ssh://u@h:22");
        let literal = Destination { host: "::1".into(), ..destination() };
        assert_eq!(literal.target(), "ssh://u@[::1]:22");
        for known in [destination(), literal, Destination { user: "a@b".into(), ..destination() }] {
            let read = Destination::of_record(known.agent.clone(), &known.target()).unwrap();
            assert_eq!((&read.host, &read.user, read.port), (&known.host, &known.user, 22));
        }
        assert!(Destination::of_record(destination().agent, "https://h:443/").is_none());
    }
}
