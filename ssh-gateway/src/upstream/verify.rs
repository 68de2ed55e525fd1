//! The target's host key against what policy knows of it: never trusted on first use.

use super::Error;
use crate::algorithms::KEY_TYPES;
use crate::known_hosts::{KnownHosts, Place};
use policy::SshGrant;
use russh::Channel;
use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::{Algorithm, HashAlg, PublicKey, PublicKeyOrCertificate};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tokio::sync::watch;

/// The cause where it was the engine that ended the connection, for what came on it.
const NO_SSH: &str = "PROTOCOL_ERROR";

/// What proves the target: pinned keys, and the lines of a `known_hosts` text.
pub(super) struct Pins {
    keys: Vec<PublicKey>,
    known: KnownHosts,
    places: Vec<Place>,
}

impl Pins {
    /// Reads what policy says of the target, which is known by each of the places.
    ///
    /// # Errors
    /// When there is nothing, or something can't be read: then nothing can be verified.
    pub(super) fn parse(grant: &SshGrant, places: Vec<Place>) -> Result<Self, Error> {
        let pinned = grant.host_keys.iter().map(|line| PublicKey::from_openssh(line.trim()));
        let mut keys: Vec<_> = pinned.collect::<Result<_, _>>().map_err(|_| Error::NoHostKey)?;
        let known = grant.known_hosts.as_deref().unwrap_or_default();
        let known = KnownHosts::parse(known).map_err(|error| {
            tracing::warn!(route = grant.route, %error, "no host can be verified");
            Error::NoHostKey
        })?;
        keys.extend(known.keys(&places));
        let pins = Self { keys, known, places };
        if pins.keys.is_empty() && !pins.has_authority() {
            return Err(Error::NoHostKey);
        }
        Ok(pins)
    }

    /// The algorithms of plain keys to ask the target for.
    pub(super) fn key_types(&self) -> Vec<Algorithm> {
        let is_pinned = |wanted: &Algorithm| {
            self.keys.iter().any(|key| match (key.algorithm(), wanted) {
                (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
                (pinned, wanted) => pinned == *wanted,
            })
        };
        KEY_TYPES.iter().filter(|wanted| is_pinned(wanted)).cloned().collect()
    }

    /// Whether certificates can prove the target.
    pub(super) fn has_authority(&self) -> bool {
        self.known.has_authority(&self.places)
    }

    fn accepts(&self, key: &PublicKey) -> bool {
        self.keys.iter().any(|pinned| pinned.key_data() == key.key_data())
            && !self.known.revokes(&self.places, key)
    }
}

/// What the engine's handler saw, for the task that waits outside.
#[derive(Clone)]
pub(crate) struct Witness {
    seen: Arc<Seen>,
    lost: watch::Receiver<bool>,
}

#[derive(Default)]
struct Seen {
    accepted: OnceLock<String>,
    refused: OnceLock<String>,
    cause: OnceLock<&'static str>,
}

impl Witness {
    /// The fingerprint of the verified host key.
    pub(super) fn accepted(&self) -> Option<String> {
        self.seen.accepted.get().cloned()
    }

    /// The fingerprint of a host key that is not pinned.
    pub(super) fn refused(&self) -> Option<&str> {
        self.seen.refused.get().map(String::as_str)
    }

    /// What ended the connection, in one word; for diagnosis only (contract E-3).
    pub(crate) fn cause(&self) -> &'static str {
        self.seen.cause.get().copied().unwrap_or("EOF")
    }

    /// What of it broke the protocol, if something did.
    pub(super) fn violation(&self) -> Option<&'static str> {
        (self.cause() == NO_SSH).then_some("what it sent is no message of SSH")
    }

    pub(super) fn lost(&self) -> watch::Receiver<bool> {
        self.lost.clone()
    }
}

/// The engine's handler: verifies the host key, refuses every channel that the target opens towards
/// us, and tells when the connection is gone.
pub(crate) struct Verifier {
    pins: Pins,
    seen: Arc<Seen>,
    lost: watch::Sender<bool>,
}

impl Verifier {
    pub(super) fn new(pins: Pins) -> (Self, Witness) {
        let seen = Arc::new(Seen::default());
        let (lost, is_lost) = watch::channel(false);
        let witness = Witness { seen: Arc::clone(&seen), lost: is_lost };
        (Self { pins, seen, lost }, witness)
    }
}

/// The session task owns the handler: its end is the connection's end.
impl Drop for Verifier {
    fn drop(&mut self) {
        self.lost.send_replace(true);
    }
}

impl Handler for Verifier {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let (fingerprint, accepted) = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                (key.fingerprint(HashAlg::Sha256), self.pins.accepts(key))
            }
            PublicKeyOrCertificate::Certificate(certificate) => {
                let Pins { known, places, .. } = &self.pins;
                let proven = known.vouches(places, certificate, SystemTime::now());
                (certificate.public_key().fingerprint(HashAlg::Sha256), proven)
            }
        };
        let fingerprint = fingerprint.to_string();
        let place = if accepted { &self.seen.accepted } else { &self.seen.refused };
        place.get_or_init(|| fingerprint);
        Ok(accepted)
    }

    async fn disconnected(
        &mut self,
        reason: DisconnectReason<Self::Error>,
    ) -> Result<(), Self::Error> {
        let cause = match reason {
            DisconnectReason::ReceivedDisconnect(_) => "DISCONNECT",
            DisconnectReason::Error(russh::Error::KeepaliveTimeout) => "KEEPALIVE_TIMEOUT",
            DisconnectReason::Error(russh::Error::IO(error)) => super::tcp_code(&error),
            DisconnectReason::Error(
                russh::Error::PacketSize(_)
                | russh::Error::PacketAuth
                | russh::Error::DecryptionError
                | russh::Error::IndexOutOfBounds
                | russh::Error::SshEncoding(_)
                | russh::Error::Inconsistent
                | russh::Error::Kex
                | russh::Error::KexInit
                | russh::Error::WrongServerSig,
            ) => NO_SSH,
            DisconnectReason::Error(_) => "EOF",
        };
        self.seen.cause.get_or_init(|| cause);
        Ok(())
    }

    // A dropped `reply` is a refusal. The defaults would accept (russh#727).

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        Ok(())
    }
}
