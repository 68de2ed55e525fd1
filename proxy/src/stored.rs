//! The stored form of a request: what is kept before dispatch so that it can be sent again.
//!
//! It holds what the caller sent, never what injection adds: no credential of policy's is in it.

use crate::engine::{Job, Prepared};
use crate::head::{self, Request, is_ours};
use crate::outgoing;
use crate::request::is_upgrade;
use crate::target::Target;
use bytes::Bytes;
use journal::Call;
use policy::repeat::RetryRule;
use zeroize::Zeroizing;

/// The head with an absolute target, as it can be read again by [`restore`].
pub(crate) fn stored_head(request: &Request, target: &Target) -> Zeroizing<Vec<u8>> {
    let authority = outgoing::host(request, target);
    let kept = || {
        let ours = |name: &[u8]| is_ours(name) || name.eq_ignore_ascii_case(b"proxy-authorization");
        request.fields.iter().filter(move |(name, _)| !ours(name))
    };
    let size: usize = kept().map(|(name, value)| name.len() + value.len() + 4).sum();
    let line = request.method.len() + authority.len() + target.path_and_query.len() + 64;
    let mut out = Zeroizing::new(Vec::with_capacity(size + line));
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
    let scheme = target.scheme.as_str().as_bytes();
    put(&[request.method.as_bytes(), b" ", scheme, b"://", authority.as_bytes()]);
    // All of a server has no path in this form (RFC 9112 section 3.2.4).
    let path = if target.path_and_query == "*" { "" } else { &target.path_and_query };
    put(&[path.as_bytes(), b" HTTP/1.1\r\n"]);
    for (name, value) in kept() {
        put(&[name, b": ", value, b"\r\n"]);
    }
    put(&[b"\r\n"]);
    out
}

/// Reads a stored head.
pub(crate) fn restore(text: &[u8]) -> Option<Request> {
    head::request_within(&Bytes::copy_from_slice(text), head::OF_OURS).ok()
}

impl Job<'_> {
    /// Stores the request where its route lets it be sent again. What can't be stored is noted, and the
    /// call goes on without retries.
    pub(crate) fn store_request(&self, call: &mut Call, prepared: &Prepared, rule: &RetryRule) {
        let whole = self.incoming.is_ended() && !prepared.partial;
        if !whole || self.incoming.trailers().iter().next().is_some() || is_upgrade(&self.head) {
            let why = "it is longer than 1 MiB, has trailers, or asks for an upgrade";
            call.note("request_not_stored", why);
            return;
        }
        let head = stored_head(self.asked(), &prepared.target);
        let content: Vec<&[u8]> = prepared.ahead.iter().map(|piece| &piece[..]).collect();
        if let Err(error) = call.store_request(&head, &content, rule.max_attempts) {
            tracing::warn!(%error, id = %call.id(), "a request was not stored");
            call.note("request_not_stored", "the journal had no room or no key for it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-3: `OPTIONS *` comes back as what it was, and not as a host with a star in its name.
    #[test]
    fn t_3_all_of_a_server_comes_back() {
        let text = "OPTIONS * HTTP/1.1\r\nHost: api.example\r\n\r\n";
        let request = head::request(&Bytes::from_static(text.as_bytes())).expect("head");
        let authority = crate::target::Authority::parse("api.example:443", None).expect("host");
        let scheme = crate::target::Scheme::Https;
        let target = Target::origin(scheme, authority, "*", "OPTIONS").expect("target");
        let restored = restore(&stored_head(&request, &target)).expect("restored");
        assert_eq!(restored.target, "https://api.example");
        let again = crate::request::target(&restored, None).map_err(|e| e.to_string());
        let again = again.expect("target");
        assert_eq!((again.path_and_query.as_str(), again.recorded()), ("*", target.recorded()));
    }

    /// T-3: what comes back is what was sent, but for the hop's own fields.
    #[test]
    fn t_3_a_stored_head_comes_back_as_it_was() {
        let text = "POST /a%2Fb?q=1 HTTP/1.1\r\nHost: API.example:8443\r\nX-b: 1\r\nConnection: x-d\r\n\
                    X-C: 2\r\nProxy-Authorization: Basic s3cret\r\nAffiant-Invocation: act_1\r\n\
                    Content-Length: 2\r\nx-B: \u{e9}\r\n\r\n";
        let request = head::request(&Bytes::from_static(text.as_bytes())).expect("head");
        let authority = crate::target::Authority::parse("api.example:8443", None).expect("host");
        let scheme = crate::target::Scheme::Https;
        let target = Target::origin(scheme, authority, &request.target, "POST").expect("target");
        let stored = stored_head(&request, &target);
        assert!(!stored.windows(6).any(|w| w == b"s3cret"));
        let restored = restore(&stored).expect("restored");
        assert_eq!((restored.method.as_str(), restored.fields.iter().count()), ("POST", 6));
        let again = Target::absolute(&restored.target).expect("target");
        assert_eq!(again.recorded(), target.recorded());
        assert_eq!(again.path_and_query, "/a%2Fb?q=1");
        let names: Vec<_> = restored.fields.iter().map(|(name, _)| name).collect();
        let expected: [&[u8]; 6] =
            [b"Host", b"X-b", b"Connection", b"X-C", b"Content-Length", b"x-B"];
        assert_eq!(names, expected);
    }
}
