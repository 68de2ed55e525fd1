//! The answer of a hop that failed, in place of the origin's (contract C-8).

use super::{Ended, Relay};
use crate::engine::BACKOFF_MS;
use crate::head::{Fields, Response};
use crate::hops::{Doubt, Said};
use crate::respond::Broken;
use bytes::Bytes;
use journal::contract::{
    Code, Completion, Ended as Conclusion, Observation, Retry, Verdict, after_unknown,
};

impl Relay<'_> {
    /// Records that a hop failed, by its own word, and passes its answer on: it says nothing of the
    /// origin, except where its type of error proves that nothing was forwarded (contract C-8).
    pub(super) async fn hop_failed(
        &mut self,
        head: &Response,
        (said, doubt): (&Said, Doubt),
        held: &[Bytes],
        end: (Completion, &Fields),
    ) -> Ended {
        let message = "A proxy on the way answered for its own failure.".to_owned();
        if let Some(text) = said.text() {
            self.parts.call.note("hop_failed", text);
        }
        let (verdict, not_before_ms) = match doubt {
            Doubt::NotForwardedNow => (
                Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed),
                Some(self.parts.call.now_ms() + BACKOFF_MS),
            ),
            Doubt::NotForwarded => {
                (Verdict::rejected(Retry::AfterCorrection, Code::RemoteNotProcessed), None)
            }
            Doubt::Open => {
                let retry = after_unknown(self.parts.operation, self.parts.call.latest_ms());
                (Verdict::unknown(retry, Code::RemoteOutcomeUnknown), None)
            }
        };
        let settled = if doubt == Doubt::Open {
            let cause = "HOP_FAILED".to_owned();
            let observation =
                Some(Observation { length_bytes: self.received, cause, recording: None });
            self.parts
                .call
                .end(Conclusion { verdict, message, field: None, not_before_ms, observation })
                .await
        } else {
            self.parts.call.reject(verdict, not_before_ms, Some(&message)).await
        };
        match settled {
            Ok(settled) => {
                if let Some(withheld) = self.withheld(head) {
                    return withheld;
                }
                let delivered = self.finish(settled, head, held, end).await;
                Ended::Answered { keep: delivered && self.parts.keep_alive && !self.sending }
            }
            Err(error) => self.broken(Broken::NotStored(error)),
        }
    }

    /// A hop that had begun to pass a response on can say only behind the content that it lost the rest
    /// (RFC 9209 section 2). What frames the content is complete then, and the content is not (contract
    /// S-2, C-8).
    pub(super) fn cut_by_hop(&mut self, said: &Said) -> Ended {
        let text = said.text().unwrap_or_default();
        self.parts.call.note("hop_failed", text);
        self.broken(Broken::Hop { said: text.to_owned() })
    }
}
