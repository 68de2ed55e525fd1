//! Why no connection was set up, and how far the way was known.

use crate::hops::Said;
use crate::target::Authority;
use crate::upstream::tls::{self, Alert, Error as TlsError};
use journal::contract::{Code, Retry, Verdict};
use std::fmt;
use std::io;

/// Why no connection was set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The resolver failed; with the response code where there was a response.
    #[error("the name of the destination could not be resolved")]
    Resolve {
        /// The name of the code.
        rcode: Option<&'static str>,
        /// The code of the extended error (RFC 8914).
        info_code: Option<u16>,
    },
    /// The resolver did not answer.
    #[error("the resolver did not answer in time")]
    ResolveTimeout,
    /// The name has no address.
    #[error("the destination's name has no address")]
    NotFound,
    /// Every address is of a class that policy forbids.
    #[error("the destination's address is private, local or reserved")]
    Prohibited,
    /// The broker itself has no descriptor, or no memory, for a socket.
    #[error("the broker is out of descriptors or memory for a connection")]
    Exhausted(#[source] io::Error),
    /// TCP failed.
    #[error("the destination could not be connected to")]
    Connect(#[source] io::Error),
    /// TCP or TLS took too long.
    #[error("the connection was not set up in time")]
    Timeout,
    /// The connection broke inside the set-up.
    #[error("the connection broke while it was set up")]
    Broken(#[source] io::Error),
    /// The origin speaks no version of HTTP that was offered.
    #[error("the origin speaks no version of HTTP that was offered")]
    NoProtocol,
    /// The origin speaks HTTP/2 alone, and takes no WebSocket over it.
    #[error("the origin speaks HTTP/2 alone and takes no WebSocket over it")]
    NoWebSocket,
    /// The handshake failed.
    #[error("the TLS handshake failed ({cause})")]
    Tls {
        /// Ours.
        code: Code,
        /// Its name in records.
        cause: String,
        /// What the other side said.
        alert: Option<Alert>,
    },
    /// The trusted certificates of the policy, or the client's own, can't be used.
    #[error("the certificates that policy names for this host can't be used")]
    Trust(#[source] TlsError),
    /// The upstream proxy opened no tunnel.
    #[error("the upstream proxy answered {status} and opened no tunnel")]
    Refused {
        /// Its answer.
        status: u16,
        /// Its `Proxy-Status`.
        said: Said,
    },
    /// What the upstream proxy sent is no response.
    #[error("the upstream proxy did not answer in HTTP/1.1")]
    ParentSpeech,
}

impl Error {
    /// Of a connection that broke inside its set-up.
    pub(crate) fn of_set_up(error: io::Error) -> Self {
        let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        cause.map(tls::failure).unwrap_or(Self::Broken(error))
    }

    /// The verdict: nothing was dispatched (contract C-1).
    pub(crate) fn verdict(&self) -> Verdict {
        let backoff = |code| Verdict::not_connected(Retry::Backoff, code);
        let correct = |code| Verdict::not_connected(Retry::AfterCorrection, code);
        match self {
            Self::Resolve { .. } => backoff(Code::DnsError),
            Self::ResolveTimeout => backoff(Code::DnsTimeout),
            Self::NotFound => correct(Code::DestinationNotFound),
            Self::Prohibited => correct(Code::AddressProhibited),
            Self::Exhausted(_) => backoff(Code::ResourcesExhausted),
            Self::Connect(error) => backoff(connect_code(error)),
            Self::Timeout => backoff(Code::ConnectionTimeout),
            Self::Broken(_) => backoff(Code::ConnectionTerminated),
            Self::NoProtocol => correct(Code::TlsAlertReceived),
            Self::NoWebSocket => correct(Code::UnsupportedAction),
            Self::Tls { code, .. } => correct(*code),
            Self::Trust(_) => correct(Code::TlsCertificateError),
            Self::Refused { status: 429 | 500.., .. } => backoff(Code::ProxyTunnelRefused),
            Self::Refused { .. } => correct(Code::ProxyTunnelRefused),
            Self::ParentSpeech => correct(Code::ProxyTunnelRefused),
        }
    }

    /// The name of the cause in records.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::Resolve { rcode, info_code } => {
                let name = rcode.map_or("DNS_ERROR".to_owned(), |rcode| format!("DNS_{rcode}"));
                info_code.map_or(name.clone(), |code| format!("{name}_{code}"))
            }
            Self::ResolveTimeout => "DNS_TIMEOUT".to_owned(),
            Self::NotFound => "NAME_NOT_FOUND".to_owned(),
            Self::Prohibited => "ADDRESS_PROHIBITED".to_owned(),
            Self::Exhausted(error) | Self::Connect(error) | Self::Broken(error) => errno(error),
            Self::Timeout => "ETIMEDOUT".to_owned(),
            Self::NoProtocol => "ALERT_NO_APPLICATION_PROTOCOL".to_owned(),
            Self::NoWebSocket => "NO_EXTENDED_CONNECT".to_owned(),
            Self::Tls { cause, .. } => cause.clone(),
            Self::Trust(_) => "TRUST_UNREADABLE".to_owned(),
            Self::Refused { status, .. } => format!("PROXY_HTTP_{status}"),
            Self::ParentSpeech => "PROXY_SPEECH".to_owned(),
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn connect_code(error: &io::Error) -> Code {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Code::ConnectionRefused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            Code::DestinationUnroutable
        }
        io::ErrorKind::TimedOut => Code::ConnectionTimeout,
        _ => Code::ConnectionTerminated,
    }
}

/// Whether the error is a lack of our own.
pub(in crate::upstream) fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// A name of an I/O error for records.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
pub(crate) fn errno(error: &io::Error) -> String {
    if let Some(alert) = Alert::behind(error) {
        return alert.cause();
    }
    let name = match error.kind() {
        io::ErrorKind::ConnectionRefused => "ECONNREFUSED",
        io::ErrorKind::ConnectionReset => "ECONNRESET",
        io::ErrorKind::ConnectionAborted => "ECONNABORTED",
        io::ErrorKind::BrokenPipe => "EPIPE",
        io::ErrorKind::TimedOut => "ETIMEDOUT",
        io::ErrorKind::HostUnreachable => "EHOSTUNREACH",
        io::ErrorKind::NetworkUnreachable => "ENETUNREACH",
        io::ErrorKind::UnexpectedEof => "EOF",
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => "EMFILE",
        _ if error.raw_os_error() == Some(rustix::io::Errno::NFILE.raw_os_error()) => "ENFILE",
        kind => return error.raw_os_error().map_or(format!("{kind:?}"), |n| format!("ERRNO_{n}")),
    };
    name.to_owned()
}

/// A failed set-up, and how far the way was known.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What failed.
    pub(crate) error: Error,
    /// The hop that was asked, by its address or name.
    pub(crate) hop: String,
    /// The upstream proxy on the way.
    pub(crate) parent: Option<Box<Authority>>,
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parent) = &self.parent else { return write!(f, "{}", self.error) };
        match &self.error {
            Error::Resolve { .. } => {
                write!(f, "the name of the upstream proxy {parent} could not be resolved")
            }
            Error::NotFound => write!(f, "the name of the upstream proxy {parent} has no address"),
            Error::Connect(_) => write!(f, "the upstream proxy {parent} could not be connected to"),
            Error::Timeout => {
                write!(f, "the way through the upstream proxy {parent} was not set up in time")
            }
            Error::Tls { cause, .. } => write!(
                f,
                "the TLS handshake on the way through the upstream proxy {parent} failed ({cause})"
            ),
            Error::ResolveTimeout
            | Error::Prohibited
            | Error::Exhausted(_)
            | Error::Broken(_)
            | Error::NoProtocol
            | Error::NoWebSocket
            | Error::Trust(_)
            | Error::Refused { .. }
            | Error::ParentSpeech => write!(f, "{}", self.error),
        }
    }
}
