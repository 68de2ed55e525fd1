//! `http://affiant.internal/`: the control API, reached through the proxy. Nothing of it is an
//! invocation, so nothing of it is recorded.

use crate::answer::Finished;
use crate::deliver;
use crate::engine::Job;
use crate::handover::{Fetched, Pending};
use crate::head::Request;
use crate::request::{Identity, Tunnel};
use crate::respond::Refusal;
use crate::target::{Authority, Host, Scheme, Target};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;

/// The host that is the broker itself.
const HOST: &str = "affiant.internal";
const MAX_CONTENT: u64 = 1 << 20;

/// Whether the request is for the control API.
pub(crate) fn is_meant(head: &Request, tunnel: Option<&Tunnel>) -> bool {
    tunnel.is_none()
        && Target::absolute(&head.target)
            .is_ok_and(|target| target.scheme == Scheme::Http && is_own(&target.authority.host))
}

/// Refuses another way to the control API than [`is_meant`]: no such name is to be asked for elsewhere.
pub(crate) fn refuse(authority: &Authority) -> Result<(), Refusal> {
    if !is_own(&authority.host) {
        return Ok(());
    }
    let what = "The control API inside TLS or a tunnel (it is at http://affiant.internal/)";
    Err(Refusal::Unsupported { what, field: "request.target" })
}

fn is_own(host: &Host) -> bool {
    matches!(host, Host::Name(name) if name.as_ref() == HOST)
}

/// Answers a request for the control API.
pub(crate) async fn answer(job: &mut Job<'_>) -> Finished {
    let Some(identity) = Identity::of(&job.head, &job.shared.policy) else {
        return job.refuse(None, &job.unauthenticated()).await;
    };
    job.known.agent = Some(identity.agent().to_owned());
    if let Err(refusal) = job.ask_for_content().await {
        return job.refuse(None, &refusal).await;
    }
    let shared = Arc::clone(job.shared);
    let content = shared.unless_cut(content(job)).await;
    let content = match content.unwrap_or(Err(Refusal::ShuttingDown)) {
        Ok(content) => content,
        Err(refusal) => return job.refuse(None, &refusal).await,
    };
    let Some(request) = request(&job.head, content) else {
        return job.refuse(None, &Refusal::Target(crate::target::Error::Form)).await;
    };
    let call = shared.control.call(identity.agent(), request);
    let response = if matches!(job.head.method.as_str(), "GET" | "HEAD") {
        // One that waits does nothing else.
        let Some(response) = shared.unless_cut(call).await else {
            return job.refuse(None, &Refusal::ShuttingDown).await;
        };
        response
    } else {
        // What it began may be sent by now; that hears of the end by itself, and says so (D-1).
        call.await
    };
    let bodiless = job.head.method == "HEAD";
    let bytes = deliver::own(&response, job.head.version, job.keep_alive, bodiless);
    let sent = job.out.send(&bytes).await.is_ok();
    let fetched = response.extensions().get::<Fetched>().copied().filter(|_| sent);
    let journal = || job.shared.journal.clone();
    let pending = fetched.map(|fetched| Pending::fetched(fetched, journal(), job.out.sent));
    Finished { keep: job.keep_alive && sent, pending }
}

async fn content(job: &mut Job<'_>) -> Result<Bytes, Refusal> {
    let mut content = BytesMut::new();
    while let Some(piece) = job.incoming.next().await.map_err(Refusal::Content)? {
        content.extend_from_slice(&piece);
        if job.incoming.length() > MAX_CONTENT {
            return Err(Refusal::PayloadLimit { limit_bytes: MAX_CONTENT });
        }
    }
    Ok(content.freeze())
}

fn request(head: &Request, content: Bytes) -> Option<http::Request<Bytes>> {
    let target = Target::absolute(&head.target).ok()?;
    let mut request =
        http::Request::builder().method(head.method.as_str()).uri(target.path_and_query);
    for (name, value) in head.fields.iter() {
        if !crate::outgoing::stays(name, &head.fields) {
            request = request.header(name, value);
        }
    }
    request.body(content).ok()
}
