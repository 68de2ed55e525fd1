//! Which addresses may be dialled: the special-purpose registries of IANA (RFC 6890 and updates).
//!
//! An address that embeds an IPv4 address (mapped, compatible, 6to4, NAT64, Teredo) is judged by the
//! embedded one as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address is globally reachable unicast, so that it may be dialled without the route's
/// word.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0, _]
            | [192, 0, 2, _]
            | [192, 31, 196, _]
            | [192, 52, 193, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [192, 175, 48, _]
            | [198, 18..=19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            | [224..=255, ..]
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // Mapped addresses reach the IPv4 address; the compatible form is judged the same.
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => !(high == 0 && low <= 1) && v4(high, low),
        // NAT64, well-known prefix; the local-use prefix is not global.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        // 6to4.
        [0x2002, high, low, ..] => v4(high, low),
        // IETF protocol assignments: Teredo, ORCHID, benchmarking and the rest.
        [0x2001, 0..=0x01ff, ..] => false,
        // Documentation.
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => false,
        // Direct delegation of AS112.
        [0x2620, 0x4f, 0x8000, ..] => false,
        // Global unicast is 2000::/3; everything else is local, multicast or unassigned.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_purpose_addresses_are_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.19.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "100::1",
            "3fff::1",
            "5f00::1",
        ] {
            assert!(!is_public(address.parse().expect("address")), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().expect("address")), "{address}");
        }
    }
}
