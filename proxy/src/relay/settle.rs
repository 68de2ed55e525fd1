//! From a complete response to its record, and from there to the caller (contract R-1).

use super::{Down, Ended, Relay};
use crate::batch;
use crate::deliver::{self, Delivery, Ours};
use crate::engine::BACKOFF_MS;
use crate::grpc;
use crate::head::{Fields, Received, Response, Version, is_bodiless};
use crate::hops;
use crate::job;
use crate::record::retry_after;
use crate::render::Status;
use crate::respond::{Broken, UPGRADE_FAILED};
use bytes::Bytes;
use journal::Settled;
use journal::contract::{
    Completion, Digest, Outcome, ResponseComplete, Retry, Verdict, settle_http,
};
use sha2::Digest as _;

impl<'a> Relay<'a> {
    /// Commits, then delivers (contract R-1).
    pub(super) async fn settle(
        &mut self,
        head: &Response,
        completion: Completion,
        trailers: &Fields,
    ) -> Ended {
        let held = std::mem::take(&mut self.held);
        if matches!(self.down, Down::Untouched) {
            self.keep_head(head).await;
            for piece in &held {
                self.keep(piece).await;
            }
        }
        self.keep_trailers(trailers).await;
        let said = hops::read(&head.fields);
        if let Some(doubt) = said.doubt(head.status, self.parts.through_parent) {
            return self.hop_failed(head, (&said, doubt), &held, (completion, trailers)).await;
        }
        let cut = hops::read(trailers);
        if cut.has_failed() && !grpc::has_status(head, trailers) {
            return self.cut_by_hop(&cut);
        }
        let status = match grpc::settling_status(head, trailers) {
            Ok(status) => status,
            Err(grpc::NoStatus) => return self.broken(Broken::NoGrpcStatus),
        };
        let (shared, prepared) = (self.parts.shared, self.parts.prepared);
        let next_hop = self.parts.next_hop;
        shared.redirects.note(self.parts.call, &prepared.target, head);
        job::track(shared, self.parts.call, prepared, next_hop, head, &held).await;
        let at_ms = self.parts.call.now_ms();
        let not_before = retry_after(&head.fields, at_ms);
        let latest_ms = self.parts.call.latest_ms();
        let verdict = settle_http(status, not_before, self.parts.operation, latest_ms);
        let complete = ResponseComplete {
            completion,
            length_bytes: self.received,
            digest: Digest(self.digest.clone().finalize().into()),
            ssh_end: None,
            redacted: self.parts.redactor.found(),
        };
        batch::judge(self.parts.call, prepared, verdict, &held);
        let backoff = verdict.retry() == Retry::Backoff;
        let not_before = backoff.then(|| not_before.unwrap_or(at_ms + BACKOFF_MS));
        let settled = match self.parts.call.commit(complete, verdict, not_before).await {
            Ok(settled) => settled,
            Err(error) => {
                tracing::error!(%error, id = %self.parts.call.id(), "a result could not be recorded");
                return self.broken(Broken::NotStored(error));
            }
        };
        if let Some(withheld) = self.withheld(head) {
            return withheld;
        }
        let refused = backoff && verdict.outcome() == Outcome::Rejected;
        if refused && self.parts.hold_refusal && matches!(self.down, Down::Untouched) {
            return Ended::Refused;
        }
        let delivered = self.finish(settled, head, &held, (completion, trailers)).await;
        Ended::Settled { delivered, keep: self.parts.keep_alive && !self.sending }
    }

    /// What is on record and can't be delivered, not even in part: its head speaks of content that is not
    /// there (contract I-4, S-2).
    pub(super) fn withheld(&self, head: &Response) -> Option<Ended> {
        if !self.search.is_withheld() || !matches!(self.down, Down::Untouched) {
            return None;
        }
        let coding = head.fields.first("content-encoding");
        let coding = coding.and_then(|name| crate::render::coding(name.as_bytes()));
        Some(Ended::Withheld(coding))
    }

    /// Brings the response to its end at the caller. Takes the proof that its record is durable.
    pub(super) async fn finish(
        &mut self,
        settled: Settled,
        head: &Response,
        held: &[Bytes],
        (completion, trailers): (Completion, &Fields),
    ) -> bool {
        match self.down {
            Down::Untouched => self.deliver_held(settled, head, held, (completion, trailers)).await,
            Down::Streaming(Delivery::Chunked | Delivery::Frames) => {
                let content = std::mem::take(&mut self.last);
                let mut last =
                    if content.is_empty() { Vec::new() } else { deliver::chunk(&content) };
                last.extend_from_slice(&self.last_chunk(head, settled.verdict(), trailers));
                self.parts.out.send(&last).await.is_ok()
            }
            Down::Streaming(_) => {
                let last = std::mem::take(&mut self.last);
                last.is_empty() || self.parts.out.send(&last).await.is_ok()
            }
            Down::Gone => false,
        }
    }

    /// Delivers a held response. Takes the proof that its record is durable.
    async fn deliver_held(
        &mut self,
        settled: Settled,
        head: &Response,
        held: &[Bytes],
        (completion, trailers): (Completion, &Fields),
    ) -> bool {
        let verdict = settled.verdict();
        let length = held.iter().map(Bytes::len).sum::<usize>();
        let bodiless = is_bodiless(self.parts.method, head.status);
        // Only chunks have room for trailers; frames may have them behind a length, too.
        let has_trailers = trailers.iter().next().is_some();
        let may_chunk = self.parts.version == Version::Http11 && !bodiless;
        let declared = head.fields.has("content-length");
        let delivery =
            if may_chunk && (has_trailers || (completion == Completion::Chunked && !declared)) {
                Delivery::HeldChunks
            } else if bodiless || declared {
                Delivery::AsDeclared
            } else {
                Delivery::Length(length as u64)
            };
        let mut bytes = self.response_head(head, verdict, delivery);
        if delivery == Delivery::HeldChunks {
            held.iter().for_each(|piece| bytes.extend_from_slice(&deliver::chunk(piece)));
            bytes.extend_from_slice(&deliver::last_chunk(trailers, None));
        } else {
            bytes.reserve_exact(length);
            held.iter().for_each(|piece| bytes.extend_from_slice(piece));
        }
        self.parts.out.send(&bytes).await.is_ok()
    }

    pub(super) fn response_head(
        &self,
        head: &Response,
        verdict: Verdict,
        delivery: Delivery,
    ) -> Vec<u8> {
        let ours = self.ours(verdict, head);
        if !self.would_mislead(head) {
            return deliver::head(head, self.parts.version, delivery, &ours);
        }
        let reason = deliver::reason(502).as_bytes().to_vec();
        let (version, fields) = (head.version, head.fields.clone());
        let head = Response { status: 502, reason, version, fields };
        let status = Status { error: Some(UPGRADE_FAILED), ..ours.status };
        deliver::head(&head, self.parts.version, delivery, &Ours { status, ..ours })
    }

    /// Whether the caller would take the response for an open WebSocket: over HTTP/2 any 2xx opens it
    /// (RFC 8441 section 5), over HTTP/1.1 the origin answered something else.
    fn would_mislead(&self, head: &Response) -> bool {
        self.parts.opening.is_some()
            && self.parts.out.is_stream()
            && (200..300).contains(&head.status)
    }

    fn last_chunk(&self, head: &Response, verdict: Verdict, trailers: &Fields) -> Vec<u8> {
        deliver::last_chunk(trailers, Some(&self.ours(verdict, head)))
    }

    fn ours(&self, verdict: Verdict, head: &Response) -> Ours<'a> {
        Ours {
            verdict,
            id: self.parts.call.id(),
            replayed: false,
            status: Status {
                received_status: Some(head.status),
                next_hop: Some(self.parts.next_hop),
                ..Status::default()
            },
            // A caller that is still sending would send its next request into this content.
            keep_alive: self.parts.keep_alive && !self.sending,
            pseudonym: self.parts.pseudonym,
            received: match self.parts.in_frames {
                true => Received::InFrames,
                false => Received::By(head.version),
            },
        }
    }
}
