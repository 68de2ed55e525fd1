//! The syntax of a text: TOML, with every mistake at its place.

use super::reader::Reader;
use crate::diagnostic::Kind;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Reads a text as TOML. The reader keeps what is wrong; then there is no table.
pub(crate) fn parse<'t>(text: &'t str, reader: &Reader<'_>) -> Option<Spanned<DeTable<'t>>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or_default();
        let place = reader.place(span.start);
        let mut message = error.message().lines().collect::<Vec<_>>().join("; ");
        if error.message() != "duplicate key" {
            reader.find(Kind::Syntax, None, place, message, None);
            continue;
        }
        let key: String = text.get(span.clone()).unwrap_or_default().chars().take(64).collect();
        message = format!("{message} `{key}`");
        let first = match header(text, &span) {
            // The tree has a repeated table at its last place: then it is read up to there.
            Some(start) if errors.len() <= MOST => text.get(..start).and_then(|before| {
                first(text, DeTable::parse_recoverable(before).0.get_ref(), &span)
            }),
            Some(_) => None,
            None => first(text, root.get_ref(), &span),
        };
        if let Some(first) = first {
            message.push_str(&format!("; the first one is in line {}", reader.place(first).line));
        }
        reader.find(Kind::Syntax, Some(&key), place, message, None);
    }
    errors.is_empty().then_some(root)
}

/// With more mistakes than this the text is not read again for each of them.
const MOST: usize = 16;

/// Where the line begins, if the key is one of a table's head.
fn header(text: &str, key: &Range<usize>) -> Option<usize> {
    let line = spelled(text, key)?;
    line.starts_with('[').then(|| key.end.saturating_sub(line.len()))
}

/// Where the key stands that another one repeats. None where more than its spelling would have to be
/// looked at, as for `a.b` beside `\"a\".b`.
fn first(text: &str, root: &DeTable<'_>, again: &Range<usize>) -> Option<usize> {
    let mut found = None;
    let mut tables = vec![(root, false)];
    while let Some((table, is_inline)) = tables.pop() {
        for (key, value) in table {
            let at = key.span();
            // Outside of braces the line up to the key says in which table it is.
            let same = if is_inline {
                text.get(at.clone()) == text.get(again.clone())
            } else {
                spelled(text, &at) == spelled(text, again)
            };
            if same && at.start < again.start {
                found = found.max(Some(at.start));
            }
            for (inner, span) in inner(value) {
                let braced = inner.keys().any(|key| span.contains(&key.span().start));
                if braced && span.contains(&again.start) {
                    // The repeated key stands in these braces, so nothing outside of them counts.
                    (found, tables) = (None, vec![(inner, true)]);
                    break;
                }
                if !braced {
                    tables.push((inner, false));
                }
            }
        }
    }
    found
}

/// The tables that a value is or holds, each with where it is written.
fn inner<'r>(value: &'r Spanned<DeValue<'r>>) -> Vec<(&'r DeTable<'r>, Range<usize>)> {
    match value.get_ref() {
        DeValue::Table(table) => vec![(table, value.span())],
        DeValue::Array(array) => array.iter().flat_map(inner).collect(),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => Vec::new(),
    }
}

/// A key with what stands before it in its line, which for `[a.b]` and `a.b` is its way.
fn spelled<'t>(text: &'t str, key: &Range<usize>) -> Option<&'t str> {
    let start = text.get(..key.start)?.rfind('\n').map_or(0, |end| end + 1);
    Some(text.get(start..key.end)?.trim_start_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    /// V-3: a key that is there twice is named, and where it is for the first time.
    #[test]
    fn v_3_a_key_that_is_there_twice_is_named_with_the_first_one() {
        for (text, told) in [
            (
                "[[route]]\nname = \"a\"\nname = \"b\"\n",
                "p:3:1: duplicate key `name`; the first one is in line 2",
            ),
            (
                "[[route]]\nname = \"a\"\n[[route]]\nmatch = {\n name = \"x\" }\nname = \"b\"\n name = \"c\"\n",
                "p:7:2: duplicate key `name`; the first one is in line 6",
            ),
            (
                "[[route]]\nhost = \"a\"\nmatch = {\n host = \"a\",\n host = \"b\" }\n",
                "p:5:2: duplicate key `host`; the first one is in line 4",
            ),
            (
                "[[route]]\nhost = \"a\"\nmatch = { host = \"a\", host = \"b\" }\n",
                "p:3:23: duplicate key `host`; the first one is in line 3",
            ),
            (
                "[defaults]\n[[route]]\ndefaults = 1\n[defaults]\n",
                "p:4:2: duplicate key `defaults`; the first one is in line 1",
            ),
            (
                "[[route]]\nname = \"a\"\n[[route]]\nresult.ttl = \"1h\"\nttl = 1\nresult.ttl = \"2h\"\n",
                "p:6:8: duplicate key `ttl`; the first one is in line 4",
            ),
            ("a.b = 1\n\"a\".b = 2\n", "p:2:5: duplicate key `b`"),
        ] {
            let found = Policy::check(text, "p").unwrap_err();
            assert_eq!(found[0].to_string(), told, "{text}");
        }
    }
}
