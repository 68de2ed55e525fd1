//! The keys `release`, `compare`, `retry` and `reconcile` of an SSH route (contract K-9).

use super::key::{Promise, read_promise};
use super::reader::Fields;
use super::repeat;
use crate::command::{CommandQuery, CommandRetry, CommandShows, NAMES, PLACE, ReleaseRule};

pub(super) const RELEASE: &[&str] = &["command", "scope", "retention", "contract"];
pub(super) const COMPARE: &[&str] = &["refused"];
pub(super) const RETRY: &[&str] = &["max_attempts", "lease"];
pub(super) const RECONCILE: &[&str] =
    &["command", "committed", "rejected", "automatic", "every", "max_queries"];
pub(super) const SHOWS: &[&str] = &["exit_status", "stdout", "pointer", "equals"];

/// What the route says of repeating, and of finding out.
pub(super) struct Read {
    pub release: Option<ReleaseRule>,
    /// The exit status by which the target says that the state was another than the command expects.
    pub refused: Option<u32>,
    pub retry: Option<CommandRetry>,
    pub reconcile: Option<CommandQuery>,
}

pub(super) fn read(fields: &Fields<'_, '_>, route: Option<&str>, approved: bool) -> Read {
    let release = read_release(fields, route);
    let retry = fields.table("retry", RETRY).map(|table| CommandRetry {
        max_attempts: repeat::read_max_attempts(&table),
        lease: table.duration("lease").unwrap_or(repeat::LEASE),
    });
    if approved && retry.is_some() {
        fields.wrong("retry", "an approval is for one call, so nothing can be sent again", None);
    }
    let refused = read_compare(fields);
    Read { refused, retry, reconcile: read_query(fields, release.is_some()), release }
}

/// The key `release`.
fn read_release(fields: &Fields<'_, '_>, route: Option<&str>) -> Option<ReleaseRule> {
    let table = fields.table("release", RELEASE)?;
    let command = table.required("command", "\"/opt/deploy {release_id}\"")?.value;
    let Promise { scope, retention, contract } = read_promise(&table, route);
    let hint = || Some("as in command = \"/opt/deploy {release_id}\"".to_owned());
    let Some((before, after)) = command.split_once(PLACE) else {
        table.wrong("command", "has no place {release_id}", hint());
        return None;
    };
    if before.is_empty() || before.contains(['*', '{']) || after.contains('{') {
        table.wrong(
            "command",
            "is to begin with literal text, and to hold {release_id} once",
            hint(),
        );
        return None;
    }
    let (before, after) = (before.to_owned(), after.to_owned());
    Some(ReleaseRule { before, after, scope, retention, contract })
}

/// The key `compare`: the command changes the state only if it is as it expects, in one step.
fn read_compare(fields: &Fields<'_, '_>) -> Option<u32> {
    let table = fields.table("compare", COMPARE)?;
    if !table.has("refused") {
        let hint = "the exit status by which the target says that the state was another";
        table.wrong("refused", "is missing", Some(hint.to_owned()));
    }
    table.number("refused", 1, 255).and_then(|status| u32::try_from(status).ok())
}

/// The key `reconcile`.
fn read_query(fields: &Fields<'_, '_>, has_release: bool) -> Option<CommandQuery> {
    let table = fields.table("reconcile", RECONCILE)?;
    let command = table.required("command", "\"/opt/deploy --status {release_id}\"")?.value;
    repeat::check_names(&table, "command", command, &NAMES);
    if command.contains(PLACE) && !has_release {
        let hint = Some("write release = { command = \"/opt/deploy {release_id}\" }".to_owned());
        table.wrong("command", "names a release id that no command of the route has", hint);
    }
    if command.chars().any(char::is_control) {
        table.wrong("command", "is not one line", None);
    }
    let (committed, rejected) = (read_shows(&table, "committed"), read_shows(&table, "rejected"));
    if committed.is_none() && rejected.is_none() {
        let hint = "write committed = { exit_status = 0 }, rejected = { exit_status = 4 }, or both";
        fields.wrong("reconcile", "decides nothing", Some(hint.to_owned()));
    }
    let pace = repeat::read_pace(&table);
    Some(CommandQuery { command: command.to_owned(), committed, rejected, pace })
}

/// A condition on the end of a command.
fn read_shows(fields: &Fields<'_, '_>, key: &str) -> Option<CommandShows> {
    let table = fields.table(key, SHOWS)?;
    let (pointer, equals) = (repeat::read_pointer(&table), repeat::read_equals(&table));
    let status = table.number("exit_status", 0, 255);
    let stdout = table.text("stdout").map(|pattern| pattern.value.to_owned());
    if ["exit_status", "stdout", "pointer"].into_iter().all(|key| !table.has(key)) {
        let hint = Some("give an exit_status, a pattern of stdout or a pointer into it".to_owned());
        fields.wrong(key, "is met by everything", hint);
    }
    Some(CommandShows {
        exit_status: status.and_then(|status| u32::try_from(status).ok()),
        stdout,
        pointer: pointer.map(str::to_owned),
        equals,
    })
}
