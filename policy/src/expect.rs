//! A team's own expectations of its policy, as a file that is checked in beside it.

use crate::call::{Call, Rest};
use crate::document::reader::{Fields, Reader};
use crate::document::{syntax, value};
use crate::{Diagnostic, Explanation, Snapshot};
use serde::Serialize;
use std::fmt;

pub(crate) const ROOT: &[&str] = &["expect"];
pub(crate) const KNOWN: &[&str] = &[
    "agent",
    "call",
    "headers",
    "body",
    "allow",
    "rule",
    "credential",
    "preset",
    "idempotent",
    "key",
    "code",
    "field",
];

/// What a file expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectations(Vec<Expectation>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Expectation {
    line: usize,
    agent: String,
    title: String,
    call: Call,
    rest: Rest,
    allow: bool,
    /// Field of the explanation and the text it is to have.
    others: Vec<(&'static str, String)>,
}

/// How one expectation turned out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Where it stands in the file.
    pub line: usize,
    /// Who calls.
    pub agent: String,
    /// The call as the file has it.
    pub call: String,
    /// What differs; empty: it holds.
    pub differences: Vec<Difference>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key of the expectation.
    pub key: &'static str,
    /// What was expected.
    pub expected: String,
    /// What policy says.
    pub found: String,
}

impl Expectations {
    /// Reads a file of expectations.
    ///
    /// # Errors
    /// Every mistake, with its place.
    pub fn read(text: &str, file: &str) -> Result<Self, Vec<Diagnostic>> {
        let reader = Reader::new(text, file);
        let mut list = Vec::new();
        if let Some(root) = syntax::parse(text, &reader) {
            let span = root.span();
            let root = Fields::new(&reader, root.get_ref(), span, "the file", ROOT);
            for (table, span) in root.tables("expect") {
                let fields = Fields::new(&reader, table, span, "this [[expect]]", KNOWN);
                list.extend(read_one(&fields));
            }
            if list.is_empty() && !reader.failed() {
                let hint = "write [[expect]] tables with agent, call and allow".to_owned();
                reader.error(0, "the file expects nothing", Some(hint));
            }
        }
        reader.finish()?;
        Ok(Self(list))
    }

    /// Compares every expectation with what a policy decides.
    #[must_use]
    pub fn check(&self, snapshot: &Snapshot) -> Vec<Checked> {
        self.0.iter().map(|expectation| expectation.check(snapshot)).collect()
    }
}

fn read_one(fields: &Fields<'_, '_>) -> Option<Expectation> {
    let agent = fields.required("agent", "\"coder\"")?.value;
    if !value::is_name(agent, 64, b"") {
        fields.wrong("agent", "is not the name of an agent", None);
    }
    let line = fields.required("call", "\"POST https://api.example.com/v1/x\"")?.value;
    let call = Call::parse(line).map_err(|error| fields.wrong("call", error, None)).ok();
    let mut headers = Vec::new();
    for (name, values) in fields.lists("headers").unwrap_or_default() {
        headers.extend(values.iter().map(|v| (name.value.to_owned(), v.value.to_owned())));
    }
    if !fields.has("allow") {
        fields.wrong("allow", "is missing", Some("write allow = true or false".to_owned()));
    }
    let mut others = Vec::new();
    for key in ["rule", "credential", "preset", "key", "code", "field"] {
        others.extend(fields.text(key).map(|text| (key, text.value.to_owned())));
    }
    others.extend(fields.truth("idempotent").map(|truth| ("idempotent", truth.to_string())));
    Some(Expectation {
        line: fields.place().line,
        agent: agent.to_owned(),
        title: line.to_owned(),
        call: call?,
        rest: Rest { headers, body: fields.text("body").map(|text| text.value.to_owned()) },
        allow: fields.truth("allow")?,
        others,
    })
}

impl Expectation {
    fn check(&self, snapshot: &Snapshot) -> Checked {
        let told = self.call.explain(snapshot, &self.agent, &self.rest);
        let mut differences = Vec::new();
        let mut compare = |key, expected: &str, found: String| {
            if expected != found {
                differences.push(Difference { key, expected: expected.to_owned(), found });
            }
        };
        let word = |allowed: bool| if allowed { "true" } else { "false" };
        compare("allow", word(self.allow), word(told.allowed).to_owned());
        for (key, expected) in &self.others {
            let found = said(&told, key);
            // Where no rule decides, the default does.
            let no_rule = *key == "rule" && expected == "none" && found == "defaults.egress";
            compare(key, expected, if no_rule { expected.clone() } else { found });
        }
        let (agent, call) = (self.agent.clone(), self.title.clone());
        Checked { line: self.line, agent, call, differences }
    }
}

/// What an explanation says under a key; `none` where it says nothing.
fn said(told: &Explanation, key: &str) -> String {
    let found = match key {
        "rule" => Some(told.rule.clone()),
        "credential" => told.credential.clone(),
        "preset" => told.preset.map(str::to_owned),
        "key" => told.key.clone(),
        "code" => told.code.map(|code| code.as_str().to_owned()),
        "field" => told.field.clone(),
        "idempotent" => told.idempotent.map(|truth| truth.to_string()),
        _ => None,
    };
    found.unwrap_or_else(|| "none".to_owned())
}

impl Checked {
    /// Whether the expectation holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, agent, call, differences } = self;
        write!(f, "{} line {line}: {agent} {call}", if self.holds() { "ok  " } else { "FAIL" })?;
        for Difference { key, expected, found } in differences {
            write!(f, "\n     {key}: expected {expected}, found {found}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
[[expect]]
agent = "coder"
call = "POST https://api.pay.example/v1/charges"
allow = true
rule = "payments.create"
credential = "pay"
idempotent = false
key = "idempotency-key"

[[expect]]
agent = "coder"
call = "DELETE https://api.pay.example/v1/charges"
allow = false
code = "TARGET_NOT_ALLOWED"
field = "method"

[[expect]]
agent = "coder"
call = "ssh deploy@prod-1 /opt/deploy v1"
allow = true
rule = "deploy"

[[expect]]
agent = "coder"
call = "ssh deploy@prod-1 /opt/deploy v1; id"
allow = false
"#;

    fn snapshot() -> Snapshot {
        Snapshot::compile(include_str!("example.toml"), "p", 1).unwrap()
    }

    #[test]
    fn expectations_that_hold() {
        let checked = Expectations::read(EXAMPLE, "e").unwrap().check(&snapshot());
        assert_eq!(checked.len(), 4);
        assert!(checked.iter().all(Checked::holds), "{checked:#?}");
        assert_eq!(
            checked[3].to_string(),
            "ok   line 24: coder ssh deploy@prod-1 /opt/deploy v1; id"
        );
    }

    #[test]
    fn differences_are_told_by_key() {
        let text = EXAMPLE.replace("allow = true", "allow = false").replace("\"pay\"", "\"gold\"");
        let checked = Expectations::read(&text, "e").unwrap().check(&snapshot());
        let told = checked[0].to_string();
        assert!(told.starts_with("FAIL line 2: coder POST"), "{told}");
        assert!(told.contains("allow: expected false, found true"), "{told}");
        assert!(told.contains("credential: expected gold, found pay"), "{told}");
        assert_eq!(checked[0].differences.len(), 2);
        assert!(checked[1].holds());
        let none = "[[expect]]\nagent = \"coder\"\ncall = \"GET https://x.test/\"\nallow = false\ncredential = \"pay\"\n";
        let checked = Expectations::read(none, "e").unwrap().check(&snapshot());
        assert_eq!(checked[0].differences[0].found, "none");
    }

    /// `"none"` is what an explanation does not say: no rule that decides, and no name of a rule.
    #[test]
    fn none_stands_for_no_rule() {
        let expect = |call: &str, allow: bool, rule: &str| {
            let text = format!(
                "[[expect]]\nagent = \"coder\"\ncall = \"{call}\"\nallow = {allow}\nrule = \"{rule}\"\n"
            );
            Expectations::read(&text, "e").unwrap().check(&snapshot()).remove(0).differences
        };
        let unknown = "GET https://unknown.test/";
        assert_eq!(expect(unknown, false, "none"), []);
        assert_eq!(expect(unknown, false, "defaults.egress"), []);
        let decided = expect("POST https://api.pay.example/v1/charges", true, "none");
        assert_eq!((decided[0].key, decided[0].found.as_str()), ("rule", "payments.create"));
        for table in [
            "[[route]]\nname = \"none\"\nmatch = { host = \"a.test\" }\n",
            "[[credential]]\nid = \"none\"\nsecret = \"c\"\ninject = \"bearer\"\n",
            "[[parent]]\nname = \"none\"\nurl = \"http://p.test:1\"\n",
            "[[ssh]]\nname = \"none\"\n",
        ] {
            let found = Snapshot::compile(table, "p", 1).unwrap_err();
            let told: Vec<_> = found.iter().map(ToString::to_string).collect();
            let reserved = "\"none\" says that there is none (take another)";
            assert!(told.iter().any(|line| line.ends_with(reserved)), "{told:#?}");
        }
    }

    #[test]
    fn mistakes_have_their_place() {
        let check = |text: &str, line: usize, part: &str| {
            let found = Expectations::read(text, "e").unwrap_err();
            let told = found.iter().find(|d| d.to_string().contains(part));
            assert_eq!(told.map(|d| d.line), Some(line), "{part}: {found:#?}");
        };
        check("", 1, "expects nothing");
        check("[[expect]]\nagent = \"a\"\ncall = \"GET x\"\nallow = true\n", 3, "whole URL");
        check("[[expect]]\nagent = \"a\"\ncall = \"GET https://x.test/\"\n", 1, "`allow` of");
        check("[[expect]]\nagnet = \"a\"\n", 2, "did you mean `agent`?");
        check(
            "[[expect]]\nagent = \"a\"\ncall = \"G{ET https://x.test/\"\n",
            3,
            "the method is one",
        );
        check(
            "[[expect]]\nagent = \"a\"\ncall = \"G ET https://x.test/\"\n",
            3,
            "a call is METHOD URL",
        );
        check("[[expct]]\n", 1, "unknown key `expct`");
        check("[[expect]\n", 1, "");
    }
}
