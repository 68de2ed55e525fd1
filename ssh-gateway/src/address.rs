//! Which addresses are reachable by anyone, and which are somebody's inside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address is a public unicast address: not loopback, private, link-local (cloud
/// metadata lives there), shared, unspecified, multicast or otherwise reserved.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_public_v4(mapped),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let benchmark = a == 198 && (b == 18 || b == 19);
    !(address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_documentation()
        || shared
        || benchmark
        || a == 0
        || a >= 224)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // 2000::/3 is what the Internet routes; the translation prefix and 6to4 hide IPv4 addresses.
    let [first, second, ..] = address.segments();
    let global = first & 0xe000 == 0x2000;
    let documentation = first == 0x2001 && second == 0x0db8;
    let hidden = first == 0x2002 || (first == 0x2001 && second == 0);
    global && !documentation && !hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_addresses_are_not_public() {
        for text in [
            "127.0.0.1",
            "10.0.0.4",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "2002:0a00:0001::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }
}
