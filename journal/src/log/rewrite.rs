//! The rewriting of a sealed segment without attachments that may go.
//!
//! Nothing in it moves: a removed attachment leaves a hole of its length. So positions in the index
//! and the length in the successor's header stay true, and the chain, which covers an attachment
//! only by its hash, still verifies.

use super::disk::{Disk, replace};
use super::file_name;
use super::format::{self, Header, RecordView};
use super::recover::check_sealed;
use super::walk::walk;
use crate::open::Error;
use crate::verify::Damage;

/// Removes the attachments that `may_go` names from a sealed segment. Gives how many.
///
/// # Errors
/// [`Error::Damaged`] when the segment is not what was written; it is left alone then.
pub(crate) fn remove_attachments(
    disk: &dyn Disk,
    header: &Header,
    next: &Header,
    may_go: &mut dyn FnMut(&RecordView<'_>) -> bool,
) -> Result<u64, Error> {
    let mut bytes = super::recover::read_sealed(disk, header, next)?;
    let mut going = Vec::new();
    let end = walk(header, &bytes, &mut |position, record| {
        if record.attachment.is_some() && may_go(record) {
            going.push(position);
        }
        Ok::<_, Damage>(())
    })?;
    check_sealed(header, next, &end)?;
    if going.is_empty() {
        return Ok(0);
    }
    for position in &going {
        let start = (position.frame + u64::from(position.offset)) as usize;
        if let Some(record) = bytes.get_mut(start..start + position.length as usize) {
            format::remove_attachment(record);
        }
    }
    let mut frames: Vec<_> =
        going.iter().map(|position| (position.frame, position.frame_length)).collect();
    frames.dedup();
    for (offset, length) in frames {
        let start = offset as usize;
        if let Some(frame) = bytes.get_mut(start..start + length as usize) {
            format::reseal_frame(frame, &header.salt, header.segment, offset);
        }
    }
    // Written only if it would be read.
    let again = walk(header, &bytes, &mut |_, _| Ok::<_, Damage>(()))?;
    check_sealed(header, next, &again)?;
    replace(disk, &file_name(header.segment), &bytes)
        .map_err(|source| Error::Io { step: "rewrite a segment", source })?;
    Ok(going.len() as u64)
}
