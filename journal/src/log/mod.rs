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

use std::cell::RefCell;
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
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    use ring::rand::SecureRandom as _;
    ring::rand::SystemRandom::new()
        .fill(bytes)
        .map_err(|_| io::Error::other("the system gave no randomness"))
}

/// Random bytes that are no secret (ids, salts), asked for in larger pieces: a call to the system
/// costs more than its bytes do.
pub(crate) fn unique<const N: usize>() -> io::Result<[u8; N]> {
    const STOCK: usize = 1024;
    thread_local! {
        static STOCKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    STOCKED.with_borrow_mut(|stock| {
        if stock.len() < N {
            stock.resize(STOCK.max(N), 0);
            fill(stock).inspect_err(|_| stock.clear())?;
        }
        let bytes = stock.last_chunk::<N>().copied();
        stock.truncate(stock.len() - N);
        bytes.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    })
}
