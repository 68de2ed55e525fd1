//! Takes an echoed credential out of an output stream (contract I-4), also when it comes in pieces.

use bytes::Bytes;
use policy::Secret;
use zeroize::Zeroizing;

/// What stands for the credential.
const MARK: &[u8] = b"[redacted]";
/// Shorter secrets are words of ordinary output.
const MIN_BYTES: usize = 4;
/// Shorter lines of a private key say too little to be worth a false alarm.
const MIN_LINE_BYTES: usize = 32;

/// What must not pass: the password, or the lines of the private key.
#[derive(Clone, Default)]
pub(crate) struct Needles(Vec<Zeroizing<Vec<u8>>>);

impl Needles {
    /// The password itself.
    pub(crate) fn password(secret: &Secret) -> Self {
        let bytes = secret.expose().trim_ascii();
        if bytes.len() < MIN_BYTES { Self::default() } else { Self(vec![to_owned(bytes)]) }
    }

    /// The lines of the private key's text. The first one is the same for all keys of a type.
    pub(crate) fn key(secret: &Secret) -> Self {
        let lines = secret.expose().split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let body = lines.filter(|line| line.len() >= MIN_LINE_BYTES && !line.starts_with(b"-"));
        Self(body.skip(1).map(to_owned).collect())
    }
}

fn to_owned(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(bytes.to_vec())
}

/// One stream's filter. Bytes that may be the beginning of the credential wait for what follows.
pub(crate) struct Redactor {
    needles: Needles,
    first: [bool; 256],
    held: Vec<u8>,
    found: bool,
}

impl Redactor {
    pub(crate) fn new(needles: Needles) -> Self {
        let mut first = [false; 256];
        for needle in &needles.0 {
            if let Some(flag) = needle.first().and_then(|byte| first.get_mut(usize::from(*byte))) {
                *flag = true;
            }
        }
        Self { needles, first, held: Vec::new(), found: false }
    }

    /// Whether the credential was found.
    pub(crate) const fn found(&self) -> bool {
        self.found
    }

    /// Takes the next bytes; gives those that are clear.
    pub(crate) fn push(&mut self, data: Bytes) -> Bytes {
        if self.needles.0.is_empty() {
            return data;
        }
        let whole = if self.held.is_empty() {
            data
        } else {
            self.held.extend_from_slice(&data);
            Bytes::from(std::mem::take(&mut self.held))
        };
        self.scan(whole)
    }

    /// The end of the stream: what waited is clear.
    pub(crate) fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.held))
    }

    fn scan(&mut self, whole: Bytes) -> Bytes {
        let mut clean: Option<Vec<u8>> = None;
        // Everything before `copied` is in `clean` already.
        let (mut copied, mut at) = (0, 0);
        while let Some(rest) = whole.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(offset) = rest.iter().position(|byte| self.may_begin(*byte)) else { break };
            let candidate = rest.get(offset..).unwrap_or_default();
            at += offset;
            match self.compare(candidate) {
                Match::Whole(length_bytes) => {
                    self.found = true;
                    let clean = clean.get_or_insert_default();
                    clean.extend_from_slice(whole.get(copied..at).unwrap_or_default());
                    clean.extend_from_slice(MARK);
                    at += length_bytes;
                    copied = at;
                }
                Match::Beginning => {
                    self.held = candidate.to_vec();
                    let before = whole.slice(copied..at);
                    return joined(clean, before);
                }
                Match::No => at += 1,
            }
        }
        joined(clean, whole.slice(copied..))
    }

    fn may_begin(&self, byte: u8) -> bool {
        self.first.get(usize::from(byte)).copied().unwrap_or(false)
    }

    fn compare(&self, candidate: &[u8]) -> Match {
        let whole = self.needles.0.iter().find(|needle| candidate.starts_with(needle));
        if let Some(needle) = whole {
            return Match::Whole(needle.len());
        }
        if self.needles.0.iter().any(|needle| needle.starts_with(candidate)) {
            Match::Beginning
        } else {
            Match::No
        }
    }
}

enum Match {
    Whole(usize),
    Beginning,
    No,
}

fn joined(clean: Option<Vec<u8>>, rest: Bytes) -> Bytes {
    match clean {
        None => rest,
        Some(mut clean) => {
            clean.extend_from_slice(&rest);
            Bytes::from(clean)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(secret: &str, pieces: &[&str]) -> (String, bool) {
        let mut redactor = Redactor::new(Needles::password(&Secret::from(secret)));
        let mut clean = Vec::new();
        for piece in pieces {
            clean.extend_from_slice(&redactor.push(Bytes::copy_from_slice(piece.as_bytes())));
        }
        clean.extend_from_slice(&redactor.finish());
        (String::from_utf8(clean).unwrap(), redactor.found())
    }

    /// I-4: an echoed credential is replaced, in one piece or in many.
    #[test]
    fn i_4_an_echoed_credential_is_replaced() {
        let whole = ("pw=[redacted], again [redacted]!".to_owned(), true);
        assert_eq!(filter("hunter22", &["pw=hunter22, again hunter22!"]), whole);
        assert_eq!(filter("hunter22", &["pw=hun", "ter", "22, again hunter2", "2!"]), whole);
        let other = ["hunhun", "ter", "2x hunter2"];
        assert_eq!(filter("hunter22", &other), ("hunhunter2x hunter2".to_owned(), false));
        assert_eq!(filter("aab1", &["aaab1"]), ("a[redacted]".to_owned(), true));
        assert_eq!(filter("abc", &["abc"]), ("abc".to_owned(), false));
    }

    #[test]
    fn i_4_lines_of_a_key_are_replaced() {
        let lines = ["A".repeat(70), "B".repeat(70), "C".repeat(40)];
        let text = format!("-----BEGIN X-----\n{}\n-----END X-----\n", lines.join("\n"));
        let mut redactor = Redactor::new(Needles::key(&Secret::from(text.as_str())));
        let mut clean = redactor.push(Bytes::from(text)).to_vec();
        clean.extend_from_slice(&redactor.finish());
        let clean = String::from_utf8(clean).unwrap();
        assert!(!clean.contains(&lines[1]) && !clean.contains(&lines[2]), "{clean}");
        assert!(redactor.found());
    }
}
