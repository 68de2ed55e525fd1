//! The segmented log: zero-filled files, block-padded frames, one sync per batch, a hash chain.
//!
//! Formats are in `FORMAT.md`. This module knows bytes, sequence numbers and the disk. It does not
//! know what an event means, and it has no thread but the one that zeroes spare segments.

pub(crate) mod disk;
pub(crate) mod format;
pub(crate) mod read;
pub(crate) mod recover;
pub(crate) mod rewrite;
pub(crate) mod spares;
pub(crate) mod tail;
pub(crate) mod walk;

#[cfg(test)]
mod golden;
#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

pub(crate) use format::{BLOCK, Draft, Header, Kind, Position, RecordView};

use std::io;

/// The name of a segment's file.
pub(crate) fn file_name(segment: u64) -> String {
    format!("{segment:08}.seg")
}

/// The number in a segment's file name.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".seg")?;
    if digits.len() < 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    use ring::rand::SecureRandom as _;
    let mut bytes = [0; N];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gave no randomness"))?;
    Ok(bytes)
}
