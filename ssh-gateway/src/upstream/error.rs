//! Why a connection could not be set up: the stage, the evidence and the verdict of each case
//! (contract C-1).

use super::verify::Witness;
use journal::contract::{Code, Retry, SetupStage, Verdict};
use rustix::io::Errno;
use std::io;
use tokio::time::Instant;

/// Why a connection could not be set up. Nothing was dispatched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Policy pins no host key that can be read.
    #[error("policy pins no host key for this target; pin one with `host_keys` in its route")]
    NoHostKey,
    /// The resolver failed.
    #[error("the target's name could not be resolved")]
    Resolve(#[source] io::Error),
    /// The name has no address.
    #[error("the target's name has no address; correct the name or set `address` in its route")]
    NotFound,
    /// The name leads to addresses that policy forbids.
    #[error("the target's name leads to private addresses only, which the route does not allow")]
    AddressProhibited,
    /// TCP failed.
    #[error("the target could not be reached ({})", tcp_code(.0))]
    Tcp(#[source] io::Error),
    /// A stage took longer than the route's connect timeout leaves.
    #[error("the connection was not set up in time (stage {0})")]
    Timeout(SetupStage),
    /// The handshake failed.
    #[error("the SSH transport to the target could not be negotiated")]
    Handshake(#[source] russh::Error),
    /// The target has another host key than the pinned ones.
    #[error("the target's host key{} is not the pinned one", shown(.0))]
    HostKey(Option<String>),
    /// The connection ended in the middle.
    #[error("the target closed the connection during its setup (stage {0})")]
    Closed(SetupStage),
    /// The target refused user or credential.
    #[error("the target refused the login with the injected credential")]
    LoginRefused,
    /// The key's own agent does not sign.
    #[error(transparent)]
    Credential(policy::credential::Error),
    /// The target refused the channel.
    #[error("the target refused to open a session channel")]
    Channel(#[source] russh::Error),
}

fn shown(fingerprint: &Option<String>) -> String {
    fingerprint.as_ref().map(|text| format!(" {text}")).unwrap_or_default()
}

impl Error {
    /// What went wrong in the handshake: the host key, or the transport.
    pub(super) fn handshake(error: russh::Error, witness: &Witness) -> Self {
        if let Some(fingerprint) = witness.refused() {
            return Self::HostKey(Some(fingerprint.to_owned()));
        }
        // Without a common type the target has no host key of a pinned type.
        let no_such_key = matches!(
            error,
            russh::Error::NoCommonAlgo { kind: russh::AlgorithmKind::Key, .. }
                | russh::Error::UnknownKey
        );
        let is_over =
            matches!(error, russh::Error::IO(_) | russh::Error::HUP | russh::Error::Disconnect);
        if no_such_key {
            Self::HostKey(None)
        } else if is_over {
            Self::Closed(SetupStage::SshKex)
        } else {
            Self::Handshake(error)
        }
    }

    pub(super) fn channel(error: russh::Error) -> Self {
        if matches!(error, russh::Error::ChannelOpenFailure(_)) {
            Self::Channel(error)
        } else {
            Self::Closed(SetupStage::SshChannel)
        }
    }

    /// The stage that failed.
    pub(crate) const fn stage(&self) -> SetupStage {
        match self {
            Self::Resolve(_) | Self::NotFound => SetupStage::Resolve,
            Self::AddressProhibited => SetupStage::AddressCheck,
            Self::Tcp(_) => SetupStage::TcpConnect,
            Self::Timeout(stage) | Self::Closed(stage) => *stage,
            Self::Handshake(_) => SetupStage::SshKex,
            Self::NoHostKey | Self::HostKey(_) => SetupStage::SshHostKey,
            Self::LoginRefused | Self::Credential(_) => SetupStage::SshAuth,
            Self::Channel(_) => SetupStage::SshChannel,
        }
    }

    /// The short code in the record of the try.
    pub(crate) fn evidence(&self) -> String {
        match self {
            Self::Resolve(error) if is_exhausted(error) => tcp_code(error),
            Self::Resolve(_) => "EAI_FAIL",
            Self::Tcp(error) => tcp_code(error),
            Self::Timeout(_) => "TIMEOUT",
            Self::Closed(_) => "EOF",
            Self::NoHostKey
            | Self::NotFound
            | Self::AddressProhibited
            | Self::Handshake(_)
            | Self::HostKey(_)
            | Self::LoginRefused
            | Self::Credential(_)
            | Self::Channel(_) => self.verdict().code().as_str(),
        }
        .to_owned()
    }

    /// Phase `connection_setup`, or `credential_injection` where the agent of the key fails; outcome
    /// `not_attempted`.
    pub(crate) fn verdict(&self) -> Verdict {
        let (retry, code) = match self {
            Self::NoHostKey => (Retry::AfterCorrection, Code::HostKeyUnknown),
            Self::Resolve(error) | Self::Tcp(error) if is_exhausted(error) => {
                (Retry::Backoff, Code::ResourcesExhausted)
            }
            Self::Resolve(error) if is_unknown_name(error) => {
                (Retry::AfterCorrection, Code::DestinationNotFound)
            }
            Self::Resolve(_) => (Retry::Backoff, Code::DnsError),
            Self::NotFound => (Retry::AfterCorrection, Code::DestinationNotFound),
            Self::AddressProhibited => (Retry::AfterCorrection, Code::AddressProhibited),
            Self::Tcp(error) => (Retry::Backoff, tcp_verdict(error)),
            Self::Timeout(SetupStage::Resolve) => (Retry::Backoff, Code::DnsTimeout),
            Self::Timeout(_) => (Retry::Backoff, Code::ConnectionTimeout),
            Self::Handshake(_) => (Retry::AfterCorrection, Code::SshTransportFailed),
            Self::HostKey(_) => (Retry::AfterCorrection, Code::HostKeyMismatch),
            Self::Closed(_) => (Retry::Backoff, Code::ConnectionTerminated),
            Self::LoginRefused => (Retry::AfterCorrection, Code::RemoteAuthFailed),
            Self::Credential(error) => return error.verdict(),
            Self::Channel(_) => (Retry::AfterCorrection, Code::ChannelRefused),
        };
        Verdict::not_connected(retry, code)
    }

    /// The path of what the caller, or the policy, can correct.
    pub(crate) const fn field(&self) -> Option<&'static str> {
        match self {
            Self::NoHostKey | Self::HostKey(_) => Some("target.host_keys"),
            Self::Resolve(_) | Self::NotFound | Self::AddressProhibited => Some("target.host"),
            Self::LoginRefused | Self::Credential(_) => Some("target.credential"),
            Self::Tcp(_)
            | Self::Timeout(_)
            | Self::Handshake(_)
            | Self::Closed(_)
            | Self::Channel(_) => None,
        }
    }
}

/// The resolver's answer that there is no such name, which the standard library gives as text only.
fn is_unknown_name(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("not known") || text.contains("No address associated")
}

/// Whether it is this machine that has no descriptor, buffer or memory left.
fn is_exhausted(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}

/// The errno's name, as far as connections meet it.
pub(super) fn tcp_code(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => return "EMFILE",
        Some(Errno::NFILE) => return "ENFILE",
        Some(Errno::NOBUFS) => return "ENOBUFS",
        Some(Errno::NOMEM) => return "ENOMEM",
        Some(_) | None => {}
    }
    let known = CODES.iter().find(|(kind, _)| *kind == error.kind());
    known.map_or("EIO", |(_, code)| code)
}

const CODES: [(io::ErrorKind, &str); 9] = [
    (io::ErrorKind::ConnectionRefused, "ECONNREFUSED"),
    (io::ErrorKind::ConnectionReset, "ECONNRESET"),
    (io::ErrorKind::ConnectionAborted, "ECONNABORTED"),
    (io::ErrorKind::BrokenPipe, "EPIPE"),
    (io::ErrorKind::TimedOut, "ETIMEDOUT"),
    (io::ErrorKind::HostUnreachable, "EHOSTUNREACH"),
    (io::ErrorKind::NetworkUnreachable, "ENETUNREACH"),
    (io::ErrorKind::AddrNotAvailable, "EADDRNOTAVAIL"),
    (io::ErrorKind::UnexpectedEof, "EOF"),
];

fn tcp_verdict(error: &io::Error) -> Code {
    match tcp_code(error) {
        "ECONNREFUSED" => Code::ConnectionRefused,
        "ETIMEDOUT" => Code::ConnectionTimeout,
        "EHOSTUNREACH" | "ENETUNREACH" | "EADDRNOTAVAIL" => Code::DestinationUnroutable,
        _ => Code::ConnectionTerminated,
    }
}

/// Bounds a stage of the setup.
pub(super) async fn timeout_at<T>(
    deadline: Instant,
    stage: SetupStage,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    tokio::time::timeout_at(deadline, work).await.map_err(|_| Error::Timeout(stage))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-1: what this machine lacks is not told as a fault of the target.
    #[test]
    fn c_1_a_machine_without_descriptors_says_so() {
        for (errno, name) in
            [(Errno::MFILE, "EMFILE"), (Errno::NFILE, "ENFILE"), (Errno::NOBUFS, "ENOBUFS")]
        {
            for make in [Error::Tcp, Error::Resolve] {
                let error = make(io::Error::from_raw_os_error(errno.raw_os_error()));
                let expected = Verdict::not_connected(Retry::Backoff, Code::ResourcesExhausted);
                assert_eq!((error.verdict(), error.evidence().as_str()), (expected, name));
            }
        }
        let refused = Error::Tcp(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(refused.verdict().code(), Code::ConnectionRefused);
    }
}
