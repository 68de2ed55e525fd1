//! The head that goes to the origin, built in one private buffer that is zeroed when dropped.

use crate::head::{Fields, Framing, Received, Request, is_ours};
use crate::request::{self, is_upgrade};
use crate::target::Target;
use policy::recipe::{Edits, is_stray};
use policy::{HttpGrant, Secret};
use zeroize::Zeroizing;

/// Room behind the head, so that small content leaves in the same write.
const SPARE: usize = 16 * 1024;

/// Fields that belong to one hop (RFC 9110 section 7.6.1), whether nominated or not.
const HOP_BY_HOP: &[&str] = &[
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Whether a field stays on its hop: by rule, by nomination in `Connection`, or as ours.
pub(crate) fn stays(name: &[u8], all: &Fields) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    if HOP_BY_HOP.iter().any(|known| is(known)) || is_ours(name) {
        return true;
    }
    // A nomination can't take away what the message's meaning rests on.
    !is("host")
        && !is("content-length")
        && all.members("connection").any(|member| member.eq_ignore_ascii_case(name))
}

/// How the target is written.
#[derive(Clone, Copy)]
pub(crate) enum Form<'a> {
    /// For the origin itself: path and query (RFC 9112 section 3.2.1).
    Origin,
    /// For an upstream proxy: with scheme and authority (RFC 9112 section 3.2.2).
    Absolute {
        /// The value of `Proxy-Authorization`.
        authorization: Option<&'a Secret>,
    },
}

/// What the broker adds beside an injected credential.
pub(crate) struct Also<'a> {
    /// Field and value of an idempotency key of the broker's own.
    pub(crate) key: Option<(&'a str, &'a str)>,
    /// Its name in `Via`.
    pub(crate) pseudonym: &'a str,
    /// How the request came.
    pub(crate) received: Received,
}

/// Builds the head: the caller's fields in their order and spelling, without those of the hop, with
/// the injected field, and with `Via`.
pub(crate) fn head(
    request: &Request,
    target: &Target,
    framing: Framing,
    edits: Option<&Edits>,
    form: Form<'_>,
    also: &Also<'_>,
) -> Zeroizing<Vec<u8>> {
    let fields = &request.fields;
    let host = host(request, target);
    let sent: Vec<_> = fields.iter().collect();
    let (kept, added) = edits.map_or_else(|| (sent.clone(), Vec::new()), |e| e.fields(&sent));
    let (origin, path_and_query) = written(target, edits, form, &host);
    let shown = match form {
        Form::Origin | Form::Absolute { authorization: None } => &[][..],
        Form::Absolute { authorization: Some(shown) } => shown.expose(),
    };
    let key = also.key.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let all = kept.iter().chain(&added).chain(&key);
    let size: usize = all.map(|(name, value)| name.len() + value.len() + 4).sum();
    let line = request.method.len() + origin.len() + path_and_query.len() + shown.len();
    let spare = if framing == Framing::Empty { 0 } else { SPARE };
    let mut out = Writing::new(line + size + host.len() + also.pseudonym.len() + 256 + spare);
    let method = request.method.as_bytes();
    out.put(&[method, b" ", origin.as_bytes(), path_and_query, b" HTTP/1.1\r\n"]);
    let mut judge = Judge::new(request, framing, edits);
    for (name, value) in kept {
        if key.is_some_and(|(own, _)| name.eq_ignore_ascii_case(own)) {
            // The caller's is empty, or stays on this hop.
            continue;
        }
        match judge.passing(name) {
            Passing::AsSent => out.field(name, value),
            Passing::Host => out.field(name, host.as_bytes()),
            Passing::Identity => out.field(name, b"identity"),
            Passing::OneLess => out.field(name, one_less(value).as_bytes()),
            Passing::Not => {}
        }
    }
    if !judge.has_host {
        out.field(b"Host", host.as_bytes());
    }
    added.into_iter().chain(key).for_each(|(name, value)| out.field(name, value));
    out.of_this_hop(&judge, shown);
    let received = also.received.name().as_bytes();
    out.put(&[b"Via: ", received, b" ", also.pseudonym.as_bytes(), b"\r\n\r\n"]);
    out.0
}

/// A head in the making.
///
/// Invariant: its buffer was made large enough for everything: one that grows leaves its old bytes
/// behind.
struct Writing(Zeroizing<Vec<u8>>);

impl Writing {
    fn new(room: usize) -> Self {
        Self(Zeroizing::new(Vec::with_capacity(room)))
    }

    fn put(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.put(&[name, b": ", value, b"\r\n"]);
    }

    /// What is said to the next hop alone, and what is asked for so that its answer can be searched.
    fn of_this_hop(&mut self, judge: &Judge<'_>, authorization: &[u8]) {
        if judge.upgrade {
            self.put(&[b"Connection: Upgrade\r\nUpgrade: websocket\r\n"]);
        } else if judge.fields.has_member("te", "trailers") {
            self.put(&[b"Connection: TE\r\nTE: trailers\r\n"]);
        }
        if judge.asks {
            self.field(b"Accept-Encoding", b"identity");
        }
        if !authorization.is_empty() {
            self.field(b"Proxy-Authorization", authorization);
        }
        if judge.chunked {
            self.field(b"Transfer-Encoding", b"chunked");
        }
    }
}

/// The target as the next hop reads it: what stands before the path, and path and query.
fn written<'a>(
    target: &'a Target,
    edits: Option<&'a Edits>,
    form: Form<'_>,
    host: &str,
) -> (String, &'a [u8]) {
    let path_and_query = edits.and_then(|edits| edits.target.as_ref());
    let path_and_query = path_and_query.map_or(target.path_and_query.as_bytes(), Secret::expose);
    match form {
        Form::Origin => (String::new(), path_and_query),
        // All of a server is its authority alone (RFC 9112 section 3.2.4).
        Form::Absolute { .. } => (
            format!("{}://{host}", target.scheme),
            if path_and_query == b"*" { b"" } else { path_and_query },
        ),
    }
}

/// The value of `Max-Forwards` for the next hop.
fn one_less(value: &[u8]) -> String {
    let number = request::decimal(value);
    number.unwrap_or_default().saturating_sub(1).to_string()
}

/// How one of the caller's fields goes on.
enum Passing {
    AsSent,
    /// With the target's authority.
    Host,
    /// As a wish for content that is not encoded.
    Identity,
    /// As a number that this hop counts down (RFC 9110 section 7.6.2).
    OneLess,
    Not,
}

/// Decides field by field.
struct Judge<'a> {
    fields: &'a Fields,
    edits: Option<&'a Edits>,
    chunked: bool,
    upgrade: bool,
    /// Whether hops are counted for the method.
    counts: bool,
    /// Whether a `Host` was there.
    has_host: bool,
    /// Whether content that is not encoded is still to be asked for: what is encoded can't be
    /// searched for an echo of the credential (contract I-4).
    asks: bool,
    /// The same of messages of gRPC.
    asks_messages: bool,
}

impl<'a> Judge<'a> {
    fn new(request: &'a Request, framing: Framing, edits: Option<&'a Edits>) -> Self {
        Self {
            fields: &request.fields,
            edits,
            chunked: framing == Framing::Chunked,
            upgrade: is_upgrade(request),
            counts: request::hops_left(request).is_some(),
            has_host: false,
            asks: edits.is_some(),
            asks_messages: edits.is_some(),
        }
    }

    fn passing(&mut self, name: &[u8]) -> Passing {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("host") {
            self.has_host = true;
            Passing::Host
        } else if self.edits.is_some_and(|edits| edits.sets(name)) {
            // Our value takes the place of the caller's, whatever the caller nominates.
            Passing::AsSent
        } else if self.edits.is_some() && self.upgrade && is("sec-websocket-extensions") {
            // Extensions compress.
            Passing::Not
        } else if self.edits.is_some() && is("accept-encoding") {
            if std::mem::take(&mut self.asks) { Passing::Identity } else { Passing::Not }
        } else if self.edits.is_some() && is("grpc-accept-encoding") {
            if std::mem::take(&mut self.asks_messages) { Passing::Identity } else { Passing::Not }
        } else if self.chunked && is("content-length") {
            // Two framings are none (RFC 9112 section 6.2).
            Passing::Not
        } else if self.counts && is("max-forwards") {
            Passing::OneLess
        } else if !is("expect") && (!stays(name, self.fields) || (is("trailer") && self.chunked)) {
            Passing::AsSent
        } else {
            Passing::Not
        }
    }
}

/// Whether a field means nothing, or harm, behind the content: it frames, routes, modifies or
/// authenticates a message, controls a response or describes content (RFC 9110 section 6.5.1).
pub(crate) fn is_header_only(name: &[u8]) -> bool {
    const FIELDS: &[&str] = &[
        "age",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "expect",
        "expires",
        "host",
        "location",
        "max-forwards",
        "pragma",
        "proxy-authenticate",
        "proxy-authorization",
        "range",
        "retry-after",
        "set-cookie",
        "trailer",
        "vary",
        "www-authenticate",
    ];
    // Every precondition begins so.
    let conditional = name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"if-"));
    conditional || FIELDS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// The caller's trailer section as it goes to the origin, without what has no place there, the field
/// that injection sets, and those that the route refuses or strips.
pub(crate) fn trailers(trailers: &Fields, grant: &HttpGrant) -> Fields {
    let injected = grant.credential.as_ref().and_then(|c| c.inject.header_name());
    let dropped = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|n| grant.drops_trailer(n));
    let passes = |(name, value): &(&[u8], &[u8])| {
        // What was read ahead was looked through; trailers come behind that.
        let never = is_header_only(name)
            || injected.is_some_and(|known| policy::is_same_field(name, known.as_bytes()))
            || dropped(name)
            || is_stray(value);
        !never && !stays(name, trailers)
    };
    trailers.iter().filter(passes).map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

/// `Host` as sent when it agrees with the target, else from the target (RFC 9112 section 3.2.2).
pub(crate) fn host(request: &Request, target: &Target) -> String {
    let sent = request.fields.first("host");
    match (&target.written_authority, sent) {
        (None, Some(sent)) => sent.to_owned(),
        (Some(written), Some(sent)) if written.eq_ignore_ascii_case(sent) => sent.to_owned(),
        (Some(written), _) => written.clone(),
        (None, None) => {
            let text = target.authority.to_string();
            let default = target.scheme.default_port();
            text.strip_suffix(&format!(":{default}")).unwrap_or(&text).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;
    use bytes::Bytes;

    fn check(text: &'static str, injected: Option<(&str, &str)>, expected: &str) {
        let request = head::request(&Bytes::from_static(text.as_bytes())).expect("head");
        let target = Target::absolute(&request.target).expect("target");
        let framing = head::request_framing(&request).expect("framing");
        let injected = injected.map(|(name, value)| Edits {
            set: vec![(name.to_owned(), Secret::from(value))],
            ..Edits::default()
        });
        let received = Received::By(request.version);
        let also = Also { key: None, pseudonym: "p", received };
        let out = super::head(&request, &target, framing, injected.as_ref(), Form::Origin, &also);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    /// Names, order and duplicates stay; what belongs to the hop does not pass.
    #[test]
    fn fields_of_the_hop_stay_and_the_others_pass() {
        check(
            "GET http://h/a%2Fb?c HTTP/1.1\r\nHost: h\r\nX-b: 1\r\nConnection: close, X-Hop\r\n\
             x-hop: 1\r\nProxy-Authorization: Basic x\r\nAffiant-Invocation: y\r\nx-B: 2\r\n\
             affiant_wait: 1\r\n\
             Proxy-Connection: a\r\nUpgrade: h2c\r\nHTTP2-Settings: z\r\n\r\n",
            None,
            "GET /a%2Fb?c HTTP/1.1\r\nHost: h\r\nX-b: 1\r\nx-B: 2\r\n\
             Via: 1.1 p\r\n\r\n",
        );
    }

    #[test]
    fn injection_takes_the_place_of_the_callers_field() {
        check(
            "POST http://h/ HTTP/1.1\r\nauthorization: Bearer dummy\r\nHost: other\r\n\
             Authorization: second\r\nContent-Length: 1\r\nConnection: content-length\r\n\r\n",
            Some(("authorization", "Bearer real")),
            "POST / HTTP/1.1\r\nauthorization: Bearer real\r\nHost: h\r\nContent-Length: 1\r\n\
             Accept-Encoding: identity\r\nVia: 1.1 p\r\n\r\n",
        );
        check(
            "POST http://h:81/ HTTP/1.0\r\naccept-Encoding: gzip\r\nX: y\r\nAccept-Encoding: br\r\n\r\n",
            Some(("x-key", "k")),
            "POST / HTTP/1.1\r\naccept-Encoding: identity\r\nX: y\r\nHost: h:81\r\nx-key: k\r\n\
             Via: 1.0 p\r\n\r\n",
        );
    }
}
