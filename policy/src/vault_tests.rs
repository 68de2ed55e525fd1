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
