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
