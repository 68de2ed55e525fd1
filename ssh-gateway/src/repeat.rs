//! Is a command that looks like an earlier one the same, input included (contract K-10, K-11)?
//!
//! The fingerprint covers what is known when a command is admitted; stdin comes after. So before a
//! record answers in place of a dispatch, the client's input is read ahead and compared with what
//! the target had then. Where that can't be told, the answer is neither a result nor a dispatch.

use crate::downstream::Downstream;
use crate::gateway::Shared;
use crate::relay::STDIN_SO_FAR;
use crate::spool::{Input, Spool};
use journal::contract::{Body, Digest, InvocationId, Noted, Outcome, RequestSent};
use journal::{Invocation, Journal};
use std::time::Duration;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Bytes of stdin that are read ahead at most.
const AHEAD_BYTES: usize = 8 << 20;

/// Messages that are read ahead at most, however short they are.
const AHEAD_MESSAGES: usize = 16 << 10;
/// How long the input may take to come.
const AHEAD_TIME: Duration = Duration::from_secs(10);
/// How long a stdin that may have nothing to say is waited for.
const SILENCE: Duration = Duration::from_millis(500);
/// The pause between two looks at a command whose input is not on record yet.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The outcome of one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// The same input.
    Same,
    /// Other input, or nothing that a repeat could double.
    Other,
    /// It can't be told.
    Unclear,
}

/// The input that a target had.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stdin {
    sent: RequestSent,
    /// Whether that was all of it.
    is_whole: bool,
}

/// Compares the client's input with that of `earlier`.
pub(crate) async fn compare(journal: &Journal, spool: &mut Spool, earlier: &Invocation) -> Match {
    if !earlier.evidence().dispatch_started {
        // Nothing was sent then, so no claim depends on the input.
        return Match::Same;
    }
    match stdin(journal, earlier.id()) {
        Some(stdin) => Ahead::read(spool, &stdin).await.compare(&stdin),
        None => Match::Unclear,
    }
}

/// Whether an earlier command of equal fingerprint stands against the one that comes, with its newest
/// state: it had the same input, or may have had (contract K-11).
///
/// What its input is shows only once it is sent. One that is under way without is waited for.
pub(crate) async fn judge(
    Shared { journal, options, .. }: &Shared,
    downstream: &Downstream,
    spool: &mut Spool,
    earlier: Invocation,
) -> (Invocation, Match) {
    let deadline = Instant::now() + options.repeat_wait.min(AHEAD_TIME);
    let mut earlier = earlier;
    while !earlier.is_settled()
        && stdin(journal, earlier.id()).is_none()
        && Instant::now() < deadline
        && !downstream.is_gone()
    {
        tokio::time::sleep(LOOK_AGAIN).await;
        match journal.invocation(earlier.id()) {
            Ok(Some(now)) => earlier = now,
            // It is not durable yet.
            Ok(None) => {}
            Err(error) => {
                tracing::error!(id = %earlier.id(), %error, "an invocation can't be read");
                break;
            }
        }
    }
    let found = match (earlier.is_settled(), earlier.verdict().outcome()) {
        // It had no effect, so an equal one is no second effect.
        (true, Outcome::NotAttempted | Outcome::Rejected) => Match::Other,
        (true, Outcome::Committed | Outcome::Unknown) => compare(journal, spool, &earlier).await,
        (false, _) if earlier.is_dispatched() => compare(journal, spool, &earlier).await,
        (false, _) => Match::Unclear,
    };
    (earlier, found)
}

/// The input that the target had, as far as the record tells.
fn stdin(journal: &Journal, id: InvocationId) -> Option<Stdin> {
    let events = journal.events(id).ok()?;
    events.into_iter().find_map(|(_, event)| {
        if let Body::RequestSent(sent) = event.body {
            Some(Stdin { sent, is_whole: true })
        } else if let Body::Noted(note) = event.body {
            so_far(&note)
        } else {
            None
        }
    })
}

fn so_far(note: &Noted) -> Option<Stdin> {
    let (length, digest) = note.detail.split_once(' ').filter(|_| note.name == STDIN_SO_FAR)?;
    let sent = RequestSent { length_bytes: length.parse().ok()?, digest: digest.parse().ok()? };
    Some(Stdin { sent, is_whole: false })
}

/// Input that was read ahead and put back.
#[derive(Debug, Default)]
struct Ahead {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Ahead {
    /// Reads as much as it takes to tell.
    async fn read(spool: &mut Spool, earlier: &Stdin) -> Self {
        let length = usize::try_from(earlier.sent.length_bytes).unwrap_or(usize::MAX);
        let time = if length == 0 { SILENCE } else { AHEAD_TIME };
        let deadline = Instant::now() + time;
        let (mut ahead, mut taken) = (Self::default(), Vec::new());
        while ahead.bytes.len() <= length.min(AHEAD_BYTES) && taken.len() < AHEAD_MESSAGES {
            let Ok(Some(input)) = tokio::time::timeout_at(deadline, spool.next()).await else {
                break;
            };
            if let Input::Data(data) = &input {
                ahead.bytes.extend_from_slice(data);
            }
            ahead.is_whole = matches!(input, Input::Eof);
            taken.push(input);
            if ahead.is_whole || ahead.compare(earlier) == Match::Other {
                break;
            }
        }
        spool.put_back(taken);
        ahead
    }

    fn compare(&self, earlier: &Stdin) -> Match {
        let RequestSent { length_bytes, digest } = earlier.sent;
        let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        let Some(begun) = self.bytes.get(..length) else {
            // Shorter: other input if that was all of it.
            return if self.is_whole { Match::Other } else { Match::Unclear };
        };
        if Digest::of(begun) != digest {
            return Match::Other;
        }
        let goes_on = self.bytes.len() > length;
        match (earlier.is_whole, self.is_whole, goes_on) {
            // One ends where the other goes on.
            (true, _, true) => Match::Other,
            (true, true, false) => Match::Same,
            // Neither target nor client said a word on it.
            (false, _, false) if length == 0 => Match::Same,
            (false, _, true) if length == 0 => Match::Other,
            (false, true, false) => Match::Same,
            (true, false, false) | (false, false, false) | (false, _, true) => Match::Unclear,
        }
    }
}

/// The whole of stdin, read ahead and put back; none if it is longer than the limit or does not end
/// soon. A stdin that says nothing is not waited for.
pub(crate) async fn whole_input(
    spool: &mut Spool,
    limit_bytes: usize,
) -> Option<Zeroizing<Vec<u8>>> {
    let (mut bytes, mut taken) = (Zeroizing::new(Vec::new()), Vec::new());
    let mut deadline = Instant::now() + SILENCE;
    let mut is_whole = false;
    while !is_whole && bytes.len() <= limit_bytes && taken.len() < AHEAD_MESSAGES {
        let Ok(Some(input)) = tokio::time::timeout_at(deadline, spool.next()).await else { break };
        match &input {
            Input::Data(data) => {
                if bytes.is_empty() {
                    deadline = Instant::now() + AHEAD_TIME;
                }
                bytes.extend_from_slice(data);
            }
            Input::Eof => is_whole = true,
            Input::WindowChange(_) | Input::Signal(_) => {}
        }
        taken.push(input);
    }
    spool.put_back(taken);
    (is_whole && bytes.len() <= limit_bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdin(text: &str, is_whole: bool) -> Stdin {
        let bytes = text.as_bytes();
        let sent = RequestSent { length_bytes: bytes.len() as u64, digest: Digest::of(bytes) };
        Stdin { sent, is_whole }
    }

    /// K-10, K-11: equal commands with other input are other requests; doubt is told as such.
    #[test]
    fn k_10_input_counts() {
        let cases = [
            ("pay1", true, "pay1", true, Match::Same),
            ("pay1", true, "pay2", true, Match::Other),
            ("pay1", true, "pay", true, Match::Other),
            ("pay1", true, "pay11", true, Match::Other),
            ("pay1", true, "pay11", false, Match::Other),
            ("pay1", true, "pay", false, Match::Unclear),
            ("pay1", true, "pay1", false, Match::Unclear),
            ("", true, "", true, Match::Same),
            ("", true, "x", true, Match::Other),
            ("", false, "", false, Match::Same),
            ("", false, "", true, Match::Same),
            ("", false, "x", true, Match::Other),
            ("pay", false, "pay1", true, Match::Unclear),
            ("pay", false, "pay", true, Match::Same),
            ("pay", false, "pax", true, Match::Other),
            ("pay", false, "pa", true, Match::Other),
        ];
        for (earlier, earlier_whole, now, now_whole, expected) in cases {
            let ahead = Ahead { bytes: now.as_bytes().to_vec(), is_whole: now_whole };
            let found = ahead.compare(&stdin(earlier, earlier_whole));
            assert_eq!(found, expected, "{earlier:?} {earlier_whole} {now:?} {now_whole}");
        }
    }
}
