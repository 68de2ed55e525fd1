//! Reads TOML tables key by key and keeps every finding with its place.

use super::value;
use crate::Diagnostic;
use crate::condition::Literal;
use crate::diagnostic::Kind;
use std::cell::RefCell;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A place in the text: line and column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// The text that is read, and what was found wrong with it.
pub(crate) struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    lines: Vec<usize>,
    errors: RefCell<Vec<Diagnostic>>,
    warnings: RefCell<Vec<Diagnostic>>,
    /// Whether the text was applied before: what a newer program would refuse only for a policy to
    /// come is told, and changes nothing that is in force.
    in_force: bool,
}

impl<'t> Reader<'t> {
    /// Begins to read a text.
    pub(crate) fn new(text: &'t str, file: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(i, _)| i + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        let (errors, warnings) = (RefCell::default(), RefCell::default());
        Self { file, text, lines, errors, warnings, in_force: false }
    }

    /// Reads a text that was applied before.
    pub(crate) fn of_text_in_force(text: &'t str, file: &'t str) -> Self {
        Self { in_force: true, ..Self::new(text, file) }
    }

    /// The place of a byte offset.
    pub(crate) fn place(&self, offset: usize) -> Place {
        let line = self.lines.partition_point(|&start| start <= offset).max(1);
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let before = self.text.as_bytes().get(start..offset.min(self.text.len()));
        // Characters are counted by their first bytes, so that no offset can split one.
        let column = before.map_or(0, |b| b.iter().filter(|&&c| c & 0xc0 != 0x80).count());
        Place { line, column: column + 1 }
    }

    /// Keeps a finding at a place.
    pub(crate) fn find(
        &self,
        kind: Kind,
        field: Option<&str>,
        place: Place,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        let (file, Place { line, column }) = (self.file.to_owned(), place);
        let (field, message) = (field.map(str::to_owned), message.into());
        let found = Diagnostic { file, line, column, kind, field, message, hint };
        let is_of_late = matches!(kind, Kind::PastedSecret | Kind::Reserved);
        let is_told_only = kind == Kind::Doubtful || self.in_force && is_of_late;
        let list = if is_told_only { &self.warnings } else { &self.errors };
        list.borrow_mut().push(found);
    }

    /// Keeps an error at a byte offset.
    pub(crate) fn error(&self, offset: usize, message: impl Into<String>, hint: Option<String>) {
        self.find(Kind::Invalid, None, self.place(offset), message, hint);
    }

    /// Keeps a warning at a place.
    pub(crate) fn warn_at(&self, place: Place, message: impl Into<String>, hint: Option<String>) {
        self.find(Kind::Doubtful, None, place, message, hint);
    }

    /// Whether there is an error so far.
    pub(crate) fn failed(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// Ends the reading: warnings, or all errors in the order of the text.
    pub(crate) fn finish(self) -> Result<Vec<Diagnostic>, Vec<Diagnostic>> {
        let sorted = |list: RefCell<Vec<Diagnostic>>| {
            let mut list = list.into_inner();
            list.sort();
            list.dedup();
            list
        };
        if self.failed() { Err(sorted(self.errors)) } else { Ok(sorted(self.warnings)) }
    }
}

/// A value with the offset it stands at.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    /// The value.
    pub value: T,
    /// The byte offset.
    pub offset: usize,
}

/// A key with its texts.
pub(crate) type List<'r> = (At<&'r str>, Vec<At<&'r str>>);

/// One table under reading.
pub(crate) struct Fields<'r, 't> {
    reader: &'r Reader<'t>,
    /// None: nothing is written.
    table: Option<&'r DeTable<'r>>,
    what: String,
    offset: usize,
}

impl<'r, 't> Fields<'r, 't> {
    /// Reads a table that may have the known keys; every other key is an error.
    pub(crate) fn new(
        reader: &'r Reader<'t>,
        table: &'r DeTable<'r>,
        span: Range<usize>,
        what: impl Into<String>,
        known: &[&str],
    ) -> Self {
        let what = what.into();
        for key in table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let hint = match value::nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            let shown: String = name.chars().take(64).collect();
            let (place, message) =
                (reader.place(key.span().start), format!("unknown key `{shown}` in {what}"));
            reader.find(Kind::UnknownKey, Some(&shown), place, message, Some(hint));
        }
        Self { reader, table: Some(table), what, offset: span.start }
    }

    /// Where the table begins.
    pub(crate) fn place(&self) -> Place {
        self.reader.place(self.offset)
    }

    fn find(&self, key: &str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.table?.get(key)
    }

    /// Whether the key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// The place of a key's value, or of the table.
    pub(crate) fn place_of(&self, key: &str) -> Place {
        self.find(key).map_or_else(|| self.place(), |v| self.reader.place(v.span().start))
    }

    fn mistyped(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let found = value.get_ref().type_str();
        let message = format!("`{key}` of {} is to be {wanted}, not {found}", self.what);
        self.invalid(value.span().start, key, message, None);
    }

    /// Keeps an error about a key's value, or about a key that is not there.
    pub(crate) fn wrong(&self, key: &str, message: impl std::fmt::Display, hint: Option<String>) {
        let message = format!("`{key}` of {}: {message}", self.what);
        let kind = if self.has(key) { Kind::Invalid } else { Kind::MissingKey };
        self.reader.find(kind, Some(key), self.place_of(key), message, hint);
    }

    /// Keeps an error about a name that means something else.
    pub(crate) fn reserved(&self, key: &str, message: &str) {
        let message = format!("`{key}` of {}: {message}", self.what);
        let hint = Some("take another".to_owned());
        self.reader.find(Kind::Reserved, Some(key), self.place_of(key), message, hint);
    }

    fn invalid(&self, offset: usize, key: &str, message: String, hint: Option<String>) {
        self.reader.find(Kind::Invalid, Some(key), self.reader.place(offset), message, hint);
    }

    /// Keeps a warning about a key's value.
    pub(crate) fn doubtful(
        &self,
        key: &str,
        message: impl std::fmt::Display,
        hint: Option<String>,
    ) {
        let message = format!("`{key}` of {}: {message}", self.what);
        self.reader.find(Kind::Doubtful, Some(key), self.place_of(key), message, hint);
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Option<At<&'r str>> {
        let value = self.find(key)?;
        let Some(text) = value.get_ref().as_str() else {
            self.mistyped(key, value, "a text in quotes");
            return None;
        };
        Some(At { value: text, offset: value.span().start })
    }

    /// A text that has to be there.
    pub(crate) fn required(&self, key: &str, example: &str) -> Option<At<&'r str>> {
        if !self.has(key) {
            let message = format!("{} lacks `{key}`", self.what);
            let hint = Some(format!("write {key} = {example}"));
            self.reader.find(Kind::MissingKey, Some(key), self.place(), message, hint);
        }
        self.text(key)
    }

    /// Keeps an error where a text or a table has to be and is not there.
    pub(crate) fn required_or_table(&self, key: &str, example: &str) {
        if !self.has(key) {
            self.required(key, example);
        }
    }

    /// A truth value.
    pub(crate) fn truth(&self, key: &str) -> Option<bool> {
        let value = self.find(key)?;
        let truth = value.get_ref().as_bool();
        if truth.is_none() {
            self.mistyped(key, value, "true or false");
        }
        truth
    }

    /// A whole number between two bounds.
    pub(crate) fn number(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        let value = self.find(key)?;
        let Some(number) = value.get_ref().as_integer() else {
            self.mistyped(key, value, "a whole number");
            return None;
        };
        let number = u64::from_str_radix(&number.as_str().replace('_', ""), number.radix()).ok();
        let number = number.filter(|n| (least..=most).contains(n));
        if number.is_none() {
            self.wrong(key, format!("is to be a number from {least} to {most}"), None);
        }
        number
    }

    /// One of some words; answers its index.
    pub(crate) fn word(&self, key: &str, words: &[&str]) -> Option<usize> {
        let value = self.find(key)?;
        if value.get_ref().as_bool().is_some() {
            let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            let hint = format!("write {key} = {}", quoted.join(" or "));
            self.wrong(key, "is to be a word in quotes, not a truth value", Some(hint));
            return None;
        }
        let text = self.text(key)?;
        let index = words.iter().position(|w| *w == text.value);
        if index.is_none() {
            let hint = value::nearest(text.value, words.iter().copied())
                .map(|near| format!("did you mean {near:?}?"));
            let shown: String = text.value.chars().take(64).collect();
            self.wrong(key, format!("{shown:?} is not one of {}", words.join(", ")), hint);
        }
        index
    }

    /// A duration.
    pub(crate) fn duration(&self, key: &str) -> Option<std::time::Duration> {
        let found = self.find(key)?;
        if found.get_ref().is_integer() {
            self.wrong(key, "a duration has a unit", Some(format!("write {key} = \"10s\"")));
            return None;
        }
        let text = self.text(key)?;
        value::duration(text.value).map_err(|e| self.wrong(key, e, None)).ok()
    }

    /// A size: a text with a unit, or a number of bytes.
    pub(crate) fn size(&self, key: &str) -> Option<u64> {
        let found = self.find(key)?;
        if found.get_ref().is_integer() {
            return self.number(key, 0, 1 << 50);
        }
        let text = self.text(key)?;
        value::size(text.value).map_err(|e| self.wrong(key, e, None)).ok()
    }

    /// Whether the key holds a table.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        self.find(key).is_some_and(|value| value.get_ref().is_table())
    }

    /// Whether the key holds a text.
    pub(crate) fn is_text(&self, key: &str) -> bool {
        self.find(key).is_some_and(|value| value.get_ref().as_str().is_some())
    }

    /// A list of texts with at least one member.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<At<&'r str>>> {
        let value = self.find(key)?;
        let Some(array) = value.get_ref().as_array() else {
            let hint = value.get_ref().as_str().map(|_| "put it in brackets: [\"...\"]".to_owned());
            let message = format!("`{key}` of {} is to be a list of texts", self.what);
            self.invalid(value.span().start, key, message, hint);
            return None;
        };
        if array.is_empty() {
            self.wrong(key, "an empty list matches nothing", Some("leave the key out".to_owned()));
            return None;
        }
        let mut texts = Vec::with_capacity(array.len());
        for member in array.iter() {
            match member.get_ref().as_str() {
                Some(text) => texts.push(At { value: text, offset: member.span().start }),
                None => self.mistyped(key, member, "a list of texts"),
            }
        }
        Some(texts)
    }

    /// A table inside of this one.
    pub(crate) fn table(&self, key: &str, known: &[&str]) -> Option<Fields<'r, 't>> {
        let value = self.find(key)?;
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(key, value, "a table in braces");
            return None;
        };
        let what = format!("`{key}` of {}", self.what);
        Some(Fields::new(self.reader, table, value.span(), what, known))
    }

    /// A table inside of this one; absent, it is empty and stands where this one begins.
    pub(crate) fn table_or_empty(&self, key: &str, known: &[&str]) -> Option<Fields<'r, 't>> {
        if self.has(key) {
            return self.table(key, known);
        }
        Some(Fields {
            reader: self.reader,
            table: None,
            what: format!("`{key}` of {}", self.what),
            offset: self.offset,
        })
    }

    /// A table with keys of the user's own: each with a text or a list of texts.
    pub(crate) fn lists(&self, key: &str) -> Option<Vec<List<'r>>> {
        let value = self.find(key)?;
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(key, value, "a table in braces");
            return None;
        };
        let own = Fields {
            reader: self.reader,
            table: Some(table),
            what: format!("`{key}` of {}", self.what),
            offset: value.span().start,
        };
        let mut lists = Vec::with_capacity(table.len());
        for (name, value) in table.iter() {
            let text: &str = name.get_ref();
            let list = match value.get_ref().as_str() {
                Some(text) => Some(vec![At { value: text, offset: value.span().start }]),
                None => own.texts(text),
            };
            let name = At { value: text, offset: name.span().start };
            lists.extend(list.map(|list| (name, list)));
        }
        Some(lists)
    }

    /// A table with keys of the user's own: each with a text, a whole number or a truth value, or a
    /// list of such.
    pub(crate) fn literals(&self, key: &str) -> Vec<(At<&'r str>, Vec<Literal>)> {
        const WANTED: &str = "a table of texts, whole numbers, truth values, and lists of these";
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(key, value, WANTED);
            return Vec::new();
        };
        let mut literals = Vec::with_capacity(table.len());
        for (name, value) in table.iter() {
            let found = match value.get_ref().as_array() {
                Some(list) if list.is_empty() => {
                    self.wrong_at(value.span().start, key, "an empty list matches nothing");
                    continue;
                }
                Some(list) => list.iter().map(|member| literal(member.get_ref())).collect(),
                None => literal(value.get_ref()).map(|literal| vec![literal]),
            };
            let name = At { value: name.get_ref().as_ref(), offset: name.span().start };
            match found {
                Some(found) => literals.push((name, found)),
                None => self.mistyped(key, value, WANTED),
            }
        }
        literals
    }

    /// A table with keys of the user's own: texts, whole numbers, truth values and lists of texts.
    pub(crate) fn scalars(&self, key: &str) -> Vec<(String, serde_json::Value)> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            self.mistyped(key, value, "a table in braces");
            return Vec::new();
        };
        let mut scalars = Vec::with_capacity(table.len());
        for (name, value) in table.iter() {
            let inner = value.get_ref();
            let number = || inner.as_integer().and_then(|n| n.as_str().parse::<i64>().ok());
            let list = || {
                let list = inner.as_array()?.iter().map(|m| m.get_ref().as_str());
                Some(list.collect::<Option<Vec<_>>>()?.into())
            };
            let scalar = inner
                .as_str()
                .map(serde_json::Value::from)
                .or_else(|| inner.as_bool().map(Into::into))
                .or_else(|| number().map(Into::into))
                .or_else(list);
            match scalar {
                Some(scalar) => scalars.push((name.get_ref().to_string(), scalar)),
                None => self.mistyped(key, value, "a table of texts, numbers and truth values"),
            }
        }
        scalars
    }

    /// The tables of a `[[list]]`.
    pub(crate) fn tables(&self, key: &str) -> Vec<(&'r DeTable<'r>, Range<usize>)> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.mistyped(key, value, &format!("a list of tables, each begun by [[{key}]]"));
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(array.len());
        for member in array.iter() {
            match member.get_ref().as_table() {
                Some(table) => tables.push((table, member.span())),
                None => self.mistyped(key, member, &format!("a table begun by [[{key}]]")),
            }
        }
        tables
    }

    /// Keeps an error at a member of a list that is none of the known words.
    pub(crate) fn no_word(&self, member: &At<&str>, key: &str, known: &[&str]) {
        let shown: String = member.value.chars().take(64).collect();
        let message =
            format!("`{key}` of {}: {shown:?} is not one of {}", self.what, known.join(", "));
        let near = value::nearest(member.value, known.iter().copied());
        let hint = near.map(|near| format!("did you mean {near:?}?"));
        self.invalid(member.offset, key, message, hint);
    }

    /// Keeps a warning at a member of a list.
    pub(crate) fn doubtful_at(&self, offset: usize, key: &str, message: &str, hint: String) {
        let message = format!("`{key}` of {}: {message}", self.what);
        let place = self.reader.place(offset);
        self.reader.find(Kind::Doubtful, Some(key), place, message, Some(hint));
    }

    /// Keeps an error at a member of a list.
    pub(crate) fn wrong_at(&self, offset: usize, key: &str, message: impl std::fmt::Display) {
        self.refuse_at(offset, key, message, None);
    }

    /// Keeps an error at a place inside of a key's value, with what to write instead.
    pub(crate) fn refuse_at(
        &self,
        offset: usize,
        key: &str,
        message: impl std::fmt::Display,
        hint: Option<String>,
    ) {
        self.invalid(offset, key, format!("`{key}` of {}: {message}", self.what), hint);
    }
}

fn literal(value: &DeValue<'_>) -> Option<Literal> {
    let number = || value.as_integer().and_then(|n| n.as_str().replace('_', "").parse().ok());
    let text = value.as_str().map(|text| Literal::Text(text.to_owned()));
    text.or_else(|| value.as_bool().map(Literal::Truth)).or_else(|| number().map(Literal::Number))
}
