//! Keys that only sign, and tokens that are minted with them, are nowhere but where they belong; and no
//! core of the server holds anything (contract I-2, I-4).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/canary.rs"]
mod canary;
#[path = "support/ssh.rs"]
mod ssh;
mod support;

use canary::{key_lines, logged, logged_behind, nowhere};
use conformance::nginx::Nginx;
use conformance::service::{Call, Github, Reply, Service};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use support::*;

fn openssl(arguments: &[&str]) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(arguments).stderr(Stdio::null());
    text(&finish(openssl, b"").stdout)
}

/// A service that answers with the `Authorization` that it got, and keeps it.
fn echo() -> (Service, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let handler = move |call: &Call| {
        let shown = call.field("authorization").unwrap_or_default().to_owned();
        kept.lock().unwrap().push(shown.clone());
        Some(Reply::json(200, &serde_json::json!({ "got": shown })))
    };
    (Service::start(None, Arc::new(handler)).unwrap(), seen)
}

/// I-2, I-4: `jwt` and `github-app` through the real proxy: the origin gets a token, its echo is
/// redacted, and neither key nor token is told or written.
#[test]
fn i_2_signed_and_minted_tokens_leave_nothing() {
    let home = Home::new();
    let (service, seen) = echo();
    let github = Github::start(Box::new(|_, _| true), 3600).unwrap();
    let ec = openssl(&["genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    let rsa = openssl(&["genpkey", "-algorithm", "rsa", "-pkeyopt", "rsa_keygen_bits:2048"]);
    home.secret("ec", &ec);
    home.secret("rsa", &rsa);
    let port = service.address().port();
    let route = |id: &str, keys: &str| {
        format!(
            "[[credential]]\nid = \"{id}\"\n{keys}\n[[route]]\nname = \"{id}\"\ncredential = \"{id}\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, path = \"/{id}\" }}\n\
             private_addresses = \"allow\"\n"
        )
    };
    let jwt = "secret = \"ec\"\ninject = \"jwt\"\nalgorithm = \"ES256\"\nclaims = { iss = \"me\" }";
    let app = format!(
        "secret = \"rsa\"\ninject = \"github-app\"\napp_id = \"12345\"\ninstallation_id = 678\n\
         api_url = \"http://{}\"",
        github.address()
    );
    home.policy(&(route("jwt", jwt) + &route("app", &app)));
    let (server, log) = logged(&home);
    for id in ["jwt", "app"] {
        let response = server.curl(&["-d", "x", &format!("http://127.0.0.1:{port}/{id}")]);
        assert_eq!((response.status, response.outcome()), (200, "committed"), "{response:?}");
        let shown = seen.lock().unwrap().last().unwrap().clone();
        let token = shown.strip_prefix("Bearer ").unwrap();
        assert!(!text(&response.body).contains(token), "{id}: {response:?}");
        let record = home.json(&["inv", "show", &response.invocation()]);
        assert_eq!(record["evidence"]["redacted"], true, "{record}");
    }
    let seen = seen.lock().unwrap().clone();
    let tokens: Vec<&str> = seen.iter().map(|shown| &shown["Bearer ".len()..]).collect();
    assert_eq!((tokens[0].split('.').count(), tokens[1]), (3, "ghs_canary1"));
    let signature = tokens[0].rsplit('.').next().unwrap();
    let keys = [key_lines(&ec), key_lines(&rsa)].concat();
    nowhere(&home, server, &log, &[&tokens[..], &[signature], &keys].concat());
}

/// I-2, I-4: values of variables, files and programs: the origin gets each, its echo is redacted, what a
/// person is shown has none that is at hand, and nothing else holds any.
#[test]
fn i_2_values_of_other_sources_leave_nothing() {
    let home = Home::new();
    let (service, seen) = echo();
    let outside = tempfile::tempdir().unwrap();
    let file = outside.path().join("token");
    std::fs::write(&file, "canary-of-a-file-93ab\n").unwrap();
    let program = outside.path().join("program");
    std::fs::write(&program, "canary-of-a-program-5fe1\n").unwrap();
    let port = service.address().port();
    let route = |id: &str, secret: &str, more: &str| {
        format!(
            "[[credential]]\nid = \"{id}\"\nsecret = \"{secret}\"\ninject = \"bearer\"\n\
             [[route]]\nname = \"{id}\"\ncredential = \"{id}\"\nprivate_addresses = \"allow\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, path = \"/{id}\" }}\n{more}"
        )
    };
    home.policy(
        &(route("variable", "env:AFFIANT_TEST_CANARY", "")
            + &route("file", &format!("file:{}", file.display()), "")
            + &route("program", &format!("exec:cat {}", program.display()), "")
            + &route("held", &format!("file:{}", file.display()), "approval = \"required\"\n")),
    );
    let lines = "export AFFIANT_TEST_CANARY=canary-of-a-variable-c07d";
    let (server, log) = logged_behind(&home, lines);
    let canaries =
        ["canary-of-a-variable-c07d", "canary-of-a-file-93ab", "canary-of-a-program-5fe1"];
    let url = |id: &str| format!("http://127.0.0.1:{port}/{id}");
    for (id, canary) in ["variable", "file", "program"].into_iter().zip(canaries) {
        let response = server.curl(&["-d", "x", &url(id)]);
        assert_eq!((response.status, response.outcome()), (200, "committed"), "{response:?}");
        assert_eq!(seen.lock().unwrap().last().unwrap(), &format!("Bearer {canary}"));
        assert!(!text(&response.body).contains(canary), "{id}: {response:?}");
    }
    // What the agent itself puts in is hidden from who is asked.
    let note = format!("note={}&other={}", canaries[0], canaries[1]);
    let held = server.curl(&["-H", "Affiant-Wait: 0", "-d", &note, &url("held")]);
    assert_eq!(held.json()["error"]["code"], "APPROVAL_PENDING", "{held:?}");
    let shown = home.ok(&["approval", "show", &held.invocation()]);
    assert!(shown.contains("note=(hidden: 25 bytes"), "{shown}");
    assert!(shown.contains("other=(hidden: 21 bytes"), "{shown}");
    nowhere(&home, server, &log, &canaries);
}

/// I-2: a client certificate is shown in the handshake with a real nginx, and its key nowhere.
#[test]
fn i_2_the_key_of_a_client_certificate_leaves_nothing() {
    let home = Home::new();
    let server = "ssl_verify_client optional_no_ca; \
                  location / { return 200 \"$ssl_client_s_dn\"; }";
    let nginx = Nginx::start(server, |_| Ok(())).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (key, cert) = (path("key.pem"), path("cert.pem"));
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let rest = ["-subj", "/CN=agent-7", "-days", "2", "-keyout", &key, "-out", &cert];
    openssl(&[&new[..], &rest].concat());
    let key = std::fs::read_to_string(key).unwrap();
    home.secret("client", &(std::fs::read_to_string(cert).unwrap() + &key));
    home.policy(&format!(
        "[[credential]]\nid = \"client\"\nsecret = \"client\"\ninject = \"mtls\"\n\
         [[trust]]\nhost = \"localhost\"\nca_file = \"{}\"\n\
         [[route]]\nname = \"m\"\ncredential = \"client\"\nprivate_addresses = \"allow\"\n\
         match = {{ host = \"localhost\", port = {} }}\n",
        nginx.ca_file().display(),
        nginx.port()
    ));
    let (server, log) = logged(&home);
    let response = server.curl(&[&format!("https://localhost:{}/x", nginx.port())]);
    assert_eq!((response.status, text(&response.body).as_str()), (200, "CN=agent-7"));
    nowhere(&home, server, &log, &key_lines(&key));
}

/// A stock client that jumps over the gateway to the target.
fn jump(home: &Home, server: &Server, user: &str) -> Command {
    let config = home.path().join("ssh_config");
    std::fs::write(&config, home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
    let mut client = Command::new("ssh");
    client.arg("-F").arg(&config).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-J"]);
    client.arg(format!("coder@{}", server.ssh)).arg(format!("{user}@prod-1"));
    client.arg("echo done");
    clean(&mut client);
    client
}

/// I-2: the key that logs in at a real sshd is nowhere, the engine's own log at trace level included.
#[test]
fn i_2_the_key_of_an_ssh_login_leaves_nothing() {
    let sshd = ssh::Sshd::start();
    let home = Home::new();
    home.secret("deploy-key", &sshd.user_key);
    home.policy(&sshd.policy(&sshd.host_key));
    let (server, log) = logged(&home);
    assert_eq!(succeed(jump(&home, &server, &ssh::user())), "done\n");
    nowhere(&home, server, &log, &key_lines(&sshd.user_key));
}

/// The files of a home that hold a private key in the form of OpenSSH or in PEM, and how often.
fn private_keys(home: &Home) -> Vec<(std::path::PathBuf, usize)> {
    let mut all = Vec::new();
    files(home.path(), &mut all);
    // The server is up: its socket is no file to be read.
    all.retain(|path| std::fs::metadata(path).unwrap().is_file());
    let mut held = Vec::new();
    for path in all {
        let bytes = std::fs::read(&path).unwrap();
        let marks: [&[u8]; 3] = [b"PRIVATE KEY-----", b"b3BlbnNzaC1rZXktdjEA", b"openssh-key-v1\0"];
        let count = |mark: &[u8]| memchr::memmem::find_iter(&bytes, mark).count();
        let found: usize = marks.into_iter().map(count).sum();
        if found > 0 {
            held.push((path, found));
        }
    }
    held.sort();
    held
}

/// I-2: a real sshd lets in by a certificate of our CA. The CA's key is nowhere, and the key that is
/// minted for the session, which nobody but the gateway knows, is added to no file as a key.
#[test]
fn i_2_the_keys_of_a_minted_certificate_leave_nothing() {
    let sshd = ssh::Sshd::start();
    let home = Home::new();
    home.secret("deploy-key", &sshd.user_ca);
    home.policy(&sshd.policy(&sshd.host_key).replace("\"ssh-key\"", "\"ssh-certificate\""));
    let (server, log) = logged(&home);
    let client = jump(&home, &server, &ssh::user());
    let before = private_keys(&home);
    assert!(!before.is_empty(), "the gateway's own keys are there");
    assert_eq!(succeed(client), "done\n");
    let accepted = sshd.log();
    let line = accepted.lines().find(|line| line.starts_with("Accepted publickey")).unwrap();
    assert!(line.contains("ED25519-CERT"), "{line}");
    assert_eq!(private_keys(&home), before);
    nowhere(&home, server, &log, &key_lines(&sshd.user_ca));
}

/// An SSH server (asyncssh) with one user by password and one by questions.
fn server_with_passwords(password: &str, answer: &str) -> (Held, u16, String) {
    let mut command = python();
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/ssh_server.py"));
    command.env("BY_PASSWORD", password).env("BY_QUESTIONS", answer);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (port, key) = line.trim().split_once(' ').unwrap();
    (Held(child), port.parse().unwrap(), key.to_owned())
}

/// A program that ends with its standard input.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        wait(&mut self.0, PATIENCE);
    }
}

/// I-2, I-4: a password and the answer to a hidden question let in; what the target tells of them is
/// redacted, and they are nowhere.
#[test]
fn i_2_passwords_and_answers_of_ssh_logins_leave_nothing() {
    let canaries = ["canary-of-a-password-7be2", "canary-of-an-answer-41d9"];
    let (_target, port, host_key) = server_with_passwords(canaries[0], canaries[1]);
    let home = Home::new();
    let mut policy = String::new();
    let modes = ["password", "keyboard-interactive"];
    let users = ["by-password", "by-questions"];
    for ((mode, user), canary) in modes.into_iter().zip(users).zip(canaries) {
        home.secret(user, canary);
        policy += &format!(
            "[[credential]]\nid = \"{user}\"\nsecret = \"{user}\"\ninject = \"{mode}\"\n\
             [[ssh]]\nname = \"{user}\"\nagents = [\"coder\"]\ncredential = \"{user}\"\n\
             match = {{ host = \"prod-1\", port = 22, users = [\"{user}\"], commands = [\"*\"] }}\n\
             address = \"127.0.0.1:{port}\"\nhost_keys = [\"{host_key}\"]\nallow = [\"exec\"]\n"
        );
    }
    home.policy(&policy);
    let (server, log) = logged(&home);
    for (user, canary) in users.into_iter().zip(canaries) {
        let output = finish(jump(&home, &server, user), b"");
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{user}: {stdout}{stderr}");
        assert!(stdout.starts_with("logged in with "), "{stdout}");
        assert!(stderr.contains("told again: "), "{stderr}");
        assert!(!stdout.contains(canary) && !stderr.contains(canary), "{stdout}{stderr}");
        let newest = home.json(&["inv", "list", "--limit", "1"])["invocations"][0].clone();
        let record = home.json(&["inv", "show", newest["invocation_id"].as_str().unwrap()]);
        assert_eq!(record["evidence"]["redacted"], true, "{record}");
    }
    nowhere(&home, server, &log, &canaries);
}

/// I-2, I-4: a target that names its exit signal by the password, and tells it in the words beside, gets
/// it neither to the client nor on record, in any form that a name can have.
#[test]
fn i_2_the_end_of_an_ssh_command_tells_no_password() {
    let canary = "canary-of-a-password-\"93c1\"";
    let (_target, port, host_key) = server_with_passwords(canary, "none");
    let home = Home::new();
    home.secret("p", canary);
    home.policy(&format!(
        "[[credential]]\nid = \"p\"\nsecret = \"p\"\ninject = \"password\"\n\
         [[ssh]]\nname = \"p\"\nagents = [\"coder\"]\ncredential = \"p\"\n\
         match = {{ host = \"prod-1\", port = 22, users = [\"by-password\"], commands = [\"*\"] }}\n\
         address = \"127.0.0.1:{port}\"\nhost_keys = [\"{host_key}\"]\nallow = [\"exec\"]\n"
    ));
    let (server, log) = logged(&home);
    let mut client = python();
    client.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/ssh_client.py"));
    client.arg(server.ssh.port().to_string());
    client.args(["prod-1", "by-password", &home.token, "in-turn"]);
    let ends = [
        ("end PASSWORD", "other@affiant"),
        ("end PASSWORD@x", "[redacted]@x"),
        ("end x@PASSWORD", "x@[redacted]"),
        ("end MELTDOWN", "other@affiant"),
        ("end own@example.org", "own@example.org"),
        ("end TERM", "TERM"),
    ];
    client.args(ends.map(|(command, _)| command));
    let told = succeed(client);
    assert_eq!(told.lines().count(), ends.len(), "{told}");
    for (line, (command, name)) in told.lines().zip(ends) {
        let [signal, stdout, stderr]: [serde_json::Value; 3] = serde_json::from_str(line).unwrap();
        let expected = serde_json::json!([name, false, "told as well: [redacted]", "x-[redacted]"]);
        assert_eq!(signal, expected, "{command}");
        assert_eq!(
            (stdout, stderr),
            ("logged in with [redacted]\n".into(), "told again: [redacted]\n".into())
        );
    }
    let listed = home.json(&["inv", "list"])["invocations"].as_array().unwrap().clone();
    let ended: Vec<_> =
        listed.iter().rev().map(|one| &one["evidence"]["ssh_end"]["exit_signal"]).collect();
    assert_eq!(ended, ends.map(|(_, name)| name));
    // In records it would stand as JSON has it.
    let escaped = canary.replace('"', "\\\"");
    nowhere(&home, server, &log, &[canary, &escaped, "MELTDOWN"]);
}

/// I-2: neither a signal that dumps core nor `gcore` of the same user gets the server's memory, where
/// both get that of a program without the protection.
#[test]
#[cfg(target_os = "linux")]
fn i_2_no_core_of_a_server_can_be_had() {
    let home = Home::new();
    home.secret("pay-token", SECRET);
    // As root nothing is forbidden: then the server runs as nobody, who is root for no file.
    let (root, nobody) = (ssh::user() == "root", "65534");
    let by: &[&str] = if root {
        let mut chown = Command::new("chown");
        chown.args(["-R", nobody]).arg(home.path());
        succeed(chown);
        &["setpriv", "--reuid", nobody, "--regid", nobody, "--clear-groups"]
    } else {
        &[]
    };
    let unlimited = ["sh", "-c", "ulimit -c unlimited 2>/dev/null; exec \"$@\"", "sh"];
    let directory = tempfile::tempdir().unwrap();
    let mut open = std::fs::metadata(directory.path()).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o777);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let gcore = |pid: u32, name: &str| {
        let file = directory.path().join(name);
        let pid_text = pid.to_string();
        let words = [by, &["gcore", "-o", file.to_str().unwrap(), &pid_text]].concat();
        let mut gcore = Command::new(words[0]);
        gcore.args(&words[1..]).current_dir(directory.path());
        let output = finish(gcore, b"");
        (output.status.success(), directory.path().join(format!("{name}.{pid}")).exists())
    };
    let words = [by, &unlimited, &["sleep", "1000"]].concat();
    let mut plain = Command::new(words[0]).args(&words[1..]).spawn().unwrap();
    let is_sleep = || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", plain.id()));
        name.is_ok_and(|name| name.trim() == "sleep")
    };
    eventually("the plain program", is_sleep);
    let mut server = Server::start_by(&home, &[by, &unlimited].concat());
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    // Where the kernel lets a user trace its own programs, that shows that gcore works here.
    if matches!(scope.trim(), "" | "0") {
        assert_eq!(gcore(plain.id(), "plain"), (true, true), "gcore works");
    }
    assert_eq!(gcore(server.child.id(), "server"), (false, false));
    for child in [&plain, &server.child] {
        signal(child, rustix::process::Signal::ABORT);
    }
    let dumped = wait(&mut plain, PATIENCE);
    let ended = wait(&mut server.child, PATIENCE);
    assert_eq!(dumped.signal(), Some(6));
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(6), false), "{ended:?}");
}
