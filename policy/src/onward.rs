//! Where a forwarding may lead: patterns over host and port, matched apart.
//!
//! The target resolves the host, so a pattern has to say which kind of host it means. One of digits,
//! dots and colons means addresses, and only an address meets it; any other means names, and no address
//! meets it. `*` in a name stays within its label; in front, `*.` stands for whole labels.

use crate::{glob, host};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A pattern over the place that a forwarding leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Onward {
    text: String,
    host: Host,
    port: String,
}

/// Which hosts a pattern means.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    V4(String),
    V6(String),
    Name(String),
    /// Every name with at least one label in front of what matches.
    Under(String),
}

/// The text is not such a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is to be HOST:PORT, as in \"db-*.example:5432\" or \"10.0.*:*\"")]
pub(crate) struct Error;

impl Onward {
    /// Reads a pattern: `HOST:PORT`, or `*` for everywhere.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (host, port) =
            if text == "*" { ("*", "*") } else { text.rsplit_once(':').ok_or(Error)? };
        if port.is_empty() || !port.bytes().all(|c| c.is_ascii_digit() || c == b'*') {
            return Err(Error);
        }
        let host = Host::parse(&host.to_ascii_lowercase())?;
        Ok(Self { text: text.to_owned(), host, port: port.to_owned() })
    }

    /// Whether a forwarding to that host, as the client wrote it, and port meets the pattern.
    pub(crate) fn covers(&self, host: &str, port: u16) -> bool {
        let port = port.to_string();
        glob::matches(self.port.as_bytes(), port.as_bytes(), |_| true) && self.host.covers(host)
    }
}

impl std::fmt::Display for Onward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Host {
    fn parse(text: &str) -> Result<Self, Error> {
        let only = |text: &str, more: fn(u8) -> bool| {
            !text.is_empty() && text.bytes().all(|c| c == b'*' || more(c))
        };
        if only(text, |_| false) {
            return Ok(Self::Any);
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let address = bare.unwrap_or(text);
        if address.contains(':') || bare.is_some() {
            // A pattern is compared with the one canonical text of an address.
            return match address.parse::<Ipv6Addr>() {
                Ok(address) => Ok(Self::V6(address.to_string())),
                Err(_) if !address.contains('*') => Err(Error),
                Err(_) if only(address, |c| c.is_ascii_hexdigit() || c == b':') => {
                    Ok(Self::V6(address.to_owned()))
                }
                Err(_) => Err(Error),
            };
        }
        if only(text, |c| c.is_ascii_digit() || c == b'.') {
            let is_pattern = text.contains('*') || text.parse::<Ipv4Addr>().is_ok();
            return if is_pattern { Ok(Self::V4(text.to_owned())) } else { Err(Error) };
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if !only(name, |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')) {
            return Err(Error);
        }
        Ok(match name.strip_prefix("*.") {
            Some(suffix) => Self::Under(suffix.to_owned()),
            None => Self::Name(name.to_owned()),
        })
    }

    fn covers(&self, host: &str) -> bool {
        if *self == Self::Any {
            return true;
        }
        // What has no normal form (another spelling of an address, say) is neither name nor address.
        let Ok(host) = host::normalize(host) else { return false };
        let (is_v4, is_v6) = (host.parse::<Ipv4Addr>().is_ok(), host.contains(':'));
        let within_label = |pattern: &str, name: &str| {
            glob::matches(pattern.as_bytes(), name.as_bytes(), |c| c != b'.')
        };
        let whole = |pattern: &str| glob::matches(pattern.as_bytes(), host.as_bytes(), |_| true);
        match self {
            Self::Any => true,
            Self::V4(pattern) => is_v4 && whole(pattern),
            Self::V6(pattern) => is_v6 && whole(pattern),
            Self::Name(pattern) => !is_v4 && !is_v6 && within_label(pattern, &host),
            // An address has no suffixes.
            Self::Under(pattern) => host::suffixes(&host).any(|rest| within_label(pattern, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers(pattern: &str, host: &str, port: u16) -> bool {
        Onward::parse(pattern).unwrap().covers(host, port)
    }

    #[test]
    fn host_and_port_are_matched_apart() {
        for (pattern, host, port, expected) in [
            ("127.0.*:*", "127.0.0.1", 80, true),
            ("127.0.*:*", "127.1.0.1", 80, false),
            ("127.0.*:*", "127.0.evil.example", 80, false),
            ("127.0.*:*", "127.0.0.1.evil.example", 80, false),
            ("127.0.*:*", "127.1", 80, false),
            ("127.0.*:*", "::ffff:127.0.0.1", 80, false),
            ("127.0.0.1:80", "127.0.0.1", 80, true),
            ("127.0.0.1:80", "127.0.0.1", 8080, false),
            ("127.0.0.1:80*", "127.0.0.1", 8080, true),
            ("*.5:22", "10.0.0.5", 22, true),
            ("*.5:22", "x.5", 22, false),
            ("db*:5432", "db", 5432, true),
            ("db*:5432", "DB-1.", 5432, true),
            ("db*:5432", "db.evil.com", 5432, false),
            ("db:*", "db", 1, true),
            ("db:*", "db:x.y", 1, false),
            ("db:*", "dbx", 1, false),
            ("db-*.prod.example:5432", "db-1.prod.example", 5432, true),
            ("db-*.prod.example:5432", "db-1.evil.prod.example", 5432, false),
            ("*.prod.example:*", "db.prod.example", 1, true),
            ("*.prod.example:*", "a.db.prod.example", 1, true),
            ("*.prod.example:*", "prod.example", 1, false),
            ("*.prod.example:*", "db.prod.example.evil.test", 1, false),
            ("a*:*", "abcd::1", 1, false),
            ("[::1]:80", "::1", 80, true),
            ("[::1]:80", "0:0:0:0:0:0:0:1", 80, true),
            ("::1:80", "::1", 80, true),
            ("[2001:db8::*]:*", "2001:db8::7", 1, true),
            ("[2001:db8::*]:*", "2001:db9::7", 1, false),
            ("[2001:db8::*]:*", "2001.db8.evil.example", 1, false),
            ("*:443", "anything.example", 443, true),
            ("*:443", "10.0.0.1", 443, true),
            ("*:443", "10.0.0.1", 444, false),
            ("*", "::1", 1, true),
        ] {
            assert_eq!(covers(pattern, host, port), expected, "{pattern} {host} {port}");
        }
    }

    #[test]
    fn what_is_no_place_is_no_pattern() {
        for text in
            ["", "db", ":80", "db:", "db:x", "db:80x", "d b:1", "127.1:80", "[db]:80", "a:b:1"]
        {
            assert_eq!(Onward::parse(text), Err(Error), "{text}");
        }
    }

    proptest! {
        /// Whatever a name begins or ends with, no pattern over addresses covers it.
        #[test]
        fn a_name_never_meets_an_address_pattern(
            pattern in "[0-9.*]{0,6}[0-9.][0-9.*]{0,6}|[0-9a-f:*]{0,6}:[0-9a-f:*]{0,6}",
            before in "([0-9]{1,3}\\.){0,4}|[0-9a-f]{1,4}:", label in "[a-z0-9-]{0,6}[g-z]",
            after in "(\\.[a-z0-9]{1,5}){0,2}", port in 1_u16..,
        ) {
            let name = format!("{before}{label}{after}");
            if let Ok(pattern) = Onward::parse(&format!("{pattern}:*")) {
                prop_assert!(!pattern.covers(&name, port), "{} {}", pattern, name);
            }
        }

        /// A pattern over names, `*` alone aside, covers no address.
        #[test]
        fn an_address_never_meets_a_name_pattern(
            pattern in "[a-z0-9.*-]{0,6}[g-z-][a-z0-9.*-]{0,6}", v4 in any::<u32>(), v6 in any::<u128>(),
        ) {
            if let Ok(pattern) = Onward::parse(&format!("{pattern}:*")) {
                for address in [Ipv4Addr::from(v4).to_string(), Ipv6Addr::from(v6).to_string()] {
                    prop_assert!(!pattern.covers(&address, 1), "{} {}", pattern, address);
                }
            }
        }
    }
}
