//! Large transfers with real programs, by digest. Run by `./dev long`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, err, out};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

const GIGABYTE: u64 = 1 << 30;
const BOUND: Duration = Duration::from_secs(900);

async fn bench() -> Option<Bench> {
    let extra = "repeat_guard = \"off\"\nresult = { keep = \"digest\" }\n\
                 limits = { request_bytes = \"4GiB\" }";
    Bench::start(extra).await
}

async fn bounded(mut command: Command) -> std::process::Output {
    command.kill_on_drop(true);
    tokio::time::timeout(BOUND, command.output()).await.expect("it took too long").unwrap()
}

/// A file that no compression shortens, made in place: a key stream of AES.
async fn fill(path: &Path, length_bytes: u64) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "openssl enc -aes-128-ctr -nosalt -pass pass:x -pbkdf2 </dev/zero 2>/dev/null | head -c $1 >$2", "sh"]);
    shell.arg(length_bytes.to_string()).arg(path);
    assert!(bounded(shell).await.status.success());
    assert_eq!(std::fs::metadata(path).unwrap().len(), length_bytes);
}

async fn digest(path: &Path) -> String {
    let mut sum = Command::new("sha256sum");
    let output = bounded({
        sum.arg(path);
        sum
    })
    .await;
    out(&output).split_whitespace().next().unwrap().to_owned()
}

/// sftp, scp and rsync of a gigabyte, both ways; past the point where the gateway itself asks for
/// new keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: gigabytes"]
async fn sftp_and_rsync_move_a_gigabyte() {
    let Some(bench) = bench().await else { return };
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fill(&path.join("here"), GIGABYTE + (100 << 20)).await;
    let expected = digest(&path.join("here")).await;
    let place = |name: &str| path.join(name).to_str().unwrap().to_owned();
    let batch = place("batch");
    let lines = format!("put {} {}\nget {1} {}\n", place("here"), place("there"), place("back"));
    std::fs::write(&batch, lines).unwrap();
    let target = format!("{}@t", bench.sshd.user);
    let mut sftp = bench.command("sftp");
    sftp.args(["-q", "-b", &batch, &target]);
    let moved = bounded(sftp).await;
    assert!(moved.status.success(), "{}", err(&moved));
    for name in ["there", "back"] {
        assert_eq!(digest(&path.join(name)).await, expected, "{name}");
        std::fs::remove_file(path.join(name)).unwrap();
    }
    let ssh = format!("ssh -F {} -o BatchMode=yes", bench.config.display());
    let remote = |name: &str| format!("{target}:{}", place(name));
    for (from, to) in [(place("here"), remote("there")), (remote("here"), place("back"))] {
        let mut rsync = Command::new("rsync");
        rsync.args(["-W", "-e", &ssh, &from, &to]).env("HOME", bench.home.directory.path());
        let moved = bounded(rsync).await;
        assert!(moved.status.success(), "{}", err(&moved));
    }
    for name in ["there", "back"] {
        assert_eq!(digest(&path.join(name)).await, expected, "{name}");
    }
}

/// A gigabyte by scp's old protocol, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: gigabytes"]
async fn scp_moves_a_gigabyte_by_its_old_protocol() {
    let Some(bench) = bench().await else { return };
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fill(&path.join("here"), GIGABYTE + (100 << 20)).await;
    let expected = digest(&path.join("here")).await;
    let place = |name: &str| path.join(name).to_str().unwrap().to_owned();
    let remote = |name: &str| format!("{}@t:{}", bench.sshd.user, place(name));
    for (from, to) in [(place("here"), remote("there")), (remote("there"), place("back"))] {
        let mut scp = bench.command("scp");
        scp.args(["-O", "-q", &from, &to]);
        let moved = bounded(scp).await;
        assert!(moved.status.success(), "{}", err(&moved));
    }
    for name in ["there", "back"] {
        assert_eq!(digest(&path.join(name)).await, expected, "{name}");
    }
}

/// 1.1 GiB through `cat`, both ways at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: gigabytes"]
async fn a_gigabyte_each_way_at_once() {
    let Some(bench) = bench().await else { return };
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("here");
    fill(&file, GIGABYTE + (100 << 20)).await;
    let expected = digest(&file).await;
    let back = std::fs::File::create(root.path().join("back")).unwrap();
    let mut command = bench.ssh(&["t", "cat"]);
    command.stdin(Stdio::from(std::fs::File::open(&file).unwrap())).stdout(Stdio::from(back));
    command.stderr(Stdio::inherit());
    let ran = tokio::time::timeout(BOUND, command.status()).await.expect("it took too long");
    assert_eq!(ran.unwrap().code(), Some(0));
    assert_eq!(digest(&root.path().join("back")).await, expected);
    let evidence = bench.home.newest().await.evidence();
    assert_eq!(evidence.response_digest.unwrap().to_string(), format!("sha256:{expected}"));
}

/// A repository of 200 MB is cloned, changed and pushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: 200 MB of history"]
async fn git_clones_and_pushes_200_megabytes() {
    let Some(bench) = bench().await else { return };
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let place = |name: &str| path.join(name).to_str().unwrap().to_owned();
    let ssh = format!("ssh -F {} -o BatchMode=yes", bench.config.display());
    let git = async |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@b.test"]).args(arguments);
        command.env("GIT_SSH_COMMAND", &ssh).env("HOME", bench.home.directory.path());
        let output = bounded(command).await;
        assert!(output.status.success(), "{arguments:?} {}", err(&output));
    };
    let (first, bare) = (place("first"), place("bare.git"));
    git(&["init", "-q", "-b", "main", &first]).await;
    for n in 0..4 {
        fill(&path.join("first").join(format!("blob{n}")), (50 << 20) + n).await;
    }
    git(&["-C", &first, "add", "."]).await;
    git(&["-C", &first, "commit", "-q", "-m", "one"]).await;
    git(&["init", "-q", "--bare", "-b", "main", &bare]).await;
    let url = format!("ssh://{}@t{bare}", bench.sshd.user);
    git(&["-C", &first, "push", "-q", &url, "main"]).await;
    let second = place("second");
    git(&["clone", "-q", &url, &second]).await;
    for n in 0..4 {
        let name = format!("blob{n}");
        let (one, other) = (path.join("first").join(&name), path.join("second").join(&name));
        assert_eq!(digest(&one).await, digest(&other).await);
    }
    git(&["-C", &second, "fsck", "--strict"]).await;
}
