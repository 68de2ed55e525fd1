//! Tests of the index: what is found, what it takes on the disk, and the layouts of before.

use super::*;
use crate::contract::{
    Accepted, Body, Code, Completion, Confirmation, Delivered, Digest, Event, Fact, Preflight,
    RequestSent, ResponseComplete, ResponseStarted, ResultCommitted, ResultRef, Retry,
    SetupAttempt, SetupStage, Source, Verdict,
};
use crate::tests::common::sample;
use crate::{Journal, Options, ResultKey};
use heed::types::Bytes;
use heed::{CommitOrAbort, EnvOpenOptions};
use proptest::prelude::*;

/// Records of a call, its chunk of a result among them.
const RECORDS: u64 = 11;
/// When the first call begins.
const START_MS: u64 = 1_764_476_760_000;

fn index(directory: &Path) -> Index {
    Index::open(directory, false).unwrap()
}

fn mark(sequence: u64) -> Watermark {
    Watermark { store: [7; 16], sequence, chain: [9; 32] }
}

/// Ids of one millisecond come in any order: the low bits are random.
fn id(n: u64) -> InvocationId {
    InvocationId::from_parts(START_MS + n / 8, u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Whether a budget and a bound of its route count it.
const fn is_bounded(n: u64) -> bool {
    n < 2
}

fn accepted(n: u64) -> Body {
    let accepted = sample::accepted(Digest::of(&n.to_le_bytes()));
    Body::ActionAccepted(Fact::from(Accepted { counted: is_bounded(n), ..accepted }))
}

fn preflight(n: u64) -> Body {
    let keep_total_bytes = is_bounded(n).then_some(3_000);
    Body::PreflightValidated(Fact::from(Preflight { keep_total_bytes, ..sample::preflight() }))
}

fn dispatch(n: u64) -> Body {
    Body::DispatchStarted(Fact::from(sample::dispatch(n, Digest::of(&n.to_le_bytes()))))
}

/// What the proxy records of a call, up to the hand-over.
fn course(n: u64) -> Vec<Body> {
    let (stage, address) = (SetupStage::TlsHandshake, Some("192.0.2.7:443".to_owned()));
    let digest = Digest::of(&(n + 1).to_le_bytes());
    let result = Some(ResultRef { chunks: 1, length_bytes: 2_000, digest });
    let verdict = Verdict::committed(Retry::Never, Code::Ok);
    vec![
        accepted(n),
        preflight(n),
        Body::CredentialAuthorized(Some(sample::credential())),
        Body::SetupAttempted(SetupAttempt { n: 1, stage, code: "ok".to_owned(), address }),
        dispatch(n),
        Body::RequestSent(RequestSent { length_bytes: 300, digest: Digest::of(b"sent") }),
        Body::RemoteResponseStarted(ResponseStarted { status: Some(200), remote_request_id: None }),
        Body::RemoteResponseComplete(ResponseComplete {
            completion: Completion::ContentLength,
            length_bytes: 2_000,
            digest,
            ssh_end: None,
            redacted: false,
        }),
        Body::ResultCommitted(Box::new(ResultCommitted { result, ..ResultCommitted::of(verdict) })),
        Body::ResultDelivered(Delivered { confirmation: Confirmation::Protocol }),
    ]
}

fn first(n: u64) -> Sequence {
    Sequence(n * RECORDS + 1)
}

/// Where a call's records lie, in three frames as under load.
fn places(n: u64) -> Vec<(Sequence, Kind, Position)> {
    let place = |step: u64| {
        let kind = if step == 7 { Kind::Chunk } else { Kind::Event };
        let frame = (n * 3 + step / 4) << 15;
        let at = Position {
            segment: 3 + n / 3_000,
            frame,
            frame_length: 30_000 + n as u32 % 100,
            offset: step as u32 * 900 + n as u32 % 3_000,
            length: 300 + step as u32 * 7,
        };
        (Sequence(first(n).0 + step), kind, at)
    };
    (0..RECORDS).map(place).collect()
}

/// A call after so many of its events.
fn update(n: u64, events: usize) -> Update {
    let mut invocation: Option<Invocation> = None;
    for (sequence, body) in (first(n).0..).map(Sequence).zip(course(n)).take(events) {
        let at_ms = START_MS + n / 8;
        let (invocation_id, source) = (id(n), Source::TransportObserved);
        let event = Event { invocation: invocation_id, at_ms, source, body };
        match &mut invocation {
            None => invocation = Some(Invocation::start(sequence, &event).unwrap()),
            Some(invocation) => invocation.apply(sequence, &event).unwrap(),
        }
    }
    Update { invocation: Arc::new(invocation.unwrap()), records: places(n) }
}

fn whole(n: u64) -> Update {
    update(n, course(n).len())
}

/// Pages of a call under load. What grows with every call grows at the end of its table, so pages
/// are full, in the order in which calls end as well.
#[test]
fn a_call_takes_less_than_700_bytes() {
    const BATCH: u64 = 1_000;
    const BATCHES: u64 = 20;
    /// So many are under way when a batch is written.
    const UNDER_WAY: u64 = 32;
    let home = tempfile::tempdir().unwrap();
    let index = index(home.path());
    let pages = || index.env.info().last_page_number as u64;
    let mut before = 0;
    for batch in 0..BATCHES {
        let begun = batch * BATCH;
        let mut updates: Vec<Update> = (begun..begun + BATCH)
            .map(|n| if n + UNDER_WAY < begun + BATCH { whole(n) } else { update(n, 5) })
            .collect();
        updates.extend((begun.saturating_sub(UNDER_WAY)..begun).map(whole));
        updates.reverse();
        index.apply(&updates, &mark(first(begun + BATCH).0)).unwrap();
        if batch == 0 {
            before = pages();
        }
    }
    let bytes = (pages() - before) * 4096 / (BATCH * (BATCHES - 1));
    let reader = index.env.read_txn().unwrap();
    let invocations = index.tables.invocations.stat(&reader).unwrap();
    let stored = stored::encode(&whole(BATCH).invocation, &mut Vec::new()).unwrap().len();
    println!("{bytes} bytes a call; {stored} of the invocation, {invocations:?}");
    assert!(bytes < 700, "{bytes} bytes a call");
    assert_eq!(invocations.overflow_pages, 0);
    drop(reader);
    index.close();
}

/// J-1: what was put is found by all that it can be found by, and nothing of it is left when it
/// leaves, but what it counts for.
#[test]
fn j_1_an_invocation_is_found_by_all_its_keys_and_leaves_whole() {
    let home = tempfile::tempdir().unwrap();
    let index = index(home.path());
    let calls = [whole(0), update(1, 9), update(2, 5), update(3, 1)];
    index.apply(&calls, &mark(50)).unwrap();
    assert_eq!(index.watermark().unwrap(), Some(mark(50)));
    for (call, n) in calls.iter().zip(0..) {
        assert_eq!(index.invocation(id(n)).unwrap().as_ref(), Some(&*call.invocation));
        assert_eq!(index.records(id(n)).unwrap(), places(n));
    }
    assert_eq!(index.invocation(id(4)).unwrap(), None);
    assert_eq!(index.records(id(4)).unwrap(), []);
    assert_eq!(index.open_invocations().unwrap(), [id(1), id(2), id(3)]);
    assert_eq!(index.begun_by(first(1)).unwrap(), [id(0), id(1)]);
    let mut newest = Vec::new();
    index
        .newest(first(3), &mut |sequence, invocation| {
            newest.push((sequence, invocation.id()));
            newest.len() < 2
        })
        .unwrap();
    assert_eq!(newest, [(first(2), id(2)), (first(1), id(1))]);
    let by = |n: u64| {
        let hash = guard::request_hash(calls[n as usize].invocation.accepted()).unwrap();
        let found = index.guards(Lookup::Request(hash), 9).unwrap();
        found.iter().map(Invocation::id).collect::<Vec<_>>()
    };
    assert_eq!((by(0), by(1), by(2)), (vec![], vec![id(1)], vec![id(2)]));
    let over = START_MS + sample::preflight().keep_seconds * 1_000;
    assert_eq!(index.expired(over - 1).unwrap(), []);
    let mut expired = index.expired(over).unwrap();
    expired.sort_by_key(|(_, id)| std::cmp::Reverse(*id));
    let mut both = [(over, id(0)), (over, id(1))];
    both.sort_by_key(|(_, id)| std::cmp::Reverse(*id));
    assert_eq!(expired, both);
    let surplus = Surplus { id: id(0), total_bytes: 4_000, limit_bytes: 3_000 };
    assert_eq!(index.surplus(START_MS).unwrap(), [surplus]);
    assert_eq!(index.surplus(over).unwrap(), []);
    let counted = |n: u64| ("coder".to_owned(), START_MS + n / 8, 2_300);
    assert_eq!(index.counted(START_MS).unwrap(), [counted(0), counted(1)]);
    assert_eq!(index.counted(START_MS + 1).unwrap(), []);
    // Written again, it stands there once.
    index.apply(&calls, &mark(50)).unwrap();
    assert_eq!(index.records(id(0)).unwrap(), places(0));
    let left: Vec<Invocation> =
        calls.iter().map(|call| Invocation::clone(&call.invocation)).collect();
    index.remove(&left).unwrap();
    let reader = index.env.read_txn().unwrap();
    for table in index.tables.all() {
        let stays = [&index.tables.watermark, &index.tables.counted];
        let entries = if std::ptr::eq(table, stays[0]) {
            1
        } else if std::ptr::eq(table, stays[1]) {
            2
        } else {
            0
        };
        assert_eq!(table.len(&reader).unwrap(), entries);
    }
    drop(reader);
    index.close();
}

/// J-7: records that a replay wrote again, in other groups, are there once.
#[test]
fn j_7_records_written_twice_are_read_once() {
    let home = tempfile::tempdir().unwrap();
    let index = index(home.path());
    let split = |from: usize, to: usize| Update {
        records: places(0).get(from..to).unwrap().to_vec(),
        ..whole(0)
    };
    for (from, to) in [(0, 6), (6, 11), (0, 3), (3, 11), (4, 8)] {
        index.apply(&[split(from, to)], &mark(11)).unwrap();
    }
    assert_eq!(index.records(id(0)).unwrap(), places(0));
    index.close();
}

/// J-7: what does not decode is an error, never another invocation.
#[test]
fn j_7_an_entry_that_does_not_decode_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let index = index(home.path());
    index.apply(&[whole(0)], &mark(11)).unwrap();
    let mut buffer = Vec::new();
    let good = stored::encode(&whole(0).invocation, &mut buffer).unwrap();
    let json = serde_json::to_vec(&*whole(0).invocation).unwrap();
    let of_json = lz4_flex::block::compress_prepend_size(&json);
    let long = [&u32::MAX.to_le_bytes(), &good[4..]].concat();
    let garbled: Vec<u8> = good.iter().map(|byte| byte ^ 0xff).collect();
    let cut = &good[..good.len() - 1];
    type Expected = fn(&Error) -> bool;
    let malformed: Expected = |error| matches!(error, Error::Malformed);
    let compressed: Expected = |error| matches!(error, Error::Decompress(_));
    let decoded: Expected = |error| matches!(error, Error::Decode(_));
    for (bad, expected) in [
        (&b""[..], malformed),
        (&good[..3], malformed),
        (&long, malformed),
        (&garbled, malformed),
        (cut, compressed),
        (&of_json, decoded),
    ] {
        let mut writer = index.env.write_txn().unwrap();
        index.tables.invocations.put(&mut writer, &order(first(0)), bad).unwrap();
        writer.commit().unwrap();
        let error = index.invocation(id(0)).unwrap_err();
        assert!(expected(&error), "{error:?}");
        let error = index.newest(first(1), &mut |_, _| panic!("shown")).unwrap_err();
        assert!(expected(&error), "{error:?}");
        let error = index.begun_by(first(1)).unwrap_err();
        assert!(expected(&error), "{error:?}");
    }
    let mut writer = index.env.write_txn().unwrap();
    let key: [u8; 16] = pair(order(first(0)), order(first(0)));
    index.tables.records.put(&mut writer, &key, &[Kind::Event.code(), 0]).unwrap();
    writer.commit().unwrap();
    assert!(matches!(index.records(id(0)), Err(Error::Malformed)));
    index.close();
}

/// An entry is read with the dictionary that it was written with: another one is another schema.
#[test]
fn the_dictionary_is_that_of_the_schema() {
    assert_eq!((tables::SCHEMA, crc32c::crc32c(stored::DICTIONARY)), (6, 0xd87d_9340));
    let mut buffer = Vec::new();
    let stored = stored::encode(&whole(0).invocation, &mut buffer).unwrap();
    assert!(stored.len() * 2 < buffer.len(), "{} of {}", stored.len(), buffer.len());
}

/// The index of another schema has no watermark, so that it is emptied and built again.
#[test]
fn another_schema_is_none_that_is_known() {
    let home = tempfile::tempdir().unwrap();
    let index = index(home.path());
    index.apply(&[whole(0)], &mark(11)).unwrap();
    assert_eq!(Index::peek(&home.path().join("none")), None);
    let mut writer = index.env.write_txn().unwrap();
    let table = &index.tables.watermark;
    let (_, stored) = table.first(&writer).unwrap().unwrap();
    let stored = stored.to_vec();
    table.clear(&mut writer).unwrap();
    table.put(&mut writer, &7_u32.to_be_bytes(), &stored).unwrap();
    writer.commit().unwrap();
    assert_eq!(index.watermark().unwrap(), None);
    index.clear().unwrap();
    let reader = index.env.read_txn().unwrap();
    assert!(index.tables.all().iter().all(|table| table.is_empty(&reader).unwrap()));
    drop(reader);
    index.close();
}

/// An index as schema 5 had it: one table without a name, tags before the keys, values as JSON.
#[expect(unsafe_code, reason = "LMDB maps a file, here one of this test")]
fn make_former(path: &Path) {
    std::fs::create_dir(path).unwrap();
    let mut options = EnvOpenOptions::new();
    // SAFETY: nothing else uses this directory.
    let env = unsafe { options.map_size(1 << 24).max_dbs(0).open(path).unwrap() };
    let created = env.create_databases_and_commit(env.write_txn().unwrap(), |opener, writer| {
        let table = opener.create_database::<Bytes, Bytes>(writer, None)?;
        let mut mark = 5_u32.to_le_bytes().to_vec();
        mark.extend_from_slice(&[7; 56]);
        table.put(writer, b"m", &mark)?;
        let call = whole(0);
        let key = [&b"i"[..], &id(0).to_bytes()].concat();
        table.put(writer, &key, &serde_json::to_vec(&*call.invocation).unwrap())?;
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(()))
    });
    assert!(matches!(created, Ok(CommitOrAbort::Commit(()))));
    env.prepare_for_closing().wait();
}

/// J-7: an index of the layout before is recognised, and built again from the log.
#[tokio::test]
async fn j_7_an_index_of_the_former_layout_is_rebuilt() {
    let home = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options { durable: false, ..Options::new(home.path()) };
        Journal::open(options, Some(ResultKey::new([7; 32]))).unwrap()
    };
    let (journal, _) = open();
    let Body::ActionAccepted(accepted) = accepted(0) else { panic!("another event") };
    let admission = journal.admit(id(0), Accepted::clone(&accepted), crate::Guard::default());
    assert!(matches!(admission, Ok(crate::Admission::New(_))));
    drop(admission);
    journal.close().await;
    let directory = home.path().join("index");
    std::fs::remove_dir_all(&directory).unwrap();
    make_former(&directory);
    assert_eq!(Index::peek(&directory), None);
    assert!(matches!(Index::open(&directory, false), Err(Error::Layout)));
    let (journal, recovery) = open();
    assert!(recovery.rebuilt);
    let found = journal.invocation(id(0)).unwrap().unwrap();
    assert_eq!(found.accepted().fingerprint, accepted.fingerprint);
    journal.close().await;
    let (journal, recovery) = open();
    assert!(!recovery.rebuilt);
    journal.close().await;
}

fn any_position() -> impl Strategy<Value = Position> {
    let parts = (0..3_u64, any::<u64>(), 0..2_u32, any::<u32>(), any::<u32>());
    parts.prop_map(|(segment, frame, frame_length, offset, length)| Position {
        segment,
        // Few frames, so that records share them.
        frame: (frame % 3) << 12,
        frame_length,
        offset,
        length,
    })
}

fn any_record() -> impl Strategy<Value = (Sequence, Kind, Position)> {
    let kind = prop_oneof![
        Just(Kind::Event),
        Just(Kind::Chunk),
        Just(Kind::RecoveryNote),
        Just(Kind::CarriedForward),
    ];
    (any::<u64>().prop_map(Sequence), kind, any_position())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Places come back as they were, in any order, from any sequence on.
    #[test]
    fn places_round_trip(
        lowest in any::<u64>(),
        records in proptest::collection::vec(any_record(), 0..40),
    ) {
        let mut value = Vec::new();
        place::encode(Sequence(lowest), &records, &mut value);
        let mut decoded = Vec::new();
        prop_assert_eq!(place::decode(Sequence(lowest), &value, &mut decoded), Some(()));
        prop_assert_eq!(&decoded, &records);
        // Nor is a part of it another value, unless it ends behind a record.
        for length in 0..value.len() {
            let mut part = Vec::new();
            if place::decode(Sequence(lowest), &value[..length], &mut part).is_some() {
                prop_assert_eq!(&part[..], &records[..part.len()]);
            }
        }
    }

    /// Any bytes are an invocation or an error, and so is any change of a good entry.
    #[test]
    fn any_bytes_are_an_invocation_or_an_error(
        value in proptest::collection::vec(any::<u8>(), 0..300),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        prop_assert!(stored::decode::<Invocation>(&value).is_err());
        let mut changed = stored::encode(&whole(0).invocation, &mut Vec::new()).unwrap();
        for (at, byte) in changes {
            let at = at % changed.len();
            changed[at] = byte;
        }
        if let Ok(invocation) = stored::decode::<Invocation>(&changed) {
            let again = stored::encode(&invocation, &mut Vec::new()).unwrap();
            prop_assert_eq!(stored::decode::<Invocation>(&again).unwrap(), invocation);
        }
    }

    /// Any bytes are places or an error.
    #[test]
    fn any_bytes_are_places_or_an_error(
        lowest in any::<u64>(),
        value in proptest::collection::vec(
            prop_oneof![1..5_u8, Just(0x80_u8), Just(0x81), Just(0xff), any::<u8>()],
            0..80,
        ),
    ) {
        let mut records = Vec::new();
        if place::decode(Sequence(lowest), &value, &mut records).is_some() {
            let mut again = Vec::new();
            place::encode(Sequence(lowest), &records, &mut again);
            let mut same = Vec::new();
            prop_assert_eq!(place::decode(Sequence(lowest), &again, &mut same), Some(()));
            prop_assert_eq!(same, records);
        }
    }
}
