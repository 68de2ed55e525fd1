//! The tree keeps its shape: dependencies point down, and every contract rule has a test or a
//! written reason.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The names under `[dependencies]` of a member's manifest.
fn dependencies(member: &str) -> Vec<String> {
    let manifest = std::fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn dependencies_point_down() {
    let ours = ["affiant", "journal", "policy", "proxy", "ssh-gateway", "conformance"];
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("journal", &[][..]),
        ("policy", &["journal"][..]),
        ("proxy", &["journal", "policy"][..]),
        ("ssh-gateway", &["journal", "policy"][..]),
        ("conformance", &["journal"][..]),
        ("affiant", &["journal", "policy", "proxy", "ssh-gateway"][..]),
    ]);
    for (member, allowed) in allowed {
        for name in dependencies(member) {
            assert!(
                !ours.contains(&name.as_str()) || allowed.contains(&name.as_str()),
                "{member} must not depend on {name}"
            );
        }
    }
}

#[test]
fn outside_engines_have_one_home() {
    for (engine, homes) in [
        ("pingora-core", &["proxy"][..]),
        ("russh", &["ssh-gateway"]),
        ("clap", &["affiant"]),
        ("anyhow", &["affiant"]),
        ("heed", &["journal", "policy"]),
    ] {
        for member in ["affiant", "conformance", "journal", "policy", "proxy", "ssh-gateway"] {
            let depends = dependencies(member).iter().any(|name| name == engine);
            assert!(!depends || homes.contains(&member), "{member} must not depend on {engine}");
        }
    }
}

/// Every rule of `docs/contract.md` is named by a test, or stands in `docs/rules-without-test.md`
/// with a reason. `affiant-conformance rules` prints the same table.
#[test]
fn every_contract_rule_has_a_test_or_a_reason() {
    let rules = conformance::rules::coverage(&root()).unwrap();
    assert!(rules.len() > 70, "only {} rules were read", rules.len());
    let missing: Vec<&str> =
        rules.iter().filter(|rule| !rule.is_covered()).map(|rule| rule.id.as_str()).collect();
    assert!(missing.is_empty(), "no test names {missing:?}, and no reason is written");
}

/// Every line of a table of cases names tests that exist, or the reason why it can't apply.
#[test]
fn every_reported_case_has_a_test_or_a_reason() {
    for (file, at_least) in [("http-cases.md", 85)] {
        let cases = conformance::cases::read(&root(), file).unwrap();
        assert!(cases.len() >= at_least, "{file}: only {} lines were read", cases.len());
        let ids: std::collections::BTreeSet<&str> = cases.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(ids.len(), cases.len(), "{file}: an id stands twice");
        for case in &cases {
            assert!(case.missing.is_empty(), "{file}: {} names {:?}", case.id, case.missing);
            assert!(!case.tests.is_empty() || case.reason.is_some(), "{file}: {}", case.id);
        }
    }
}
