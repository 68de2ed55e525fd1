//! Asks policy about a request, with its content where conditions look at that.

use crate::engine::Job;
use crate::head::Request;
use crate::respond::Refusal;
use crate::target::Target;
use bytes::Bytes;
use policy::{Body, Details, HttpAction, HttpGrant, Snapshot};

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
        let looks = ask(&self.head, agent, target, Body::default(), |action, details| {
            snapshot.looks_at_body(action, details)
        });
        let ahead = if looks { Some(self.read_ahead(u64::MAX, false).await?) } else { None };
        let whole = ahead.as_ref().map(|pieces| pieces.concat());
        let body = match &whole {
            Some(whole) if self.incoming.is_ended() => Body::Whole(whole),
            Some(_) => Body::Unreadable("it is longer than 1 MiB"),
            None => Body::default(),
        };
        let grant = ask(&self.head, agent, target, body, |action, details| {
            snapshot.http_with(action, details)
        });
        let grant = grant.map_err(Refusal::Denied)?;
        let names = self.head.fields.iter().filter_map(|(name, _)| std::str::from_utf8(name).ok());
        grant.check_headers(names).map_err(Refusal::Denied)?;
        let strips = |name: &[u8]| std::str::from_utf8(name).is_ok_and(|name| grant.strips(name));
        self.head.fields.retain(|name| !strips(name));
        let limit_bytes = grant.limits.request_bytes;
        let declared = self.incoming.declared().unwrap_or_default();
        if declared.max(self.incoming.length()) > limit_bytes {
            return Err(Refusal::PayloadLimit { limit_bytes });
        }
        Ok(Judged { grant, ahead })
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
