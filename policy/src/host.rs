//! Host names: one normal form for policy and for requests, and patterns over it.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Why a text is not a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("the host is empty")]
    Empty,
    #[error("the host is not ASCII; write it in its punycode form (xn--...)")]
    NotAscii,
    #[error("the host is longer than 253 characters")]
    TooLong,
    #[error("the host has an empty label, or one of more than 63 characters")]
    Label,
    #[error("the host has a character that no host name has")]
    Character,
    #[error("the host ends in a number but is not an IPv4 address in dotted form")]
    Number,
    #[error("the host is not an IPv6 address")]
    Ipv6,
    #[error("the host is an IPv4 address in IPv6 form; write it in dotted form")]
    Mapped,
    #[error("the network is not ADDRESS/BITS")]
    Network,
    #[error("a wildcard is `*.` in front of a name, and stands for whole labels")]
    Wildcard,
}

/// Brings a host into its normal form: ASCII lower case, without one trailing dot; addresses in
/// their canonical text, IPv6 without brackets. Idempotent.
pub(crate) fn normalize(text: &str) -> Result<String, Error> {
    if text.is_empty() {
        return Err(Error::Empty);
    }
    if !text.is_ascii() {
        return Err(Error::NotAscii);
    }
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or(Error::Ipv6)?;
        return ipv6(inner);
    }
    if text.contains(':') {
        return ipv6(text);
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.is_empty() {
        return Err(Error::Empty);
    }
    if name.len() > 253 {
        return Err(Error::TooLong);
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err(Error::Label);
        }
        if !label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_') {
            return Err(Error::Character);
        }
    }
    // Resolvers read "127.1", "0x7f.1" and "2130706433" as addresses. None of them may pass as a
    // name that policy has judged.
    if ends_in_number(&name) && name.parse::<Ipv4Addr>().is_err() {
        return Err(Error::Number);
    }
    Ok(name)
}

/// The canonical text of an IPv6 address. What the network takes for an IPv4 address is none: one
/// host would have two normal forms (RFC 4291 section 2.5.5).
fn ipv6(text: &str) -> Result<String, Error> {
    let address = text.parse::<Ipv6Addr>().map_err(|_| Error::Ipv6)?;
    match address.to_ipv4_mapped() {
        Some(_) => Err(Error::Mapped),
        None => Ok(address.to_string()),
    }
}

fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").is_some_and(|h| h.bytes().all(|c| c.is_ascii_hexdigit()));
    hex || last.bytes().all(|c| c.is_ascii_digit())
}

/// Whether the normal form is an address that no public network routes to.
pub(crate) fn is_private_literal(host: &str) -> bool {
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_unspecified();
    }
    host.parse::<Ipv6Addr>().is_ok_and(|ip| {
        ip.is_loopback()
            || ip.is_unspecified()
            || ip.is_unique_local()
            || ip.is_unicast_link_local()
    })
}

/// A host in policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Pattern {
    /// One host, in normal form.
    Exact(String),
    /// `*.suffix`: every name with at least one label in front of the suffix.
    Under(String),
}

impl Pattern {
    /// Reads a host of policy.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let Some(suffix) = text.strip_prefix("*.") else {
            if text.contains('*') {
                return Err(Error::Wildcard);
            }
            return normalize(text).map(Self::Exact);
        };
        if suffix.contains('*') {
            return Err(Error::Wildcard);
        }
        let suffix = normalize(suffix)?;
        if suffix.parse::<Ipv4Addr>().is_ok() || suffix.contains(':') {
            return Err(Error::Wildcard);
        }
        Ok(Self::Under(suffix))
    }

    /// Whether the pattern covers a host in normal form.
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Under(suffix) => suffixes(host).any(|s| s == suffix),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Under(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

/// The proper suffixes of a host on label borders, the longest first. An address has none.
pub(crate) fn suffixes(host: &str) -> impl Iterator<Item = &str> {
    let is_address = host.contains(':') || host.parse::<Ipv4Addr>().is_ok();
    let mut rest = if is_address { "" } else { host };
    std::iter::from_fn(move || {
        let (_, suffix) = rest.split_once('.')?;
        rest = suffix;
        Some(suffix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, Error>) {
        assert_eq!(normalize(text), expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn hosts_have_one_normal_form() {
        check("API.Pay.Example", Ok("api.pay.example"));
        check("api.pay.example.", Ok("api.pay.example"));
        check("api.pay.example..", Err(Error::Label));
        check(".", Err(Error::Empty));
        check("", Err(Error::Empty));
        check("a..b", Err(Error::Label));
        check("bücher.example", Err(Error::NotAscii));
        check("xn--bcher-kva.example", Ok("xn--bcher-kva.example"));
        check("user@host", Err(Error::Character));
        check("host name", Err(Error::Character));
        check("[::1]", Ok("::1"));
        check("0:0:0:0:0:0:0:1", Ok("::1"));
        check("[::1", Err(Error::Ipv6));
        check("fe80::1%eth0", Err(Error::Ipv6));
        check("127.0.0.1", Ok("127.0.0.1"));
    }

    /// V-1: other spellings of an address are no names.
    #[test]
    fn v_1_odd_spellings_of_addresses_are_refused() {
        for text in ["127.1", "2130706433", "0x7f.1", "0x7f000001", "127.0.0.01", "1.2.3.4.5"] {
            check(text, Err(Error::Number));
        }
        check("example.0x", Err(Error::Number));
        for text in ["[::ffff:127.0.0.1]", "::ffff:7f00:1", "[0:0:0:0:0:FFFF:10.0.0.1]"] {
            check(text, Err(Error::Mapped));
        }
        check("3com.example", Ok("3com.example"));
    }

    #[test]
    fn wildcards_stand_on_label_borders() {
        let pattern = Pattern::parse("*.pay.example").unwrap();
        for (host, expected) in [
            ("api.pay.example", true),
            ("a.b.pay.example", true),
            ("pay.example", false),
            ("apipay.example", false),
            ("pay.example.evil.test", false),
        ] {
            assert_eq!(pattern.matches(host), expected, "{host}");
        }
        for bad in ["*", "*pay.example", "a.*.example", "*.*.example", "*.", "*.127.0.0.1"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(suffixes("10.0.0.1").count(), 0);
    }
}
