//! What is said to people who set something up half, or look for what happened.

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
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use support::*;

const LOCKED: &str = "the vault is locked: calls that need a credential or keep a result get \
                      VAULT_LOCKED until `affiant vault unlock`";

/// Options of a listener that is not there, or that take each other's place, are refused.
#[test]
fn options_without_their_listener_are_refused() {
    let home = Home::new();
    let file = home.path().join("x.pem");
    let file = file.to_str().unwrap();
    let own = ["--https-cert", file, "--https-key", file];
    let named = ["--https-name", "a.example"];
    let https = ["--https", "127.0.0.1:0"];
    for (arguments, expected) in [
        (own.to_vec(), "--https <ADDR>"),
        (named.to_vec(), "--https <ADDR>"),
        ([&https[..], &named, &own].concat(), "cannot be used with"),
        (vec!["--http", "localhost:7780"], "write IP:PORT"),
        (vec!["--ssh", ":7722"], "write IP:PORT"),
        (vec!["--journal-max-size", "1"], "write 16MiB at least"),
        (
            vec!["--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0", "--console", "0.0.0.0:0"],
            "the console has no TLS",
        ),
    ] {
        let refused = home.run(&[&["serve"][..], &arguments].concat());
        let told = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(expected), "{arguments:?}: {told}");
    }
}

/// Listeners that are left out are not there, and what needs them says so.
#[test]
fn a_listener_can_be_left_out() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let none = home.run(&["serve", "--http", "off", "--ssh", "off"]);
    assert_eq!(none.status.code(), Some(2));
    let words = "no agent could call: all of --http, --https and --ssh are off";
    assert!(text(&none.stderr).contains(words), "{}", text(&none.stderr));

    let options = ["--http", "off", "--ssh", "off", "--https", "127.0.0.1:0", "--json"];
    let mut serve = home.command(&[&["serve"][..], &options].concat());
    let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let https = ready["ready"]["https"].as_str().unwrap();
    let expected =
        serde_json::json!({ "http": null, "ssh": null, "https": https, "console": null });
    assert_eq!(ready["ready"], expected);
    let proxy = home.json(&["agent", "rotate", "coder"])["proxy"].as_str().unwrap().to_owned();
    assert!(proxy.starts_with("https://coder:afft_") && proxy.ends_with(https), "{proxy}");
    let ca = home.path().join("ca/ca-cert.pem");
    let mut curl = std::process::Command::new("curl");
    clean(&mut curl);
    curl.args(["-s", "-x", &proxy, "--proxy-cacert"]).arg(&ca).arg("--cacert").arg(&ca);
    curl.arg(origin.url("/x"));
    assert_eq!(succeed(curl), "ok");
    for (command, words) in [
        (&["run", "--", "true"][..], "which a run needs: --http is off"),
        (&["ssh-config"], "the server has no SSH gateway: --ssh is off"),
    ] {
        let refused = home.run(command);
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(words), "{}", text(&refused.stderr));
    }
    signal(&child, rustix::process::Signal::TERM);
    assert_eq!(wait(&mut child, PATIENCE).code(), Some(0));
}

/// A vault that is locked is told of at the start of a server, by `doctor`, and by what locks it.
#[test]
fn a_locked_vault_is_told_of() {
    let home = Home::new();
    let vault = |home: &Home| {
        let all = home.ok(&["doctor"]);
        all.lines().find(|line| line.contains("vault  ")).unwrap().to_owned()
    };
    assert_eq!(vault(&home), "ok     vault         is open");
    let server = home.serve();
    let key = home.path().join("handed-out");
    let rotated = home.run(&["vault", "rotate", "--hand-out", key.to_str().unwrap()]);
    assert_eq!(text(&rotated.stderr), format!("affiant: of the running server, {LOCKED}\n"));
    assert_eq!(vault(&home), format!("note   vault         {LOCKED}"));
    server.terminate();
    assert_eq!(vault(&home), format!("note   vault         {LOCKED}"));

    let mut command = home.command(&["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == format!("affiant: {LOCKED}")));
    signal(&child, rustix::process::Signal::TERM);
    wait(&mut child, PATIENCE);
}

/// Who applies a file learns what it changed; who has another file in the home learns what is in force.
#[test]
fn what_a_policy_changed_and_where_it_came_from_is_said() {
    let home = Home::new();
    let file = home.path().join("other.toml");
    let path = file.to_str().unwrap();
    let text_of =
        "[defaults]\negress = \"allow\"\n[[route]]\nname = \"a\"\nmatch = { host = \"a.test\" }\n";
    std::fs::write(&file, text_of).unwrap();
    let told = home.ok(&["policy", "apply", path]);
    let expected =
        "policy version 2 is in force: egress deny -> allow, 1 defaults changed, 1 route added\n";
    assert_eq!(told, expected);
    assert_eq!(
        home.ok(&["policy", "apply", path]),
        "policy version 3 is in force: nothing differs from the version before\n"
    );
    let doctor = home.ok(&["doctor"]);
    let expected = format!("version 3, which is in force and was applied from {path}:");
    assert!(doctor.contains(&expected), "{doctor}");
    assert!(doctor.contains("`affiant policy apply` puts the file in its place"), "{doctor}");
    let told = home.ok(&["policy", "apply"]);
    let expected =
        "policy version 4 is in force: egress allow -> deny, 1 defaults changed, 1 route removed\n";
    assert_eq!(told, expected);
    home.ok(&["policy", "rollback", "2"]);
    let doctor = home.ok(&["doctor"]);
    assert!(doctor.contains("which is in force as the text of version 2:"), "{doctor}");
}

/// `inv show` says which rule, which credential, under which version, when and how long.
#[test]
fn a_record_is_shown_with_its_rule_and_its_time() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let sent = server.curl(&["-d", "a", &origin.url("/x")]).invocation();
    server.await_event(&sent, "RESULT_DELIVERED");
    let shown = home.ok(&["inv", "show", &sent]);
    let value = |name: &str| {
        let line = shown.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {shown}"))[12..].to_owned()
    };
    let state = server.control(&format!("invocations/{sent}"));
    assert_eq!([value("route"), value("credential")], ["origin", "pay"]);
    assert_eq!(value("policy"), "version 2");
    let took = state["ended_at_ms"].as_u64().unwrap() - state["accepted_at_ms"].as_u64().unwrap();
    assert_eq!(value("duration"), format!("{took} ms"));
    assert!(value("time").starts_with("20") && value("time").ends_with('Z'), "{shown}");
    assert_eq!(value("delivery"), "delivered");
    // Nothing of what was refused can be received.
    let refused = server.curl(&["http://elsewhere.test/"]).invocation();
    assert!(!home.ok(&["inv", "show", &refused]).contains("\ndelivery "));
    assert!(home.ok(&["inv", "list", "--since", "1w"]).contains(&refused));
}

/// An agent whose time is over is marked.
#[test]
fn an_agent_whose_access_has_ended_is_marked() {
    let home = Home::new();
    home.ok(&["agent", "add", "brief", "--lasts", "1s"]);
    eventually("its access ended", || home.ok(&["agent", "list"]).contains(" (has ended)"));
    let listed = home.ok(&["agent", "list"]);
    let marked: Vec<_> = listed.lines().filter(|line| line.contains("(has ended)")).collect();
    assert!(marked.len() == 1 && marked[0].starts_with("brief "), "{listed}");
    let doctor = home.ok(&["doctor"]);
    assert!(doctor.contains("the access of \"brief\" has ended; "), "{doctor}");
}

/// wget has the CA by `affiant run` alone, and its user's own settings.
#[test]
fn wget_is_set_up_by_run() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    let policy = plain_policy(origin.ca_file.path(), origin.origin.address().port());
    home.policy(&policy);
    std::fs::write(home.path().join(".wgetrc"), "header = X-Own: yes\n").unwrap();
    let mut command = home.command(&["run", "--", "wget", "-qO-", &origin.url("/x")]);
    command.env("HOME", home.path()).env_remove("WGETRC");
    assert_eq!(succeed(command), "ok");
    let [seen] = origin.origin.seen().try_into().unwrap();
    assert_eq!(seen.field("x-own").as_deref(), Some("yes"));
    assert_eq!(home.json(&["inv", "list"])["invocations"].as_array().unwrap().len(), 1);
}

/// V-1: what was refused at its CONNECT is in the draft, and passes under it.
#[test]
fn v_1_a_tunnel_that_was_refused_is_learned() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.policy("[defaults]\negress = \"deny\"\n");
    let server = home.serve();
    assert_eq!(server.curl(&[&origin.url("/x")]).status, 403);
    let draft = home.ok(&["policy", "learn", "--denied"]);
    let port = origin.origin.address().port();
    let expected = format!("match = {{ host = \"localhost\", port = {port} }}\n");
    assert!(draft.contains(&expected), "{draft}");
    let trust = origin.policy("");
    let trust = trust.split("[[credential]]").next().unwrap();
    home.policy(&format!("[defaults]\nprivate_addresses = \"allow\"\n{trust}{draft}"));
    assert_eq!(server.curl(&[&origin.url("/x")]).status, 200);
}

/// A file of trust without a certificate is told of before and at the call.
#[test]
fn a_trust_file_without_certificates_is_told_of() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    let file = home.path().join("key.pem");
    std::fs::write(&file, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        .unwrap();
    let policy = plain_policy(&file, origin.origin.address().port()).replace("local\"", "coder\"");
    std::fs::write(home.path().join("policy.toml"), policy).unwrap();
    let words = format!("{} holds no certificate", file.display());
    assert!(text(&home.run(&["policy", "check"]).stderr).contains(&words));
    home.ok(&["policy", "apply"]);
    assert!(home.ok(&["doctor"]).contains(&words));
    let server = home.serve();
    let refused = server.curl(&[&origin.url("/x")]);
    let record = server.control(&format!("invocations/{}", refused.invocation()));
    assert_eq!(record["error"]["code"], "TLS_CERTIFICATE_ERROR", "{record}");
    // localhost may have an address that nobody listens on.
    let last = record["evidence"]["attempts"].as_array().unwrap().last().unwrap();
    assert_eq!(last["code"], "TRUST_UNREADABLE", "{record}");
}

/// C-5: whose secret is missing is on record where the route has no credential of its own, and was said as it was
/// removed.
#[test]
fn c_5_the_missing_secret_of_an_upstream_proxy_is_named() {
    let home = Home::new();
    let (_held, closed) = refusing();
    home.secret("corp-login", "user:password");
    home.policy(&format!(
        "[[credential]]\nid = \"corp\"\nsecret = \"corp-login\"\ninject = \"basic\"\n\
         [[parent]]\nname = \"up\"\nurl = \"http://{closed}\"\ncredential = \"corp\"\n\
         [[route]]\nname = \"r\"\nmatch = {{ scheme = \"http\", host = \"a.test\" }}\nparent = \"up\"\n",
    ));
    let removed = home.run(&["secret", "rm", "corp-login"]);
    assert!(removed.status.success());
    let words = "affiant: credential \"corp\" of policy version 2 needs it: calls with it get \
                 SECRET_MISSING until `affiant secret set corp-login`\n";
    assert_eq!(text(&removed.stderr), words);
    let server = home.serve();
    let refused = server.curl(&["http://a.test/"]);
    let shown = home.ok(&["inv", "show", &refused.invocation()]);
    assert!(shown.contains("code        SECRET_MISSING\n"), "{shown}");
    let note = "notes\n  parent                     up: credential corp can't be used\n";
    assert!(shown.contains(note), "{shown}");
    // What reads or mends files beside a server says what is in its way.
    let repair = home.run(&["journal", "repair"]);
    assert!(text(&repair.stderr).contains("a server runs in this home: stop it first"));
}

/// A stored result takes no file's place.
#[test]
fn a_result_overwrites_nothing() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let id = server.curl(&[&origin.url("/x")]).invocation();
    let file = home.path().join("kept.txt");
    let file_name = file.to_str().unwrap();
    home.ok(&["inv", "result", &id, "-o", file_name]);
    std::fs::write(&file, "mine").unwrap();
    let again = home.run(&["inv", "result", &id, "-o", file_name]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let as_json = home.run(&["--json", "inv", "result", &id]);
    assert_eq!((as_json.status.code(), as_json.stdout), (Some(2), Vec::new()));
}

/// R-5, S-2: a stored result is a file whole, or not at all: where the file can't be written to its end, and where
/// what should send the rest breaks off, nothing of it is left.
#[test]
fn r_5_a_result_is_a_whole_file_or_none() {
    let home = Home::new();
    let content = "x".repeat(64 << 10);
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], &content)]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let id = server.curl(&[&origin.url("/x")]).invocation();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("result");
    let written = home.command(&["inv", "result", &id, "-o", file.to_str().unwrap()]);
    let names = || {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    // No file may be longer than a few KiB: the system's own word for a disk that is full meanwhile.
    let mut short = std::process::Command::new("sh");
    short.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]).arg(written.get_program());
    short.args(written.get_args());
    clean(&mut short);
    let failed = finish(short, b"");
    let words =
        format!("status 200 OK\naffiant: write {}: File too large (os error 27)\n", file.display());
    assert_eq!((failed.status.code(), text(&failed.stderr)), (Some(2), words));
    assert_eq!(names(), [""; 0]);
    let whole = finish(written, b"");
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(), ["result"]);
    std::fs::remove_file(&file).unwrap();

    assert_eq!(server.terminate(), Some(0));
    let socket = UnixListener::bind(home.path().join("control.sock")).unwrap();
    for cut in
        ["Content-Length: 100\r\n\r\nbegun", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"]
    {
        let peer = socket.try_clone().unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nAffiant-Result: http\r\n{cut}");
        // The first connection only looks whether there is a server.
        let broken_off = std::thread::spawn(move || {
            peer.accept().unwrap();
            let (mut asked, _) = peer.accept().unwrap();
            let mut request = BufReader::new(asked.try_clone().unwrap()).lines();
            while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            asked.write_all(answer.as_bytes()).unwrap();
        });
        let broken = home.run(&["inv", "result", &id, "-o", file.to_str().unwrap()]);
        assert_eq!(broken.status.code(), Some(2));
        let said = text(&broken.stderr);
        assert!(said.starts_with("affiant: error reading a body from connection"), "{said}");
        broken_off.join().unwrap();
        assert_eq!(names(), [""; 0]);
    }
}

/// A usage line asks for nothing that the environment gives.
#[test]
fn a_usage_line_asks_for_no_home() {
    let home = Home::new();
    let mut usage = std::process::Command::new(BINARY);
    usage.args(["policy", "explain"]).env("AFFIANT_HOME", home.path());
    let said = text(&finish(usage, b"").stderr);
    let expected = "Usage: affiant policy explain --agent <AGENT> <METHOD> <URL>...\n";
    assert!(said.contains(expected), "{said}");
}
