//! WebDAV batches: what a request names, and what an answer 207 says of each (RFC 4918 section 13).
//!
//! Members are the resources that a request names (`DAV:href`, as reports do), or of a
//! `DAV:propertyupdate` its properties. What a peer sends is bounded: no document type, so no entities
//! of its own, and so many elements, so deep; else the document says nothing.

use super::MOST;
use journal::contract::Said;
use quick_xml::events::{BytesStart, Event};
use quick_xml::name::ResolveResult;
use quick_xml::{NsReader, escape};

/// The namespace of WebDAV's own elements.
const DAV: &str = "DAV:";
/// Elements inside of one another at most.
const DEPTH: usize = 32;
/// Elements of a document at most.
const ELEMENTS: usize = 20_000;

/// An element, with the text that stands directly in it.
struct Element {
    is_root: bool,
    /// The place behind it and all that is in it.
    end: usize,
    /// Namespace and local name.
    name: (String, String),
    text: String,
}

/// A document as a list of elements, each before what is in it.
struct Document(Vec<Element>);

impl Document {
    /// Reads a well-formed document within the bounds.
    fn read(content: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(content).ok()?;
        let mut reader = NsReader::from_str(text.trim_start_matches('\u{feff}'));
        let mut elements: Vec<Element> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        loop {
            let (namespace, event) = reader.read_resolved_event().ok()?;
            match event {
                Event::Start(start) => {
                    let element = element(&namespace, &start, elements.len(), open.is_empty())?;
                    open.push(elements.len());
                    elements.push(element);
                }
                Event::Empty(start) => {
                    elements.push(element(&namespace, &start, elements.len(), open.is_empty())?);
                }
                Event::End(_) => {
                    let (at, end) = (open.pop()?, elements.len());
                    elements.get_mut(at)?.end = end;
                }
                Event::Text(text) => put(&mut elements, &open, &text.xml10_content())?,
                Event::CData(text) => put(&mut elements, &open, &text.xml10_content())?,
                Event::GeneralRef(name) => match name.resolve_char_ref().ok()? {
                    Some(character) => {
                        put(&mut elements, &open, character.encode_utf8(&mut [0; 4]))?;
                    }
                    None => {
                        let name = name.xml10_content();
                        put(&mut elements, &open, escape::resolve_predefined_entity(&name)?)?;
                    }
                },
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                // It could define entities; nobody needs one here.
                Event::DocType(_) => return None,
                Event::Eof => break,
            }
            if elements.len() > ELEMENTS || open.len() > DEPTH {
                return None;
            }
        }
        let roots = elements.iter().filter(|element| element.is_root).count();
        (open.is_empty() && roots == 1).then_some(Self(elements))
    }

    fn root(&self, name: &str) -> Option<usize> {
        self.is_dav(0, name).then_some(0)
    }

    fn is_dav(&self, at: usize, name: &str) -> bool {
        self.0.get(at).is_some_and(|element| element.name.0 == DAV && element.name.1 == name)
    }

    fn children(&self, of: usize) -> impl Iterator<Item = usize> {
        let end = self.0.get(of).map_or(0, |element| element.end);
        let first = Some(of + 1).filter(|at| *at < end);
        std::iter::successors(first, move |at| {
            self.0.get(*at).map(|child| child.end).filter(|next| *next < end)
        })
    }

    fn dav_children<'d>(&'d self, of: usize, name: &'d str) -> impl Iterator<Item = usize> + 'd {
        self.children(of).filter(move |at| self.is_dav(*at, name))
    }

    fn text(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |element| element.text.trim())
    }

    /// The name of a property, apart from every `href`.
    fn property(&self, at: usize) -> String {
        let name = self.0.get(at).map(|element| &element.name);
        name.map_or_else(String::new, |(namespace, local)| format!("{{{namespace}}}{local}"))
    }
}

fn element(
    namespace: &ResolveResult<'_>,
    start: &BytesStart<'_>,
    at: usize,
    is_root: bool,
) -> Option<Element> {
    let namespace = match namespace {
        ResolveResult::Bound(namespace) => namespace.as_ref().to_owned(),
        ResolveResult::Unbound => String::new(),
        ResolveResult::Unknown(_) => return None,
    };
    let local = start.local_name().as_ref().to_owned();
    Some(Element { is_root, end: at + 1, name: (namespace, local), text: String::new() })
}

/// Appends text; outside of the root only space may stand.
fn put(elements: &mut [Element], open: &[usize], text: &str) -> Option<()> {
    match open.last() {
        Some(at) => elements.get_mut(*at)?.text.push_str(text),
        None if text.trim().is_empty() => {}
        None => return None,
    }
    Some(())
}

/// Where a resource lies, however it is written: a server answers with the path alone, or with all.
fn path_of(href: &str) -> &str {
    let rest = href.split_once("://").map(|(_, rest)| rest);
    rest.map_or(href, |rest| rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"))
}

/// The members that a request names; none when it names none, or too many.
pub(super) fn names(request: &[u8]) -> Option<Vec<String>> {
    let document = Document::read(request)?;
    let names: Vec<String> = match document.root("propertyupdate") {
        Some(root) => document
            .children(root)
            .filter(|at| document.is_dav(*at, "set") || document.is_dav(*at, "remove"))
            .flat_map(|at| document.dav_children(at, "prop"))
            .flat_map(|at| document.children(at))
            .map(|at| document.property(at))
            .collect(),
        None => (0..document.0.len())
            .filter(|at| document.is_dav(*at, "href"))
            .map(|at| document.text(at).to_owned())
            .filter(|href| !href.is_empty())
            .collect(),
    };
    (!names.is_empty() && names.len() <= MOST).then_some(names)
}

/// What a complete answer says, name by name, in its own order.
pub(super) fn said(response: &[u8]) -> Vec<(String, Option<Said>)> {
    let Some(document) = Document::read(response) else { return Vec::new() };
    let Some(root) = document.root("multistatus") else { return Vec::new() };
    let mut said = Vec::new();
    for response in document.dav_children(root, "response") {
        let parts: Vec<usize> = document.dav_children(response, "propstat").collect();
        let whole = status(&document, response);
        for part in &parts {
            let status = status(&document, *part);
            for prop in document.dav_children(*part, "prop") {
                let properties = document.children(prop);
                said.extend(properties.map(|at| (document.property(at), status)));
            }
        }
        // Of a resource whose properties were asked for: one that is there says that it is.
        let told = whole.or_else(|| {
            let mut all = parts.iter().map(|part| status(&document, *part));
            let is_there = |said: &Option<Said>| {
                matches!(said, Some(Said::Status(status)) if (200..300).contains(status))
            };
            all.clone().find(is_there).or_else(|| all.next()).flatten()
        });
        let hrefs = document.dav_children(response, "href");
        said.extend(hrefs.map(|at| (document.text(at).to_owned(), told)));
    }
    said
}

/// The status that stands directly in an element: `HTTP/1.1 404 Not Found`.
fn status(document: &Document, of: usize) -> Option<Said> {
    let mut lines = document.dav_children(of, "status");
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let status: u16 = document.text(line).split_ascii_whitespace().nth(1)?.parse().ok()?;
    (200..600).contains(&status).then_some(Said::Status(status))
}

/// What names a member, however its address is written.
pub(super) fn key(name: &str) -> &str {
    if name.starts_with('{') { name } else { path_of(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchForm, BatchRule};

    const RULE: BatchRule = BatchRule { form: BatchForm::WebDav, is_atomic: false };

    fn judged(request: &str, response: &str) -> Vec<(String, Option<Said>)> {
        let ids = RULE.ids(request.as_bytes()).unwrap_or_default();
        let said = RULE.said(&ids, response.as_bytes());
        ids.into_iter().zip(said).collect()
    }

    /// D-5: a report names its resources, and each has the status of its response, whatever prefix,
    /// order and way of writing an address.
    #[test]
    fn d_5_resources_are_matched_by_href() {
        let request = r#"<?xml version="1.0"?><C:calendar-multiget xmlns:C="urn:ietf:params:xml:ns:caldav"
            xmlns="DAV:"><prop><getetag/></prop><href>/a%20b</href><href><![CDATA[/c&d]]></href>
            <href>/none</href><href>/twice</href></C:calendar-multiget>"#;
        let response = r#"<D:multistatus xmlns:D="DAV:">
            <D:response><D:href>/c&amp;d</D:href><D:status>HTTP/1.1 404 Not Found</D:status></D:response>
            <D:response><D:href>https://dav.example:8443/a%20b</D:href>
              <D:propstat><D:prop><D:x/></D:prop><D:status>HTTP/1.1 404 Not Found</D:status></D:propstat>
              <D:propstat><D:prop><D:getetag/></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>
            </D:response>
            <D:response><D:href>/twice</D:href><D:status>HTTP/1.1 200 OK</D:status></D:response>
            <D:response><D:href>/twice</D:href><D:status>HTTP/1.1 500 No</D:status></D:response>
            <D:response><D:href>/not-asked</D:href><D:status>HTTP/1.1 200 OK</D:status></D:response>
            </D:multistatus>"#;
        assert_eq!(
            judged(request, response),
            [
                ("/a%20b".to_owned(), Some(Said::Status(200))),
                ("/c&d".to_owned(), Some(Said::Status(404))),
                ("/none".to_owned(), None),
                ("/twice".to_owned(), None),
            ]
        );
    }

    /// D-5: the properties of a PROPPATCH are told apart by namespace and name.
    #[test]
    fn d_5_properties_are_matched_by_name() {
        let request = r#"<d:propertyupdate xmlns:d="DAV:" xmlns:x="urn:x"><d:set><d:prop><x:author>me</x:author>
            </d:prop></d:set><d:remove><d:prop><d:author/></d:prop></d:remove></d:propertyupdate>"#;
        let response = r#"<multistatus xmlns="DAV:"><response><href>/doc</href>
            <propstat><prop><author/></prop><status>HTTP/1.1 424 Failed Dependency</status></propstat>
            <propstat><prop><y:author xmlns:y="urn:x"/></prop><status>HTTP/1.1 409 Conflict</status></propstat>
            </response></multistatus>"#;
        assert_eq!(
            judged(request, response),
            [
                ("{urn:x}author".to_owned(), Some(Said::Status(409))),
                ("{DAV:}author".to_owned(), Some(Said::Status(424))),
            ]
        );
    }

    /// D-5: what is hostile, cut or something else says nothing of anybody, and takes no time.
    #[test]
    fn d_5_hostile_documents_say_nothing() {
        let request = r#"<r xmlns="DAV:"><href>/a</href></r>"#;
        let part = "<response><href>/a</href><status>HTTP/1.1 200 OK</status></response>";
        let whole = |inside: &str| format!("<multistatus xmlns=\"DAV:\">{inside}</multistatus>");
        let one = |response: &str| judged(request, response)[0].1;
        assert_eq!(one(&whole(part)), Some(Said::Status(200)));
        let lol =
            "<!DOCTYPE m [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]>";
        let external = "<!DOCTYPE m SYSTEM \"file:///etc/passwd\">";
        let deep = "<x>".repeat(40) + &"</x>".repeat(40);
        let endless = "<x>".repeat(200_000);
        let many = "<x/>".repeat(20_001);
        for hostile in [
            lol.to_owned() + &whole(part),
            external.to_owned() + &whole(part),
            whole(&format!("{part}<x>&unknown;</x>")),
            whole(&format!("{part}{deep}")),
            whole(&format!("{part}{many}")),
            whole(part) + &whole(part),
            whole(part).replace("</multistatus>", ""),
            whole(part).replace("DAV:", "urn:other"),
            whole(part).replace("<href>", "<p:href>"),
            whole(&part.replace("200 OK", "99999")),
            whole(&part.replace("HTTP/1.1 200 OK", "200")),
            whole(&part.replace("/a", "/b")),
            "text".to_owned() + &whole(part),
            endless,
            String::new(),
            "{}".to_owned(),
        ] {
            let shown: String = hostile.chars().take(120).collect();
            assert_eq!(one(&hostile), None, "{shown}");
        }
        assert_eq!(RULE.said(&["/a".to_owned()], &[0xff, 0xfe, 0x3c]), [None]);
        for not_one in ["", "<r/>", "<r xmlns=\"DAV:\"><href/></r>", "{\"href\":1}"] {
            assert_eq!(RULE.ids(not_one.as_bytes()), None, "{not_one}");
        }
        let many = "<href>/x</href>".repeat(MOST + 1);
        assert_eq!(RULE.ids(format!("<r xmlns=\"DAV:\">{many}</r>").as_bytes()), None);
    }
}
