//! How a value may be written where it is echoed (contract I-4) or sent (I-2).

use zeroize::Zeroizing;

/// A value as it is, and as JSON, forms, URLs and HTML escape it. A value of letters and digits has
/// one spelling.
#[must_use]
pub fn spellings(value: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    const WAYS: [fn(u8, &mut Vec<u8>); 8] = [
        plain,
        percent::<b'A'>,
        percent::<b'a'>,
        json,
        json_slash,
        json_html::<b'a'>,
        json_html::<b'A'>,
        html,
    ];
    let mut all: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    if value.iter().all(|byte| is_unreserved(*byte)) {
        return vec![Zeroizing::new(value.to_vec())];
    }
    for write in WAYS {
        // Growing would leave copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(6 * value.len()));
        value.iter().for_each(|byte| write(*byte, &mut out));
        if !all.contains(&out) {
            all.push(out);
        }
    }
    all
}

/// Nothing escapes these (RFC 3986 section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn plain(byte: u8, out: &mut Vec<u8>) {
    out.push(byte);
}

/// RFC 3986 section 2.1, with hexadecimal digits from `A` on.
fn percent<const A: u8>(byte: u8, out: &mut Vec<u8>) {
    if is_unreserved(byte) {
        out.push(byte);
    } else {
        out.push(b'%');
        hex::<A>(byte, out);
    }
}

/// RFC 8259 section 7, what must be escaped.
fn json(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0..0x20 => unicode::<b'a'>(byte, out),
        _ => out.push(byte),
    }
}

/// As PHP writes it.
fn json_slash(byte: u8, out: &mut Vec<u8>) {
    if byte == b'/' { out.extend_from_slice(b"\\/") } else { json(byte, out) }
}

/// As Go (in small digits) and .NET (in large ones) write it, safe inside of HTML.
fn json_html<const A: u8>(byte: u8, out: &mut Vec<u8>) {
    let of_both = b"&<>".contains(&byte);
    let of_net = A == b'A' && b"\"'+`".contains(&byte);
    if of_both || of_net { unicode::<A>(byte, out) } else { json(byte, out) }
}

fn html(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'&' => out.extend_from_slice(b"&amp;"),
        b'<' => out.extend_from_slice(b"&lt;"),
        b'>' => out.extend_from_slice(b"&gt;"),
        b'"' => out.extend_from_slice(b"&quot;"),
        b'\'' => out.extend_from_slice(b"&#39;"),
        _ => out.push(byte),
    }
}

fn unicode<const A: u8>(byte: u8, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\u00");
    hex::<A>(byte, out);
}

fn hex<const A: u8>(byte: u8, out: &mut Vec<u8>) {
    for nibble in [byte >> 4, byte & 15] {
        out.push(if nibble < 10 { b'0' + nibble } else { A + nibble - 10 });
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
        assert_eq!(of("sk_live-0.9~x"), ["sk_live-0.9~x"]);
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
        ] {
            assert!(all.iter().any(|known| known == form), "{form}: {all:?}");
        }
        assert_eq!(of("a\nb"), ["a\nb", "a%0Ab", "a%0ab", "a\\nb"]);
    }
}
