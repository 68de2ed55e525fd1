//! Programs that come by SSH: rsync, git, paramiko, asyncssh. What they copy is compared.
//!
//! The Python libraries are those of the interpreter that `AFFIANT_TEST_PYTHON` names; without it
//! these cases say so and pass.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, err, out, pattern};
use common::{AGENT, within};
use journal::contract::Outcome;
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::process::Command;

/// Runs a program that takes its `ssh` from a variable or option; none: it is not installed.
async fn run(bench: &Bench, program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("GIT_SSH_COMMAND", format!("ssh -F {} -o BatchMode=yes", bench.config.display()))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("HOME", bench.home.directory.path())
        .env_remove("SSH_AUTH_SOCK")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    match within(command.output()).await {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            None
        }
    }
}

fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn rsync_copies_both_ways() {
    let Some(bench) = Bench::start("repeat_guard = \"off\"\nshell = \"any\"").await else { return };
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir(at("here")).unwrap();
    std::fs::write(at("here/big"), pattern(5_000_000)).unwrap();
    std::fs::write(at("here/small"), "x").unwrap();
    let ssh = format!("ssh -F {} -o BatchMode=yes", bench.config.display());
    let place = |name: &str| format!("{}@t:{}/", bench.sshd.user, at(name).display());
    let here = format!("{}/", at("here").display());
    let back = format!("{}/", at("back").display());
    for (from, to) in [(here.as_str(), place("there")), (&place("there"), back)] {
        let Some(output) = run(&bench, "rsync", &["-a", "-e", &ssh, from, &to]).await else {
            return;
        };
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    }
    assert!(files(&at("here")) == files(&at("back")));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Committed);
}

#[tokio::test]
async fn git_clones_and_pushes() {
    let Some(bench) = Bench::start("repeat_guard = \"off\"").await else { return };
    let root = tempfile::tempdir().unwrap();
    let (bare, work) = (root.path().join("bare.git"), root.path().join("work"));
    let (bare, work) = (bare.to_str().unwrap(), work.to_str().unwrap());
    let Some(made) = run(&bench, "git", &["init", "-q", "--bare", "-b", "main", bare]).await else {
        return;
    };
    assert!(made.status.success());
    let url = format!("ssh://{}@t{bare}", bench.sshd.user);
    let git = async |arguments: &[&str]| {
        let output = run(&bench, "git", arguments).await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?} {}", err(&output));
        out(&output)
    };
    git(&["clone", "-q", &url, work]).await;
    std::fs::write(Path::new(work).join("blob"), pattern(4_000_000)).unwrap();
    let who = ["-C", work, "-c", "user.name=a", "-c", "user.email=a@b.test"];
    git(&["-C", work, "add", "blob"]).await;
    git(&[&who[..], &["commit", "-q", "-m", "one"]].concat()).await;
    git(&["-C", work, "push", "-q", "origin", "HEAD:main"]).await;
    let again = root.path().join("again");
    git(&["clone", "-q", &url, again.to_str().unwrap()]).await;
    assert!(std::fs::read(again.join("blob")).unwrap() == pattern(4_000_000));
}

/// Runs a script with the interpreter of the tests: arguments are the gateway's port, the agent's
/// key, the user, a directory to work in.
async fn python(script: &str) {
    let Some(python) = std::env::var_os("AFFIANT_TEST_PYTHON") else {
        eprintln!("skipped: AFFIANT_TEST_PYTHON names no interpreter");
        return;
    };
    let Some(bench) = Bench::start("repeat_guard = \"off\"").await else { return };
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("here"), pattern(3_000_000)).unwrap();
    let mut command = Command::new(python);
    command
        .args(["-c", script])
        .arg(bench.home.address.port().to_string())
        .arg(bench.home.identity.agent_key(AGENT).unwrap())
        .arg(&bench.sshd.user)
        .arg(root.path())
        .arg(bench.home.identity.directory().join("known_hosts"))
        .env("HOME", root.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = within(command.output()).await.unwrap();
    if err(&output).contains("ModuleNotFoundError") {
        eprintln!("skipped: {}", err(&output));
        return;
    }
    assert_eq!(out(&output), "done\n", "{}", err(&output));
    assert!(std::fs::read(root.path().join("back")).unwrap() == pattern(3_000_000));
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Committed);
    // the hand-over of every command is confirmed and on record.
    let filter = journal::Filter { limit: 100, ..journal::Filter::default() };
    let page = bench.home.journal.list(&filter).unwrap();
    let commands = page.invocations.iter().filter(|one| one.accepted().action == "exec");
    let mut count = 0;
    for command in commands {
        count += 1;
        bench.home.has_event(command.id(), "RESULT_DELIVERED").await;
        assert_eq!(command.verdict().outcome(), Outcome::Committed);
    }
    assert!(count > 0);
}

#[tokio::test]
async fn asyncssh_jumps_runs_and_copies() {
    python(include_str!("clients/asyncssh_client.py")).await;
}

#[tokio::test]
async fn paramiko_jumps_runs_and_copies() {
    python(include_str!("clients/paramiko_client.py")).await;
}
