//! Tests of what a grant says of a call's terms: repeats, keys, guards, approvals, budgets.

use super::*;

/// S-4: the route's word goes before the method's meaning, in both directions.
#[test]
fn s_4_idempotency_is_the_routes_word() {
    let text = route("plain", "host = \"a.test\"", "")
        + &route("yes", "host = \"b.test\"", "idempotent = true")
        + &route("no", "host = \"c.test\"", "idempotent = false");
    let snapshot = compile(&text);
    let known = |method: &str, host: &str| {
        snapshot.http(&action(method, host, "/")).unwrap().is_idempotent(method)
    };
    for (method, expected) in [
        ("GET", true),
        ("HEAD", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
    ] {
        assert_eq!(known(method, "a.test"), expected, "{method}");
        assert!(known(method, "b.test"), "{method}");
        assert!(!known(method, "c.test"), "{method}");
    }
}

/// K-4: no idempotency contract without a declaration; K-5: a short window without retention.
#[test]
fn k_4_no_contract_is_invented_and_k_5_retention_is_careful() {
    let text = route("plain", "host = \"a.test\"", "")
        + &route("keyed", "host = \"b.test\"", "idempotency = { header = \"Idempotency-Key\" }");
    let snapshot = compile(&text);
    assert_eq!(snapshot.http(&action("POST", "a.test", "/")).unwrap().idempotency, None);
    let rule = snapshot.http(&action("POST", "b.test", "/")).unwrap().idempotency.unwrap();
    assert_eq!(rule.contract, RemoteContract::Unverified);
    assert_eq!((rule.scope.as_str(), rule.retention), ("keyed", Duration::from_secs(3600)));
}

/// K-11: the guard is on unless a route says otherwise.
#[test]
fn k_11_the_guard_is_widened_narrowed_or_switched_off() {
    let text = "[defaults]\nrepeat_guard = \"5m\"\n".to_owned()
        + &route("default", "host = \"a.test\"", "")
        + &route("wide", "host = \"b.test\"", "repeat_guard = \"1h\"")
        + &route("off", "host = \"c.test\"", "repeat_guard = \"off\"");
    let snapshot = compile(&text);
    let window = |host| snapshot.http(&action("POST", host, "/")).unwrap().repeat_window;
    assert_eq!(window("a.test"), Some(Duration::from_secs(300)));
    assert_eq!(window("b.test"), Some(Duration::from_secs(3600)));
    assert_eq!(window("c.test"), None);
}

/// V-6: a route that requires approval says how its calls wait; where nothing is looked into, nobody
/// can be asked, and the route is closed.
#[test]
fn v_6_required_approval_is_part_of_the_grant() {
    let text = "[approvals]\nwait = \"5s\"\nexpire = \"10m\"\n".to_owned()
        + &route("r", "host = \"a.test\"", "approval = \"required\"")
        + &route("plain", "host = \"b.test\"", "")
        + &route("opaque", "host = \"c.test\"", "approval = \"required\"\nintercept = false");
    let snapshot = compile(&text);
    let asked = crate::Approval { wait: Duration::from_secs(5), expire: Duration::from_secs(600) };
    let approval = |host| snapshot.http(&action("GET", host, "/")).unwrap().approval;
    assert_eq!(approval("a.test"), Some(asked));
    assert_eq!(approval("b.test"), None);
    let denial = snapshot.opaque("coder", "c.test", 443).unwrap_err();
    assert_eq!((denial.code, denial.rule.as_str()), (Code::ApprovalPending, "opaque"));
}

#[test]
fn an_agent_has_the_smallest_numbers_of_its_budgets() {
    let text = "[[budget]]\nname = \"all\"\ncalls_per_minute = 9\nconcurrent_calls = 4\n\
                [[budget]]\nname = \"few\"\nagents = [\"coder\"]\ncalls_per_minute = 3\n\
                bytes_per_day = \"1GiB\"\n";
    let snapshot = compile(text);
    let budget = snapshot.budget("coder").unwrap();
    assert_eq!((budget.calls_per_minute, budget.concurrent_calls), (Some(3), Some(4)));
    assert_eq!(budget.bytes_per_day, Some(1 << 30));
    let other = snapshot.budget("other").unwrap();
    assert_eq!((other.calls_per_minute, other.bytes_per_day), (Some(9), None));
    assert_eq!(compile("").budget("coder"), None);
}

/// K-2, K-4: a key of the broker's own is the route's word, and goes into a field of its own.
#[test]
fn k_4_a_key_of_ours_is_the_routes_word() {
    let with = |rule: &str| {
        let rule = format!("idempotency = {{ {rule} }}");
        Snapshot::compile(&route("r", "host = \"a.test\"", &rule), "p.toml", 7)
    };
    let generates = |rule: &str| {
        let snapshot = with(rule).unwrap();
        let grant = snapshot.http(&action("POST", "a.test", "/")).unwrap();
        let terms = snapshot.explain_http(&action("POST", "a.test", "/")).to_string();
        let says = terms.contains("a key of ours where there is none");
        assert_eq!(grant.idempotency.unwrap().generate, says, "{terms}");
        says
    };
    assert!(!generates("header = \"X-Key\""));
    assert!(!generates("header = \"X-Key\", generate = false"));
    assert!(generates("header = \"X-Key\", generate = true"));
    for (header, generate, right) in [
        ("Content-Length", "true", false),
        ("Authorization", "true", false),
        ("Host", "true", false),
        ("Host", "false", true),
        ("X-Key", "1", false),
    ] {
        let rule = format!("header = \"{header}\", generate = {generate}");
        assert_eq!(with(&rule).is_ok(), right, "{rule}");
    }
}
