//! Percent-encoded text (RFC 3986 section 2.1), read byte by byte. What a broken escape means, and which bytes
//! may stand for themselves, is for its readers to say.

/// What comes next in such a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A byte that stands for itself.
    Plain(u8),
    /// A byte that was escaped.
    Escaped(u8),
    /// A `%` without two digits; what follows it comes next.
    Broken,
}

/// Reads a text.
pub(crate) fn read(text: &[u8]) -> impl Iterator<Item = Next> + '_ {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte != b'%' {
            return Some(Next::Plain(byte));
        }
        let Some((value, behind)) = escaped(after) else { return Some(Next::Broken) };
        rest = behind;
        Some(Next::Escaped(value))
    })
}

/// The byte of two digits, and what is behind them.
fn escaped(after: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], behind) = after.split_first_chunk()?;
    Some((digit(*high)? << 4 | digit(*low)?, behind))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Next::{Broken, Escaped, Plain};

    #[test]
    fn escapes_have_two_digits() {
        let all = |text: &str| read(text.as_bytes()).collect::<Vec<_>>();
        assert_eq!(all("a%2fb+"), [Plain(b'a'), Escaped(b'/'), Plain(b'b'), Plain(b'+')]);
        assert_eq!(all("%%41%4"), [Broken, Escaped(b'A'), Broken, Plain(b'4')]);
        assert_eq!(all("%g0%FF%"), [Broken, Plain(b'g'), Plain(b'0'), Escaped(0xff), Broken]);
    }
}
