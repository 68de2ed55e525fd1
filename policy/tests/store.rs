//! The store as users of the crate see it: versions, agents, secrets, other processes, file modes. The
//! vault is in `vault.rs`.

#![expect(clippy::unwrap_used, reason = "a helper of tests fails by panicking")]

mod common;

use common::{action, canary_credential, home, text};
use journal::contract::Code;
use policy::secrets::{self, Label};
use policy::{Policy, Secret};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// V-5: versions are numbered, immutable, and a rollback is a new one.
#[test]
fn v_5_versions_are_immutable_and_rollback_makes_a_new_one() {
    let (_dir, policy) = home();
    assert_eq!(policy.snapshot().version(), 0);
    assert_eq!(
        policy.snapshot().http(&action("one.test")).unwrap_err().code,
        Code::TargetNotAllowed
    );
    assert_eq!(policy.apply(&text("one.test"), "p.toml", "ann").unwrap(), 1);
    let bound = policy.snapshot();
    assert_eq!(policy.apply(&text("two.test"), "p.toml", "bob").unwrap(), 2);
    assert_eq!(bound.version(), 1);
    assert!(bound.http(&action("one.test")).is_ok(), "a bound snapshot does not change");
    assert!(policy.snapshot().http(&action("one.test")).is_err());
    assert_eq!(policy.rollback(1, "eve").unwrap(), 3);
    assert!(policy.snapshot().http(&action("one.test")).is_ok());
    let history = policy.history().unwrap();
    let seen: Vec<_> = history.iter().map(|v| (v.version, v.who.as_str(), v.rollback_of)).collect();
    assert_eq!(seen, [(3, "eve", Some(1)), (2, "bob", None), (1, "ann", None)]);
    assert_eq!(history[0].digest, history[2].digest);
    assert_eq!(policy.source_text(2).unwrap().unwrap(), text("two.test"));
    assert_eq!(policy.source_text(9).unwrap(), None);
    assert!(policy.rollback(9, "eve").unwrap_err().to_string().contains("no policy version 9"));
}

#[test]
fn a_refused_text_changes_nothing() {
    let (_dir, policy) = home();
    policy.apply(&text("one.test"), "p.toml", "ann").unwrap();
    let error = policy.apply("[[route]]\nnam = 1\n", "p.toml", "ann").unwrap_err();
    assert!(error.to_string().contains("the version in force stays"), "{error}");
    assert_eq!(policy.snapshot().version(), 1);
    assert_eq!(policy.history().unwrap().len(), 1);
}

#[test]
fn init_is_idempotent_and_open_needs_it() {
    let dir = TempDir::new().unwrap();
    let error = Policy::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("affiant init"), "{error}");
    let first = Policy::init(dir.path(), None).unwrap();
    let token = first.add_agent("coder").unwrap();
    let key = fs::read(dir.path().join("vault.key")).unwrap();
    let second = Policy::init(dir.path(), None).unwrap();
    assert!(second.authenticate("coder", token.expose_text().unwrap()));
    assert_eq!(fs::read(dir.path().join("vault.key")).unwrap(), key);
}

/// V-1: an agent is who holds the token.
#[test]
fn v_1_tokens_authenticate_their_agent_only() {
    let (_dir, policy) = home();
    let coder = policy.add_agent("coder").unwrap();
    let other = policy.add_agent("other").unwrap();
    let (coder, other) = (coder.expose_text().unwrap(), other.expose_text().unwrap());
    assert!(coder.starts_with("afft_") && coder.len() == 48, "{}", coder.len());
    assert!(policy.authenticate("coder", coder));
    assert!(!policy.authenticate("coder", other));
    assert!(!policy.authenticate("coder", ""));
    assert!(!policy.authenticate("nobody", coder));
    assert_eq!(policy.agent_by_token(other).as_deref(), Some("other"));
    assert_eq!(policy.agent_by_token("afft_x"), None);
    assert!(matches!(policy.add_agent("coder"), Err(policy::agent::Error::Exists(_))));
    for bad in ["", "*", "a b", "-a", "a\0", &"x".repeat(600)] {
        assert!(matches!(policy.add_agent(bad), Err(policy::agent::Error::Name)), "{bad}");
        assert!(matches!(policy.remove_agent(bad), Err(policy::agent::Error::Unknown(_))), "{bad}");
    }
    let fresh = policy.rotate_agent("coder").unwrap();
    assert!(!policy.authenticate("coder", coder));
    assert!(policy.authenticate("coder", fresh.expose_text().unwrap()));
    policy.remove_agent("coder").unwrap();
    assert!(!policy.authenticate("coder", fresh.expose_text().unwrap()));
    let names: Vec<_> = policy.list_agents().unwrap().into_iter().map(|a| a.name).collect();
    assert_eq!(names, ["other"]);
}

#[test]
fn public_keys_authenticate_their_agent() {
    let (_dir, policy) = home();
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";
    drop(policy.add_agent("coder").unwrap());
    assert!(!policy.authenticate_key("coder", key));
    policy.add_agent_key("coder", &format!("{key} me@host")).unwrap();
    assert!(policy.authenticate_key("coder", key));
    assert!(!policy.authenticate_key("other", key));
    assert!(policy.add_agent_key("coder", "ssh-ed25519 nonsense").is_err());
}

/// V-5 and I-1: versions count up, a bound version stays readable, absence has its code.
#[test]
fn i_1_secrets_have_versions_and_v_5_bindings_hold() {
    let (_dir, policy) = home();
    let credential = canary_credential(&policy);
    assert_eq!(policy.credential(&credential).unwrap_err().code(), Code::SecretMissing);
    assert_eq!(policy.bind(&credential).version, 0);
    assert_eq!(policy.set_secret("tok", &Secret::from("one")).unwrap(), 1);
    let bound = policy.bind(&credential);
    assert_eq!((bound.id.as_str(), bound.version, bound.mode.as_str()), ("c", 1, "bearer"));
    assert_eq!(policy.set_secret("tok", &Secret::from("two")).unwrap(), 2);
    assert_eq!(policy.credential_bound(&credential, &bound).unwrap().expose(), b"one");
    let (secret, used) = policy.credential(&credential).unwrap();
    assert_eq!((secret.expose(), used.version), (&b"two"[..], 2));
    policy.set_secret("tok", &Secret::from("three")).unwrap();
    let gone = policy.credential_bound(&credential, &bound).unwrap_err();
    assert_eq!(gone.code(), Code::SecretMissing);
    policy.remove_secret("tok").unwrap();
    assert!(policy.list_secrets().unwrap().is_empty());
    assert_eq!(policy.credential(&credential).unwrap_err().code(), Code::SecretMissing);
    assert_eq!(policy.set_secret("tok", &Secret::from("four")).unwrap(), 4, "no number twice");
    assert!(policy.remove_secret("none").is_err());
    assert!(policy.set_secret("a\0b", &Secret::from("x")).is_err());
    assert!(policy.set_secret("empty", &Secret::default()).is_err());
}

/// I-2: what is kept of a version beside its sealed value is when, by whom, and words that are no secret.
#[test]
fn i_2_versions_have_tags_and_no_values() {
    let (_dir, policy) = home();
    let label = |tags: &[&str]| Label {
        by: "ann".to_owned(),
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
    };
    let set = |value: &str, label: &Label| policy.set_secret_as("tok", &Secret::from(value), label);
    assert_eq!(set("canary-1", &label(&["OPS-17", "key=AKIA1"])).unwrap(), 1);
    assert_eq!(policy.set_secret("tok", &Secret::from("canary-2")).unwrap(), 2);
    assert_eq!(set("canary-3", &label(&[])).unwrap(), 3);
    for wrong in [&["a b"][..], &[""], &["\n"], &["x"; 9]] {
        assert!(matches!(set("canary-4", &label(wrong)), Err(secrets::Error::Tag)), "{wrong:?}");
    }
    let versions = policy.secret_versions("tok").unwrap();
    let told: Vec<_> = versions
        .iter()
        .map(|(v, standing)| (v.version, v.by.as_str(), v.tags.join(" "), *standing))
        .collect();
    use secrets::Standing::{Current, Gone, Kept};
    assert_eq!(
        told,
        [
            (3, "ann", String::new(), Current),
            (2, "", String::new(), Kept),
            (1, "ann", "OPS-17 key=AKIA1".to_owned(), Gone),
        ]
    );
    assert!(!format!("{versions:?}").contains("canary"));
    policy.remove_secret("tok").unwrap();
    let versions = policy.secret_versions("tok").unwrap();
    assert!(versions.iter().all(|(_, standing)| *standing == Gone), "{versions:?}");
    assert!(matches!(policy.secret_versions("none"), Err(secrets::Error::Unknown)));
}

#[test]
fn files_are_private() {
    let (dir, policy) = home();
    policy.set_secret("tok", &Secret::from("one")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let home = dir.path().join("home");
    assert_eq!(mode(&home), 0o700);
    assert_eq!(mode(&home.join("policy")), 0o700);
    let files: Vec<_> =
        fs::read_dir(home.join("policy")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// I-2: no secret byte in any file, message or `Debug` text.
#[test]
fn i_2_canaries_show_nowhere() {
    const CANARY: &str = "canary-5d0c1b7e";
    let (dir, policy) = home();
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from(CANARY)).unwrap();
    let token = policy.add_agent("coder").unwrap();
    let (secret, used) = policy.credential(&credential).unwrap();
    let header = credential.inject.header(&secret).unwrap();
    let mut shown = format!(
        "{policy:?} {:?} {secret:?} {used:?} {header:?} {credential:?} {:?} {:?} {:?}",
        policy.vault(),
        policy.snapshot(),
        policy.list_secrets().unwrap(),
        policy.list_agents().unwrap(),
    );
    let odd = Secret::from(format!("{CANARY}\r\nX: y"));
    shown += &format!("{:?}", credential.inject.header(&odd).unwrap_err());
    shown += &format!("{}", policy.set_secret("bad name", &odd).unwrap_err());
    let pasted =
        format!("[[credential]]\nid = \"c\"\nsecret = \"{CANARY}:x y\"\ninject = \"bearer\"\n");
    for finding in Policy::check(&pasted, "p.toml").unwrap_err() {
        shown += &finding.to_string();
    }
    let agent = token.expose_text().unwrap();
    assert!(!shown.contains(CANARY) && !shown.contains(agent), "{shown}");
    for file in fs::read_dir(dir.path().join("home/policy")).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        for needle in [CANARY.as_bytes(), agent.as_bytes()] {
            assert!(!bytes.windows(needle.len()).any(|w| w == needle));
        }
    }
}

#[test]
fn other_sources_have_their_codes() {
    let (dir, policy) = home();
    let file = dir.path().join("token");
    let of = |secret: &str, inject: &str| {
        let text = format!(
            "[[credential]]\nid = \"c\"\nsecret = \"{secret}\"\ninject = \"{inject}\"\n\
             [[route]]\nname = \"r\"\nmatch = {{ host = \"h.test\" }}\ncredential = \"c\"\n"
        );
        Policy::check(&text, "p").unwrap().http(&action("h.test")).unwrap().credential.unwrap()
    };
    let from_file = of(&format!("file:{}", file.display()), "bearer");
    assert_eq!(policy.credential(&from_file).unwrap_err().code(), Code::SecretMissing);
    fs::write(&file, "tok\r\n").unwrap();
    let (secret, used) = policy.credential(&from_file).unwrap();
    assert_eq!((secret.expose(), used.version), (&b"tok"[..], 0));
    fs::write(&file, "\n").unwrap();
    assert_eq!(policy.credential(&from_file).unwrap_err().code(), Code::SecretMissing);
    let directory = of(&format!("file:{}", dir.path().display()), "bearer");
    assert_eq!(policy.credential(&directory).unwrap_err().code(), Code::SecretSourceFailed);
    let env = of("env:CARGO_MANIFEST_DIR", "bearer");
    assert_eq!(policy.credential(&env).unwrap().0.expose(), env!("CARGO_MANIFEST_DIR").as_bytes());
    let absent = of("env:AFFIANT_TEST_NEVER_SET", "bearer");
    assert_eq!(policy.credential(&absent).unwrap_err().code(), Code::SecretMissing);
    let exec = of("exec:printf tok", "bearer");
    assert_eq!(policy.credential(&exec).unwrap().0.expose(), b"tok");
    assert!(exec.is_slow());
    let failing = of("exec:false", "bearer");
    assert_eq!(policy.credential(&failing).unwrap_err().code(), Code::SecretSourceFailed);
    let agent = of("agent:/run/agent.sock", "ssh-agent");
    assert_eq!(policy.credential(&agent).unwrap().0.expose(), b"/run/agent.sock");
}

/// What another process changes is seen by the next look of a running one.
#[test]
fn changes_of_another_process_are_seen_at_once() {
    if let Some(home) = std::env::var_os("AFFIANT_TEST_OTHER_PROCESS") {
        let policy = Policy::open(Path::new(&home)).unwrap();
        assert_eq!(policy.apply(&text("two.test"), "p.toml", "other").unwrap(), 2);
        policy.set_secret("tok", &Secret::from("other")).unwrap();
        policy.remove_agent("coder").unwrap();
        return;
    }
    let (dir, policy) = home();
    let credential = canary_credential(&policy);
    policy.set_secret("tok", &Secret::from("own")).unwrap();
    let token = policy.add_agent("coder").unwrap();
    let token = token.expose_text().unwrap();
    assert!(policy.authenticate("coder", token));
    let second = Policy::open(&dir.path().join("home")).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "changes_of_another_process_are_seen_at_once"])
        .env("AFFIANT_TEST_OTHER_PROCESS", dir.path().join("home"))
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    for policy in [&policy, &second] {
        assert_eq!(policy.snapshot().version(), 2);
        assert!(policy.snapshot().http(&action("two.test")).is_ok());
        let (secret, used) = policy.credential(&credential).unwrap();
        assert_eq!((secret.expose(), used.version), (&b"other"[..], 2));
        assert!(!policy.authenticate("coder", token));
    }
    policy.apply(&text("three.test"), "p.toml", "own").unwrap();
    assert_eq!(second.snapshot().version(), 3, "two handles of one process agree");
}

#[test]
fn the_starter_applies_and_denies() {
    let (_dir, policy) = home();
    policy.apply(policy::STARTER, "policy.toml", "init").unwrap();
    assert!(policy.snapshot().warnings().is_empty());
    assert_eq!(policy.snapshot().http(&action("x.test")).unwrap_err().code, Code::TargetNotAllowed);
}

/// Readers beside a writer see versions in order, each whole.
#[test]
fn readers_beside_a_writer_see_whole_versions_in_order() {
    const VERSIONS: u64 = 30;
    let (_dir, policy) = home();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                let begun = Instant::now();
                while last < VERSIONS {
                    assert!(begun.elapsed() < Duration::from_secs(60), "stuck at {last}");
                    let snapshot = policy.snapshot();
                    assert!(snapshot.version() >= last);
                    last = snapshot.version();
                    let host = format!("v{last}.test");
                    assert!(last == 0 || snapshot.http(&action(&host)).is_ok(), "version {last}");
                }
            });
        }
        for version in 1..=VERSIONS {
            let text = text(&format!("v{version}.test"));
            assert_eq!(policy.apply(&text, "p.toml", "ann").unwrap(), version);
            assert_eq!(policy.snapshot().version(), version, "a writer sees its own write");
        }
    });
}

#[test]
fn a_closed_handle_can_be_opened_again() {
    let (dir, policy) = home();
    policy.apply(&text("one.test"), "p.toml", "ann").unwrap();
    for _ in 0..3 {
        let again = Policy::open(&dir.path().join("home")).unwrap();
        assert_eq!(again.snapshot().version(), 1);
    }
    drop(policy);
    let again = Policy::open(&dir.path().join("home")).unwrap();
    assert_eq!(again.snapshot().version(), 1);
}
