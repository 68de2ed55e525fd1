//! The course of calls on real files: append, read, reopen.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::contract::{Code, Confirmation, Retry, Verdict};
use journal::{Delivery, Filter, State};

/// S-1: a whole call is readable at once, and the same after a restart.
#[tokio::test]
async fn r_1_a_call_reads_the_same_before_and_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (journal, recovery) = open(home.path());
    assert_eq!(recovery.last_sequence.0, 0);
    let mut call = dispatched(&journal, "coder", "a").await;
    let body: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let settled = respond(&mut call, 200, &body).await;
    assert_eq!(settled.verdict(), Verdict::committed(Retry::Never, Code::Ok));
    let id = call.id();
    let seen = journal.invocation(id).unwrap().unwrap();
    assert_eq!(seen.state(), State::Committed(settled.verdict()));
    assert_eq!(content(&journal, id), body);
    call.delivered(Confirmation::Protocol);
    drop(call);
    journal.close().await;

    let (journal, recovery) = open(home.path());
    assert_eq!((recovery.replayed, recovery.rebuilt), (0, false));
    assert!(recovery.unknown.is_empty() && recovery.not_attempted.is_empty());
    let again = journal.invocation(id).unwrap().unwrap();
    assert_eq!(again.delivery(), Delivery::Delivered(Confirmation::Protocol));
    assert_eq!(content(&journal, id), body);
    let names: Vec<_> =
        journal.events(id).unwrap().iter().map(|(_, event)| event.body.name()).collect();
    assert_eq!(
        names,
        [
            "ACTION_ACCEPTED",
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "DISPATCH_STARTED",
            "REQUEST_SENT",
            "REMOTE_RESPONSE_STARTED",
            "REMOTE_RESPONSE_COMPLETE",
            "RESULT_COMMITTED",
            "RESULT_DELIVERED"
        ]
    );
    let page = journal.list(&Filter::default()).unwrap();
    assert_eq!(page.invocations, [again]);
    assert_eq!(page.next, None);
    journal.close().await;
}
