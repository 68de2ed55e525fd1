use crate::{Diagnostic, Inject, SecretRef, Snapshot, SshAction, SshRequest};

fn findings(text: &str) -> Vec<Diagnostic> {
    Snapshot::compile(text, "p.toml", 0).unwrap_err()
}

/// K-9: a route declares release id, atomic compare, retry and query command, or is told what is wrong.
#[test]
fn k_9_what_a_route_says_of_its_commands_is_read() {
    let ssh = "[[ssh]]\nname = \"r\"\nmatch = { host = \"h\" }\n\
               host_keys = [\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz\"]\n";
    let grant = |rest: &str| {
        let snapshot = Snapshot::compile(&format!("{ssh}{rest}"), "p", 0);
        let snapshot = snapshot.unwrap_or_else(|e| panic!("{e:#?}"));
        assert!(snapshot.warnings().is_empty(), "{:?}", snapshot.warnings());
        snapshot.ssh_route("r", "a", ("u", "h", 22)).unwrap()
    };
    let plain = grant("");
    assert!(plain.release.is_none() && plain.retry.is_none() && !plain.is_idempotent());
    let full = grant(
        "release = { command = \"d {release_id} *\", retention = \"2h\", contract = \"verified\" }\n\
         compare = { refused = 3 }\nretry = { max_attempts = 4, lease = \"5s\" }\n\
         [ssh.reconcile]\ncommand = \"s {release_id} {invocation_id}\"\n\
         committed = { exit_status = 0, pointer = \"/a\", equals = [\"b\"] }\n\
         rejected = { stdout = \"no*\" }\nautomatic = true\n",
    );
    let release = full.release.as_ref().unwrap();
    assert_eq!((release.before.as_str(), release.after.as_str()), ("d ", " *"));
    assert_eq!((release.scope.as_str(), release.retention.as_secs()), ("r", 7200));
    assert!(full.is_idempotent() && full.refused_status == Some(3));
    let retry = full.retry.as_ref().unwrap();
    assert_eq!((retry.max_attempts, retry.lease.as_secs()), (4, 5));
    let query = full.reconcile.as_ref().unwrap();
    assert_eq!(query.rejected.as_ref().unwrap().stdout.as_deref(), Some("no*"));
    assert!(query.pace.automatic);
    assert_eq!(query.shows(0, b"{\"a\":\"b\"}"), Some(true));

    let wrong = |rest: &str, words: &[&str]| {
        let found = findings(&format!("{ssh}{rest}"));
        let [Diagnostic { message, hint, line: 5, .. }] = found.as_slice() else {
            panic!("{rest}: {found:#?}")
        };
        let told = format!("{message} {}", hint.as_deref().unwrap_or_default());
        assert!(words.iter().all(|word| told.contains(word)), "{words:?} {told:?}");
    };
    wrong("release = { command = \"d\" }", &["no place {release_id}"]);
    wrong("release = { command = \"* {release_id}\" }", &["begin with literal text"]);
    wrong("release = { command = \"d {release_id} {release_id}\" }", &["once"]);
    wrong("release = {}", &["lacks `command`"]);
    wrong("compare = {}", &["`refused`", "is missing"]);
    wrong("compare = { refused = 0 }", &["from 1 to 255"]);
    wrong("retry = {}", &["`max_attempts`", "is missing"]);
    wrong("retry = { max_attempts = 2, automatic = true }", &["automatic"]);
    wrong("reconcile = { command = \"s {invocation_id}\" }", &["decides nothing"]);
    let asks = |command: &str, shows: &str| {
        format!("reconcile = {{ command = \"{command}\", committed = {{ {shows} }} }}")
    };
    wrong(&asks("s {release_id}", "exit_status = 0"), &["no command of the route has"]);
    wrong(&asks("s {request_id}", "exit_status = 0"), &["which no call has"]);
    wrong(&asks("s {invocation_id}", ""), &["met by everything"]);
    wrong(&asks("s {invocation_id}", "exit_status = 256"), &["from 0 to 255"]);
}

/// A key that an agent holds is named by socket and public key; a certificate's sources are addresses.
#[test]
fn agents_and_sources_are_read() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";
    let text = |secret: &str, rest: &str, route: &str| {
        format!(
            "[[credential]]\nid = \"c\"\nsecret = \"{secret}\"\n{rest}\n\
             [[ssh]]\nname = \"r\"\nmatch = {{ host = \"h\" }}\nhost_keys = [\"{key}\"]\n\
             credential = \"c\"\n{route}\n"
        )
    };
    let grant = |text: &str| {
        let snapshot = Snapshot::compile(text, "p", 0).unwrap_or_else(|e| panic!("{e:#?}"));
        snapshot.ssh_route("r", "a", ("u", "h", 22)).unwrap()
    };
    let agent = format!("inject = \"ssh-agent\"\npublic_key = \"{key} me\"");
    let credential = grant(&text("agent:/run/a", &agent, "")).credential.unwrap();
    assert_eq!(credential.secret, SecretRef::Agent("/run/a".into()));
    assert_eq!(credential.inject, Inject::SshAgent { public_key: Some(key.to_owned()) });
    let only = grant(&text("env:SSH_AUTH_SOCK", "inject = \"ssh-agent\"", "")).credential.unwrap();
    assert_eq!(only.inject, Inject::SshAgent { public_key: None });
    let ca = "inject = \"ssh-certificate\"";
    let sources = "source_address = [\"10.0.0.4\", \"2001:db8::/32\"]";
    assert_eq!(grant(&text("ca", ca, sources)).source_address, ["10.0.0.4", "2001:db8::/32"]);

    let wrong = |text: &str, words: &str| {
        let found = findings(text);
        assert!(found.iter().any(|d| d.message.contains(words)), "{words}: {found:#?}");
    };
    wrong(&text("agent:a", "inject = \"ssh-agent\"", ""), "absolute path");
    wrong(&text("s", "inject = \"ssh-agent\"", ""), "socket of an agent");
    wrong(&text("agent:/a", "inject = \"ssh-key\"", ""), "gives no secret away");
    wrong(&text("agent:/a", "inject = \"ssh-agent\"\npublic_key = \"x\"", ""), "public_key");
    wrong(&text("s", "inject = \"ssh-key\"\npublic_key = \"x\"", ""), "goes with inject");
    wrong(&text("s", "inject = \"ssh-key\"", sources), "no certificate to stand in");
    for source in ["10.0.0.0/33", "::1/129", "host", "10.0.0.1/", "", "10.0.0.1,::1"] {
        wrong(&text("ca", ca, &format!("source_address = [\"{source}\"]")), "no address");
    }
}

/// `forward` without a word on where leads anywhere, which is told; a place that is none is an error.
#[test]
fn where_forwardings_lead_is_read() {
    let route = |rest: &str| {
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";
        format!(
            "[[ssh]]\nname = \"r\"\nmatch = {{ host = \"h\" }}\nhost_keys = [\"{key}\"]\n\
             allow = [\"forward\"]\n{rest}\n"
        )
    };
    let leads = |rest: &str, host: &str, port| {
        let snapshot = Snapshot::compile(&route(rest), "p", 0).unwrap();
        let request = SshRequest::Forward { host, port };
        let action = SshAction { agent: "a", host: "h", port: 22, user: "u", request };
        (snapshot.ssh(&action).is_ok(), snapshot.warnings().len())
    };
    assert_eq!(leads("", "db.evil.example", 1), (true, 1));
    assert_eq!(leads("forward_to = [\"*\"]", "db.evil.example", 1), (true, 0));
    let places = "forward_to = [\"127.0.*:*\", \"db*:5432\"]";
    for (host, port, expected) in [
        ("127.0.0.1", 80, true),
        ("127.0.evil.example", 80, false),
        ("db-1", 5432, true),
        ("db.evil.com", 5432, false),
        ("db-1", 5433, false),
        ("db:x.y", 5432, false),
    ] {
        assert_eq!(leads(places, host, port), (expected, 0), "{host}:{port}");
    }
    let warned = Snapshot::compile(&route(""), "p", 0).unwrap().warnings()[0].to_string();
    assert!(warned.contains("`forward_to`"), "{warned}");
    let found = findings(&route("forward_to = [\"db\"]"));
    let [Diagnostic { message, line: 6, .. }] = found.as_slice() else { panic!("{found:#?}") };
    assert!(message.contains("HOST:PORT"), "{message}");
}
