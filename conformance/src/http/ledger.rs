//! The ledger of an origin: what arrived, and what was done of it.

use super::request::field;

/// One request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// The head, byte for byte, with its empty line.
    pub head: Vec<u8>,
    /// The content, decoded from its framing. Empty unless the script reads it.
    pub body: Vec<u8>,
    /// The trailer section of content in chunks, with its empty line. Empty unless the script reads it.
    pub trailers: Vec<u8>,
    /// Number of the connection it came on, from 1.
    pub connection: u32,
}

impl Seen {
    /// The request target.
    #[must_use]
    pub fn target(&self) -> &str {
        let line = self.head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        std::str::from_utf8(line).ok().and_then(|line| line.split(' ').nth(1)).unwrap_or_default()
    }

    /// The head as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// The value of the first field of that name, whatever its case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<String> {
        field(&self.head, name)
    }
}

/// The path of a target in origin or absolute form.
pub(super) fn path_of(target: &str) -> &str {
    let path = target.split('?').next().unwrap_or(target);
    match path.split_once("://") {
        Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"),
        None => path,
    }
}

/// What an origin counts.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) seen: Vec<Seen>,
    /// Paths, one for each effect.
    pub(super) effects: Vec<String>,
    pub(super) connections: u32,
    /// Connections that a script ended.
    pub(super) ended: u32,
    /// Server names of TLS handshakes, in order.
    pub(super) server_names: Vec<String>,
    /// Bytes of heads that were never completed.
    pub(super) stray_bytes: u64,
    pub(super) early_data: bool,
}
