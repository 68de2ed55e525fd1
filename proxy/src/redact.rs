//! Takes echoed credentials out of what a remote sends (contract I-4).
//!
//! A replacement is as long as what it replaces, so that declared lengths stay true. Found are the exact
//! bytes and their usual escapes in JSON, URLs and HTML, not encodings of them such as base64. Compressed
//! content is unpacked for it in `packed`.

use crate::head::{Fields, Response};
use base64::Engine as _;
use base64::alphabet::STANDARD as STANDARD_ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use bytes::{Bytes, BytesMut};
use policy::{Secret, spellings};
use zeroize::Zeroizing;

/// Base64 with or without padding, as gRPC's libraries send it.
const UNPADDED: GeneralPurpose = GeneralPurpose::new(
    &STANDARD_ALPHABET,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Shorter beginnings of a secret may pass where nothing can wait for ever.
const FEW_BYTES: usize = 8;
/// Shorter secrets occur by chance.
const MIN: usize = 4;

/// Looks for secrets in a stream of bytes.
#[derive(Default)]
pub(crate) struct Redactor {
    patterns: Vec<Zeroizing<Vec<u8>>>,
    /// The end of what came, which may be the beginning of a secret.
    held: BytesMut,
    /// How much of its beginning has gone on all the same.
    released: usize,
    found: bool,
    /// The same of content that passed piece by piece.
    in_content: bool,
}

impl Redactor {
    /// Looks for the secret, and for what stands in the injected field after its scheme.
    pub(crate) fn new(secret: &Secret, value: &Secret) -> Self {
        let text = value.expose();
        let mut redactor = Self::default();
        // Of `user:password` the password alone is as good as the whole.
        let basic = text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"basic "));
        // What follows the first blank is no token where a format puts the secret in front of it.
        let token = text
            .splitn(2, |byte| *byte == b' ')
            .nth(1)
            .filter(|token| basic || memchr::memmem::find(token, secret.expose()).is_some());
        let token = token.unwrap_or(text);
        let mut parts = secret.expose().splitn(2, |byte| *byte == b':');
        let password = parts.nth(1).filter(|_| basic).unwrap_or(token);
        redactor.look_for([secret.expose(), token, password]);
        // With its scheme in front of it the token is hidden as a whole, where nothing is escaped.
        redactor.add(Zeroizing::new(text.to_vec()));
        redactor
    }

    /// Looks for all of these.
    pub(crate) fn of(shown: &[Secret]) -> Self {
        let mut redactor = Self::default();
        redactor.look_for(shown.iter().map(Secret::expose));
        redactor
    }

    fn look_for<'a>(&mut self, values: impl IntoIterator<Item = &'a [u8]>) {
        let long = values.into_iter().filter(|value| value.len() >= MIN);
        long.flat_map(spellings).for_each(|pattern| self.add(pattern));
    }

    fn add(&mut self, pattern: Zeroizing<Vec<u8>>) {
        if pattern.len() >= MIN && !self.patterns.contains(&pattern) {
            // The longest first: a shorter one inside of it would hide it.
            let place = self.patterns.partition_point(|known| known.len() >= pattern.len());
            self.patterns.insert(place, pattern);
        }
    }

    /// Looks for what was shown to an upstream proxy, as well, and for what that encodes.
    pub(crate) fn also(&mut self, shown: &Secret) {
        let encoded = shown.expose_text().and_then(|text| text.split_once(' '));
        let decoded = encoded
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
            .and_then(|(_, text)| STANDARD.decode(text).ok())
            .map(Secret::new);
        let more = Self::new(decoded.as_ref().unwrap_or(shown), shown);
        self.patterns.extend(more.patterns);
        self.patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
    }

    /// One that looks for the same, at the beginning of another text.
    pub(crate) fn anew(&self) -> Self {
        Self { patterns: self.patterns.clone(), ..Self::default() }
    }

    /// A beginning of this length, or of half of the shortest pattern, is too much to pass.
    pub(crate) fn few_bytes(&self) -> usize {
        self.patterns.last().map_or(0, |shortest| shortest.len() / 2).min(FEW_BYTES)
    }

    /// Whether there is anything to look for.
    pub(crate) const fn is_active(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Whether anything was replaced so far.
    pub(crate) const fn found(&self) -> bool {
        self.found
    }

    /// Whether content is not as it came.
    pub(crate) const fn altered_content(&self) -> bool {
        self.in_content
    }

    /// Says that another one for the same found something in content.
    pub(crate) const fn note_found(&mut self) {
        self.found = true;
        self.in_content = true;
    }

    /// Replaces in a complete text. `None`: nothing to replace.
    pub(crate) fn text(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        let holds = |pattern: &Zeroizing<Vec<u8>>| memchr::memmem::find(text, pattern).is_some();
        if !self.patterns.iter().any(holds) {
            return None;
        }
        let mut replaced = text.to_vec();
        self.in_place(&mut replaced);
        Some(replaced)
    }

    /// Replaces in a complete text where it lies; whether there was anything to replace.
    pub(crate) fn in_place(&mut self, text: &mut [u8]) -> bool {
        let mut found = false;
        for pattern in &self.patterns {
            let mut from = 0;
            while let Some(rest) = text.get_mut(from..)
                && let Some(at) = memchr::memmem::find(rest, pattern)
            {
                if let Some(span) = rest.get_mut(at..at + pattern.len()) {
                    span.fill(b'*');
                }
                from += at + pattern.len();
                found = true;
            }
        }
        self.found |= found;
        found
    }

    /// Replaces in the reason, the names and the values of a response head.
    pub(crate) fn head(&mut self, mut head: Response) -> Response {
        if let Some(reason) = self.text(&head.reason) {
            head.reason = reason;
        }
        head.fields = self.fields(head.fields);
        head
    }

    /// Replaces in the names and values of a field section. `*` is a byte of tokens, so a name stays
    /// a name.
    pub(crate) fn fields(&mut self, fields: Fields) -> Fields {
        if self.patterns.is_empty() {
            return fields;
        }
        let mut replaced = Vec::new();
        for (line, (name, value)) in fields.iter().enumerate() {
            // A length that happens to hold the secret's digits is still a length.
            if name.eq_ignore_ascii_case(b"content-length") {
                continue;
            }
            let (new_name, new_value) = (self.name(name), self.value(name, value));
            if new_name.is_some() || new_value.is_some() {
                replaced.push((line, new_name, new_value));
            }
        }
        if replaced.is_empty() {
            return fields;
        }
        let mut replaced = replaced.into_iter().peekable();
        let lines = fields.iter().enumerate().map(|(line, (name, value))| {
            let new = replaced.next_if(|(at, _, _)| *at == line);
            let (new_name, new_value) = new.map_or((None, None), |(_, name, value)| (name, value));
            (new_name.unwrap_or_else(|| name.to_vec()), new_value.unwrap_or_else(|| value.to_vec()))
        });
        lines.collect()
    }

    /// Replaces in the value of a field. Those of gRPC whose names end in `-bin` are base64 of what their
    /// callers see (gRPC over HTTP/2, Binary-Header).
    fn value(&mut self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut replaced = self.text(value);
        let ending = name.len().checked_sub(4).and_then(|at| name.get(at..));
        if !ending.is_some_and(|ending| ending.eq_ignore_ascii_case(b"-bin")) {
            return replaced;
        }
        let current = replaced.as_deref().unwrap_or(value);
        let mut found = false;
        let members = current.split(|byte| *byte == b',').map(|member| {
            let digits = member.trim_ascii();
            let shown = UNPADDED.decode(digits).ok().and_then(|bytes| self.text(&bytes))?;
            found = true;
            let engine = if digits.ends_with(b"=") { STANDARD } else { UNPADDED };
            Some(engine.encode(shown).into_bytes())
        });
        let members: Vec<_> = members.collect();
        if found {
            let pairs = members.into_iter().zip(current.split(|byte| *byte == b','));
            let pairs = pairs.map(|(new, old)| new.unwrap_or_else(|| old.to_vec()));
            replaced = Some(pairs.collect::<Vec<_>>().join(&b","[..]));
        }
        replaced
    }

    /// As [`Redactor::text`], without regard to case: names lose theirs on the way.
    fn name(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        let mut replaced: Option<Vec<u8>> = None;
        for pattern in &self.patterns {
            for start in 0..=name.len().saturating_sub(pattern.len()) {
                let span = start..start + pattern.len();
                let current = replaced.as_deref().unwrap_or(name).get(span.clone());
                if current.is_some_and(|current| current.eq_ignore_ascii_case(pattern)) {
                    let buffer = replaced.get_or_insert_with(|| name.to_vec());
                    if let Some(span) = buffer.get_mut(span) {
                        span.fill(b'*');
                    }
                }
            }
        }
        self.found |= replaced.is_some();
        replaced
    }

    /// Passes a piece of a stream; what may be the beginning of a secret is held back.
    pub(crate) fn piece(&mut self, piece: Bytes) -> Bytes {
        if self.patterns.is_empty() {
            return piece;
        }
        let joined = if self.held.is_empty() {
            piece
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(&piece);
            joined.freeze()
        };
        let mut joined = match self.text(&joined) {
            Some(replaced) => {
                self.in_content = true;
                Bytes::from(replaced)
            }
            None => joined,
        };
        let keep = self.open_suffix(&joined);
        let tail = joined.split_off(joined.len() - keep);
        self.held.extend_from_slice(&tail);
        let gone = self.released.min(joined.len());
        self.released -= gone;
        joined.split_off(gone)
    }

    /// Whether so little is held back that it may go on, if nothing follows soon.
    pub(crate) fn may_release(&self) -> bool {
        self.released < self.held.len() && self.held.len() < self.few_bytes()
    }

    /// Gives what is held back. It is remembered: if it was the beginning of a secret, what follows is
    /// replaced.
    pub(crate) fn release(&mut self) -> Bytes {
        let from = std::mem::replace(&mut self.released, self.held.len());
        Bytes::copy_from_slice(self.held.get(from..).unwrap_or_default())
    }

    /// How much is held back.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.held.len() - self.released) as u64
    }

    /// What was held back, at the end of the stream.
    pub(crate) fn rest(&mut self) -> Bytes {
        let gone = std::mem::take(&mut self.released);
        std::mem::take(&mut self.held).freeze().split_off(gone)
    }

    /// The length of the longest end of the text that begins a pattern.
    pub(crate) fn open_suffix(&self, text: &[u8]) -> usize {
        let longest = self.patterns.first().map_or(0, |pattern| pattern.len() - 1);
        (1..=longest.min(text.len()))
            .rev()
            .find(|length| {
                let suffix = text.get(text.len() - length..).unwrap_or_default();
                self.patterns.iter().any(|pattern| pattern.starts_with(suffix))
            })
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&str], expected: &str, found: bool) {
        let secret = Secret::from("canary-7f1");
        let mut redactor = Redactor::new(&secret, &Secret::from("Bearer canary-7f1"));
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&redactor.piece(Bytes::copy_from_slice(piece.as_bytes())));
        }
        out.extend_from_slice(&redactor.rest());
        assert_eq!(String::from_utf8_lossy(&out), expected);
        assert_eq!(redactor.found(), found);
    }

    /// I-4: wherever the stream is cut, the secret does not pass.
    #[test]
    fn i_4_secrets_are_found_across_pieces() {
        let text = "a canary-7f1 b Bearer canary-7f1c";
        let expected = "a ********** b *****************c";
        for first in 0..text.len() {
            for second in first..text.len() {
                check(&[&text[..first], &text[first..second], &text[second..]], expected, true);
            }
        }
        check(&["can", "ary-7f", "2 canary-7f"], "canary-7f2 canary-7f", false);
    }

    /// I-4: what gRPC carries as base64 is looked into, member by member.
    #[test]
    fn i_4_binary_fields_are_looked_into() {
        let mut redactor = Redactor::new(&Secret::from("canary-7f1"), &Secret::from("canary-7f1"));
        let (echo, hidden) = (STANDARD.encode("a canary-7f1 b"), STANDARD.encode("a ********** b"));
        let bare = echo.trim_end_matches('=');
        assert_ne!(echo, bare);
        for (name, value, expected) in [
            ("x-bin", echo.clone(), Some(hidden.clone())),
            ("X-Trace-Bin", bare.to_owned(), Some(hidden.trim_end_matches('=').to_owned())),
            ("x-bin", format!("AAEC,{echo}, %%"), Some(format!("AAEC,{hidden}, %%"))),
            ("x-bin", "AAEC".to_owned(), None),
            ("x-bin", "canary-7f1".to_owned(), Some("*".repeat(10))),
            ("x-bind", echo.clone(), None),
            ("bin", echo.clone(), None),
        ] {
            let found = redactor.value(name.as_bytes(), value.as_bytes());
            assert_eq!(found, expected.map(String::into_bytes), "{name}: {value}");
        }
        assert!(redactor.found());
    }

    /// I-4: what was let go on because nothing followed is the beginning of a secret all the same.
    #[test]
    fn i_4_few_bytes_go_on_and_what_follows_them_is_replaced() {
        let secret = Secret::from("canary-7f1-canary");
        for (pieces, expected) in [
            (&["a c", "anary-7f1-canary b"][..], "a c**************** b"),
            (&["c", "a", "n", "ary-7f1-canary"], "can**************"),
            (&["can", "cel can", "ary-7f1-canary"], "cancel can**************"),
            (&["c", "x"], "cx"),
            (&["can"], "can"),
        ] {
            let mut redactor = Redactor::new(&secret, &secret);
            let mut out = Vec::new();
            for piece in pieces {
                out.extend_from_slice(&redactor.piece(Bytes::from_static(piece.as_bytes())));
                if redactor.may_release() {
                    out.extend_from_slice(&redactor.release());
                    assert_eq!(redactor.held_bytes(), 0);
                }
            }
            out.extend_from_slice(&redactor.rest());
            assert_eq!(String::from_utf8_lossy(&out), expected, "{pieces:?}");
        }
        let mut redactor = Redactor::new(&secret, &secret);
        let held = Bytes::from_static(b"canary-7");
        assert_eq!((redactor.piece(held).len(), redactor.may_release()), (0, false));
    }

    /// I-4: an echo in JSON is found as services escape it.
    #[test]
    fn i_4_escaped_echoes_are_found() {
        let secret = Secret::from(r#"ab"c/d\e-CANARY9"#);
        let mut redactor = Redactor::new(&secret, &Secret::from("Bearer x"));
        let stars = |n| "*".repeat(n);
        for (echo, expected) in [
            (r#"{"a":"ab\"c/d\\e-CANARY9"}"#, format!(r#"{{"a":"{}"}}"#, stars(18))),
            (r#"{"a":"ab\"c\/d\\e-CANARY9"}"#, format!(r#"{{"a":"{}"}}"#, stars(19))),
            ("?a=ab%22c%2fd%5ce-CANARY9", format!("?a={}", stars(22))),
            ("<b>ab&quot;c/d\\e-CANARY9</b>", format!("<b>{}</b>", stars(21))),
        ] {
            let found = redactor.text(echo.as_bytes()).unwrap_or_default();
            assert_eq!(String::from_utf8_lossy(&found), expected, "{echo}");
        }
    }

    #[test]
    fn i_4_a_basic_password_is_found_alone_and_encoded() {
        let secret = Secret::from("user:canary-7f1");
        let mut redactor = Redactor::new(&secret, &Secret::from("Basic dXNlcjpjYW5hcnktN2Yx"));
        for (text, expected) in [
            ("a canary-7f1", "a **********"),
            ("dXNlcjpjYW5hcnktN2Yx", "********************"),
            ("user:canary-7f1", "***************"),
        ] {
            assert_eq!(redactor.text(text.as_bytes()).as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(redactor.text(b"user"), None);
    }

    /// I-4: fidelity stays where nothing is found: words of a format that follow the secret are no secret.
    #[test]
    fn i_4_words_of_a_format_are_not_replaced() {
        let secret = Secret::from("canary-7f1");
        let value = Secret::from("canary-7f1 application/json");
        let mut redactor = Redactor::new(&secret, &value);
        assert_eq!(redactor.text(b"Content-Type: application/json"), None);
        assert_eq!(redactor.text(b"a canary-7f1").as_deref(), Some(&b"a **********"[..]));
    }

    #[test]
    fn i_4_nothing_is_held_back_without_a_beginning() {
        let secret = Secret::from("canary-7f1");
        let mut redactor = Redactor::new(&secret, &Secret::from("canary-7f1"));
        assert_eq!(redactor.piece(Bytes::from_static(b"data: x\n\n")), "data: x\n\n");
        assert_eq!(redactor.piece(Bytes::from_static(b"data: ca")), "data: ");
    }
}
