//! The decision does not depend on the order of the rules, and no input makes it panic.

use super::*;
use proptest::prelude::*;

/// Host, path, methods, agents, and what a header field, a parameter and a member of content are to be.
type Conditions = (
    String,
    Option<String>,
    Option<Vec<&'static str>>,
    Option<Vec<&'static str>>,
    [Option<&'static str>; 3],
);

fn conditions() -> impl Strategy<Value = Conditions> {
    let host = prop_oneof!["a.test", "\\*.test", "b.a.test", "\\*.a.test"];
    let path = proptest::option::of("(/(a|b|\\*|a\\*)){1,3}(/\\*\\*)?");
    let methods = proptest::option::of(proptest::sample::subsequence(vec!["GET", "POST"], 1..=2));
    let agents = proptest::option::of(proptest::sample::subsequence(vec!["x", "y"], 1..=2));
    let pattern = || proptest::option::of(proptest::sample::select(vec!["1", "1*", "*2", "2"]));
    let member =
        proptest::option::of(proptest::sample::select(vec!["\"1\"", "\"1*\"", "1", "[1, 2]"]));
    let rest = (pattern(), pattern(), member).prop_map(|(field, query, body)| [field, query, body]);
    (host, path, methods, agents, rest)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The decision does not depend on the order of the rules; allow and inject are one match.
    #[test]
    fn order_of_rules_decides_nothing(
        rules in proptest::collection::vec(conditions(), 1..6),
        host in "(b\\.)?(a\\.)?test", path in "(/[ab]{1,2}){1,4}",
        method in "GET|POST", agent in "x|y", field in "1|2|12", parameter in "1|2|12",
        member in "1|2|\"1\"|\"12\"",
    ) {
        let list = |l: &[&str]| l.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(",");
        let mut texts: Vec<String> = rules.iter().enumerate().map(|(i, (host, path, methods, agents, [header, query, body]))| {
            let mut conditions = format!("host = {host:?}");
            if let Some(path) = path { conditions += &format!(", path = {path:?}"); }
            if let Some(methods) = methods { conditions += &format!(", methods = [{}]", list(methods)); }
            if let Some(header) = header { conditions += &format!(", headers = {{ X-A = {header:?} }}"); }
            if let Some(query) = query { conditions += &format!(", query = {{ a = {query:?} }}"); }
            if let Some(body) = body { conditions += &format!(", body = {{ \"/k\" = {body} }}"); }
            let mut rest = format!("credential = \"c{i}\"\n");
            if let Some(agents) = agents { rest += &format!("agents = [{}]\n", list(agents)); }
            format!("[[credential]]\nid = \"c{i}\"\nsecret = \"s\"\ninject = \"bearer\"\n")
                + &route(&format!("c{i}"), &conditions, &rest)
        }).collect();
        let action = HttpAction { agent: &agent, ..action(&method, &host, &path) };
        let json = (&b"content-type"[..], &b"application/json"[..]);
        let headers = [(&b"x-a"[..], field.as_bytes()), json];
        let content = format!("{{\"k\":{member}}}");
        let query = format!("a={parameter}");
        let details = Details { query: Some(&query), headers: &headers, body: Body::Whole(content.as_bytes()) };
        let forward = Snapshot::compile(&texts.concat(), "p", 0);
        texts.reverse();
        let backward = Snapshot::compile(&texts.concat(), "p", 0);
        prop_assert_eq!(forward.is_ok(), backward.is_ok());
        let (Ok(forward), Ok(backward)) = (forward, backward) else { return Ok(()) };
        prop_assert_eq!(forward.http_with(&action, &details), backward.http_with(&action, &details));
        // The slow search over all routes agrees on whether anything matches.
        let target = target::Target::of(&action, details).unwrap();
        let any = forward.http.of_host(&target.host).any(|r| http::mismatch(r, &target).is_none());
        prop_assert_eq!(forward.http_with(&action, &details).is_ok(), any);
        if let Ok(grant) = forward.http_with(&action, &details) {
            prop_assert_eq!(grant.credential.unwrap().id, grant.route.unwrap());
        }
        prop_assert!(!any || forward.tunnel(&agent, &host, 443).is_ok());
        let explained = forward.explain_http_with(&action, &details);
        prop_assert_eq!(explained.allowed, any);
    }

    #[test]
    fn any_action_is_decided_without_panic(
        agent in ".{0,8}", host in ".{0,20}", method in ".{0,8}", path in ".{0,30}",
    ) {
        let snapshot = example();
        let action = HttpAction { agent: &agent, ..action(&method, &host, &path) };
        drop(snapshot.http(&action));
        drop(snapshot.explain_http(&action).to_string());
        let request = SshRequest::Exec(path.as_bytes());
        let action = SshAction { agent: &agent, host: &host, port: 22, user: &method, request };
        drop(snapshot.ssh(&action));
        drop(snapshot.explain_ssh(&action).to_string());
    }
}

/// Host, users, commands, agents, what is allowed.
type Ssh = (
    String,
    Option<Vec<&'static str>>,
    Option<Vec<&'static str>>,
    Option<Vec<&'static str>>,
    Vec<&'static str>,
);

fn ssh_conditions() -> impl Strategy<Value = Ssh> {
    let host = prop_oneof!["a.test", "\\*.test", "b.a.test", "\\*.a.test"];
    let some = |list: &'static [&'static str]| {
        proptest::option::of(proptest::sample::subsequence(list.to_vec(), 1..=2))
    };
    let allow = proptest::sample::subsequence(vec!["exec", "shell", "sftp"], 1..=3);
    (host, some(&["u", "v"]), some(&["a", "a*", "*b", "ab *"]), some(&["x", "y"]), allow)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The same for SSH: what decides does not depend on the order of the rules.
    #[test]
    fn order_of_ssh_rules_decides_nothing(
        rules in proptest::collection::vec(ssh_conditions(), 1..6),
        host in "(b\\.)?(a\\.)?test", command in "[ab]{1,2}( b)?", user in "u|v", agent in "x|y",
    ) {
        let list = |l: &[&str]| l.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(",");
        let mut texts: Vec<String> = rules.iter().enumerate().map(|(i, (host, users, commands, agents, allow))| {
            let mut conditions = format!("host = {host:?}");
            if let Some(users) = users { conditions += &format!(", users = [{}]", list(users)); }
            if let Some(commands) = commands {
                conditions += &format!(", commands = [{}]", list(commands));
            }
            let mut rest = format!("allow = [{}]\n", list(allow));
            if let Some(agents) = agents { rest += &format!("agents = [{}]\n", list(agents)); }
            format!("[[ssh]]\nname = \"r{i}\"\nmatch = {{ {conditions} }}\n{rest}")
        }).collect();
        let forward = Snapshot::compile(&texts.concat(), "p", 0);
        texts.reverse();
        let backward = Snapshot::compile(&texts.concat(), "p", 0);
        prop_assert_eq!(forward.is_ok(), backward.is_ok());
        let (Ok(forward), Ok(backward)) = (forward, backward) else { return Ok(()) };
        let requests =
            [SshRequest::Exec(command.as_bytes()), SshRequest::Shell, SshRequest::Subsystem("sftp")];
        for request in requests {
            let action = SshAction { agent: &agent, host: &host, port: 22, user: &user, request };
            let (one, other) = (forward.ssh(&action), backward.ssh(&action));
            prop_assert_eq!(one.as_ref().map(|grant| &grant.route), other.as_ref().map(|g| &g.route));
            let any = forward.ssh.of_host(&host).any(|r| ssh::mismatch(r, &action).is_none());
            prop_assert_eq!(one.is_ok(), any);
            prop_assert_eq!(forward.explain_ssh(&action).allowed, any);
        }
    }
}
