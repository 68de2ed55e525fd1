//! The control API as the gateway reaches it, and the way in that asks for it.

use bytes::Bytes;
use http::{Request, Response};

/// The control API, asked on behalf of an agent: it answers for that agent's own invocations only.
#[async_trait::async_trait]
pub trait Control: Send + Sync {
    /// Answers one request; its target is a path with a query, as in `/v1/invocations?limit=5`.
    async fn call(&self, agent: &str, request: Request<Bytes>) -> Response<Bytes>;
}

/// Who logged in at the gateway, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name<'a> {
    /// `AGENT`: to jump from here, or for the gateway's own commands.
    Agent(&'a str),
    /// `USER%HOST` or `USER%HOST:PORT`: a session with that target. The token or key says whose.
    Target {
        /// The login name at the target.
        user: &'a str,
        /// Its host.
        host: &'a str,
        /// Its port.
        port: u16,
    },
}

impl<'a> Name<'a> {
    /// Reads a login name; none if it names a target that is none.
    pub(crate) fn parse(login: &'a str) -> Option<Self> {
        let Some((user, place)) = login.split_once('%') else { return Some(Self::Agent(login)) };
        let (host, port) = match place.strip_prefix('[') {
            Some(literal) => {
                let (host, rest) = literal.split_once(']')?;
                (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None if place.matches(':').count() > 1 => (place, None),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => 22,
        };
        let is_named = !user.is_empty() && !host.is_empty() && !host.contains('%');
        is_named.then_some(Self::Target { user, host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_names_lead_to_agents_and_targets() {
        let target = |user, host, port| Some(Name::Target { user, host, port });
        let cases = [
            ("coder", Some(Name::Agent("coder"))),
            ("deploy%prod-1", target("deploy", "prod-1", 22)),
            ("deploy%prod-1:2222", target("deploy", "prod-1", 2222)),
            ("deploy%[::1]:2222", target("deploy", "::1", 2222)),
            ("deploy%[::1]", target("deploy", "::1", 22)),
            ("deploy%::1", target("deploy", "::1", 22)),
            ("%prod-1", None),
            ("deploy%", None),
            ("deploy%prod-1:0", None),
            ("deploy%prod-1:x", None),
            ("deploy%[::1", None),
            ("a%b%c", None),
        ];
        for (login, expected) in cases {
            assert_eq!(Name::parse(login), expected, "{login}");
        }
    }
}
