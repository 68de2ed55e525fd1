//! The line that may be a route's mark of completion (contract S-8).

/// Longer lines are no marks.
const MAX_BYTES: usize = 4096;

/// The last line of a stream that is not empty, as far as a mark of completion can be long.
#[derive(Debug, Default)]
pub(super) struct LastLine {
    line: Vec<u8>,
    is_over: bool,
}

impl LastLine {
    pub(super) fn push(&mut self, data: &[u8]) {
        for byte in data {
            if *byte == b'\n' {
                self.is_over = true;
                continue;
            }
            if std::mem::take(&mut self.is_over) {
                self.line.clear();
            }
            if self.line.len() <= MAX_BYTES {
                self.line.push(*byte);
            }
        }
    }

    pub(super) fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\r").unwrap_or(&self.line)
    }
}
