//! The stored form of a command: what is kept before dispatch so that it can be sent again.
//!
//! It holds what the caller sent, never what injection adds: no credential of policy's is in it. Where it
//! leads stands in the record itself.

use crate::invocation::Job;
use crate::repeat::whole_input;
use crate::request::{Preparation, Request};
use crate::spool::Spool;
use journal::{Call, append};
use policy::SshGrant;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Bytes of stdin that are stored at most.
const INPUT_BYTES: usize = 1 << 20;
/// The note on a command that can't be sent again.
const NOT_STORED: &str = "request_not_stored";

/// The head of a stored command. Each byte of the command is one character.
#[derive(Serialize, Deserialize)]
struct Head {
    command: String,
    variables: Vec<(String, String)>,
}

/// Stores the command with its input where its route lets it be sent again. What can't be stored is
/// noted, and the call goes on without retries.
pub(crate) async fn keep(call: &mut Call, spool: &mut Spool, job: &Job, grant: &SshGrant) {
    let (Some(rule), Request::Exec(command)) = (&grant.retry, &job.request) else { return };
    if job.preparation.terminal.is_some() {
        return call.note(NOT_STORED, "it has a terminal");
    }
    let Some(input) = whole_input(spool, INPUT_BYTES).await else {
        return call.note(NOT_STORED, "its stdin does not end at once, or is longer than 1 MiB");
    };
    let head = Zeroizing::new(encode(command, &job.preparation));
    if let Err(error) = call.store_request(&head, &[&input], rule.max_attempts) {
        tracing::warn!(%error, id = %call.id(), "a command was not stored");
        call.note(NOT_STORED, "the journal had no room or no key for it");
    }
}

/// Stores a command that a person is asked about and that is too long for the list (contract V-6).
///
/// # Errors
/// When the journal has no room or no key for it.
pub(crate) fn keep_asked(call: &mut Call, job: &Job) -> Result<(), append::Error> {
    let Request::Exec(command) = &job.request else { return Ok(()) };
    let head = Zeroizing::new(encode(command, &job.preparation));
    call.store_request(&head, &[], 1)
}

/// A stored command, for who is asked about it. It can hold secrets of the caller's.
pub struct StoredCommand {
    /// Its exact bytes.
    pub command: Vec<u8>,
    /// The variables that go along.
    pub variables: Vec<(String, String)>,
}

impl StoredCommand {
    /// Reads a stored head; none if it is no command's.
    #[must_use]
    pub fn read(head: &[u8]) -> Option<Self> {
        match restore(head)? {
            (Request::Exec(command), Preparation { variables, .. }) => {
                Some(Self { command, variables })
            }
            (Request::Shell | Request::Subsystem(_) | Request::Forward { .. }, _) => None,
        }
    }
}

fn encode(command: &[u8], preparation: &Preparation) -> Vec<u8> {
    let command = command.iter().map(|byte| char::from(*byte)).collect();
    let head = Head { command, variables: preparation.variables.clone() };
    // Text and lists of text always serialise.
    serde_json::to_vec(&head).unwrap_or_default()
}

/// Reads a stored head.
pub(crate) fn restore(head: &[u8]) -> Option<(Request, Preparation)> {
    let head: Head = serde_json::from_slice(head).ok()?;
    let command: Option<Vec<u8>> = head.command.chars().map(|c| u8::try_from(c).ok()).collect();
    let preparation = Preparation { variables: head.variables, ..Preparation::default() };
    Some((Request::Exec(command?), preparation))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-3: what comes back is what was sent, bytes that are no text included.
    #[test]
    fn t_3_a_stored_command_comes_back_as_it_was() {
        let command: Vec<u8> = (0..=255).collect();
        let variables = vec![("LANG".to_owned(), "C.UTF-8".to_owned())];
        let preparation = Preparation { variables, ..Preparation::default() };
        let (request, restored) = restore(&encode(&command, &preparation)).unwrap();
        assert_eq!(request, Request::Exec(command));
        assert_eq!(restored.variables, preparation.variables);
        assert!(restored.terminal.is_none() && restored.invocation.is_none());
        assert!(restore(b"").is_none());
        assert!(restore("{\"command\":\"\u{100}\",\"variables\":[]}".as_bytes()).is_none());
    }
}
