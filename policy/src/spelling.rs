//! How a value may be written where it is echoed (contract I-4) or sent (I-2).

use zeroize::Zeroizing;

/// A value as it is, and as JSON, forms, URLs and HTML usually escape it. A value of letters and digits
/// has one spelling. Where a writer escapes more than it must, or mixes two ways, it is not known.
#[must_use]
pub fn spellings(value: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = vec![Zeroizing::new(value.to_vec())];
    if value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte)) {
        return all;
    }
    for way in WAYS {
        // Growing would leave copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(6 * value.len()));
        value.iter().for_each(|byte| way.write(*byte, &mut out));
        if !all.contains(&out) {
            all.push(out);
        }
    }
    all
}

/// How a writer escapes.
#[derive(Clone, Copy)]
enum Way {
    /// RFC 3986 section 2.1: all but letters, digits and these, with hexadecimal digits from here on.
    Percent(&'static [u8], u8),
    /// RFC 8259 section 7: what must be escaped, and these as `\u00XX`, with digits from here on.
    Json(&'static [u8], u8),
    /// As PHP writes it: `/` behind a backslash.
    JsonSlash,
    /// By these names of the two quotes.
    Html(&'static [u8], &'static [u8]),
}

const WAYS: &[Way] = &[
    Way::Percent(b"-._~", b'A'),
    Way::Percent(b"-._~", b'a'),
    // Python's `quote`, JavaScript's `encodeURIComponent`, a form of Java or of a browser.
    Way::Percent(b"-._~/", b'A'),
    Way::Percent(b"-._~!*'()", b'A'),
    Way::Percent(b"-._*", b'A'),
    Way::Json(b"", b'a'),
    Way::JsonSlash,
    // Go and .NET, safe inside of HTML.
    Way::Json(b"&<>", b'a'),
    Way::Json(b"&<>\"'+`", b'A'),
    Way::Html(b"&quot;", b"&#39;"),
    // Python, Go.
    Way::Html(b"&quot;", b"&#x27;"),
    Way::Html(b"&#34;", b"&#39;"),
];

impl Way {
    fn write(self, byte: u8, out: &mut Vec<u8>) {
        match self {
            Self::Percent(kept, _) if byte.is_ascii_alphanumeric() || kept.contains(&byte) => {
                out.push(byte);
            }
            Self::Percent(_, ten) => {
                out.push(b'%');
                hex(byte, ten, out);
            }
            Self::Json(more, ten) if byte < 0x20 || more.contains(&byte) => match byte {
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                _ => {
                    out.extend_from_slice(b"\\u00");
                    hex(byte, ten, out);
                }
            },
            Self::Json(..) if b"\"\\".contains(&byte) => out.extend_from_slice(&[b'\\', byte]),
            Self::Json(..) => out.push(byte),
            Self::JsonSlash if byte == b'/' => out.extend_from_slice(b"\\/"),
            Self::JsonSlash => Self::Json(b"", b'a').write(byte, out),
            Self::Html(double, single) => match byte {
                b'&' => out.extend_from_slice(b"&amp;"),
                b'<' => out.extend_from_slice(b"&lt;"),
                b'>' => out.extend_from_slice(b"&gt;"),
                b'"' => out.extend_from_slice(double),
                b'\'' => out.extend_from_slice(single),
                _ => out.push(byte),
            },
        }
    }
}

/// Two hexadecimal digits; `ten` is the digit for ten.
fn hex(byte: u8, ten: u8, out: &mut Vec<u8>) {
    for nibble in [byte >> 4, byte & 15] {
        out.push(if nibble < 10 { b'0' + nibble } else { ten + nibble - 10 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Vec<String> {
        let bytes = spellings(value.as_bytes());
        bytes.iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
    }

    /// I-4: an echo is found as a service may write it.
    #[test]
    fn i_4_values_are_known_as_services_write_them() {
        assert_eq!(of("sk_live-0.9x"), ["sk_live-0.9x"]);
        assert_eq!(of("a~b"), ["a~b", "a%7Eb"]);
        assert_eq!(of("a/b"), ["a/b", "a%2Fb", "a%2fb", "a\\/b"]);
        let all = of("a\"\\+&'é");
        for form in [
            "a\"\\+&'é",
            "a%22%5C%2B%26%27%C3%A9",
            "a%22%5c%2b%26%27%c3%a9",
            "a\\\"\\\\+&'é",
            "a\\\"\\\\+\\u0026'é",
            "a\\u0022\\\\\\u002B\\u0026\\u0027é",
            "a&quot;\\+&amp;&#39;é",
            "a&#34;\\+&amp;&#39;é",
            "a&quot;\\+&amp;&#x27;é",
            "a%22%5C%2B%26'%C3%A9",
        ] {
            assert!(all.iter().any(|known| known == form), "{form}: {all:?}");
        }
        assert!(of("ab/c+d=").contains(&"ab/c%2Bd%3D".to_owned()));
        assert_eq!(of("a\nb"), ["a\nb", "a%0Ab", "a%0ab", "a\\nb"]);
    }
}
