//! A user certificate for one session: a key of its own, minutes of life, and no more permitted
//! than the session needs. The target's own log shows the invocation id as the key id.

use journal::contract::InvocationId;
use russh::keys::ssh_key::Error;
use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::{Algorithm, Certificate, PrivateKey};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far the clock of a target may be behind.
const BACKDATED: Duration = Duration::from_secs(300);
/// The time to log in, and how far the clock of a target may be ahead; a session goes on after it.
const VALID: Duration = Duration::from_secs(300);

/// What the certificate is for.
pub(super) struct Wanted<'a> {
    pub(super) id: InvocationId,
    pub(super) user: &'a str,
    pub(super) with_terminal: bool,
    pub(super) with_forwarding: bool,
    /// From where it can be used; empty: from everywhere.
    pub(super) source_address: &'a [String],
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
    if !wanted.source_address.is_empty() {
        builder.critical_option("source-address", wanted.source_address.join(","))?;
    }
    if wanted.with_terminal {
        builder.extension("permit-pty", "")?;
    }
    if wanted.with_forwarding {
        builder.extension("permit-port-forwarding", "")?;
    }
    let certificate = builder.sign(authority)?;
    Ok((key, certificate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate is good for a target whose clock is five minutes off, either way, and no longer.
    #[test]
    fn a_certificate_lives_for_minutes_and_says_from_where() {
        let mut rng = russh::keys::key::safe_rng();
        let authority = PrivateKey::random(&mut rng, Algorithm::Ed25519).unwrap();
        let source_address = ["10.0.0.0/8".to_owned(), "::1".to_owned()];
        let wanted = Wanted {
            id: InvocationId::from_parts(1, 2),
            user: "deploy",
            with_terminal: false,
            with_forwarding: false,
            source_address: &source_address,
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let (_, certificate) = mint(&authority, &wanted, now).unwrap();
        let window = (certificate.valid_after(), certificate.valid_before());
        assert_eq!(window, (1_799_999_700, 1_800_000_300));
        assert_eq!(certificate.valid_principals(), ["deploy"]);
        let options: Vec<_> = certificate.critical_options().iter().collect();
        let (name, value) = ("source-address".to_owned(), "10.0.0.0/8,::1".to_owned());
        assert_eq!(options, [(&name, &value)]);
        assert!(certificate.extensions().is_empty());
        let everywhere = Wanted { source_address: &[], with_terminal: true, ..wanted };
        let (_, certificate) = mint(&authority, &everywhere, now).unwrap();
        assert!(certificate.critical_options().is_empty());
        assert_eq!(certificate.extensions().iter().count(), 1);
    }
}
