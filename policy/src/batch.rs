//! Batches: what members a request has, and what a response says of each (contract D-5).

mod webdav;

use journal::contract::Said;
use serde_json::Value;
use std::collections::HashMap;

/// Members at most; a longer batch is judged as one call.
const MOST: usize = 1000;
/// Characters of an id that are kept.
const ID_CHARS: usize = 128;

/// How the members of a route's batches are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRule {
    /// Where they stand.
    pub form: BatchForm,
    /// Whether the service applies all of them or none.
    pub is_atomic: bool,
}

/// Where members stand in request and response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchForm {
    /// JSON-RPC 2.0: an array of requests, an array of responses, matched by `id`.
    JsonRpc,
    /// A list at a JSON pointer in each; matched by the id at a pointer in both, else by place.
    Members {
        /// The list in the request.
        requests: String,
        /// The list in the response.
        responses: String,
        /// The id inside of a member.
        id: Option<String>,
        /// The status inside of a member of the response.
        status: String,
    },
    /// The resources that a WebDAV request names, or the properties that it changes, and an answer 207
    /// in XML (RFC 4918).
    WebDav,
}

impl BatchRule {
    /// The names of the members; none when the request is no batch.
    #[must_use]
    pub fn ids(&self, request: &[u8]) -> Option<Vec<String>> {
        let parse = || serde_json::from_slice::<Value>(request).ok();
        let value = match &self.form {
            BatchForm::JsonRpc => parse()?,
            BatchForm::Members { requests, .. } => parse()?.pointer(requests)?.clone(),
            BatchForm::WebDav => {
                let names = webdav::names(request)?.into_iter();
                return Some(names.map(|name| name.chars().take(ID_CHARS).collect()).collect());
            }
        };
        let list = value.as_array()?;
        if list.is_empty() || list.len() > MOST {
            return None;
        }
        let named = list.iter().enumerate();
        Some(named.map(|(n, member)| self.id(member).unwrap_or_else(|| format!("#{n}"))).collect())
    }

    fn id(&self, member: &Value) -> Option<String> {
        let found = match &self.form {
            BatchForm::JsonRpc => member.get("id"),
            BatchForm::Members { id, .. } => id.as_ref().and_then(|at| member.pointer(at)),
            BatchForm::WebDav => None,
        };
        let text = match found? {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        };
        Some(text.chars().take(ID_CHARS).collect())
    }

    /// What a complete response says of each member, in the order of `ids`. A name that occurs twice
    /// says nothing.
    #[must_use]
    pub fn said(&self, ids: &[String], response: &[u8]) -> Vec<Option<Said>> {
        let nothing = || vec![None; ids.len()];
        if self.form == BatchForm::WebDav {
            return Self::said_by_name(ids, &webdav::said(response));
        }
        let Ok(value) = serde_json::from_slice::<Value>(response) else { return nothing() };
        let list = match &self.form {
            BatchForm::JsonRpc => value.as_array(),
            BatchForm::Members { responses, .. } => {
                value.pointer(responses).and_then(Value::as_array)
            }
            BatchForm::WebDav => None,
        };
        let Some(list) = list else { return nothing() };
        let by_place = matches!(&self.form, BatchForm::Members { id: None, .. });
        let one = |n: usize, id: &String| {
            if by_place {
                return list.get(n).filter(|_| list.len() == ids.len());
            }
            if ids.iter().filter(|other| *other == id).count() > 1 {
                return None;
            }
            let mut named = list.iter().filter(|member| self.id(member).as_ref() == Some(id));
            named.next().filter(|_| named.next().is_none())
        };
        let each = ids.iter().enumerate();
        each.map(|(n, id)| one(n, id).and_then(|member| self.said_of(member))).collect()
    }

    /// The one thing that is said of each name, if its name is the only one of its kind on both sides.
    fn said_by_name(ids: &[String], all: &[(String, Option<Said>)]) -> Vec<Option<Said>> {
        // A name that was cut stands for all that begin so.
        let key = |name: &str| {
            let cut: String = name.chars().take(ID_CHARS).collect();
            webdav::key(&cut).to_owned()
        };
        let mut wanted: HashMap<String, usize> = HashMap::new();
        for id in ids {
            *wanted.entry(key(id)).or_default() += 1;
        }
        let mut found: HashMap<String, Option<Said>> = HashMap::new();
        for (name, said) in all {
            let said = *said;
            found.entry(key(name)).and_modify(|said| *said = None).or_insert(said);
        }
        let one = |id: &String| {
            let key = key(id);
            let is_one = wanted.get(&key) == Some(&1);
            found.get(&key).copied().filter(|_| is_one).flatten()
        };
        ids.iter().map(one).collect()
    }

    fn said_of(&self, member: &Value) -> Option<Said> {
        match &self.form {
            BatchForm::JsonRpc => match (member.get("result"), member.get("error")) {
                (Some(_), None) => Some(Said::Done),
                (None, Some(error)) => match error.get("code").and_then(Value::as_i64) {
                    // Not a request, no such method, wrong parameters: it was not begun.
                    Some(-32700 | -32602..=-32600) => Some(Said::Refused),
                    Some(_) | None => Some(Said::Failed),
                },
                (Some(_), Some(_)) | (None, None) => None,
            },
            BatchForm::Members { status, .. } => match member.pointer(status)? {
                Value::Number(number) => {
                    let status = number.as_u64().and_then(|n| u16::try_from(n).ok())?;
                    (200..600).contains(&status).then_some(Said::Status(status))
                }
                // "HTTP/1.1 404 Not Found", or "404".
                Value::String(text) => {
                    let word = text.split(' ').find_map(|word| word.parse::<u16>().ok())?;
                    (200..600).contains(&word).then_some(Said::Status(word))
                }
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
            },
            BatchForm::WebDav => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(rule: &BatchRule, request: &str) -> Vec<String> {
        rule.ids(request.as_bytes()).unwrap_or_default()
    }

    /// D-5: JSON-RPC members are matched by id, whatever their order; a notification has no answer.
    #[test]
    fn d_5_json_rpc_members_are_matched_by_id() {
        let rule = BatchRule { form: BatchForm::JsonRpc, is_atomic: false };
        let request = r#"[{"id":1,"method":"a"},{"id":"x","method":"b"},{"method":"note"},{"id":2,"method":"c"}]"#;
        let ids = ids(&rule, request);
        assert_eq!(ids, ["1", "x", "#2", "2"]);
        let response = r#"[{"id":"x","error":{"code":-32601}},{"id":2,"error":{"code":7}},{"id":1,"result":null}]"#;
        assert_eq!(
            rule.said(&ids, response.as_bytes()),
            [Some(Said::Done), Some(Said::Refused), None, Some(Said::Failed)]
        );
        // A name given twice, or an answer that is no batch, says nothing.
        let twice = r#"[{"id":1,"result":1},{"id":1,"error":{}}]"#;
        assert_eq!(rule.said(&ids[..1], twice.as_bytes()), [None]);
        assert_eq!(rule.said(&ids[..1], br#"{"id":1,"result":1}"#), [None]);
        assert_eq!(rule.ids(br#"{"id":1}"#), None);
        assert_eq!(rule.ids(b"[]"), None);
    }

    /// D-5: a multi-status answer is matched by id, or by place when it has as many members.
    #[test]
    fn d_5_multi_status_members_are_matched_by_id_or_place() {
        let form = |id: Option<&str>| BatchForm::Members {
            requests: "/requests".to_owned(),
            responses: "/responses".to_owned(),
            id: id.map(str::to_owned),
            status: "/status".to_owned(),
        };
        let request = r#"{"requests":[{"id":"a"},{"id":"b"}]}"#;
        let by_id = BatchRule { form: form(Some("/id")), is_atomic: false };
        let named = ids(&by_id, request);
        assert_eq!(named, ["a", "b"]);
        let response = br#"{"responses":[{"id":"b","status":404},{"id":"a","status":"HTTP/1.1 201 Created"}]}"#;
        assert_eq!(
            by_id.said(&named, response),
            [Some(Said::Status(201)), Some(Said::Status(404))]
        );
        let by_place = BatchRule { form: form(None), is_atomic: false };
        let placed = ids(&by_place, request);
        assert_eq!(placed, ["#0", "#1"]);
        assert_eq!(
            by_place.said(&placed, response),
            [Some(Said::Status(404)), Some(Said::Status(201))]
        );
        assert_eq!(by_place.said(&placed, br#"{"responses":[{"status":200}]}"#), [None, None]);
        assert_eq!(by_place.said(&placed, br#"{"responses":[{"status":7},{}]}"#), [None, None]);
    }
}
