//! Answers a repeat from the record (contract K-10, K-11): reads, never a second dispatch.

use crate::downstream::{Downstream, End};
use crate::gateway::Shared;
use bytes::Bytes;
use journal::contract::{
    Body, Completion, Confirmation, Delivered, Outcome, RepeatAnswered, Source,
};
use journal::{Invocation, StoredResult, Stream};

/// The newest state of `earlier`; waits for its end within a bound while it is under way.
pub(crate) async fn settled(
    shared: &Shared,
    downstream: &mut Downstream,
    earlier: Invocation,
) -> Invocation {
    let id = earlier.id();
    let mut invocation = earlier;
    if !invocation.is_settled() {
        tokio::select! {
            () = shared.journal.changed(id) => {}
            () = tokio::time::sleep(shared.options.repeat_wait) => {}
            () = downstream.gone() => {}
        }
        match shared.journal.invocation(id) {
            Ok(Some(now)) => invocation = now,
            Ok(None) => {}
            Err(error) => tracing::error!(%id, %error, "an invocation can't be read"),
        }
    }
    invocation
}

/// Answers with what is on record. `by_id` tells whether the repeat named the invocation itself.
pub(crate) async fn answer(
    shared: &Shared,
    mut downstream: Downstream,
    invocation: Invocation,
    by_id: bool,
) {
    let id = invocation.id();
    record(shared, &invocation, Body::RepeatAnswered(RepeatAnswered { by_id }));
    let evidence = invocation.evidence();
    let end = match (&evidence.ssh_end, evidence.completion) {
        (Some(end), _) => Some(End::from_record(end)),
        (None, Some(Completion::CloseDelimited)) => Some(End::Closed),
        (None, _) => None,
    };
    let stored = match invocation.verdict().outcome() {
        Outcome::Committed => shared.journal.result(id),
        Outcome::NotAttempted | Outcome::Rejected | Outcome::Unknown => {
            return downstream.fail(&invocation.envelope()).await;
        }
    };
    if invocation.accepted().action != "exec" {
        // What is kept of a shell or an sftp session is told to people, not to the client's program.
        let text = "affiant: a session is not answered from the record; `inv result` shows it.\n";
        return downstream.fail_with(text, &invocation.envelope()).await;
    }
    let is_empty = invocation.evidence().response_bytes == Some(0);
    let (mut stored, end) = match (stored, end) {
        (Ok(stored), Some(end)) => (Some(stored), end),
        // A command that printed nothing has nothing stored, and is whole all the same.
        (Err(_), Some(end)) if is_empty => (None, end),
        (Ok(_), None) | (Err(_), _) => {
            // An exit status without its output would say less than happened.
            let note = "affiant: the result was committed, but its output is not kept.\n";
            return downstream.fail_with(note, &invocation.envelope()).await;
        }
    };
    if !by_id {
        let note = format!("affiant: answered from the record of {id}; nothing was sent again.\n");
        downstream.send(Some(1), Bytes::from(note)).await;
    }
    if let Some(stored) = &mut stored
        && send(stored, &mut downstream).await.is_err()
    {
        tracing::error!(%id, "a stored result can't be read");
        return downstream.fail(&invocation.envelope()).await;
    }
    let delivery = shared.deliveries.begin(id);
    if downstream.end(&end).await.is_some() {
        let confirmation = Confirmation::Fetched;
        record(shared, &invocation, Body::ResultDelivered(Delivered { confirmation }));
    }
    drop(delivery);
    downstream.close().await;
}

async fn send(
    stored: &mut StoredResult,
    downstream: &mut Downstream,
) -> Result<(), journal::result::Error> {
    while let Some((stream, bytes)) = stored.next_chunk()? {
        let extended = match stream {
            Stream::Stdout | Stream::Content | Stream::Head | Stream::Trailers => None,
            Stream::Stderr => Some(1),
        };
        downstream.send(extended, Bytes::from(bytes)).await;
        if downstream.is_gone() {
            break;
        }
    }
    Ok(())
}

fn record(shared: &Shared, invocation: &Invocation, body: Body) {
    match shared.journal.record(invocation.id(), Source::TransportObserved, body) {
        Ok(ticket) => drop(ticket),
        Err(error) => tracing::debug!(id = %invocation.id(), %error, "a repeat is not on record"),
    }
}
