//! Ages, sizes and addresses as people write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The size of a segment: less than the newest one can't be kept.
const SEGMENT: u64 = 16 << 20;

/// A hundred years: no clock that an age is added to, or taken from, runs over by it.
const LONGEST_SECONDS: u64 = 36_525 * 86_400;

/// An address to listen on.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "write IP:PORT, for example 127.0.0.1:7780 (port 0 takes a free one)".to_owned()
    })
}

/// Where a gateway listens, if it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    At(SocketAddr),
    Off,
}

/// An address, or `off`.
pub(super) fn listener(text: &str) -> Result<Listener, String> {
    if text == "off" { Ok(Listener::Off) } else { address(text).map(Listener::At) }
}

/// Where a gateway is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        // What listens on all addresses is reached on this machine by its own.
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
        };
        Self { host: ip.to_string(), port: address.port() }
    }
}

/// A name or an address, as a host certificate has it.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if text.is_empty() || text.len() > 255 || !text.chars().all(plain) {
        return Err("write a host name or an address, without a port".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

/// A name or an address, and a port.
pub(super) fn place(text: &str) -> Result<Place, String> {
    let wrong = || "write HOST:PORT, for example gateway.example:7722 or [fd00::1]:7722".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.is_none() && host.contains(':') {
        return Err(wrong());
    }
    let host = host_name(bare.unwrap_or(host)).map_err(|_| wrong())?;
    Ok(Place { host, port: port.parse().map_err(|_| wrong())? })
}

/// A number and a unit: `12w`, `90d`, `36h`, `15m`, `30s`.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "a number and s, m, h, d or w, for example 90d".to_owned();
    let (number, seconds) = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)]
        .into_iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit).map(|number| (number, seconds)))
        .ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| *seconds <= LONGEST_SECONDS);
    seconds.map(Duration::from_secs).ok_or_else(|| "longer than a hundred years".to_owned())
}

/// A time that is not over at once.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let time = age(text)?;
    if time.is_zero() { Err("no time at all; write 1s at least".to_owned()) } else { Ok(time) }
}

/// Bytes, also with a unit: `20GiB`, `500MB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "a number and KB, MB, GB, KiB, MiB or GiB, for example 20GiB".to_owned();
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
    ];
    let (number, unit) = units
        .into_iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, unit)))
        .unwrap_or((text, 1));
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(unit).ok_or_else(wrong)?;
    if bytes < SEGMENT {
        Err("less than one segment; write 16MiB at least".to_owned())
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ages_and_sizes_are_read() {
        assert_eq!(super::age("90d"), Ok(std::time::Duration::from_secs(7_776_000)));
        assert_eq!(super::size("20GiB"), Ok(20 << 30));
        assert_eq!(super::age("9w"), Ok(std::time::Duration::from_secs(5_443_200)));
        assert_eq!(super::size("16777216"), Ok(16 << 20));
        assert!(super::size("16777215").is_err());
        assert_eq!(super::address("[::1]:7"), Ok((std::net::Ipv6Addr::LOCALHOST, 7).into()));
        assert_eq!(super::listener("off"), Ok(super::Listener::Off));
        let at = super::Listener::At((std::net::Ipv6Addr::LOCALHOST, 7).into());
        assert_eq!(super::listener("[::1]:7"), Ok(at));
        for wrong in ["localhost:7780", ":7780", "127.0.0.1"] {
            let told = super::address(wrong).unwrap_err();
            assert!(told.starts_with("write IP:PORT"), "{told}");
        }
        assert_eq!(super::age("36525d"), Ok(std::time::Duration::from_secs(3_155_760_000)));
        for long in ["36526d", "99999999999999999s", "18446744073709551615w"] {
            assert_eq!(super::age(long), Err("longer than a hundred years".to_owned()));
        }
        let at = |host: &str| Ok(super::Place { host: host.to_owned(), port: 7 });
        assert_eq!(super::place("Gateway.example:7"), at("gateway.example"));
        assert_eq!(super::place("[fd00::1]:7"), at("fd00::1"));
        for wrong in ["gateway", "fd00::1:7", "gateway:x", ":7", "a b:7", "a,b:7", "*:7"] {
            let told = super::place(wrong).unwrap_err();
            assert!(told.starts_with("write HOST:PORT"), "{told}");
        }
        for (listening, usable) in
            [("0.0.0.0:7", "127.0.0.1"), ("[::]:7", "::1"), ("10.1.2.3:7", "10.1.2.3")]
        {
            let listening: std::net::SocketAddr = listening.parse().unwrap();
            assert_eq!(Ok(super::Place::from(listening)), at(usable));
        }
        for wrong in ["", "d", "9y", "-1d"] {
            assert!(super::age(wrong).is_err(), "{wrong}");
            assert!(super::size(wrong).is_err(), "{wrong}");
        }
    }
}
