//! The vault as users of the crate see it: lock and unlock, key files, changes of the master key, and
//! what a change leaves in the store's file.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{canary_credential, home};
use journal::contract::Code;
use policy::{Policy, Secret, vault};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use zeroize::Zeroizing;

/// The keys for results, the oldest first.
fn generations(policy: &Policy) -> Vec<Zeroizing<[u8; 32]>> {
    policy.vault().with_generations(|generations| generations.unwrap().derive("results")).unwrap()
}

/// All that is sealed anywhere in the store's file, in use or not.
fn sealed_in(home: &Path) -> BTreeSet<String> {
    let bytes = fs::read(home.join("policy/data.mdb")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    text.split(|c| !base64(c)).filter(|word| word.len() >= 60).map(str::to_owned).collect()
}

/// I-1: a locked vault, and what unlocks it.
#[test]
fn i_1_locked_vault_has_its_code() {
    let (_dir, policy) = home();
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    let before = policy.vault().derive("results").unwrap();
    policy.vault().lock();
    assert_eq!(policy.vault().status(), vault::Status::Locked);
    let error = policy.credential(&credential).unwrap_err();
    assert_eq!(error.code(), Code::VaultLocked);
    assert_eq!(error.verdict().retry().as_str(), "after_correction");
    assert_eq!(error.verdict().phase().as_str(), "credential_injection");
    assert!(policy.set_secret("tok", &Secret::from("two")).is_err());
    assert!(matches!(policy.vault().derive("results"), Err(vault::Error::Locked)));
    policy.vault().unlock(None).unwrap();
    assert_eq!(*policy.vault().derive("results").unwrap(), *before);
    assert_ne!(*policy.vault().derive("other").unwrap(), *before);
    assert_eq!(policy.credential(&credential).unwrap().0.expose(), b"one");
}

#[test]
fn passphrase_locks_until_it_is_given() {
    let dir = TempDir::new().unwrap();
    assert!(Policy::init(dir.path(), Some(&Secret::default())).is_err());
    let policy = Policy::init(dir.path(), Some(&Secret::from("right horse"))).unwrap();
    assert!(!dir.path().join("vault.key").exists());
    assert_eq!(policy.vault().mode(), vault::Mode::Passphrase);
    assert_eq!(policy.vault().status(), vault::Status::Locked);
    assert!(matches!(policy.vault().unlock(None), Err(vault::Error::PassphraseNeeded)));
    let wrong = policy.vault().unlock(Some(&Secret::from("wrong horse"))).unwrap_err();
    assert_eq!(wrong.to_string(), "the passphrase is wrong");
    assert_eq!(policy.vault().status(), vault::Status::Locked);
    policy.vault().unlock(Some(&Secret::from("right horse"))).unwrap();
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    drop(policy);
    let policy = Policy::open(dir.path()).unwrap();
    let credential = canary_credential(&policy);
    assert_eq!(policy.credential(&credential).unwrap_err().code(), Code::VaultLocked);
    policy.vault().unlock(Some(&Secret::from("right horse"))).unwrap();
    assert_eq!(policy.credential(&credential).unwrap().0.expose(), b"one");
}

#[test]
fn key_file_is_private_or_refused() {
    let (dir, policy) = home();
    drop(policy);
    let path = dir.path().join("home/vault.key");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Policy::open(&dir.path().join("home")).unwrap_err().to_string();
    assert!(error.contains("chmod 600") && error.contains("0640"), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let other = TempDir::new().unwrap();
    drop(Policy::init(other.path(), None).unwrap());
    fs::copy(other.path().join("vault.key"), &path).unwrap();
    let error = Policy::open(&dir.path().join("home")).unwrap_err().to_string();
    assert!(error.contains("does not hold the key of this vault"), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(Policy::init(&dir.path().join("home"), None).is_err(), "no second key is made");
    assert!(!path.exists());
}

/// I-1: after a change of the master key secrets open under the new one, former derived keys stay,
/// and a process that was open all along follows.
#[test]
fn i_1_the_master_key_changes_in_one_step() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    policy.set_secret("tok", &Secret::from("two")).unwrap();
    policy.set_secret("other", &Secret::from("three")).unwrap();
    let results = policy.vault().derive("results").unwrap();
    let beside = Policy::open(&home).unwrap();
    let bound = beside.bind(&credential);
    let before = fs::read(home.join("vault.key")).unwrap();
    for round in 0..3 {
        let rotated = policy.rotate_vault(vault::Protection::KeyFile).unwrap();
        assert_eq!(rotated.secrets, 3, "round {round}");
    }
    assert_ne!(fs::read(home.join("vault.key")).unwrap(), before);
    assert!(!home.join("vault.key.next").exists());
    for one in [&policy, &beside, &Policy::open(&home).unwrap()] {
        assert_eq!(one.credential(&credential).unwrap().0.expose(), b"two");
        assert_eq!(one.credential_bound(&credential, &bound).unwrap().expose(), b"two");
        let generations = generations(one);
        assert_eq!((generations.len(), &generations[0]), (4, &results), "one for each key");
    }
    fs::write(home.join("vault.key"), before).unwrap();
    let error = Policy::open(&home).unwrap_err().to_string();
    assert!(error.contains("does not hold the key of this vault"), "{error}");
}

/// A change that is cut off at any step leaves the old key or the new one in force, never neither.
#[test]
fn a_change_of_the_key_file_survives_a_crash() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    let (key, next) = (home.join("vault.key"), home.join("vault.key.next"));
    let old = fs::read(&key).unwrap();
    let opens = || Policy::open(&home).unwrap().credential(&credential).unwrap();
    // Before the commit: a next key that nothing refers to.
    fs::write(&next, &old[..]).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(opens().0.expose(), b"one");
    policy.rotate_vault(vault::Protection::KeyFile).unwrap();
    // Behind the commit: the new key is still called next.
    fs::rename(&key, &next).unwrap();
    fs::write(&key, &old[..]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(opens().0.expose(), b"one");
    assert!(!next.exists());
    assert_ne!(fs::read(&key).unwrap(), old);
    fs::rename(&key, &next).unwrap();
    assert_eq!(opens().0.expose(), b"one");
    assert!(key.exists());
}

/// I-1: a key file that a cut-off change left behind is removed at the next opening: it opens what was
/// encrypted before the change.
#[test]
fn a_change_away_from_the_key_file_leaves_none_after_a_crash() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    let file = home.join("vault.key");
    let before = fs::read(&file).unwrap();
    policy.rotate_vault(vault::Protection::Passphrase(&Secret::from("open sesame"))).unwrap();
    assert!(!file.exists());
    drop(policy);
    // As if the process had ended between its commit and the removal.
    fs::write(&file, before).unwrap();
    let policy = Policy::open(&home).unwrap();
    assert!(!file.exists());
    assert_eq!(policy.vault().status(), vault::Status::Locked);
}

/// I-1: from a key file to a passphrase, to a key that is handed in, and back.
#[test]
fn i_1_the_protection_of_the_vault_changes() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    let results = policy.vault().derive("results").unwrap();
    let beside = Policy::open(&home).unwrap();
    let empty = policy.rotate_vault(vault::Protection::Passphrase(&Secret::default()));
    assert_eq!(empty.unwrap_err().to_string(), "the passphrase is empty");
    let pass = Secret::from("right horse");
    policy.rotate_vault(vault::Protection::Passphrase(&pass)).unwrap();
    assert!(!home.join("vault.key").exists());
    assert_eq!(policy.credential(&credential).unwrap().0.expose(), b"one");
    assert_eq!(beside.credential(&credential).unwrap_err().code(), Code::VaultLocked);
    beside.vault().unlock(Some(&pass)).unwrap();
    assert_eq!(beside.credential(&credential).unwrap().0.expose(), b"one");

    let fail = |_: &Secret| Err(std::io::Error::other("no room"));
    assert!(policy.rotate_vault(vault::Protection::Given(&fail)).is_err());
    assert_eq!(policy.vault().mode(), vault::Mode::Passphrase, "a key that is lost is not used");
    let kept = std::cell::RefCell::new(Secret::default());
    let keep = |key: &Secret| {
        *kept.borrow_mut() = key.clone();
        Ok(())
    };
    policy.rotate_vault(vault::Protection::Given(&keep)).unwrap();
    let key = kept.into_inner();
    assert!(key.expose().starts_with(b"affiant-vault-key-1 "));
    let locked = Policy::open(&home).unwrap();
    assert_eq!(locked.vault().mode(), vault::Mode::Given);
    assert_eq!(locked.credential(&credential).unwrap_err().code(), Code::VaultLocked);
    assert!(locked.rotate_vault(vault::Protection::KeyFile).is_err());
    assert!(matches!(locked.vault().unlock(Some(&pass)), Err(vault::Error::WrongKey)));
    assert!(Policy::open_with_key(&home, Some(&pass)).is_err());
    let opened = Policy::open_with_key(&home, Some(&key)).unwrap();
    assert_eq!(opened.credential(&credential).unwrap().0.expose(), b"one");
    opened.rotate_vault(vault::Protection::KeyFile).unwrap();
    let back = Policy::open(&home).unwrap();
    assert_eq!(back.credential(&credential).unwrap().0.expose(), b"one");
    assert_eq!((generations(&back).len(), &generations(&back)[0]), (4, &results));
}

#[test]
fn a_home_made_twice_at_once_has_one_key() {
    let dir = TempDir::new().unwrap();
    let keys: Vec<_> = std::thread::scope(|scope| {
        let make = || Policy::init(dir.path(), None).unwrap().vault().derive("test").unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| **key == *keys[0]));
}

/// I-1: what the former key sealed is nowhere in the store's file once the key was changed: who has
/// that key opens nothing in a later copy. The same holds for the passphrase, and for secrets that
/// are replaced or removed.
#[test]
fn i_1_nothing_under_a_former_key_stays_in_the_file() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    for number in 0..40 {
        let value = Secret::from(format!("value-{number}").repeat(1 + number * 20));
        policy.set_secret(&format!("tok-{number}"), &value).unwrap();
    }
    policy.apply(policy::STARTER, "policy.toml", "ann").unwrap();
    let wrapped = |home: &Path| -> BTreeSet<String> {
        // A data key under the wrapping key: 12 + 32 + 16 bytes.
        sealed_in(home).into_iter().filter(|word| word.len() == 80).collect()
    };
    let first = wrapped(&home);
    assert_eq!(first.len(), 41, "forty data keys and a generation");
    let pass = Secret::from("open sesame");
    assert_eq!(policy.rotate_vault(vault::Protection::Passphrase(&pass)).unwrap().secrets, 40);
    let second = wrapped(&home);
    assert_eq!(second.len(), 43, "forty data keys, two generations, the key under the passphrase");
    assert!(first.is_disjoint(&second));
    policy.rotate_vault(vault::Protection::KeyFile).unwrap();
    let third = wrapped(&home);
    assert_eq!(third.len(), 43, "forty data keys, three generations");
    assert!(second.is_disjoint(&third));

    for number in 0..20 {
        policy.remove_secret(&format!("tok-{number}")).unwrap();
    }
    assert_eq!(wrapped(&home).len(), 23);
    for round in 0..3 {
        policy.set_secret("tok-20", &Secret::from(format!("round-{round}"))).unwrap();
    }
    assert_eq!(wrapped(&home).len(), 24, "the newest and the one before");
    for number in 21..40 {
        assert!(policy.list_secrets().unwrap().iter().any(|s| s.name == format!("tok-{number}")));
    }
}

/// A change of the key that is killed at any moment leaves a home that opens, with its secrets and
/// every generation; the next change takes away what the killed one left in the file.
#[test]
fn i_1_a_killed_change_leaves_a_home_that_opens() {
    const NAME: &str = "i_1_a_killed_change_leaves_a_home_that_opens";
    const VARIABLE: &str = "AFFIANT_TEST_ROTATING";
    if let Some(home) = std::env::var_os(VARIABLE) {
        let policy = Policy::open(Path::new(&home)).unwrap();
        println!("ready");
        loop {
            policy.rotate_vault(vault::Protection::KeyFile).unwrap();
            println!("changed");
        }
    }
    let (dir, policy) = home();
    let home = dir.path().join("home");
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    let first = generations(&policy)[0].clone();
    drop(policy);
    let mut known = 1;
    for round in 0..24_u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(VARIABLE, &home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let changes = usize::try_from(round % 3).unwrap();
        assert_eq!(lines.by_ref().take(changes).map(Result::unwrap).count(), changes);
        // Anywhere in the next change: these are no waits for anything, but where the kill falls.
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 370));
        child.kill().unwrap();
        child.wait().unwrap();
        let policy = Policy::open(&home).unwrap();
        assert_eq!(policy.credential(&credential).unwrap().0.expose(), b"one", "round {round}");
        let now = generations(&policy);
        assert!(now.len() >= known + changes, "round {round}: {} after {known}", now.len());
        assert_eq!(now[0], first);
        known = now.len();
        policy.erase_unused();
        let sealed = sealed_in(&home).into_iter().filter(|word| word.len() == 80).count();
        assert_eq!(sealed, known + 1, "round {round}: a data key and the generations");
    }
    assert!(known > 24, "{known}");
}

/// I-1: pages that a killed change wrote behind the end of the store are overwritten as well.
#[test]
fn i_1_what_a_killed_change_left_behind_the_end_goes() {
    let (dir, policy) = home();
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    drop(policy);
    let home = dir.path().join("home");
    let file = home.join("policy/data.mdb");
    let whole = fs::read(&file).unwrap();
    let left = b"left behind ".repeat(1000);
    fs::write(&file, [whole.as_slice(), &left].concat()).unwrap();
    let policy = Policy::open(&home).unwrap();
    policy.erase_unused();
    let found = fs::read(&file).unwrap();
    assert_eq!(found.len(), whole.len() + left.len());
    assert!(found[whole.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(policy.list_secrets().unwrap().len(), 1);
}

/// A store that was cut is refused by name, also one of which nothing is left; it is not made anew.
#[test]
fn a_cut_store_is_refused_by_name() {
    let (dir, policy) = home();
    let home = dir.path().join("home");
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    drop(policy);
    let file = home.join("policy/data.mdb");
    let whole = fs::read(&file).unwrap();
    for length in [whole.len() / 2, 8192, 4096, 100, 0] {
        fs::write(&file, &whole[..length]).unwrap();
        let error = Policy::open(&home).unwrap_err();
        let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(text.contains("policy/data.mdb is damaged"), "{text}");
        assert!(text.contains(&format!("it is cut: {length} bytes are there")), "{text}");
        assert_eq!(fs::read(&file).unwrap().len(), length, "it is left as it is");
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(Policy::open(&home).unwrap().list_secrets().unwrap().len(), 1);
}
