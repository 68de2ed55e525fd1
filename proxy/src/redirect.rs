//! Redirects: whose answer sent an agent to where it goes next (contract C-7).
//!
//! Nothing is followed in here: a client that follows makes a new call, with everything validated
//! anew. This only remembers, for a while, which invocation named the target, so that the new one is
//! linked to it. A link is for people; no decision reads it (contract M-3).

use crate::head::Response;
use crate::target::Target;
use dashmap::DashMap;
use journal::Call;
use journal::contract::{Digest, InvocationId};
use std::time::{Duration, Instant};

/// How long an answer counts as the reason of a call.
const FRESH: Duration = Duration::from_secs(60);
/// Redirects that are remembered at most.
const MOST: usize = 4096;

/// The redirects of late.
#[derive(Default)]
pub(crate) struct Redirects(DashMap<[u8; 32], (InvocationId, Instant)>);

fn key(agent: &str, target: &Target) -> [u8; 32] {
    let (scheme, authority) = (target.scheme, &target.authority);
    Digest::of(format!("{agent} {scheme}://{authority}{}", target.path_and_query).as_bytes()).0
}

/// Where a redirect leads (RFC 9110 section 10.2.2); none for a relative path, which clients resolve
/// in more than one way.
fn location(base: &Target, head: &Response) -> Option<Target> {
    if !matches!(head.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let text = head.fields.first("location")?.split('#').next()?;
    let absolute = if text.starts_with("//") {
        format!("{}:{text}", base.scheme)
    } else if text.starts_with('/') {
        format!("{}://{}{text}", base.scheme, base.authority)
    } else {
        text.to_owned()
    };
    Target::absolute(&absolute).ok()
}

impl Redirects {
    /// Takes note of the answer of a call of an agent, if it is a redirect.
    pub(crate) fn note(&self, call: &Call, base: &Target, head: &Response) {
        let Some(target) = location(base, head) else { return };
        let invocation = call.invocation();
        let Some(agent) = &invocation.accepted().agent else { return };
        if self.0.len() >= MOST {
            self.0.retain(|_, (_, since)| since.elapsed() < FRESH);
        }
        if self.0.len() < MOST {
            self.0.insert(key(agent, &target), (call.id(), Instant::now()));
        }
    }

    /// The invocation whose answer named the target to the agent.
    pub(crate) fn origin_of(&self, agent: &str, target: &Target) -> Option<InvocationId> {
        let (_, (id, since)) = self.0.remove(&key(agent, target))?;
        (since.elapsed() < FRESH).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn leads(status: u16, value: &str) -> Option<String> {
        let text = format!("HTTP/1.1 {status} R\r\nLocation: {value}\r\n\r\n");
        let head = crate::head::response(&Bytes::from(text)).expect("head");
        let base = Target::absolute("https://a.example/x/y").expect("target");
        location(&base, &head)
            .map(|target| format!("{}{}", target.authority, target.path_and_query))
    }

    /// C-7: what names a whole target is linked, and only a redirect is one.
    #[test]
    fn c_7_a_redirect_names_its_target() {
        assert_eq!(leads(302, "/z?q#f").as_deref(), Some("a.example:443/z?q"));
        assert_eq!(leads(307, "https://b.example/z").as_deref(), Some("b.example:443/z"));
        assert_eq!(leads(308, "//b.example:1/z").as_deref(), Some("b.example:1/z"));
        for (status, value) in [(200, "/z"), (304, "/z"), (302, "z"), (302, "ftp://b/z"), (302, "")]
        {
            assert_eq!(leads(status, value), None, "{status} {value}");
        }
    }
}
