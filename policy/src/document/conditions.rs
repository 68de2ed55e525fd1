//! The keys `headers` and `query` of `match`.

use super::reader::Fields;
use super::value;
use crate::condition::{Conditions, Wanted};

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
    Conditions { headers, query }
}
