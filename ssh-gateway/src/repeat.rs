//! Is a command that looks like an earlier one the same, input included (contract K-10, K-11)?
//!
//! The fingerprint covers what is known when a command is admitted; stdin comes after. So before a
//! record answers in place of a dispatch, the client's input is read ahead and compared with what
//! the target had then. Where that can't be told, the answer is neither a result nor a dispatch.

use crate::relay::STDIN_SO_FAR;
use crate::spool::{Input, Spool};
use journal::contract::{
    Accepted, Body, Digest, Gateway, InvocationId, Noted, Outcome, RequestSent,
};
use journal::{Delivery, Filter, Invocation, Journal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Bytes of stdin that are read ahead at most.
const AHEAD_BYTES: usize = 8 << 20;
/// How long the input may take to come.
const AHEAD_TIME: Duration = Duration::from_secs(10);
/// How long a stdin that may have nothing to say is waited for.
const SILENCE: Duration = Duration::from_millis(500);
/// Pages of records that are looked at.
const MAX_PAGES: usize = 10;

/// The outcome of one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// The same input.
    Same,
    /// Other input.
    Other,
    /// It can't be told.
    Unclear,
}

/// What the earlier commands of equal fingerprint come to.
pub(crate) enum Resolution {
    /// This one had the same input.
    Same(Box<Invocation>),
    /// This one may have had it.
    Unclear(Box<Invocation>),
    /// All had other input.
    Fresh,
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
    let stdin = stdin(journal, earlier.id());
    let ahead = Ahead::read(spool, stdin.iter()).await;
    stdin.as_ref().map_or(Match::Unclear, |stdin| ahead.compare(stdin))
}

/// Looks at every earlier command that guards against `accepted` (contract K-11).
pub(crate) async fn resolve(
    journal: &Journal,
    spool: &mut Spool,
    accepted: &Accepted,
    window: Option<Duration>,
) -> Resolution {
    let guarding: Vec<_> = guarding(journal, accepted, window.unwrap_or_default())
        .into_iter()
        .map(|earlier| (stdin(journal, earlier.id()), earlier))
        .collect();
    let ahead = Ahead::read(spool, guarding.iter().filter_map(|(stdin, _)| stdin.as_ref())).await;
    let mut unclear = None;
    for (stdin, earlier) in guarding {
        match stdin.as_ref().map_or(Match::Unclear, |stdin| ahead.compare(stdin)) {
            Match::Same => return Resolution::Same(Box::new(earlier)),
            Match::Unclear => unclear = unclear.or(Some(earlier)),
            Match::Other => {}
        }
    }
    unclear.map_or(Resolution::Fresh, |earlier| Resolution::Unclear(Box::new(earlier)))
}

/// The earlier commands of equal fingerprint that may have had their effect unheard.
fn guarding(journal: &Journal, accepted: &Accepted, window: Duration) -> Vec<Invocation> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = now.saturating_sub(window);
    let mut filter = Filter {
        agent: accepted.agent.clone(),
        gateway: Some(Gateway::Ssh),
        limit: 200,
        ..Filter::default()
    };
    let mut found = Vec::new();
    for _ in 0..MAX_PAGES {
        let Ok(page) = journal.list(&filter) else { break };
        found.extend(page.invocations.into_iter().filter(|earlier| {
            earlier.accepted().fingerprint == accepted.fingerprint
                && earlier.evidence().dispatch_started
                && is_open(earlier)
                && earlier.ended_at_ms().is_none_or(|ended| Duration::from_millis(ended) >= since)
        }));
        match page.next {
            Some(next) => filter.cursor = Some(next),
            None => break,
        }
    }
    found
}

/// Under way, in doubt, or never handed over.
fn is_open(earlier: &Invocation) -> bool {
    match earlier.verdict().outcome() {
        Outcome::Unknown => true,
        Outcome::Committed => !matches!(earlier.delivery(), Delivery::Delivered(_)),
        Outcome::NotAttempted | Outcome::Rejected => false,
    }
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
    async fn read<'a>(spool: &mut Spool, earlier: impl Iterator<Item = &'a Stdin>) -> Self {
        let lengths = earlier.map(|stdin| usize::try_from(stdin.sent.length_bytes));
        let Some(longest) = lengths.map(|length| length.unwrap_or(usize::MAX)).max() else {
            return Self::default();
        };
        let time = if longest == 0 { SILENCE } else { AHEAD_TIME };
        let deadline = Instant::now() + time;
        let (mut ahead, mut taken) = (Self::default(), Vec::new());
        while ahead.bytes.len() <= longest.min(AHEAD_BYTES) {
            let Ok(Some(input)) = tokio::time::timeout_at(deadline, spool.next()).await else {
                break;
            };
            if let Input::Data(data) = &input {
                ahead.bytes.extend_from_slice(data);
            }
            ahead.is_whole = matches!(input, Input::Eof);
            taken.push(input);
            if ahead.is_whole {
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
    while !is_whole && bytes.len() <= limit_bytes {
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
