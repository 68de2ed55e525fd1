//! Files that clients are pointed at: the home's CA with the system's roots, and what wget reads.

use crate::home::{Home, write_file};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::{Path, PathBuf};

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

/// Where the system's settings of wget are: Debian and others, built from source, Homebrew.
const WGETRC: &[&str] =
    &["/etc/wgetrc", "/usr/local/etc/wgetrc", "/opt/homebrew/etc/wgetrc", "/usr/etc/wgetrc"];

/// Writes the system's settings of wget with the bundle added, and returns the file's path. The user's own
/// `~/.wgetrc` (or `WGETRC`) is read after it and stays what it is.
pub(crate) fn write_wgetrc(home: &Home, bundle: &Path) -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("SYSTEM_WGETRC").map(PathBuf::from);
    let mut places = named.into_iter().chain(WGETRC.iter().map(PathBuf::from));
    let path = home.wgetrc();
    let present = places.find(|place| *place != path && place.is_file());
    let mut text =
        present.and_then(|place| std::fs::read_to_string(place).ok()).unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("ca_certificate = {}\n", bundle.display()));
    if std::fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
        write_file(&path, 0o600, text.as_bytes())?;
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
