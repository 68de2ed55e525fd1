//! `affiant demo`: one of each outcome, with nothing installed.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use serde_json::Value;
use std::process::Command;
use support::*;

#[test]
fn the_demo_shows_each_outcome_as_expected() {
    let mut command = Command::new(BINARY);
    command.args(["demo", "--json"]);
    clean(&mut command);
    let printed: Value = serde_json::from_str(&succeed(command)).unwrap();
    let rows: Vec<(&str, &str, u64)> = printed["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap();
            (text("outcome"), text("code"), row["effects"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("committed", "OK", 1),
            ("rejected", "REMOTE_REJECTED", 0),
            ("not_attempted", "TARGET_NOT_ALLOWED", 0),
            ("not_attempted", "CONNECTION_REFUSED", 0),
            ("unknown", "REMOTE_OUTCOME_UNKNOWN", 1),
            ("not_attempted", "IN_DOUBT_DUPLICATE", 0),
            ("committed", "OK", 1),
            ("committed", "OK", 1),
            ("unknown", "REMOTE_RESULT_INCOMPLETE", 1),
        ]
    );
    assert_eq!(printed["as_expected"], true);
}
