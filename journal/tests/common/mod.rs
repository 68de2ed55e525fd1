//! What the tests of the journal share.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod sample;

use journal::contract::{
    Accepted, Code, Completion, CredentialUse, Digest, Dispatch, Idempotency, InvocationId,
    KeyPlace, Operation, PeerIdentity, Preflight, RemoteContract, RequestSent, ResponseComplete,
    ResponseStarted, Retry, Verdict,
};
use journal::{Admission, Call, Guard, Journal, Options, Recovery, ResultKey, Settled, Stream};
use std::path::Path;
use std::time::Duration;

pub(crate) fn options(directory: &Path) -> Options {
    Options { segment_bytes: 512 << 10, ..Options::new(directory) }
}

pub(crate) fn key() -> ResultKey {
    ResultKey::new([7; 32])
}

pub(crate) fn open(directory: &Path) -> (Journal, Recovery) {
    Journal::open(options(directory), Some(key())).unwrap()
}

pub(crate) fn accepted(agent: &str, fingerprint: &str) -> Accepted {
    let accepted = sample::accepted(Digest::of(fingerprint.as_bytes()));
    Accepted { agent: Some(agent.to_owned()), ..accepted }
}

pub(crate) fn preflight() -> Preflight {
    let credential = Some(credential());
    Preflight { credential, keep_seconds: 3600, ..sample::preflight() }
}

/// What a route says of repeating, as a call is bound to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contract {
    Nothing,
    Idempotent,
    /// A key under a contract; when it is over.
    Key(RemoteContract, u64),
    /// The same with a key of the broker's own.
    OwnKey(RemoteContract, u64),
}

impl Contract {
    pub(crate) fn operation(self) -> Operation {
        let bound = |remote_contract, expires_at_ms, added_as| Operation {
            idempotent: false,
            idempotency: Some(Idempotency {
                key: "k1".to_owned(),
                scope: "pay".to_owned(),
                fingerprint: Digest::of(b"a"),
                expires_at_ms,
                remote_contract,
                added_as,
            }),
        };
        match self {
            Self::Nothing => Operation::default(),
            Self::Idempotent => Operation { idempotent: true, idempotency: None },
            Self::Key(contract, expires_at_ms) => bound(contract, expires_at_ms, None),
            Self::OwnKey(contract, expires_at_ms) => {
                bound(contract, expires_at_ms, Some(KeyPlace::Header("idempotency-key".into())))
            }
        }
    }

    pub(crate) fn preflight(self) -> Preflight {
        let Operation { idempotent, idempotency } = self.operation();
        Preflight { idempotent, idempotency, ..preflight() }
    }
}

pub(crate) fn credential() -> CredentialUse {
    CredentialUse { id: "c".to_owned(), version: 1, mode: "bearer".to_owned() }
}

pub(crate) fn dispatch() -> Dispatch {
    Dispatch {
        attempt: 1,
        connection: 9,
        reused: false,
        address: "127.0.0.1:443".to_owned(),
        peer: PeerIdentity::Unverified,
        fingerprint: Digest::of(b"x"),
    }
}

pub(crate) fn complete(content: &[u8]) -> ResponseComplete {
    ResponseComplete {
        completion: Completion::ContentLength,
        length_bytes: content.len() as u64,
        digest: Digest::of(content),
        ssh_end: None,
        redacted: false,
    }
}

pub(crate) fn guarded() -> Guard {
    Guard { window: Some(Duration::from_secs(600)), ..Guard::default() }
}

pub(crate) fn admit(journal: &Journal, agent: &str, fingerprint: &str) -> Call {
    match journal.admit(journal.new_id(), accepted(agent, fingerprint), Guard::default()).unwrap() {
        Admission::New(call) => call,
        other => panic!("{}", name(&other)),
    }
}

pub(crate) fn name(admission: &Admission) -> &'static str {
    match admission {
        Admission::New(_) => "new",
        Admission::SameRequest(_) => "same request",
        Admission::Mismatch => "mismatch",
        Admission::InDoubt(_) => "in doubt",
        Admission::Settled(_) => "settled",
        Admission::Held(_) => "held",
        Admission::Spent(_) => "spent",
    }
}

pub(crate) async fn dispatched(journal: &Journal, agent: &str, fingerprint: &str) -> Call {
    let mut call = admit(journal, agent, fingerprint);
    call.preflight(preflight()).unwrap();
    call.authorize(Some(credential())).unwrap();
    let proof = call.dispatch(dispatch()).await.unwrap();
    assert_eq!(proof.id(), call.id());
    call
}

pub(crate) async fn respond(call: &mut Call, status: u16, content: &[u8]) -> Settled {
    let length_bytes = 0;
    call.request_sent(RequestSent { length_bytes, digest: Digest::of(b"") }).unwrap();
    call.response_started(ResponseStarted { status: Some(status), remote_request_id: None })
        .unwrap();
    call.store(Stream::Head, br#"{"status":200,"headers":[]}"#).await.unwrap();
    call.store(Stream::Content, content).await.unwrap();
    let verdict = match status {
        500..=599 => Verdict::committed(Retry::Never, Code::RemoteFailed),
        400..=499 => Verdict::rejected(Retry::AfterCorrection, Code::RemoteRejected),
        _ => Verdict::committed(Retry::Never, Code::Ok),
    };
    call.commit(complete(content), verdict, None).await.unwrap()
}

pub(crate) fn content(journal: &Journal, id: InvocationId) -> Vec<u8> {
    journal.result(id).unwrap().read_to_end().unwrap()
}
