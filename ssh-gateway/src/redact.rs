//! Takes an echoed credential out of an output stream (contract I-4), also when it comes in pieces.

use bytes::Bytes;
use policy::Secret;
use zeroize::Zeroizing;

/// What stands for the credential.
const MARK: &[u8] = b"[redacted]";
/// Shorter secrets are words of ordinary output.
const MIN_BYTES: usize = 4;
/// A beginning of the credential of this length, or of half of it, waits for the rest, however long
/// that takes.
const FEW_BYTES: usize = 8;
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

    /// A whole text without them, and whether one stood in it.
    pub(crate) fn clean(&self, text: &str) -> (String, bool) {
        let mut redactor = Redactor::new(self.clone());
        let mut clean = redactor.push(Bytes::copy_from_slice(text.as_bytes())).to_vec();
        clean.extend_from_slice(&redactor.finish());
        (String::from_utf8_lossy(&clean).into_owned(), redactor.found())
    }
}

fn to_owned(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(bytes.to_vec())
}

/// One stream's filter. Bytes that may be the beginning of the credential wait for what follows.
///
/// Finds several needles at once by Horspool's method: the last byte of the window says how far it
/// can move without missing one.
pub(crate) struct Redactor {
    needles: Needles,
    /// How far the window can move by its last byte; 0 where a needle may stand.
    moves: [usize; 256],
    /// Length of the window: of the shortest needle.
    window_bytes: usize,
    longest_bytes: usize,
    /// What may be the beginning of a needle.
    held: Vec<u8>,
    /// How many of the held bytes are out already: they waited in vain, and the rest came late.
    out_bytes: usize,
    few_bytes: usize,
    found: bool,
    /// Whether lengths have to stay, and nothing may wait for long.
    is_framed: bool,
}

impl Redactor {
    /// For a stream with lengths inside, whose reader waits for all that it is told of.
    pub(crate) fn framed(needles: Needles) -> Self {
        Self { is_framed: true, ..Self::new(needles) }
    }

    pub(crate) fn new(needles: Needles) -> Self {
        let lengths = || needles.0.iter().map(|needle| needle.len());
        let window_bytes = lengths().min().unwrap_or(0);
        let longest_bytes = lengths().max().unwrap_or(0);
        let mut moves = [window_bytes; 256];
        for needle in &needles.0 {
            for (distance, byte) in needle.iter().take(window_bytes).rev().enumerate() {
                if let Some(step) = moves.get_mut(usize::from(*byte)) {
                    *step = distance.min(*step);
                }
            }
        }
        Self {
            needles,
            moves,
            window_bytes,
            longest_bytes,
            held: Vec::new(),
            out_bytes: 0,
            few_bytes: FEW_BYTES.min(window_bytes / 2),
            found: false,
            is_framed: false,
        }
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

    /// Whether bytes wait that are to go on soon: a few that are most likely no credential, such as
    /// a typed character, or any of a framed stream.
    pub(crate) fn is_waiting(&self) -> bool {
        self.held.len() > self.out_bytes && (self.is_framed || self.held.len() < self.few_bytes)
    }

    /// Lets bytes go that waited in vain for what would have made them a credential. They still count
    /// as its beginning: what comes late is replaced all the same.
    pub(crate) fn release(&mut self) -> Bytes {
        if !self.is_waiting() {
            return Bytes::new();
        }
        let waiting = self.held.get(self.out_bytes..).unwrap_or_default();
        self.out_bytes = self.held.len();
        Bytes::copy_from_slice(waiting)
    }

    /// The end of the stream: what waited is clear.
    pub(crate) fn finish(&mut self) -> Bytes {
        let held = Bytes::from(std::mem::take(&mut self.held));
        held.slice(std::mem::take(&mut self.out_bytes).min(held.len())..)
    }

    fn scan(&mut self, whole: Bytes) -> Bytes {
        let mut clean: Option<Vec<u8>> = None;
        // Everything before `copied` is in `clean`, or out, already.
        let mut copied = std::mem::take(&mut self.out_bytes);
        let (mut at, mut after) = (0, 0);
        while let Some(last) = whole.get(at + self.window_bytes.saturating_sub(1)) {
            let step = self.moves.get(usize::from(*last)).copied().unwrap_or(1);
            if step > 0 {
                at += step;
                continue;
            }
            let rest = whole.get(at..).unwrap_or_default();
            let Some(needle) = self.needles.0.iter().find(|needle| rest.starts_with(needle)) else {
                at += 1;
                continue;
            };
            self.found = true;
            let clean = clean.get_or_insert_default();
            clean.extend_from_slice(whole.get(copied..at).unwrap_or_default());
            let end = at + needle.len();
            if self.is_framed {
                clean.resize(clean.len() + end.saturating_sub(copied.max(at)), b'*');
            } else {
                clean.extend_from_slice(MARK);
            }
            (at, after, copied) = (end, end, end);
        }
        let clear = self.beginning(&whole, after);
        self.held = whole.get(clear..).unwrap_or_default().to_vec();
        self.out_bytes = copied.saturating_sub(clear);
        joined(clean, whole.slice(copied..clear.max(copied)))
    }

    /// Where the tail begins that a needle may go on from; the end if there is none.
    fn beginning(&self, whole: &[u8], from: usize) -> usize {
        let earliest = whole.len().saturating_sub(self.longest_bytes.saturating_sub(1)).max(from);
        let begins = |at: &usize| {
            let tail = whole.get(*at..).unwrap_or_default();
            self.needles.0.iter().any(|needle| needle.starts_with(tail))
        };
        (earliest..whole.len()).find(begins).unwrap_or(whole.len())
    }
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

    /// I-4: whatever the pieces, the result is that of the whole.
    #[test]
    fn i_4_every_cut_gives_the_same() {
        let text = "abcabcab abcabcabd abcabdabcabcabdab";
        let whole = filter("abcabd", &[text]);
        assert_eq!(whole.0, "abcabcab abc[redacted] [redacted]abc[redacted]ab");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(filter("abcabd", &pieces), whole, "{first} {second}");
            }
        }
    }

    /// A typed character is not held back for long; a longer beginning is.
    #[test]
    fn i_4_few_bytes_are_released_and_more_are_not() {
        let mut redactor = Redactor::new(Needles::password(&Secret::from("hunter22 and more")));
        assert_eq!(redactor.push(Bytes::from_static(b"# h")), "# ");
        assert!(redactor.is_waiting());
        assert_eq!(redactor.release(), "h");
        assert_eq!(redactor.push(Bytes::from_static(b"hunter22")), "");
        assert!(!redactor.is_waiting());
        assert_eq!(redactor.release(), "");
        assert_eq!(redactor.push(Bytes::from_static(b" and more.")), "[redacted].");
    }

    /// I-4: however slowly it comes, no more of it passes than a few bytes.
    #[test]
    fn i_4_a_slow_echo_is_replaced() {
        let slowly = |mut redactor: Redactor, text: &str| {
            let mut clean = Vec::new();
            for byte in text.bytes() {
                clean.extend_from_slice(&redactor.push(Bytes::copy_from_slice(&[byte])));
                clean.extend_from_slice(&redactor.release());
            }
            clean.extend_from_slice(&redactor.finish());
            (String::from_utf8(clean).unwrap(), redactor.found())
        };
        let of = |secret: &str| Needles::password(&Secret::from(secret));
        let (long, short) = ("hunter22 and more", "secret");
        for (secret, text, expected) in [
            (long, "pw: hunter22 and more!\n", "pw: hunter2[redacted]!\n"),
            (long, "hunhunter22 and more", "hunhunter2[redacted]"),
            (short, "a secret.", "a se[redacted]."),
            (short, "secsecret", "secse[redacted]"),
        ] {
            assert_eq!(slowly(Redactor::new(of(secret)), text), (expected.to_owned(), true));
        }
        for text in ["a secre word", "hunter22 and mor", "sesese"] {
            for secret in [long, short] {
                assert_eq!(slowly(Redactor::new(of(secret)), text), (text.to_owned(), false));
            }
        }
        let framed = slowly(Redactor::framed(of(long)), "<hunter22 and more>");
        assert_eq!(framed, ("<hunter22 and mor*>".to_owned(), true));
    }

    /// I-4: where lengths stand in the stream, they stay, and nothing waits for ever.
    #[test]
    fn i_4_a_framed_stream_keeps_its_lengths() {
        let mut redactor = Redactor::framed(Needles::password(&Secret::from("hunter22 and more")));
        assert_eq!(
            redactor.push(Bytes::from_static(b"<hunter22 and more>")),
            "<*****************>"
        );
        assert!(redactor.found());
        assert_eq!(redactor.push(Bytes::from_static(b"hunter22 and")), "");
        assert!(redactor.is_waiting());
        assert_eq!(redactor.release(), "hunter22 and");
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
