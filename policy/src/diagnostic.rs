//! One finding in a policy text, with its place.

use serde::Serialize;
use std::fmt;

/// What kind of finding it is. The words are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// The text is no TOML.
    #[serde(rename = "POLICY_SYNTAX")]
    Syntax,
    /// A key that is not known where it stands.
    #[serde(rename = "POLICY_UNKNOWN_KEY")]
    UnknownKey,
    /// A key that has to be there is not.
    #[serde(rename = "POLICY_MISSING_KEY")]
    MissingKey,
    /// A value that can't be.
    #[serde(rename = "POLICY_INVALID")]
    Invalid,
    /// A name that means something else.
    #[serde(rename = "POLICY_RESERVED_NAME")]
    Reserved,
    /// A text with the form of a secret; it is not repeated.
    #[serde(rename = "POLICY_PASTED_SECRET")]
    PastedSecret,
    /// Two rules that can decide the same action, neither of them narrower.
    #[serde(rename = "POLICY_TIE")]
    Tie,
    /// A warning: the policy can be applied.
    #[serde(rename = "POLICY_DOUBTFUL")]
    Doubtful,
}

/// One finding in a policy text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Diagnostic {
    /// The file as the caller named it.
    pub file: String,
    /// 1 for the first line.
    pub line: usize,
    /// 1 for the first character.
    pub column: usize,
    /// What kind of finding it is.
    #[serde(rename = "code")]
    pub kind: Kind,
    /// The key, if the finding is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    /// V-2: a program finds out by a stable word and a key what is to be corrected.
    #[test]
    fn v_2_findings_have_a_code_and_a_field() {
        let route = "[[route]]\nname = \"r\"\nmatch = { host = \"a.test\" }\n";
        for (text, code, field) in [
            ("a =".to_owned(), "POLICY_SYNTAX", None),
            (format!("{route}agnts = [\"a\"]\n"), "POLICY_UNKNOWN_KEY", Some("agnts")),
            ("[[route]]\nname = \"r\"\n".to_owned(), "POLICY_MISSING_KEY", Some("match")),
            (format!("{route}approval = \"maybe\"\n"), "POLICY_INVALID", Some("approval")),
            (format!("{route}agents = \"a\"\n"), "POLICY_INVALID", Some("agents")),
            (route.to_owned() + &route.replace("\"r\"", "\"s\""), "POLICY_TIE", None),
        ] {
            let found = Policy::check(&text, "p.toml").unwrap_err();
            let said = serde_json::to_value(&found[0]).unwrap();
            assert_eq!(said["code"], code, "{text}");
            assert_eq!(said.get("field").and_then(|field| field.as_str()), field, "{text}");
            assert!(
                said["line"].is_u64() && said["column"].is_u64() && said["message"].is_string()
            );
        }
        // What has the form of a secret is refused, and not repeated; names of words are names.
        let pasted = "[[credential]]\nid = \"c\"\nsecret = \"sk-live-AKIAverysecretvalue123456\"\n\
                      inject = \"bearer\"\n";
        let found = Policy::check(pasted, "p.toml").unwrap_err();
        assert_eq!(found[0].kind, super::Kind::PastedSecret);
        assert!(!found[0].to_string().contains("AKIA"));
        for text in [
            pasted.replace("sk-live-AKIAverysecretvalue123456", "sk-openai-production-1"),
            route.replace("a.test", "sk-registry.example.internal"),
            "[[ssh]]\nname = \"s\"\nmatch = { host = \"h\", commands = [\"vault token capabilities *\"] }\n"
                .to_owned(),
        ] {
            assert!(Policy::check(&text, "p.toml").is_ok(), "{text}");
        }
        // A text that is in force stays so.
        let stored = crate::Snapshot::compile_in_force(pasted, 3).unwrap();
        assert!(stored.warnings().iter().any(|told| told.kind == super::Kind::PastedSecret));
        let unused = "[[credential]]\nid = \"c\"\nsecret = \"c\"\ninject = \"bearer\"\n";
        let snapshot = Policy::check(unused, "p.toml").unwrap();
        let said = serde_json::to_value(snapshot.warnings()).unwrap();
        assert_eq!(said[0]["code"], "POLICY_DOUBTFUL");
    }
}
