//! Stored trailers (contract R-4): beside the content, in neither its length nor its digest.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::*;
use journal::Stream;
use journal::contract::{Code, ResponseStarted, Retry, Verdict};
use journal::verify::{Against, verify_against};

/// R-4: trailers of any length come back, whatever part of the content is read, and a result without
/// any has none; the log verifies.
#[tokio::test]
async fn r_4_trailers_are_beside_the_content() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let body: Vec<u8> = (0..70_000_u32).map(|n| (n / 7) as u8).collect();
    let long = format!(r#"[["x-long","{}"]]"#, "1".repeat(100_000));
    let mut ids = Vec::new();
    for trailers in [Some(r#"[["x-sum","1"]]"#), Some(long.as_str()), None] {
        let mut call = dispatched(&journal, "coder", "a").await;
        let started = ResponseStarted { status: Some(200), remote_request_id: None };
        call.response_started(started).unwrap();
        call.store(Stream::Head, br#"{"status":200,"headers":[]}"#).await.unwrap();
        call.store(Stream::Content, &body).await.unwrap();
        if let Some(trailers) = trailers {
            call.store(Stream::Trailers, trailers.as_bytes()).await.unwrap();
        }
        let ok = Verdict::committed(Retry::Never, Code::Ok);
        assert_eq!(call.commit(complete(&body), ok, None).await.unwrap().verdict(), ok);
        ids.push((call.id(), trailers));
    }
    journal.close().await;
    let (journal, _) = open(home.path());
    for (id, trailers) in ids {
        let mut stored = journal.result(id).unwrap();
        assert_eq!(stored.trailers(), trailers.map(str::as_bytes));
        assert_eq!(stored.length_bytes(), 70_000);
        assert!(stored.read_to_end().unwrap() == body);
        let mut stored = journal.result(id).unwrap();
        stored.skip(69_999).unwrap();
        assert_eq!(stored.read_to_end().unwrap(), body[69_999..]);
        assert_eq!(stored.trailers(), trailers.map(str::as_bytes));
    }
    journal.close().await;
    let against = Against { key: Some(key()), checkpoint: None };
    assert_eq!(verify_against(home.path(), against).unwrap().results, 3);
}
