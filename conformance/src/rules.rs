//! Which test holds which rule of the contract.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// One rule of `docs/contract.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its id.
    pub id: String,
    /// The tests that name it, as `file::function`.
    pub tests: Vec<String>,
    /// The reason in `docs/rules-without-test.md`.
    pub reason: Option<String>,
}

impl Rule {
    /// Whether a test names it or a reason is written.
    #[must_use]
    pub const fn is_covered(&self) -> bool {
        !self.tests.is_empty() || self.reason.is_some()
    }
}

/// Every rule with its tests, of the tree at `root`.
///
/// # Errors
/// [`io::Error`] when the tree can't be read.
pub fn coverage(root: &Path) -> io::Result<Vec<Rule>> {
    let contract = std::fs::read_to_string(root.join("docs/contract.md"))?;
    let reasons = std::fs::read_to_string(root.join("docs/rules-without-test.md"))?;
    let mut files = Vec::new();
    sources(root, &mut files)?;
    let mut texts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        if let Some(tests) = test_part(&file, &text) {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            texts.push((name, tests.to_owned()));
        }
    }
    Ok(ids(&contract).map(|id| rule(id, &texts, &reasons)).collect())
}

/// A table of rules for people.
#[must_use]
pub fn table(rules: &[Rule]) -> String {
    let mut out = String::new();
    for rule in rules {
        let what = match (rule.tests.as_slice(), &rule.reason) {
            ([first], _) => first.clone(),
            ([first, rest @ ..], _) => format!("{first} and {} more", rest.len()),
            ([], Some(reason)) => format!("no test: {reason}"),
            ([], None) => "NO TEST AND NO REASON".to_owned(),
        };
        out.push_str(&format!("{:<5} {:>3}  {what}\n", rule.id, rule.tests.len()));
    }
    out
}

fn ids(contract: &str) -> impl Iterator<Item = &str> {
    contract
        .split("- **")
        .skip(1)
        .filter_map(|rest| rest.split("**").next())
        .filter(|id| id.len() >= 3 && id.as_bytes().get(1) == Some(&b'-'))
}

fn rule(id: &str, texts: &[(String, String)], reasons: &str) -> Rule {
    let snake = format!("{}_", id.to_lowercase().replace('-', "_"));
    let mut tests = BTreeSet::new();
    for (file, text) in texts {
        let by_name = text.match_indices(&snake).filter(|(at, _)| {
            let before = text.get(..*at).and_then(|before| before.chars().next_back());
            before.is_none_or(|c| !c.is_ascii_alphanumeric())
        });
        let by_word = text.match_indices(id).filter(|(at, _)| {
            let rest = text.get(at + id.len()..).unwrap_or_default();
            !rest.starts_with(|next: char| next.is_ascii_digit())
        });
        for at in by_name.chain(by_word).map(|(at, _)| at) {
            tests.insert(format!("{file}::{}", function(text, at)));
        }
    }
    let marker = format!("**{id}**");
    let reason = reasons
        .lines()
        .find_map(|line| line.split_once(&marker))
        .map(|(_, reason)| reason.trim().to_owned());
    Rule { id: id.to_owned(), tests: tests.into_iter().collect(), reason }
}

/// The function that a mention belongs to: the one whose name or doc comment holds it, else the one
/// around it.
fn function(text: &str, at: usize) -> &str {
    let line_start = text.get(..at).and_then(|t| t.rfind('\n')).map_or(0, |end| end + 1);
    let line = text.get(line_start..).unwrap_or_default();
    let documents = line.trim_start().starts_with("///");
    let own_line = line.split('\n').next().unwrap_or_default();
    let after = |text: &str| text.find("fn ").map(|found| found + 3);
    let from = if documents || own_line.contains("fn ") {
        after(line).map(|found| line_start + found)
    } else {
        text.get(..at).and_then(|t| t.rfind("fn ")).map(|found| found + 3)
    };
    let Some(rest) = from.and_then(|from| text.get(from..)) else { return "(file)" };
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}

/// The part of a file that is tests: all of it, what follows `#[cfg(test)]`, or the tables of this
/// crate, which tests play.
fn test_part<'a>(file: &Path, text: &'a str) -> Option<&'a str> {
    let in_tests = file.components().any(|part| part.as_os_str() == "tests");
    let is_tests = file.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
    let is_case = file.components().any(|part| part.as_os_str() == "case");
    if in_tests || is_tests || is_case {
        return Some(text);
    }
    text.split_once("#[cfg(test)]").map(|(_, tests)| tests)
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, found)?;
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mentions_are_found_by_name_comment_and_place() {
        let text = "/// Z-9: x\n#[test]\nfn a() {}\nfn z_9_b() {\n    x(\"Z-90\");\n}\nfn c() {\n    \
                    y(\"Z-9: y\");\n}\n";
        let found = rule("Z-9", &[("f.rs".to_owned(), text.to_owned())], "- **Z-9** because.");
        assert_eq!(found.tests, ["f.rs::a", "f.rs::c", "f.rs::z_9_b"]);
        assert_eq!(found.reason.as_deref(), Some("because."));
    }
}
