//! How the gateway logs in: keys that a real ssh-agent holds, and what a minted certificate is bound to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, err, keygen, out};
use common::{envelope, facts, within};
use journal::contract::{Code, Outcome, Phase};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::{Child, Command};

/// A running ssh-agent; it ends when this is dropped.
struct Agent {
    directory: tempfile::TempDir,
    _process: Child,
}

impl Agent {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent");
        let process = Command::new("ssh-agent")
            .args(["-D", "-a"])
            .arg(&socket)
            // Who is asked whether a key may sign says no.
            .env("SSH_ASKPASS", "/bin/false")
            .env("SSH_ASKPASS_REQUIRE", "force")
            .env("DISPLAY", ":0")
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        within(async {
            while tokio::net::UnixStream::connect(&socket).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
        Self { directory, _process: process }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("agent")
    }

    async fn add(&self, arguments: &[&str], key: &Path) {
        let mut command = Command::new("ssh-add");
        command.arg("-q").args(arguments).arg(key).env("SSH_AUTH_SOCK", self.socket());
        assert!(within(command.status()).await.unwrap().success(), "{arguments:?} {key:?}");
    }
}

fn apply(bench: &Bench, secret: &str, more: &str) {
    let text = format!(
        "[[credential]]\nid = \"c\"\nsecret = \"{secret}\"\ninject = \"ssh-agent\"\n{more}\n\
         [[ssh]]\nname = \"t\"\nmatch = {{ host = \"t\" }}\naddress = \"{}\"\n\
         host_keys = [\"{}\"]\ncredential = \"c\"\nrepeat_guard = \"off\"\n",
        bench.sshd.address,
        bench.sshd.host_key()
    );
    bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
}

/// I-1: a key that an agent holds signs through the agent, and what the agent can't or won't do is
/// `credential_injection`, with nothing sent.
#[tokio::test]
async fn i_1_an_agent_signs_for_a_key_that_it_holds() {
    let Some(bench) = Bench::start("").await else { return };
    let agent = Agent::start().await;
    let secret = format!("agent:{}", agent.socket().display());
    let refused = async |more: &str, code: Code| {
        apply(&bench, &secret, more);
        let output = bench.run("id").await;
        let expected = (Phase::CredentialInjection, Outcome::NotAttempted, code);
        assert_eq!(facts(&envelope(&output.stderr)), expected, "{more}: {}", err(&output));
    };
    refused("", Code::SecretSourceDenied).await;
    let directory = bench.sshd.directory.path();
    agent.add(&[], &directory.join("user_key")).await;
    apply(&bench, &secret, "");
    let output = bench.run("echo in").await;
    assert_eq!(out(&output), "in\n", "{}", err(&output));
    let invocation = bench.home.newest().await;
    let used = invocation.preflight().unwrap().credential.clone().unwrap();
    assert_eq!((used.id.as_str(), used.mode.as_str()), ("c", "ssh-agent"));

    // Of several keys, policy names one; an RSA key signs with SHA-2.
    let rsa = directory.join("rsa");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "rsa", "-b", "2048", "-N", "", "-f"])
        .arg(&rsa)
        .status();
    assert!(within(made).await.unwrap().success());
    agent.add(&[], &rsa).await;
    refused("", Code::SecretUnreadable).await;
    let public = std::fs::read_to_string(directory.join("rsa.pub")).unwrap();
    std::fs::write(directory.join("authorized_keys"), &public).unwrap();
    let named = format!("public_key = \"{}\"", public.trim());
    apply(&bench, &secret, &named);
    assert_eq!(out(&bench.run("echo in").await), "in\n");
    let user = std::fs::read_to_string(directory.join("user_key.pub")).unwrap();
    apply(&bench, &secret, &format!("public_key = \"{}\"", user.trim()));
    let output = bench.run("id").await;
    assert_eq!(facts(&envelope(&output.stderr)).2, Code::RemoteAuthFailed);
    let other = directory.join("other");
    keygen(&other).await;
    let absent = std::fs::read_to_string(directory.join("other.pub")).unwrap();
    refused(&format!("public_key = \"{}\"", absent.trim()), Code::SecretSourceDenied).await;

    // A key that a person has to confirm, and the person says no.
    std::fs::write(directory.join("authorized_keys"), &absent).unwrap();
    agent.add(&["-c"], &other).await;
    refused(&format!("public_key = \"{}\"", absent.trim()), Code::SecretSourceDenied).await;

    let gone = agent.socket();
    drop(agent);
    apply(&bench, &format!("agent:{}", gone.display()), "");
    let output = bench.run("id").await;
    let expected = (Phase::CredentialInjection, Outcome::NotAttempted, Code::SecretSourceFailed);
    assert_eq!(facts(&envelope(&output.stderr)), expected);
}

/// A minted certificate opens the target from where the route says, and from nowhere else.
#[tokio::test]
async fn a_minted_certificate_is_bound_to_addresses() {
    let Some((bench, _keys)) = Bench::start_with_user_ca().await else { return };
    let pinned = format!(
        "host_keys = [\"{}\"]\ncredential = \"c\"\nrepeat_guard = \"off\"\n",
        bench.sshd.host_key()
    );
    for (sources, opens) in [
        ("\"127.0.0.0/8\", \"2001:db8::/32\"", true),
        ("\"127.0.0.1\"", true),
        ("\"192.0.2.0/24\"", false),
    ] {
        bench.apply("ssh-certificate", &format!("{pinned}source_address = [{sources}]"));
        let output = bench.run("echo in").await;
        assert_eq!(out(&output) == "in\n", opens, "{sources}: {}", err(&output));
        if !opens {
            assert_eq!(facts(&envelope(&output.stderr)).2, Code::RemoteAuthFailed);
            let log = bench.sshd.log();
            assert!(log.contains("not from a permitted source address"), "{log}");
        }
    }
}
