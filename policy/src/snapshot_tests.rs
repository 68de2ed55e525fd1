//! Tests of the decision: what matches, what wins, what is refused and why.

use super::*;
use crate::{Inject, Scheme, SshRequest};
use journal::contract::{KeepResult, RemoteContract};
use std::time::Duration;

#[path = "snapshot/grant_tests.rs"]
mod grants;
#[path = "snapshot/method_tests.rs"]
mod methods;
#[path = "snapshot/order_tests.rs"]
mod order_of_rules;
#[path = "snapshot/ssh_tests.rs"]
mod ssh_routes;
#[path = "snapshot/ties_tests.rs"]
mod ties;

fn compile(text: &str) -> Snapshot {
    Snapshot::compile(text, "p.toml", 7).unwrap_or_else(|found| panic!("{found:#?}"))
}

fn example() -> Snapshot {
    compile(include_str!("example.toml"))
}

fn action<'a>(method: &'a str, host: &'a str, path: &'a str) -> HttpAction<'a> {
    HttpAction { agent: "coder", scheme: Scheme::Https, host, port: 443, method, path }
}

fn route(name: &str, conditions: &str, rest: &str) -> String {
    format!("[[route]]\nname = \"{name}\"\nmatch = {{ {conditions} }}\n{rest}\n")
}

#[test]
fn the_example_grants_what_it_says() {
    let snapshot = example();
    assert_eq!(snapshot.version(), 7);
    let grant = snapshot.http(&action("POST", "API.pay.example.", "/v1/%63harges")).unwrap();
    assert_eq!(grant.route.as_deref(), Some("payments.create"));
    let credential = grant.credential.unwrap();
    assert_eq!((credential.id.as_str(), credential.inject), ("pay", Inject::Bearer));
    assert_eq!(grant.idempotent, Some(false));
    let rule = grant.idempotency.unwrap();
    let place = rule.place.to_string();
    assert_eq!((place.as_str(), rule.scope.as_str()), ("idempotency-key", "payments.create"));
    assert_eq!(rule.retention, Duration::from_secs(86_400));
    assert_eq!(rule.contract, RemoteContract::Verified);
    assert_eq!((grant.keep, grant.keep_bytes), (KeepResult::Full, 8 << 20));
    assert_eq!(grant.keep_for, Duration::from_secs(7 * 86_400));
    assert_eq!(grant.limits.request_bytes, 10 << 20);
    assert_eq!(grant.limits.response_timeout, Duration::from_secs(600));
    assert_eq!(grant.limits.idle_timeout, Duration::from_secs(60));
    assert_eq!(grant.repeat_window, Some(Duration::from_secs(600)));
    assert!(!grant.private_addresses);
    let trusted = snapshot.trust_for("API.PAY.EXAMPLE");
    assert_eq!(trusted, [PathBuf::from("/etc/ssl/private-ca.pem")]);
    assert!(snapshot.trust_for("other.example").is_empty());
}

/// V-1 and V-2: each refusal has its code and the field that can be corrected.
#[test]
fn v_1_refusals_have_code_and_v_2_field() {
    let snapshot = example();
    let check = |action: HttpAction<'_>, code: Code, field: &str| {
        let denial = snapshot.http(&action).unwrap_err();
        assert_eq!((denial.code, denial.field.as_str()), (code, field), "{action:?} {denial}");
        assert_eq!(denial.verdict().outcome().as_str(), "not_attempted");
        assert_eq!(denial.verdict().phase().as_str(), "validation");
        assert_eq!(denial.verdict().retry().as_str(), "after_correction");
    };
    let good = action("POST", "api.pay.example", "/v1/charges");
    assert!(snapshot.http(&good).is_ok());
    let denied = Code::TargetNotAllowed;
    check(HttpAction { agent: "other", ..good }, denied, "target.host");
    check(HttpAction { host: "api.pay.example.evil.test", ..good }, denied, "target.host");
    check(HttpAction { scheme: Scheme::Http, ..good }, denied, "target.scheme");
    check(HttpAction { port: 8443, ..good }, denied, "target.port");
    check(HttpAction { path: "/v1/charges/1", ..good }, denied, "target.path");
    check(HttpAction { path: "/v1/Charges", ..good }, denied, "target.path");
    check(HttpAction { method: "GET", ..good }, denied, "method");
    check(HttpAction { method: "post", ..good }, denied, "method");
    check(HttpAction { host: "user@host", ..good }, Code::InvalidTarget, "target.host");
    check(HttpAction { host: "", ..good }, Code::InvalidTarget, "target.host");
    check(HttpAction { path: "/v1/..%2fcharges", ..good }, Code::InvalidTarget, "target.path");
    check(HttpAction { path: "charges", ..good }, Code::InvalidTarget, "target.path");
}

/// V-3: a refusal repeats neither path nor reference.
#[test]
fn v_3_refusals_show_no_secrets() {
    let snapshot = example();
    let denial = snapshot.http(&action("GET", "api.pay.example", "/bot-canary/x")).unwrap_err();
    assert!(!denial.message.contains("canary") && !denial.message.contains("pay-token"));
    let ssh = SshAction {
        agent: "coder",
        host: "prod-1",
        port: 22,
        user: "deploy",
        request: SshRequest::Exec(b"login --password canary"),
    };
    let denial = snapshot.ssh(&ssh).unwrap_err();
    assert_eq!((denial.code, denial.field.as_str()), (Code::TargetNotAllowed, "command"));
    assert!(!denial.message.contains("canary"));
}

/// V-1: a header that the route sets is refused, in any case of its letters.
#[test]
fn v_1_forbidden_headers_are_refused() {
    let snapshot = example();
    let grant = snapshot.http(&action("POST", "api.pay.example", "/v1/charges")).unwrap();
    assert!(grant.check_headers(["accept", "idempotency-key"]).is_ok());
    let denial = grant.check_headers(["Accept", "AUTHORIZATION"]).unwrap_err();
    assert_eq!(denial.code, Code::HeaderForbidden);
    assert_eq!(denial.field, "request.headers.authorization");
    assert_eq!(denial.rule, "payments.create");
    let text =
        include_str!("example.toml").replace("idempotent = false", "agent_header = \"replace\"");
    let grant = compile(&text).http(&action("POST", "api.pay.example", "/v1/charges")).unwrap();
    assert!(grant.check_headers(["authorization"]).is_ok());
}

/// V-1: rules on headers: what a credential sets, `Authorization` beside it, names with stars.
#[test]
fn v_1_header_rules_refuse_and_strip() {
    let credential = |keys: &str| format!("[[credential]]\nid = \"c\"\nsecret = \"s\"\n{keys}\n");
    let grant = |keys: &str, rules: &str| {
        let rules = format!("credential = \"c\"\n{rules}");
        let text = credential(keys) + &route("r", "host = \"a.test\"", &rules);
        compile(&text).http(&action("GET", "a.test", "/")).unwrap()
    };
    let refused = |grant: &HttpGrant, name: &str| grant.check_headers([name]).is_err();
    let key = "inject = \"header\"\nname = \"X-Key\"";
    let by_default = grant(key, "");
    assert!(refused(&by_default, "x-KEY") && refused(&by_default, "Authorization"));
    assert!(!refused(&by_default, "cookie") && !by_default.strips("authorization"));
    let replaced = grant(key, "agent_header = \"replace\"");
    assert!(!refused(&replaced, "x-key") && replaced.strips("AUTHORIZATION"));
    assert!(!replaced.strips("x-key"), "the credential takes its place");
    let passed = grant(key, "agent_header = \"pass\"");
    assert!(refused(&passed, "x-key") && !refused(&passed, "authorization"));
    assert!(!passed.strips("authorization"));
    let placeholder = grant("inject = \"placeholder\"", "");
    assert!(!refused(&placeholder, "authorization"));
    let rules = "refuse_headers = [\"Cookie\"]\nstrip_headers = [\"x-*\", \"h*\"]";
    let ruled = grant("inject = \"bearer\"", rules);
    assert!(refused(&ruled, "cookie") && refused(&ruled, "authorization"));
    assert!(ruled.strips("X-Debug") && !ruled.strips("accept") && !ruled.strips("Host"));
    assert!(ruled.drops_trailer("cookie") && ruled.drops_trailer("x-a"));
    for (keys, rules) in [
        ("inject = \"bearer\"", "agent_header = \"pass\""),
        (key, "strip_headers = [\"Host\"]"),
        (key, "refuse_headers = [\"*\"]"),
        (key, "refuse_headers = [\"a b\"]"),
    ] {
        let rules = format!("credential = \"c\"\n{rules}");
        let text = credential(keys) + &route("r", "host = \"a.test\"", &rules);
        assert!(Snapshot::compile(&text, "p", 1).is_err(), "{text}");
    }
}

#[test]
fn open_egress_forwards_without_credential() {
    let text = "[defaults]\negress = \"allow\"\n".to_owned()
        + include_str!("example.toml")
            .split_once("[[credential]]")
            .map(|(_, rest)| rest)
            .map(|rest| format!("[[credential]]{rest}"))
            .unwrap()
            .as_str();
    let snapshot = compile(&text);
    let grant = snapshot.http(&action("GET", "elsewhere.test", "/x")).unwrap();
    assert_eq!((grant.route, grant.credential, grant.private_addresses), (None, None, false));
    let grant = snapshot.http(&action("DELETE", "api.pay.example", "/v1/charges")).unwrap();
    assert_eq!((grant.route, grant.credential), (None, None));
    assert!(snapshot.tunnel("coder", "elsewhere.test", 443).is_ok());
    assert!(snapshot.ssh_target("coder", "elsewhere.test", 22).is_err(), "SSH stays closed");
}

#[test]
fn tunnels_lead_where_routes_lead() {
    let snapshot = example();
    assert!(snapshot.tunnel("coder", "api.pay.example", 443).is_ok());
    let denied = |agent, host, port| snapshot.tunnel(agent, host, port).unwrap_err();
    assert_eq!(denied("coder", "api.pay.example", 80).field, "target.port");
    assert_eq!(denied("other", "api.pay.example", 443).field, "target.host");
    assert_eq!(denied("coder", "a b", 443).code, Code::InvalidTarget);
}

#[test]
fn the_narrowest_route_wins() {
    let text = [
        route("suffix", "host = \"*.pay.test\"", ""),
        route("longer-suffix", "host = \"*.eu.pay.test\"", ""),
        route("host", "host = \"api.pay.test\"", ""),
        route("tree", "host = \"api.pay.test\", path = \"/v1/**\"", ""),
        route("segment", "host = \"api.pay.test\", path = \"/v1/*\"", ""),
        route("glob", "host = \"api.pay.test\", path = \"/v1/ch*\"", ""),
        route("path", "host = \"api.pay.test\", path = \"/v1/charges\"", ""),
        route("post", "host = \"api.pay.test\", path = \"/v1/charges\", methods = [\"POST\"]", ""),
        route(
            "mine",
            "host = \"api.pay.test\", path = \"/v1/charges\", methods = [\"POST\"]",
            "agents = [\"coder\"]",
        ),
        route("deep", "host = \"api.pay.test\", path = \"/v1/charges/**\"", ""),
    ];
    for rotation in 0..text.len() {
        let mut text = text.clone();
        text.rotate_left(rotation);
        let snapshot = compile(&text.concat());
        let who =
            |agent: &'static str, method: &'static str, host: &'static str, path: &'static str| {
                let action = HttpAction { agent, ..action(method, host, path) };
                snapshot.http(&action).unwrap().route.unwrap()
            };
        assert_eq!(who("coder", "POST", "api.pay.test", "/v1/charges"), "mine");
        assert_eq!(who("other", "POST", "api.pay.test", "/v1/charges"), "post");
        assert_eq!(who("coder", "GET", "api.pay.test", "/v1/charges"), "path");
        assert_eq!(who("coder", "GET", "api.pay.test", "/v1/charts"), "glob");
        assert_eq!(who("coder", "GET", "api.pay.test", "/v1/refunds"), "segment");
        assert_eq!(who("coder", "GET", "api.pay.test", "/v1/refunds/1"), "tree");
        assert_eq!(who("coder", "GET", "api.pay.test", "/v1/charges/1/x"), "deep");
        assert_eq!(who("coder", "GET", "api.pay.test", "/other"), "host");
        assert_eq!(who("coder", "OPTIONS", "api.pay.test", "*"), "host");
        assert_eq!(who("coder", "GET", "www.pay.test", "/v1/charges"), "suffix");
        assert_eq!(who("coder", "GET", "a.b.eu.pay.test", "/"), "longer-suffix");
        assert!(snapshot.http(&action("GET", "pay.test", "/")).is_err());
    }
}

/// V-1 and V-2: conditions narrow a route, and a refusal names the part that fails them.
#[test]
fn v_1_conditions_on_headers_and_query_narrow_routes() {
    let reads = "host = \"ec2.test\", query = { Action = [\"Describe*\"] }";
    let dynamo = "host = \"dynamo.test\", headers = { X-Amz-Target = \"DynamoDB.Get*\" }";
    let text = route("reads", reads, "idempotent = true")
        + &route("all", "host = \"ec2.test\", methods = [\"POST\"]", "")
        + &route("items", dynamo, "");
    let snapshot = compile(&text);
    let decide = |method, host, query, headers: &[(&[u8], &[u8])]| {
        let details = Details { query, headers, body: Body::Absent };
        let decided = snapshot.http_with(&action(method, host, "/"), &details);
        decided.map(|grant| grant.route.unwrap()).map_err(|denial| denial.field)
    };
    let reading = Some("Action=DescribeInstances");
    assert_eq!(decide("GET", "ec2.test", reading, &[]), Ok("reads".to_owned()));
    assert_eq!(decide("POST", "ec2.test", reading, &[]), Ok("reads".to_owned()));
    let running = Some("Action=RunInstances");
    assert_eq!(decide("POST", "ec2.test", running, &[]), Ok("all".to_owned()));
    assert_eq!(decide("GET", "ec2.test", running, &[]), Err("target.query".to_owned()));
    assert_eq!(decide("GET", "ec2.test", None, &[]), Err("target.query".to_owned()));
    let get: &[(&[u8], &[u8])] = &[(b"x-amz-target", b"DynamoDB.GetItem")];
    assert_eq!(decide("POST", "dynamo.test", None, get), Ok("items".to_owned()));
    assert_eq!(decide("POST", "dynamo.test", None, &[]), Err("request.headers".to_owned()));
    let told = snapshot.explain_http(&action("POST", "ec2.test", "/"));
    assert_eq!(
        (told.rule.as_str(), told.considered[0].reason.as_str()),
        ("all", "has a condition on the query")
    );
}

#[test]
fn explanations_tell_rule_injection_and_others() {
    let text = include_str!("example.toml").to_owned()
        + &route("payments.read", "host = \"api.pay.example\", methods = [\"GET\"]", "")
        + &route("payments.any", "host = \"*.pay.example\"", "");
    let snapshot = compile(&text);
    let told = snapshot.explain_http(&action("POST", "api.pay.example", "/v1/charges"));
    assert!(told.allowed);
    assert_eq!(
        (told.rule.as_str(), told.line, told.policy_version),
        ("payments.create", Some(15), 7)
    );
    assert_eq!(
        told.injects.as_deref(),
        Some("credential \"pay\" (vault) as header authorization, bearer")
    );
    let others: Vec<_> =
        told.considered.iter().map(|c| (c.route.as_str(), c.reason.as_str())).collect();
    let expected =
        [("payments.read", "is for other methods"), ("payments.any", "matches, but is wider")];
    assert_eq!(others, expected);
    assert!(told.terms.iter().any(|t| t.contains("a repeat with the same key is safe")));
    let shown = told.to_string();
    assert!(
        shown.starts_with("allowed: POST https://api.pay.example:443/v1/charges as agent coder")
    );
    assert!(!shown.contains("pay-token"), "{shown}");
    let denied = snapshot.explain_http(&action("GET", "elsewhere.test", "/"));
    assert_eq!((denied.allowed, denied.rule.as_str()), (false, "defaults.egress"));
    assert_eq!(denied.code, Some(Code::TargetNotAllowed));
    assert_eq!(serde_json::to_value(&denied).unwrap()["code"], "TARGET_NOT_ALLOWED");
    let told =
        snapshot.explain_ssh(&ssh_routes::ssh("deploy", SshRequest::Exec(b"/opt/deploy v1")));
    assert_eq!((told.allowed, told.rule.as_str()), (true, "deploy"));
    let denied = snapshot.explain_ssh(&ssh_routes::ssh("root", SshRequest::Shell));
    assert_eq!(denied.considered[0].reason, "is for other users");
}

/// `intercept = false`: the narrowest host decides; routes of one host that differ are intercepted.
#[test]
fn tunnels_are_left_alone_by_the_narrowest_host() {
    let text = route("wide", "host = \"*.test\"", "intercept = false")
        + &route("narrow", "host = \"a.test\"", "")
        + &route("pinned", "host = \"b.a.test\"", "intercept = false")
        + &route("mixed", "host = \"c.test\", path = \"/x\"", "")
        + &route("mixed-too", "host = \"c.test\"", "intercept = false");
    let snapshot = compile(&text);
    let alone =
        |host, port| snapshot.opaque("coder", host, port).unwrap().and_then(|grant| grant.route);
    assert_eq!(alone("x.test", 443).as_deref(), Some("wide"));
    assert_eq!(alone("X.test.", 443).as_deref(), Some("wide"));
    assert_eq!(alone("x.test", 444), None);
    assert_eq!(alone("a.test", 443), None);
    assert_eq!(alone("b.a.test", 443).as_deref(), Some("pinned"));
    assert_eq!(alone("c.test", 443), None);
}

/// What is said of a tunnel is what holds for it.
#[test]
fn tunnels_are_explained() {
    let text = "[[parent]]\nname = \"corp\"\nurl = \"http://proxy.test:3128\"\n\
                no_proxy = [\"b.test\"]\n[defaults]\nparent = \"corp\"\n"
        .to_owned()
        + &route("alone", "host = \"a.test\"", "intercept = false")
        + &route("seen", "host = \"b.test\", path = \"/x\"", "")
        + &route("asked", "host = \"c.test\"", "approval = \"required\"\nintercept = false");
    let snapshot = compile(&text);
    let explain = |call: &str| {
        crate::call::Call::parse(call).unwrap().explain(&snapshot, "coder", &Default::default())
    };
    for call in ["CONNECT a.test:443", "CONNECT https://a.test", "POST https://a.test/x"] {
        let told = explain(call);
        assert_eq!((told.allowed, told.rule.as_str()), (true, "alone"), "{call}");
        assert_eq!((told.idempotent, told.injects.clone()), (None, None), "{call}");
        let expected = [
            "the tunnel is left alone: nothing inside is seen, judged, injected or kept; its outcome is \
             unknown",
            "through the upstream proxy \"corp\"",
        ];
        assert_eq!(told.terms, expected, "{call}");
    }
    let opened = explain("CONNECT b.test:443");
    assert_eq!((opened.allowed, opened.terms.len()), (true, 1), "{opened}");
    let past = "past the upstream proxy \"corp\", by its no_proxy".to_owned();
    assert!(explain("GET https://b.test/x").terms.contains(&past));
    assert!(!explain("CONNECT b.test:444").allowed);
    let asked = explain("CONNECT c.test:443");
    assert_eq!((asked.allowed, asked.code), (false, Some(Code::ApprovalPending)));
    // `egress` is no rule for SSH.
    let ssh = explain("ssh u@a.test id");
    assert_eq!((ssh.allowed, ssh.rule.as_str(), ssh.line), (false, "none", None));
}

/// A route that is not intercepted has no place for what looks inside.
#[test]
fn what_is_not_intercepted_can_not_be_judged() {
    for (rest, terms) in [
        (", path = \"/x\"", ""),
        (", methods = [\"GET\"]", ""),
        (", scheme = \"http\"", ""),
        ("", "idempotent = true\n"),
    ] {
        let text =
            route("r", &format!("host = \"a.test\"{rest}"), &format!("{terms}intercept = false"));
        assert_eq!(Snapshot::compile(&text, "p", 1).unwrap_err().len(), 1, "{rest} {terms}");
    }
}

/// V-1: where a stricter route looks at a name that is there twice, or that can't be read, no wider
/// route decides instead: services differ in which of the values they take.
#[test]
fn v_1_a_doubled_name_opens_no_wider_route() {
    let text = route("strict", "host = \"ec2.test\", query = { Action = \"Terminate*\" }", "")
        + &route("tagged", "host = \"tag.test\", headers = { X-Mode = \"live\" }", "")
        + &route("wide", "host = \"ec2.test\"", "")
        + &route("wide-too", "host = \"tag.test\"", "");
    let snapshot = compile(&text);
    let decide = |host, query, headers: &[(&[u8], &[u8])]| {
        let details = Details { query, headers, body: Body::Absent };
        assert!(!snapshot.looks_at_body(&action("GET", host, "/"), &details));
        let decided = snapshot.http_with(&action("GET", host, "/"), &details);
        decided.map(|grant| grant.route.unwrap()).map_err(|denial| (denial.field, denial.rule))
    };
    let refused = |field: &str, rule: &str| Err((field.to_owned(), rule.to_owned()));
    for query in [
        "Action=Describe&Action=TerminateInstances",
        "Action=TerminateInstances&Action=",
        "Action=TerminateInstances&x=%zz",
    ] {
        assert_eq!(
            decide("ec2.test", Some(query), &[]),
            refused("target.query", "strict"),
            "{query}"
        );
    }
    assert_eq!(decide("ec2.test", Some("Action=Describe"), &[]), Ok("wide".to_owned()));
    assert_eq!(decide("ec2.test", None, &[]), Ok("wide".to_owned()));
    let twice: &[(&[u8], &[u8])] = &[(b"x-mode", b"dry"), (b"X-Mode", b"live")];
    assert_eq!(decide("tag.test", None, twice), refused("request.headers", "tagged"));
    assert_eq!(decide("tag.test", None, &twice[..1]), Ok("wide-too".to_owned()));
}

/// V-1: a path that a server may read as that of a narrower route is not decided by the wider one.
#[test]
fn v_1_spelling_opens_no_wider_route() {
    let text = route("all", "host = \"a.test\", path = \"/**\"", "")
        + &route("admin", "host = \"a.test\", path = \"/admin/**\"", "approval = \"required\"")
        + &route("pay", "host = \"a.test\", path = \"/v1/charges\"", "approval = \"required\"")
        + &route("git", "host = \"git.test\", path = \"/projects/*/issues\"", "")
        + &route("git-all", "host = \"git.test\", path = \"/projects/**\"", "");
    let snapshot = compile(&text);
    let decide = |host, path| {
        let decided = snapshot.http(&action("GET", host, path));
        decided.map(|grant| grant.route.unwrap()).map_err(|denial| (denial.code, denial.rule))
    };
    for path in [
        "/admin%2Fx",
        "/admin%5cx",
        "/admin\\x",
        "/admin;v=1/x",
        "/admin/../pub",
        "/x/../admin;/y",
        "/v1;a/charges",
        "/v1/charges/",
        "/v1//charges/;x",
        "/ADMIN/x",
        "/Admin%2Fx",
        "/v1/Charges",
        "/V1/CHARGES/",
    ] {
        assert!(matches!(decide("a.test", path), Err((Code::InvalidTarget, _))), "{path}");
    }
    for (path, rule) in
        [("/admin/x", "admin"), ("/v1/charges", "pay"), ("/pub/a%2Fb;c/", "all"), ("/Pub/X", "all")]
    {
        assert_eq!(decide("a.test", path), Ok(rule.to_owned()), "{path}");
    }
    // A narrower route may be meant for the escape.
    assert_eq!(decide("git.test", "/projects/group%2Fproject/issues"), Ok("git".to_owned()));
    let open = compile(
        &("[defaults]\negress = \"allow\"\n".to_owned()
            + &text.replacen("path = \"/**\"", "path = \"/pub\"", 1)),
    );
    let decided = |path| open.http(&action("GET", "a.test", path)).map_err(|denial| denial.code);
    assert_eq!(decided("/admin%2Fx").unwrap_err(), Code::InvalidTarget);
    assert_eq!(decided("/Admin/x").unwrap_err(), Code::InvalidTarget);
    assert!(decided("/other%2Fx").is_ok());
}

/// V-1: a server that takes two slashes for the beginning of an authority (`new URL(path, base)`) is not led
/// to a path that the route does not allow, or that another one decides on.
#[test]
fn v_1_an_authority_in_a_path_opens_nothing() {
    let text = route("public", "host = \"a.test\", path = \"/public/**\"", "")
        + &route("all", "host = \"b.test\"", "")
        + &route("admin", "host = \"b.test\", path = \"/admin/**\"", "approval = \"required\"");
    let snapshot = compile(&text);
    let decide = |host, path| {
        let decided = snapshot.http(&action("GET", host, path));
        decided.map(|grant| grant.route.unwrap()).map_err(|denial| denial.code)
    };
    for path in ["//public/admin/del", "///public/x", "//public", "/\\public/admin"] {
        assert!(decide("a.test", path).is_err(), "{path}");
    }
    assert_eq!(decide("a.test", "//x/public/y"), Err(Code::TargetNotAllowed));
    assert_eq!(decide("a.test", "//public/public/y"), Ok("public".to_owned()));
    for path in ["//x/admin/del", "//x:1/Admin/del", "/\\x/admin/del", "/\\x\\admin\\del"] {
        assert_eq!(decide("b.test", path), Err(Code::InvalidTarget), "{path}");
    }
    assert_eq!(decide("b.test", "//v1/x"), Ok("all".to_owned()));
    assert_eq!(decide("b.test", "//v1"), Ok("all".to_owned()));
}

/// V-1: rules that differ in case are two; each decides what is spelt as it is, and no other spelling.
#[test]
fn v_1_rules_that_differ_in_case_are_two() {
    let snapshot = compile(
        &(route("upper", "host = \"a.test\", path = \"/Reports/**\"", "")
            + &route("lower", "host = \"a.test\", path = \"/reports/**\"", "")),
    );
    let decide = |path| {
        let decided = snapshot.http(&action("GET", "a.test", path));
        decided.map(|grant| grant.route.unwrap()).map_err(|denial| denial.code)
    };
    assert_eq!(decide("/Reports/a"), Ok("upper".to_owned()));
    assert_eq!(decide("/reports/A"), Ok("lower".to_owned()));
    assert_eq!(decide("/REPORTS/a"), Err(Code::TargetNotAllowed));
}
