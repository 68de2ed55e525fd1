//! The command line as a user meets it: exit codes, files and their modes, what is printed.

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
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use support::*;

/// `init` twice changes nothing; nobody but the owner reads what is private.
#[test]
fn init_is_safe_to_run_twice_and_keeps_files_private() {
    let home = Home::new();
    home.serve().terminate();
    let mut before = Vec::new();
    files(home.path(), &mut before);
    let content = |path: &PathBuf| std::fs::read(path).unwrap();
    let keys: Vec<_> = before.iter().filter(|p| p.ends_with("ca-key.pem")).map(content).collect();
    assert_eq!(keys.len(), 1);
    assert!(home.ok(&["init"]).contains("nothing was changed"));
    let after: Vec<_> = before.iter().filter(|p| p.ends_with("ca-key.pem")).map(content).collect();
    assert_eq!(keys, after);

    let public = ["bundle.pem", "ca-cert.pem", "known_hosts", "host_ca.pub", "host_key.pub"];
    for path in before {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = if public.contains(&name) || name.ends_with(".pub") { 0o644 } else { 0o600 };
        assert_eq!(mode, expected, "{}", path.display());
    }
    assert!(home.ok(&["doctor"]).lines().all(|line| !line.starts_with("FAULT")));
    std::fs::set_permissions(home.path().join("vault.key"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let refused = home.run(&["secret", "list"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("chmod 600"), "{}", text(&refused.stderr));
}

/// 0: done. 1: so, but negative. 2: wrong usage.
#[test]
fn exit_codes_tell_negative_from_wrong() {
    let home = Home::new();
    let absent = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    for (arguments, code) in [
        (&["inv", "show", absent][..], 1),
        (&["inv", "result", absent], 1),
        (&["inv", "show", "not-an-id"], 2),
        (&["inv", "list", "--cursor", "abc"], 2),
        (&["inv", "list", "--outcome", "maybe"], 2),
        (&["agent", "rm", "ghost"], 1),
        (&["secret", "rm", "ghost"], 1),
        (&["secret", "rotate", "ghost"], 1),
        (&["policy", "rollback", "99"], 1),
        (&["policy", "show", "99"], 1),
        (&["policy", "show"], 0),
        (&["policy", "explain", "--agent", "coder", "GET", "https://a.example/"], 1),
        (&["policy", "explain", "--agent", "coder", "GET", "a.example"], 2),
        (&["vault", "status"], 0),
        (&["vault", "unlock"], 2),
        (&["journal", "verify"], 0),
        (&["journal", "stats"], 0),
        (&["frobnicate"], 2),
        (&["--log", "a=b=c", "vault", "status"], 2),
    ] {
        let output = home.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        if code == 2 {
            assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
        }
    }
    let nowhere = std::process::Command::new(BINARY)
        .args(["--home", "/no/such/home", "inv", "list"])
        .output()
        .unwrap();
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(text(&nowhere.stderr).contains("affiant init"), "{}", text(&nowhere.stderr));
}

/// I-2: a secret that was typed where none belongs is not repeated, whatever is wrong with the rest.
#[test]
fn i_2_a_secret_among_the_arguments_is_not_repeated() {
    let home = Home::new();
    for arguments in [
        &["secret", "set", "pay", SECRET][..],
        &["secret", "set", "pay", "--value", SECRET],
        &["secret", "set", "pay", &format!("--value={SECRET}")],
        &["secret", "rotate", "pay", SECRET],
        &["secret", SECRET],
        &["vault", "unlock", SECRET],
        &["vault", "rotate", &format!("--passphrase={SECRET}")],
        &["init", "--passphrase", SECRET],
        &["--json", "secret", "set", "pay", SECRET],
    ] {
        let refused = home.run(arguments);
        let told = text(&refused.stderr) + &text(&refused.stdout);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(!told.contains(SECRET), "{told}");
        assert!(told.contains("on stdin or at the prompt"), "{told}");
    }
    // What is wrong elsewhere is named, and help is help.
    assert!(text(&home.run(&["agent", "add"]).stderr).contains("<NAME>"));
    assert!(text(&home.run(&["secret", "set", "--help"]).stdout).contains("--tag"));
    assert!(text(&home.run(&["secret", "set"]).stderr).contains("<NAME>"));
    let unknown = home.run(&["secret", "rm", "ghost"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("no secret \"ghost\""), "{}", text(&unknown.stderr));
}

/// Versions of a secret, with tags: when, by whom, which one is current; never a value.
#[test]
fn versions_of_a_secret_are_listed_with_their_tags() {
    let home = Home::new();
    let set = |value: &str, more: &[&str]| {
        let command = home.command(&[&["secret", "set", "pay"], more].concat());
        let output = finish(command, value.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    set("canary-one", &["--tag", "OPS-17", "--tag", "key=AKIA1"]);
    set("canary-two", &[]);
    let versions = home.json(&["secret", "versions", "pay"]);
    let standing: Vec<_> =
        versions.as_array().unwrap().iter().map(|v| (&v["version"], &v["standing"])).collect();
    assert_eq!(standing, [(&2.into(), &"current".into()), (&1.into(), &"kept".into())]);
    assert_eq!(versions[1]["tags"], serde_json::json!(["OPS-17", "key=AKIA1"]));
    assert!(!versions[0]["by"].as_str().unwrap().is_empty());
    let shown = home.ok(&["secret", "versions", "pay"]);
    assert!(shown.contains("OPS-17 key=AKIA1") && shown.contains("current"), "{shown}");
    assert!(!shown.contains("canary") && !versions.to_string().contains("canary"));
    assert_eq!(home.run(&["secret", "versions", "ghost"]).status.code(), Some(1));
    let bad = finish(home.command(&["secret", "set", "pay", "--tag", "a b"]), b"x");
    assert_eq!(bad.status.code(), Some(2));
}

/// What a policy names and the home lacks is told, and where a file can't be read.
#[test]
fn a_policy_is_compared_with_the_home() {
    let home = Home::new();
    let file = home.path().join("p.toml");
    let path = file.to_str().unwrap();
    let policy = "[[credential]]\nid = \"pay\"\nsecret = \"pay-token\"\ninject = \"bearer\"\n\
        [[route]]\nname = \"r\"\nagents = [\"coder\", \"ghost\"]\ncredential = \"pay\"\n\
        match = { host = \"a.example\", methods = [\"PSOT\"] }\n\
        [[budget]]\nname = \"b\"\nagents = [\"phantom\"]\ncalls_per_day = 9\n";
    std::fs::write(&file, policy).unwrap();
    for command in ["check", "apply"] {
        let output = home.run(&["policy", command, path]);
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        for part in [
            "\"ghost\", which does not exist",
            "\"phantom\", which does not exist",
            "credential \"pay\" has no secret yet: `affiant secret set pay-token`",
            "no method of that name is known: \"PSOT\" (did you mean \"POST\"?)",
        ] {
            assert!(told.contains(part), "{command}: {part}: {told}");
        }
        assert!(!told.contains("\"coder\""), "{told}");
    }
    let explain = ["policy", "explain", "--agent", "coder", "PSOT", "https://a.example/"];
    let unset = "credential \"pay\" has no secret yet: `affiant secret set pay-token`";
    assert!(text(&home.run(&explain).stderr).contains(unset));
    assert!(home.ok(&["doctor"]).contains("for want of: `affiant secret set pay-token`"));
    home.secret("pay-token", SECRET);
    assert!(!text(&home.run(&["policy", "check", path]).stderr).contains("no secret"));
    assert!(!text(&home.run(&explain).stderr).contains("no secret"));
    assert!(home.ok(&["doctor"]).contains("what the policy names is there"));
    std::fs::write(&file, policy.replace("pay-token", "exec:nosuchprogram-7f1")).unwrap();
    for command in ["check", "apply"] {
        let told = text(&home.run(&["policy", command, path]).stderr);
        let expected = "credential \"pay\": there is no program \"nosuchprogram-7f1\"";
        assert!(told.contains(expected), "{command}: {told}");
    }
    assert!(home.ok(&["doctor"]).contains("there is no program"));
    // A file that was edited is noticed.
    let own = home.path().join("policy.toml");
    std::fs::copy(&file, &own).unwrap();
    assert!(home.ok(&["doctor"]).contains("is what is in force"));
    std::fs::write(&own, "# edited\n").unwrap();
    let told = home.ok(&["doctor"]);
    assert!(told.contains("policy.toml differs from version 3, which is in force"), "{told}");
    let explained =
        home.run(&["policy", "explain", "--agent", "codre", "GET", "https://a.example/"]);
    assert!(text(&explained.stderr).contains("--agent is \"codre\", which does not exist"));
    std::fs::write(&file, b"# fine\nname = \"caf\xe9\"\n").unwrap();
    let output = home.run(&["policy", "check", path]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("{path}:2:12: this is not UTF-8");
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    for (key, hint) in
        [("approval = true", "\"none\" or \"required\""), ("intercept = 1", "true or false")]
    {
        let text_of =
            format!("[[route]]\nname = \"r\"\nmatch = {{ host = \"a.example\" }}\n{key}\n");
        std::fs::write(&file, text_of).unwrap();
        let output = home.run(&["policy", "check", path]);
        assert!(text(&output.stderr).contains(hint), "{}", text(&output.stderr));
    }
    std::fs::write(&file, "[[ssh]]\nname = \"r\"\nmatch = { host = \"h\" }\nallow = [\"exce\"]\n")
        .unwrap();
    let output = home.run(&["policy", "check", path]);
    assert!(text(&output.stderr).contains("did you mean \"exec\"?"), "{}", text(&output.stderr));
}

/// Policy versions: history, show, rollback, explain.
#[test]
fn v_5_policy_is_versioned_and_explained() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let url = origin.url("/x");
    let explain = ["policy", "explain", "--agent", "coder", "POST", &url];
    let said = home.ok(&explain);
    assert!(said.contains("origin") && said.contains("pay"), "{said}");
    let first = server.curl(&["-d", "a", &url]);
    assert_eq!(first.status, 200);
    let version = |id: &str| server.control(&format!("invocations/{id}"))["policy_version"].clone();
    assert_eq!(version(&first.invocation()), 2);

    // A new version is in force for the next request on the running server.
    home.policy("[defaults]\negress = \"deny\"\n");
    assert_eq!(home.run(&explain).status.code(), Some(1));
    let denied = server.curl(&["-d", "a", &url]);
    assert_eq!((denied.exit, denied.status), (Some(56), 403), "{denied:?}");
    assert!(home.ok(&["policy", "rollback", "2"]).contains("version 4"));
    assert_eq!(home.ok(&["policy", "show"]), home.ok(&["policy", "show", "2"]));
    let again = server.curl(&["-d", "b", &url]);
    assert_eq!(again.status, 200);
    assert_eq!(version(&again.invocation()), 4);
    assert_eq!(version(&first.invocation()), 2, "the old record was altered");
    assert_eq!(home.json(&["policy", "history"]).as_array().unwrap().len(), 4);
}

/// I-2: after calls of every kind, the secret is in no file of the home, no output, no log.
#[test]
fn i_2_the_secret_is_nowhere() {
    let home = Home::new();
    let echo = format!("you sent Bearer {SECRET} to me");
    let origin = TlsOrigin::start(vec![
        Script::answer("/echo", 200, &[("X-Echo", SECRET)], &echo),
        Script::answer("/fails", 500, &[], &echo),
        Script::apply_and_close("/lost"),
    ]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let log = home.path().join("server.log");
    let script = format!("exec \"$@\" --log trace 2>{}", log.display());
    let server = Server::start_by(&home, &["sh", "-c", &script, "sh"]);
    let mut printed = String::new();
    for path in ["/echo", "/fails", "/lost"] {
        let response = server.curl(&["-d", path, &origin.url(path)]);
        printed.push_str(&response.head);
        printed.push_str(&text(&response.body));
        let id = response.invocation();
        for verb in ["show", "events", "result"] {
            let output = home.run(&["inv", verb, &id, "--json"]);
            printed.push_str(&text(&output.stdout));
            printed.push_str(&text(&output.stderr));
        }
    }
    let seen = origin.origin.seen();
    assert!(seen.iter().all(|s| s.field("authorization") == Some(format!("Bearer {SECRET}"))));
    server.terminate();
    printed.push_str(&home.ok(&["secret", "list"]));
    assert!(!printed.contains(SECRET), "{printed}");
    assert!(printed.contains("you sent "), "the echo is missing altogether: {printed}");
    let mut all = Vec::new();
    files(home.path(), &mut all);
    for path in all {
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
        assert!(!found, "{} holds the secret", path.display());
    }
    assert!(std::fs::metadata(&log).unwrap().len() > 0);
}

/// `ca env` prints exports that a shell takes; the agent's token is shown once.
#[test]
fn ca_env_and_tokens() {
    let home = Home::new();
    let exports = home.ok(&["ca", "env"]);
    let script = format!("{exports}\nprintf %s \"$SSL_CERT_FILE\"");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]);
    assert_eq!(succeed(shell), home.path().join("bundle.pem").display().to_string());
    let bundle = std::fs::read_to_string(home.path().join("bundle.pem")).unwrap();
    assert!(bundle.starts_with(&home.ok(&["ca", "cert"])));
    // Places that are not intercepted have to verify with the same file.
    let roots = rustls_native_certs::load_native_certs().certs.len();
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), roots + 1);

    let listed = home.ok(&["agent", "list"]);
    assert!(listed.contains("coder") && !listed.contains(&home.token));
    let rotated = home.json(&["agent", "rotate", "coder"]);
    let server = home.serve();
    let old = server.curl(&["http://affiant.internal/v1/health"]);
    assert_eq!(old.status, 407, "the old token still works");
    let proxy = format!("http://coder:{}@{}", rotated["token"].as_str().unwrap(), server.http);
    assert_eq!(server.curl(&["-x", &proxy, "http://affiant.internal/v1/health"]).status, 200);
}

/// `serve --https`: the same proxy, for callers whose proxy URL says `https`.
#[test]
fn the_proxy_speaks_tls() {
    let home = Home::new();
    let server = home.serve();
    let (ca, token) = (home.path().join("ca/ca-cert.pem"), server.proxy());
    let https = server.https.to_string();
    let proxy = token.replace("http://", "https://").replace(&server.http.to_string(), &https);
    let url = "http://affiant.internal/v1/health";
    let trust = ["--proxy-cacert", ca.to_str().unwrap(), "-x", &proxy, url];
    assert_eq!(server.curl(&trust).status, 200);
    assert_eq!(server.terminate(), Some(0));
}

/// An origin that answers when it is released, with a policy that leads there.
fn held_origin(home: &Home) -> TlsOrigin {
    let steps = vec![
        conformance::http::Step::ReadBody,
        conformance::http::Step::Hold,
        conformance::http::Step::Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone".into()),
    ];
    let origin = TlsOrigin::start(vec![Script::new("*", steps)]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    origin
}

/// curl, which waits for that answer.
fn slow_caller(
    home: &Home,
    server: &Server,
    origin: &TlsOrigin,
) -> std::thread::JoinHandle<Response> {
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sS", "-i", "--max-time", "60", "-x", &server.proxy(), "-d", "a=1"]);
    curl.arg(origin.url("/slow")).arg("--cacert").arg(home.path().join("bundle.pem"));
    clean(&mut curl);
    std::thread::spawn(move || Response::parse(&finish(curl, b"")))
}

/// SIGTERM lets a call under way end.
#[test]
fn sigterm_drains() {
    let home = Home::new();
    let origin = held_origin(&home);
    let server = home.serve();
    let caller = slow_caller(&home, &server, &origin);
    assert!(origin.origin.wait_for(1, PATIENCE));
    signal(&server.child, rustix::process::Signal::TERM);
    eventually("the listener's end", || std::net::TcpStream::connect(server.http).is_err());
    origin.origin.release();
    let response = caller.join().unwrap();
    assert_eq!((response.status, response.outcome()), (200, "committed"));
    assert_eq!(server.exit_code(), Some(0));
    home.ok(&["journal", "verify"]);
}

/// The same for a library of HTTP/2 that reads nothing behind a GOAWAY (hyper-h2, under httpx): it has the
/// answer before that comes.
#[test]
fn sigterm_drains_callers_of_http2() {
    let home = Home::new();
    let origin = held_origin(&home);
    let server = home.serve();
    let mut client = python();
    client.args(["-c", HTTP2_CLIENT, &server.proxy(), &origin.url("/slow")]);
    client.arg(home.path().join("bundle.pem"));
    let caller = std::thread::spawn(move || finish(client, b""));
    assert!(origin.origin.wait_for(1, PATIENCE));
    signal(&server.child, rustix::process::Signal::TERM);
    eventually("the listener's end", || std::net::TcpStream::connect(server.http).is_err());
    origin.origin.release();
    let said = caller.join().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "HTTP/2 200 done", "{said:?}");
    assert_eq!(server.exit_code(), Some(0));
}

const HTTP2_CLIENT: &str = "
import httpx, ssl, sys
proxy, url, bundle = sys.argv[1:]
trust = ssl.create_default_context(cafile=bundle)
with httpx.Client(http2=True, proxy=proxy, verify=trust, timeout=30, trust_env=False) as client:
    answer = client.post(url, content=b'a=1')
    print(answer.http_version, answer.status_code, answer.text)
";

/// D-1, D-4: what the drain has no time for is cut, and both the caller and the record say so.
#[test]
fn sigterm_records_what_it_cuts() {
    let home = Home::new();
    let origin = held_origin(&home);
    let server = Server::start_with(&home, &["--drain", "1s"]);
    let caller = slow_caller(&home, &server, &origin);
    assert!(origin.origin.wait_for(1, PATIENCE));
    assert_eq!(server.terminate(), Some(0));
    let response = caller.join().unwrap();
    assert_eq!((response.status, response.outcome()), (502, "unknown"));
    let id = response.invocation();
    let shown = home.json(&["inv", "show", &id]);
    assert_eq!(shown["error"]["code"], "BROKER_RESTARTED", "{shown}");
    assert_eq!(shown["error"]["outcome"], "unknown", "{shown}");
    assert_eq!(shown["error"]["retry"], "reconcile", "{shown}");
    let events = home.json(&["inv", "events", &id]).to_string();
    assert!(events.contains("BROKER_STOPPED"), "{events}");
    home.ok(&["journal", "verify"]);
    origin.origin.release();
}

/// J-6: `verify` and `serve` agree that a log has lost acknowledged events.
#[test]
fn j_6_verify_and_serve_agree_on_a_lost_tail() {
    let home = Home::new();
    let server = home.serve();
    for n in 0..3 {
        assert_eq!(server.curl(&[&format!("http://denied.example/{n}")]).status, 403);
    }
    assert_eq!(server.terminate(), Some(0));
    home.ok(&["journal", "verify"]);
    let segment = home.path().join("journal/00000001.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 100] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let verified = home.run(&["journal", "verify"]);
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified.stdout));
    assert!(text(&verified.stderr).contains("acknowledged events are missing"));
    let served = home.run(&["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"]);
    assert_eq!(served.status.code(), Some(2));
    let said = text(&served.stderr);
    assert_eq!(said.matches("acknowledged events are missing").count(), 1, "{said}");
    assert!(said.contains("affiant journal repair"), "{said}");
}
