//! Upstream proxies: which one a call goes through, if any.

use crate::host::{self, Pattern};
use crate::{Credential, Scheme};
use std::net::IpAddr;

/// An upstream proxy that a call goes through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Its name in policy.
    pub name: String,
    /// Clear text or TLS towards it.
    pub scheme: Scheme,
    /// Its host, in normal form.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What it is shown in `Proxy-Authorization`.
    pub credential: Option<Credential>,
}

/// An upstream proxy with its exceptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParentRule {
    pub(crate) parent: Parent,
    /// What goes past it.
    pub(crate) direct: Vec<Direct>,
}

impl ParentRule {
    /// The upstream proxy for a host in normal form; none: the call goes past it.
    pub(crate) fn for_host(&self, host: &str) -> Option<Parent> {
        let direct = self.direct.iter().any(|direct| direct.covers(host));
        (!direct).then(|| self.parent.clone())
    }
}

/// Hosts that go past an upstream proxy (`NO_PROXY`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Direct {
    Host(Pattern),
    /// Literal addresses that share so many bits with this one. Names are not resolved for it.
    Network(IpAddr, u8),
}

impl std::fmt::Display for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(pattern) => pattern.fmt(f),
            Self::Network(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

impl Direct {
    /// Reads a host, `*.suffix`, `.suffix` (as most programs write it), an address or a network.
    pub(crate) fn parse(text: &str) -> Result<Self, host::Error> {
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| host::Error::Network)?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse().ok().filter(|bits| *bits <= longest);
            return Ok(Self::Network(address, bits.ok_or(host::Error::Network)?));
        }
        match text.strip_prefix('.') {
            Some(suffix) => Pattern::parse(&format!("*.{suffix}")).map(Self::Host),
            None => Pattern::parse(text).map(Self::Host),
        }
    }

    fn covers(&self, host: &str) -> bool {
        match self {
            Self::Host(pattern) => pattern.matches(host),
            Self::Network(network, bits) => {
                host.parse().is_ok_and(|address: IpAddr| share(*network, address, *bits))
            }
        }
    }
}

/// Whether two addresses of one family begin with the same bits.
fn share(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let differ = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    differ >= u32::from(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_networks_go_past() {
        for (text, host, covered) in [
            ("a.test", "a.test", true),
            ("a.test", "b.a.test", false),
            ("*.a.test", "b.a.test", true),
            (".a.test", "b.a.test", true),
            (".a.test", "a.test", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.0.0.0/8", "a.test", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe80::1", false),
            ("fd00::/8", "10.0.0.1", false),
            ("10.0.0.1", "10.0.0.1", true),
        ] {
            assert_eq!(Direct::parse(text).expect("rule").covers(host), covered, "{text} {host}");
        }
        for wrong in ["", "10.0.0.0/33", "a/8", "*", "a b", "fd00::/129", "10.0.0.0/-1"] {
            assert!(Direct::parse(wrong).is_err(), "{wrong}");
        }
    }
}
