//! The replay of records into the index, as the projector would have written them.

use crate::contract::{Event, InvocationId, Sequence};
use crate::index::{Index, Update};
use crate::log::recover::{Survey, Watermark};
use crate::log::{Kind, Position, RecordView};
use crate::open::Error;
use crate::projection::Invocation;
use crate::verify::Damage;
use std::collections::HashMap;
use std::sync::Arc;

/// Invocations that a replay holds in memory before it writes them.
const LIMIT: usize = 20_000;

/// Applies records to the index.
pub(crate) struct Replay<'a> {
    index: &'a Index,
    store: [u8; 16],
    changed: HashMap<InvocationId, Update>,
    /// Whether the log begins behind its beginning, so that a re-statement may come later than
    /// records of the same invocation.
    is_cut: bool,
    /// Records of invocations that began in the removed part and are not re-stated yet.
    orphans: HashMap<InvocationId, Vec<(Sequence, Kind, Position)>>,
    /// Where the log stood before the first of them: the index may not claim more.
    before_orphans: Option<Watermark>,
    last: Watermark,
}

fn damage(position: Position, record: &RecordView<'_>, what: &'static str) -> Error {
    Damage {
        segment: position.segment,
        offset: position.frame + u64::from(position.offset),
        frame: 0,
        sequence: Sequence(record.sequence.saturating_sub(1)),
        what,
    }
    .into()
}

impl<'a> Replay<'a> {
    pub(crate) fn new(index: &'a Index, survey: &Survey, store: [u8; 16]) -> Self {
        let first = survey.headers.first();
        let last = Watermark {
            store,
            sequence: first.map_or(0, |first| first.first_sequence.saturating_sub(1)),
            chain: first.map_or([0; 32], |first| first.chain_in),
        };
        Self {
            index,
            store,
            changed: HashMap::new(),
            is_cut: first.is_some_and(|first| first.previous != 0),
            orphans: HashMap::new(),
            before_orphans: None,
            last,
        }
    }

    /// Takes the next record.
    pub(crate) fn take(
        &mut self,
        position: Position,
        record: &RecordView<'_>,
    ) -> Result<(), Error> {
        match record.kind {
            Kind::RecoveryNote => {}
            Kind::Chunk => {
                let place = (Sequence(record.sequence), Kind::Chunk, position);
                let id = InvocationId::from_bytes(record.invocation);
                match self.update(id)? {
                    Some(update) => update.records.push(place),
                    None => self.orphan(id, place, record, "a chunk belongs to no invocation")?,
                }
            }
            Kind::Event => self.event(position, record)?,
            Kind::CarriedForward => self.restated(position, record)?,
        }
        self.last = Watermark { store: self.store, sequence: record.sequence, chain: record.chain };
        if self.changed.len() >= LIMIT {
            let mark = self.before_orphans.clone().unwrap_or_else(|| self.last.clone());
            self.flush(&mark)?;
        }
        Ok(())
    }

    fn event(&mut self, position: Position, record: &RecordView<'_>) -> Result<(), Error> {
        let sequence = Sequence(record.sequence);
        let id = InvocationId::from_bytes(record.invocation);
        let place = (sequence, Kind::Event, position);
        let event: Event = serde_json::from_slice(record.payload)
            .map_err(|_| damage(position, record, "an event can't be read"))?;
        match self.update(id)? {
            // The index may hold more of an invocation than its watermark says.
            Some(update) if sequence <= update.invocation.last_sequence() => {
                update.records.push(place);
            }
            Some(update) => {
                let applied = Arc::make_mut(&mut update.invocation).apply(sequence, &event);
                applied.map_err(|_| damage(position, record, "an event is illegal"))?;
                update.records.push(place);
            }
            None => match Invocation::start(sequence, &event) {
                Ok(invocation) => {
                    let invocation = Arc::new(invocation);
                    self.changed.insert(id, Update { invocation, records: vec![place] });
                }
                Err(_) => self.orphan(id, place, record, "an event is illegal")?,
            },
        }
        Ok(())
    }

    fn restated(&mut self, position: Position, record: &RecordView<'_>) -> Result<(), Error> {
        let id = InvocationId::from_bytes(record.invocation);
        let place = (Sequence(record.sequence), Kind::CarriedForward, position);
        if let Some(update) = self.update(id)? {
            update.records.push(place);
            return Ok(());
        }
        let bad = |what| damage(position, record, what);
        let invocation: Invocation = serde_json::from_slice(record.payload)
            .map_err(|_| bad("a re-stated invocation can't be read"))?;
        let mut records = self.orphans.remove(&id).unwrap_or_default();
        let newest = records.iter().rfind(|(_, kind, _)| *kind == Kind::Event);
        let covers = newest.is_none_or(|(newest, _, _)| *newest <= invocation.last_sequence());
        if invocation.id() != id || invocation.last_sequence() >= place.0 || !covers {
            return Err(bad("a re-stated invocation does not fit its events"));
        }
        records.push(place);
        self.changed.insert(id, Update { invocation: Arc::new(invocation), records });
        if self.orphans.is_empty() {
            self.before_orphans = None;
        }
        Ok(())
    }

    fn orphan(
        &mut self,
        id: InvocationId,
        place: (Sequence, Kind, Position),
        record: &RecordView<'_>,
        what: &'static str,
    ) -> Result<(), Error> {
        if !self.is_cut {
            return Err(damage(place.2, record, what));
        }
        if self.before_orphans.is_none() {
            self.before_orphans = Some(self.last.clone());
        }
        self.orphans.entry(id).or_default().push(place);
        Ok(())
    }

    fn update(&mut self, id: InvocationId) -> Result<Option<&mut Update>, Error> {
        use std::collections::hash_map::Entry as Slot;
        match self.changed.entry(id) {
            Slot::Occupied(slot) => Ok(Some(slot.into_mut())),
            Slot::Vacant(slot) => Ok(self.index.invocation(id)?.map(|invocation| {
                slot.insert(Update { invocation: Arc::new(invocation), records: Vec::new() })
            })),
        }
    }

    fn flush(&mut self, mark: &Watermark) -> Result<(), Error> {
        let updates: Vec<Update> = self.changed.drain().map(|(_, update)| update).collect();
        Ok(self.index.apply(&updates, mark)?)
    }

    /// Writes what is left, up to the end of the log.
    pub(crate) fn finish(&mut self, end: &Watermark) -> Result<(), Error> {
        let earliest = self.orphans.values().flatten().min_by_key(|(sequence, _, _)| *sequence);
        if let Some((sequence, _, position)) = earliest {
            return Err(Damage {
                segment: position.segment,
                offset: position.frame + u64::from(position.offset),
                frame: 0,
                sequence: Sequence(sequence.0.saturating_sub(1)),
                what: "an event belongs to no invocation, and none is re-stated later",
            }
            .into());
        }
        self.flush(end)
    }
}
