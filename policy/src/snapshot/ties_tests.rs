//! Rules of which neither is narrower are refused, and found among many.

use super::*;
use ssh_routes::ssh_route;

fn tie(text: &str, names: [&str; 2], lines: [usize; 2]) {
    let found = Snapshot::compile(text, "p", 0).unwrap_err();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].line, lines[1], "{found:#?}");
    for part in [names[0], names[1], &format!("line {}", lines[0])] {
        assert!(found[0].message.contains(part), "{part}: {}", found[0].message);
    }
}

#[test]
fn ties_are_refused_with_both_names() {
    let pair = |a: &str, b: &str| route("one", a, "") + &route("two", b, "");
    let host = "host = \"a.test\"";
    tie(&pair(host, host), ["one", "two"], [1, 5]);
    tie(&pair("host = \"A.TEST.\"", host), ["one", "two"], [1, 5]);
    let path = |p: &str| format!("{host}, path = \"{p}\"");
    tie(&pair(&path("/a"), &path("/%61")), ["one", "two"], [1, 5]);
    tie(&pair(&path("/a*"), &path("/*b")), ["one", "two"], [1, 5]);
    let methods = |m: &str| format!("{host}, methods = [{m}]");
    tie(
        &pair(&methods("\"GET\", \"POST\""), &methods("\"POST\", \"PUT\"")),
        ["one", "two"],
        [1, 5],
    );
    for (a, b) in [
        (path("/a"), path("/b")),
        (path("/a*"), path("/b*")),
        (path("/a/*"), path("/a/**")),
        (path("/a/*/c"), path("/a/b/*")),
        (methods("\"GET\""), methods("\"POST\"")),
        (methods("\"GET\", \"POST\""), methods("\"POST\"")),
        (methods("\"GET\""), host.to_owned()),
        (host.to_owned(), format!("{host}, port = 8443")),
        (host.to_owned(), format!("{host}, scheme = \"http\"")),
    ] {
        compile(&pair(&a, &b));
    }
    let agents = |a: &str, b: &str| {
        route("one", host, &format!("agents = [{a}]"))
            + &route("two", host, &format!("agents = [{b}]"))
    };
    tie(&agents("\"x\", \"y\"", "\"y\", \"z\""), ["one", "two"], [1, 5]);
    compile(&agents("\"x\"", "\"y\""));
    compile(&agents("\"x\", \"y\"", "\"y\""));
}

#[test]
fn conditions_that_cross_are_ties() {
    let host = "host = \"a.test\"";
    let pair = |a: &str, b: &str| {
        route("one", &format!("{host}, {a}"), "") + &route("two", &format!("{host}, {b}"), "")
    };
    tie(&pair("query = { a = \"1\" }", "query = { b = \"1\" }"), ["one", "two"], [1, 5]);
    tie(&pair("query = { a = \"1*\" }", "query = { a = \"*2\" }"), ["one", "two"], [1, 5]);
    let methods = "query = { b = \"1\" }, methods = [\"GET\"]";
    tie(&pair("query = { a = \"1\" }", methods), ["one", "two"], [1, 5]);
    compile(&pair("query = { a = \"1\" }", "query = { a = \"2\" }"));
    compile(&pair("query = { a = \"1\" }", "query = { a = \"1\", b = \"2\" }"));
    compile(&pair(
        "query = { a = \"1\" }, methods = [\"GET\"]",
        "query = { b = \"1\" }, methods = [\"PUT\"]",
    ));
    compile(&pair("query = { a = \"1\" }", "query = { a = \"1\" }, methods = [\"GET\"]"));
}

#[test]
fn ssh_ties_are_refused() {
    let pair = |a: &str, b: &str| ssh_route("one", a, "") + &ssh_route("two", b, "");
    tie(&pair("", ""), ["one", "two"], [1, 5]);
    tie(&pair(", commands = [\"a*\"]", ", commands = [\"*b\"]"), ["one", "two"], [1, 5]);
    let users = ", users = [\"x\", \"y\"]";
    tie(&pair(users, ", users = [\"y\", \"z\"]"), ["one", "two"], [1, 5]);
    compile(&pair(users, ", users = [\"z\"]"));
    compile(&pair(users, ", users = [\"y\"]"));
    compile(&pair("", ", commands = [\"a\"]"));
    compile(&pair(", commands = [\"a*\"]", ", commands = [\"b*\"]"));
    compile(&(ssh_route("one", "", "allow = [\"shell\"]") + &ssh_route("two", "", "")));
}

/// Ten thousand routes, by host and by agent, are compiled and decide; `./dev bench policy` says how
/// fast.
#[test]
fn ten_thousand_routes_decide() {
    use std::fmt::Write as _;
    let mut text = String::new();
    for i in 0..5_000 {
        let host = format!("host = \"h{i}.test\", path = \"/v1/**\"");
        let rest = format!("agents = [\"agent-{i}\"]");
        write!(text, "{}", route(&format!("host-{i}"), &host, "")).unwrap();
        write!(text, "{}", route(&format!("agent-{i}"), "host = \"api.test\"", &rest)).unwrap();
    }
    let snapshot = compile(&text);
    for i in 0..2_000 {
        let host = format!("h{i}.test");
        assert!(snapshot.http(&action("GET", &host, "/v1/x/y")).is_ok());
        let agent = format!("agent-{i}");
        let shared = HttpAction { agent: &agent, ..action("GET", "api.test", "/") };
        assert!(snapshot.http(&shared).is_ok());
    }
}

/// Ten thousand rules that stars keep in one list are told apart by what differs, whatever that is.
#[test]
fn ten_thousand_rules_of_one_host_are_compared_in_time() {
    use std::fmt::Write as _;
    type Form = fn(usize) -> String;
    let forms: [Form; 8] = [
        |n| route(&format!("r{n}"), &format!("host = \"a.test\", path = \"/*/x{n:05}\""), ""),
        |n| route(&format!("r{n}"), &format!("host = \"a.test\", path = \"/**/x{n:05}\""), ""),
        |n| route(&format!("r{n}"), &format!("host = \"a.test\", path = \"/x{n:05}*\""), ""),
        |n| route(&format!("r{n}"), &format!("host = \"a.test\", path = \"/*x{n:05}/*\""), ""),
        |n| {
            route(
                &format!("r{n}"),
                &format!("host = \"a.test\", headers = {{ X-T = \"{n:05}\" }}"),
                "",
            )
        },
        |n| {
            let host = "host = \"a.test\", path = \"/v1/**\"";
            route(&format!("r{n}"), host, &format!("agents = [\"a{n}\"]"))
        },
        |n| ssh_routes::ssh_route(&format!("r{n}"), &format!(", users = [\"u{n}\"]"), ""),
        |n| {
            ssh_routes::ssh_route(
                &format!("r{n}"),
                &format!(", commands = [\"/opt/t{n:05} *\"]"),
                "",
            )
        },
    ];
    for form in forms {
        let text = (0..10_000).fold(String::new(), |mut text, n| {
            write!(text, "{}", form(n)).unwrap();
            text
        });
        // One more that ties with one of them is found among all, and nothing else ties.
        let twin = form(5_000).replacen("r5000", "twin", 1);
        let found = Snapshot::compile(&(text + &twin), "p", 0).unwrap_err();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("twin") && found[0].message.contains("r5000"));
    }
}

/// A text in which all rules tie is refused without a word on each pair.
#[test]
fn many_ties_are_told_up_to_a_bound() {
    let text: String =
        (0..1_000).map(|n| route(&format!("r{n}"), "host = \"a.test\"", "")).collect();
    assert_eq!(Snapshot::compile(&text, "p", 0).unwrap_err().len(), MOST_TIES);
}
