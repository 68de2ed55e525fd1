//! A part of a text as its receiver reads it, and where each of its bytes is written.

use std::ops::Range;
use zeroize::Zeroizing;

/// Places in the text that is shown.
pub(super) type Spans = Vec<Range<usize>>;

/// One value, with its escapes undone.
#[derive(Default)]
pub(super) struct Leaf {
    bytes: Zeroizing<Vec<u8>>,
    /// As many as bytes, in order: where the text that is shown has each of them.
    places: Vec<Range<usize>>,
}

impl Leaf {
    /// A text that is all there is.
    pub(super) fn whole(text: &[u8]) -> Self {
        let places = (0..text.len()).map(|at| at..at + 1).collect();
        Self { bytes: Zeroizing::new(text.to_vec()), places }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn push(&mut self, byte: u8, place: Range<usize>) {
        self.bytes.push(byte);
        self.places.push(place);
    }

    /// A part of it, with no escapes in it.
    pub(super) fn part(&self, part: Range<usize>) -> Self {
        let bytes = self.bytes.get(part.clone()).unwrap_or_default().to_vec();
        let places = self.places.get(part).unwrap_or_default().to_vec();
        Self { bytes: Zeroizing::new(bytes), places }
    }

    /// Where a part of it is shown.
    pub(super) fn place(&self, part: Range<usize>) -> Range<usize> {
        let places = self.places.get(part).unwrap_or_default();
        places.first().zip(places.last()).map_or(0..0, |(first, last)| first.start..last.end)
    }

    pub(super) fn shown(&self, found: Spans) -> Spans {
        found.into_iter().map(|part| self.place(part)).collect()
    }
}

pub(super) fn byte(text: &[u8], at: usize) -> Option<u8> {
    text.get(at).copied()
}

/// The first place from `at` on whose byte meets the test, else the end.
pub(super) fn until(text: &[u8], at: usize, test: impl Fn(u8) -> bool) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    rest.iter().position(|&b| test(b)).map_or(text.len(), |n| at + n)
}
