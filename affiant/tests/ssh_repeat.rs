//! Repeating commands, and finding out about them (contract K-9): stock OpenSSH, a real sshd, and
//! scripts at the target that keep their side of the contract.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;
#[path = "support/ssh.rs"]
mod target;

use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use support::*;
use target::Bench;

/// What the scripts of a target know.
struct State(tempfile::TempDir);

impl State {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn script(&self, name: &str, body: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, format!("#!/bin/sh\ncd {}\n{body}", self.0.path().display()))
            .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Carries out each release once, with its input. Where `lose` is, the connection is gone before
    /// anybody hears of it.
    fn deploy(&self) -> String {
        std::fs::write(self.path("lose"), "").unwrap();
        self.script(
            "deploy",
            "case $1 in --status)\n\
             if test -d done-$2; then echo \"{\\\"release\\\":\\\"$2\\\",\\\"live\\\":true}\"; fi; exit;;\n\
             esac\n\
             input=$(cat)\n\
             if mkdir done-$1 2>/dev/null; then echo \"$1 $input\" >>effects; fi\n\
             echo \"$1 $input\" >>asked\n\
             if rm lose 2>/dev/null; then kill -9 $PPID; sleep 60; fi\n\
             echo live $1 $LANG\n",
        )
    }
}

fn released(deploy: &str, contract: &str) -> String {
    format!(
        "release = {{ command = \"{deploy} {{release_id}}\", scope = \"deploy\", \
         retention = \"1h\", contract = \"{contract}\" }}\n"
    )
}

/// K-9, K-1, K-6: a command with a release id that was lost on its way is sent again on request, with
/// its input and variables, and takes effect once.
#[test]
fn k_9_a_lost_release_is_sent_again_and_takes_effect_once() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = format!("{}retry = {{ max_attempts = 3 }}\n", released(&deploy, "verified"));
    let bench = Bench::with("", &keys);
    let lost = finish(bench.ssh(&[], &format!("{deploy} v1")), b"over stdin");
    assert_eq!(lost.status.code(), Some(255), "{}", text(&lost.stderr));
    let first = bench.newest();
    let id = first["invocation_id"].as_str().unwrap().to_owned();
    assert_eq!(first["error"]["retry"], "same_idempotency_key");
    assert_eq!(first["evidence"]["idempotency"]["key"], "v1");
    assert_eq!(first["evidence"]["idempotency"]["scope"], "deploy");
    let decision = bench.server.control(&format!("invocations/{id}/decision"));
    assert_eq!(decision["decision"], "RETRY_SAME_KEY");

    // K-3: the release id stands for this command.
    let other = finish(bench.ssh(&[], &format!("{deploy} v1 ")), b"");
    assert_eq!(other.status.code(), Some(0), "a command that the rule is not about");
    let events = bench.home.json(&["inv", "events", &id]);
    assert!(!events.to_string().contains("over stdin"), "input is stored encrypted");

    // A restart changes nothing: the command is on the disk.
    let Bench { home, sshd, server, .. } = bench;
    server.kill();
    let server = home.serve();
    let ports: Vec<_> = std::thread::scope(|scope| {
        let ask = || post(&server, &format!("invocations/{id}/retry"));
        let asked: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let made: Vec<_> = ports.iter().filter(|(status, _)| *status == 200).collect();
    assert_eq!(made.len(), 1, "{ports:?}");
    let (_, made) = made[0];
    assert_eq!(made["standing"]["outcome"], "committed");
    assert_eq!(made["attempt"]["links"]["earlier"], id.as_str());
    let attempt = made["attempt"]["invocation_id"].as_str().unwrap();
    assert_eq!(home.ok(&["inv", "result", attempt]).trim_end(), "live v1");
    assert_eq!(state.read("effects"), "v1 over stdin\n");
    let asked: Vec<String> = state
        .read("asked")
        .lines()
        .filter(|line| line.contains("over"))
        .map(str::to_owned)
        .collect();
    assert_eq!(asked, ["v1 over stdin"; 2]);

    // J-3: the first attempt is settled by the second observer, and nothing is left to do.
    let first = server.control(&format!("invocations/{id}"));
    assert_eq!(first["error"]["outcome"], "committed");
    assert_eq!(first["evidence"]["source"], "remote_query");
    assert_eq!(first["links"]["observed_by"], attempt);
    let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")), "{refused}");
    drop(sshd);
}

/// K-9, K-3: one release id stands for one command, whoever sends it.
#[test]
fn k_9_a_release_id_stands_for_one_command() {
    let state = State::new();
    let deploy = state.script("deploy", "echo \"$*\" >>effects\n");
    let keys = format!(
        "release = {{ command = \"{deploy} {{release_id}}*\", contract = \"verified\" }}\n"
    );
    let bench = Bench::with("", &keys);
    let run = |rest: &str| finish(bench.ssh(&[], &format!("{deploy} {rest}")), b"");
    assert_eq!(run("v1 --fast").status.code(), Some(0));
    let refused = run("v1 --slow");
    assert_eq!(refused.status.code(), Some(255));
    assert!(text(&refused.stderr).contains("IDEMPOTENCY_MISMATCH"), "{}", text(&refused.stderr));
    let record = bench.newest();
    assert_eq!(record["error"]["outcome"], "not_attempted");
    assert_eq!(record["error"]["phase"], "validation");
    // The same command again is the target's to know.
    assert_eq!(run("v1 --fast").status.code(), Some(0));
    assert_eq!(run("v2 --slow").status.code(), Some(0));
    assert_eq!(state.read("effects"), "v1 --fast\nv1 --fast\nv2 --slow\n");
}

/// K-9, K-1: an unverified promise, a route without `retry`, and no contract at all: nothing is sent
/// again.
#[test]
fn k_9_without_a_contract_nothing_is_sent_again() {
    for (contract, code) in [
        ("release = unverified", "RETRY_NOT_ALLOWED"),
        ("release = verified", "REQUEST_NOT_STORED"),
        ("", "RETRY_NOT_ALLOWED"),
    ] {
        let state = State::new();
        let deploy = state.deploy();
        let keys = match contract.strip_prefix("release = ") {
            Some("verified") => released(&deploy, "verified"),
            Some(word) => released(&deploy, word) + "retry = { max_attempts = 3 }\n",
            None => "retry = { max_attempts = 3 }\n".to_owned(),
        };
        let bench = Bench::with("", &keys);
        let lost = finish(bench.ssh(&[], &format!("{deploy} v1")), b"x");
        assert_eq!(lost.status.code(), Some(255));
        let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
        let (status, refused) = post(&bench.server, &format!("invocations/{id}/retry"));
        assert_eq!((status, refused["code"].as_str()), (409, Some(code)), "{contract}: {refused}");
        assert_eq!(state.read("effects"), "v1 x\n");
    }
}

/// K-9, K-7, J-5: a query command decides what is in doubt, as evidence of a second observer, and
/// silence decides nothing.
#[test]
fn k_9_a_query_command_decides_what_is_in_doubt() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = format!(
        "{}[ssh.reconcile]\ncommand = \"{deploy} --status {{release_id}}\"\n\
         committed = {{ exit_status = 0, pointer = \"/live\", equals = [\"true\"] }}\n\
         rejected = {{ stdout = \"absent*\" }}\n",
        released(&deploy, "unverified")
    );
    let bench = Bench::with("", &keys);
    let lose = || {
        std::fs::write(state.path("lose"), "").unwrap();
        let lost = finish(bench.ssh(&[], &format!("{deploy} v1")), b"x");
        assert_eq!(lost.status.code(), Some(255));
        let record = bench.newest();
        assert_eq!(record["error"]["retry"], "reconcile");
        record["invocation_id"].as_str().unwrap().to_owned()
    };
    let id = lose();
    // The target says nothing: that proves nothing.
    std::fs::rename(state.path("done-v1"), state.path("away")).unwrap();
    let reconcile = || post(&bench.server, &format!("invocations/{id}/reconcile"));
    let (status, asked) = reconcile();
    assert_eq!((status, &asked["shows"]), (200, &Value::Null), "{asked}");
    assert_eq!(bench.server.control(&format!("invocations/{id}"))["error"]["outcome"], "unknown");
    std::fs::rename(state.path("away"), state.path("done-v1")).unwrap();
    // V-1: a user that the route does not let any more is not logged in as, to ask either.
    let logins = bench.sshd.log().matches("Accepted publickey").count();
    let named = format!("users = [\"{}\"]", target::user());
    let route = format!("{}{keys}", bench.sshd.policy(&bench.sshd.host_key));
    bench.home.policy(&route.replace(&named, "users = [\"somebody-else\"]"));
    let (status, refused) = reconcile();
    assert_eq!((status, refused["code"].as_str()), (409, Some("NOT_RECONCILABLE")), "{refused}");
    assert_eq!(bench.sshd.log().matches("Accepted publickey").count(), logins);
    bench.home.policy(&route);

    let before = bench.home.json(&["inv", "events", &id]);
    let output = bench.home.run(&["inv", "reconcile", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let first = bench.server.control(&format!("invocations/{id}"));
    assert_eq!(first["error"]["outcome"], "committed");
    assert_eq!(first["evidence"]["source"], "remote_query");
    let query = first["links"]["observed_by"].as_str().unwrap();
    let asked = bench.server.control(&format!("invocations/{query}"));
    assert_eq!((&asked["action"], &asked["links"]["earlier"]), (&json!("exec"), &json!(id)));
    assert_eq!(asked["evidence"]["ssh_end"]["exit_status"], 0);
    let after = bench.home.json(&["inv", "events", &id]);
    let (before, after) =
        (before["events"].as_array().unwrap(), after["events"].as_array().unwrap());
    assert_eq!((&after[..before.len()], after.len()), (&before[..], before.len() + 1));
    // The route lets nobody but the broker ask this, so the agent does not get to read the answer.
    let read = format!("http://affiant.internal/v1/invocations/{query}/result");
    assert_eq!(bench.server.curl(&[&read]).json()["code"], "NO_RESULT");
    let (status, refused) = reconcile();
    assert_eq!((status, refused["code"].as_str()), (409, Some("NOT_IN_DOUBT")));
    assert_eq!(state.read("effects"), "v1 x\n");
}

/// K-9, K-7: the broker asks by itself where the route says so.
#[test]
fn k_9_the_broker_asks_by_itself() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = format!(
        "{}[ssh.reconcile]\ncommand = \"{deploy} --status {{release_id}}\"\nautomatic = true\n\
         every = \"1s\"\ncommitted = {{ stdout = \"*live*\" }}\n",
        released(&deploy, "unverified")
    );
    let bench = Bench::with("", &keys);
    let lost = finish(bench.ssh(&[], &format!("{deploy} v1")), b"x");
    assert_eq!(lost.status.code(), Some(255));
    let effects = || state.read("effects");
    let list = || bench.home.json(&["inv", "list"]);
    let outcome = |list: &Value| {
        let all = list["invocations"].as_array().unwrap();
        all.last().unwrap()["error"]["outcome"].clone()
    };
    eventually("the answer", || outcome(&list()) == "committed");
    assert_eq!(effects(), "v1 x\n");
}

/// K-9: an atomic compare that finds another state is a refusal, told with its own exit status; lost,
/// it may be sent again, because it can't take effect twice.
#[test]
fn k_9_an_atomic_compare_refuses_or_is_sent_again() {
    let state = State::new();
    let swap = state.script(
        "swap",
        "exec 9>lock; flock 9\n\
         if test \"$(cat value 2>/dev/null)\" != \"$1\"; then echo other >&2; exit 3; fi\n\
         echo $2 >value; echo $2 >>effects; exec 9>&-\n\
         if rm lose 2>/dev/null; then kill -9 $PPID; sleep 60; fi\n",
    );
    let bench = Bench::with("", "compare = { refused = 3 }\nretry = { max_attempts = 3 }\n");
    let swap = |words: &str| finish(bench.ssh(&[], &format!("{swap} {words}")), b"");
    assert_eq!(swap("'' a").status.code(), Some(0));
    let refused = swap("'' b");
    assert_eq!(refused.status.code(), Some(3));
    let said = text(&refused.stderr);
    assert!(said.starts_with("other\naffiant: rejected REMOTE_REJECTED: "), "{said}");
    let record = bench.newest();
    assert_eq!(record["error"]["outcome"], "rejected");
    assert_eq!(record["error"]["retry"], "after_correction");
    assert_eq!(record["evidence"]["ssh_end"]["exit_status"], 3);
    assert_eq!(record["evidence"]["response_complete"], true);

    std::fs::write(state.path("lose"), "").unwrap();
    assert_eq!(swap("a b").status.code(), Some(255));
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let decision = bench.server.control(&format!("invocations/{id}/decision"));
    assert_eq!(decision["decision"], "RETRY_NEW_ATTEMPT");
    // It had its effect, so the second one finds another state: no second effect, and no proof that
    // the first one was ours.
    let mut own = Command::new("ssh");
    own.arg("-F").arg(&bench.config).args(["-o", "BatchMode=yes", "affiant-gateway"]);
    own.arg(format!("inv retry {id}"));
    clean(&mut own);
    let output = finish(own, b"");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(made["attempt"]["error"]["outcome"], "rejected");
    assert_eq!(made["standing"]["outcome"], "unknown");
    assert_eq!(state.read("effects"), "a\nb\n");
}

/// T-1, K-9: policy as it is now stands behind a retry, or nothing is sent; an agent that is gone sends
/// nothing more.
#[test]
fn t_1_policy_as_it_is_now_decides_about_a_command() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = format!("{}retry = {{ max_attempts = 3 }}\n", released(&deploy, "verified"));
    let bench = Bench::with("", &keys);
    let lost = finish(bench.ssh(&[], &format!("{deploy} v1")), b"x");
    assert_eq!(lost.status.code(), Some(255));
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let plain = bench.sshd.policy(&bench.sshd.host_key);
    let retry = || post(&bench.server, &format!("invocations/{id}/retry"));
    for now in [String::new(), keys.replace("scope = \"deploy\"", "scope = \"other\"")] {
        bench.home.policy(&format!("{plain}{now}"));
        let (status, refused) = retry();
        let code = refused["code"].as_str();
        assert_eq!((status, code), (409, Some("POLICY_CHANGED")), "{now}: {refused}");
    }
    bench.home.policy(&format!("{plain}{keys}"));
    bench.home.ok(&["agent", "rm", "coder"]);
    let refused = bench.home.run(&["inv", "retry", &id]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("policy does not let"), "{}", text(&refused.stderr));
    assert_eq!(state.read("asked"), "v1 x\n");
}

/// T-1, K-9: what is stored is bounded; what can't be sent again is known before it is needed.
#[test]
fn k_9_what_is_not_stored_is_noted() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = format!("{}retry = {{ max_attempts = 3 }}\n", released(&deploy, "verified"));
    let bench = Bench::with("", &keys);
    std::fs::remove_file(state.path("lose")).unwrap();
    let long = vec![b'x'; (1 << 20) + 1];
    let ran = finish(bench.ssh(&[], &format!("{deploy} v1")), &long);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert_eq!(state.read("effects").len(), long.len() + 4);
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let events = bench.home.json(&["inv", "events", &id]);
    let names: Vec<_> = events["events"].as_array().unwrap().iter().collect();
    assert!(names.iter().any(|event| event["data"]["name"] == "request_not_stored"), "{events}");
    assert!(names.iter().all(|event| event["event"] != "REQUEST_STORED"), "{events}");
}

/// K-9, K-5: once the target may have forgotten a release id, nothing is sent again under it, on request
/// or by the client's own repeat: the target would take it for a new one.
#[test]
fn k_9_a_release_id_past_its_retention_is_not_sent_again() {
    let state = State::new();
    let deploy = state.deploy();
    let keys = released(&deploy, "verified").replace("\"1h\"", "\"2s\"");
    let bench = Bench::with("", &format!("{keys}retry = {{ max_attempts = 3 }}\n"));
    let line = format!("{deploy} v1");
    let lost = finish(bench.ssh(&[], &line), b"");
    assert_eq!(lost.status.code(), Some(255), "{}", text(&lost.stderr));
    let id = bench.newest()["invocation_id"].as_str().unwrap().to_owned();
    let decision = || bench.server.control(&format!("invocations/{id}/decision"));
    eventually("the retention is over", || decision()["decision"] == "RECONCILE");
    let (status, refused) = post(&bench.server, &format!("invocations/{id}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")), "{refused}");
    let repeat = finish(bench.ssh(&[], &line), b"");
    assert_eq!(repeat.status.code(), Some(255));
    let stopped = bench.newest();
    assert_eq!(stopped["error"]["code"], "IN_DOUBT_DUPLICATE");
    assert_eq!(
        (&stopped["error"]["retry"], &stopped["error"]["follow"]),
        (&json!("reconcile"), &json!(id))
    );
    assert_eq!(state.read("asked").lines().count(), 1);
}
