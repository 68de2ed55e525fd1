//! What a route says of repeating and of finding out later: terms of data, judged here, acted on by
//! the gateways.

use serde_json::Value;
use std::time::Duration;

/// Whether, how often and by whom a call of the route may be sent again (contract T-1, T-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRule {
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
    /// Whether the broker retries by itself while its caller waits.
    pub automatic: bool,
    /// How long the caller is kept waiting for that at most.
    pub within: Duration,
    /// How long a worker may hold the right to the next attempt (contract K-6).
    pub lease: Duration,
}

/// How the outcome of a call is found out later (contract K-7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcileRule {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query at the same origin, with the names of [`Names`] in braces.
    pub path: String,
    /// What shows that the operation was carried out.
    pub committed: Option<Shows>,
    /// What shows that it was not, and will not be.
    pub rejected: Option<Shows>,
    /// Who asks, and how often.
    pub pace: Pace,
}

/// Who asks about a call in doubt, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Whether the broker asks by itself.
    pub automatic: bool,
    /// How long it waits between two questions about one call.
    pub every: Duration,
    /// How many questions it asks about one call by itself.
    pub max_queries: u32,
}

/// Where the id of a job stands in the path of its status resource.
pub(crate) const JOB_ID: &str = "{id}";
/// The pause between two questions about a job, where nothing else is said.
pub(crate) const JOB_EVERY: Duration = Duration::from_secs(5);
/// How many questions are asked then.
pub(crate) const JOB_QUERIES: u32 = 1000;

/// How a job is followed that a call started and did not wait for (contract M-7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRule {
    /// Header fields that may name the job's status resource, in this order; lower case.
    pub headers: Vec<String>,
    /// A JSON pointer to its name in the content, asked before the headers.
    pub pointer: Option<String>,
    /// Where the status resource is, with `{id}` for what the pointer leads to; none: that is its name.
    pub path: Option<String>,
    /// What shows that the job is done.
    pub done: Shows,
    /// What shows that it failed.
    pub failed: Option<Shows>,
    /// How long the broker waits between two questions.
    pub every: Duration,
    /// How many questions it asks by itself.
    pub max_queries: u32,
}

impl JobRule {
    /// Whether a response with this status can name a job: a 202, and where an id in the content does,
    /// a 200 or 201 as well.
    #[must_use]
    pub const fn accepts(&self, status: u16) -> bool {
        matches!((status, &self.path), (202, _) | (200 | 201, Some(_)))
    }

    /// The name of the status resource that such a response gives.
    #[must_use]
    pub fn status_url<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
        content: &[u8],
    ) -> Option<String> {
        if let Some(pointer) = &self.pointer {
            let value: Value = serde_json::from_slice(content).ok()?;
            let id = match value.pointer(pointer)? {
                Value::String(text) => text.clone(),
                Value::Number(number) if self.path.is_some() => number.to_string(),
                Value::Number(_)
                | Value::Null
                | Value::Bool(_)
                | Value::Array(_)
                | Value::Object(_) => return None,
            };
            let Some(path) = &self.path else { return Some(id) };
            // One segment that goes nowhere else, whatever the service calls its jobs.
            if id.is_empty() || id.bytes().all(|byte| byte == b'.') {
                return None;
            }
            let (before, after) = path.split_once(JOB_ID)?;
            let mut url = before.to_owned();
            encode(&id, &mut url);
            url.push_str(after);
            return Some(url);
        }
        self.headers.iter().find_map(|name| header(name)).map(str::to_owned)
    }

    /// The same as a question about a call in doubt, which a job is until it ends.
    #[must_use]
    pub fn as_reconcile(&self) -> ReconcileRule {
        ReconcileRule {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            committed: Some(self.done.clone()),
            rejected: self.failed.clone(),
            pace: Pace { automatic: true, every: self.every, max_queries: self.max_queries },
        }
    }
}

/// What a response has to be to show something. Everything that is given has to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shows {
    /// The status.
    pub status: Option<u16>,
    /// A JSON pointer (RFC 6901) into the content, which has to lead to something.
    pub pointer: Option<String>,
    /// What it has to lead to; empty: anything but `null`.
    pub equals: Vec<String>,
}

/// The stable names of an operation that a query can use.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The idempotency key that went out with it; of a command, the release id.
    pub idempotency_key: Option<String>,
    /// The invocation's id.
    pub invocation_id: String,
    /// The remote's own id of the request.
    pub request_id: Option<String>,
}

/// Names that a query may use.
pub(crate) const NAMES: [&str; 3] = ["idempotency_key", "invocation_id", "request_id"];

impl Names {
    fn get(&self, name: &str) -> Option<&str> {
        match name {
            "idempotency_key" | "release_id" => self.idempotency_key.as_deref(),
            "invocation_id" => Some(&self.invocation_id),
            "request_id" => self.request_id.as_deref(),
            _ => None,
        }
    }
}

/// Why a query can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The call has no such name.
    #[error("the call has no {0} to ask by")]
    Nameless(String),
    /// The braces are not balanced.
    #[error("a brace is not closed")]
    Unclosed,
}

/// Splits a template into its literal parts and names, in turn.
fn parts(template: &str) -> Result<Vec<(&str, Option<&str>)>, QueryError> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or(QueryError::Unclosed)?;
        parts.push((literal, Some(name)));
        rest = after;
    }
    parts.push((rest, None));
    Ok(parts)
}

/// The names that a template uses.
pub(crate) fn names_of(template: &str) -> Result<Vec<&str>, QueryError> {
    Ok(parts(template)?.into_iter().filter_map(|(_, name)| name).collect())
}

/// A template with the names of one call in it, as `put` writes them.
pub(crate) fn fill(
    template: &str,
    names: &Names,
    put: impl Fn(&str, &mut String),
) -> Result<String, QueryError> {
    let mut filled = String::with_capacity(template.len() + 64);
    for (literal, name) in parts(template)? {
        filled.push_str(literal);
        let Some(name) = name else { continue };
        let value = names.get(name).ok_or_else(|| QueryError::Nameless(name.to_owned()))?;
        put(value, &mut filled);
    }
    Ok(filled)
}

impl ReconcileRule {
    /// Path and query for one call; its names are percent-encoded.
    ///
    /// # Errors
    /// [`QueryError`] when the call lacks a name.
    pub fn target(&self, names: &Names) -> Result<String, QueryError> {
        fill(&self.path, names, encode)
    }

    /// What a complete response shows: `Some(true)` that the operation was carried out,
    /// `Some(false)` that it was not. One that meets both conditions, or none, shows nothing.
    #[must_use]
    pub fn shows(&self, status: u16, content: &[u8]) -> Option<bool> {
        let meets = |shows: &Option<Shows>| {
            shows.as_ref().is_some_and(|shows| shows.is_met_by(status, content))
        };
        match (meets(&self.committed), meets(&self.rejected)) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            (true, true) | (false, false) => None,
        }
    }
}

impl Shows {
    /// Whether a complete response meets the condition.
    #[must_use]
    pub fn is_met_by(&self, status: u16, content: &[u8]) -> bool {
        if self.status.is_some_and(|wanted| wanted != status) {
            return false;
        }
        match &self.pointer {
            Some(pointer) => Self::leads(pointer, &self.equals, content),
            None => self.status.is_some(),
        }
    }

    /// Whether a JSON pointer into the content leads to one of the texts, or without any to something.
    pub(crate) fn leads(pointer: &str, equals: &[String], content: &[u8]) -> bool {
        let Ok(value) = serde_json::from_slice::<Value>(content) else { return false };
        match value.pointer(pointer) {
            None | Some(Value::Null) => false,
            Some(_) if equals.is_empty() => true,
            Some(Value::String(text)) => equals.contains(text),
            Some(found @ (Value::Bool(_) | Value::Number(_))) => {
                equals.contains(&found.to_string())
            }
            Some(Value::Array(_) | Value::Object(_)) => false,
        }
    }
}

/// Percent-encodes everything but unreserved characters (RFC 3986 section 2.3).
fn encode(value: &str, into: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &str, committed: Shows, rejected: Shows) -> ReconcileRule {
        ReconcileRule {
            method: "GET".to_owned(),
            path: path.to_owned(),
            committed: Some(committed),
            rejected: Some(rejected),
            pace: Pace { automatic: false, every: Duration::from_secs(30), max_queries: 10 },
        }
    }

    fn status(status: u16) -> Shows {
        Shows { status: Some(status), ..Shows::default() }
    }

    fn names() -> Names {
        Names {
            idempotency_key: Some("a/b&c=ü".to_owned()),
            invocation_id: "act_1".to_owned(),
            request_id: None,
        }
    }

    /// K-7: the question names the operation, and nothing in a name changes the question.
    #[test]
    fn k_7_names_are_encoded_and_have_to_be_there() {
        let target = |path| rule(path, status(200), status(404)).target(&names());
        assert_eq!(
            target("/v1/x?key={idempotency_key}&i={invocation_id}").as_deref(),
            Ok("/v1/x?key=a%2Fb%26c%3D%C3%BC&i=act_1")
        );
        let nameless = QueryError::Nameless("request_id".to_owned());
        assert_eq!(target("/{request_id}"), Err(nameless));
        assert_eq!(target("/{idem"), Err(QueryError::Unclosed));
    }

    /// K-7: only what a condition names decides; what meets both or none decides nothing.
    #[test]
    fn k_7_only_a_condition_that_holds_decides() {
        let by_status = rule("/", status(200), status(404));
        assert_eq!(by_status.shows(200, b""), Some(true));
        assert_eq!(by_status.shows(404, b""), Some(false));
        for other in [201, 301, 401, 403, 500, 503] {
            assert_eq!(by_status.shows(other, b""), None);
        }
        assert_eq!(rule("/", status(200), status(200)).shows(200, b""), None);
        let words = |words: &[&str]| Shows {
            status: Some(200),
            pointer: Some("/data/0/state".to_owned()),
            equals: words.iter().map(|word| (*word).to_owned()).collect(),
        };
        let by_content = rule("/", words(&["done", "3", "true"]), words(&["failed"]));
        let shows = |content: &str| by_content.shows(200, content.as_bytes());
        assert_eq!(shows(r#"{"data":[{"state":"done"}]}"#), Some(true));
        assert_eq!(shows(r#"{"data":[{"state":3}]}"#), Some(true));
        assert_eq!(shows(r#"{"data":[{"state":true}]}"#), Some(true));
        assert_eq!(shows(r#"{"data":[{"state":"failed"}]}"#), Some(false));
        for none in [r#"{"data":[]}"#, r#"{"data":[{"state":"pending"}]}"#, "", "done", "null"] {
            assert_eq!(shows(none), None, "{none}");
        }
        assert_eq!(by_content.shows(202, br#"{"data":[{"state":"done"}]}"#), None);
        let any = Shows { pointer: Some("/id".to_owned()), ..Shows::default() };
        assert!(any.is_met_by(200, br#"{"id":{}}"#) && !any.is_met_by(200, br#"{"id":null}"#));
        assert!(!Shows::default().is_met_by(200, b"{}"), "an empty condition shows nothing");
    }

    /// M-7: the status resource is where the route says, else where the field's words say.
    #[test]
    fn m_7_the_status_resource_is_named_by_pointer_or_field() {
        let mut rule = JobRule {
            headers: vec!["operation-location".to_owned(), "location".to_owned()],
            pointer: None,
            path: None,
            done: status(200),
            failed: None,
            every: Duration::from_secs(5),
            max_queries: 9,
        };
        let both = |name: &str| (name == "location").then_some("/jobs/1");
        assert_eq!(rule.status_url(both, b"").as_deref(), Some("/jobs/1"));
        assert_eq!(rule.status_url(|_| None, br#"{"url":"/x"}"#), None);
        rule.pointer = Some("/url".to_owned());
        assert_eq!(rule.status_url(both, br#"{"url":"/x"}"#).as_deref(), Some("/x"));
        assert_eq!(rule.status_url(both, br#"{"url":1}"#), None);
        assert!(rule.accepts(202) && !rule.accepts(200) && !rule.accepts(201));
        // An id in the content of any acceptance, and a path of the route's own.
        rule.path = Some("/v1/batches/{id}?full=1".to_owned());
        rule.pointer = Some("/id".to_owned());
        for (content, expected) in [
            (r#"{"id":"batch_1"}"#, Some("/v1/batches/batch_1?full=1")),
            (r#"{"id":17}"#, Some("/v1/batches/17?full=1")),
            (r#"{"id":"../a?b#c"}"#, Some("/v1/batches/..%2Fa%3Fb%23c?full=1")),
            (r#"{"id":".."}"#, None),
            (r#"{"id":""}"#, None),
            (r#"{"id":null}"#, None),
            (r#"{}"#, None),
        ] {
            assert_eq!(rule.status_url(both, content.as_bytes()).as_deref(), expected, "{content}");
        }
        assert!([200, 201, 202].into_iter().all(|status| rule.accepts(status)));
        assert!(![204, 302, 400].into_iter().any(|status| rule.accepts(status)));
        assert_eq!(rule.as_reconcile().shows(200, b""), Some(true));
    }
}
