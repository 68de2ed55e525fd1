//! The opening of a WebSocket: over HTTP/1.1 by an upgrade (RFC 6455 section 4), over HTTP/2 by an
//! extended CONNECT (RFC 8441). In here it is always an upgrade; frames are put on at the edges.

use crate::head::{Fields, Request, Response};
use crate::request::is_upgrade;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use ring::rand::{SecureRandom as _, SystemRandom};

pub(crate) mod frames;

/// What the key is joined with (RFC 6455 section 1.3).
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The `:protocol` of an extended CONNECT (RFC 8441 section 5).
pub(crate) const PROTOCOL: &str = "websocket";

/// A WebSocket that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The answer to the request's key, where it has one.
    pub(crate) accept: Option<String>,
    /// Whether the key is ours: then nobody behind us looks at the answer.
    ours: bool,
    /// The extensions that were offered to the origin.
    offered: Vec<Vec<u8>>,
}

impl Opening {
    /// What the request asks for; `over_streams`: its caller speaks HTTP/2; `offers`: its offer of
    /// extensions goes on.
    pub(crate) fn of(request: &Request, over_streams: bool, offers: bool) -> Option<Self> {
        is_upgrade(request).then(|| Self {
            accept: request.fields.first("sec-websocket-key").map(accept),
            ours: over_streams,
            offered: names(&request.fields).filter(|_| offers).map(<[u8]>::to_vec).collect(),
        })
    }

    /// Whether an answer agrees on no extension that was not offered (RFC 6455 section 4.1).
    pub(crate) fn covers(&self, head: &Response) -> bool {
        let was_offered =
            |name: &[u8]| self.offered.iter().any(|known| known.eq_ignore_ascii_case(name));
        names(&head.fields).all(was_offered)
    }

    /// Whether a 101 switches to what was asked for.
    pub(crate) fn is_answered(&self, head: &Response) -> bool {
        head.fields.has_member("connection", "upgrade")
            && head.fields.has_member("upgrade", "websocket")
            && self.covers(head)
            && (!self.ours || head.fields.first("sec-websocket-accept") == self.accept.as_deref())
    }
}

/// The extensions that a message names, without their parameters.
fn names(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let members = fields.members("sec-websocket-extensions");
    members.filter_map(|member| member.split(|byte| *byte == b';').next()).map(<[u8]>::trim_ascii)
}

/// A key for a caller that needs none, because it speaks HTTP/2.
pub(crate) fn key() -> Option<String> {
    let mut key = [0; 16];
    SystemRandom::new().fill(&mut key).ok()?;
    Some(STANDARD.encode(key))
}

/// The answer to a key.
fn accept(key: &str) -> String {
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.trim().as_bytes());
    digest.update(SUFFIX);
    STANDARD.encode(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455 section 1.3.
    #[test]
    fn keys_are_answered() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(key().map(|key| key.len()), Some(24));
    }
}
