//! The LMDB environment that holds snapshots, agents and secrets.

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// LMDB failed.
    #[error("policy store: cannot {step}")]
    Lmdb {
        /// What was tried.
        step: &'static str,
        /// LMDB's error.
        #[source]
        source: heed::Error,
    },
    /// A record in the store can't be read.
    #[error("policy store: the record of {0} is damaged")]
    Damaged(&'static str),
}
