//! The golden files of the format: what was written once must be read for ever.
//!
//! `AFFIANT_GOLDEN=write` writes a file that is missing; an existing one is never overwritten.

use super::format::{
    Attachment, BLOCK, FrameHead, begin_frame, finish_frame, genesis, padded, remove_attachment,
    reseal_frame,
};
use super::walk::walk;
use super::{Draft, Header, Kind};
use crate::contract::{
    Accepted, ApprovalDecided, ApprovalRequested, BatchMembers, Body, Code, Completion,
    Confirmation, CredentialUse, Delivered, DeliveryFailed, Digest, Dispatch, DispatchWithdrawn,
    Ended, Event, Fact, Gateway, Idempotency, InvocationId, JobTracked, KeepResult, LeaseAcquired,
    LeaseReleased, LeaseRenewed, LeaseUsed, Member, MembersJudged, Noted, Observation,
    PeerIdentity, Preflight, RemoteContract, RepeatAnswered, RequestSent, RequestStored,
    ResponseComplete, ResponseStarted, ResultCommitted, ResultExpired, ResultRef, Retry, Ruling,
    Sequence, SetupAttempt, SetupStage, SignalName, Source, SshEnd, Verdict,
};
use crate::projection::Invocation;
use crate::verify::Damage;
use std::path::PathBuf;

fn golden(name: &str, made: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if !path.exists() && std::env::var("AFFIANT_GOLDEN").as_deref() == Ok("write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    std::fs::read(&path).unwrap()
}

fn id() -> InvocationId {
    InvocationId::from_parts(1_764_476_760_000, 0x0123_4567_89ab_cdef)
}

/// One of every event, with every optional field in one of them.
fn bodies() -> Vec<Body> {
    let credential = || CredentialUse { id: "pay".into(), version: 7, mode: "bearer".into() };
    vec![
        Body::ActionAccepted(Fact::from(Accepted {
            gateway: Gateway::Ssh,
            agent: Some("coder".into()),
            action: "exec".into(),
            target: "ssh://deploy@prod-1:22".into(),
            command: Some("sha256:00".into()),
            fingerprint: Some(Digest::of(b"request")),
            caller_id: true,
            counted: false,
            link: Some(InvocationId::from_parts(1, 2)),
        })),
        Body::PreflightValidated(Fact::from(Preflight {
            policy_version: 3,
            would_deny: None,
            route: Some("payments.create".into()),
            credential: Some(credential()),
            idempotent: false,
            idempotency: Some(Idempotency {
                key: "k".into(),
                scope: "payments.create".into(),
                fingerprint: Digest::of(b"request"),
                expires_at_ms: 1_764_563_160_000,
                remote_contract: RemoteContract::Verified,
                added_as: None,
            }),
            keep: KeepResult::Full,
            keep_seconds: 604_800,
            keep_total_bytes: None,
        })),
        Body::CredentialAuthorized(Some(credential())),
        Body::CredentialAuthorized(None),
        Body::SetupAttempted(SetupAttempt {
            n: 1,
            stage: SetupStage::TcpConnect,
            code: "ECONNREFUSED".into(),
            address: Some("10.0.0.4:443".into()),
        }),
        Body::DispatchStarted(Fact::from(Dispatch {
            attempt: 1,
            connection: 9,
            reused: true,
            address: "10.0.0.4:443".into(),
            peer: PeerIdentity::Tls {
                name: "api.pay.example".into(),
                leaf: Digest::of(b"leaf"),
                resumed: true,
            },
            fingerprint: Digest::of(b"request"),
        })),
    ]
}

fn later_bodies() -> Vec<Body> {
    vec![
        Body::RequestSent(RequestSent { length_bytes: 2, digest: Digest::of(b"{}") }),
        Body::RemoteResponseStarted(ResponseStarted {
            status: Some(201),
            remote_request_id: Some("req_1".into()),
        }),
        Body::RemoteResponseComplete(ResponseComplete {
            completion: Completion::ExitSignal,
            length_bytes: 5,
            digest: Digest::of(b"hello"),
            ssh_end: Some(SshEnd::ExitSignal(SignalName::of("TERM"))),
            redacted: true,
        }),
        Body::ResultCommitted(Box::new(ResultCommitted {
            verdict: Verdict::committed(Retry::Never, Code::Ok),
            result: Some(ResultRef { chunks: 2, length_bytes: 5, digest: Digest::of(b"hello") }),
            not_before_ms: Some(1_764_476_761_000),
            observed_by: None,
            note: None,
        })),
        Body::InvocationEnded(Box::new(Ended {
            verdict: Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown),
            message: "It closed.".into(),
            field: Some("header.host".into()),
            not_before_ms: Some(1_764_476_761_000),
            observation: Some(Observation {
                length_bytes: 3,
                cause: "ECONNRESET".into(),
                recording: None,
            }),
        })),
        Body::ResultDelivered(Delivered { confirmation: Confirmation::Protocol }),
        Body::DeliveryFailed(DeliveryFailed { length_bytes: 4 }),
        Body::RepeatAnswered(RepeatAnswered { by_id: true }),
        Body::Noted(Noted { name: "n".into(), detail: "d".into() }),
    ]
}

fn events() -> Vec<Event> {
    let sources = Source::ALL.iter().copied().cycle();
    let stamp = |(body, source)| Event { invocation: id(), at_ms: 1_764_476_760_123, source, body };
    bodies().into_iter().chain(later_bodies()).zip(sources).map(stamp).collect()
}

/// The payloads of events, version 1: one JSON text per line.
#[test]
fn golden_events_of_version_1_are_read_and_written_the_same() {
    let lines: Vec<String> =
        events().iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect();
    let stored = String::from_utf8(golden("events-v1.jsonl", lines.concat().as_bytes())).unwrap();
    let read: Vec<Event> = stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events());
    assert_eq!(lines.concat(), stored);
}

/// The events that leases added to version 1.
#[test]
fn golden_leases_of_version_1_are_read_and_written_the_same() {
    let bodies = vec![
        Body::LeaseAcquired(LeaseAcquired { generation: 1, holder: "w".into(), ttl_ms: 30_000 }),
        Body::LeaseRenewed(LeaseRenewed { generation: 1, ttl_ms: 30_000 }),
        Body::LeaseUsed(LeaseUsed { generation: 1, retry: InvocationId::from_parts(3, 4) }),
        Body::LeaseReleased(LeaseReleased { generation: 1 }),
    ];
    check_events("leases-v1.jsonl", bodies);
}

/// The withdrawal of a dispatch, added to version 1.
#[test]
fn golden_withdrawals_of_version_1_are_read_and_written_the_same() {
    let withdrawn = DispatchWithdrawn {
        dispatch: Sequence(7),
        verdict: Verdict::not_connected(Retry::Backoff, Code::JournalUnavailable),
        message: "Nothing was sent.".into(),
    };
    check_events("withdrawn-v1.jsonl", vec![Body::DispatchWithdrawn(Box::new(withdrawn))]);
}

/// Retention by size of a route's results, added to version 1.
#[test]
fn golden_expiries_of_version_1_are_read_and_written_the_same() {
    let bound = Preflight {
        policy_version: 3,
        would_deny: None,
        route: Some("payments.create".into()),
        credential: None,
        idempotent: true,
        idempotency: None,
        keep: KeepResult::Full,
        keep_seconds: 604_800,
        keep_total_bytes: Some(1 << 30),
    };
    let expired = ResultExpired { total_bytes: 1_073_741_900, limit_bytes: 1 << 30 };
    let bodies = vec![Body::PreflightValidated(bound.into()), Body::ResultExpired(expired)];
    check_events("expired-v1.jsonl", bodies);
}

fn check_events(name: &str, bodies: Vec<Body>) {
    let event =
        |body| Event { invocation: id(), at_ms: 1, source: Source::TransportObserved, body };
    check_lines(name, &bodies.into_iter().map(event).collect::<Vec<_>>());
}

fn check_lines(name: &str, events: &[Event]) {
    let lines: Vec<String> =
        events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect();
    let stored = String::from_utf8(golden(name, lines.concat().as_bytes())).unwrap();
    let read: Vec<Event> = stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events);
    assert_eq!(lines.concat(), stored);
}

/// The events and the field that approvals and budgets added to version 1.
#[test]
fn golden_approvals_of_version_1_are_read_and_written_the_same() {
    let mut bodies = bodies();
    let Some(Body::ActionAccepted(accepted)) = bodies.first_mut() else { panic!("no first") };
    *accepted = Accepted { counted: true, ..(**accepted).clone() }.into();
    bodies.truncate(1);
    let decided = |ruling| Body::ApprovalDecided(ApprovalDecided { by: "alice".into(), ruling });
    bodies.extend([
        Body::ApprovalRequested(Box::new(ApprovalRequested {
            fingerprint: Digest::of(b"request"),
            expires_at_ms: 1_764_480_360_000,
            lasts_ms: 3_600_000,
            shown: Some("c2VhbGVk".into()),
        })),
        decided(Ruling::Approved { until_ms: 1_764_480_960_000 }),
        decided(Ruling::Denied),
    ]);
    let stamp = |body| Event { invocation: id(), at_ms: 1, source: Source::OperatorAttested, body };
    let events: Vec<Event> = bodies.into_iter().map(stamp).collect();
    let lines: Vec<String> =
        events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect();
    let stored =
        String::from_utf8(golden("approvals-v1.jsonl", lines.concat().as_bytes())).unwrap();
    let read: Vec<Event> = stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events);
    assert_eq!(lines.concat(), stored);
}

/// What retries and late evidence added to version 1.
#[test]
fn golden_retries_of_version_1_are_read_and_written_the_same() {
    let request = ResultRef { chunks: 2, length_bytes: 5, digest: Digest::of(b"hello") };
    let late = ResultCommitted {
        observed_by: Some(InvocationId::from_parts(3, 4)),
        note: Some("seen in the ledger".into()),
        ..ResultCommitted::of(Verdict::committed(Retry::Never, Code::Ok))
    };
    let events = [
        (
            Source::TransportObserved,
            Body::RequestStored(RequestStored { request, max_attempts: 3 }),
        ),
        (Source::RemoteQuery, Body::ResultCommitted(Box::new(late))),
    ];
    let event = |(source, body)| Event { invocation: id(), at_ms: 1, source, body };
    check_lines("retries-v1.jsonl", &events.map(event));
}

/// The payloads of re-statements, version 1: invocations as they are after each of their events.
#[test]
fn golden_re_statements_of_version_1_are_read_and_written_the_same() {
    let course = |count: usize| {
        let mut invocation: Option<Invocation> = None;
        let mut sequence = 0;
        for event in events() {
            sequence += 1;
            match &mut invocation {
                None => invocation = Invocation::start(Sequence(sequence), &event).ok(),
                // What can't follow is left out, as the log would.
                Some(invocation) => drop(invocation.apply(Sequence(sequence), &event)),
            }
            if sequence as usize == count {
                break;
            }
        }
        invocation.unwrap()
    };
    let mut stated: Vec<Invocation> = (1..=events().len()).map(course).collect();
    stated.dedup();
    assert!(stated.len() > 6, "{} states", stated.len());
    let lines: Vec<String> =
        stated.iter().map(|state| serde_json::to_string(state).unwrap() + "\n").collect();
    let stored = String::from_utf8(golden("carried-v1.jsonl", lines.concat().as_bytes())).unwrap();
    let read: Vec<Invocation> =
        stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, stated);
    // The order of members may change.
    let value = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    assert!(lines.iter().map(|line| value(line)).eq(stored.lines().map(value)));
}

/// What jobs and batches added to version 1.
#[test]
fn golden_jobs_and_batches_of_version_1_are_read_and_written_the_same() {
    let member =
        |id: &str| Member { id: id.into(), verdict: Verdict::committed(Retry::Never, Code::Ok) };
    let ids = vec!["1".into(), "#1".into()];
    let events: Vec<Event> = [
        Body::BatchMembers(BatchMembers { ids, is_atomic: true }),
        Body::MembersJudged(MembersJudged { members: vec![member("1"), member("#1")] }),
        Body::JobTracked(JobTracked { job: InvocationId::from_parts(3, 5) }),
    ]
    .into_iter()
    .map(|body| Event { invocation: id(), at_ms: 1, source: Source::RemoteResponse, body })
    .collect();
    let lines: Vec<String> =
        events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect();
    let stored = String::from_utf8(golden("jobs-v1.jsonl", lines.concat().as_bytes())).unwrap();
    let read: Vec<Event> = stored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read, events);
    assert_eq!(lines.concat(), stored);
}

fn draft(kind: Kind, payload: &[u8], attachment: Option<&[u8]>) -> Draft {
    Draft {
        kind,
        invocation: if kind == Kind::RecoveryNote { [0; 16] } else { id().to_bytes() },
        at_ms: 1_764_476_760_123,
        payload: payload.to_vec(),
        attachment: attachment.map(|bytes| Attachment::new(bytes.to_vec())),
    }
}

fn segment() -> (Header, Vec<Vec<Draft>>, Vec<u8>) {
    let store = [0xaa; 16];
    let header = Header {
        store,
        segment: 2,
        salt: [0x5a; 16],
        first_sequence: 41,
        chain_in: genesis(&store),
        previous: 1,
        previous_length: 8192,
        previous_last: 40,
        length: 256 << 10,
        created_ms: 1_764_476_760_000,
        discarded: 512,
    };
    let frames = vec![
        vec![draft(Kind::RecoveryNote, br#"{"segment":1}"#, None)],
        vec![
            draft(Kind::Event, br#"{"event":"NOTED"}"#, None),
            draft(Kind::Chunk, &[1; 28], Some(&[0xc1; 40])),
        ],
    ];
    let mut bytes = header.encode();
    let (mut chain, mut sequence) = (header.chain_in, header.first_sequence);
    for (number, drafts) in (1..).zip(&frames) {
        let head = FrameHead {
            number,
            first_sequence: sequence,
            count: drafts.len() as u32,
            chain_in: chain,
            at_ms: 1_764_476_760_456,
        };
        let mut frame = Vec::new();
        begin_frame(&mut frame);
        for draft in drafts {
            chain = draft.encode(sequence, &chain, &mut frame);
            sequence += 1;
        }
        let offset = bytes.len() as u64;
        finish_frame(&mut frame, &header.salt, header.segment, offset, &head);
        bytes.extend_from_slice(&frame);
    }
    (header, frames, bytes)
}

/// Header, frames, records and chain, version 1.
#[test]
fn golden_segment_of_version_1_is_read_and_written_the_same() {
    let (header, frames, made) = segment();
    assert_eq!(made.len(), padded(made.len()));
    assert_eq!(made.len(), 3 * BLOCK);
    let stored = golden("segment-v1.seg", &made);
    assert_eq!(stored, made);
    assert_eq!(Header::decode(&stored), Some(header.clone()));
    let drafts: Vec<Draft> = frames.into_iter().flatten().collect();
    let mut seen = 0;
    let end = walk(&header, &stored, &mut |position, record| {
        let draft = &drafts[seen];
        assert_eq!((record.kind, record.sequence), (draft.kind, 41 + seen as u64));
        assert_eq!(record.payload, draft.payload);
        let attachment = draft.attachment.as_ref().map(|attached| &attached.bytes[..]);
        assert_eq!(record.sound_attachment(), attachment);
        assert_eq!(position.segment, 2);
        seen += 1;
        Ok::<_, Damage>(())
    });
    let end = end.unwrap();
    assert_eq!((seen, end.frames, end.last_sequence, end.torn_bytes), (3, 2, 43, 0));
    let chain = Digest(end.chain).to_string();
    assert_eq!(chain, "sha256:e1c3b797bbe953b3da2f417f8aab5db58d356275b020b2e4d08021a893084387");
}

/// A segment whose attachment was removed, version 1: the attachment is gone, the chain is the same.
#[test]
fn golden_segment_without_its_attachment_of_version_1_is_read_and_written_the_same() {
    let (header, _, mut made) = segment();
    let mut chunk = None;
    let whole = walk(&header, &made, &mut |position, record| {
        chunk = record.attachment.is_some().then_some(position).or(chunk);
        Ok::<_, Damage>(())
    });
    let position = chunk.unwrap();
    let start = position.frame as usize + position.offset as usize;
    remove_attachment(&mut made[start..start + position.length as usize]);
    let frame = position.frame as usize;
    let length = position.frame_length as usize;
    let resealed = &mut made[frame..frame + length];
    reseal_frame(resealed, &header.salt, header.segment, position.frame);
    let stored = golden("removed-v1.seg", &made);
    assert_eq!(stored, made);
    let mut attachments = Vec::new();
    let end = walk(&header, &stored, &mut |_, record| {
        attachments.push((record.kind, record.sound_attachment().map(<[u8]>::to_vec)));
        Ok::<_, Damage>(())
    });
    assert_eq!(end.unwrap().chain, whole.unwrap().chain);
    assert_eq!(attachments, [(Kind::RecoveryNote, None), (Kind::Event, None), (Kind::Chunk, None)]);
}

/// A small fuzz: whatever happens to the bytes, the walk does not panic, and what it shows was
/// written.
#[test]
fn mutated_segments_show_nothing_that_was_not_written() {
    use super::sim::Random;
    let (header, frames, made) = segment();
    let written: Vec<Vec<u8>> = frames.into_iter().flatten().map(|draft| draft.payload).collect();
    let mut random = Random::new(11);
    for _ in 0..20_000 {
        let mut bytes = made.clone();
        for _ in 0..=random.below(4) {
            let at = BLOCK + random.below((bytes.len() - BLOCK) as u64) as usize;
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.next() as u8,
                2 => bytes.truncate(at),
                _ => {
                    let from = random.below(bytes.len() as u64) as usize;
                    let length = random.below(300) as usize;
                    let length = length.min(bytes.len() - at).min(bytes.len() - from);
                    bytes.copy_within(from..from + length, at);
                }
            }
            if bytes.len() <= BLOCK {
                break;
            }
        }
        let mut seen = Vec::new();
        let walked = walk(&header, &bytes, &mut |_, record| {
            seen.push(record.payload.to_vec());
            Ok::<_, Damage>(())
        });
        assert!(written.starts_with(&seen), "{walked:?}");
    }
}
