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

/// Source files of the project, tests included.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Every rule of `docs/contract.md` is named by a test, or stands in `docs/rules-without-test.md`
/// with a reason.
#[test]
fn every_contract_rule_has_a_test_or_a_reason() {
    let contract = std::fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let rules: Vec<&str> = contract
        .split("- **")
        .skip(1)
        .filter_map(|rest| rest.split("**").next())
        .filter(|id| id.len() >= 3 && id.as_bytes()[1] == b'-')
        .collect();
    assert!(rules.len() > 70, "only {} rules were read", rules.len());
    let reasons = std::fs::read_to_string(root().join("docs/rules-without-test.md")).unwrap();
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let mut tests = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let in_tests = file.components().any(|part| part.as_os_str() == "tests");
        let is_tests =
            file.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
        if in_tests || is_tests {
            tests.push_str(&text);
        } else if let Some((_, part)) = text.split_once("#[cfg(test)]") {
            tests.push_str(part);
        }
    }
    let named = |id: &str| {
        let snake = format!("{}_", id.to_lowercase().replace('-', "_"));
        tests.contains(&snake)
            || tests.match_indices(id).any(|(at, _)| {
                !tests[at + id.len()..].starts_with(|next: char| next.is_ascii_digit())
            })
    };
    let missing: Vec<&str> = rules
        .iter()
        .copied()
        .filter(|id| !named(id) && !reasons.contains(&format!("**{id}**")))
        .collect();
    assert!(missing.is_empty(), "no test names {missing:?}, and no reason is written");
}
