//! Texts and attributes of XML, by the name of the element or attribute that holds them.

use super::content::{self, Declared};
use super::leaf::{Leaf, Spans, byte, until};
use super::name::{self, Kind};
use super::{text, tokens};
use quick_xml::Reader;
use quick_xml::events::Event;
use std::ops::Range;

const CDATA: usize = "<![CDATA[".len();
const CDATA_END: usize = "]]>".len();

/// `None` if it is no XML, as a whole.
pub(super) fn find(leaf: &Leaf, depth: usize) -> Option<Spans> {
    let xml = std::str::from_utf8(leaf.bytes()).ok()?;
    if !xml.trim_start().starts_with('<') {
        return None;
    }
    let mut reader = Reader::from_str(xml);
    let mut found = Vec::new();
    let mut elements: Vec<Kind> = Vec::new();
    let mut any = false;
    // A text goes from one tag to the next; references to characters are in it.
    let mut from = 0;
    let place = |reader: &Reader<&[u8]>| usize::try_from(reader.buffer_position()).ok();
    loop {
        let start = place(&reader)?;
        let event = reader.read_event().ok()?;
        let end = place(&reader)?;
        let kind = elements.last().copied().unwrap_or(Kind::No);
        if !matches!(event, Event::Text(_) | Event::GeneralRef(_)) {
            found.extend(value(leaf, kind, from..start, depth));
            from = end;
        }
        match event {
            Event::Start(tag) => {
                any = true;
                elements.push(name::is_credential(tag.name().as_ref().as_bytes()));
                found.extend(attributes(leaf, start..end));
            }
            Event::Empty(_) => {
                any = true;
                found.extend(attributes(leaf, start..end));
            }
            Event::End(_) => {
                elements.pop()?;
            }
            Event::CData(_) => {
                let inside = start + CDATA..end.saturating_sub(CDATA_END);
                found.extend(value(leaf, kind, inside, depth));
            }
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {
                found.extend(tokens::find(&leaf.part(start..end)));
            }
            Event::Text(_) | Event::GeneralRef(_) => {}
            Event::Eof => return (any && elements.is_empty()).then_some(found),
        }
    }
}

/// What is hidden of a text.
fn value(leaf: &Leaf, named: Kind, span: Range<usize>, depth: usize) -> Spans {
    let written = leaf.bytes().get(span.clone()).unwrap_or_default();
    if written.trim_ascii().is_empty() {
        return Vec::new();
    }
    if named.hides(written) {
        return vec![leaf.place(span)];
    }
    content::find(&leaf.part(span), &Declared::Unknown, depth + 1)
}

/// What is hidden of the attributes of a tag.
fn attributes(leaf: &Leaf, tag: Range<usize>) -> Spans {
    let bytes = leaf.bytes().get(..tag.end).unwrap_or_default();
    let is_blank = |b: u8| b.is_ascii_whitespace();
    let mut found = Vec::new();
    let mut at = until(bytes, tag.start, is_blank);
    loop {
        let start = until(bytes, at, |b| !is_blank(b));
        let name_end = until(bytes, start, |b| is_blank(b) || b == b'=');
        let equals = until(bytes, name_end, |b| !is_blank(b));
        let open = until(bytes, equals + 1, |b| !is_blank(b));
        let quote = byte(bytes, open).filter(|b| matches!(b, b'"' | b'\''));
        let Some(quote) = quote.filter(|_| byte(bytes, equals) == Some(b'=')) else {
            return found;
        };
        let value = open + 1..until(bytes, open + 1, |b| b == quote);
        at = value.end + 1;
        let named = name::is_credential(bytes.get(start..name_end).unwrap_or_default());
        if named.hides(bytes.get(value.clone()).unwrap_or_default()) {
            found.push(leaf.place(value));
        } else {
            found.extend(text::find(&leaf.part(value), text::Dollar::Plain));
        }
    }
}
