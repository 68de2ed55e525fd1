//! The runner as a program: exit codes, JSON, JUnit, the table of rules.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use conformance::http::{Origin, Script};
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_affiant-conformance")).args(arguments).output().unwrap()
}

/// S-2: a proxy that answers everything by itself, in the origin's name, is convicted.
#[test]
fn s_2_a_lying_proxy_is_convicted() {
    let fields = [("Conformance-Origin", "1")];
    let liar = Origin::start(vec![Script::answer("*", 200, &fields, "fine")], None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (json, junit) = (at("report.json"), at("report.xml"));
    let proxy = format!("http://{}", liar.address());
    let arguments = ["--proxy", &proxy, "--rows", "POST/plain/applied_closed", "--json", &json];
    let output = run(&[&arguments[..], &["--junit", &junit]].concat());
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("passed on as whole"), "{printed}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&report[0]["rows"], &report[0]["lies"]), (&2.into(), &2.into()), "{report}");
    let junit = std::fs::read_to_string(junit).unwrap();
    assert_eq!(junit.matches("<failure type=\"lie\">").count(), 2, "{junit}");
}

/// S-8: `ssh -J` through OpenSSH is judged by what its exit status claims.
#[test]
fn s_8_a_gateway_that_forwards_is_judged_by_its_results() {
    let play = |rows: &str| {
        let output = run(&["--baseline", "openssh", "--rows", rows]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, printed) = play("ssh/exec/plain/exit_");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("| ssh -J through OpenSSH | 9 | 0 | 0 | - | - |"), "{printed}");
    let (code, printed) = play("ssh/exec/plain/output_cut_after_exit_status");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("S-8: told as a whole result: status Some(0)"), "{printed}");
    let (code, printed) = play("ssh/exec/plain/refused");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("| 1 | 0 | 1 |"), "{printed}");
}

#[test]
fn what_cannot_be_played_is_exit_code_2() {
    for arguments in [
        &["--proxy"][..],
        &["--nonsense", "x"],
        &["--proxy", "https://127.0.0.1:1"],
        &["--proxy", "http://127.0.0.1:1"],
        &["--baseline", "nothing"],
        &["--affiant", "/nonexistent"],
        &["--json", "x"],
        &["--proxy", "http://127.0.0.1:1", "--ssh", "coder@127.0.0.1:1"],
        &["--ssh", "nobody@127.0.0.1:1"],
        &["--ssh", "nobody@127.0.0.1:1", "--kills", "1"],
        &["soak"],
        &["soak", "--affiant", "x", "--minutes", "-1"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stderr.starts_with(b"affiant-conformance: "), "{arguments:?}");
    }
}

#[test]
fn rules_are_printed_and_covered() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = run(&["rules", &root.display().to_string()]);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("0 with neither"), "{printed}");
    assert_eq!(run(&["rules", "/nonexistent"]).status.code(), Some(2));
}
