//! Names that services take for one another: what policy judges under one name has to be all that a
//! service sees under it (contract V-1).

/// Whether a service may take a header field of the one name for a field of the other: case means
/// nothing, and CGI (RFC 3875 section 4.1.18) and its heirs WSGI, Rack and PHP make `_` of `-`.
#[must_use]
pub fn is_same_field(one: &[u8], other: &[u8]) -> bool {
    let folded = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().map(folded).eq(other.iter().map(folded))
}

/// Whether a service may take a parameter of the one name for the parameter of the other: some readers
/// know no case, and to PHP and Rack `name[]` and `name[key]` are `name`.
pub(crate) fn is_same_parameter(one: &[u8], other: &[u8]) -> bool {
    // PHP makes `_` of blanks and dots in names.
    let folded = |byte: &u8| match byte {
        b' ' | b'.' => b'_',
        other => other.to_ascii_lowercase(),
    };
    // Of a name with a key in brackets every key is a parameter of its own.
    let whole = other.contains(&b'[');
    let plain = |name: &[u8]| -> Vec<u8> {
        let bracket = name.iter().skip(1).position(|byte| *byte == b'[').map(|at| at + 1);
        let end = bracket.filter(|_| !whole).unwrap_or(name.len());
        name.get(..end).unwrap_or_default().iter().map(folded).collect()
    };
    plain(one) == plain(other)
}

/// Whether a service may take a member of the one name for a member of the other: many readers know
/// no case (Go, .NET), and that of Protocol Buffers takes `max_size` and `maxSize`.
pub(crate) fn is_same_member(one: &str, other: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = char> + '_ {
        // By way of upper case, where U+017F and the like become the letters that they stand for.
        let upper = name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_uppercase);
        upper.flat_map(char::to_lowercase)
    }
    folded(one).eq(folded(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_services_mix_up() {
        assert!(is_same_field(b"X-Api-Key", b"x_api-key"));
        assert!(!is_same_field(b"x-api-key", b"x-api-keys"));
        for same in ["Action", "action", "ACTION[]", "Action[0][a]"] {
            assert!(is_same_parameter(same.as_bytes(), b"Action"), "{same}");
        }
        for other in ["Actions", "[Action]", "", "Act"] {
            assert!(!is_same_parameter(other.as_bytes(), b"Action"), "{other}");
        }
        assert!(is_same_parameter(b"a.b c", b"a_b_c"));
        assert!(is_same_parameter(b"Page[size]", b"page[size]"));
        assert!(!is_same_parameter(b"page[number]", b"page[size]"));
        for same in ["maxSize", "max_size", "MAXSIZE", "max\u{17f}ize", "Max-Size"] {
            assert!(is_same_member(same, "maxSize"), "{same}");
        }
        assert!(is_same_member("\u{212a}ey", "key"));
        assert!(!is_same_member("maxSizes", "maxSize"));
    }
}
