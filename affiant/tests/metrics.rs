//! `GET /v1/metrics` (contract T-5, I-2).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/service.rs"]
mod service;
mod support;

use service::{Done, Service};
use std::os::unix::net::UnixStream;
use support::*;

fn metrics(home: &Home) -> String {
    use std::io::{Read as _, Write as _};
    let mut socket = UnixStream::connect(home.path().join("control.sock")).unwrap();
    let request =
        b"GET /v1/metrics HTTP/1.1\r\nHost: affiant.internal\r\nConnection: close\r\n\r\n";
    socket.write_all(request).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    answer
}

/// T-5: phase and outcome are labels of their own, refusals before dispatch and doubts after it are
/// counted apart, each call once; late evidence has a counter of its own. I-2: no secret, and no name
/// that a caller chose, is in them.
#[test]
fn t_5_phase_and_outcome_are_counted_apart() {
    let service = Service::start(|asked| match asked.target.as_str() {
        "/doubt" => Done::and_closes(),
        _ => Done::and_answers(200, "", "ok"),
    });
    let (_held, closed) = refusing();
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let more = service::policy(closed, "").split("[[route]]").nth(1).unwrap().to_owned();
    let more = more.replace("\"service\"", "\"closed\"");
    home.policy(&format!("{}\n[[route]]{more}", service.policy("")));
    let server = home.serve();
    for _ in 0..3 {
        assert_eq!(server.curl(&[&service.url("/fine")]).status, 200);
    }
    let doubt = server.curl(&["-d", "canary-content", &service.url("/doubt")]).invocation();
    assert_eq!(server.curl(&[&format!("http://{closed}/x")]).outcome(), "not_attempted");
    home.ok(&["inv", "attest", &doubt, "--outcome", "committed", "--note", "seen"]);

    let text = metrics(&home);
    for line in [
        r#"affiant_invocations_total{phase="remote_execution",outcome="committed",code="OK",gateway="http"} 3"#,
        r#"affiant_invocations_total{phase="remote_execution",outcome="unknown",code="REMOTE_OUTCOME_UNKNOWN",gateway="http"} 1"#,
        r#"affiant_invocations_total{phase="connection_setup",outcome="not_attempted",code="CONNECTION_REFUSED",gateway="http"} 1"#,
        r#"affiant_late_evidence_total{source="operator_attested",outcome="committed"} 1"#,
        r#"affiant_invocation_duration_seconds_count{gateway="http",outcome="committed"} 3"#,
        "affiant_journal_healthy 1",
        "affiant_vault_unlocked 1",
        "affiant_policy_version 2",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
    for hidden in [SECRET, "coder", "canary", "127.0.0.1", "service", doubt.as_str()] {
        assert!(!text.contains(hidden), "{hidden} is in\n{text}");
    }
    // Every metric has its kind, once.
    let body = text.split("\r\n\r\n").nth(1).unwrap();
    let names: Vec<_> = body.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert!(names.len() > 8 && unique.len() == names.len(), "{names:?}");

    let refused = server.curl(&["http://affiant.internal/v1/metrics"]);
    assert_eq!((refused.status, refused.json()["code"].as_str()), (403, Some("OPERATORS_ONLY")));
}

/// T-5: what was passed on as it is and ended in order is `unknown` by nature: it is counted apart from what
/// was lost, and is not in the list to look at unless it is asked for.
#[test]
fn t_5_what_is_not_judged_is_told_apart_from_what_was_lost() {
    let service = Service::start(|asked| match asked.target.as_str() {
        "/doubt" => Done::and_closes(),
        _ => Done::and_answers(200, "", "ok"),
    });
    let left = Service::start(|_| Done::and_answers(200, "", "ok"));
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let alone = format!(
        "\n[[route]]\nname = \"alone\"\nintercept = false\nprivate_addresses = \"allow\"\n\
         match = {{ host = \"127.0.0.1\", port = {} }}\n",
        left.address().port()
    );
    home.policy(&(service.policy("") + &alone));
    let server = home.serve();
    let tunnelled = server.curl(&["--proxytunnel", &left.url("/fine")]);
    assert_eq!((tunnelled.status, tunnelled.body.as_slice()), (200, &b"ok"[..]));
    server.curl(&["-d", "content", &service.url("/doubt")]).invocation();
    let listed = |more: &[&str]| {
        let list = [&["--json", "inv", "list"][..], more].concat();
        let list: serde_json::Value = serde_json::from_str(&home.ok(&list)).unwrap();
        let all = list["invocations"].as_array().unwrap();
        let code = |one: &serde_json::Value| one["error"]["code"].as_str().unwrap().to_owned();
        all.iter().map(code).collect::<Vec<_>>()
    };
    eventually("the end of the tunnel", || listed(&["--code", "NOT_JUDGED"]).len() == 1);
    assert_eq!(listed(&["--outcome", "unknown"]), ["REMOTE_OUTCOME_UNKNOWN"]);
    let both = ["REMOTE_OUTCOME_UNKNOWN", "NOT_JUDGED"];
    assert_eq!(listed(&["--outcome", "unknown", "--all"]), both);
    assert_eq!(listed(&["--outcome", "unknown", "--code", "NOT_JUDGED"]), ["NOT_JUDGED"]);
    let refused = home.run(&["inv", "list", "--code", "NO_SUCH"]);
    assert!(text(&refused.stderr).contains("parameter `code`"), "{}", text(&refused.stderr));
    let text = metrics(&home);
    for code in both {
        let line = format!(
            "affiant_invocations_total{{phase=\"remote_execution\",outcome=\"unknown\",code=\"{code}\",gateway=\"http\"}} 1"
        );
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
}
