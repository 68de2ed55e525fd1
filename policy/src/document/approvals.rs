//! The table `[approvals]`: how calls wait for a person, and who is told.

use super::reader::Fields;
use crate::{Approval, host};
use std::time::Duration;

pub(super) const KNOWN: &[&str] = &["wait", "expire", "webhook"];

/// A caller's connection is held no longer: clients and what lies between give up by then.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// A question that nobody answered for a day is forgotten by who asked it.
const LONGEST_EXPIRE: Duration = Duration::from_secs(24 * 3600);

/// What a text says of approvals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Approvals {
    pub(crate) terms: Approval,
    /// Where questions are posted.
    pub(crate) webhook: Option<String>,
}

impl Default for Approvals {
    fn default() -> Self {
        let (wait, expire) = (Duration::from_secs(30), Duration::from_secs(3600));
        Self { terms: Approval { wait, expire }, webhook: None }
    }
}

/// Reads the table.
pub(super) fn read(root: &Fields<'_, '_>) -> Approvals {
    let mut approvals = Approvals::default();
    let Some(fields) = root.table("approvals", KNOWN) else { return approvals };
    let bounded = |key: &str, most: Duration, words: &str, default: Duration| {
        let found = fields.duration(key).unwrap_or(default);
        if found > most {
            fields.wrong(key, format!("is at most {words}"), None);
        }
        found
    };
    let terms = &mut approvals.terms;
    terms.wait = bounded("wait", LONGEST_WAIT, "\"10m\"", terms.wait);
    terms.expire = bounded("expire", LONGEST_EXPIRE, "\"24h\"", terms.expire);
    approvals.webhook = fields.text("webhook").and_then(|text| {
        let usable = is_url(text.value);
        if !usable {
            let hint = "write webhook = \"https://hooks.example/affiant\"".to_owned();
            fields.wrong("webhook", "is not the URL of an HTTP server", Some(hint));
        }
        usable.then(|| text.value.to_owned())
    });
    approvals
}

/// `http` or `https`, a host, perhaps a port, and the rest; no user, blank or fragment.
fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else { return false };
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    let (name, port) = match place.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        Some(_) | None => (place, None),
    };
    let name = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    text.is_ascii()
        && !text.contains(|c: char| c.is_ascii_whitespace() || c.is_ascii_control())
        && !text.contains(['@', '#'])
        && host::normalize(name).is_ok()
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_webhooks_are_checked() {
        for good in
            ["https://h.test/x?y=1", "http://127.0.0.1:9000", "http://[::1]:80/", "https://h"]
        {
            assert!(is_url(good), "{good}");
        }
        for bad in [
            "h.test",
            "ftp://h.test",
            "https://u:p@h.test",
            "https://h.test/#a",
            "http://h:0",
            "http://",
            "http://h /",
        ] {
            assert!(!is_url(bad), "{bad}");
        }
    }
}
