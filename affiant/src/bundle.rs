//! The CA bundle for clients: the home's CA and the system's roots in one PEM file.

use crate::home::{Home, write_file};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::PathBuf;

/// Writes the bundle and returns its path. The system's roots are in it so that clients also
/// verify hosts that are reached without interception.
pub(crate) fn write(home: &Home, ca_pem: &str) -> anyhow::Result<PathBuf> {
    let mut text = String::from(ca_pem);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!("a system root could not be read: {error}");
    }
    for certificate in system.certs {
        push_pem(&mut text, &certificate);
    }
    let path = home.bundle();
    if std::fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
        write_file(&path, 0o644, text.as_bytes())?;
    }
    Ok(path)
}

fn push_pem(text: &mut String, der: &[u8]) {
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str("-----END CERTIFICATE-----\n");
}
