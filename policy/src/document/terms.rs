//! The terms that a route inherits from `[defaults]`: what is kept, bounds, the guard, addresses.

use super::reader::Fields;
use super::value;
use crate::Limits;
use journal::contract::KeepResult;
use std::time::Duration;

pub(super) const RESULT: &[&str] = &["keep", "max_bytes", "max_bytes_total", "ttl"];
pub(super) const HTTP_LIMITS: &[&str] =
    &["request_bytes", "connect_timeout", "response_timeout", "idle_timeout", "hold_time"];
pub(super) const SSH_LIMITS: &[&str] =
    &["request_bytes", "connect_timeout", "response_timeout", "idle_timeout", "output_bytes"];

/// What is kept, bounds, the guard, addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    pub keep: KeepResult,
    pub keep_bytes: u64,
    pub keep_total_bytes: Option<u64>,
    pub keep_for: Duration,
    pub limits: Limits,
    /// Whether the text says how long a response may take; else the kind of route decides.
    pub response_stated: bool,
    pub output_bytes: Option<u64>,
    pub repeat_window: Option<Duration>,
    /// None: the kind of route decides.
    pub private_addresses: Option<bool>,
}

impl Default for Terms {
    fn default() -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            keep: KeepResult::Full,
            keep_bytes: 8 << 20,
            keep_total_bytes: None,
            keep_for: 7 * 24 * 60 * MINUTE,
            limits: Limits {
                request_bytes: 1 << 30,
                connect_timeout: Duration::from_secs(10),
                response_timeout: 10 * MINUTE,
                idle_timeout: 5 * MINUTE,
                hold_time: Duration::from_millis(100),
            },
            response_stated: false,
            output_bytes: None,
            repeat_window: Some(10 * MINUTE),
            private_addresses: None,
        }
    }
}

/// Reads the terms of a table over those that it inherits. Only SSH bounds output.
pub(crate) fn read(fields: &Fields<'_, '_>, inherited: &Terms, ssh: bool) -> Terms {
    let mut terms = inherited.clone();
    if let Some(result) = fields.table("result", RESULT) {
        match result.word("keep", &["full", "digest", "none"]) {
            Some(0) => terms.keep = KeepResult::Full,
            Some(1) => terms.keep = KeepResult::Digest,
            Some(_) => terms.keep = KeepResult::None,
            None => {}
        }
        terms.keep_bytes = result.size("max_bytes").unwrap_or(terms.keep_bytes);
        terms.keep_total_bytes = result.size("max_bytes_total").or(terms.keep_total_bytes);
        terms.keep_for = result.duration("ttl").unwrap_or(terms.keep_for);
    }
    if let Some(limits) = fields.table("limits", if ssh { SSH_LIMITS } else { HTTP_LIMITS }) {
        let to = &mut terms.limits;
        to.request_bytes = limits.size("request_bytes").unwrap_or(to.request_bytes);
        to.connect_timeout = limits.duration("connect_timeout").unwrap_or(to.connect_timeout);
        if let Some(timeout) = limits.duration("response_timeout") {
            to.response_timeout = timeout;
            terms.response_stated = true;
        }
        to.idle_timeout = limits.duration("idle_timeout").unwrap_or(to.idle_timeout);
        to.hold_time = limits.duration("hold_time").unwrap_or(to.hold_time);
        if ssh {
            terms.output_bytes = limits.size("output_bytes").or(terms.output_bytes);
        }
    }
    if let Some(guard) = fields.text("repeat_guard") {
        if guard.value == "off" {
            terms.repeat_window = None;
        } else {
            match value::duration(guard.value) {
                Ok(window) => terms.repeat_window = Some(window),
                Err(error) => fields.wrong("repeat_guard", error, Some("or \"off\"".to_owned())),
            }
        }
    }
    if let Some(index) = fields.word("private_addresses", &["deny", "allow"]) {
        terms.private_addresses = Some(index == 1);
    }
    terms
}
