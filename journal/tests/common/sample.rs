//! The sample call of tests and benches: what the proxy records of one.

use journal::contract::{
    Accepted, CredentialUse, Digest, Dispatch, Gateway, KeepResult, PeerIdentity, Preflight,
};

pub(crate) fn accepted(fingerprint: Digest) -> Accepted {
    Accepted {
        gateway: Gateway::Http,
        agent: Some("coder".to_owned()),
        action: "POST".to_owned(),
        target: "https://api.example:443/v1/things".to_owned(),
        command: None,
        fingerprint: Some(fingerprint),
        caller_id: false,
        counted: false,
        link: None,
    }
}

pub(crate) fn credential() -> CredentialUse {
    CredentialUse { id: "things".to_owned(), version: 1, mode: "bearer".to_owned() }
}

pub(crate) fn preflight() -> Preflight {
    Preflight {
        policy_version: 3,
        would_deny: None,
        route: Some("things".to_owned()),
        credential: Some(credential()),
        idempotent: false,
        idempotency: None,
        keep: KeepResult::Full,
        keep_seconds: 604_800,
        keep_total_bytes: None,
    }
}

pub(crate) fn dispatch(connection: u64, fingerprint: Digest) -> Dispatch {
    Dispatch {
        attempt: 1,
        connection,
        reused: false,
        address: "192.0.2.7:443".to_owned(),
        peer: PeerIdentity::Tls {
            name: "api.example".to_owned(),
            leaf: Digest::of(b"leaf"),
            resumed: false,
        },
        fingerprint,
    }
}
