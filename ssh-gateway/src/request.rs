//! What one session channel asks for, and what makes two of them the same.

use journal::contract::{Digest, Fingerprint};
use policy::{SshAction, SshGrant, SshRequest};
use russh::Pty;
use std::collections::BTreeMap;

/// The variable by which a caller names the invocation itself (contract K-10). It passes on as the name
/// of the action, and only where the route's list says so.
pub(crate) const INVOCATION_VARIABLE: &str = "AFFIANT_INVOCATION";

/// Variables per channel at most.
const MAX_VARIABLES: usize = 64;

/// Bytes of their names and values at most.
const MAX_VARIABLE_BYTES: usize = 64 << 10;

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

    /// The digest over agent, user, host, port, kind of request, exact command bytes, the variables
    /// that go along and whether there is a terminal (contract V-6, K-10, K-11). Each part goes in
    /// with its length, so that no two lists look alike.
    pub(crate) fn fingerprint(
        &self,
        destination: &Destination,
        preparation: &Preparation,
    ) -> Fingerprint {
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
        let mut parts: Vec<&[u8]> = vec![
            b"affiant ssh 1",
            destination.agent.name.as_bytes(),
            destination.user.as_bytes(),
            destination.host.as_bytes(),
            &port,
            kind.as_bytes(),
            detail,
        ];
        // The last one of a name counts, as at the target.
        let variables: BTreeMap<&str, &str> =
            preparation.variables.iter().map(|(name, value)| (&**name, &**value)).collect();
        for (name, value) in &variables {
            parts.extend([b"variable".as_slice(), name.as_bytes(), value.as_bytes()]);
        }
        if preparation.terminal.is_some() {
            parts.push(b"terminal");
        }
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
    /// Whether more variables came than are taken.
    pub(crate) is_cut: bool,
    /// The caller's own invocation id, as text.
    pub(crate) invocation: Option<String>,
}

impl Preparation {
    /// Takes a variable; whether it passes on is the route's to say.
    pub(crate) fn set(&mut self, name: String, value: String) {
        if name == INVOCATION_VARIABLE {
            self.invocation = Some(value);
            return;
        }
        let lengths = self.variables.iter().map(|(name, value)| name.len() + value.len());
        let held_bytes: usize = lengths.sum();
        let now_bytes = held_bytes.saturating_add(name.len()).saturating_add(value.len());
        if self.variables.len() < MAX_VARIABLES && now_bytes <= MAX_VARIABLE_BYTES {
            self.variables.push((name, value));
        } else {
            self.is_cut = true;
        }
    }

    /// Drops the variables that the route does not pass on.
    pub(crate) fn pass(&mut self, grant: &SshGrant) {
        self.variables.retain(|(name, _)| grant.passes_variable(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination() -> Destination {
        let agent = Agent { name: "a".into(), token_set_at_ms: 1 };
        Destination { agent, host: "h".into(), port: 22, user: "u".into() }
    }

    /// V-6, K-10, K-11: every part counts, and none runs into the next.
    #[test]
    fn k_11_fingerprint_covers_all_that_is_sent() {
        let plain = Preparation::default();
        let ls = |destination: &Destination, preparation: &Preparation| {
            Request::Exec(b"ls".to_vec()).fingerprint(destination, preparation)
        };
        let base = ls(&destination(), &plain);
        assert_eq!(base, ls(&destination(), &plain));
        let mut others = vec![
            Request::Exec(b"ls ".to_vec()).fingerprint(&destination(), &plain),
            Request::Exec(b"ls\xff".to_vec()).fingerprint(&destination(), &plain),
            Request::Subsystem("ls".into()).fingerprint(&destination(), &plain),
            Request::Shell.fingerprint(&destination(), &plain),
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
            others.push(ls(&changed, &plain));
        }
        let with = |variables: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let variables = variables.iter().map(pair).collect();
            Preparation { variables, ..Preparation::default() }
        };
        for variables in [&[("V", "1")][..], &[("V", "2")], &[("V1", "")], &[("V", "1"), ("W", "")]]
        {
            others.push(ls(&destination(), &with(variables)));
        }
        let terminal = Terminal { term: "xterm".into(), size: [80, 24, 0, 0], modes: Vec::new() };
        let terminal = Preparation { terminal: Some(terminal), ..Preparation::default() };
        others.push(ls(&destination(), &terminal));
        others.push(base);
        let count = others.len();
        others.sort();
        others.dedup();
        assert_eq!(others.len(), count);
        // The order of names is no difference, and the last value of a name counts.
        let [one, other] = [&[("V", "1"), ("W", "2")][..], &[("W", "2"), ("V", "0"), ("V", "1")]];
        assert_eq!(ls(&destination(), &with(one)), ls(&destination(), &with(other)));
    }

    /// Variables are bounded in number and in bytes, and what was cut is known.
    #[test]
    fn variables_are_bounded() {
        let mut preparation = Preparation::default();
        preparation.set("A".to_owned(), "x".repeat(MAX_VARIABLE_BYTES - 1));
        assert_eq!((preparation.variables.len(), preparation.is_cut), (1, false));
        preparation.set("B".to_owned(), String::new());
        assert_eq!((preparation.variables.len(), preparation.is_cut), (1, true));
        let mut preparation = Preparation::default();
        for number in 0..=MAX_VARIABLES {
            assert!(!preparation.is_cut);
            preparation.set(number.to_string(), String::new());
        }
        assert_eq!((preparation.variables.len(), preparation.is_cut), (MAX_VARIABLES, true));
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
