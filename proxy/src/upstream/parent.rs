//! The way through an upstream proxy: a tunnel by CONNECT (RFC 9110 section 9.3.6). Its answers are
//! evidence of that hop alone (contract C-8).

use super::dial::Error;
use super::pool::{Shown, Through};
use super::tls::TrustFile;
use crate::head::{self, MAX_BYTES};
use crate::hops;
use crate::redact::Redactor;
use crate::target::{Authority, Scheme};
use bytes::Bytes;
use policy::Secret;
use std::path::PathBuf;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

/// An upstream proxy.
#[derive(Clone)]
pub(crate) struct Parent {
    /// Clear text or TLS towards it.
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// Files of extra roots.
    pub(crate) trust: Vec<PathBuf>,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<Secret>,
    /// What of that credential identifies its connections.
    pub(crate) shown: Option<Shown>,
    /// What this proxy says in `Via`: how the request came, and the name by which it knows itself again if the
    /// way leads back.
    pub(crate) via: String,
}

impl Parent {
    /// What identifies it, for the pool.
    pub(crate) fn through(&self) -> Through {
        Through {
            scheme: self.scheme,
            authority: self.authority.clone(),
            trust: TrustFile::all(&self.trust),
            shown: self.shown.clone(),
        }
    }
}

/// Opens a tunnel to the authority. No byte beyond the answer's head is read.
pub(crate) async fn tunnel(
    link: &mut (impl AsyncRead + AsyncWrite + Unpin),
    parent: &Parent,
    authority: &Authority,
) -> Result<(), Error> {
    let mut request = Zeroizing::new(Vec::with_capacity(4096));
    let target = authority.to_string();
    let via = &parent.via;
    for part in ["CONNECT ", &target, " HTTP/1.1\r\nHost: ", &target, "\r\nVia: ", via] {
        request.extend_from_slice(part.as_bytes());
    }
    if let Some(authorization) = &parent.authorization {
        request.extend_from_slice(b"\r\nProxy-Authorization: ");
        request.extend_from_slice(authorization.expose());
    }
    request.extend_from_slice(b"\r\n\r\n");
    link.write_all(&request).await.map_err(Error::Broken)?;
    link.flush().await.map_err(Error::Broken)?;
    let answer = answer(link).await?;
    if (200..=299).contains(&answer.status) {
        return Ok(());
    }
    // Its word goes to the caller, and what it was shown must not go along (contract I-4).
    let mut redactor = Redactor::default();
    if let Some(authorization) = &parent.authorization {
        redactor.also(authorization);
    }
    let said = hops::read(&redactor.fields(answer.fields));
    Err(Error::Refused { status: answer.status, said })
}

/// Reads the final head, byte by byte: what follows a 2xx belongs to the tunnel.
async fn answer(link: &mut (impl AsyncRead + Unpin)) -> Result<head::Response, Error> {
    let mut text = Vec::new();
    while text.len() < MAX_BYTES {
        text.push(link.read_u8().await.map_err(Error::Broken)?);
        if text.ends_with(b"\r\n\r\n") {
            let bytes = Bytes::from(std::mem::take(&mut text));
            let answer = head::response(&bytes).map_err(|_| Error::ParentSpeech)?;
            if answer.status >= 200 {
                return Ok(answer);
            }
        }
    }
    Err(Error::ParentSpeech)
}
