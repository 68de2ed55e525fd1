//! A user certificate for one session: a key of its own, minutes of life, and no more permitted
//! than the session needs. The target's own log shows the invocation id as the key id.

use journal::contract::InvocationId;
use russh::keys::ssh_key::Error;
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::{Algorithm, Certificate, PrivateKey};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// For targets whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(120);
/// The time to log in; a session goes on after it.
const VALID: Duration = Duration::from_secs(300);

/// What the certificate is for.
pub(super) struct Wanted<'a> {
    pub(super) id: InvocationId,
    pub(super) user: &'a str,
    pub(super) with_terminal: bool,
    pub(super) with_forwarding: bool,
}

/// Makes a key and a certificate for it.
///
/// # Errors
/// When the user name can't stand in a certificate, or the authority can't sign.
pub(super) fn mint(
    authority: &PrivateKey,
    wanted: &Wanted<'_>,
    now: SystemTime,
) -> Result<(PrivateKey, Certificate), Error> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut rng = russh::keys::key::safe_rng();
    let key = PrivateKey::random(&mut rng, Algorithm::Ed25519)?;
    let mut builder = Builder::new_with_random_nonce(
        &mut rng,
        key.public_key(),
        now.saturating_sub(BACKDATED).as_secs(),
        now.saturating_add(VALID).as_secs(),
    )?;
    builder.cert_type(CertType::User)?;
    builder.key_id(wanted.id.to_string())?;
    builder.valid_principal(wanted.user)?;
    if wanted.with_terminal {
        builder.extension("permit-pty", "")?;
    }
    if wanted.with_forwarding {
        builder.extension("permit-port-forwarding", "")?;
    }
    let certificate = builder.sign(authority)?;
    Ok((key, certificate))
}
