//! What an SSH route says of repeating its commands and of finding out about them later (contract
//! K-9): terms of data, judged here, acted on by the gateway.
//!
//! A name of an operation is taken out of a command, and put into another, only where no shell could
//! read anything but one word in it.

use crate::glob;
use crate::repeat::{Names, Pace, QueryError, Shows, fill};
use journal::contract::RemoteContract;
use std::time::Duration;

/// The place of the release id in a pattern.
pub(crate) const PLACE: &str = "{release_id}";
/// Names that a query command may use.
pub(crate) const NAMES: [&str; 2] = ["release_id", "invocation_id"];
/// Longest release id.
const MAX_ID: usize = 128;

/// A unique release id in the command: the target carries each out once, and answers a repeat with
/// what came of the first (contract K-1, K-9). It is the idempotency key of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseRule {
    /// What stands before the id, literally.
    pub before: String,
    /// The pattern of what stands after it.
    pub after: String,
    /// The scope of the id at the target.
    pub scope: String,
    /// How long the target remembers an id.
    pub retention: Duration,
    /// Whether the target's promise was verified.
    pub contract: RemoteContract,
}

/// Whether and how often a command may be sent again, on request (contract T-1, T-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRetry {
    /// Attempts in all, the first one included.
    pub max_attempts: u32,
    /// How long a worker may hold the right to the next attempt (contract K-6).
    pub lease: Duration,
}

/// How the outcome of a command is found out later (contract K-7, K-9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandQuery {
    /// The command that asks, with names of [`Names`] in braces.
    pub command: String,
    /// What shows that the operation was carried out.
    pub committed: Option<CommandShows>,
    /// What shows that it was not, and will not be.
    pub rejected: Option<CommandShows>,
    /// Who asks, and how often.
    pub pace: Pace,
}

/// What the end of a query command has to be to show something. Everything that is given has to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandShows {
    /// The exit status.
    pub exit_status: Option<u32>,
    /// A pattern with `*` for the whole of stdout, but for line ends at its end.
    pub stdout: Option<String>,
    /// A JSON pointer (RFC 6901) into stdout, which has to lead to something.
    pub pointer: Option<String>,
    /// What it has to lead to; empty: anything but `null`.
    pub equals: Vec<String>,
}

/// Whether a byte means nothing but itself to any shell, quoted or not.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'@' | b'+')
}

/// Whether a text may be a release id: one word, and no option.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_ID && !text.starts_with('-')
}

impl ReleaseRule {
    /// The release id that a command carries; none: the rule is not about this command.
    #[must_use]
    pub fn id_of(&self, command: &[u8]) -> Option<String> {
        let rest = command.strip_prefix(self.before.as_bytes())?;
        let end = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
        let (id, after) = rest.split_at_checked(end)?;
        let id = std::str::from_utf8(id).ok().filter(|id| is_id(id))?;
        glob::matches(self.after.as_bytes(), after, |_| true).then(|| id.to_owned())
    }
}

impl CommandQuery {
    /// The command that asks about one operation.
    ///
    /// # Errors
    /// [`QueryError`] when the operation lacks a name.
    pub fn line(&self, names: &Names) -> Result<String, QueryError> {
        let plain = |name: &String| is_id(name) && name.bytes().all(is_plain);
        let names = Names {
            idempotency_key: names.idempotency_key.clone().filter(plain),
            invocation_id: names.invocation_id.clone(),
            request_id: None,
        };
        fill(&self.command, &names, |value, into| into.push_str(value))
    }

    /// What a complete answer shows: `Some(true)` that the operation was carried out, `Some(false)`
    /// that it was not. One that meets both conditions, or none, shows nothing.
    #[must_use]
    pub fn shows(&self, exit_status: u32, stdout: &[u8]) -> Option<bool> {
        let meets = |shows: &Option<CommandShows>| {
            shows.as_ref().is_some_and(|shows| shows.is_met_by(exit_status, stdout))
        };
        match (meets(&self.committed), meets(&self.rejected)) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            (true, true) | (false, false) => None,
        }
    }
}

impl CommandShows {
    /// Whether a complete answer meets the condition. Silence meets no pattern (contract K-9).
    #[must_use]
    pub fn is_met_by(&self, exit_status: u32, stdout: &[u8]) -> bool {
        if self.exit_status.is_some_and(|wanted| wanted != exit_status) {
            return false;
        }
        if let Some(pattern) = &self.stdout {
            let said = stdout.trim_ascii_end();
            if said.is_empty() || !glob::matches(pattern.as_bytes(), said, |_| true) {
                return false;
            }
        }
        match &self.pointer {
            Some(pointer) => Shows::leads(pointer, &self.equals, stdout),
            None => self.exit_status.is_some() || self.stdout.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(before: &str, after: &str) -> ReleaseRule {
        ReleaseRule {
            before: before.to_owned(),
            after: after.to_owned(),
            scope: "deploy".to_owned(),
            retention: Duration::from_secs(60),
            contract: RemoteContract::Verified,
        }
    }

    /// K-9: the release id is one plain word at the place that the route names.
    #[test]
    fn k_9_a_release_id_is_one_word_of_the_command() {
        let deploy = rule("/opt/deploy ", "");
        let id = |command: &str| deploy.id_of(command.as_bytes());
        assert_eq!(id("/opt/deploy v42").as_deref(), Some("v42"));
        assert_eq!(id("/opt/deploy a/b:1.2@x+y_z-").as_deref(), Some("a/b:1.2@x+y_z-"));
        for other in [
            "/opt/deploy ",
            "/opt/deploy",
            "/opt/deploy -rf",
            "/opt/deploy v42 --now",
            "/opt/deploy v42;id",
            "/opt/deploy $(id)",
            "/opt/deploy 'v42'",
            "/opt/deploy v\u{e9}",
            " /opt/deploy v42",
        ] {
            assert_eq!(id(other), None, "{other}");
        }
        assert_eq!(id(&format!("/opt/deploy {}", "x".repeat(129))), None);
        let loose = rule("rel=", " *");
        assert_eq!(loose.id_of(b"rel=7 make install").as_deref(), Some("7"));
        assert_eq!(loose.id_of(b"rel=7"), None);
    }

    fn query(committed: CommandShows, rejected: CommandShows) -> CommandQuery {
        CommandQuery {
            command: "/opt/deploy --status {release_id} {invocation_id}".to_owned(),
            committed: Some(committed),
            rejected: Some(rejected),
            pace: Pace { automatic: false, every: Duration::from_secs(30), max_queries: 20 },
        }
    }

    fn says(pattern: &str) -> CommandShows {
        CommandShows { stdout: Some(pattern.to_owned()), ..CommandShows::default() }
    }

    /// K-9: the question names the operation, and its name stays one word.
    #[test]
    fn k_9_a_query_names_the_operation() {
        let names = |key: Option<&str>| Names {
            idempotency_key: key.map(str::to_owned),
            invocation_id: "act_1".to_owned(),
            request_id: None,
        };
        let query = query(says("done*"), says("absent"));
        let line = query.line(&names(Some("v42")));
        assert_eq!(line.as_deref(), Ok("/opt/deploy --status v42 act_1"));
        let nameless = Err(QueryError::Nameless("release_id".to_owned()));
        for none in [None, Some("v42; rm -r $HOME"), Some("-x"), Some("")] {
            assert_eq!(query.line(&names(none)), nameless, "{none:?}");
        }
    }

    /// K-9: only a condition that holds decides, and silence on stdout proves nothing.
    #[test]
    fn k_9_silence_on_stdout_proves_nothing() {
        let by_text = query(says("*"), says("absent*"));
        for silence in [&b""[..], b"\n", b" \r\n\n"] {
            assert_eq!(by_text.shows(0, silence), None);
        }
        assert_eq!(by_text.shows(1, b"there\n"), Some(true));
        assert_eq!(by_text.shows(0, b"absent\n"), None, "it meets both");
        let status = |exit_status| CommandShows {
            exit_status: Some(exit_status),
            ..CommandShows::default()
        };
        let by_status = query(status(0), status(4));
        assert_eq!(by_status.shows(0, b""), Some(true));
        assert_eq!(by_status.shows(4, b""), Some(false));
        assert_eq!(by_status.shows(1, b""), None);
        let state = |word: &str| CommandShows {
            exit_status: Some(0),
            pointer: Some("/state".to_owned()),
            equals: vec![word.to_owned()],
            ..CommandShows::default()
        };
        let by_pointer = query(state("live"), state("gone"));
        assert_eq!(by_pointer.shows(0, br#"{"state":"live"}"#), Some(true));
        assert_eq!(by_pointer.shows(0, br#"{"state":"gone"}"#), Some(false));
        assert_eq!(by_pointer.shows(1, br#"{"state":"live"}"#), None);
        assert_eq!(by_pointer.shows(0, b"live"), None);
        assert!(!CommandShows::default().is_met_by(0, b"x"), "an empty condition shows nothing");
    }
}
