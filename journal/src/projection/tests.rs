//! Tests of the projection: the table of transitions, and live against replay.

use super::*;
use crate::contract::{
    ApprovalDecided, ApprovalRequested, Code, Delivered, DeliveryFailed, Digest, DispatchWithdrawn,
    Ended, Gateway, KeepResult, LeaseAcquired, LeaseReleased, LeaseRenewed, LeaseUsed, Noted,
    Outcome, PeerIdentity, Phase, RepeatAnswered, ResultExpired, Retry, Ruling, SetupStage,
};
use proptest::prelude::*;

fn id() -> InvocationId {
    InvocationId::from_parts(1, 1)
}

fn event(source: Source, body: Body) -> Event {
    Event { invocation: id(), at_ms: 10, source, body }
}

fn accepted() -> Body {
    Body::ActionAccepted(Fact::from(Accepted {
        gateway: Gateway::Http,
        agent: Some("coder".into()),
        action: "POST".into(),
        target: "https://a.example:443/".into(),
        command: None,
        fingerprint: Some(Digest::of(b"f")),
        caller_id: false,
        counted: false,
        link: None,
    }))
}

fn validated() -> Body {
    Body::PreflightValidated(Fact::from(Preflight {
        policy_version: 1,
        would_deny: None,
        route: None,
        credential: None,
        idempotent: false,
        idempotency: None,
        keep: KeepResult::Full,
        keep_seconds: 60,
        keep_total_bytes: None,
    }))
}

fn dispatch() -> Body {
    Body::DispatchStarted(Fact::from(Dispatch {
        attempt: 1,
        connection: 1,
        reused: false,
        address: "127.0.0.1:1".into(),
        peer: PeerIdentity::Unverified,
        fingerprint: Digest::of(b"f"),
    }))
}

fn asked(fingerprint: &[u8]) -> Body {
    Body::ApprovalRequested(Box::new(ApprovalRequested {
        fingerprint: Digest::of(fingerprint),
        expires_at_ms: 20,
        lasts_ms: 10,
        shown: None,
    }))
}

fn decided(ruling: Ruling) -> Body {
    Body::ApprovalDecided(ApprovalDecided { by: "o".into(), ruling })
}

fn setup() -> Body {
    let stage = SetupStage::TcpConnect;
    Body::SetupAttempted(SetupAttempt { n: 1, stage, code: "ok".into(), address: None })
}

fn sent() -> Body {
    Body::RequestSent(RequestSent { length_bytes: 0, digest: Digest::of(b"") })
}

fn started() -> Body {
    let status = Some(200);
    Body::RemoteResponseStarted(ResponseStarted { status, remote_request_id: None })
}

fn complete() -> Body {
    Body::RemoteResponseComplete(ResponseComplete {
        completion: crate::contract::Completion::Chunked,
        length_bytes: 3,
        digest: Digest::of(b"abc"),
        ssh_end: None,
        redacted: false,
    })
}

fn committed(verdict: Verdict) -> Body {
    let result = Some(ResultRef { chunks: 1, length_bytes: 3, digest: Digest::of(b"abc") });
    Body::ResultCommitted(Box::new(ResultCommitted { result, ..ResultCommitted::of(verdict) }))
}

fn ended(verdict: Verdict) -> Body {
    Body::InvocationEnded(Box::new(Ended {
        verdict,
        message: "It ended.".into(),
        field: None,
        not_before_ms: None,
        observation: None,
    }))
}

fn delivered() -> Body {
    Body::ResultDelivered(Delivered { confirmation: Confirmation::Protocol })
}

fn failed() -> Body {
    Body::DeliveryFailed(DeliveryFailed { length_bytes: 0 })
}

const OK: Verdict = Verdict::committed(Retry::Never, Code::Ok);
const REJECTED: Verdict = Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected);
const UNKNOWN: Verdict = Verdict::unknown(Retry::Reconcile, Code::RemoteOutcomeUnknown);
const REFUSED: Verdict = Verdict::refused(Retry::Never, Code::TargetNotAllowed);

/// Runs bodies from the transport and gives the names of those that were refused.
fn refused(bodies: Vec<(Source, Body)>) -> Vec<&'static str> {
    let mut invocation =
        Invocation::start(Sequence(1), &event(Source::TransportObserved, accepted())).unwrap();
    let mut refused = Vec::new();
    for ((source, body), sequence) in bodies.into_iter().zip(2..) {
        let before = invocation.clone();
        let event = event(source, body);
        if invocation.apply(Sequence(sequence), &event).is_err() {
            refused.push(event.body.name());
            assert_eq!(invocation, before, "a refused event changes nothing");
        }
    }
    refused
}

fn check(bodies: Vec<Body>, expected: &[&str]) {
    let bodies = bodies.into_iter().map(|body| (Source::TransportObserved, body)).collect();
    assert_eq!(refused(bodies), expected);
}

/// J-1: the whole course is legal, in this order.
#[test]
fn j_1_the_course_of_a_call_is_legal_and_out_of_order_is_not() {
    let course = || {
        vec![
            validated(),
            Body::CredentialAuthorized(None),
            setup(),
            setup(),
            dispatch(),
            sent(),
            started(),
            complete(),
            committed(OK),
            failed(),
            delivered(),
        ]
    };
    check(course(), &[]);
    check(vec![dispatch()], &["DISPATCH_STARTED"]);
    check(vec![validated(), dispatch()], &["DISPATCH_STARTED"]);
    check(vec![validated(), validated()], &["PREFLIGHT_VALIDATED"]);
    check(vec![setup()], &["SETUP_ATTEMPTED"]);
    check(vec![accepted()], &["ACTION_ACCEPTED"]);
    let mut twice = course();
    twice.extend([sent(), started(), complete(), committed(OK), delivered(), failed()]);
    check(
        twice,
        &[
            "REQUEST_SENT",
            "REMOTE_RESPONSE_STARTED",
            "REMOTE_RESPONSE_COMPLETE",
            "RESULT_COMMITTED",
            "RESULT_DELIVERED",
            "DELIVERY_FAILED",
        ],
    );
    let dispatched = || vec![validated(), Body::CredentialAuthorized(None), dispatch()];
    let mut early = dispatched();
    early.extend([complete(), committed(OK), delivered()]);
    check(early, &["REMOTE_RESPONSE_COMPLETE", "RESULT_COMMITTED", "RESULT_DELIVERED"]);
    let mut repeated = dispatched();
    repeated.extend([sent(), sent(), started(), started(), complete(), complete()]);
    check(repeated, &["REQUEST_SENT", "REMOTE_RESPONSE_STARTED", "REMOTE_RESPONSE_COMPLETE"]);
}

/// D-1: before dispatch a call ends `not_attempted` and nothing else; after it, never so.
#[test]
fn d_1_not_attempted_and_dispatch_exclude_each_other() {
    let authorized = || vec![validated(), Body::CredentialAuthorized(None)];
    for before in [vec![], vec![validated()], authorized()] {
        let mut bodies = before.clone();
        bodies.extend([ended(UNKNOWN), committed(OK), ended(REFUSED)]);
        check(bodies, &["INVOCATION_ENDED", "RESULT_COMMITTED"]);
        let mut after = before;
        after.extend([ended(REFUSED), validated(), Body::CredentialAuthorized(None), dispatch()]);
        after.extend([committed(OK), ended(UNKNOWN)]);
        let all = [
            "PREFLIGHT_VALIDATED",
            "CREDENTIAL_AUTHORIZED",
            "DISPATCH_STARTED",
            "RESULT_COMMITTED",
            "INVOCATION_ENDED",
        ];
        check(after, &all);
    }
    let mut dispatched = authorized();
    dispatched.extend([dispatch(), ended(REFUSED), ended(UNKNOWN), ended(REFUSED)]);
    check(dispatched, &["INVOCATION_ENDED", "INVOCATION_ENDED"]);
}

fn withdrawn(dispatch: u64, verdict: Verdict) -> Body {
    let (dispatch, message) = (Sequence(dispatch), "Nothing was sent.".into());
    Body::DispatchWithdrawn(Box::new(DispatchWithdrawn { dispatch, verdict, message }))
}

/// D-1, J-5: a dispatch that nobody got the proof of is withdrawn by the process that made it: right
/// after it, by its sequence, once, and as `not_attempted`.
#[test]
fn d_1_a_dispatch_is_withdrawn_only_while_nothing_followed_it() {
    let dispatched = || vec![validated(), Body::CredentialAuthorized(None), dispatch()];
    let name = "DISPATCH_WITHDRAWN";
    let with = |more: Vec<Body>| dispatched().into_iter().chain(more).collect::<Vec<_>>();
    check(with(vec![withdrawn(4, REFUSED)]), &[]);
    check(vec![withdrawn(4, REFUSED)], &[name]);
    check(with(vec![withdrawn(3, REFUSED)]), &[name]);
    check(with(vec![withdrawn(4, UNKNOWN), withdrawn(4, OK)]), &[name, name]);
    check(with(vec![sent(), withdrawn(4, REFUSED)]), &[name]);
    check(with(vec![started(), withdrawn(4, REFUSED)]), &[name]);
    check(with(vec![ended(UNKNOWN), withdrawn(4, REFUSED)]), &[name]);
    let after = vec![withdrawn(4, REFUSED), withdrawn(4, REFUSED), sent(), committed(OK)];
    check(with(after), &[name, "REQUEST_SENT", "RESULT_COMMITTED"]);
    for &source in Source::ALL {
        let mut bodies: Vec<_> =
            dispatched().into_iter().map(|body| (Source::TransportObserved, body)).collect();
        bodies.push((source, withdrawn(4, REFUSED)));
        let expected: &[&str] = if source == Source::TransportObserved { &[] } else { &[name] };
        assert_eq!(refused(bodies), expected, "{source}");
    }
}

/// J-3 and J-5: `unknown` yields to a query or an operator, and to nothing else.
#[test]
fn j_3_late_evidence_settles_unknown_by_query_or_operator_alone() {
    let observed = Source::TransportObserved;
    for &source in Source::ALL {
        for verdict in [OK, REJECTED] {
            let mut bodies: Vec<_> = vec![validated(), Body::CredentialAuthorized(None)]
                .into_iter()
                .chain([dispatch(), ended(UNKNOWN)])
                .map(|body| (observed, body))
                .collect();
            bodies.push((source, committed(verdict)));
            let late = matches!(source, Source::RemoteQuery | Source::OperatorAttested);
            let expected: &[&str] = if late { &[] } else { &["RESULT_COMMITTED"] };
            assert_eq!(refused(bodies), expected, "{source}");
        }
    }
}

/// C-6, D-3: a refusal that the protocol proves needs no response.
#[test]
fn c_6_a_protocol_refusal_settles_without_a_response() {
    let dispatched = || vec![validated(), Body::CredentialAuthorized(None), dispatch()];
    for code in [Code::RemoteNotProcessed, Code::RequestRefused] {
        let mut bodies = dispatched();
        bodies.push(committed(Verdict::rejected(Retry::Backoff, code)));
        check(bodies, &[]);
    }
    let mut bodies = dispatched();
    bodies.push(committed(REJECTED));
    check(bodies, &["RESULT_COMMITTED"]);
}

fn run(bodies: Vec<Body>) -> Invocation {
    let first = event(Source::TransportObserved, accepted());
    let mut invocation = Invocation::start(Sequence(1), &first).unwrap();
    for (body, sequence) in bodies.into_iter().zip(2..) {
        let next = event(Source::TransportObserved, body);
        invocation.apply(Sequence(sequence), &next).unwrap();
    }
    invocation
}

/// J-2 and J-7: what a restart concludes from each state.
#[test]
fn j_2_a_restart_concludes_from_the_last_boundary() {
    let authorized = || vec![validated(), Body::CredentialAuthorized(None)];
    let conclude =
        |bodies| run(bodies).interrupted(9).map(|verdict| (verdict.phase(), verdict.outcome()));
    let not = Outcome::NotAttempted;
    assert_eq!(conclude(vec![]), Some((Phase::Validation, not)));
    assert_eq!(conclude(vec![validated()]), Some((Phase::CredentialInjection, not)));
    assert_eq!(conclude(authorized()), Some((Phase::ConnectionSetup, not)));
    let mut dispatched = authorized();
    dispatched.push(dispatch());
    for next in [sent(), started(), complete()] {
        let unknown = Some((Phase::RemoteExecution, Outcome::Unknown));
        assert_eq!(conclude(dispatched.clone()), unknown);
        dispatched.push(next);
    }
    dispatched.push(committed(OK));
    assert_eq!(conclude(dispatched), None);
}

/// a failed delivery keeps the outcome, and a later confirmation wins.
#[test]
fn r_2_a_failed_delivery_keeps_the_outcome() {
    let mut bodies = vec![validated(), Body::CredentialAuthorized(None), dispatch(), started()];
    bodies.extend([complete(), committed(OK), failed()]);
    let verdict = run(bodies.clone()).verdict();
    assert_eq!(
        (verdict.phase(), verdict.outcome(), verdict.retry(), verdict.code()),
        (Phase::ResultDelivery, Outcome::Committed, Retry::FetchResult, Code::DeliveryFailed)
    );
    bodies.push(delivered());
    assert_eq!(run(bodies).verdict(), OK);
}

/// a reset takes back what the caller's host acknowledged, and nothing that the caller itself
/// confirmed.
#[test]
fn r_5_only_the_hosts_word_is_taken_back() {
    let settled = [validated(), Body::CredentialAuthorized(None), dispatch(), started()];
    let settled = [&settled[..], &[complete(), committed(OK)]].concat();
    for (confirmation, taken_back) in [
        (Confirmation::Transport, true),
        (Confirmation::Protocol, false),
        (Confirmation::Acknowledged, false),
        (Confirmation::Fetched, false),
    ] {
        let delivered = Body::ResultDelivered(Delivered { confirmation });
        let mut invocation = run([settled.clone(), vec![delivered.clone()]].concat());
        let again = invocation.check(&delivered, Source::TransportObserved);
        assert!(again.is_err(), "{confirmation:?}");
        // A stronger word follows the host's, and then nothing takes it back.
        let fetched = Body::ResultDelivered(Delivered { confirmation: Confirmation::Fetched });
        let mut stronger = invocation.clone();
        let next = Sequence(stronger.last_sequence().0 + 1);
        let follows = stronger.apply(next, &event(Source::TransportObserved, fetched));
        assert_eq!(follows.is_ok(), taken_back, "{confirmation:?}");
        assert!(stronger.check(&failed(), Source::TransportObserved).is_err() || !taken_back);
        let failed = invocation.check(&failed(), Source::TransportObserved);
        assert_eq!(failed.is_ok(), taken_back, "{confirmation:?}");
        if taken_back {
            let next = Sequence(invocation.last_sequence().0 + 1);
            invocation
                .apply(next, &event(Source::TransportObserved, self::failed()))
                .expect("legal");
            assert_eq!(invocation.delivery(), Delivery::Failed);
            assert_eq!(invocation.verdict().code(), Code::DeliveryFailed);
            assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
        }
    }
}

/// E-1, K-11: a refused repeat names the invocation to follow; another refusal names none.
#[test]
fn e_1_the_envelope_of_a_repeat_names_the_earlier_invocation() {
    let earlier = InvocationId::from_parts(5, 5);
    for (code, follow) in [(Code::InDoubtDuplicate, Some(earlier)), (Code::InvalidTarget, None)] {
        let mut first = event(Source::TransportObserved, accepted());
        if let Body::ActionAccepted(accepted) = &mut first.body {
            *accepted = Accepted { link: Some(earlier), ..(**accepted).clone() }.into();
        }
        let mut invocation = Invocation::start(Sequence(1), &first).unwrap();
        let end = event(Source::TransportObserved, ended(Verdict::refused(Retry::Never, code)));
        invocation.apply(Sequence(2), &end).unwrap();
        let envelope = invocation.envelope();
        assert_eq!(envelope.error.follow, follow);
        assert_eq!(envelope.error.message, "It ended.");
        assert!(!envelope.evidence.dispatch_started);
    }
}

fn any_body() -> impl Strategy<Value = Body> {
    let verdicts = prop_oneof![Just(OK), Just(REJECTED), Just(UNKNOWN), Just(REFUSED)];
    prop_oneof![
        1 => Just(accepted()),
        6 => Just(validated()),
        6 => Just(Body::CredentialAuthorized(None)),
        2 => prop_oneof![Just(asked(b"f")), Just(asked(b"g"))],
        3 => prop_oneof![
            Just(decided(Ruling::Approved { until_ms: 30 })),
            Just(decided(Ruling::Denied)),
        ],
        4 => Just(setup()),
        8 => Just(dispatch()),
        4 => Just(sent()),
        4 => Just(started()),
        4 => Just(complete()),
        4 => verdicts.clone().prop_map(committed),
        2 => verdicts.prop_map(ended),
        2 => (4..8_u64).prop_map(|dispatch| withdrawn(dispatch, REFUSED)),
        2 => Just(delivered()),
        2 => Just(failed()),
        1 => Just(Body::ResultExpired(ResultExpired { total_bytes: 3, limit_bytes: 2 })),
        1 => Just(Body::RepeatAnswered(RepeatAnswered { by_id: true })),
        1 => Just(Body::Noted(Noted { name: "n".into(), detail: "d".into() })),
        2 => (1..4_u64).prop_map(|generation| {
            let (holder, ttl_ms) = ("w".into(), 9);
            Body::LeaseAcquired(LeaseAcquired { generation, holder, ttl_ms })
        }),
        1 => (1..4_u64).prop_map(|g| Body::LeaseRenewed(LeaseRenewed { generation: g, ttl_ms: 9 })),
        1 => (1..4_u64).prop_map(|g| Body::LeaseUsed(LeaseUsed { generation: g, retry: id() })),
        1 => (1..4_u64).prop_map(|g| Body::LeaseReleased(LeaseReleased { generation: g })),
    ]
}

fn any_source() -> impl Strategy<Value = Source> {
    prop_oneof![
        6 => Just(Source::TransportObserved),
        2 => Just(Source::RemoteResponse),
        1 => Just(Source::RemoteQuery),
        1 => Just(Source::OperatorAttested),
        1 => Just(Source::Recovered),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// J-1, J-3, D-1: live and replay agree on state and on refusals, through the encodings of the
    /// log and of the index; and no path but a withdrawal leads from dispatch to `not_attempted`.
    #[test]
    fn j_1_live_and_replay_agree(
        bodies in proptest::collection::vec((any_source(), any_body()), 0..40)
    ) {
        let first = event(Source::TransportObserved, accepted());
        let mut live = Invocation::start(Sequence(1), &first).unwrap();
        let mut log = vec![(Sequence(1), serde_json::to_vec(&first).unwrap())];
        let mut refusals = Vec::new();
        for ((source, body), n) in bodies.into_iter().zip(2..) {
            let (dispatched, held) = (live.is_dispatched(), live.is_held());
            let next = event(source, body);
            let checked = live.check(&next.body, source);
            let applied = live.apply(Sequence(n), &next);
            prop_assert_eq!(&checked, &applied);
            let withdrawn = applied.is_ok() && matches!(next.body, Body::DispatchWithdrawn(_));
            match applied {
                Ok(()) => log.push((Sequence(n), serde_json::to_vec(&next).unwrap())),
                Err(error) => refusals.push((log.len(), next, error)),
            }
            // V-6: no way leads from a question to the dispatch but an approval of that request.
            if held && live.is_dispatched() {
                prop_assert!(live.approval().is_some_and(|it| it.covers(Digest::of(b"f"))));
            }
            if dispatched && !withdrawn {
                prop_assert_ne!(live.verdict().outcome(), Outcome::NotAttempted);
                prop_assert!(live.is_dispatched());
            }
        }
        let mut replayed: Option<Invocation> = None;
        let mut refusals = refusals.into_iter().peekable();
        for (n, (sequence, bytes)) in log.iter().enumerate() {
            let next: Event = serde_json::from_slice(bytes).unwrap();
            match &mut replayed {
                None => replayed = Some(Invocation::start(*sequence, &next).unwrap()),
                Some(invocation) => invocation.apply(*sequence, &next).unwrap(),
            }
            let state = replayed.as_ref().unwrap();
            while let Some((_, refused, error)) = refusals.next_if(|(at, _, _)| *at == n + 1) {
                prop_assert_eq!(state.check(&refused.body, refused.source), Err(error));
            }
            let restated = serde_json::to_vec(state).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<Invocation>(&restated).unwrap(), state);
            let indexed = rmp_serde::to_vec_named(state).unwrap();
            prop_assert_eq!(&rmp_serde::from_slice::<Invocation>(&indexed).unwrap(), state);
        }
        prop_assert_eq!(replayed.as_ref(), Some(&live));
    }
}
