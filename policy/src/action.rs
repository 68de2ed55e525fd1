//! What an agent asks for, as the gateways hand it to the decision.

use std::fmt;

/// The scheme of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Clear text.
    Http,
    /// Over TLS.
    Https,
}

impl Scheme {
    /// The name in a URI.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that a URI without one means.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One HTTP action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpAction<'a> {
    /// The authenticated agent.
    pub agent: &'a str,
    /// The scheme.
    pub scheme: Scheme,
    /// The host as the request has it, an IPv6 literal with or without brackets.
    pub host: &'a str,
    /// The port.
    pub port: u16,
    /// The method, case-sensitive.
    pub method: &'a str,
    /// The raw path, without query.
    pub path: &'a str,
}

/// What else of an HTTP request conditions look at. By default nothing is known, and routes with
/// conditions do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Details<'a> {
    /// The raw query, without the question mark.
    pub query: Option<&'a str>,
    /// The header fields in their order: names in any case, and values.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The content.
    pub body: Body<'a>,
}

/// The content of an HTTP request, as conditions on it see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// There is none.
    Absent,
    /// All of it.
    Whole(&'a [u8]),
    /// It can't be judged, and why.
    Unreadable(&'static str),
}

impl Default for Body<'_> {
    fn default() -> Self {
        Self::Unreadable("it was not read")
    }
}

/// One SSH action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SshAction<'a> {
    /// The authenticated agent.
    pub agent: &'a str,
    /// The target's name as the client gave it.
    pub host: &'a str,
    /// The target's port.
    pub port: u16,
    /// The login name at the target.
    pub user: &'a str,
    /// What is asked of the target.
    pub request: SshRequest<'a>,
}

/// What an SSH channel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshRequest<'a> {
    /// A command, its exact bytes.
    Exec(&'a [u8]),
    /// An interactive shell.
    Shell,
    /// A subsystem by name; `sftp` is allowed by `allow = ["sftp"]`.
    Subsystem(&'a str),
    /// A forwarded connection (`direct-tcpip`) beyond the target.
    Forward {
        /// Where it leads.
        host: &'a str,
        /// Its port.
        port: u16,
    },
}
