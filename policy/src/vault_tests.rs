//! Tests of the vault's own files; what users see of it is tested in `tests/store.rs`.

use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn damaged_key_files_are_refused_without_panic() {
    let dir = tempfile::TempDir::new().unwrap();
    let header = Vault::create(dir.path(), None).unwrap();
    let path = file::path(dir.path());
    let good = fs::read(&path).unwrap();
    for bad in
        [&b""[..], b"\xff\xfe", b"affiant-vault-key-1 ", b"affiant-vault-key-1 AAAA\n", &good[..40]]
    {
        fs::write(&path, bad).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Vault::open(dir.path(), header.clone(), None).unwrap_err();
        assert!(matches!(error, Error::WrongKeyFile { .. } | Error::KeyFile { .. }), "{error}");
    }
    fs::write(&path, good).unwrap();
    assert_eq!(Vault::open(dir.path(), header, None).unwrap().status(), Status::Unlocked);
}

#[test]
fn damaged_headers_are_refused_without_cost() {
    let dir = tempfile::TempDir::new().unwrap();
    let header = Vault::create(dir.path(), Some(&Secret::from("pass"))).unwrap();
    let text = serde_json::to_string(&header).unwrap();
    assert!(!text.contains("pass\""), "{text}");
    for (from, to) in [
        ("\"memory_kib\":65536", "\"memory_kib\":4294967295"),
        ("\"memory_kib\":65536", "\"memory_kib\":0"),
        ("\"passes\":3", "\"passes\":4000000000"),
        ("\"lanes\":1", "\"lanes\":0"),
    ] {
        let changed = text.replace(from, to);
        assert_ne!(changed, text);
        let vault = Vault::open(dir.path(), serde_json::from_str(&changed).unwrap(), None).unwrap();
        let error = vault.unlock(Some(&Secret::from("pass"))).unwrap_err();
        assert!(matches!(error, Error::Damaged), "{error}");
    }
}

/// I-2: `Debug` of an unlocked vault shows no key.
#[test]
fn i_2_debug_shows_no_key() {
    let dir = tempfile::TempDir::new().unwrap();
    let header = Vault::create(dir.path(), None).unwrap();
    let shown = format!("{:?}", Vault::open(dir.path(), header, None).unwrap());
    assert_eq!(shown, "Vault { mode: KeyFile, status: Unlocked, .. }");
}

/// Stores of format 1: their header, their key file, and the key that results were under.
const NEVER_CHANGED: (&str, &str) = (
    r#"{"mode":"key_file","check":"SCLB9lWAYQ20OFEmuFogZ7s2sMcnvyoSbchPqWX2Qvo="}"#,
    "affiant-vault-key-1 MRS1pBwstB802KLfDGG7dB66Xhs04PRSvzaTNpoolyk=\n",
);
const CHANGED_TWICE: (&str, &str) = (
    r#"{"mode":"key_file","check":"SQvbN5UXya/5U6aQj4d6mKbgsyKAU/OhD2LQk6fYBaA=","root":"ZXB+IY1WYxWYRV7KAMkC2R/1COBLbHfM5Tnr7wR4Advln5TZaDMsWDUtmles+Qsqq4HFNLXJgro+o/qC"}"#,
    "affiant-vault-key-1 ht+HcmfxKKw2HZ0O7s9A6/O1o6ZFDt6z5h4ZsZx+9fI=\n",
);
const FIRST_RESULTS: &str = "e9cc2b888d0068faea9d5f8abe7b35ba0c9dcb87066a0af14111feb734489745";

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn results(vault: &Vault) -> Vec<String> {
    let derived = vault.with_generations(|generations| generations.unwrap().derive("results"));
    derived.unwrap().iter().map(hex).collect()
}

/// R-4: results of stores of before generations stay readable, now and after the key is changed; what
/// is stored after the change is under another key.
#[test]
fn r_4_stores_of_format_1_keep_their_results() {
    for (header, key_file) in [NEVER_CHANGED, CHANGED_TWICE] {
        let dir = tempfile::TempDir::new().unwrap();
        let policy = crate::Policy::init(dir.path(), None).unwrap();
        let store = &policy.store;
        let mut txn = store.write().unwrap();
        store.put(&store.meta, &mut txn, "vault", header.as_bytes()).unwrap();
        store.put(&store.meta, &mut txn, "format", b"1").unwrap();
        store.commit(txn).unwrap();
        drop(policy);
        fs::write(file::path(dir.path()), key_file).unwrap();
        let policy = crate::Policy::open(dir.path()).unwrap();
        let format = || {
            let txn = policy.store.read().unwrap();
            policy.store.bytes(&policy.store.meta, &txn, "format").unwrap().unwrap()
        };
        assert_eq!(
            (results(policy.vault()), format()),
            (vec![FIRST_RESULTS.into()], b"1".to_vec())
        );
        policy.set_secret("tok", &Secret::from("one")).unwrap();
        policy.rotate_vault(Protection::KeyFile).unwrap();
        policy.rotate_vault(Protection::KeyFile).unwrap();
        assert_eq!(format(), b"2");
        let generations = results(policy.vault());
        assert_eq!((generations.len(), generations[0].as_str()), (3, FIRST_RESULTS));
        assert_ne!(generations[1], generations[2]);
        assert_eq!(hex(&policy.vault().derive("results").unwrap()), generations[2]);
        assert_eq!(results(crate::Policy::open(dir.path()).unwrap().vault()), generations);
    }
}

/// R-4: who has a former key opens no generation in a later store: neither its own nor the new one.
#[test]
fn r_4_a_former_key_opens_no_generation() {
    let dir = tempfile::TempDir::new().unwrap();
    let policy = crate::Policy::init(dir.path(), None).unwrap();
    let old = file::read_or_write(dir.path()).unwrap();
    assert_eq!(policy.vault().header().generations_under(&old).unwrap().len(), 1);
    policy.rotate_vault(Protection::KeyFile).unwrap();
    let error = policy.vault().header().generations_under(&old).unwrap_err();
    assert!(matches!(error, Error::Damaged), "{error}");
}

/// R-4: who follows is told at once of each lock, unlock and change, and of nothing else.
#[test]
fn r_4_a_follower_has_the_keys_as_long_as_the_vault_is_open() {
    let dir = tempfile::TempDir::new().unwrap();
    let policy = crate::Policy::init(dir.path(), None).unwrap();
    let told: Arc<std::sync::Mutex<Vec<Option<usize>>>> = Arc::default();
    let tell = Arc::clone(&told);
    policy.vault().follow(move |generations| {
        tell.lock().unwrap().push(generations.map(|generations| generations.0.len()));
    });
    policy.vault().lock();
    policy.vault().unlock(None).unwrap();
    let beside = crate::Policy::open(dir.path()).unwrap();
    beside.rotate_vault(Protection::KeyFile).unwrap();
    for _ in 0..2 {
        assert_eq!(policy.vault().status(), Status::Unlocked);
    }
    beside.rotate_vault(Protection::Passphrase(&Secret::from("pass"))).unwrap();
    assert_eq!(policy.vault().status(), Status::Locked);
    policy.vault().unlock(Some(&Secret::from("pass"))).unwrap();
    let expected = [Some(1), None, Some(1), Some(2), None, Some(3)];
    assert_eq!(*told.lock().unwrap(), expected);
}
