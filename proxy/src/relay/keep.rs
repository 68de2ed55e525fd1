//! The response as it is kept beside its delivery.

use super::Relay;
use crate::head::{Fields, Response};
use crate::record::{stored_head, stored_trailers};
use journal::Stream;
use journal::contract::KeepResult;

impl Relay<'_> {
    pub(super) async fn keep_head(&mut self, head: &Response) {
        if self.parts.grant.keep != KeepResult::Full {
            return;
        }
        self.keep_as(Stream::Head, stored_head(head).map(Some)).await;
    }

    /// Behind everything else.
    pub(super) async fn keep_trailers(&mut self, trailers: &Fields) {
        if self.parts.grant.keep == KeepResult::Full
            && self.kept_bytes <= self.parts.grant.keep_bytes
        {
            self.keep_as(Stream::Trailers, stored_trailers(trailers)).await;
        }
    }

    async fn keep_as(&mut self, stream: Stream, text: serde_json::Result<Option<Vec<u8>>>) {
        let text = match text {
            Ok(Some(text)) => text,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
                return self.parts.call.discard_result();
            }
        };
        if let Err(error) = self.parts.call.store(stream, &text).await {
            tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
        }
    }

    pub(super) async fn keep(&mut self, data: &[u8]) {
        if self.parts.grant.keep != KeepResult::Full
            || self.kept_bytes > self.parts.grant.keep_bytes
        {
            return;
        }
        self.kept_bytes += data.len() as u64;
        if self.kept_bytes > self.parts.grant.keep_bytes {
            self.parts.call.discard_result();
            self.parts.call.note("result_not_kept", "the content is longer than the route keeps");
            return;
        }
        if let Err(error) = self.parts.call.store(Stream::Content, data).await {
            tracing::warn!(%error, id = %self.parts.call.id(), "the result is not kept");
        }
    }
}
