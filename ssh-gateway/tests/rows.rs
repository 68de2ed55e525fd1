//! The table of cases in docs/ssh.md: every row is there, and what it names exists.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code: a broken expectation ends the test"
)]

use std::collections::BTreeSet;
use std::path::Path;

/// The numbers of the list of reports.
const ROWS: [u32; 64] = [
    1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26, 27, 29, 30, 31,
    33, 34, 35, 37, 38, 39, 41, 42, 43, 45, 46, 47, 49, 50, 51, 53, 54, 55, 57, 58, 59, 61, 62, 63,
    65, 66, 67, 69, 70, 71, 73, 74, 75, 77, 78, 79, 81, 82, 83,
];

/// The text of every test file, of the gateway and of the binary.
fn tests(root: &Path) -> String {
    let mut text = String::new();
    let folders = ["tests", "../affiant/tests"].map(|folder| root.join(folder));
    for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
}

#[test]
fn every_case_from_the_field_has_a_test_or_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(root.join("../docs/ssh.md")).unwrap();
    let tests = tests(root);
    let (_, table) = docs.split_once("## Cases from the field").unwrap();
    let mut rows = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [numbers, what, by] = cells.as_slice() else { panic!("{line}") };
        assert!(!what.is_empty(), "{line}");
        for number in numbers.split(',') {
            assert!(rows.insert(number.trim().parse::<u32>().unwrap()), "twice: {line}");
        }
        let names: Vec<&str> = by.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || by.starts_with("no test"), "{line}");
        for name in names {
            let is_test = tests.contains(&format!("fn {name}("));
            let is_case = tests.contains(&format!("\"{name}\""));
            assert!(is_test || is_case, "there is no test or case {name}: {line}");
        }
    }
    assert_eq!(rows, BTreeSet::from(ROWS));
}
