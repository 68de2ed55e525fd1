//! The decision on SSH actions.

use super::*;

pub(super) fn ssh<'a>(user: &'a str, request: SshRequest<'a>) -> SshAction<'a> {
    SshAction { agent: "coder", host: "prod-1", port: 22, user, request }
}

#[test]
fn the_ssh_example_grants_what_it_says() {
    let snapshot = example();
    let grant = snapshot.ssh(&ssh("deploy", SshRequest::Exec(b"/opt/deploy v1"))).unwrap();
    assert_eq!((grant.route.as_str(), grant.address.as_deref()), ("deploy", Some("10.0.0.4:22")));
    assert_eq!(grant.credential.unwrap().inject, Inject::SshKey);
    assert_eq!(grant.host_keys.len(), 1);
    assert!(grant.private_addresses && !grant.idempotent);
    assert!(snapshot.ssh_target("coder", "PROD-1", 22).is_ok());
    assert!(snapshot.ssh_target("other", "prod-1", 22).is_err());
    let field = |action: SshAction<'_>| snapshot.ssh(&action).unwrap_err().field;
    let good = ssh("deploy", SshRequest::Exec(b"/opt/deploy v1"));
    assert_eq!(field(SshAction { agent: "other", ..good }), "target.host");
    assert_eq!(field(SshAction { host: "prod-2", ..good }), "target.host");
    assert_eq!(field(SshAction { port: 2222, ..good }), "target.port");
    assert_eq!(field(SshAction { user: "root", ..good }), "target.user");
    for request in [
        SshRequest::Shell,
        SshRequest::Subsystem("sftp"),
        SshRequest::Forward { host: "db", port: 5432 },
    ] {
        assert_eq!(field(SshAction { request, ..good }), "action", "{request:?}");
    }
}

/// V-1: a star in a command never lets a second command in.
#[test]
fn v_1_stars_do_not_cross_commands() {
    let snapshot = example();
    let run = |command: &[u8]| snapshot.ssh(&ssh("deploy", SshRequest::Exec(command))).is_ok();
    assert!(run(b"/opt/deploy v1 --to 'a b'"));
    assert!(run(b"/opt/deploy "));
    for command in [
        &b"/opt/deploy"[..],
        b"/opt/deployx v1",
        b" /opt/deploy v1",
        b"/opt/deploy v1; rm -rf /",
        b"/opt/deploy v1 & id",
        b"/opt/deploy v1 && id",
        b"/opt/deploy v1&&id",
        b"/opt/deploy v1 | id",
        b"/opt/deploy v1\nid",
        b"/opt/deploy v1\rid",
        b"/opt/deploy `id`",
        b"/opt/deploy $(id)",
        b"/opt/deploy $HOME",
        b"/opt/deploy (id)",
        b"/opt/deploy < /etc/passwd",
        b"/opt/deploy > /etc/passwd",
        b"/opt/deploy ';'",
        b"/opt/deploy \\;",
        b"/opt/deploy \0",
    ] {
        assert!(!run(command), "{}", command.escape_ascii());
    }
    let text = include_str!("../example.toml").replace("allow = [\"exec\"]", "shell = \"any\"");
    let any = compile(&text);
    assert!(any.ssh(&ssh("deploy", SshRequest::Exec(b"/opt/deploy v1; id"))).is_ok());
}

pub(super) fn ssh_route(name: &str, conditions: &str, rest: &str) -> String {
    format!("[[ssh]]\nname = \"{name}\"\nmatch = {{ host = \"prod-1\"{conditions} }}\n{rest}\n")
}

#[test]
fn the_narrowest_ssh_route_wins() {
    let text = [
        ssh_route("any", "", "allow = [\"exec\", \"shell\", \"subsystem:netconf\"]"),
        ssh_route("user", ", users = [\"deploy\"]", ""),
        ssh_route("tool", ", users = [\"deploy\"], commands = [\"/opt/*\"]", ""),
        ssh_route("narrow", ", users = [\"deploy\"], commands = [\"/opt/deploy *\"]", ""),
        ssh_route("exact", ", users = [\"deploy\"], commands = [\"/opt/deploy v1\", \"id\"]", ""),
    ];
    for rotation in 0..text.len() {
        let mut text = text.clone();
        text.rotate_left(rotation);
        let snapshot = compile(&text.concat());
        let who = |user, request| snapshot.ssh(&ssh(user, request)).unwrap().route;
        assert_eq!(who("deploy", SshRequest::Exec(b"/opt/deploy v1")), "exact");
        assert_eq!(who("deploy", SshRequest::Exec(b"/opt/deploy v2")), "narrow");
        assert_eq!(who("deploy", SshRequest::Exec(b"/opt/x")), "tool");
        assert_eq!(who("deploy", SshRequest::Exec(b"ls")), "user");
        assert_eq!(who("root", SshRequest::Exec(b"ls")), "any");
        assert_eq!(who("deploy", SshRequest::Shell), "any");
        assert_eq!(who("deploy", SshRequest::Subsystem("netconf")), "any");
        assert!(snapshot.ssh(&ssh("deploy", SshRequest::Subsystem("sftp"))).is_err());
    }
}

/// V-1: a command that a person has to approve is not let through by a wider route in another spelling, or
/// as a part of a longer one.
#[test]
fn v_1_no_spelling_of_a_command_passes_an_approval() {
    let route = |name: &str, more: &str, terms: &str| {
        format!(
            "[[ssh]]\nname = \"{name}\"\nmatch = {{ host = \"prod-1\", users = [\"deploy\"]{more} }}\n\
             {terms}\n"
        )
    };
    let text = route("wide", "", "")
        + &route("rm", ", commands = [\"rm *\"]", "approval = \"required\"")
        + &route("pull", ", commands = [\"git pull *\"]", "idempotent = true");
    let snapshot = compile(&text);
    let run = |command: &str| {
        let decided = snapshot.ssh(&ssh("deploy", SshRequest::Exec(command.as_bytes())));
        decided.map(|grant| grant.route).map_err(|denial| (denial.field, denial.rule))
    };
    assert_eq!(run("rm -rf /x"), Ok("rm".to_owned()));
    let refused = Err(("command".to_owned(), "rm".to_owned()));
    for command in [
        " rm -rf /x",
        "rm\t-rf /x",
        "/bin/rm -rf /x",
        "rm -rf /x; true",
        "true && rm -rf /x",
        "echo $(rm -rf /x)",
        "cd /\nrm -rf x",
    ] {
        assert_eq!(run(command), refused, "{command:?}");
    }
    for command in ["ls -l", "echo rm", "rmdir /x", "cd repo && git pull origin"] {
        assert_eq!(run(command), Ok("wide".to_owned()), "{command:?}");
    }
    assert_eq!(run("git pull origin"), Ok("pull".to_owned()));
}
