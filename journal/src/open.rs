//! Why a journal could not be opened.

use std::io;
use std::path::PathBuf;

/// Why a journal could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Caller: another process has it open.
    #[error("another process uses the journal in {}", .0.display())]
    InUse(PathBuf),
    /// Caller: the options can't work.
    #[error("journal options: {0}")]
    Options(&'static str),
    /// Local: the directory or a file could not be used.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Local: the log is damaged inside what was acknowledged. Nothing was changed.
    #[error("the journal is damaged")]
    Damaged(#[from] crate::verify::Damage),
    /// Local: the derived index could not be opened or rebuilt.
    #[error("could not {step} of the index")]
    Index {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Local: a thread could not be started.
    #[error("could not start a thread of the journal")]
    Thread(#[source] io::Error),
    /// Local: the key that signs checkpoints can't be used, or did not sign the anchor.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    /// Local: the calls that the last run left open could not be ended.
    #[error("could not end the interrupted calls")]
    Append(#[from] crate::append::Error),
}
