//! What a route says of its target, with stock OpenSSH: host verification, certificates, variables,
//! forwarding, relayed jumps, ends of commands.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, Sshd, err, keygen, out};
use common::{envelope, facts, within};
use journal::contract::{Code, Completion, Outcome, Phase, SignalName, SshEnd};
use ssh_gateway::Options;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

const CREDENTIAL: &str = "credential = \"c\"\nrepeat_guard = \"off\"";

fn known(text: &str) -> String {
    format!("known_hosts = \"\"\"\n{text}\n\"\"\"\n{CREDENTIAL}")
}

async fn ssh_keygen(arguments: &[&str]) -> String {
    let output = within(Command::new("ssh-keygen").args(arguments).output()).await.unwrap();
    assert!(output.status.success(), "{arguments:?} {}", err(&output));
    out(&output)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// C-1: lines of `known_hosts`, plain, by pattern, hashed, by address; and `ssh-keygen -F` agrees.
#[tokio::test]
async fn c_1_known_hosts_lines_verify_a_target() {
    let Some(bench) = Bench::start("").await else { return };
    let key = bench.sshd.host_key();
    let file = bench.home.directory.path().join("known");
    let path = file.to_str().unwrap();
    std::fs::write(&file, format!("t {key}\n")).unwrap();
    ssh_keygen(&["-H", "-f", path]).await;
    let hashed = read(&file);
    assert!(hashed.starts_with("|1|"), "{hashed}");
    assert!(ssh_keygen(&["-F", "t", "-f", path]).await.contains("found"));
    let by_address = format!("[127.0.0.1]:{} {key}", bench.sshd.address.port());
    for text in [&format!("# c\n\nother,t {key} me"), &format!("?,!x {key}"), &hashed, &by_address]
    {
        bench.apply("ssh-key", &known(text));
        let output = bench.run("echo in").await;
        assert_eq!(out(&output), "in\n", "{text}: {}", err(&output));
    }
    let cases = [
        (format!("!t,* {key}"), Code::HostKeyUnknown),
        (format!("other {key}"), Code::HostKeyUnknown),
        (format!("t {key}\n@revoked * {key}"), Code::HostKeyMismatch),
        (format!("t {key}\n@revokt * {key}"), Code::HostKeyUnknown),
        (format!("t {key}\nt ssh-ed25519 AAAA"), Code::HostKeyUnknown),
    ];
    for (text, code) in cases {
        bench.apply("ssh-key", &known(&text));
        let output = bench.run("id").await;
        let expected = (Phase::ConnectionSetup, Outcome::NotAttempted, code);
        assert_eq!(facts(&envelope(&output.stderr)), expected, "{text}");
    }
}

/// C-1: a host certificate proves the target if its authority, name, kind and time hold.
#[tokio::test]
async fn c_1_a_host_authority_verifies_a_target() {
    let keys = tempfile::tempdir().unwrap();
    let at = |name: &str| keys.path().join(name);
    for name in ["ca", "other_ca", "host"] {
        keygen(&at(name)).await;
    }
    let sign = async |names: &str, more: &[&str]| {
        let (ca, host) = (at("ca"), at("host.pub"));
        let mut arguments = vec!["-q", "-s", ca.to_str().unwrap(), "-I", "h", "-n", names];
        arguments.extend(more);
        arguments.push(host.to_str().unwrap());
        ssh_keygen(&arguments).await;
    };
    sign("t", &["-h"]).await;
    let config = format!("HostKey {0}\nHostCertificate {0}-cert.pub", at("host").display());
    let Some(bench) = Bench::start_with("", &config, Options::default()).await else { return };
    let (ca, other) = (read(&at("ca.pub")), read(&at("other_ca.pub")));
    bench.apply("ssh-key", &known(&format!("@cert-authority t {ca}")));
    let output = bench.run("echo in").await;
    assert_eq!(out(&output), "in\n", "{}", err(&output));
    let revoked = format!("@cert-authority t {ca}\n@revoked * {ca}");
    for (lines, code) in [
        (format!("@cert-authority t {other}"), Code::HostKeyMismatch),
        (format!("@cert-authority other {ca}"), Code::HostKeyUnknown),
        (revoked, Code::HostKeyMismatch),
    ] {
        bench.apply("ssh-key", &known(&lines));
        let output = bench.run("id").await;
        assert_eq!(facts(&envelope(&output.stderr)).2, code, "{lines}");
    }
    // Another name, a user's certificate, a time that is over: sshd reads the file at each start.
    let good = known(&format!("@cert-authority t {ca}"));
    let wrong: [(&str, &[&str]); 3] =
        [("u", &["-h"]), ("t", &[]), ("t", &["-h", "-V", "20200101:20200102"])];
    for (names, more) in wrong {
        sign(names, more).await;
        let Some(sshd) = Sshd::start_with(&config).await else { return };
        bench
            .home
            .policy
            .apply(
                &format!(
                    "[[credential]]\nid = \"c\"\nsecret = \"target-key\"\ninject = \"ssh-key\"\n\
             [[ssh]]\nname = \"t\"\nmatch = {{ host = \"t\" }}\naddress = \"{}\"\n{good}\n",
                    sshd.address
                ),
                "policy.toml",
                "test",
            )
            .unwrap();
        let output = bench.run("id").await;
        assert_eq!(facts(&envelope(&output.stderr)).2, Code::HostKeyMismatch, "{names} {more:?}");
    }
}

/// A certificate of the session's own lets it in, and the target's log names the invocation.
#[tokio::test]
async fn a_user_certificate_is_minted_per_session() {
    let Some((bench, _keys)) = Bench::start_with_user_ca().await else { return };
    let pinned = format!("host_keys = [\"{}\"]\n{CREDENTIAL}", bench.sshd.host_key());
    bench.apply("ssh-certificate", &pinned);
    let output = bench.run("echo in").await;
    assert_eq!(out(&output), "in\n", "{} {}", err(&output), bench.sshd.log());
    let id = bench.home.newest().await.id().to_string();
    assert!(bench.sshd.log().contains(&id), "{}", bench.sshd.log());
    // A terminal is permitted to who asks for one.
    bench.apply("ssh-certificate", &format!("{pinned}\nallow = [\"exec\"]"));
    let output = within(bench.ssh(&["-tt", "t", "tty"]).output()).await.unwrap();
    assert!(out(&output).contains("/dev/pts/"), "{}", out(&output));
    // The authority's key in place of a login key opens nothing.
    bench.apply("ssh-key", &pinned);
    let output = bench.run("id").await;
    assert_eq!(facts(&envelope(&output.stderr)).2, Code::RemoteAuthFailed);
}

/// Variables pass by the route's list.
#[tokio::test]
async fn variables_pass_by_the_routes_list() {
    let config = "AcceptEnv *";
    let Some(bench) = Bench::start_with("", config, Options::default()).await else { return };
    let route = format!("host_keys = [\"{}\"]\n{CREDENTIAL}", bench.sshd.host_key());
    let set = "SetEnv=FOO_A=1 FOO_B=2 BAR=3 LC_X=4";
    let line = "echo $FOO_A.$FOO_B.$BAR.$LC_X";
    for (list, expected) in [("", "...4\n"), ("env = [\"FOO_*\", \"BAR\"]", "1.2.3.\n")] {
        bench.apply("ssh-key", &format!("{route}\n{list}"));
        let output = within(bench.ssh(&["-o", set, "t", line]).output()).await.unwrap();
        assert_eq!(out(&output), expected, "{}", err(&output));
    }
    // K-9: the id of the invocation goes to a target whose route says so.
    for (list, passes) in [("*", true), ("AFFIANT_*", true), ("FOO_*", false)] {
        bench.apply("ssh-key", &format!("{route}\nenv = [\"{list}\"]"));
        let output = bench.run("echo $AFFIANT_INVOCATION").await;
        let id = bench.home.newest().await.id().to_string();
        let expected = if passes { format!("{id}\n") } else { "\n".to_owned() };
        assert_eq!(out(&output), expected, "{list}");
    }
}

/// Forwarding through the target leads where policy lets it, and is on record with its bytes.
#[tokio::test]
async fn forwarding_is_by_policy() {
    let Some(bench) = Bench::start("").await else { return };
    let origin = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = origin.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = origin.accept().await {
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            text.reverse();
            stream.write_all(&text).await.unwrap();
        }
    });
    bench.apply(
        "ssh-key",
        &format!(
            "host_keys = [\"{}\"]\n{CREDENTIAL}\nallow = [\"forward\"]\n\
         forward_to = [\"127.0.0.1:{port}\", \"127.0.0.1:1\"]",
            bench.sshd.host_key()
        ),
    );
    let through = async |place: &str| {
        let mut command = bench.ssh(&["-W", place, "t"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"abc").await.unwrap();
        within(child.wait_with_output()).await.unwrap()
    };
    let output = through(&format!("127.0.0.1:{port}")).await;
    assert_eq!(out(&output), "cba", "{}", err(&output));
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.accepted().action, format!("forward:127.0.0.1:{port}"));
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    let evidence = invocation.evidence();
    assert_eq!(evidence.completion, Some(Completion::CloseDelimited));
    assert_eq!((evidence.response_bytes, evidence.request_complete), (Some(3), true));
    // Nobody listens there: the target says so.
    let output = through("127.0.0.1:1").await;
    assert!(err(&output).contains("REQUEST_REFUSED"), "{}", err(&output));
    // RFC 4254 section 5.1: the reason's code is the one that is meant.
    assert!(err(&output).contains("open failed: connect failed: "), "{}", err(&output));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Rejected);
    let output = through("127.0.0.1:2").await;
    assert!(err(&output).contains("TARGET_NOT_ALLOWED"), "{}", err(&output));
    let prohibited = "open failed: administratively prohibited: ";
    assert!(err(&output).contains(prohibited), "{}", err(&output));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::NotAttempted);
    let output = bench.run("id").await;
    assert_eq!(facts(&envelope(&output.stderr)).2, Code::TargetNotAllowed);
}

/// `intercept = false`: the caller's own session, of which only bytes are known.
#[tokio::test]
async fn a_relayed_jump_is_unknown_by_nature() {
    let Some(bench) = Bench::start("").await else { return };
    bench.apply("ssh-key", "intercept = false");
    let key = bench.sshd.directory.path().join("user_key");
    let mut command = bench.ssh(&["-o", "StrictHostKeyChecking=no", "-o"]);
    command.args(["UserKnownHostsFile=/dev/null", "-o", "PubkeyAuthentication=yes", "-i"]);
    let output = within(command.arg(&key).args(["t", "echo in; exit 3"]).output()).await.unwrap();
    assert_eq!((out(&output).as_str(), output.status.code()), ("in\n", Some(3)), "{output:?}");
    let id = bench.home.newest_now().id();
    let invocation = bench.home.settled(id).await;
    assert_eq!(invocation.accepted().action, "relay");
    let verdict = invocation.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::NotJudged));
    assert!(invocation.message().contains("relayed as it is"), "{}", invocation.message());
    assert!(invocation.evidence().dispatch_started);
}

/// A relayed jump is recorded with its bytes, each way.
#[tokio::test]
async fn a_relayed_jump_has_its_byte_counts() {
    let Some(bench) = Bench::start("").await else { return };
    let echo = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let route = format!(
        "[[ssh]]\nname = \"t\"\nagents = [\"{}\"]\nmatch = {{ host = \"t\" }}\n\
         address = \"{}\"\nintercept = false\n",
        common::AGENT,
        echo.local_addr().unwrap()
    );
    bench.home.policy.apply(&route, "policy.toml", "test").unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = echo.accept().await.unwrap();
        let (mut from, mut to) = stream.split();
        drop(tokio::io::copy(&mut from, &mut to).await);
        drop(tokio::io::AsyncWriteExt::write_all(&mut to, b"bye").await);
    });
    let bytes = common::openssh::pattern(300_000);
    let mut child = bench.command("ssh");
    let mut child =
        child.args(["-W", "t:22", "affiant-gateway"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = bytes.clone();
    let feeding = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut stdin, &input).await.unwrap();
    });
    let output = within(child.wait_with_output()).await.unwrap();
    feeding.await.unwrap();
    assert_eq!(output.stdout, [bytes.as_slice(), b"bye"].concat());
    let invocation = bench.home.newest().await;
    assert_eq!(bench.home.ended(invocation.id()).observation.unwrap().length_bytes, 300_003);
    let events = bench.home.journal.events(invocation.id()).unwrap();
    let sent = events.into_iter().find_map(|(_, event)| {
        if let journal::contract::Body::RequestSent(sent) = event.body { Some(sent) } else { None }
    });
    let sent = sent.expect("no REQUEST_SENT");
    assert_eq!(sent.length_bytes, 300_000);
    assert_eq!(sent.digest, journal::contract::Digest::of(&bytes));
}

/// D-4: a stock sshd gets the signal, and what the command says to it is the result. One of root's sessions
/// takes no signals: there the session is closed, and the outcome stays unknown.
#[tokio::test]
async fn d_4_a_stock_sshd_is_told_that_the_client_left() {
    let Some(bench) = Bench::start("kill_on_cancel = true\nshell = \"any\"").await else { return };
    let started = bench.home.directory.path().join("started");
    // For as long as the test: nobody ends what runs on at root's sshd.
    let line = format!(
        "trap 'exit 9' TERM; touch {0}; while [ -e {0} ]; do sleep 0.05; done",
        started.display()
    );
    let mut client = bench.ssh(&["t", &line]).spawn().unwrap();
    let there = async {
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(there).await;
    client.kill().await.unwrap();
    let invocation = bench.home.newest().await;
    let (outcome, end) = (invocation.verdict().outcome(), invocation.evidence().ssh_end);
    if bench.sshd.user == "root" {
        assert_eq!((outcome, end), (Outcome::Unknown, None));
        assert_eq!(invocation.verdict().code(), Code::CallerCancelled);
    } else {
        assert_eq!((outcome, end), (Outcome::Committed, Some(SshEnd::ExitStatus(9))));
    }
}

/// D-4: `kill_on_cancel` ends the command with its client, and what came of that is on record.
/// (OpenSSH's sshd takes no signals for root, so the target is one of the test's own.)
#[tokio::test]
async fn d_4_a_command_ends_with_its_client_where_the_route_says_so() {
    let (address, key) = asker::start(russh::MethodKind::Password, "secret").await;
    let route = common::policy_text(address, key.trim(), "kill_on_cancel = true");
    let route = route.replace("\"ssh-key\"", "\"password\"");
    let home = common::Home::start(&route).await;
    home.policy.set_secret("target-key", &policy::Secret::from("secret")).unwrap();
    let client = home.client().await;
    within(client.exec_and_leave("wait", Duration::from_secs(5), None)).await.unwrap();
    let invocation = home.newest().await;
    assert_eq!(invocation.evidence().ssh_end, Some(SshEnd::ExitSignal(SignalName::of("TERM"))));
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
}

/// S-8: a route's mark of completion stands for a status that the target does not report.
#[tokio::test]
async fn s_8_a_mark_of_completion_settles_a_command_without_status() {
    let timeout = "ChannelTimeout session:*=3s";
    let Some(bench) = Bench::start_with("", timeout, Options::default()).await else { return };
    bench.apply(
        "ssh-key",
        &format!(
            "host_keys = [\"{}\"]\n{CREDENTIAL}\ncompletion = \"DONE *\"",
            bench.sshd.host_key()
        ),
    );
    let output = bench.run("echo one; echo DONE 1; sleep 9; exit 7").await;
    assert_eq!((out(&output).as_str(), output.status.code()), ("one\nDONE 1\n", Some(0)));
    let invocation = bench.home.newest().await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    let output = bench.run("echo DONE 1; echo two; sleep 9; exit 7").await;
    let told = envelope(&output.stderr);
    let expected = (Phase::RemoteExecution, Outcome::Unknown, Code::RemoteResultIncomplete);
    assert_eq!(facts(&told), expected);
    // A status that comes says more.
    let output = bench.run("echo DONE 2; exit 3").await;
    assert_eq!(output.status.code(), Some(3));
}

/// A target that asks for a password in its own way, and tells what it was answered.
mod asker {
    use russh::keys::{Algorithm, PrivateKey};
    use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Response, Session};
    use russh::{Channel, ChannelId, MethodKind, MethodSet, Sig};
    use std::net::SocketAddr;
    use std::sync::Arc;
    use tokio::net::TcpListener;

    struct Asker {
        secret: &'static str,
        asked: usize,
        method: MethodKind,
    }

    impl Handler for Asker {
        type Error = russh::Error;

        async fn auth_password(&mut self, _user: &str, word: &str) -> Result<Auth, russh::Error> {
            let right = self.method == MethodKind::Password && word == self.secret;
            Ok(if right { Auth::Accept } else { Auth::reject() })
        }

        async fn auth_keyboard_interactive<'a>(
            &'a mut self,
            _user: &str,
            _submethods: &str,
            response: Option<Response<'a>>,
        ) -> Result<Auth, russh::Error> {
            let answers: Vec<String> = response
                .map(|answers| answers.map(|a| String::from_utf8_lossy(&a).into_owned()).collect())
                .unwrap_or_default();
            if self.method != MethodKind::KeyboardInteractive {
                return Ok(Auth::reject());
            }
            self.asked += 1;
            let prompts: Vec<(&'static str, bool)> = match self.asked {
                1 => vec![("Favourite colour: ", true), ("Password: ", false)],
                // A round without a question, as some targets have.
                2 if answers == ["", self.secret] => vec![],
                3 => return Ok(Auth::Accept),
                _ => return Ok(Auth::reject()),
            };
            let prompts: Vec<_> = prompts.into_iter().map(|(p, echo)| (p.into(), echo)).collect();
            Ok(Auth::Partial { name: "".into(), instructions: "".into(), prompts: prompts.into() })
        }

        async fn channel_open_session(
            &mut self,
            _channel: Channel<Msg>,
            reply: ChannelOpenHandle,
            _session: &mut Session,
        ) -> Result<(), russh::Error> {
            reply.accept().await;
            Ok(())
        }

        async fn exec_request(
            &mut self,
            channel: ChannelId,
            command: &[u8],
            session: &mut Session,
        ) -> Result<(), russh::Error> {
            session.channel_success(channel)?;
            if command == b"wait" {
                return session.data(channel, b"begun".to_vec());
            }
            session.data(channel, self.secret.as_bytes().to_vec())?;
            session.exit_status_request(channel, 0)?;
            session.eof(channel)?;
            session.close(channel)
        }

        async fn signal(
            &mut self,
            channel: ChannelId,
            signal: Sig,
            session: &mut Session,
        ) -> Result<(), russh::Error> {
            session.exit_signal_request(channel, signal, false, "", "")?;
            session.close(channel)
        }
    }

    /// Starts one that takes the secret by one method; answers where, and its host key.
    pub(super) async fn start(method: MethodKind, secret: &'static str) -> (SocketAddr, String) {
        let mut rng = russh::keys::key::safe_rng();
        let key = PrivateKey::random(&mut rng, Algorithm::Ed25519).unwrap();
        let public = key.public_key().to_openssh().unwrap();
        let methods = MethodSet::from(&[method][..]);
        let config = Arc::new(Config { methods, keys: vec![key], ..Config::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let handler = Asker { secret, asked: 0, method };
                let config = Arc::clone(&config);
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, handler).await {
                        drop(session.await);
                    }
                });
            }
        });
        (address, public)
    }
}

/// A password goes in by either method; what it is never comes out (I-4).
#[tokio::test]
async fn i_4_a_password_logs_in_by_both_methods() {
    use russh::MethodKind;
    let secret = "correct horse";
    for (method, inject, other) in [
        (MethodKind::KeyboardInteractive, "keyboard-interactive", "password"),
        (MethodKind::Password, "password", "keyboard-interactive"),
    ] {
        let (address, key) = asker::start(method, secret).await;
        let route = common::policy_text(address, key.trim(), "repeat_guard = \"off\"");
        let policy =
            |inject: &str| route.replace("inject = \"ssh-key\"", &format!("inject = \"{inject}\""));
        let home = common::Home::start(&policy(inject)).await;
        home.policy.set_secret("target-key", &policy::Secret::from(secret)).unwrap();
        let client = home.client().await;
        let ran = within(client.exec("id", b"", None)).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "[redacted]", "{ran:?}");
        home.policy.apply(&policy(other), "policy.toml", "test").unwrap();
        let ran = within(client.exec("id", b"", None)).await.unwrap();
        assert_eq!(facts(&envelope(&ran.stderr)).2, Code::RemoteAuthFailed);
    }
}
