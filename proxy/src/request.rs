//! What a request asks for, before policy is asked: identity, target, the caller's own id.

use crate::control;
use crate::head::{self, Request, Version};
use crate::respond::Refusal;
use crate::target::{self, Authority, Scheme, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use journal::contract::InvocationId;
use policy::agent::ShownToken;
use policy::{Policy, Secret};

/// Who calls, and what shows it.
#[derive(Clone)]
pub(crate) struct Identity(ShownToken);

impl Identity {
    /// Reads `Proxy-Authorization` (Basic `agent:token`, or Bearer) and asks policy.
    pub(crate) fn of(head: &Request, policy: &Policy) -> Option<Self> {
        let mut values = head.fields.all("proxy-authorization");
        let (value, None) = (values.next()?, values.next()) else { return None };
        let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = Secret::new(STANDARD.decode(rest).ok()?);
            let (agent, token) = decoded.expose_text()?.split_once(':')?;
            policy.login(agent, token).map(Self)
        } else if scheme.eq_ignore_ascii_case("bearer") {
            policy.login_by_token(rest).map(Self)
        } else {
            None
        }
    }

    /// Whether policy still knows agent and token. Asked for each request of a tunnel.
    pub(crate) fn is_valid(&self, policy: &Policy) -> bool {
        policy.knows(&self.0)
    }

    pub(crate) fn agent(&self) -> &str {
        self.0.agent()
    }
}

/// The tunnel that a request came through.
pub(crate) struct Tunnel {
    /// What the client speaks inside: TLS, or HTTP in clear text (some clients tunnel both).
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) identity: Identity,
    /// Whether the client asked the handshake for another name.
    pub(crate) other_name: bool,
}

impl Tunnel {
    /// Its target on record.
    pub(crate) fn recorded(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// The target of a request, the tunnel it came through agreeing (RFC 9112 section 3.2).
pub(crate) fn target(head: &Request, tunnel: Option<&Tunnel>) -> Result<Target, Refusal> {
    if head.method == "CONNECT" {
        let field = "request.method";
        return Err(Refusal::Unsupported { what: "CONNECT inside of a tunnel", field });
    }
    let default_port = tunnel.map_or(Scheme::Http, |tunnel| tunnel.scheme).default_port();
    let host = host(head, default_port)?;
    let Some(tunnel) = tunnel else {
        // The target wins over Host, which only has to be well-formed.
        let target = absolute(head)?;
        control::refuse(&target.authority)?;
        return Ok(target);
    };
    if tunnel.other_name {
        return Err(Refusal::AuthorityMismatch { field: "tls.server_name" });
    }
    // A path or a query may hold an URL.
    let target = if !head.target.starts_with('/') && head.target.contains("://") {
        let target = absolute(head)?;
        if target.scheme != tunnel.scheme || target.authority != tunnel.authority {
            return Err(Refusal::AuthorityMismatch { field: "request.target" });
        }
        target
    } else {
        Target::origin(tunnel.scheme, tunnel.authority.clone(), &head.target, &head.method)
            .map_err(Refusal::Target)?
    };
    if host.is_some_and(|host| host != tunnel.authority) {
        return Err(Refusal::AuthorityMismatch { field: "request.headers.host" });
    }
    Ok(target)
}

/// What `Host` names: one authority, well-formed, in every request but those of HTTP/1.0 (RFC 9112 section 3.2).
pub(crate) fn host(head: &Request, default_port: u16) -> Result<Option<Authority>, Refusal> {
    let mut hosts = head.fields.all("host");
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, _) if head.version == Version::Http10 => return Ok(None),
        (None, _) | (Some(_), Some(_)) => return Err(Refusal::Head(head::Fault::Host)),
    };
    let malformed = || Refusal::Head(head::Fault::HostValue);
    let host = std::str::from_utf8(host).map_err(|_| malformed())?;
    match Authority::parse(host, Some(default_port)) {
        Ok(named) => Ok(Some(named)),
        Err(target::Error::Userinfo) => Err(Refusal::Target(target::Error::Userinfo)),
        Err(_) => Err(malformed()),
    }
}

/// The target in absolute form; without a path it is all of the server to OPTIONS (RFC 9112 section 3.2.4).
fn absolute(head: &Request) -> Result<Target, Refusal> {
    if head.target.starts_with('/') || head.target == "*" {
        return Err(Refusal::Target(target::Error::ForServer));
    }
    let target = Target::absolute(&head.target).map_err(Refusal::Target)?;
    let bare = head.target.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?']));
    if head.method == "OPTIONS" && bare {
        return Ok(Target { path_and_query: "*".to_owned(), ..target });
    }
    Ok(target)
}

/// How many hops the request may still go, where its method counts them (RFC 9110 section 7.6.2).
pub(crate) fn hops_left(head: &Request) -> Option<u64> {
    let counts = matches!(head.method.as_str(), "OPTIONS" | "TRACE");
    let mut values = head.fields.all("max-forwards").filter(|_| counts);
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    decimal(value)
}

/// A number of digits and nothing else; what is larger than any is as large as can be.
pub(crate) fn decimal(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether `Max-Forwards` counts for the method, and does not say exactly once how many hops are left.
fn miscounts_hops(head: &Request) -> bool {
    let counts = matches!(head.method.as_str(), "OPTIONS" | "TRACE");
    counts && head.fields.has("max-forwards") && hops_left(head).is_none()
}

/// The caller's own invocation id, if it sent one.
pub(crate) fn invocation_id(head: &Request) -> Result<Option<InvocationId>, Refusal> {
    let mut values = head.fields.all("affiant-invocation");
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse().ok())
            .map(Some)
            .ok_or(Refusal::InvocationId),
        (Some(_), Some(_)) => Err(Refusal::InvocationId),
    }
}

/// Refuses what passed through here before; `pseudonym` is this proxy's name in `Via`.
pub(crate) fn refuse_loop(head: &Request, pseudonym: &str) -> Result<(), Refusal> {
    let seen = head
        .fields
        .members("via")
        .any(|member| member.split(|byte| *byte == b' ').nth(1) == Some(pseudonym.as_bytes()));
    if seen { Err(Refusal::Loop) } else { Ok(()) }
}

/// Refuses what this gateway can't carry.
pub(crate) fn check(head: &Request) -> Result<(), Refusal> {
    if head.fields.has_member("upgrade", "websocket") && !is_upgrade(head) {
        let field = "request.headers.upgrade";
        return Err(Refusal::Unsupported { what: "This form of upgrade to WebSocket", field });
    }
    // Whoever asks for one of these goes on without it; what asks for another needs it.
    let goes_without = |protocol: &[u8]| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        ["websocket", "h2c", "h2", "http", "tls"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    };
    if head.fields.has_member("connection", "upgrade")
        && head.fields.members("upgrade").any(|protocol| !goes_without(protocol))
    {
        let field = "request.headers.upgrade";
        let what = "An upgrade to another protocol than WebSocket";
        return Err(Refusal::Unsupported { what, field });
    }
    if miscounts_hops(head) {
        return Err(Refusal::Head(head::Fault::MaxForwards));
    }
    if hops_left(head) == Some(0) {
        // As its final recipient, which has nothing to say to it.
        let field = "request.headers.max-forwards";
        return Err(Refusal::Unsupported { what: "This method of the proxy itself", field });
    }
    let expectations: Vec<_> = head.fields.members("expect").collect();
    match expectations.as_slice() {
        [] => Ok(()),
        [one] if one.eq_ignore_ascii_case(b"100-continue") => Ok(()),
        _ => Err(Refusal::Expectation),
    }
}

/// Whether the request asks for a WebSocket (RFC 6455 section 4.1). Other upgrades are not passed on.
pub(crate) fn is_upgrade(head: &Request) -> bool {
    head.method == "GET"
        && head.version == Version::Http11
        && head.fields.has_member("connection", "upgrade")
        && head.fields.members("upgrade").all(|name| name.eq_ignore_ascii_case(b"websocket"))
        && head.fields.has("upgrade")
        && matches!(head::request_framing(head), Ok(head::Framing::Empty))
}

/// A condition that the origin enforces: where it answers 412, this attempt did not apply (contract
/// K-8; RFC 9110 section 13.1).
pub(crate) fn condition(head: &Request) -> Option<&'static str> {
    let tagged = |member: &[u8]| member.starts_with(b"\"") && member.ends_with(b"\"");
    if head.fields.members("if-match").any(tagged) {
        Some("if-match")
    } else if head.fields.members("if-none-match").any(|member| member == b"*") {
        Some("if-none-match")
    } else {
        None
    }
}

/// Whether the caller waits for an interim 100 before it sends content.
pub(crate) fn expects_continue(head: &Request) -> bool {
    head.version == Version::Http11 && head.fields.has("expect")
}

/// Whether the caller keeps the connection.
pub(crate) fn keeps_alive(head: &Request) -> bool {
    let names = ["connection", "proxy-connection"];
    let said = |token| names.iter().any(|name| head.fields.has_member(name, token));
    match head.version {
        Version::Http11 => !said("close"),
        Version::Http10 => said("keep-alive"),
    }
}
