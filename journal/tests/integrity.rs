//! Checkpoints, export, repair: what can be proven of a log from outside.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    reason = "a test that can't go on fails"
)]

mod common;

use common::*;
use journal::checkpoint::{VerifyingKey, checkpoint};
use journal::contract::{InvocationId, Sequence};
use journal::export::{Exported, Fact, export};
use journal::repair::repair;
use journal::verify::Error;
use journal::{Against, Journal, open, verify, verify_against};
use std::path::Path;

async fn call(journal: &Journal, n: u8) -> InvocationId {
    let mut call = dispatched(journal, "coder", &n.to_string()).await;
    drop(respond(&mut call, 200, &[n; 3_000]).await);
    call.id()
}

fn exported(directory: &Path, since: u64) -> Vec<Exported> {
    let mut all = Vec::new();
    export::<Error>(directory, Sequence(since), &mut |record| {
        all.push(record);
        Ok(())
    })
    .unwrap();
    all
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn against(directory: &Path, note: &str) -> Against {
    let checkpoint = VerifyingKey::read(directory).unwrap().open(note).unwrap();
    Against { key: Some(key()), checkpoint: Some(checkpoint) }
}

/// J-6: truncation and replacement behind a published checkpoint are detected.
#[tokio::test]
async fn j_6_a_checkpoint_detects_truncation_and_replacement() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    call(&journal, 1).await;
    let old = tempfile::tempdir().unwrap();
    copy(home.path(), old.path());
    call(&journal, 2).await;
    // Beside the running journal.
    let note = checkpoint(home.path()).unwrap();
    call(&journal, 3).await;
    journal.close().await;
    let whole = verify_against(home.path(), against(home.path(), &note)).unwrap();
    assert_eq!(whole.results, 3);

    // The files of an earlier time: a shorter log.
    let found = verify_against(old.path(), against(home.path(), &note));
    assert!(matches!(found, Err(Error::Truncated { .. })), "{found:?}");
    // The same log, gone another way since.
    let (other, _) = open(old.path());
    for n in 10..15 {
        call(&other, n).await;
    }
    other.close().await;
    let found = verify_against(old.path(), against(home.path(), &note));
    assert!(matches!(found, Err(Error::Replaced(_))), "{found:?}");
    verify(old.path()).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(home.path().join("checkpoint.key")).unwrap().permissions()
        ) & 0o777,
        0o600
    );
}

/// The digest of a result is checked when the key is there; another key is a finding.
#[tokio::test]
async fn verify_opens_results_with_their_key() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    call(&journal, 1).await;
    journal.close().await;
    assert_eq!(verify(home.path()).unwrap().results, 0);
    let wrong = journal::ResultKey::new([8; 32]);
    let found = verify_against(home.path(), Against { key: Some(wrong), checkpoint: None });
    match found {
        Err(Error::Damaged(damage)) => {
            assert_eq!(damage.what, "a result chunk can't be decrypted");
        }
        other => panic!("{other:?}"),
    }
}

/// Export shows every durable event once, in order, and no content of results, while the journal
/// runs.
#[tokio::test]
async fn export_follows_a_running_journal() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let first = call(&journal, 1).await;
    let all = exported(home.path(), 0);
    assert_eq!(all[0].sequence, Sequence(1));
    let of_first = journal.events(first).unwrap();
    let events: Vec<_> = all
        .iter()
        .filter_map(|record| match &record.fact {
            Fact::Event(event) => Some((record.sequence, (**event).clone())),
            _ => None,
        })
        .collect();
    assert!(of_first.starts_with(&events) || events.starts_with(&of_first));
    let last = all[all.len() - 1].sequence;
    assert!(exported(home.path(), last.0 + 1).is_empty());
    call(&journal, 2).await;
    let later = exported(home.path(), last.0 + 1);
    assert!(later.len() >= 8 && later[0].sequence > last);
    let line = serde_json::to_string(&later[0]).unwrap();
    assert!(line.starts_with(r#"{"sequence":"#) && line.contains(r#""chain":"sha256:"#), "{line}");
    assert!(line.contains(r#""event":{"invocation":"act_"#), "{line}");
    journal.close().await;
}

/// Rule 10: the server refuses a damaged log; an operator's cut keeps everything before the damage
/// and what was cut off, and the log says so.
#[tokio::test]
async fn rule_10_repair_cuts_after_the_last_good_frame_and_keeps_what_it_cuts() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    let kept = call(&journal, 1).await;
    journal.close().await;
    assert_eq!(repair(home.path(), true).unwrap(), None, "nothing to repair");
    let (journal, _) = open(home.path());
    assert!(matches!(repair(home.path(), true), Err(journal::repair::Error::Open(_))));
    let lost = call(&journal, 2).await;
    call(&journal, 3).await;
    journal.close().await;
    let (journal, _) = open(home.path());
    call(&journal, 4).await;
    journal.close().await;
    // A byte in the first frame of the second segment.
    let path = home.path().join("00000002.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 200] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    // The sealed segment is behind the watermark, so only a rebuild or `verify` reads it.
    assert!(verify(home.path()).is_err());
    let plan = repair(home.path(), false).unwrap().unwrap();
    assert_eq!((plan.segment, plan.length, plan.removed_to.is_none()), (2, 4096, true));
    let done = repair(home.path(), true).unwrap().unwrap();
    let removed = done.removed_to.unwrap();
    assert_eq!(std::fs::read(removed.join("00000002.seg")).unwrap(), bytes);
    assert!(removed.join("00000003.seg").exists() && removed.join("index").exists());
    assert_eq!(repair(home.path(), true).unwrap(), None);
    verify(home.path()).unwrap();
    let notes: Vec<_> = exported(home.path(), 0)
        .into_iter()
        .filter_map(|record| match record.fact {
            Fact::RecoveryNote(note) => Some(note),
            _ => None,
        })
        .collect();
    assert_eq!(notes.last().unwrap()["repaired"], true);
    let (journal, recovery) = open(home.path());
    assert!(recovery.rebuilt);
    assert_eq!(content(&journal, kept), [1; 3_000]);
    assert_eq!(journal.invocation(lost).unwrap(), None);
    call(&journal, 5).await;
    journal.close().await;
    verify(home.path()).unwrap();
}

/// A log that lost its last frames behind the index is refused, and repair takes what is there.
#[tokio::test]
async fn rule_6_and_10_a_log_behind_its_index_is_repaired_by_an_operator_alone() {
    let home = tempfile::tempdir().unwrap();
    let (journal, _) = open(home.path());
    call(&journal, 1).await;
    let old = tempfile::tempdir().unwrap();
    copy(home.path(), old.path());
    for n in 2..6 {
        call(&journal, n).await;
    }
    journal.close().await;
    for entry in std::fs::read_dir(home.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "seg") {
            std::fs::remove_file(path).unwrap();
        }
    }
    copy(old.path(), home.path());
    let refused = Journal::open(options(home.path()), None).unwrap_err();
    assert!(matches!(refused, open::Error::Damaged(_)), "{refused}");
    assert!(repair(home.path(), true).unwrap().is_some());
    let (journal, _) = open(home.path());
    call(&journal, 9).await;
    journal.close().await;
    verify(home.path()).unwrap();
}

/// J-6: the sealed copy holds every event once, across restarts, and goes on where it ended.
#[tokio::test]
async fn j_6_the_sealed_copy_is_the_export() {
    let home = tempfile::tempdir().unwrap();
    let identity = journal::seal::Identity::generate().unwrap();
    let (journal, _) = open(home.path());
    assert_eq!(journal.seal().unwrap(), None, "sealed mode is off");
    call(&journal, 1).await;
    journal::seal::init(home.path(), &identity.recipient()).unwrap();
    assert_eq!(journal.seal().unwrap(), Some(journal.stats().durable_sequence));
    call(&journal, 2).await;
    journal.close().await;
    journal.seal().unwrap();
    let (journal, _) = open(home.path());
    call(&journal, 3).await;
    journal.close().await;
    let last = journal.seal().unwrap().unwrap();
    assert_eq!(journal.seal().unwrap(), Some(last), "nothing is new");
    let files = journal::seal::files(home.path()).unwrap();
    assert_eq!(files.len(), 3);
    assert!(files.windows(2).all(|pair| pair[0].last.0 + 1 == pair[1].first.0));
    let mut lines = Vec::new();
    for file in &files {
        let sealed = std::fs::read(&file.path).unwrap();
        lines.extend(journal::seal::open(&identity, &sealed).unwrap());
    }
    let shown: Vec<String> = exported(home.path(), 0)
        .iter()
        .map(|record| serde_json::to_string(record).unwrap())
        .collect();
    assert_eq!(String::from_utf8(lines).unwrap().lines().collect::<Vec<_>>(), shown);
}
