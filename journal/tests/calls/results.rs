//! Results: stored, read and not kept.

use super::*;

/// R-4, R-5: range, streams, and every reason why there is no result.
#[tokio::test]
async fn r_4_results_are_read_by_chunk_and_range() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    let id = call.id();
    let none = |found: Result<_, result::Error>| found.map(drop).unwrap_err().to_string();
    assert_eq!(none(journal.result(id)), result::Error::Incomplete.to_string());
    assert_eq!(none(journal.result(journal.new_id())), result::Error::NotFound.to_string());
    let body: Vec<u8> = (0..300_000_u32).map(|n| (n / 7) as u8).collect();
    assert_eq!(respond(&mut call, 200, &body).await.id(), id);
    let mut found = journal.result(id).unwrap();
    assert_eq!(found.head(), Some(&br#"{"status":200,"headers":[]}"#[..]));
    assert_eq!((found.length_bytes(), found.reference().chunks), (300_000, 6));
    assert_eq!(found.next_chunk().unwrap().unwrap().0, Stream::Content);
    for offset in [0_usize, 1, 65_535, 65_536, 65_537, 200_000, 299_999, 300_000, 400_000] {
        let mut found = journal.result(id).unwrap();
        found.skip(offset as u64).unwrap();
        assert_eq!(found.read_to_end().unwrap(), body[offset.min(body.len())..], "{offset}");
    }
    journal.set_result_key(None);
    assert_eq!(none(journal.result(id)), result::Error::Locked.to_string());
    journal.set_result_key(Some(ResultKey::new([8; 32])));
    assert_eq!(none(journal.result(id)), result::Error::Damaged.to_string());
    journal.set_result_key(Some(key()));
    assert_eq!(content(&journal, id), body);
    journal.close().await;
}

/// S-1, S-8: both output streams of SSH, in the order of arrival.
#[tokio::test]
async fn s_1_streams_keep_their_order() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    call.response_started(journal::contract::ResponseStarted {
        status: None,
        remote_request_id: None,
    })
    .unwrap();
    for (stream, bytes) in [
        (Stream::Stdout, &b"one "[..]),
        (Stream::Stdout, b"two "),
        (Stream::Stderr, b"oops "),
        (Stream::Stdout, b"three"),
    ] {
        call.store(stream, bytes).await.unwrap();
    }
    let all = b"one two oops three";
    let ok = Verdict::committed(Retry::Never, Code::Ok);
    assert_eq!(call.commit(complete(all), ok, None).await.unwrap().verdict(), ok);
    let mut found = journal.result(call.id()).unwrap();
    assert_eq!(found.head(), None);
    let mut pieces = Vec::new();
    while let Some((stream, bytes)) = found.next_chunk().unwrap() {
        pieces.push((stream, String::from_utf8(bytes).unwrap()));
    }
    let piece = |stream, text: &str| (stream, text.to_owned());
    assert_eq!(
        pieces,
        [
            piece(Stream::Stdout, "one two "),
            piece(Stream::Stderr, "oops "),
            piece(Stream::Stdout, "three")
        ]
    );
    drop(call);
    journal.close().await;
}

/// R-5: results that are not kept, expired, or stored while the vault is locked.
#[tokio::test]
async fn r_5_a_result_that_is_not_kept_says_so() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let none = |id| journal.result(id).map(drop).unwrap_err().to_string();
    let ok = Verdict::committed(Retry::Never, Code::Ok);
    let started =
        || journal::contract::ResponseStarted { status: Some(200), remote_request_id: None };

    let mut expired = admit(&journal, "coder", "1");
    expired.preflight(Preflight { keep_seconds: 0, ..preflight() }).unwrap();
    expired.authorize(None).unwrap();
    assert_eq!(expired.dispatch(dispatch()).await.unwrap().id(), expired.id());
    assert_eq!(respond(&mut expired, 200, b"x").await.verdict(), ok);
    assert_eq!(none(expired.id()), result::Error::Expired.to_string());

    let mut bare = admit(&journal, "coder", "2");
    bare.preflight(Preflight { keep: KeepResult::None, ..preflight() }).unwrap();
    bare.authorize(None).unwrap();
    assert_eq!(bare.dispatch(dispatch()).await.unwrap().id(), bare.id());
    bare.response_started(started()).unwrap();
    assert_eq!(bare.commit(complete(b"x"), ok, None).await.unwrap().verdict(), ok);
    assert_eq!(none(bare.id()), result::Error::NotKept.to_string());

    let mut discarded = dispatched(&journal, "coder", "3").await;
    discarded.response_started(started()).unwrap();
    discarded.store(Stream::Content, b"x").await.unwrap();
    discarded.discard_result();
    discarded.store(Stream::Content, b"y").await.unwrap();
    assert_eq!(discarded.commit(complete(b"xy"), ok, None).await.unwrap().verdict(), ok);
    assert_eq!(none(discarded.id()), result::Error::NotKept.to_string());

    journal.set_result_key(None);
    let mut locked = dispatched(&journal, "coder", "4").await;
    locked.response_started(started()).unwrap();
    let refused = locked.store(Stream::Content, b"x").await;
    assert_eq!(refused, Err(append::Error::Locked));
    assert_eq!(locked.commit(complete(b"x"), ok, None).await.unwrap().verdict(), ok);
    journal.set_result_key(Some(key()));
    assert_eq!(none(locked.id()), result::Error::NotKept.to_string());

    let mut refused = admit(&journal, "coder", "5");
    let verdict = Verdict::refused(Retry::Never, Code::TargetNotAllowed);
    assert_eq!(refused.end(ended(verdict)).await.unwrap().verdict(), verdict);
    assert_eq!(none(refused.id()), result::Error::NotKept.to_string());
    drop((expired, bare, discarded, locked, refused));
    journal.close().await;
}

/// E-2, I-2: no secret shows in `Debug`, and stored content is not readable in the files.
#[tokio::test]
async fn i_2_results_are_encrypted_at_rest() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let mut call = dispatched(&journal, "coder", "a").await;
    let secret = b"a very private answer";
    assert_eq!(respond(&mut call, 200, secret).await.id(), call.id());
    drop(call);
    journal.close().await;
    for path in ["00000001.seg", "index/data.mdb"] {
        let bytes = std::fs::read(home.path().join(path)).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{path}");
    }
}
