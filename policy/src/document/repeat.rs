//! The keys `retry`, `reconcile`, `job` and `batch` of a route.

use super::reader::Fields;
use super::value;
use crate::batch::{BatchForm, BatchRule};
use crate::path;
use crate::repeat::{
    JOB_EVERY, JOB_ID, JOB_QUERIES, JobRule, NAMES, Pace, ReconcileRule, RetryRule, Shows, names_of,
};
use journal::contract::KeepResult;
use std::time::Duration;

pub(super) const RETRY: &[&str] = &["max_attempts", "automatic", "within", "lease"];
pub(super) const RECONCILE: &[&str] =
    &["method", "path", "committed", "rejected", "automatic", "every", "max_queries"];
pub(super) const BATCH: &[&str] = &["form", "requests", "responses", "id", "status", "atomic"];
pub(super) const JOB: &[&str] =
    &["header", "pointer", "path", "done", "failed", "every", "max_queries"];
pub(super) const SHOWS: &[&str] = &["status", "pointer", "equals"];

/// How long an automatic retry keeps its caller waiting, where a route does not say.
const WITHIN: Duration = Duration::from_secs(30);
/// How long a lease holds: longer than a connection takes to be set up.
pub(super) const LEASE: Duration = Duration::from_secs(30);
const EVERY: Duration = Duration::from_secs(30);
const MAX_QUERIES: u32 = 20;

/// The keys `retry` and `reconcile`.
pub(super) fn read(
    fields: &Fields<'_, '_>,
    keep: KeepResult,
) -> (Option<RetryRule>, Option<ReconcileRule>) {
    let retry = read_retry(fields);
    check_retry(fields, retry.as_ref(), keep);
    (retry, read_reconcile(fields))
}

/// The key `retry`.
fn read_retry(fields: &Fields<'_, '_>) -> Option<RetryRule> {
    let table = fields.table("retry", RETRY)?;
    Some(RetryRule {
        max_attempts: read_max_attempts(&table),
        automatic: table.truth("automatic").unwrap_or(false),
        within: table.duration("within").unwrap_or(WITHIN),
        lease: table.duration("lease").unwrap_or(LEASE),
    })
}

/// The key `max_attempts` of `retry`.
pub(super) fn read_max_attempts(table: &Fields<'_, '_>) -> u32 {
    let most = table.number("max_attempts", 1, 100).and_then(|most| u32::try_from(most).ok());
    if !table.has("max_attempts") {
        let hint = "write how many attempts there may be in all: max_attempts = 3".to_owned();
        table.wrong("max_attempts", "is missing", Some(hint));
    }
    most.unwrap_or(1)
}

/// An automatic retry answers from the record.
fn check_retry(fields: &Fields<'_, '_>, retry: Option<&RetryRule>, keep: KeepResult) {
    if retry.is_some_and(|retry| retry.automatic) && keep != KeepResult::Full {
        let hint = Some("the answer of a retry is read from the record".to_owned());
        fields.wrong("retry", "needs result.keep = \"full\" to be automatic", hint);
    }
}

/// The key `reconcile`.
fn read_reconcile(fields: &Fields<'_, '_>) -> Option<ReconcileRule> {
    let table = fields.table("reconcile", RECONCILE)?;
    let method = match table.word("method", &["GET", "HEAD"]) {
        Some(1) => "HEAD",
        Some(_) | None => "GET",
    };
    let path = table.required("path", "\"/v1/...?key={idempotency_key}\"")?.value;
    if !path.starts_with('/') {
        table.wrong("path", path::Error::NotAbsolute, None);
    }
    check_names(&table, "path", path, &NAMES);
    let rule = ReconcileRule {
        method: method.to_owned(),
        path: path.to_owned(),
        committed: read_shows(&table, "committed"),
        rejected: read_shows(&table, "rejected"),
        pace: read_pace(&table),
    };
    if rule.committed.is_none() && rule.rejected.is_none() {
        let hint = "write committed = { status = 200 }, rejected = { status = 404 }, or both";
        fields.wrong("reconcile", "decides nothing", Some(hint.to_owned()));
    }
    Some(rule)
}

/// The keys `automatic`, `every` and `max_queries` of a question.
pub(super) fn read_pace(table: &Fields<'_, '_>) -> Pace {
    let most = table.number("max_queries", 1, 1000).and_then(|most| u32::try_from(most).ok());
    Pace {
        automatic: table.truth("automatic").unwrap_or(false),
        every: table.duration("every").unwrap_or(EVERY),
        max_queries: most.unwrap_or(MAX_QUERIES),
    }
}

/// Checks the names in braces of a question.
pub(super) fn check_names(table: &Fields<'_, '_>, key: &str, template: &str, known: &[&str]) {
    match names_of(template) {
        Err(error) => table.wrong(key, error, None),
        Ok(names) => {
            if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
                let hint = format!("there are {{{}}}", known.join("}, {"));
                table.wrong(key, format!("names {{{unknown}}}, which no call has"), Some(hint));
            } else if names.is_empty() {
                let hint = "a query that names no call can't tell one from another".to_owned();
                table.doubtful(key, "names no operation", Some(hint));
            }
        }
    }
}

/// Checks a JSON pointer of a condition.
pub(super) fn read_pointer<'r>(table: &Fields<'r, '_>) -> Option<&'r str> {
    let pointer = table.text("pointer").map(|pointer| pointer.value);
    if pointer.is_some_and(|pointer| !pointer.starts_with('/')) {
        let hint = Some("a JSON pointer begins with a slash: \"/data/0/status\"".to_owned());
        table.wrong("pointer", "is no JSON pointer", hint);
    }
    pointer
}

/// What the pointer of a condition has to lead to.
pub(super) fn read_equals(table: &Fields<'_, '_>) -> Vec<String> {
    if table.has("equals") && !table.has("pointer") {
        table.wrong("equals", "needs a pointer", None);
    }
    let equals = table.texts("equals").unwrap_or_default();
    equals.iter().map(|text| text.value.to_owned()).collect()
}

/// The key `job`, and whether it says `"none"`: the jobs of the preset are not followed.
pub(super) fn read_job(fields: &Fields<'_, '_>, preset: bool) -> (Option<JobRule>, bool) {
    if !fields.is_text("job") {
        return (read_job_table(fields), false);
    }
    let is_off = fields.word("job", &["none"]).is_some();
    if is_off && !preset {
        let hint = Some("leave the key out".to_owned());
        fields.wrong("job", "there is no preset here whose jobs \"none\" could leave out", hint);
    }
    (None, is_off)
}

fn read_job_table(fields: &Fields<'_, '_>) -> Option<JobRule> {
    let table = fields.table("job", JOB)?;
    let header = table.text("header").map(|header| header.value.to_ascii_lowercase());
    if header.as_ref().is_some_and(|name| !value::is_token(name)) {
        table.wrong("header", "is not the name of a header field", None);
    }
    let pointer = table.text("pointer").map(|pointer| pointer.value);
    if pointer.is_some_and(|pointer| !pointer.starts_with('/')) {
        let hint = Some("a JSON pointer begins with a slash: \"/status_url\"".to_owned());
        table.wrong("pointer", "is no JSON pointer", hint);
    }
    if header.is_some() && pointer.is_some() {
        table.wrong("pointer", "stands beside a header; one of them names the job", None);
    }
    let path = table.text("path").map(|path| path.value);
    if path.is_some_and(|path| !path.starts_with('/') || path.matches(JOB_ID).count() != 1) {
        let hint = Some("as in \"/v1/batches/{id}\"".to_owned());
        table.wrong("path", "is to be a path with {id} in it once", hint);
    }
    if path.is_some() && pointer.is_none() {
        let hint = Some("write pointer = \"/id\"".to_owned());
        table.wrong("path", "needs a pointer to the id in the content", hint);
    }
    let usual = || vec!["operation-location".to_owned(), "location".to_owned()];
    let most = table.number("max_queries", 1, 100_000).and_then(|most| u32::try_from(most).ok());
    if !table.has("done") {
        let hint =
            Some("write done = { status = 200, pointer = \"/status\", equals = [\"done\"] }");
        table.wrong("done", "is missing", hint.map(str::to_owned));
    }
    Some(JobRule {
        headers: header.map_or_else(usual, |header| vec![header]),
        pointer: pointer.map(str::to_owned),
        path: path.map(str::to_owned),
        done: read_shows(&table, "done")?,
        failed: read_shows(&table, "failed"),
        every: table.duration("every").unwrap_or(JOB_EVERY),
        max_queries: most.unwrap_or(JOB_QUERIES),
    })
}

/// The key `batch`.
pub(super) fn read_batch(fields: &Fields<'_, '_>) -> Option<BatchRule> {
    let table = fields.table("batch", BATCH)?;
    let is_atomic = table.truth("atomic").unwrap_or(false);
    let pointer = |key: &str| {
        let pointer = table.text(key).map(|pointer| pointer.value);
        if pointer.is_some_and(|pointer| !pointer.is_empty() && !pointer.starts_with('/')) {
            table.wrong(key, "is no JSON pointer", Some("it begins with a slash".to_owned()));
        }
        pointer.map(str::to_owned)
    };
    let (requests, responses) = (pointer("requests"), pointer("responses"));
    let (id, status) = (pointer("id"), pointer("status"));
    let form = match table.word("form", &["members", "json-rpc", "multi-status", "webdav"]) {
        Some(1) => BatchForm::JsonRpc,
        // The usual shape of an answer 207 in JSON.
        Some(2) => BatchForm::Members {
            requests: requests.unwrap_or_else(|| "/requests".to_owned()),
            responses: responses.unwrap_or_else(|| "/responses".to_owned()),
            id: Some(id.unwrap_or_else(|| "/id".to_owned())),
            status: status.unwrap_or_else(|| "/status".to_owned()),
        },
        Some(3) => {
            for key in ["requests", "responses", "id", "status"] {
                if table.has(key) {
                    table.wrong(key, "is a JSON pointer, and WebDAV speaks XML", None);
                }
            }
            BatchForm::WebDav
        }
        Some(_) | None => {
            for key in ["requests", "responses", "status"] {
                if !table.has(key) {
                    let hint = Some("a JSON pointer, \"\" for the whole content".to_owned());
                    table.wrong(key, "is missing", hint);
                }
            }
            BatchForm::Members { requests: requests?, responses: responses?, id, status: status? }
        }
    };
    Some(BatchRule { form, is_atomic })
}

/// A condition on a response.
fn read_shows(fields: &Fields<'_, '_>, key: &str) -> Option<Shows> {
    let table = fields.table(key, SHOWS)?;
    let status = table.number("status", 100, 599).and_then(|status| u16::try_from(status).ok());
    let (pointer, equals) = (read_pointer(&table), read_equals(&table));
    if !table.has("status") && !table.has("pointer") {
        fields.wrong(key, "is met by everything", Some("give a status or a pointer".to_owned()));
    }
    Some(Shows { status, pointer: pointer.map(str::to_owned), equals })
}
