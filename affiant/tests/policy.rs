//! Policy against real requests: what is observed and learned, and conditions on content.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::Script;
use support::*;

/// What `policy explain` says as JSON.
fn explain(home: &Home, arguments: &[&str]) -> serde_json::Value {
    let begin = ["policy", "explain", "--json", "--agent", "coder"];
    serde_json::from_str(&home.ok(&[&begin[..], arguments].concat())).unwrap()
}

/// V-1 and V-5: what no route allows passes under `egress = "observe"` without a credential, is on
/// record as refused else, and gives a draft that allows it.
#[test]
fn v_1_what_is_observed_is_learned() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    let observe = "[defaults]\negress = \"observe\"\nprivate_addresses = \"allow\"\n";
    let route = origin.policy("").replace("path = \"/**\"", "path = \"/paid/**\"");
    home.policy(&format!("{observe}{route}"));
    let server = home.serve();
    let sent = |path: &str, arguments: &[&str]| {
        let response = server.curl(&[arguments, &[&origin.url(path)]].concat());
        (response.status, response.invocation())
    };
    let (status, allowed) = sent("/paid/x", &[]);
    assert_eq!(status, 200);
    assert!(origin.origin.seen().pop().unwrap().field("authorization").is_some());
    let (status, read) = sent("/items/17", &[]);
    assert_eq!(status, 200);
    assert_eq!(origin.origin.seen().pop().unwrap().field("authorization"), None);
    let (_, made) = sent("/items", &["-d", "x"]);

    let listed = home.json(&["inv", "list", "--would-be-denied"]);
    let ids: Vec<_> = listed["invocations"].as_array().unwrap().iter().collect();
    let ids: Vec<_> = ids.iter().map(|i| i["invocation_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&made, &read]);
    let shown = |id: &str| home.json(&["inv", "show", id])["would_be_denied"].clone();
    assert_eq!(shown(&read), "TARGET_NOT_ALLOWED");
    assert!(shown(&allowed).is_null());
    let explained = explain(&home, &["GET", &origin.url("/items/1")]);
    assert_eq!(explained["would_deny"], "TARGET_NOT_ALLOWED");

    let draft = home.path().join("draft.toml");
    let file = draft.to_str().unwrap();
    let drafted = home.run(&["policy", "learn", "--agent", "coder", "-o", file]);
    assert!(drafted.status.success());
    assert!(text(&drafted.stderr).contains("do not apply it in its place"));
    assert_eq!(home.run(&["policy", "learn", "-o", file]).status.code(), Some(2));
    home.ok(&["policy", "check", file]);
    let learned = std::fs::read_to_string(&draft).unwrap();
    assert!(learned.contains("path = \"/items/*\""), "{learned}");
    let trust = route.split("[[credential]]").next().unwrap();
    let closed = observe.replace("observe", "deny");
    home.policy(&format!("{closed}{trust}{learned}"));
    assert_eq!(sent("/items/18", &[]).0, 200);
    assert_eq!(sent("/items", &["-d", "y"]).0, 200);
    assert_eq!(sent("/items/18", &["-d", "z"]).0, 403);
    assert_eq!(sent("/paid/x", &[]).0, 403);
    let with_denied = home.ok(&["policy", "learn", "--denied"]);
    assert!(with_denied.contains("path = \"/paid/x\""), "{with_denied}");
}

/// V-1 and D-1: fields of JSON content decide before anything is sent; what can't be judged is
/// refused, also where a wider route would allow it.
#[test]
fn v_1_content_decides_before_dispatch() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    let small =
        "path = \"/ask\", body = { \"/model\" = [\"small-*\", \"tiny\"], \"/stream\" = false }";
    let asked = origin.policy("").replace("path = \"/**\"", small);
    let port = origin.origin.address().port();
    let open = format!(
        "[[route]]\nname = \"large\"\nmatch = {{ host = \"localhost\", port = {port}, path = \"/ask\", \
         headers = {{ X-Large = \"yes\" }} }}\nprivate_addresses = \"allow\"\n"
    );
    home.policy(&format!("{asked}{open}"));
    let server = home.serve();
    let url = origin.url("/ask");
    let json = "Content-Type: application/json";
    let call = |arguments: &[&str]| server.curl(&[&["-H", json], arguments, &[&url]].concat());
    let good = r#"{"model":"small-2","stream":false}"#;
    for arguments in [
        &["-d", good][..],
        &["-d", good, "--http2"],
        &["-d", good, "-H", "Transfer-Encoding: chunked"],
    ] {
        assert_eq!(call(arguments).status, 200, "{arguments:?}");
    }
    let seen = origin.origin.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|s| text(&s.body) == good && s.field("authorization").is_some()));

    let big = home.path().join("big.json");
    let filler = "x".repeat(1 << 20);
    std::fs::write(&big, format!(r#"{{"model":"tiny","stream":false,"filler":"{filler}"}}"#))
        .unwrap();
    let big = format!("@{}", big.display());
    let large = r#"{"model":"large","stream":false}"#;
    let twice = r#"{"model":"tiny","model":"large","stream":false}"#;
    for arguments in [
        &["-d", large][..],
        &["-d", r#"{"model":"tiny"}"#],
        &["-X", "POST"],
        &["-d", "model=tiny"],
        &["-d", twice],
        &["-d", good, "-H", "Content-Encoding: gzip"],
        &["--data-binary", &big],
        // The wider route is not asked about what the narrower one can't judge.
        &["-d", twice, "-H", "X-Large: yes"],
        &["--data-binary", &big, "-H", "X-Large: yes"],
    ] {
        let response = call(arguments);
        assert_eq!((response.status, response.outcome()), (403, "not_attempted"), "{response:?}");
        let told = response.json();
        assert_eq!(told["error"]["code"], "TARGET_NOT_ALLOWED");
        assert_eq!(told["error"]["field"], "request.body", "{arguments:?} {told}");
    }
    assert_eq!(origin.origin.seen().len(), 3);
    assert_eq!(call(&["-d", large, "-H", "X-Large: yes"]).status, 200);
    assert_eq!(origin.origin.seen().pop().unwrap().field("authorization"), None);

    let told = explain(&home, &["--body", good, "POST", &url]);
    assert_eq!((&told["allowed"], &told["rule"]), (&true.into(), &"origin".into()));
    let denied =
        home.run(&["policy", "explain", "--agent", "coder", "--body", large, "POST", &url]);
    assert_eq!(denied.status.code(), Some(1));
    let told = text(&denied.stdout);
    assert!(told.contains("not origin: has a condition on the content"), "{told}");
    let expect = format!(
        "[[expect]]\nagent = \"coder\"\ncall = \"POST {url}\"\nbody = '{good}'\nallow = true\n\
         [[expect]]\nagent = \"coder\"\ncall = \"POST {url}\"\nbody = '{twice}'\nallow = false\nrule = \"origin\"\n"
    );
    let tests = home.path().join("expect.toml");
    std::fs::write(&tests, expect).unwrap();
    assert!(home.ok(&["policy", "test", tests.to_str().unwrap()]).contains("2 of 2"));
}

/// V-1: what an agent may not override: refused or stripped by rule, over HTTP/1.1 and HTTP/2, and in
/// no spelling; `Host` is the target's.
#[test]
fn v_1_headers_are_refused_or_stripped_by_rule() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    let rules = "refuse_headers = [\"cookie\"]\nstrip_headers = [\"x-debug-*\"]\n";
    let by_header = "inject = \"header\"\nname = \"X-Key\"";
    home.policy(&origin.policy(rules).replace("inject = \"bearer\"", by_header));
    let server = home.serve();
    let url = origin.url("/x");
    for version in ["--http1.1", "--http2"] {
        let call = |fields: &[&str]| {
            let fields: Vec<_> = fields.iter().flat_map(|field| ["-H", field]).collect();
            server.curl(&[&[version][..], &fields, &[&url]].concat())
        };
        let before = origin.origin.seen().len();
        for (field, name) in [
            ("COOKIE: a=b", "cookie"),
            ("authorization: Bearer mine", "authorization"),
            ("x-KEY: mine", "x-key"),
        ] {
            let refused = call(&[field]);
            assert_eq!((refused.status, refused.outcome()), (403, "not_attempted"), "{refused:?}");
            let error = &refused.json()["error"];
            let expected = format!("request.headers.{name}");
            assert_eq!(
                (&error["code"], &error["field"]),
                (&"HEADER_FORBIDDEN".into(), &expected.into())
            );
        }
        assert_eq!(origin.origin.seen().len(), before);
        let passed = call(&["X-Debug-Level: 9", "x-DEBUG-: y", "X-Debug: stays", "Accept: a/b"]);
        assert_eq!(passed.status, 200, "{passed:?}");
        let seen = origin.origin.seen().pop().unwrap();
        assert_eq!(seen.field("x-key"), Some(SECRET.to_owned()));
        assert_eq!((seen.field("x-debug-level"), seen.field("x-debug-")), (None, None));
        assert_eq!(seen.field("x-debug"), Some("stays".to_owned()));
        assert_eq!(
            seen.field("host"),
            Some(format!("localhost:{}", origin.origin.address().port()))
        );
    }
    let other = server.curl(&["-H", "Host: other.test", &url]);
    assert_eq!((other.status, other.outcome()), (421, "not_attempted"), "{other:?}");
}
