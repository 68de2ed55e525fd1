//! Tables of cases in `docs/`: which test holds which line.
//!
//! A line is `| id | what | held by |`. The last column names tests as `crate::file::function`, and cases
//! of the truth matrix as `matrix::pairing::case`, in backticks, or begins with [`CANNOT_APPLY`] and gives the reason.

use std::io;
use std::path::{Path, PathBuf};

/// What the last column of a line without a test begins with.
pub const CANNOT_APPLY: &str = "Can't apply: ";

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Its id.
    pub id: String,
    /// The tests that it names.
    pub tests: Vec<String>,
    /// Those of them that are not there.
    pub missing: Vec<String>,
    /// Why it has no test.
    pub reason: Option<String>,
}

/// Every line of the tables in a file of `docs/`, of the tree at `root`.
///
/// # Errors
/// [`io::Error`] when the tree can't be read.
pub fn read(root: &Path, file: &str) -> io::Result<Vec<Case>> {
    let text = std::fs::read_to_string(root.join("docs").join(file))?;
    let mut cases = Vec::new();
    for (id, held) in text.lines().filter_map(line) {
        let reason = held.strip_prefix(CANNOT_APPLY).map(str::to_owned);
        let named = held.split('`').skip(1).step_by(2).filter(|name| name.contains("::"));
        let tests: Vec<String> = match reason {
            Some(_) => Vec::new(),
            None => named.map(str::to_owned).collect(),
        };
        let mut missing = Vec::new();
        for test in &tests {
            if !exists(root, test)? {
                missing.push(test.clone());
            }
        }
        cases.push(Case { id: id.to_owned(), tests, missing, reason });
    }
    Ok(cases)
}

/// Id and last column of a line, if its first column is an id: letters and a number.
fn line(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("| ")?.strip_suffix(" |")?;
    let (id, rest) = line.split_once(" | ")?;
    let number = id.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let is_id = number.len() < id.len() && number.parse::<u32>().is_ok();
    is_id.then_some((id, rest.rsplit_once(" | ")?.1))
}

/// Whether there is a test function of that name in a file of that name in that crate.
fn exists(root: &Path, test: &str) -> io::Result<bool> {
    let mut parts = test.split("::");
    let (Some(member), Some(file), Some(function), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Ok(false);
    };
    if member == "matrix" {
        return Ok(is_played(file, function));
    }
    let mut found = Vec::new();
    for folder in ["src", "tests"] {
        files(&root.join(member).join(folder), &format!("{file}.rs"), &mut found)?;
    }
    let head = format!("fn {function}(");
    for path in found {
        let text = std::fs::read_to_string(path)?;
        let before = text.split_once(&head).map(|(before, _)| before);
        // The attribute stands between the function before and this one.
        let own = before.map(|before| before.rsplit_once("\n}").map_or(before, |(_, own)| own));
        if own.is_some_and(|own| own.contains("#[test]") || own.contains("#[tokio::test")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the truth matrix has that case in that pairing.
fn is_played(pairing: &str, case: &str) -> bool {
    if pairing == "ssh" {
        return crate::ssh::cases().iter().any(|own| own.name == case);
    }
    crate::matrix::rows()
        .iter()
        .any(|row| row.case.name == case && row.shape.pairing.as_str() == pairing)
}

fn files(directory: &Path, name: &str, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if !directory.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, name, found)?;
        } else if path.file_name().is_some_and(|own| own == name) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_tests_are_found() {
        assert_eq!(line("| a1 | what | `x::y::z` |"), Some(("a1", "`x::y::z`")));
        assert_eq!(line("| id | what | held by |"), None);
        assert_eq!(line("|---|---|---|"), None);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let exists = |test: &str| exists(&root, test).expect("read");
        assert!(exists("conformance::cases::lines_and_tests_are_found"));
        assert!(!exists("conformance::cases::exists"), "it is no test");
        assert!(exists("matrix::h2::refused_stream") && exists("matrix::ssh::two_exit_statuses"));
        assert!(!exists("matrix::h2::chunked") && !exists("matrix::ws::exit_0"));
        assert!(!exists("conformance::cases::no_such_test"));
    }
}
