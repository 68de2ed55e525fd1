//! Looks for secrets in everything that a server writes and tells (contract I-2).
#![allow(dead_code, reason = "every test file uses a part of it")]

use crate::support::*;
use std::path::{Path, PathBuf};

/// A log filter at the lowest level that anybody can ask for.
const FILTER: &str = "trace,ureq::unversioned=trace,ureq_proto::client=trace,russh::client=trace";

/// A server whose log at trace level lies in the home, and that log.
pub(crate) fn logged(home: &Home) -> (Server, PathBuf) {
    logged_behind(home, "")
}

/// The same behind some lines of shell.
pub(crate) fn logged_behind(home: &Home, lines: &str) -> (Server, PathBuf) {
    let log = home.path().join("server.log");
    let script = format!("{lines}\nexec \"$@\" --log {FILTER} 2>{}", log.display());
    (Server::start_by(home, &["sh", "-c", &script, "sh"]), log)
}

/// Everything that operators can ask for, as text.
fn told(home: &Home) -> String {
    let mut told = String::new();
    let mut tell = |arguments: &[&str]| {
        let output = home.run(arguments);
        told.push_str(&text(&output.stdout));
        told.push_str(&text(&output.stderr));
        text(&output.stdout)
    };
    let listed: serde_json::Value =
        serde_json::from_str(&tell(&["inv", "list", "--json"])).unwrap();
    for invocation in listed["invocations"].as_array().unwrap() {
        let id = invocation["invocation_id"].as_str().unwrap();
        for verb in ["show", "events", "result", "decide"] {
            tell(&["inv", verb, id]);
        }
    }
    for arguments in [
        &["journal", "export"][..],
        &["journal", "stats"],
        &["journal", "verify"],
        &["approval", "list"],
        &["secret", "list"],
        &["agent", "list"],
        &["policy", "show"],
        &["doctor"],
        &["vault", "status"],
    ] {
        tell(arguments);
    }
    let mut metrics = std::process::Command::new("curl");
    clean(&mut metrics);
    metrics.arg("-s").arg("--unix-socket").arg(home.path().join("control.sock"));
    metrics.arg("http://affiant.internal/v1/metrics");
    let metrics = succeed(metrics);
    assert!(metrics.contains("affiant_invocations_total"), "{metrics}");
    told + &metrics
}

/// Ends the server; none of the secrets is in what it told, its log, or any file of the home.
pub(crate) fn nowhere(home: &Home, server: Server, log: &Path, secrets: &[&str]) {
    let told = told(home);
    server.terminate();
    let mut all = Vec::new();
    files(home.path(), &mut all);
    assert!(std::fs::metadata(log).unwrap().len() > 0, "the log is there");
    for secret in secrets {
        assert!(secret.len() >= 8, "{secret:?} occurs by chance");
        assert!(!told.contains(secret), "{secret}: {told}");
    }
    for path in &all {
        let bytes = std::fs::read(path).unwrap();
        for secret in secrets {
            let found = memchr::memmem::find(&bytes, secret.as_bytes());
            assert_eq!(found, None, "{} holds {secret}", path.display());
        }
    }
}

/// The lines of a PEM text that hold the key, each as good as a part of it.
pub(crate) fn key_lines(pem: &str) -> Vec<&str> {
    // The first line of an OpenSSH key says what it is, as that of every other one does.
    let is_key = |line: &&str| {
        !line.starts_with('-') && !line.starts_with("b3BlbnNzaC1rZXktdjEA") && line.len() >= 32
    };
    let lines: Vec<_> = pem.lines().filter(is_key).collect();
    assert!(!lines.is_empty(), "no key");
    lines
}
