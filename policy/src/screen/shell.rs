//! Words of a command for a shell (POSIX.1-2024, Shell Command Language, sections 2.2 and 2.3).
//!
//! Each word is looked at alone. Where one can't tell without running the command what is quoted (a
//! substitution, a document in the command, a comment, an open quote), no quotes are trusted from
//! there on, and the rest is a text.

use super::leaf::{Leaf, Spans, byte, until};
use super::name::{self, Kind};
use super::text::{self, Dollar};

struct Word {
    leaf: Leaf,
    /// The shell puts something else in its place.
    expands: bool,
    /// More than blanks are in front of it.
    is_apart: bool,
}

impl Word {
    fn dollar(&self) -> Dollar {
        if self.expands { Dollar::Expands } else { Dollar::Plain }
    }

    /// The length of the value that begins there.
    fn value_length(&self, start: usize) -> usize {
        let value = self.leaf.bytes().get(start..).unwrap_or_default();
        let dollar = self.dollar();
        let is_special = |b: &u8| b.is_ascii_whitespace() || b.is_ascii_control() || *b == b'`';
        let substitutes = |pair: &[u8]| matches!(pair, [b'$', b'(' | b'{']);
        if self.expands || value.iter().any(is_special) || value.windows(2).any(substitutes) {
            return text::value_length(value, dollar);
        }
        value.len()
    }
}

/// Values of variables and options, and what a word has in it.
pub(super) fn find(command: &[u8]) -> Spans {
    let (words, rest) = words(command);
    let mut found = Vec::new();
    let mut takes = Takes::No;
    for word in &words {
        let bytes = word.leaf.bytes();
        let before = if word.is_apart { Takes::No } else { takes };
        takes = Takes::of(bytes);
        if before.fits(bytes) {
            found.push(word.leaf.place(0..word.value_length(0)));
            continue;
        }
        let equals = until(bytes, 0, |b| !b.is_ascii_alphanumeric() && !b"_-.".contains(&b));
        let named = name::is_credential(bytes.get(..equals).unwrap_or_default());
        let value = equals + 1..equals + 1 + word.value_length(equals + 1);
        if byte(bytes, equals) == Some(b'=')
            && named.hides(bytes.get(value.clone()).unwrap_or_default())
        {
            found.push(word.leaf.place(value));
        } else {
            found.extend(text::find(&word.leaf, word.dollar()));
        }
    }
    let rest = Leaf::whole(command).part(rest..command.len());
    found.extend(text::find(&rest, Dollar::Expands));
    found.extend(rest.shown(options(rest.bytes())));
    found
}

/// What an option says of the word behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    No,
    /// `--NAME`
    Named,
    /// `-u`, which takes `USER:PASSWORD` if it does at all.
    User,
}

impl Takes {
    fn of(word: &[u8]) -> Self {
        if matches!(word, b"-u" | b"--user") {
            return Self::User;
        }
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"-_.".contains(b);
        let is_flag = word.starts_with(b"--no-") || word.ends_with(b"-stdin");
        let is_option = word.starts_with(b"-") && word.iter().all(is_name) && !is_flag;
        if is_option && name::is_credential(word) != Kind::No { Self::Named } else { Self::No }
    }

    fn fits(self, word: &[u8]) -> bool {
        match self {
            Self::No => false,
            Self::Named => !word.starts_with(b"-"),
            Self::User => {
                let is_number = word.iter().all(|b| b.is_ascii_digit() || *b == b':');
                word.contains(&b':') && !word.starts_with(b"-") && !is_number
            }
        }
    }
}

/// Words behind options in a text.
fn options(text: &[u8]) -> Spans {
    let mut found = Vec::new();
    let mut takes = Takes::No;
    let mut at = 0;
    while at < text.len() {
        let blanks = until(text, at, |b| !matches!(b, b' ' | b'\t'));
        let start = blanks + usize::from(matches!(byte(text, blanks), Some(b'"' | b'\'')));
        let end = until(text, start, |b| b.is_ascii_whitespace());
        let word = text.get(start..end).unwrap_or_default();
        let length = text::value_length(word, Dollar::Expands);
        if takes.fits(word) && length > 0 {
            found.push(start..start + length);
        }
        takes = Takes::of(word);
        at = end.max(at + 1);
    }
    found
}

/// The words, and where the text begins whose quotes are not known.
fn words(command: &[u8]) -> (Vec<Word>, usize) {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        let start = until(command, at, |b| !is_between(b));
        let between = command.get(at..start).unwrap_or_default();
        if between.windows(2).any(|pair| pair == b"<<") {
            return (words, at);
        }
        if start >= command.len() || byte(command, start) == Some(b'#') {
            return (words, start);
        }
        let is_apart = between.iter().any(|b| !matches!(b, b' ' | b'\t'));
        let mut word = Word { leaf: Leaf::default(), expands: false, is_apart };
        match read(command, start, &mut word) {
            Some(end) => at = end,
            None => return (words, start),
        }
        words.push(word);
    }
}

/// Blanks, line ends and operators.
fn is_between(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')')
}

/// Reads the word that begins there, to its end; `None` if its quotes are not known.
fn read(command: &[u8], mut at: usize, word: &mut Word) -> Option<usize> {
    let mut quoted = false;
    loop {
        let Some(b) = byte(command, at) else {
            return (!quoted).then_some(at);
        };
        let next = byte(command, at + 1);
        match b {
            b'"' => {
                quoted = !quoted;
                at += 1;
            }
            b'\'' if !quoted => {
                let end = until(command, at + 1, |b| b == b'\'');
                byte(command, end)?;
                for (n, b) in command.get(at + 1..end)?.iter().enumerate() {
                    word.leaf.push(*b, at + 1 + n..at + 2 + n);
                }
                at = end + 1;
            }
            b'\\' if next == Some(b'\n') => at += 2,
            b'\\' if !quoted || next.is_some_and(|next| b"$`\"\\".contains(&next)) => {
                word.leaf.push(next?, at..at + 2);
                at += 2;
            }
            b'`' => return None,
            b'$' if matches!(next, Some(b'(' | b'{' | b'[')) => return None,
            b'$' if !quoted && next == Some(b'\'') => return None,
            b if !quoted && is_between(b) => return Some(at),
            b => {
                word.expands |= b == b'$' || (b == b'{' && !quoted);
                word.leaf.push(b, at..at + 1);
                at += 1;
            }
        }
    }
}
