//! Jobs: what a service accepted and does later (contract M-7).
//!
//! A 202, or a 200 or 201 with a job's id, is a complete result of the submission. The job that it names is put on record as an
//! invocation of its own before the submission is settled, so that no crash loses it: in doubt until
//! a question about its status decides it ([`crate::reconcile`]). No request is sent in here.

use crate::engine::Prepared;
use crate::head::Response;
use crate::proxy::Shared;
use crate::target::Target;
use bytes::Bytes;
use journal::contract::{
    Accepted, Code, Dispatch, Ended, Gateway, InvocationId, JOB, PeerIdentity, Preflight, Retry,
    Verdict,
};
use journal::{Admission, Call, Guard, append};

/// Puts the job of an acceptance on record, if the route follows jobs. `held` is the content, where it was
/// not passed on already.
pub(crate) async fn track(
    shared: &Shared,
    submission: &mut Call,
    prepared: &Prepared,
    next_hop: &str,
    head: &Response,
    held: &[Bytes],
) {
    let Some(rule) = prepared.grant.job.as_ref().filter(|rule| rule.accepts(head.status)) else {
        return;
    };
    let url = rule.status_url(|name| head.fields.first(name), &held.concat());
    let Some(target) = url.and_then(|url| status_target(&prepared.target, &url)) else {
        let why = "the response names no status resource at the same origin";
        return submission.note("job_not_tracked", why);
    };
    match put_on_record(shared, submission, prepared, next_hop, &target).await {
        Ok(job) => {
            if let Err(error) = submission.job_tracked(job) {
                tracing::warn!(%error, id = %submission.id(), "a job could not be linked");
            }
        }
        Err(error) => {
            tracing::warn!(%error, id = %submission.id(), "a job could not be recorded");
            let why = match error {
                append::Error::Locked => "the vault is locked, so its address can't be stored",
                append::Error::Unavailable(_)
                | append::Error::Indeterminate
                | append::Error::Illegal(_)
                | append::Error::Closed
                | append::Error::NotFound
                | append::Error::TooLarge { .. } => "the journal took no record of it",
            };
            submission.note("job_not_tracked", why);
        }
    }
}

/// The status resource, if it is at the origin of the submission: a credential never crosses origins
/// because a response says so (contract C-7).
fn status_target(submission: &Target, url: &str) -> Option<Target> {
    let (scheme, authority) = (submission.scheme, &submission.authority);
    let absolute = if url.starts_with('/') && !url.starts_with("//") {
        format!("{scheme}://{authority}{url}")
    } else {
        url.to_owned()
    };
    let target = Target::absolute(&absolute).ok()?;
    (target.scheme == scheme && target.authority == *authority).then_some(target)
}

async fn put_on_record(
    shared: &Shared,
    submission: &Call,
    prepared: &Prepared,
    next_hop: &str,
    target: &Target,
) -> Result<InvocationId, append::Error> {
    let known = submission.invocation();
    let accepted = Accepted {
        gateway: Gateway::Http,
        agent: known.accepted().agent.clone(),
        action: JOB.to_owned(),
        target: target.recorded(),
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: Some(submission.id()),
    };
    let id = shared.journal.new_id();
    let mut call = match shared.journal.admit(id, accepted, Guard::default())? {
        Admission::New(call) => call,
        Admission::SameRequest(_)
        | Admission::Held(_)
        | Admission::Spent(_)
        | Admission::Mismatch
        | Admission::InDoubt(_)
        | Admission::Settled(_) => return Err(append::Error::NotFound),
    };
    let bound = known.preflight().ok_or(append::Error::NotFound)?.clone();
    let credential = bound.credential.clone();
    call.preflight(Preflight { idempotent: false, idempotency: None, ..bound })?;
    call.authorize(credential)?;
    // The whole address can be as good as a password: it is stored as requests are.
    let head = format!(
        "GET {}://{}{} HTTP/1.1\r\n\r\n",
        target.scheme, target.authority, target.path_and_query
    );
    call.store_request(head.as_bytes(), &[], 1)?;
    let evidence = known.evidence();
    let dispatch = Dispatch {
        attempt: 1,
        connection: evidence.connection.unwrap_or_default(),
        reused: evidence.connection_reused.unwrap_or(true),
        address: next_hop.to_owned(),
        peer: evidence.peer.unwrap_or(PeerIdentity::Unverified),
        fingerprint: prepared.fingerprint,
    };
    // It was sent with the submission: nothing is released by this proof.
    drop(call.dispatch(dispatch).await?);
    let ended = Ended {
        verdict: Verdict::unknown(Retry::Reconcile, Code::InFlight),
        message: "The job is under way at the service; its status resource decides.".to_owned(),
        field: None,
        not_before_ms: None,
        observation: None,
    };
    if let Err(error) = call.end(ended).await {
        // It is on record as dispatched, and in doubt whatever ends it: recovery, if nobody else.
        tracing::warn!(%error, %id, "the state of a job was not recorded");
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-7, M-7: only what is at the same origin is followed.
    #[test]
    fn c_7_a_status_resource_elsewhere_is_not_followed() {
        let submission = Target::absolute("https://api.example/v1/jobs").expect("target");
        let path = |url| status_target(&submission, url).map(|target| target.path_and_query);
        assert_eq!(path("/v1/jobs/7?t=1").as_deref(), Some("/v1/jobs/7?t=1"));
        assert_eq!(path("https://API.example:443/x").as_deref(), Some("/x"));
        for elsewhere in [
            "https://other.example/x",
            "http://api.example/x",
            "https://api.example:8443/x",
            "//other.example/x",
            "v1/jobs/7",
            "",
        ] {
            assert_eq!(path(elsewhere), None, "{elsewhere}");
        }
    }
}
