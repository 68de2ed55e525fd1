//! A real file system that is full (R-6): a small tmpfs in a mount namespace of its own.
//!
//! Needs the right to mount; without it the test says so and passes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::{Admission, Guard, append, verify};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const DIRECTORY: &str = "AFFIANT_FULL_DIRECTORY";
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn r_6_a_full_file_system_refuses_before_dispatch_and_service_resumes() {
    let mount = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=16m none "$1" || exit 77; shift; exec "$@""#;
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(mount.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(DIRECTORY, mount.path())
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(77 | 1)) | Err(_) => println!("skipped: no right to mount a file system"),
        other => panic!("{other:?}"),
    }
}

async fn until_ready(journal: &journal::Journal) {
    let begun = Instant::now();
    while journal.ready().is_err() {
        assert!(begun.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
#[ignore = "it runs in the mount namespace that the test above makes"]
async fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let (journal, _) = open(&directory.join("journal"));
    until_ready(&journal).await;
    let mut filler = std::fs::File::create(directory.join("filler")).unwrap();
    while filler.write_all(&[1; 64 << 10]).is_ok() {}
    drop(filler);
    let begun = Instant::now();
    let mut under_way = Vec::new();
    let refused = loop {
        assert!(begun.elapsed() < LIMIT);
        let accepted = accepted("coder", "x");
        let mut call = match journal.admit(journal.new_id(), accepted, Guard::default()) {
            Ok(Admission::New(call)) => call,
            Ok(other) => panic!("{}", name(&other)),
            Err(error) => break error,
        };
        call.preflight(preflight()).unwrap();
        call.authorize(None).unwrap();
        if call.reserve(2_000).is_err() {
            continue;
        }
        assert_eq!(call.dispatch(dispatch()).await.unwrap().id(), call.id());
        if under_way.len() < 3 {
            under_way.push(call);
        } else {
            assert_eq!(respond(&mut call, 200, &[5; 2_000]).await.id(), call.id());
        }
    };
    assert_eq!(refused, append::Error::Unavailable(append::Reason::NoCapacity));
    for mut call in under_way {
        let id = respond(&mut call, 200, &[6; 2_000]).await.id();
        assert_eq!(content(&journal, id), [6; 2_000]);
    }
    std::fs::remove_file(directory.join("filler")).unwrap();
    until_ready(&journal).await;
    let mut call = dispatched(&journal, "coder", "after").await;
    let id = respond(&mut call, 200, b"after").await.id();
    drop(call);
    assert_eq!(journal.stats().reopened, 0, "nothing failed");
    journal.close().await;
    verify(&directory.join("journal")).unwrap();
    let (journal, _) = open(&directory.join("journal"));
    assert_eq!(content(&journal, id), b"after");
    journal.close().await;
}
