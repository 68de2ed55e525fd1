//! Calls that a person has to approve: asked, waited for, and taken up again (contract V-6).
//!
//! ```text
//!  admitted ─► bound (V-5) ─► asked, durably ─► waits ─┬─ approved ─► goes on to its dispatch
//!                                               ▲      ├─ denied, expired, bound otherwise ─► answered
//!                       the same request again ─┘      └─ too long for this caller ─► APPROVAL_PENDING
//! ```

use crate::access::{Caller, LOOK};
use crate::answer::Finished;
use crate::deliver::Outbound;
use crate::engine::{Job, Prepared};
use crate::fingerprint::{is_covered_in_part, is_meaningful};
use crate::respond::{Account, Refusal};
use crate::stored::stored_head;
use journal::contract::{Digest, InvocationId, Preflight};
use journal::{Call, Invocation, Question, Resumed};
use policy::{Approval, Screened};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use zeroize::Zeroizing;

/// The field by which a caller says how long it waits, in seconds.
const WAIT_FIELD: &str = "affiant-wait";
/// The longest wait that a caller can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Bytes of content, of a target, and of a field's name and value that are shown; and how many fields.
/// All of it fits into one record however it is escaped.
const SHOWN_CONTENT: usize = 4096;
const SHOWN_TARGET: usize = 2048;
const SHOWN_NAME: usize = 64;
const SHOWN_VALUE: usize = 256;
const SHOWN_FIELDS: usize = 40;

impl Job<'_> {
    /// Asks a person about a call that was just taken on record, and waits.
    pub(crate) async fn hold(
        &mut self,
        mut call: Call,
        prepared: &Prepared,
        approval: Approval,
    ) -> Result<Call, Finished> {
        let id = call.id();
        let wait = match self.asked_wait(approval) {
            Ok(wait) => wait,
            Err(refusal) => return Err(self.refuse(Some(call), &refusal).await),
        };
        if self.shared.journal.holds_enough(self.known.agent.as_deref()) {
            return Err(self.refuse(Some(call), &Refusal::HoldsEnough).await);
        }
        let (shown, is_whole) = self.shown(prepared);
        let shown = shown.to_string();
        let question = Question {
            fingerprint: prepared.fingerprint,
            lasts: approval.expire,
            shown: shown.as_bytes(),
        };
        if let Err(error) = call.preflight(self.bound(prepared)) {
            return Err(self.refuse(Some(call), &Refusal::Journal(error)).await);
        }
        // V-6: what is approved can be read to its end.
        if !is_whole {
            let head = stored_head(&self.head, &prepared.target);
            let content: Vec<&[u8]> = prepared.ahead.iter().map(|piece| &piece[..]).collect();
            if let Err(error) = call.store_request(&head, &content, 1) {
                return Err(self.refuse(Some(call), &Refusal::Journal(error)).await);
            }
        }
        match call.hold(question).await {
            Ok(_) => self.wait(id, prepared, wait, true).await,
            Err(journal::append::Error::Locked) => {
                Err(self.refuse(None, &Refusal::VaultLocked).await)
            }
            Err(error) => Err(self.refuse(None, &Refusal::Journal(error)).await),
        }
    }

    /// Waits with a repeat for the decision on the call that it repeats.
    pub(crate) async fn join(
        &mut self,
        held: &Invocation,
        prepared: &Prepared,
    ) -> Result<Call, Finished> {
        let Some(approval) = prepared.grant.approval else {
            // Policy asks for no approval any more, so this is another call than what was asked.
            return Err(self.refuse(None, &Refusal::ApprovalMismatch).await);
        };
        match self.asked_wait(approval) {
            Ok(wait) => self.wait(held.id(), prepared, wait, false).await,
            Err(refusal) => Err(self.refuse(None, &refusal).await),
        }
    }

    /// Waits until the call can go on, or has to be answered. `first`: this connection began it.
    async fn wait(
        &mut self,
        id: InvocationId,
        prepared: &Prepared,
        wait: Duration,
        first: bool,
    ) -> Result<Call, Finished> {
        let deadline = Instant::now() + wait;
        let mut stopping = self.shared.stopping.subscribe();
        loop {
            let now = Preflight {
                // What policy says now, not what it said when the caller began to wait.
                policy_version: self.shared.policy.snapshot().version(),
                ..self.bound(prepared)
            };
            let budget = prepared.budget.as_ref();
            let resumed = self.shared.journal.resume(id, &now, budget).await;
            let held = match (resumed, self.identity()) {
                // V-1, V-6: an approval is of the agent, by the token, that asked.
                (Ok(Resumed::Go(call)), _) if !self.is_of_today(&call.invocation()) => {
                    return Err(self.refuse(Some(call), &self.unauthenticated()).await);
                }
                // Approved: what is not sent any more ends the call itself.
                (Ok(Resumed::Go(call)), _) => return Ok(call),
                // V-1: who waits on with a token that is over is told nothing of the call.
                (_, None) => {
                    self.known.caller_id = None;
                    return Err(self.refuse(None, &self.unauthenticated()).await);
                }
                (Ok(Resumed::Spent(spent)), Some(_)) => {
                    return Err(self.refuse(None, &Refusal::Spent(spent)).await);
                }
                (Ok(Resumed::Over(earlier)), Some(_)) => {
                    if first && earlier.is_settled() && !earlier.is_dispatched() {
                        let account = Account::of(earlier.verdict());
                        let envelope = earlier.envelope();
                        return Err(self.problem(&envelope, account, false, false).await);
                    }
                    return Err(self.repeat(prepared, earlier, true).await);
                }
                (Ok(Resumed::Waits(held)), Some(_)) => held,
                (Err(error), Some(_)) => {
                    return Err(self.refuse(None, &Refusal::Journal(error)).await);
                }
            };
            let decided = self.shared.journal.decided(id);
            // Field by field: the caller's side is looked at beside.
            let caller =
                Caller { policy: &self.shared.policy, head: &self.head, tunnel: self.tunnel };
            let waits = tokio::select! {
                decided = timeout_at(deadline, decided) => decided.is_ok(),
                // Who waits without access is told so above.
                () = caller.over() => true,
                _ = stopping.wait_for(|stopping| *stopping) => false,
                // What is approved later is not sent to nobody; who asks again gets it sent.
                () = left(self.out) => false,
            };
            if !waits {
                let account = Account::of(held.verdict());
                return Err(self.problem(&held.envelope(), account, false, !first).await);
            }
        }
    }

    /// Whether the agent that asked is the one of that name today, by the same token.
    fn is_of_today(&self, held: &Invocation) -> bool {
        let agent = held.accepted().agent.as_deref();
        agent.is_some_and(|agent| self.shared.policy.asked(agent, held.accepted_at_ms()))
    }

    /// How long the caller waits: as it says, else as policy says.
    fn asked_wait(&self, approval: Approval) -> Result<Duration, Refusal> {
        let mut values = self.head.fields.all(WAIT_FIELD);
        let Some(value) = values.next() else { return Ok(approval.wait) };
        let seconds = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
        match (seconds, values.next()) {
            (Some(seconds), None) => Ok(Duration::from_secs(seconds).min(LONGEST_WAIT)),
            (None, _) | (Some(_), Some(_)) => Err(Refusal::Wait),
        }
    }

    /// The request as a person is shown it: all that its fingerprint covers, cut where it is long,
    /// without the secrets that the agent put in, and whether it is all there. The injected credential
    /// is not part of it.
    fn shown(&self, prepared: &Prepared) -> (serde_json::Value, bool) {
        let credential = prepared.grant.credential.as_ref();
        let sent = || {
            let all = &self.head.fields;
            all.iter().filter(move |(name, _)| !crate::outgoing::stays(name, all))
        };
        let screen = self.shared.policy.screen();
        let (mut hidden, mut all) = (0, true);
        let mut clean = |screened: Screened, at_most: usize| {
            hidden += screened.hidden;
            all &= screened.text.len() <= at_most;
            cut(screened.text.as_bytes(), at_most)
        };
        let mut fields = Vec::new();
        for (name, value) in sent().take(SHOWN_FIELDS) {
            let value = clean(screen.header(name, value), SHOWN_VALUE);
            fields.push(json!([cut(name, SHOWN_NAME), value]));
        }
        let target = &prepared.target;
        let target = format!("{}://{}{}", target.scheme, target.authority, target.path_and_query);
        let target = clean(screen.target(target.as_bytes()), SHOWN_TARGET);
        let content = Zeroizing::new(prepared.ahead.concat());
        let mut types = sent().filter(|(name, _)| name.eq_ignore_ascii_case(b"content-type"));
        let content_type = types.next().filter(|_| types.next().is_none());
        let content_type = content_type.map(|(_, value)| value);
        let text = std::str::from_utf8(&content).ok();
        let text = text.map(|text| screen.content(content_type, text));
        // The digest of content that can be guessed but for a secret would give the secret away.
        let digest =
            text.as_ref().is_none_or(|text| text.hidden == 0).then(|| Digest::of(&content));
        let is_text = text.is_some();
        let text = text.map(|text| clean(text, SHOWN_CONTENT));
        let more = sent().count().saturating_sub(SHOWN_FIELDS);
        // Content that is no text is told by its digest alone.
        let all = all && more == 0;
        let replaced = credential.and_then(|credential| credential.inject.header_name());
        let named =
            sent().map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value));
        let uncovered: Vec<_> = named
            .filter(|(name, value)| {
                !is_meaningful(name, &[replaced]) || is_covered_in_part(name, value)
            })
            .map(|(name, _)| name)
            .collect();
        let shown = json!({
            "method": self.head.method,
            "target": target,
            "headers": fields,
            "headers_not_shown": more,
            "headers_not_covered": uncovered,
            "content": {
                "length_bytes": content.len(),
                "digest": digest,
                "is_text": is_text,
                "text": text,
                "is_cut": content.len() > SHOWN_CONTENT,
            },
            "hidden": hidden,
            "is_whole": all,
            "inject": credential.map(|credential| credential.inject.mode()),
        });
        (shown, all)
    }
}

/// The beginning of a text.
fn cut(bytes: &[u8], at_most: usize) -> String {
    let shown = String::from_utf8_lossy(bytes.get(..at_most).unwrap_or(bytes)).into_owned();
    if bytes.len() > at_most { format!("{shown}...") } else { shown }
}

/// Waits until the caller is gone. One that only ended its own side is answered, and can ask again.
async fn left(out: &mut Outbound) {
    while !out.has_left(true) {
        sleep(LOOK).await;
    }
}
