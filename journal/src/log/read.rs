//! Reading of single records, beside the writer.

use super::disk::{Disk, File};
use super::file_name;
use super::format::{BLOCK, FRAME_HEADER, FrameView, Header, Position, RecordView};
use crate::contract::Sequence;
use crate::read::Error;
use crate::verify::Damage;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Segments that are kept open for reading.
const OPEN: usize = 16;

struct Segment {
    header: Header,
    file: Arc<dyn File>,
}

/// Segments open for reading.
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    open: Mutex<HashMap<u64, Arc<Segment>>>,
}

impl Segments {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, open: Mutex::new(HashMap::new()) }
    }

    fn segment(&self, number: u64) -> Result<Arc<Segment>, Error> {
        if let Some(segment) = self.open.lock().get(&number) {
            return Ok(Arc::clone(segment));
        }
        let file = self.disk.open(&file_name(number))?;
        let mut block = vec![0; BLOCK];
        file.read_at(&mut block, 0)?;
        let header = Header::decode(&block).filter(|header| header.segment == number);
        let Some(header) = header else {
            let sequence = Sequence(0);
            let what = "the header can't be read";
            return Err(Damage { segment: number, offset: 0, frame: 0, sequence, what }.into());
        };
        let segment = Arc::new(Segment { header, file });
        let mut open = self.open.lock();
        if open.len() >= OPEN {
            open.clear();
        }
        open.insert(number, Arc::clone(&segment));
        Ok(segment)
    }

    /// Closes a segment that was rewritten or removed.
    pub(crate) fn forget(&self, number: u64) {
        self.open.lock().remove(&number);
    }

    /// Reads a record with its whole frame and checks the checksum.
    pub(crate) fn checked<T>(
        &self,
        position: &Position,
        sequence: Sequence,
        take: impl FnOnce(&RecordView<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        let segment = self.segment(position.segment)?;
        let mut bytes = vec![0; position.frame_length as usize];
        segment.file.read_at(&mut bytes, position.frame)?;
        let frame =
            FrameView::decode(&bytes, &segment.header.salt, position.segment, position.frame);
        let start = (position.offset as usize).checked_sub(FRAME_HEADER);
        let record = frame
            .zip(start)
            .and_then(|(frame, start)| frame.body.get(start..))
            .and_then(RecordView::decode);
        self.sound(position, sequence, record, take)
    }

    /// Reads a record alone. Who calls checks its content: an attachment has a hash.
    pub(crate) fn alone<T>(
        &self,
        position: &Position,
        sequence: Sequence,
        take: impl FnOnce(&RecordView<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        let segment = self.segment(position.segment)?;
        let mut bytes = vec![0; position.length as usize];
        segment.file.read_at(&mut bytes, position.frame + u64::from(position.offset))?;
        self.sound(position, sequence, RecordView::decode(&bytes), take)
    }

    fn sound<T>(
        &self,
        position: &Position,
        sequence: Sequence,
        record: Option<RecordView<'_>>,
        take: impl FnOnce(&RecordView<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        record
            .filter(|record| record.sequence == sequence.0)
            .and_then(|record| take(&record))
            .ok_or_else(|| {
                Damage {
                    segment: position.segment,
                    offset: position.frame,
                    frame: 0,
                    sequence,
                    what: "the record is not what was written",
                }
                .into()
            })
    }
}
