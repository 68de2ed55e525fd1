//! The name that the TLS inside a tunnel asks for, read without taking part in it. A tunnel that is left
//! alone leads to the host that policy named, and to no other one behind the same address.
//!
//! What is no TLS has no such name and passes; so does a ClientHello without one (RFC 6066 section 3). The
//! first byte alone tells: an origin has to ignore the version after it (RFC 8446 section 5.1), so another
//! one there would lead past the name. Another record of TLS before the ClientHello would as well, where a
//! server passes over it: none may be there, and none goes on.

use crate::pump::Cause;
use crate::target::Host;
use rustls::server::Acceptor;

/// The first byte of a TLS connection: a handshake record (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;
/// The first bytes of all other records of TLS: change_cipher_spec, alert, application_data (the same), and
/// heartbeat (RFC 6520 section 3).
const OTHER_RECORDS: [u8; 4] = [20, 21, 23, 24];
/// A ClientHello is no longer.
const MAX_BYTES: usize = 64 * 1024;

/// Why nothing of a tunnel goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It asks for this name.
    OtherName(String),
    /// It begins as TLS, and can't be read on.
    Unreadable,
    /// It ended inside its ClientHello.
    Cut,
}

impl Fault {
    /// The cause in records.
    const fn cause(&self) -> Cause {
        match self {
            Self::OtherName(_) => Cause::OtherName,
            Self::Unreadable => Cause::Unreadable,
            Self::Cut => Cause::CutHello,
        }
    }

    /// The alert for the client: unrecognized_name, or decode_error (RFC 8446 section 6).
    pub(crate) const fn alert(&self) -> [u8; 7] {
        let description = match self {
            Self::OtherName(_) => 112,
            Self::Unreadable | Self::Cut => 50,
        };
        [21, 3, 1, 0, 2, 2, description]
    }
}

/// The beginning of what a client sends in a tunnel to this host.
pub(crate) struct Hello<'a> {
    host: &'a Host,
    acceptor: Acceptor,
    seen: usize,
    fault: Option<Fault>,
}

impl<'a> Hello<'a> {
    pub(crate) fn to(host: &'a Host) -> Self {
        Self { host, acceptor: Acceptor::default(), seen: 0, fault: None }
    }

    /// Looks at the next bytes; whether all that came so far may go on. Not known yet: false.
    ///
    /// # Errors
    /// The cause for the records, when none of it may.
    pub(crate) fn see(&mut self, bytes: &[u8]) -> Result<bool, Cause> {
        if let (0, Some(first)) = (self.seen, bytes.first()) {
            if OTHER_RECORDS.contains(first) {
                return Err(self.failed(Fault::Unreadable));
            }
            if *first != HANDSHAKE {
                return Ok(true);
            }
        }
        self.seen += bytes.len();
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.seen > MAX_BYTES || !matches!(self.acceptor.read_tls(&mut rest), Ok(1..)) {
                return Err(self.failed(Fault::Unreadable));
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let Some(name) = hello.server_name() else { return Ok(true) };
                    if name.parse::<Host>().is_ok_and(|name| name == *self.host) {
                        return Ok(true);
                    }
                    return Err(self.failed(Fault::OtherName(name.to_owned())));
                }
                Err(_) => return Err(self.failed(Fault::Unreadable)),
            }
        }
        Ok(false)
    }

    /// Takes the orderly end of what the client sends, where nothing that was seen may go on yet.
    ///
    /// # Errors
    /// The cause for the records, when it ended inside its ClientHello.
    pub(crate) fn end(&mut self) -> Result<(), Cause> {
        if self.has_begun() { Err(self.failed(Fault::Cut)) } else { Ok(()) }
    }

    /// Whether the client began a ClientHello.
    pub(crate) const fn has_begun(&self) -> bool {
        self.seen > 0
    }

    fn failed(&mut self, fault: Fault) -> Cause {
        let cause = fault.cause();
        self.fault = Some(fault);
        cause
    }

    /// Why nothing went on.
    pub(crate) const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// The ClientHello for a name, or for an address, which is not named.
    fn hello(name: &'static str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = name.try_into().expect("name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("written");
        bytes
    }

    fn check(host: &str, bytes: &[u8], expected: Result<bool, Cause>) {
        let host = host.parse().unwrap_or_else(|_| Host::Address(host.parse().expect("address")));
        for pace in [1, 7, bytes.len().max(1)] {
            let mut hello = Hello::to(&host);
            let mut seen = Ok(false);
            for piece in bytes.chunks(pace) {
                seen = hello.see(piece);
                if seen != Ok(false) {
                    break;
                }
            }
            assert_eq!(seen, expected, "{host:?} by {pace}");
            assert_eq!(hello.fault().map(Fault::cause), expected.err());
            if seen == Ok(false) {
                let expected = if bytes.is_empty() { Ok(()) } else { Err(Cause::CutHello) };
                assert_eq!(hello.end(), expected, "{host:?} by {pace}");
                assert_eq!(hello.fault().map(Fault::cause), expected.err());
            }
        }
    }

    /// V-1: the name of the tunnel, in any case, or none; everything else is refused, however it is cut.
    #[test]
    fn v_1_the_name_inside_is_the_tunnels() {
        let asked = hello("api.test");
        check("api.test", &asked, Ok(true));
        check("API.test", &asked, Ok(true));
        check("other.test", &asked, Err(Cause::OtherName));
        check("127.0.0.1", &asked, Err(Cause::OtherName));
        check("127.0.0.1", &hello("127.0.0.1"), Ok(true));
        check("api.test", &hello("127.0.0.1"), Ok(true));
        let (half, _) = asked.split_at(asked.len() / 2);
        check("api.test", half, Ok(false));
        check("api.test", b"", Ok(false));
        check("api.test", b"SSH-2.0-x\r\n", Ok(true));
        for other in [20, 21, 23, 24] {
            let before = [&[other, 3, 1, 0, 2, 1, 90][..], &asked].concat();
            check("api.test", &before, Err(Cause::Unreadable));
            check("other.test", &before, Err(Cause::Unreadable));
        }
        let odd_version = [&[22, 5], asked.get(2..).expect("more")].concat();
        check("api.test", &odd_version, Err(Cause::Unreadable));
        check(
            "api.test",
            &[&[22, 3, 1, 0, 4, 9, 9, 9, 9][..], half].concat(),
            Err(Cause::Unreadable),
        );
    }
}
