//! A call written in one line, as people name it: `POST https://host/path`, `ssh user@host command`.

use crate::document::value;
use crate::{Body, Details, Explanation, HttpAction, Scheme, Snapshot, SshAction, SshRequest};

/// Why a line names no call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Neither a method and a URL nor an SSH call.
    #[error(
        "a call is METHOD URL, or ssh USER@HOST[:PORT] [COMMAND], sftp USER@HOST[:PORT], \
         subsystem NAME USER@HOST[:PORT], forward USER@HOST[:PORT] TO:PORT"
    )]
    Form,
    /// The method is none that a request has.
    #[error("the method is one word of a request, as GET")]
    Method,
    /// The URL is not whole.
    #[error("name the whole URL, with http:// or https:// and a host, without user or password")]
    Url,
    /// The port is not one.
    #[error("the port is to be a number from 1 to 65535")]
    Port,
    /// The SSH target lacks its user.
    #[error("name the target as USER@HOST[:PORT]")]
    Target,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Over HTTP.
    Http {
        /// The method.
        method: String,
        /// The scheme.
        scheme: Scheme,
        /// The host, an IPv6 literal in brackets.
        host: String,
        /// The port.
        port: u16,
        /// The path.
        path: String,
        /// The query.
        query: Option<String>,
    },
    /// Over SSH.
    Ssh {
        /// The login name.
        user: String,
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// What is asked for.
        request: Request,
    },
}

/// What else of an HTTP request conditions look at, as people name it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rest {
    /// Header fields.
    pub headers: Vec<(String, String)>,
    /// The content. Taken for JSON where no `Content-Type` says what it is.
    pub body: Option<String>,
}

/// What an SSH call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A command.
    Exec(String),
    /// A shell.
    Shell,
    /// A subsystem.
    Subsystem(String),
    /// A forwarded connection.
    Forward(String, u16),
}

impl Call {
    /// Reads a call from its words; an SSH command keeps single blanks between its words.
    ///
    /// # Errors
    /// [`Error`].
    pub fn from_words<S: AsRef<str>>(words: &[S]) -> Result<Self, Error> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        match words.as_slice() {
            ["ssh", target] => Self::ssh(target, Request::Shell),
            ["ssh", target, command @ ..] => Self::ssh(target, Request::Exec(command.join(" "))),
            ["sftp", target] => Self::ssh(target, Request::Subsystem("sftp".to_owned())),
            ["subsystem", name, target] => {
                Self::ssh(target, Request::Subsystem((*name).to_owned()))
            }
            ["forward", target, to] => {
                let (host, port) = to.rsplit_once(':').ok_or(Error::Port)?;
                let port = port_of(port)?;
                Self::ssh(target, Request::Forward(host.to_owned(), port))
            }
            [method, url] => Self::http(method, url),
            _ => Err(Error::Form),
        }
    }

    /// Reads a call from a line. An SSH command is taken byte by byte after the target.
    ///
    /// # Errors
    /// [`Error`].
    pub fn parse(line: &str) -> Result<Self, Error> {
        if let Some(rest) = line.strip_prefix("ssh ")
            && let Some((target, command)) = rest.split_once(' ')
        {
            return Self::ssh(target, Request::Exec(command.to_owned()));
        }
        Self::from_words(&line.split_ascii_whitespace().collect::<Vec<_>>())
    }

    fn http(method: &str, url: &str) -> Result<Self, Error> {
        if !value::is_token(method) {
            return Err(Error::Method);
        }
        let (scheme, rest) = match url.split_once("://") {
            // The opening of a tunnel is a call of https, whatever goes through it.
            Some(("http", _)) if method == CONNECT => return Err(Error::Url),
            None if method == CONNECT => (Scheme::Https, url),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(_) | None => return Err(Error::Url),
        };
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at_checked(end).ok_or(Error::Url)?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        if authority.contains('@') {
            return Err(Error::Url);
        }
        let (host, port) = host_and_port(authority, scheme.default_port())?;
        if host.is_empty() {
            return Err(Error::Url);
        }
        let path = if path.is_empty() { "/" } else { path }.to_owned();
        Ok(Self::Http { method: method.to_owned(), scheme, host, port, path, query })
    }

    fn ssh(target: &str, request: Request) -> Result<Self, Error> {
        let (user, rest) = target.split_once('@').ok_or(Error::Target)?;
        let (host, port) = host_and_port(rest, 22)?;
        if user.is_empty() || host.is_empty() {
            return Err(Error::Target);
        }
        Ok(Self::Ssh { user: user.to_owned(), host, port, request })
    }

    /// Explains the decision on the call; the rest counts for HTTP only.
    #[must_use]
    pub fn explain(&self, snapshot: &Snapshot, agent: &str, rest: &Rest) -> Explanation {
        match self {
            Self::Http { method, scheme, host, port, path, query } => {
                let action = HttpAction { agent, scheme: *scheme, host, port: *port, method, path };
                let bytes = |(name, value): &(String, String)| {
                    (name.clone().into_bytes(), value.clone().into_bytes())
                };
                let mut owned: Vec<_> = rest.headers.iter().map(bytes).collect();
                let typed = |(name, _): &(Vec<u8>, _)| name.eq_ignore_ascii_case(TYPE);
                if rest.body.is_some() && !owned.iter().any(typed) {
                    owned.push((TYPE.to_vec(), b"application/json".to_vec()));
                }
                let fields: Vec<_> =
                    owned.iter().map(|(n, v)| (n.as_slice(), v.as_slice())).collect();
                let body = rest.body.as_ref().map_or(Body::Absent, |b| Body::Whole(b.as_bytes()));
                let details = Details { query: query.as_deref(), headers: &fields, body };
                snapshot.explain_http_with(&action, &details)
            }
            Self::Ssh { user, host, port, request } => {
                let request = match request {
                    Request::Exec(command) => SshRequest::Exec(command.as_bytes()),
                    Request::Shell => SshRequest::Shell,
                    Request::Subsystem(name) => SshRequest::Subsystem(name),
                    Request::Forward(host, port) => SshRequest::Forward { host, port: *port },
                };
                snapshot.explain_ssh(&SshAction { agent, host, port: *port, user, request })
            }
        }
    }
}

/// The method that opens a tunnel.
pub(crate) const CONNECT: &str = "CONNECT";

/// The field that says what content is.
const TYPE: &[u8] = b"content-type";

fn host_and_port(text: &str, default: u16) -> Result<(String, u16), Error> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            Ok((host.to_owned(), port_of(port)?))
        }
        Some(_) | None => Ok((text.to_owned(), default)),
    }
}

fn port_of(text: &str) -> Result<u16, Error> {
    text.parse().ok().filter(|&port| port != 0).ok_or(Error::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let http = |host: &str, port, path: &str, query: Option<&str>| Call::Http {
            method: "GET".to_owned(),
            scheme: Scheme::Https,
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            query: query.map(str::to_owned),
        };
        for (line, expected) in [
            ("GET https://h.test", http("h.test", 443, "/", None)),
            ("GET https://h.test:8443/a?b=c#d", http("h.test", 8443, "/a", Some("b=c"))),
            ("GET https://h.test?b", http("h.test", 443, "/", Some("b"))),
            ("GET https://[::1]:1/x", http("[::1]", 1, "/x", None)),
            ("GET https://[::1]/x", http("[::1]", 443, "/x", None)),
        ] {
            assert_eq!(Call::parse(line), Ok(expected), "{line}");
        }
        assert_eq!(Call::parse("CONNECT https://h.test:8443"), Call::parse("CONNECT h.test:8443"));
        let ssh =
            |port, request| Call::Ssh { user: "u".to_owned(), host: "h".to_owned(), port, request };
        for (line, expected) in [
            ("ssh u@h", ssh(22, Request::Shell)),
            ("ssh u@h:2222 a  b", ssh(2222, Request::Exec("a  b".to_owned()))),
            ("sftp u@h", ssh(22, Request::Subsystem("sftp".to_owned()))),
            ("subsystem netconf u@h", ssh(22, Request::Subsystem("netconf".to_owned()))),
            ("forward u@h db:5432", ssh(22, Request::Forward("db".to_owned(), 5432))),
        ] {
            assert_eq!(Call::parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", Error::Form),
            ("GET", Error::Form),
            ("GET h.test/", Error::Url),
            ("GET ftp://h.test/", Error::Url),
            ("GET https:///x", Error::Url),
            ("GET https://u@h/", Error::Url),
            ("GET https://user:pw@h/", Error::Url),
            ("G\u{e9}T https://h/", Error::Method),
            ("CONNECT http://h/", Error::Url),
            ("GET https://h:0/", Error::Port),
            ("ssh h", Error::Target),
            ("ssh @h", Error::Target),
            ("forward u@h db", Error::Port),
        ] {
            assert_eq!(Call::parse(line), Err(expected), "{line}");
        }
        // In a shell's quotes two words are one.
        for method in ["G ET", "", "GET/"] {
            let words = [method, "https://h/"];
            assert_eq!(Call::from_words(&words), Err(Error::Method), "{method}");
        }
    }
}
