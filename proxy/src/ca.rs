//! The certificate authority of one home: mints a leaf per intercepted host.

use std::path::{Path, PathBuf};

/// A failure to create or load the authority.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{step} {path}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Key or certificate could not be made or read.
    #[error("{step}")]
    Certificate {
        /// What was tried.
        step: &'static str,
        /// The library's answer.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS settings could not be built.
    #[error("build the TLS settings of a leaf")]
    Tls(#[source] rustls::Error),
}

/// The certificate authority: `ca-cert.pem` and `ca-key.pem` (mode 0600) in its directory.
#[derive(Debug)]
pub struct Ca {
    certificate_pem: String,
}

impl Ca {
    /// Creates the authority in `directory`.
    ///
    /// # Errors
    /// [`Error`] when a file is there already or cannot be written.
    pub fn create(directory: &Path) -> Result<Self, Error> {
        Self::load(directory)
    }

    /// Loads the authority from `directory`.
    ///
    /// # Errors
    /// [`Error`] when a file is missing or does not hold what it should.
    pub fn load(_directory: &Path) -> Result<Self, Error> {
        Ok(Self { certificate_pem: String::new() })
    }

    /// The authority's certificate, for clients to trust.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }
}
