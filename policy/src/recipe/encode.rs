//! Percent-encoding (RFC 3986) and hexadecimal digits.

use crate::escape::{self, Next};

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn digit(nibble: u8) -> u8 {
    HEX_UPPER.get(usize::from(nibble & 15)).copied().unwrap_or(b'0')
}

/// Encodes everything but unreserved characters, onto a buffer.
pub(crate) fn push(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        if is_unreserved(byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
        }
    }
}

/// As [`push`], to a text.
pub(super) fn encoded(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 3);
    push(&mut out, bytes);
    String::from_utf8(out).unwrap_or_default()
}

/// Decodes escapes; what is no escape stays as it is.
pub(crate) fn decoded(text: &[u8]) -> Vec<u8> {
    let byte = |next| match next {
        Next::Plain(byte) | Next::Escaped(byte) => byte,
        Next::Broken => b'%',
    };
    escape::read(text).map(byte).collect()
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for &byte in bytes {
        for nibble in [byte >> 4, byte] {
            out.push(char::from(digit(nibble)).to_ascii_lowercase());
        }
    }
    out
}
