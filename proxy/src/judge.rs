//! Asks policy about a request, with its content where conditions look at that.

use crate::engine::Job;
use crate::head::Request;
use crate::respond::Refusal;
use crate::target::Target;
use bytes::Bytes;
use policy::{Body, Details, HttpAction, HttpGrant, Snapshot};
use std::borrow::Cow;

/// What policy said.
pub(crate) struct Judged {
    pub(crate) grant: HttpGrant,
    /// Content that was read for the decision.
    pub(crate) ahead: Option<Vec<Bytes>>,
}

impl Job<'_> {
    /// Asks policy. Content is read first only if conditions on it take part in the decision.
    pub(crate) async fn judge(
        &mut self,
        snapshot: &Snapshot,
        agent: &str,
        target: &Target,
    ) -> Result<Judged, Refusal> {
        let looks = ask(self.asked(), agent, target, Body::default(), |action, details| {
            snapshot.looks_at_body(action, details)
        });
        let ahead = if looks { Some(self.read_ahead(u64::MAX, false).await?) } else { None };
        let whole = ahead.as_ref().map(|pieces| pieces.concat());
        let body = match &whole {
            Some(whole) if self.incoming.is_ended() => Body::Whole(whole),
            Some(_) => Body::Unreadable("it is longer than 1 MiB"),
            None => Body::default(),
        };
        let grant = ask(self.asked(), agent, target, body, |action, details| {
            snapshot.http_with(action, details)
        });
        let grant = grant.map_err(Refusal::Denied)?;
        let fields = &self.asked().fields;
        let names = fields.iter().filter_map(|(name, _)| std::str::from_utf8(name).ok());
        grant.check_headers(names).map_err(Refusal::Denied)?;
        let strips = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| grant.strips(name));
        if self.head.fields.iter().any(|(name, _)| strips(name)) {
            self.known.asked.get_or_insert_with(|| self.head.clone());
            self.head.fields.retain(|name| !strips(name));
        }
        let limit_bytes = grant.limits.request_bytes;
        let declared = self.incoming.declared().unwrap_or_default();
        if declared.max(self.incoming.length()) > limit_bytes {
            return Err(Refusal::PayloadLimit { limit_bytes });
        }
        Ok(Judged { grant, ahead })
    }

    /// The head as policy judges it, now and whenever it is asked again: with the fields that go no further.
    pub(crate) fn asked(&self) -> &Request {
        self.known.asked_as(&self.head)
    }

    /// The head as it makes two requests the same: with the fields that decide on the route, whether or not
    /// they go further. Under another route an equal request is another action.
    pub(crate) fn compared(&self, snapshot: &Snapshot) -> Cow<'_, Request> {
        let Some(asked) = &self.known.asked else { return Cow::Borrowed(&self.head) };
        let mut compared = asked.clone();
        let goes_on = |name: &[u8]| self.head.fields.iter().any(|(known, _)| known == name);
        let decides =
            |name: &[u8]| std::str::from_utf8(name).is_ok_and(|n| snapshot.decides_by_header(n));
        compared.fields.retain(|name| goes_on(name) || decides(name));
        Cow::Owned(compared)
    }
}

/// Puts a question to policy about a request.
pub(crate) fn ask<R>(
    head: &Request,
    agent: &str,
    target: &Target,
    body: Body<'_>,
    question: impl FnOnce(&HttpAction<'_>, &Details<'_>) -> R,
) -> R {
    let host = target.authority.host.to_string();
    let action = HttpAction {
        agent,
        scheme: target.scheme,
        host: &host,
        port: target.authority.port,
        method: &head.method,
        path: target.path(),
    };
    let headers: Vec<_> = head.fields.iter().collect();
    let query = target.path_and_query.split_once('?').map(|(_, query)| query);
    question(&action, &Details { query, headers: &headers, body })
}
