//! Hosts and authorities: one canonical form for policy, dialling, SNI and certificates.
//!
//! ASCII only; lower case; one trailing dot stripped; an IP literal is an address and nothing else.
//! Spellings of IPv4 that only some resolvers accept (`127.1`, `0x7f.0.0.1`, `2130706433`) are
//! refused, as are zone identifiers and IPv4 addresses in IPv6 form (`::ffff:127.0.0.1`).

pub(crate) use policy::Scheme;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// A canonical host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Host {
    /// A DNS name.
    Name(Arc<str>),
    /// An IP literal.
    Address(IpAddr),
}

/// A host or authority that is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// Userinfo in a target can be a password.
    #[error("a target must not carry user information")]
    Userinfo,
    /// No host.
    #[error("the target names no host")]
    NoHost,
    /// Not a DNS name of ASCII labels, nor an IP literal.
    #[error("the target's host is not a DNS name or IP literal")]
    Host,
    /// An IPv6 address that the network takes for an IPv4 address.
    #[error("an IPv4 address is written in dotted form, not inside of an IPv6 address")]
    Mapped,
    /// Not 1 to 65535.
    #[error("the target's port is not a number from 1 to 65535")]
    Port,
    /// Neither `http` nor `https`.
    #[error("the target's scheme is not http or https")]
    Scheme,
    /// A `%` that begins no escape.
    #[error("a percent sign in the request target begins no escape; by itself it is written %25")]
    Escape,
    /// Of the form that servers are asked in (RFC 9112 section 3.2.1), outside of a tunnel.
    #[error(
        "this is a proxy, and the request is one to a server: send it the whole URL, or set its address as \
         HTTP_PROXY"
    )]
    ForServer,
    /// Not `scheme://authority/path`, or with bytes that a target may not hold.
    #[error("the request target is malformed")]
    Form,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

impl Host {
    /// As it stands in a URI: IPv6 in brackets.
    fn in_uri(&self) -> String {
        match self {
            Self::Address(IpAddr::V6(address)) => format!("[{address}]"),
            Self::Address(IpAddr::V4(address)) => address.to_string(),
            Self::Name(name) => name.to_string(),
        }
    }

    fn name(text: &str) -> Result<Self, Error> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(Error::NoHost);
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        // WHATWG: a last label that is a number makes the whole an IPv4 address in disguise.
        let numeric = |label: &str| {
            label.bytes().all(|c| c.is_ascii_digit())
                || label
                    .strip_prefix("0x")
                    .or(label.strip_prefix("0X"))
                    .is_some_and(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit()))
        };
        let last_numeric = text.rsplit('.').next().is_some_and(numeric);
        if text.len() > 253 || !text.split('.').all(label) || last_numeric {
            return Err(Error::Host);
        }
        Ok(Self::Name(text.to_ascii_lowercase().into()))
    }
}

impl FromStr for Host {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.strip_prefix('[') {
            Some(rest) => {
                let inner = rest.strip_suffix(']').ok_or(Error::Host)?;
                let address = inner.parse::<Ipv6Addr>().map_err(|_| Error::Host)?;
                match address.to_ipv4_mapped() {
                    Some(_) => Err(Error::Mapped),
                    None => Ok(Self::Address(address.into())),
                }
            }
            None => Self::name(text),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Authority {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.in_uri(), self.port)
    }
}

impl Authority {
    /// Reads `host`, `host:port`, `[v6]`, `[v6]:port`.
    pub(crate) fn parse(text: &str, default_port: Option<u16>) -> Result<Self, Error> {
        if text.contains('@') {
            return Err(Error::Userinfo);
        }
        if text.is_empty() {
            return Err(Error::NoHost);
        }
        let bracket = text.rfind(']').map_or(0, |at| at + 1);
        let (head, tail) = text.split_at_checked(bracket).ok_or(Error::Host)?;
        let (host, port) = match tail.split_once(':') {
            Some((name, port)) if head.is_empty() => (name, Some(port)),
            Some(("", port)) => (head, Some(port)),
            Some(_) => return Err(Error::Host),
            None if head.is_empty() => (tail, None),
            None if tail.is_empty() => (head, None),
            None => return Err(Error::Host),
        };
        let port = match port {
            // `host:` is the default port (RFC 3986 section 3.2.3).
            None | Some("") => default_port.ok_or(Error::Port)?,
            Some(digits) => {
                if !digits.bytes().all(|c| c.is_ascii_digit()) {
                    return Err(Error::Port);
                }
                digits.parse().ok().filter(|port| *port != 0).ok_or(Error::Port)?
            }
        };
        Ok(Self { host: host.parse()?, port })
    }
}

/// Where a request goes: the authority for dialling and policy, the path as the caller sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// The authority as the caller wrote it in an absolute-form target, for `Host`.
    pub(crate) written_authority: Option<String>,
    /// Path and query as the caller wrote them; `*` for `OPTIONS *`.
    pub(crate) path_and_query: String,
}

impl Target {
    /// Reads an absolute-form target (RFC 9112 section 3.2.2).
    pub(crate) fn absolute(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").ok_or(Error::Form)?;
        let scheme = if scheme.eq_ignore_ascii_case("http") {
            Scheme::Http
        } else if scheme.eq_ignore_ascii_case("https") {
            Scheme::Https
        } else {
            return Err(Error::Scheme);
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (written, path) = rest.split_at_checked(end).ok_or(Error::Form)?;
        let authority = Authority::parse(written, Some(scheme.default_port()))?;
        let path_and_query = match path {
            "" => "/".to_owned(),
            path if path.starts_with('?') => format!("/{path}"),
            path => path.to_owned(),
        };
        check_path(&path_and_query)?;
        Ok(Self { scheme, authority, written_authority: Some(written.to_owned()), path_and_query })
    }

    /// Joins an origin-form target with the authority of the tunnel that it came through.
    pub(crate) fn origin(
        scheme: Scheme,
        authority: Authority,
        text: &str,
        method: &str,
    ) -> Result<Self, Error> {
        if !(text.starts_with('/') || (text == "*" && method == "OPTIONS")) {
            return Err(Error::Form);
        }
        check_path(text)?;
        let path_and_query = text.to_owned();
        Ok(Self { scheme, authority, written_authority: None, path_and_query })
    }

    /// The path without the query.
    pub(crate) fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or_default()
    }

    /// The target as it stands in records: without query.
    pub(crate) fn recorded(&self) -> String {
        let scheme = self.scheme.as_str();
        let path = self.path();
        if self.authority.port == self.scheme.default_port() {
            format!("{scheme}://{}{path}", self.authority.host.in_uri())
        } else {
            format!("{scheme}://{}{path}", self.authority)
        }
    }
}

/// Visible ASCII without `#`; every `%` begins an escape.
fn check_path(text: &str) -> Result<(), Error> {
    if !text.bytes().all(|c| c.is_ascii_graphic() && c != b'#') {
        return Err(Error::Form);
    }
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('%') {
        let escape = bytes.get(at + 1..at + 3).ok_or(Error::Escape)?;
        if !escape.iter().all(u8::is_ascii_hexdigit) {
            return Err(Error::Escape);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, Error>) {
        let parsed = Authority::parse(text, Some(443)).map(|a| a.to_string());
        assert_eq!(parsed.as_deref(), expected.as_ref().copied(), "{text}");
    }

    #[test]
    fn v_1_authorities_have_one_form() {
        check("API.Example", Ok("api.example:443"));
        check("api.example.:8443", Ok("api.example:8443"));
        check("api.example:", Ok("api.example:443"));
        check("[::1]:80", Ok("[::1]:80"));
        check("[::1]", Ok("[::1]:443"));
        check("127.0.0.1", Ok("127.0.0.1:443"));
        check("a_b.example", Ok("a_b.example:443"));
        check("user@host", Err(Error::Userinfo));
        check("", Err(Error::NoHost));
        check(".", Err(Error::NoHost));
        check("a..b", Err(Error::Host));
        check("127.1", Err(Error::Host));
        check("0x7f.0.0.1", Err(Error::Host));
        check("2130706433", Err(Error::Host));
        check("127.0.0.1..", Err(Error::Host));
        check("[fe80::1%25eth0]", Err(Error::Host));
        check("[::ffff:127.0.0.1]", Err(Error::Mapped));
        check("[0:0:0:0:0:ffff:7F00:1]:80", Err(Error::Mapped));
        check("::1", Err(Error::Port));
        check("\u{212a}elvin.example", Err(Error::Host));
        check("host:0", Err(Error::Port));
        check("host:65536", Err(Error::Port));
        check("host:+80", Err(Error::Port));
        check("[::1]x:80", Err(Error::Host));
    }

    #[test]
    fn targets_keep_the_bytes_of_the_path() {
        let target = Target::absolute("HTTP://Host.example/a%2Fb//../c?q=%20&").expect("target");
        assert_eq!(target.path_and_query, "/a%2Fb//../c?q=%20&");
        assert_eq!(target.path(), "/a%2Fb//../c");
        assert_eq!(target.recorded(), "http://host.example/a%2Fb//../c");
        assert_eq!(Target::absolute("http://h?x").expect("target").path_and_query, "/?x");
        assert_eq!(Target::absolute("ftp://h/"), Err(Error::Scheme));
        assert_eq!(Target::absolute("/x"), Err(Error::Form));
        assert_eq!(Target::absolute("http://h/%zz"), Err(Error::Escape));
        assert_eq!(Target::absolute("http://h/?q=100%"), Err(Error::Escape));
        assert_eq!(Target::absolute("http://h/a#b"), Err(Error::Form));
        assert_eq!(Target::absolute("http://u:p@h/"), Err(Error::Userinfo));
    }
}
