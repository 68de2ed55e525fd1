//! Policy tools and the vault's key, as a user meets them beside a running server.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::Script;
use std::os::unix::fs::FileExt as _;
use support::*;

/// `policy test` and `policy diff`: 0 when all holds or nothing differs, 1 when not, 2 when misused.
#[test]
fn policies_are_tested_and_compared() {
    let home = Home::new();
    let policy = "[[route]]\nname = \"models\"\npreset = \"openai\"\n\
                  [[route]]\nname = \"reads\"\nmatch = { host = \"a.test\", query = { q = \"get*\" } }\n";
    let file = home.path().join("next.toml");
    std::fs::write(&file, policy).unwrap();
    let file = file.to_str().unwrap();
    let changed = home.run(&["policy", "diff", file]);
    assert_eq!(changed.status.code(), Some(1));
    assert!(text(&changed.stdout).contains("+ route models\n"), "{}", text(&changed.stdout));
    home.ok(&["policy", "apply", file]);
    assert!(home.ok(&["policy", "diff", file]).contains("nothing differs"));
    assert_eq!(home.run(&["policy", "diff", "1", "2"]).status.code(), Some(1));
    assert_eq!(home.run(&["policy", "diff", "1", "9"]).status.code(), Some(2));

    let expect = "[[expect]]\nagent = \"a\"\ncall = \"POST https://api.openai.com/v1/embeddings\"\n\
                  allow = true\npreset = \"openai\"\nidempotent = true\n\
                  [[expect]]\nagent = \"a\"\ncall = \"GET https://a.test/?q=getx\"\nallow = true\n\
                  [[expect]]\nagent = \"a\"\ncall = \"GET https://a.test/?q=putx\"\nallow = false\n";
    let tests = home.path().join("expect.toml");
    std::fs::write(&tests, expect).unwrap();
    let tests = tests.to_str().unwrap();
    assert!(home.ok(&["policy", "test", tests]).contains("3 of 3 expectations hold"));
    std::fs::write(tests, expect.replace("idempotent = true", "idempotent = false")).unwrap();
    let failed = home.run(&["policy", "test", tests, "--policy", file]);
    assert_eq!(failed.status.code(), Some(1));
    let told = text(&failed.stdout);
    assert!(told.contains("idempotent: expected false, found true"), "{told}");
    let explained =
        home.ok(&["policy", "explain", "--agent", "a", "POST", "https://api.openai.com/v1/files"]);
    assert!(explained.contains("preset \"openai\""), "{explained}");
}

/// I-1: a change of the vault's key beside a running server stops no call.
#[test]
fn i_1_the_vaults_key_changes_beside_a_server() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let url = origin.url("/x");
    let first = server.curl(&["-d", "a", &url]);
    assert_eq!(first.status, 200);
    assert!(home.ok(&["vault", "rotate"]).contains("1 secret versions"));
    assert_eq!(server.curl(&["-d", "b", &url]).status, 200);
    // What was stored before is still read.
    let stored = home.run(&["inv", "result", &first.invocation()]);
    assert_eq!(text(&stored.stdout), "ok");

    let rotate = ["vault", "rotate", "--passphrase"];
    let changed = finish(home.command(&rotate), b"right horse\n");
    assert_eq!(changed.status.code(), Some(0), "{}", text(&changed.stderr));
    let locked = server.curl(&["-d", "c", &url]);
    assert_eq!(locked.status, 503, "{locked:?}");
    let unlocked = finish(home.command(&["vault", "unlock"]), b"right horse");
    assert_eq!(unlocked.status.code(), Some(0), "{}", text(&unlocked.stderr));
    assert_eq!(server.curl(&["-d", "d", &url]).status, 200);

    // An unlock right after a change is judged by the new passphrase, with no call in between.
    let changed = finish(home.command(&rotate), b"right horse\nleft horse\n");
    assert_eq!(changed.status.code(), Some(0), "{}", text(&changed.stderr));
    assert_eq!(home.json(&["vault", "status"])["vault"], "locked");
    let unlock = |given: &[u8]| finish(home.command(&["vault", "unlock"]), given);
    let old = unlock(b"right horse");
    assert!(text(&old.stderr).contains("the passphrase is wrong"), "{}", text(&old.stderr));
    assert_eq!(unlock(b"left horse").status.code(), Some(0));
    assert_eq!(server.curl(&["-d", "e", &url]).status, 200);
    let changed = finish(home.command(&rotate), b"left horse\nright horse\n");
    assert_eq!(changed.status.code(), Some(0), "{}", text(&changed.stderr));

    let key = home.path().join("handed-out");
    let out = ["vault", "rotate", "--hand-out", key.to_str().unwrap()];
    let refused = finish(home.command(&out), b"wrong horse\n");
    assert_eq!(refused.status.code(), Some(2));
    assert!(!key.exists());
    let changed = finish(home.command(&out), b"right horse\n");
    assert_eq!(changed.status.code(), Some(0), "{}", text(&changed.stderr));
    server.terminate();
    assert!(!home.path().join("vault.key").exists());
    // The service manager hands the key in as a credential.
    let credentials = tempfile::TempDir::new().unwrap();
    std::fs::rename(&key, credentials.path().join("affiant-vault-key")).unwrap();
    let mut set = home.command(&["secret", "set", "pay-token"]);
    set.env("CREDENTIALS_DIRECTORY", credentials.path());
    let set = finish(set, SECRET.as_bytes());
    assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
}

/// I-1: a change of the vault's key says so, and ends with status 1, where what the former key opens could not
/// be overwritten, because a process reads an old version of the store.
#[test]
fn i_1_a_change_tells_what_is_still_in_the_file() {
    let home = Home::new();
    home.secret("pay-token", SECRET);
    // This process has the store open, and the first of the 512 places at the end of the lock file says that it
    // reads the first version.
    let _store = policy::Policy::open(home.path()).unwrap();
    let path = home.path().join("policy/lock.mdb");
    let lock = std::fs::File::options().write(true).open(path).unwrap();
    // Closing it would give up the locks on it: it stays open to the end.
    let lock = std::mem::ManuallyDrop::new(lock);
    let place = lock.metadata().unwrap().len() - 512 * 64;
    let read = |version: u64, process: u32| {
        let bytes = [&version.to_ne_bytes()[..], &process.to_ne_bytes()].concat();
        lock.write_all_at(&bytes, place).unwrap();
    };
    read(1, std::process::id());

    let told = home.run(&["vault", "rotate"]);
    assert_eq!(told.status.code(), Some(1));
    assert!(text(&told.stdout).contains("1 secret versions were moved"), "{told:?}");
    let reason = "somebody still reads a former version";
    assert!(text(&told.stderr).contains(reason), "{told:?}");
    let told = home.run(&["vault", "rotate", "--json"]);
    assert_eq!(told.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((&answer["moved"], &answer["erased"]), (&1.into(), &false.into()), "{answer}");
    assert_eq!(answer["reason"], reason);

    read(u64::MAX, 0);
    let answer = home.json(&["vault", "rotate"]);
    assert_eq!((&answer["erased"], &answer["reason"]), (&true.into(), &serde_json::Value::Null));
}

/// R-4: who took the home before the vault's key was changed reads what was stored until then, and
/// nothing of what a running server stores behind the change; who has the new key reads both.
#[test]
fn r_4_a_former_key_reads_no_later_result() {
    let home = Home::new();
    let answers = vec![Script::answer("*", 200, &[], "the stored answer")];
    let origin = TlsOrigin::start(answers);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let server = home.serve();
    let before = server.curl(&["-d", "a", &origin.url("/x")]);
    let taken = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let mut copy = std::process::Command::new("cp");
        copy.arg("-r").arg(home.path().join(name)).arg(taken.path());
        succeed(copy);
    };
    for name in ["policy", "vault.key", "ca", "ssh"] {
        copy(name);
    }
    home.ok(&["vault", "rotate"]);
    let after = server.curl(&["-d", "b", &origin.url("/x")]);
    assert_eq!((before.status, after.status), (200, 200));
    server.terminate();
    copy("journal");
    for invocation in [&before, &after].map(|answer| answer.invocation()) {
        assert_eq!(home.ok(&["inv", "result", &invocation]), "the stored answer");
    }
    home.ok(&["journal", "verify"]);
    let with_old = |arguments: &[&str]| {
        let mut command = std::process::Command::new(BINARY);
        command.arg("--home").arg(taken.path()).args(arguments);
        clean(&mut command);
        finish(command, b"")
    };
    let first = with_old(&["inv", "result", &before.invocation()]);
    assert_eq!(text(&first.stdout), "the stored answer", "{}", text(&first.stderr));
    let second = with_old(&["inv", "result", &after.invocation()]);
    assert_eq!(text(&second.stdout), "");
    assert!(text(&second.stderr).contains("does not verify"), "{}", text(&second.stderr));
    // The old key does not open the later store either.
    std::fs::remove_dir_all(taken.path().join("policy")).unwrap();
    copy("policy");
    let refused = with_old(&["secret", "list"]);
    assert!(text(&refused.stderr).contains("does not hold the key of this vault"));
}

/// A desktop session without a desktop: its message bus, and GNOME's keyring, unlocked.
struct Desktop {
    directory: tempfile::TempDir,
    bus: std::process::Child,
    keyring: std::process::Child,
    address: String,
}

impl Desktop {
    fn start() -> Self {
        use std::io::{BufRead as _, BufReader, Write as _};
        use std::process::{Command, Stdio};
        let directory = tempfile::TempDir::new().unwrap();
        // A bus that starts nothing by itself: a second, locked keyring could come first.
        let config = directory.path().join("bus.conf");
        let text = format!(
            "<busconfig><type>session</type><listen>unix:dir={}</listen><policy context=\"default\">\
             <allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/>\
             <allow own=\"*\"/></policy></busconfig>",
            directory.path().display()
        );
        std::fs::write(&config, text).unwrap();
        let mut bus = Command::new("dbus-daemon");
        bus.arg("--config-file").arg(&config);
        bus.args(["--nofork", "--nopidfile", "--print-address"]);
        let mut bus = bus.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(bus.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim().to_owned();
        let mut keyring = Command::new("gnome-keyring-daemon");
        keyring.args(["--foreground", "--unlock", "--components=secrets"]);
        keyring.env("HOME", directory.path()).env("DBUS_SESSION_BUS_ADDRESS", &address);
        keyring.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_DATA_HOME");
        let keyring = keyring.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut keyring = keyring.spawn().unwrap();
        // The end of stdin is the end of the password.
        keyring.stdin.take().unwrap().write_all(b"desktop").unwrap();
        let desktop = Self { directory, bus, keyring, address };
        let until = std::time::Instant::now() + PATIENCE;
        while !desktop.is_ready() {
            assert!(std::time::Instant::now() < until, "the keyring does not come up");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        desktop
    }

    fn is_ready(&self) -> bool {
        let mut store = self.tool(&["store", "--label=probe", "probe", "probe"]);
        finish_quietly(&mut store, b"probe")
    }

    fn tool(&self, arguments: &[&str]) -> std::process::Command {
        let mut tool = std::process::Command::new("secret-tool");
        tool.args(arguments).env("DBUS_SESSION_BUS_ADDRESS", &self.address);
        tool.env("HOME", self.directory.path());
        tool
    }

    /// How many keys of vaults it holds.
    fn keys(&self) -> usize {
        let found = finish(self.tool(&["search", "--all", "application", "affiant"]), b"");
        text(&found.stdout).matches("secret = affiant-vault-key-1 ").count()
    }
}

fn finish_quietly(command: &mut std::process::Command, input: &[u8]) -> bool {
    use std::io::Write as _;
    use std::process::Stdio;
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait().unwrap().success()
}

impl Drop for Desktop {
    fn drop(&mut self) {
        for child in [&mut self.keyring, &mut self.bus] {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// I-1: the key lies in the keyring of a desktop, and nowhere in the home; without the desktop the
/// vault is locked and says why.
#[test]
fn i_1_the_key_lies_in_the_keyring() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("pay-token", SECRET);
    home.policy(&origin.policy(""));
    let url = origin.url("/x");
    let rotate = |address: &str, arguments: &[&str]| {
        let mut command = home.command(&[&["vault", "rotate"], arguments].concat());
        command.env("DBUS_SESSION_BUS_ADDRESS", address);
        finish(command, b"")
    };
    let refused = rotate("unix:path=/nowhere", &["--keyring"]);
    assert_eq!(refused.status.code(), Some(2));
    let told = text(&refused.stderr);
    assert!(told.contains("it did not take the key: is there a desktop session?"), "{told}");
    assert!(home.path().join("vault.key").exists());

    let desktop = Desktop::start();
    let moved = rotate(&desktop.address, &["--keyring"]);
    assert_eq!(moved.status.code(), Some(0), "{}", text(&moved.stderr));
    assert!(!home.path().join("vault.key").exists());
    assert_eq!(desktop.keys(), 1);
    // A change goes on where the key was, and leaves no former key behind.
    let changed = rotate(&desktop.address, &[]);
    assert_eq!(changed.status.code(), Some(0), "{}", text(&changed.stderr));
    assert_eq!(desktop.keys(), 1);

    let bus = format!("DBUS_SESSION_BUS_ADDRESS={}", desktop.address);
    let server = Server::start_by(&home, &["env", &bus]);
    assert_eq!(server.curl(&["-d", "a", &url]).status, 200);
    assert_eq!(home.json(&["vault", "lock"])["vault"], "locked");
    assert_eq!(server.curl(&["-d", "b", &url]).status, 503);
    assert_eq!(home.json(&["vault", "unlock"])["vault"], "unlocked");
    assert_eq!(server.curl(&["-d", "c", &url]).status, 200);
    server.terminate();

    let server = Server::start_by(&home, &["env", "DBUS_SESSION_BUS_ADDRESS=unix:path=/nowhere"]);
    let locked = server.curl(&["-d", "d", &url]);
    assert_eq!((locked.status, locked.outcome()), (503, "not_attempted"), "{locked:?}");
    let refused = home.run(&["vault", "unlock"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("nobody unlocks it"), "{}", text(&refused.stderr));
    server.terminate();
    let back = rotate(&desktop.address, &["--key-file"]);
    assert_eq!(back.status.code(), Some(0), "{}", text(&back.stderr));
    assert_eq!(desktop.keys(), 0);
}
