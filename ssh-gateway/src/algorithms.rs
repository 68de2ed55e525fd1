//! The algorithms and engine settings of both hops, in one place.
//!
//! Server side: AES-GCM and AES-CTR, no ChaCha20, because the client's order decides and stock
//! clients put it first, at twice the cost of AES on machines that have AES instructions. No finite
//! field key exchange, which costs us more than the caller. No SHA-1 anywhere. Strict key exchange
//! is on by its pseudo-algorithms.

use crate::Options;
use russh::keys::{Algorithm, Certificate, EcdsaCurve, HashAlg, PrivateKey};
use russh::{Limits, MethodSet, Preferred, SshId, cipher, client, compression, kex, mac, server};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// The version line of both roles. OpenSSH sends `no-more-sessions` and the like only to peers whose
/// line begins like its own.
const VERSION: &str = "SSH-2.0-OpenSSH_9.9 Affiant";

/// Bytes that a peer may send on a channel before it has to wait for us.
pub(crate) const WINDOW_BYTES: u32 = 2 << 20;

/// Messages that a hop takes for a channel whose reader is busy. The outer hop stops, output and
/// grants of window included, when the inner one, which may wait for just these, has not taken them;
/// so this has to hold all that inner windows let a client send ahead.
const QUEUED_MESSAGES: usize = 2048;

/// Re-keying: peers do it by their own rules first; these are the outer bounds.
fn limits() -> Limits {
    Limits::new(1 << 30, 1 << 30, Duration::from_secs(4 * 3600))
}

const SERVER_KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

const SERVER_CIPHERS: &[cipher::Name] =
    &[cipher::AES_256_GCM, cipher::AES_128_GCM, cipher::AES_256_CTR, cipher::AES_128_CTR];

const CLIENT_CIPHERS: &[cipher::Name] = &[
    cipher::AES_256_GCM,
    cipher::AES_128_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_CTR,
    cipher::AES_192_CTR,
    cipher::AES_128_CTR,
];

const SERVER_MACS: &[mac::Name] = &[mac::HMAC_SHA512_ETM, mac::HMAC_SHA256_ETM];

const CLIENT_MACS: &[mac::Name] =
    &[mac::HMAC_SHA512_ETM, mac::HMAC_SHA256_ETM, mac::HMAC_SHA512, mac::HMAC_SHA256];

const NO_COMPRESSION: &[compression::Name] = &[compression::NONE];

/// Every key type that may prove something to us, strongest first, without SHA-1.
pub(crate) const KEY_TYPES: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
    Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
    Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
    Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
];

/// The settings of a server hop that proves itself with `certificate`.
pub(crate) fn server_config(
    options: &Options,
    key: &PrivateKey,
    certificate: Certificate,
    methods: MethodSet,
) -> Arc<server::Config> {
    Arc::new(server::Config {
        server_id: SshId::Standard(Cow::Borrowed(VERSION)),
        methods,
        // Of each refused key, and agents of clients offer many before the right one. Nobody guesses a
        // key or a token, at whatever rate.
        auth_rejection_time: Duration::from_millis(100),
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key.clone()],
        certificates: vec![certificate],
        limits: limits(),
        window_size: WINDOW_BYTES,
        preferred: Preferred {
            kex: Cow::Borrowed(SERVER_KEX),
            key: Cow::Borrowed(KEY_TYPES),
            host_key_certificates: Cow::Borrowed(&[]),
            cipher: Cow::Borrowed(SERVER_CIPHERS),
            mac: Cow::Borrowed(SERVER_MACS),
            compression: Cow::Borrowed(NO_COMPRESSION),
        },
        // Offers of public keys count here too; passwords have a limit of their own.
        max_auth_attempts: options.max_login_attempts.saturating_mul(4),
        channel_buffer_size: QUEUED_MESSAGES,
        inactivity_timeout: None,
        // The engine's own keepalives begin before the login, where clients take them for a breach
        // of the protocol; see `alive`.
        keepalive_interval: None,
        nodelay: true,
        ..server::Config::default()
    })
}

/// The settings of the upstream hop: only the pinned types of host key are asked for, else the
/// target may show another one and a right host would fail.
pub(crate) fn client_config(
    options: &Options,
    key_types: Vec<Algorithm>,
    certificates: bool,
) -> Arc<client::Config> {
    Arc::new(client::Config {
        client_id: SshId::Standard(Cow::Borrowed(VERSION)),
        limits: limits(),
        window_size: WINDOW_BYTES,
        preferred: Preferred {
            key: Cow::Owned(key_types),
            host_key_certificates: Cow::Borrowed(if certificates { KEY_TYPES } else { &[] }),
            cipher: Cow::Borrowed(CLIENT_CIPHERS),
            mac: Cow::Borrowed(CLIENT_MACS),
            compression: Cow::Borrowed(NO_COMPRESSION),
            ..Preferred::DEFAULT
        },
        inactivity_timeout: None,
        keepalive_interval: Some(options.keepalive_interval),
        keepalive_max: options.keepalive_max,
        nodelay: true,
        ..client::Config::default()
    })
}
