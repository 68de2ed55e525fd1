//! The keys `headers`, `query` and `body` of `match`.

use super::reader::Fields;
use super::value;
use crate::condition::{Conditions, Literal, Wanted};
use std::collections::BTreeMap;

/// Fields whose values are secrets; those have no place in a policy (contract V-3).
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];

/// Reads the conditions of a route.
pub(super) fn read(target: &Fields<'_, '_>) -> Conditions {
    let mut headers = Wanted::new();
    for (name, patterns) in target.lists("headers").unwrap_or_default() {
        let lower = name.value.to_ascii_lowercase();
        if !value::is_token(&lower) {
            target.wrong_at(name.offset, "headers", "is not the name of a header field");
        } else if SECRET.contains(&lower.as_str()) {
            target.wrong_at(name.offset, "headers", format!("{lower} carries secrets"));
        } else {
            let patterns = patterns.iter().map(|p| p.value.to_owned()).collect();
            if headers.insert(lower, patterns).is_some() {
                target.wrong_at(name.offset, "headers", "is there already, in other letters");
            }
        }
    }
    let mut query = Wanted::new();
    for (name, patterns) in target.lists("query").unwrap_or_default() {
        if name.value.is_empty() {
            target.wrong_at(name.offset, "query", "is not the name of a parameter");
        } else {
            let patterns = patterns.iter().map(|p| p.value.to_owned()).collect();
            query.insert(name.value.to_owned(), patterns);
        }
    }
    Conditions { headers, query, body: read_body(target) }
}

fn read_body(target: &Fields<'_, '_>) -> BTreeMap<String, Vec<Literal>> {
    let mut body = BTreeMap::new();
    for (pointer, literals) in target.literals("body") {
        if is_pointer(pointer.value) {
            body.insert(pointer.value.to_owned(), literals);
        } else {
            let message = "names are JSON pointers, as in \"/model\" or \"/items/0/kind\"";
            target.wrong_at(pointer.offset, "body", message);
        }
    }
    body
}

/// Whether a text is a JSON pointer to a value inside of the content (RFC 6901 section 3).
fn is_pointer(text: &str) -> bool {
    let tildes = text.split('~').skip(1);
    text.starts_with('/') && tildes.into_iter().all(|rest| rest.starts_with(['0', '1']))
}
