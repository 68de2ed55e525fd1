//! Methods that a server may take for others.

use super::*;

const TEXT: &str = r#"
[[credential]]
id = "c"
secret = "c"
inject = "bearer"

[[route]]
name = "wide"
match = { host = "a.test" }
credential = "c"

[[route]]
name = "remove"
match = { host = "a.test", methods = ["DELETE"] }
approval = "required"

[[route]]
name = "alone"
match = { host = "b.test" }

[[route]]
name = "posts"
match = { host = "c.test", methods = ["POST"] }
"#;

fn decided(
    snapshot: &Snapshot,
    host: &str,
    method: &str,
    query: Option<&str>,
    fields: &[(&str, &str)],
) -> Result<HttpGrant, (Code, String)> {
    let headers: Vec<_> = fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
    let details = Details { query, headers: &headers, body: Body::Absent };
    snapshot
        .http_with(&action(method, host, "/v1/x"), &details)
        .map_err(|denial| (denial.code, denial.field))
}

/// V-1: a method in small letters, or one that a field or a parameter names, opens no wider route.
#[test]
fn v_1_no_spelling_of_a_method_opens_a_wider_route() {
    let snapshot = compile(TEXT);
    let of = |host, method, query, fields: &[(&str, &str)]| {
        decided(&snapshot, host, method, query, fields).map(|grant| grant.route.unwrap())
    };
    let why = (Code::TargetNotAllowed, "method".to_owned());
    let refused = Err(why.clone());
    assert_eq!(of("a.test", "DELETE", None, &[]), Ok("remove".to_owned()));
    for method in ["delete", "Delete"] {
        assert_eq!(of("a.test", method, None, &[]), refused, "{method}");
    }
    for name in ["X-HTTP-Method-Override", "x_http_method", "X-Method-Override"] {
        assert_eq!(of("a.test", "POST", None, &[(name, " delete ")]), refused, "{name}");
        assert_eq!(of("c.test", "POST", None, &[(name, "DELETE")]), refused, "{name}");
        assert_eq!(of("c.test", "POST", None, &[(name, "POST")]), Ok("posts".to_owned()), "{name}");
        assert_eq!(of("a.test", "POST", None, &[(name, "")]), Ok("wide".to_owned()), "{name}");
    }
    for query in [
        "a=1&_method=DELETE",
        "_m%65thod=DELETE",
        "_METHOD=delete;b=1",
        "x=%zz&_method=DELETE",
        ".method=DELETE",
    ] {
        assert_eq!(of("a.test", "POST", Some(query), &[]), refused, "{query}");
    }
    assert_eq!(of("a.test", "POST", Some("method=DELETE"), &[]), Ok("wide".to_owned()));
    // One rule for all methods decides on each of them.
    assert_eq!(of("b.test", "delete", None, &[]), Ok("alone".to_owned()));
    // Open egress is no way around a rule.
    let open = compile(&format!("[defaults]\negress = \"allow\"\n{TEXT}"));
    let fields = [("X-HTTP-Method-Override", "POST")];
    assert_eq!(decided(&open, "c.test", "PUT", None, &fields).unwrap_err(), why);
    assert_eq!(decided(&open, "c.test", "PUT", None, &[]).unwrap().route, None);
}

/// S-4: what a server may take for a method that is not idempotent is not.
#[test]
fn s_4_an_overridden_method_proves_nothing_of_the_other() {
    let snapshot = compile(TEXT);
    let idempotent = |method: &str, other: &str| {
        let fields = [("X-HTTP-Method-Override", other)];
        decided(&snapshot, "b.test", method, None, &fields).unwrap().is_idempotent(method)
    };
    assert!(!idempotent("GET", "POST"));
    assert!(idempotent("GET", "PUT"));
    assert!(!idempotent("POST", "GET"));
    let open = compile("[defaults]\negress = \"allow\"\n");
    let fields = [("X-HTTP-Method-Override", "PATCH")];
    let grant = decided(&open, "x.test", "GET", None, &fields).unwrap();
    assert!(!grant.is_idempotent("GET"));
}

/// A TRACE brings back what was sent: no credential goes with one.
#[test]
fn v_1_no_credential_goes_with_a_trace() {
    let snapshot = compile(TEXT);
    let refused = Err((Code::UnsupportedAction, "method".to_owned()));
    let route = |host| decided(&snapshot, host, "TRACE", None, &[]).map(|grant| grant.route);
    assert_eq!(route("a.test"), refused);
    assert_eq!(route("b.test"), Ok(Some("alone".to_owned())));
}

/// V-1: to some services `_` in the name of a field is `-`.
#[test]
fn v_1_rules_on_fields_know_both_spellings() {
    let text = route(
        "r",
        "host = \"a.test\"",
        "refuse_headers = [\"x-forwarded-*\", \"x_tenant\"]\nstrip_headers = [\"x-debug\"]",
    );
    let grant = compile(&text).http(&action("GET", "a.test", "/")).unwrap();
    for name in ["X-Forwarded-For", "X_Forwarded_For", "x-forwarded_for", "X-Tenant", "x_tenant"] {
        assert_eq!(grant.check_headers([name]).unwrap_err().code, Code::HeaderForbidden, "{name}");
    }
    assert!(grant.strips("X_Debug") && grant.strips("x-debug") && !grant.strips("x-debugs"));
    assert!(grant.check_headers(["x-other", "x_debug"]).is_ok());
}
