//! Tests of the policy language: what is read, and what each mistake is told.

use crate::{Diagnostic, Inject, Scheme, SecretRef, Snapshot};
use proptest::prelude::*;

fn findings(text: &str) -> Vec<Diagnostic> {
    Snapshot::compile(text, "p.toml", 0).unwrap_err()
}

/// One mistake: its place and a part of message and hint.
fn check(text: &str, line: usize, column: usize, parts: &[&str]) {
    let found = findings(text);
    assert_eq!(found.len(), 1, "{text}\n{found:#?}");
    let Diagnostic { message, hint, .. } = &found[0];
    assert_eq!((found[0].line, found[0].column), (line, column), "{text}\n{found:#?}");
    let told = format!("{message} {}", hint.as_deref().unwrap_or_default());
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
}

fn warnings(text: &str) -> Vec<String> {
    let snapshot = Snapshot::compile(text, "p.toml", 0).unwrap();
    snapshot.warnings().iter().map(|w| w.message.clone()).collect()
}

const ROUTE: &str = "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\" }\n";

#[test]
fn an_empty_text_is_a_policy() {
    assert!(Snapshot::compile("", "p", 0).is_ok());
    assert!(Snapshot::compile("# nothing\n", "p", 0).is_ok());
}

/// The example of the interface, word for word but for the key.
#[test]
fn the_interface_example_is_read() {
    let text = include_str!("example.toml");
    let snapshot = Snapshot::compile(text, "p.toml", 0).unwrap();
    assert_eq!(snapshot.agents(), ["coder"]);
    assert_eq!(snapshot.ssh_hosts(), [("prod-1".to_owned(), 22)]);
    let warnings: Vec<_> = snapshot.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, Vec::<String>::new());
    let pay = (Scheme::Https, "api.pay.example", 443);
    let grant = snapshot.http_route("payments.create", "coder", pay, "/").unwrap();
    let retry = grant.retry.unwrap();
    assert_eq!((retry.max_attempts, retry.automatic), (3, false));
    let reconcile = grant.reconcile.unwrap();
    assert_eq!((reconcile.shows(200, b""), reconcile.shows(404, b"")), (Some(true), Some(false)));
    assert_eq!(snapshot.http_route("payments.create", "other", pay, "/"), None);
    // C-7: a route answers for the origins that it leads to, and no other.
    for elsewhere in [
        (Scheme::Http, "api.pay.example", 443),
        (Scheme::Https, "api.pay.example", 8443),
        (Scheme::Https, "pay.example", 443),
    ] {
        assert_eq!(snapshot.http_route("payments.create", "coder", elsewhere, "/"), None);
    }
}

#[test]
fn syntax_errors_have_their_place() {
    check("[defaults]\negress = \n", 2, 10, &["string values must be quoted"]);
    check("[defaults]\nü = 1\n", 2, 1, &[]);
    let found = findings("[a\nb = 1\n[[c]\n");
    assert!(found.len() > 1, "all of them are told: {found:#?}");
}

#[test]
fn unknown_keys_are_told_with_the_nearest() {
    check(
        "[default]\n",
        1,
        2,
        &["unknown key `default` in the policy", "did you mean `defaults`?"],
    );
    check(
        &format!("{ROUTE}credentail = \"c\"\n"),
        4,
        1,
        &["unknown key `credentail` in route \"r\"", "did you mean `credential`?"],
    );
    check(
        "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\", method = [\"GET\"] }\n",
        3,
        28,
        &["unknown key `method` in `match` of route \"r\"", "did you mean `methods`?"],
    );
    check("[defaults]\nzzzzzz = 1\n", 2, 1, &["known keys: egress, parent, private_addresses"]);
}

#[test]
fn columns_count_characters() {
    let text = "[[route]]\nname = \"r\"\nmatch = { path = \"/ü\", hosts = \"h.test\", host = \"h.test\" }\n";
    let found = findings(text);
    let unknown = found.iter().find(|d| d.message.contains("unknown")).unwrap();
    assert_eq!((unknown.line, unknown.column), (3, 24), "{found:#?}");
}

#[test]
fn all_mistakes_are_told_in_one_run() {
    let text = "[defaults]\negress = \"alow\"\nprivate_addresses = true\n\
                [[credential]]\nid = \"c\"\nsecret = 1\ninject = \"baerer\"\n\
                [[route]]\nname = \"r\"\ncredential = \"d\"\nmatch = { host = \"a b\" }\n\
                limits = { connect_timeout = 10, request_bytes = \"1 MB\" }\n";
    let found = findings(text);
    let places: Vec<_> = found.iter().map(|d| (d.line, d.column)).collect();
    let expected = [(2, 10), (3, 21), (6, 10), (7, 10), (10, 14), (11, 18), (12, 30), (12, 50)];
    assert_eq!(places, expected, "{found:#?}");
}

#[test]
fn values_of_the_wrong_type_are_told() {
    check("defaults = 1\n", 1, 12, &["a table in braces", "integer"]);
    check("[route]\nname = \"r\"\n", 1, 1, &["[[route]]"]);
    check(&format!("{ROUTE}agents = \"coder\"\n"), 4, 10, &["list of texts", "brackets"]);
    check(&format!("{ROUTE}agents = []\n"), 4, 10, &["empty list", "leave the key out"]);
    check(&format!("{ROUTE}agents = [\"coder\", 1]\n"), 4, 20, &["list of texts"]);
    check(&format!("{ROUTE}idempotent = \"yes\"\n"), 4, 14, &["true or false"]);
}

#[test]
fn missing_keys_are_told() {
    check("[[route]]\nname = \"r\"\n", 1, 1, &["`match` of route \"r\": is missing"]);
    check("[[route]]\nmatch = { host = \"h.test\" }\n", 1, 1, &["lacks `name`"]);
    check("[[route]]\nname = \"r\"\nmatch = {}\n", 3, 9, &["lacks `host`"]);
    check("[[credential]]\nid = \"c\"\ninject = \"bearer\"\n", 1, 1, &["lacks `secret`"]);
}

#[test]
fn names_are_given_once() {
    check(&format!("{ROUTE}{ROUTE}"), 5, 8, &["\"r\" is there already, at line 1"]);
    let credential = "[[credential]]\nid = \"c\"\nsecret = \"s\"\ninject = \"bearer\"\n";
    check(&format!("{credential}{credential}"), 6, 6, &["\"c\" is there already, at line 1"]);
}

#[test]
fn dangling_references_are_told() {
    check(
        &format!("{ROUTE}credential = \"pay\"\n"),
        4,
        14,
        &["no credential \"pay\"", "[[credential]]"],
    );
    let text = format!(
        "[[credential]]\nid = \"pay\"\nsecret = \"s\"\ninject = \"bearer\"\n{ROUTE}credential = \"payy\"\n"
    );
    check(&text, 8, 14, &["no credential \"payy\"", "did you mean \"pay\"?"]);
}

/// V-3: what may be a pasted secret is not repeated.
#[test]
fn v_3_refused_references_are_not_echoed() {
    let canary = "sk-live-Canary/+=";
    for text in [
        format!("[[credential]]\nid = \"c\"\nsecret = \"{canary}\"\ninject = \"bearer\"\n"),
        format!("[[credential]]\nid = \"c\"\nsecret = \"env:{canary}\"\ninject = \"bearer\"\n"),
        format!("[[credential]]\nid = \"c\"\nsecret = \"s\"\ninject = \"{canary}\"\n"),
        format!("[[credential]]\nid = \"{canary}\"\nsecret = \"s\"\ninject = \"bearer\"\n"),
        format!("{ROUTE}credential = \"{canary}\"\n"),
    ] {
        for finding in findings(&text) {
            assert!(!finding.to_string().contains("Canary"), "{finding}");
        }
    }
}

#[test]
fn hosts_are_checked() {
    let with = |host: &str| format!("[[route]]\nname = \"r\"\nmatch = {{ host = \"{host}\" }}\n");
    check(&with("https://h.test/"), 3, 18, &["is a URL", "host alone"]);
    check(&with("h.test:443"), 3, 18, &["has a port", "port = 443"]);
    check(&with("*"), 3, 18, &["egress = \"allow\""]);
    check(&with("bücher.example"), 3, 18, &["punycode"]);
    check(&with("127.1"), 3, 18, &["dotted"]);
    check(&with("a.*.test"), 3, 18, &["wildcard"]);
    let trust = |host: &str| format!("[[trust]]\nca_file = \"/ca.pem\"\nhost = \"{host}\"\n");
    check(&trust("*"), 3, 8, &["SSL_CERT_FILE"]);
    check(&trust("h.test:443"), 3, 8, &["every port"]);
    let past = |host: &str| {
        format!("[[parent]]\nname = \"p\"\nurl = \"http://h:1\"\nno_proxy = [\"{host}\"]\n")
    };
    check(&past("h.test:1"), 4, 13, &["has a port", "every port"]);
    check(&past("http://h.test"), 4, 13, &["is a URL", "every scheme and port"]);
    for text in [with("h.test:1"), with("https://h.test"), trust("*"), past("h.test:1")] {
        let told = findings(&text)[0].to_string();
        assert!(!told.contains("IPv6") && !told.contains("opens every host"), "{told}");
    }
}

#[test]
fn methods_paths_and_ports_are_checked() {
    let with =
        |rest: &str| format!("[[route]]\nname = \"r\"\nmatch = {{ host = \"h.test\", {rest} }}\n");
    check(&with("methods = [\"post\"]"), 3, 39, &["\"POST\""]);
    check(&with("methods = [\"P OST\"]"), 3, 39, &["not a method"]);
    check(&with("methods = [\"CONNECT\"]"), 3, 39, &["CONNECT"]);
    check(&with("path = \"v1\""), 3, 35, &["slash"]);
    check(&with("path = \"/v1?x=1\""), 3, 35, &["query"]);
    check(&with("path = \"/v1/**x\""), 3, 35, &["`**`"]);
    check(&with("port = 0"), 3, 35, &["1 to 65535"]);
    check(&with("port = 70000"), 3, 35, &["1 to 65535"]);
    check(&with("port = -1"), 3, 35, &["1 to 65535"]);
    check(&with("scheme = \"htps\""), 3, 37, &["did you mean \"https\"?"]);
}

#[test]
fn conditions_are_checked() {
    let with =
        |rest: &str| format!("[[route]]\nname = \"r\"\nmatch = {{ host = \"h.test\", {rest} }}\n");
    check(&with("headers = \"x\""), 3, 38, &["a table in braces"]);
    check(&with("headers = { x = 1 }"), 3, 44, &["list of texts"]);
    check(&with("headers = { \"a b\" = \"1\" }"), 3, 40, &["header field"]);
    check(&with("headers = { Authorization = \"Bearer x\" }"), 3, 40, &["carries secrets"]);
    check(&with("headers = { x = \"1\", X = \"2\" }"), 3, 40, &["is there already"]);
    check(&with("query = { a = [] }"), 3, 42, &["empty list"]);
    check(&with("query = { \"\" = \"1\" }"), 3, 38, &["name of a parameter"]);
    assert_eq!(warnings(&with("query = { a = \"1\" }, headers = { b = [\"x\", \"y\"] }")).len(), 0);
}

#[test]
fn secrets_and_modes_are_read() {
    let of = |secret: &str, rest: &str| {
        let text = format!(
            "[[credential]]\nid = \"c\"\nsecret = \"{secret}\"\n{rest}\n{ROUTE}credential = \"c\"\n"
        );
        let snapshot = Snapshot::compile(&text, "p", 0).unwrap_or_else(|e| panic!("{e:#?}"));
        let action = crate::HttpAction {
            agent: "a",
            scheme: crate::Scheme::Https,
            host: "h.test",
            port: 443,
            method: "GET",
            path: "/",
        };
        let credential = snapshot.http(&action).unwrap().credential.unwrap();
        (credential.secret, credential.inject)
    };
    assert_eq!(of("a/b", "inject = \"basic\""), (SecretRef::Vault("a/b".into()), Inject::Basic));
    let header = Inject::Header { name: "x-api-key".into(), format: Some("Token {secret}".into()) };
    assert_eq!(
        of("env:TOK", "inject = \"header\"\nname = \"X-Api-Key\"\nformat = \"Token {secret}\""),
        (SecretRef::Env("TOK".into()), header)
    );
    assert_eq!(of("file:/run/tok", "inject = \"bearer\"").0, SecretRef::File("/run/tok".into()));
    assert_eq!(
        of("exec:pass x", "inject = \"bearer\"").0,
        SecretRef::Exec(vec!["pass".into(), "x".into()])
    );
    let program = |secret: &str| {
        let text = format!("[[credential]]\nid = \"c\"\nsecret = {secret}\ninject = \"bearer\"\n");
        format!("{text}{ROUTE}credential = \"c\"\n")
    };
    let snapshot = Snapshot::compile(&program("{ exec = [\"op\", \"My item\"] }"), "p", 0);
    assert!(snapshot.is_ok_and(|s| s.warnings().is_empty()));
    check(&program("{ exec = [] }"), 3, 19, &["empty list"]);
    check(&program("{ exec = [\"\"] }"), 3, 19, &["no name"]);
    check(&program("{}"), 3, 10, &["`exec` of `secret`", "is missing"]);
    check(&program("\"exec:op 'My item'\""), 3, 10, &["words without quotes"]);
    check(&program("\"exec: \""), 3, 10, &["name a program"]);
    let with = |rest: &str| format!("[[credential]]\nid = \"c\"\nsecret = \"s\"\n{rest}\n");
    check(&with("inject = \"header\""), 1, 1, &["lacks `name`"]);
    check(&with("inject = \"header\"\nname = \"a b\""), 5, 8, &["header field"]);
    check(&with("inject = \"header\"\nname = \"Host\""), 5, 8, &["can't carry"]);
    check(&with("inject = \"header\"\nname = \"x\"\nformat = \"no\""), 6, 10, &["{secret}"]);
    check(&with("inject = \"bearer\"\nname = \"x\""), 5, 8, &["inject = \"header\""]);
    check(&with("inject = \"bearr\""), 4, 10, &["did you mean \"bearer\"?"]);
}

#[test]
fn modes_belong_to_their_gateway() {
    let credential =
        |mode: &str| format!("[[credential]]\nid = \"c\"\nsecret = \"s\"\ninject = \"{mode}\"\n");
    check(
        &format!("{}{ROUTE}credential = \"c\"\n", credential("ssh-key")),
        8,
        14,
        &["SSH routes only"],
    );
    let ssh = "[[ssh]]\nname = \"s\"\nmatch = { host = \"h\" }\ncredential = \"c\"\n";
    check(&format!("{}{ssh}", credential("bearer")), 8, 14, &["HTTP routes only"]);
}

#[test]
fn ssh_routes_are_checked() {
    let with = |rest: &str| format!("[[ssh]]\nname = \"s\"\nmatch = {{ host = \"h\" }}\n{rest}\n");
    check(&with("host_keys = [\"ssh-ed25519 AAAA\"]"), 4, 14, &["base64 part is not a key"]);
    check(&with("host_keys = [\"AAAA\"]"), 4, 14, &["as in a .pub file"]);
    check(&with("allow = [\"exce\"]"), 4, 10, &["exec, shell, sftp"]);
    check(&with("address = \"10.0.0.4:0\""), 4, 11, &["1 to 65535"]);
    check(&with("address = \"a b\""), 4, 11, &["10.0.0.4:22"]);
    check(&with("shell = \"all\""), 4, 9, &["plain, any"]);
    assert!(warnings(&with("")).iter().any(|w| w.contains("`host_keys`")));
}

#[test]
fn what_is_not_acted_on_is_announced() {
    let text = format!("{ROUTE}approval = \"required\"\nintercept = false\n");
    let found = warnings(&text);
    assert!(
        matches!(found.as_slice(), [one] if one.contains("every call is refused")),
        "{found:?}"
    );
    let open = "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n";
    let found = warnings(open);
    assert!(matches!(found.as_slice(), [one] if one.contains("metadata service")), "{found:?}");
    check(&format!("{ROUTE}retry = {{ max_attempts = 0 }}\n"), 4, 26, &["from 1 to 100"]);
    let reconcile = "reconcile = { path = \"/x\", committed = { status = 20 } }";
    check(&format!("{ROUTE}{reconcile}\n"), 4, 51, &["100 to 599"]);
}

/// T-3, K-7: what could not be kept, or could decide wrongly, is refused.
#[test]
fn terms_of_repeating_are_checked() {
    let wrong = |line: &str, part: &str| {
        let found = findings(&format!("{ROUTE}{line}\n"));
        assert!(found.iter().any(|found| found.to_string().contains(part)), "{line}: {found:#?}");
    };
    wrong("retry = { automatic = true }", "`max_attempts`");
    wrong(
        "retry = { max_attempts = 2, automatic = true }\nresult = { keep = \"none\" }",
        "result.keep = \"full\"",
    );
    wrong("reconcile = { path = \"/x/{key}\", committed = { status = 200 } }", "{idempotency_key}");
    wrong("reconcile = { path = \"/x/{key\", committed = { status = 200 } }", "not closed");
    wrong("reconcile = { path = \"/x/{invocation_id}\" }", "decides nothing");
    wrong(
        "reconcile = { path = \"/{invocation_id}\", rejected = { equals = [\"a\"] } }",
        "needs a pointer",
    );
    wrong(
        "reconcile = { path = \"/{invocation_id}\", rejected = { pointer = \"a\" } }",
        "no JSON pointer",
    );
    wrong("reconcile = { path = \"/{invocation_id}\", rejected = {} }", "met by everything");
    wrong("job = { pointer = \"/a\" }", "`done`");
    wrong("job = { header = \"A\", pointer = \"/a\", done = { status = 200 } }", "one of them");
    wrong("batch = { requests = \"/a\" }", "`responses`");
    wrong("batch = { form = \"json-rpc\", id = \"a\" }", "no JSON pointer");
    let blind = format!("{ROUTE}reconcile = {{ path = \"/x\", committed = {{ status = 200 }} }}\n");
    assert!(warnings(&blind).iter().any(|w| w.contains("names no operation")));
}

#[test]
fn approvals_and_budgets_are_checked() {
    let both = format!("{ROUTE}approval = \"required\"\nretry = {{ max_attempts = 2 }}\n");
    assert!(findings(&both).iter().any(|found| found.to_string().contains("for one call")));
    check("[approvals]\nwait = \"11m\"\n", 2, 8, &["at most", "10m"]);
    check("[approvals]\nexpire = \"2d\"\n", 2, 10, &["at most", "24h"]);
    check("[approvals]\nwebhook = \"hooks.test\"\n", 2, 11, &["not the URL"]);
    let budget = "[[budget]]\nname = \"b\"\n";
    check(&format!("{budget}calls_per_minute = -1\n"), 3, 20, &["from 0"]);
    check(&format!("{budget}calls_per_week = 1\n"), 3, 1, &["calls_per_week"]);
    check(&format!("{budget}calls_per_day = 1\n{budget}"), 5, 8, &["there already"]);
    assert!(warnings(budget).iter().any(|w| w.contains("bounds nothing")));
}

#[test]
fn risky_routes_are_announced() {
    let credential = "[[credential]]\nid = \"c\"\nsecret = \"s\"\ninject = \"bearer\"\n";
    let route = "[[route]]\nname = \"r\"\ncredential = \"c\"\nmatch = { host = \"*.test\", scheme = \"http\" }\n";
    let found = warnings(&format!("{credential}{route}"));
    assert!(found.iter().any(|w| w.contains("clear text")), "{found:?}");
    assert!(found.iter().any(|w| w.contains("every host under")), "{found:?}");
    let found = warnings("[[route]]\nname = \"r\"\nmatch = { host = \"127.0.0.1\" }\n");
    assert!(found.iter().any(|w| w.contains("private address")), "{found:?}");
    let found = warnings(credential);
    assert!(found.iter().any(|w| w.contains("used by no route")), "{found:?}");
}

#[test]
fn diagnostics_print_as_compilers_do() {
    let found = findings("[default]\n");
    let shown = found[0].to_string();
    assert_eq!(shown, "p.toml:1:2: unknown key `default` in the policy (did you mean `defaults`?)");
}

/// Every byte of a good text changed, cut or doubled: findings, never a panic.
#[test]
fn mutations_never_panic() {
    let text = include_str!("example.toml");
    for (at, _) in text.char_indices() {
        let (head, tail) = text.split_at(at);
        let mut rest = tail.chars();
        rest.next();
        for changed in [
            head.to_owned(),
            format!("{head}{}", rest.as_str()),
            format!("{head}\"{}", rest.as_str()),
            format!("{head}ü{tail}"),
        ] {
            drop(Snapshot::compile(&changed, "p", 0));
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_without_panic(text in ".{0,200}") {
        drop(Snapshot::compile(&text, "p", 0));
    }

    #[test]
    fn any_values_are_read_without_panic(
        key in "(name|agents|match|credential|idempotent|result|limits|retry|approval|secret|host_keys)",
        table in "(route|ssh|credential|trust)",
        value in "(1|-1|true|\"[ -~]{0,20}\"|\\[\\]|\\[1\\]|\\{\\}|\\{ host = \"[a-z.*:/]{0,12}\" \\}|2020-01-01|1.5|nan)",
    ) {
        drop(Snapshot::compile(&format!("[[{table}]]\n{key} = {value}\n"), "p", 0));
    }
}

/// Every example of the reference is a policy, and every key stands in the reference.
#[test]
fn the_reference_is_true_and_whole() {
    let reference = include_str!("../../docs/policy.md");
    let mut blocks = 0;
    for part in reference.split("```toml\n").skip(1) {
        let (block, _) = part.split_once("```").unwrap();
        Snapshot::compile(block, "docs/policy.md", 0).unwrap_or_else(|e| panic!("{block}\n{e:#?}"));
        blocks += 1;
    }
    assert_eq!(blocks, 13);
    let lists = [
        super::DEFAULTS,
        super::TRUST,
        super::approvals::KNOWN,
        super::budget::KNOWN,
        super::parent::KNOWN,
        super::credential::KNOWN,
        super::token::HASHICORP,
        super::http::KNOWN,
        super::http::MATCH,
        super::key::IDEMPOTENCY,
        super::repeat::RECONCILE,
        super::repeat::RETRY,
        super::repeat::JOB,
        super::repeat::BATCH,
        super::repeat::SHOWS,
        super::ssh::KNOWN,
        super::ssh::MATCH,
        super::terms::RESULT,
        super::terms::SSH_LIMITS,
    ];
    for key in lists.into_iter().flatten() {
        let named = [format!("`{key}`"), format!(" {key} "), format!(" {key},")];
        assert!(named.iter().any(|n| reference.contains(n.as_str())), "{key} is not explained");
    }
    for mode in super::credential::MODES {
        assert!(reference.contains(&format!("`\"{mode}\"`")), "{mode} is not named");
    }
}

/// The starter is a policy as it is, and with its examples brought to life.
#[test]
fn the_starter_and_its_examples_are_policies() {
    let starter = Snapshot::compile(crate::STARTER, "policy.toml", 0).unwrap();
    assert!(starter.warnings().is_empty() && starter.agents().is_empty());
    let alive: Vec<_> = crate::STARTER
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.starts_with(' ') => example,
            Some(_) | None => line,
        })
        .collect();
    let key = "AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";
    let alive = alive.join("\n").replace("AAAA...", key);
    let alive = Snapshot::compile(&alive, "policy.toml", 0).unwrap_or_else(|e| panic!("{e:#?}"));
    assert_eq!(alive.warnings(), &[]);
    assert_eq!(alive.agents(), ["coder"]);
}

/// Upstream proxies: inherited, chosen, left out, and what goes past them.
#[test]
fn upstream_proxies_are_chosen_by_route() {
    let text = "[defaults]\nparent = \"corp\"\n\
        [[parent]]\nname = \"corp\"\nurl = \"http://proxy.test:3128\"\nno_proxy = [\"*.near.test\"]\n\
        [[parent]]\nname = \"other\"\nurl = \"https://[::1]:3129/\"\n\
        [[route]]\nname = \"a\"\nmatch = { host = \"a.test\" }\n\
        [[route]]\nname = \"b\"\nmatch = { host = \"b.test\" }\nparent = \"none\"\n\
        [[route]]\nname = \"c\"\nmatch = { host = \"c.test\" }\nparent = \"other\"\n\
        [[route]]\nname = \"d\"\nmatch = { host = \"*.near.test\" }\n";
    let snapshot = Snapshot::compile(text, "p", 0).unwrap();
    for (host, expected) in [
        ("a.test", Some(("corp", "proxy.test", 3128))),
        ("b.test", None),
        ("c.test", Some(("other", "::1", 3129))),
        ("d.near.test", None),
    ] {
        let action = crate::HttpAction {
            agent: "x",
            scheme: crate::Scheme::Https,
            host,
            port: 443,
            method: "GET",
            path: "/",
        };
        let parent = snapshot.http(&action).unwrap().parent;
        let parent = parent.as_ref().map(|p| (p.name.as_str(), p.host.as_str(), p.port));
        assert_eq!(parent, expected, "{host}");
    }
    let parent = "[[parent]]\nname = \"p\"\nurl = ";
    check(&format!("{parent}\"http://h\"\n"), 3, 7, &["is not http://HOST:PORT"]);
    check(&format!("{parent}\"http://u:p@h:1\"\n"), 3, 7, &["[[credential]]"]);
    check(&format!("{parent}\"ftp://h:1\"\n"), 3, 7, &["is not http://HOST:PORT"]);
    let route = format!("{ROUTE}parent = \"corq\"\n{parent}\"http://h:1\"\n");
    check(&route.replace("\"p\"", "\"corp\""), 4, 10, &["did you mean \"corp\"?"]);
    check(&format!("{parent}\"http://h:1\"\nno_proxy = [\"10.0.0.0/40\"]\n"), 4, 13, &["BITS"]);
}
