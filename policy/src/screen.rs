//! Takes credentials out of a request that a person is shown (contract V-6, I-2).
//!
//! Hidden is what stands in the vault, what a name says is a credential, and what has the form of
//! one. Nothing that is hidden goes past the end of the one value that it is: who decides sees all
//! that is decided on. The rest stays byte for byte. What is hidden shows its length and a keyed digest: equal values
//! can be told from others, and a guess can't be checked by who has no key. It does not look into
//! content that is compressed or no text; such content is not shown at all.

mod content;
mod form;
mod json;
mod leaf;
mod name;
mod parts;
mod shell;
mod text;
mod tokens;
mod xml;

use crate::{Policy, Secret, spellings};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use leaf::{Leaf, Spans};
use std::ops::Range;
use zeroize::Zeroizing;

/// Shorter secrets occur by chance.
const SHORTEST: usize = 4;
/// Words of a language are hardly ever as long, and what is drawn at random is.
const LONGEST_WORD: usize = 16;
/// What the key for digests is derived for.
const PURPOSE: &str = "affiant hidden values v1";

/// What is looked for, and the key for digests.
pub struct Screen {
    key: Option<ring::hmac::Key>,
    known: Vec<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

/// A text without its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screened {
    /// With `(hidden: N bytes, hmac H)` in the place of each.
    pub text: String,
    /// How many were hidden.
    pub hidden: usize,
}

impl Policy {
    /// What hides the secrets of the vault, in every version that is kept, and those that policy takes
    /// from variables and files, beside what looks like a credential. While the vault is locked its
    /// own are not known, and there are no digests.
    #[must_use]
    pub fn screen(&self) -> Screen {
        let key = self.vault().derive(PURPOSE).ok();
        let key = key.map(|key| ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &*key));
        let mut known = self.known_secrets();
        known.extend(self.secrets_at_hand());
        Screen::of(key, &known)
    }
}

impl Screen {
    fn of(key: Option<ring::hmac::Key>, secrets: &[Secret]) -> Self {
        let mut known = Vec::new();
        for secret in secrets {
            let whole = secret.expose().trim_ascii();
            // Of `user:password` and of an access key the second part is as good as the whole.
            let parts = whole.splitn(3, |byte| *byte == b':').skip(1);
            for value in std::iter::once(whole).chain(parts).filter(|v| v.len() >= SHORTEST) {
                known.extend(written(value));
            }
        }
        known.sort_unstable_by(|a: &Zeroizing<Vec<u8>>, b| a.as_slice().cmp(b.as_slice()));
        known.dedup();
        Self { key, known }
    }

    /// A header field's value.
    #[must_use]
    pub fn header(&self, name: &[u8], value: &[u8]) -> Screened {
        let named = name::is_credential(name) != name::Kind::No;
        let all = || std::iter::once(0..value.len()).collect();
        self.screened(value, if named { all() } else { tokens::find(&Leaf::whole(value)) })
    }

    /// A URL, or the first line of a request.
    #[must_use]
    pub fn target(&self, target: &[u8]) -> Screened {
        self.screened(target, form::target(&Leaf::whole(target)))
    }

    /// Content that is text. `content_type` is what the request says of it, if it says one thing.
    #[must_use]
    pub fn content(&self, content_type: Option<&[u8]>, text: &str) -> Screened {
        let declared = content::Declared::of(content_type);
        let whole = Leaf::whole(text.as_bytes());
        self.screened(text.as_bytes(), content::find(&whole, &declared, 0))
    }

    /// A command line.
    #[must_use]
    pub fn command(&self, command: &[u8]) -> Screened {
        self.screened(command, shell::find(command))
    }

    fn screened(&self, text: &[u8], mut found: Spans) -> Screened {
        for known in &self.known {
            let places = memchr::memmem::find_iter(text, known.as_slice());
            found.extend(places.map(|at| at..at + known.len()));
        }
        found.retain(|span| !span.is_empty());
        found.sort_unstable_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        let mut out = String::new();
        let (mut at, mut hidden) = (0, 0);
        let mut spans = found.into_iter().peekable();
        while let Some(mut span) = spans.next() {
            while let Some(next) = spans.next_if(|next| next.start < span.end) {
                span.end = span.end.max(next.end);
            }
            out.push_str(&String::from_utf8_lossy(text.get(at..span.start).unwrap_or_default()));
            out.push_str(&self.mark(text.get(span.clone()).unwrap_or_default()));
            (at, hidden) = (span.end, hidden + 1);
        }
        out.push_str(&String::from_utf8_lossy(text.get(at..).unwrap_or_default()));
        Screened { text: out, hidden }
    }

    fn mark(&self, value: &[u8]) -> String {
        let length = value.len();
        let Some(key) = &self.key else { return format!("(hidden: {length} bytes)") };
        let tag = ring::hmac::sign(key, value);
        let start = tag.as_ref().iter().take(8);
        let digest: String = start.map(|byte| format!("{byte:02x}")).collect();
        format!("(hidden: {length} bytes, hmac {digest})")
    }
}

/// Whether a text holds something that has the form of a credential.
pub(crate) fn has_form_of_credential(text: &[u8]) -> bool {
    // Names and hosts begin like tokens now and then, but are made of words.
    let is_random = |span: &Range<usize>| {
        let word = text.get(span.clone()).unwrap_or_default();
        word.split(|byte| !byte.is_ascii_alphanumeric()).any(|run| run.len() >= LONGEST_WORD)
    };
    tokens::words(text).iter().any(is_random)
        || !tokens::private_keys(text).is_empty()
        || !tokens::passwords(text).is_empty()
}

/// A value as it may be written in a request, also inside of base64.
fn written(value: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = spellings(value);
    for engine in [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD] {
        all.push(Zeroizing::new(engine.encode(value).into_bytes()));
    }
    all
}

#[cfg(test)]
mod tests;
