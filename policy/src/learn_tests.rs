//! Tests of drafts: each allows what it was made from, and little more.

use super::*;
use crate::{HttpAction, Snapshot};
use proptest::prelude::*;

fn seen(calls: &[(&str, &str, &str)]) -> BTreeSet<Seen> {
    let owned = |&(agent, method, target): &(&str, &str, &str)| Seen {
        agent: agent.to_owned(),
        method: method.to_owned(),
        target: target.to_owned(),
    };
    calls.iter().map(owned).collect()
}

fn compile(draft: &Draft) -> Snapshot {
    Snapshot::compile(&draft.text, "draft", 1).unwrap_or_else(|e| panic!("{}\n{e:#?}", draft.text))
}

fn allows(snapshot: &Snapshot, agent: &str, method: &str, target: &str) -> bool {
    let call = Call::from_words(&[method, target]).unwrap();
    let Call::Http { scheme, host, port, path, .. } = &call else { panic!("{call:?}") };
    let (host, port) = (host.as_str(), *port);
    snapshot.http(&HttpAction { agent, scheme: *scheme, host, port, method, path }).is_ok()
}

#[test]
fn identifiers_become_stars() {
    let draft = draft(&seen(&[
        ("a", "GET", "https://api.test/v1/users/17/orders"),
        ("a", "GET", "https://api.test/v1/users/18/orders"),
        ("a", "DELETE", "https://api.test/v1/users/18/orders"),
        ("b", "DELETE", "https://api.test/v1/users/18/orders"),
        ("a", "POST", "http://127.0.0.1:8080/jobs/0b5c1f2e-7a64-4f0e-9d3c-3b7a5b1c2d3e"),
    ]));
    assert_eq!(
        draft.text.split_once("egress = \"deny\" there.\n").unwrap().1,
        r#"
[[route]]
name = "learned-1-127.0.0.1"
agents = ["a"]
match = { scheme = "http", host = "127.0.0.1", methods = ["POST"], path = "/jobs/*", port = 8080 }
private_addresses = "allow"

[[route]]
name = "learned-2-api.test"
agents = ["a"]
match = { host = "api.test", methods = ["GET"], path = "/v1/users/*/orders" }

[[route]]
name = "learned-3-api.test"
agents = ["a", "b"]
match = { host = "api.test", methods = ["DELETE"], path = "/v1/users/*/orders" }
"#
    );
    let snapshot = compile(&draft);
    assert!(allows(&snapshot, "a", "GET", "https://api.test/v1/users/19/orders"));
    for (agent, method, target) in [
        ("b", "GET", "https://api.test/v1/users/17/orders"),
        ("a", "POST", "https://api.test/v1/users/17/orders"),
        ("a", "GET", "https://api.test/v1/users/17"),
        ("a", "GET", "https://other.test/v1/users/17/orders"),
        ("a", "GET", "http://api.test/v1/users/17/orders"),
    ] {
        assert!(!allows(&snapshot, agent, method, target), "{agent} {method} {target}");
    }
}

#[test]
fn many_variants_are_a_variable_and_many_names_a_wildcard() {
    let mut calls = Vec::new();
    for name in ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis"] {
        calls.push(("a", "GET", format!("https://api.test/repos/{name}/issues")));
    }
    for name in ["one", "two", "three", "four"] {
        calls.push(("a", "PUT", format!("https://{name}.s3.cloud.test/key")));
        calls.push(("a", "PUT", format!("https://{name}.shop.test/key")));
    }
    let calls: Vec<_> = calls.iter().map(|(a, m, t)| (*a, *m, t.as_str())).collect();
    let draft = draft(&seen(&calls));
    assert!(draft.text.contains(r#"path = "/repos/*/issues""#), "{}", draft.text);
    assert!(draft.text.contains(r#"host = "*.s3.cloud.test""#), "{}", draft.text);
    assert!(!draft.text.contains("*.shop.test"), "{}", draft.text);
    assert_eq!(draft.routes, 6);
    compile(&draft);
}

#[test]
fn versions_of_an_api_stay() {
    for segment in ["v1", "v1beta1", "2010-04-01", "repos", "chat-completions", "gpt-4.1-mini", ""]
    {
        assert!(!is_identifier(segment), "{segment}");
    }
    for segment in [
        "1",
        "20348",
        "deadbeefcafe1234",
        "pi_3MtwBwLkdIwHu7ix28a3tqPa",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abcdefghijk",
    ] {
        assert!(is_identifier(segment), "{segment}");
    }
}

#[test]
fn what_no_rule_can_name_is_told() {
    let odd = [
        ("a", "GET", "https://api.test/a*b"),
        ("a", "get", "https://api.test/"),
        ("", "GET", "https://api.test/x"),
        ("a", "GET", ""),
        ("a", "GET", "https://api.test//v1/x"),
    ];
    let draft = draft(&seen(&odd));
    assert_eq!((draft.routes, draft.left_out.len()), (0, 5), "{draft:#?}");
    compile(&draft);
}

/// What was refused at the opening of its tunnel has no path: the host and the port are named, unless calls
/// inside are known.
#[test]
fn a_tunnel_that_was_not_opened_is_a_route() {
    let draft = draft(&seen(&[
        ("a", "CONNECT", "https://api.test:8443"),
        ("b", "CONNECT", "https://api.test:8443"),
        ("b", "GET", "https://api.test:8443/x"),
    ]));
    assert_eq!(
        draft.text.split_once("egress = \"deny\" there.\n").unwrap().1,
        r#"
# Only tunnels were seen, which were not opened: methods and paths are not known, so all
# are allowed here. `egress = "observe"` learns them.
[[route]]
name = "learned-1-api.test"
agents = ["a"]
match = { host = "api.test", port = 8443 }

[[route]]
name = "learned-2-api.test"
agents = ["b"]
match = { host = "api.test", methods = ["GET"], path = "/x", port = 8443 }
"#
    );
    assert_eq!(draft.left_out, BTreeSet::new());
    let snapshot = compile(&draft);
    for agent in ["a", "b"] {
        assert_eq!(snapshot.tunnel(agent, "api.test", 8443), Ok(()));
    }
    assert!(snapshot.tunnel("a", "api.test", 443).is_err());
    assert!(allows(&snapshot, "a", "POST", "https://api.test:8443/y"));
    assert!(!allows(&snapshot, "b", "POST", "https://api.test:8443/y"));
}

proptest! {
    /// A draft is a valid policy, and allows every call that it was made from and could name.
    #[test]
    fn a_draft_allows_what_it_was_made_from(
        calls in prop::collection::btree_set(
            ("[ab]", "GET|POST|PUT", "https?", "[a-d]{1,2}(\\.[a-c]){1,3}", "(/([a-d]{0,2}|[0-9]{1,3}|v1)){1,10}"),
            1..60,
        )
    ) {
        let seen: BTreeSet<Seen> = calls
            .into_iter()
            .map(|(agent, method, scheme, host, path)| Seen {
                agent, method, target: format!("{scheme}://{host}.test{path}"),
            })
            .collect();
        let draft = draft(&seen);
        let snapshot = compile(&draft);
        for call in seen.iter().filter(|call| !draft.left_out.contains(&call.target)) {
            let Seen { agent, method, target } = call;
            prop_assert!(allows(&snapshot, agent, method, target), "{call:?}\n{}", draft.text);
        }
    }
}
