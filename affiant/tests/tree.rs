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
    for (file, at_least) in [("http-cases.md", 85), ("fault-cases.md", 96)] {
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

/// The list that docs/fault-cases.md answers, line by line. A number is a report's own.
#[test]
fn every_fault_case_of_the_list_stands_in_the_table() {
    let list = "A1 A2 A4 A5 A7 A8 A10 A11 A13 A14 A16 A17 A19 A20 A22 A23 A25 \
        B26 B28 B29 B31 B32 B34 B35 B37 B38 B40 B41 B43 B44 B46 B47 C49 C50 C52 C53 C55 C56 \
        D58 D59 D61 D62 E64 E65 E67 E68 E70 E71 E73 E74 \
        F76 F77 F79 F80 F82 F83 F85 F86 F88 F89 F91 F92 F94 F95 F97 G98 G100 G101 G103 \
        H104 H106 H107 H109 H110 H112 H113 I115 I116 I118 I119 I121 I122 I124 J125 J127 J128 \
        K130 K131 K133 K134 K136 K137 K139 K140 L142 L143";
    let cases = conformance::cases::read(&root(), "fault-cases.md").unwrap();
    let found: Vec<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(found, list.split_whitespace().collect::<Vec<_>>());
}
