//! `docs/instructions.md` is generated: every phase, outcome, evidence class and route contract with
//! its instruction, and what the engine does with it. `AFFIANT_WRITE_DOCS=1` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use journal::contract::{
    Code, Decision, Digest, Idempotency, Operation, Outcome, Phase, RemoteContract, Retry, SshEnd,
    Verdict, after_unknown, decide, settle_http, settle_ssh, settle_ssh_compare,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

const NOW: u64 = 1000;

/// What a route says of repeating, in the order of the table's columns.
const CONTRACTS: [&str; 5] =
    ["none", "idempotent", "key, verified", "key, verified, expired", "key, unverified"];

fn operation(contract: &str) -> Operation {
    let key = |remote_contract, expires_at_ms| Operation {
        idempotent: false,
        idempotency: Some(Idempotency {
            key: "k".into(),
            scope: "s".into(),
            fingerprint: Digest::of(b"f"),
            expires_at_ms,
            remote_contract,
            added_as: None,
        }),
    };
    match contract {
        "none" => Operation::default(),
        "idempotent" => Operation { idempotent: true, idempotency: None },
        "key, verified" => key(RemoteContract::Verified, NOW + 1),
        "key, verified, expired" => key(RemoteContract::Verified, NOW),
        "key, unverified" => key(RemoteContract::Unverified, NOW + 1),
        other => unreachable!("{other}"),
    }
}

type Judge = fn(&Operation) -> Verdict;

/// Every class of evidence.
#[rustfmt::skip]
const CLASSES: &[(&str, Judge)] = &[
    ("refused; a field can be corrected", |_| Verdict::refused(Retry::AfterCorrection, Code::InvalidTarget)),
    ("refused; the broker is not ready", |_| Verdict::refused(Retry::Backoff, Code::JournalUnavailable)),
    ("credential absent, unreadable or locked", |_| Verdict::not_injected(Retry::AfterCorrection, Code::VaultLocked)),
    ("credential's source failed", |_| Verdict::not_injected(Retry::Backoff, Code::SecretSourceFailed)),
    ("refused; a budget of the agent is spent", |_| Verdict::budget_spent()),
    ("waits for a person's approval", |_| Verdict::approval_pending(false)),
    ("approved, not sent yet", |_| Verdict::approval_pending(true)),
    ("approval not given or not used in time", |_| Verdict::approval_expired()),
    ("not what was approved", |_| Verdict::approval_mismatch()),
    ("approval denied", |_| Verdict::approval_denied()),
    ("id or key stands for another request", |_| Verdict::key_mismatch()),
    ("an equal call is in flight or in doubt", |o| Verdict::in_doubt_duplicate(after_unknown(o, NOW))),
    ("an equal call failed with a complete 5xx", |o| Verdict::in_doubt_duplicate(settle_http(500, None, o, NOW).retry())),
    ("an equal call's result was not handed over", |o| {
        Verdict::in_doubt_duplicate(settle_http(200, None, o, NOW).undelivered(true).retry())
    }),
    ("SSH atomic compare found another state", |_| settle_ssh_compare()),
    ("no connection: a setting is wrong", |_| Verdict::not_connected(Retry::AfterCorrection, Code::TlsCertificateError)),
    ("no connection: refused or timed out", |_| Verdict::not_connected(Retry::Backoff, Code::ConnectionRefused)),
    ("dispatched, no complete result", |o| Verdict::unknown(after_unknown(o, NOW), Code::RemoteOutcomeUnknown)),
    ("dispatched, the broker was stopped", |o| Verdict::unknown(after_unknown(o, NOW), Code::BrokerRestarted)),
    ("the protocol says: not processed", |_| Verdict::rejected(Retry::Backoff, Code::RemoteNotProcessed)),
    ("complete 421 or 425", |o| settle_http(421, None, o, NOW)),
    ("complete 4xx", |o| settle_http(409, None, o, NOW)),
    ("complete 429 or 503 with a usable time", |o| settle_http(503, Some(NOW + 9), o, NOW)),
    ("complete 429 or 503 without one", |o| settle_http(503, None, o, NOW)),
    ("complete other 5xx", |o| settle_http(500, None, o, NOW)),
    ("complete 2xx or 3xx", |o| settle_http(200, None, o, NOW)),
    ("SSH exit status 0", |_| settle_ssh(&SshEnd::ExitStatus(0))),
    ("SSH exit status not 0, or signal", |_| settle_ssh(&SshEnd::ExitStatus(1))),
    ("SSH request refused", |_| Verdict::rejected(Retry::AfterCorrection, Code::RequestRefused)),
    ("complete 2xx, stored, not handed over", |o| settle_http(200, None, o, NOW).undelivered(true)),
    ("complete 2xx, not stored, not handed over", |o| settle_http(200, None, o, NOW).undelivered(false)),
    ("complete 4xx, stored, not handed over", |o| settle_http(404, None, o, NOW).undelivered(true)),
    ("answered, and the journal failed", |o| {
        Verdict::new(Phase::ResultDelivery, Outcome::Unknown, after_unknown(o, NOW), Code::ResultNotStored).unwrap()
    }),
];

/// One row: where and what, and per route contract the instruction with its decision.
fn rows() -> Vec<String> {
    let mut rows = Vec::new();
    for (evidence, judge) in CLASSES {
        let mut by_answer: BTreeMap<(At, &str, &str), Vec<&str>> = BTreeMap::new();
        for contract in CONTRACTS {
            let operation = operation(contract);
            let verdict = judge(&operation);
            let decision = decide(verdict, operation.idempotent, true);
            let at = At(verdict.phase().as_str(), verdict.outcome().as_str());
            let key = (at, verdict.retry().as_str(), decision.as_str());
            by_answer.entry(key).or_default().push(contract);
        }
        for ((at, retry, decision), contracts) in by_answer {
            let contracts = if contracts.len() == CONTRACTS.len() {
                "any".to_owned()
            } else {
                contracts.join("; ")
            };
            rows.push(format!(
                "| `{}` | `{}` | {evidence} | {contracts} | `{retry}` | `{decision}` |",
                at.0, at.1
            ));
        }
    }
    rows
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct At(&'static str, &'static str);

fn page() -> String {
    let mut page = String::from(
        "# Instructions\n\n\
         What evidence and the route's contract make of a call, and what the retry engine decides \
         (contract T-2). Generated by\n`journal/tests/instructions.rs` from the functions that the \
         gateways call; a test compares.\n\n\
         A route's contract: *none*; *idempotent* (by method or by `idempotent = true`); a *key* under \
         `idempotency`,\n`contract` verified or not, its retention over or not.\n\n\
         | phase | outcome | evidence | route's contract | retry | decision |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows() {
        writeln!(page, "{row}").unwrap();
    }
    page
}

/// M-6, T-2: the page is what the code says.
#[test]
fn t_2_the_page_of_instructions_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/instructions.md");
    if std::env::var_os("AFFIANT_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page());
}

/// The classes reach every decision, every outcome and every phase.
#[test]
fn the_classes_leave_nothing_out() {
    let (mut decisions, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (_, judge) in CLASSES {
        for contract in CONTRACTS {
            let operation = operation(contract);
            let verdict = judge(&operation);
            decisions.insert(decide(verdict, operation.idempotent, true).as_str());
            places.insert((verdict.phase().as_str(), verdict.outcome().as_str()));
        }
    }
    assert_eq!(decisions, Decision::ALL.iter().map(|d| d.as_str()).collect());
    let legal = Phase::ALL.iter().flat_map(|&p| Outcome::ALL.iter().map(move |&o| (p, o)));
    let legal = legal.filter(|&(p, o)| Verdict::new(p, o, Retry::Never, Code::Ok).is_ok());
    assert_eq!(places, legal.map(|(p, o)| (p.as_str(), o.as_str())).collect());
}
