//! Why an action is allowed or denied, for people and for programs.

use journal::contract::Code;
use serde::Serialize;
use std::fmt;

/// Why an action is allowed or denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The action in one line, without secrets.
    pub action: String,
    /// The version of the policy.
    pub policy_version: u64,
    /// The deciding rule: a route's name, or `defaults.egress`; of SSH without a route `none`.
    pub rule: String,
    /// The line of the deciding rule in the policy text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The code of the denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Under `egress = "observe"`: the code that it would be denied with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_deny: Option<Code>,
    /// The field that the caller can correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What decides, in one sentence.
    pub reason: String,
    /// The credential's id, and how it would be injected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injects: Option<String>,
    /// The credential's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The preset of the deciding route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<&'static str>,
    /// Whether the call may be repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// The header whose key makes a repeat safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The terms that apply: idempotency, what is kept, limits.
    pub terms: Vec<String>,
    /// Other routes for the same host and why they did not decide.
    pub considered: Vec<Considered>,
}

/// A route that did not decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Considered {
    /// Its name.
    pub route: String,
    /// Its line in the policy text.
    pub line: usize,
    /// Why it did not decide.
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", if self.allowed { "allowed:" } else { "denied:" }, self.action)?;
        write!(f, "  rule:     {}", self.rule)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ", policy version {}", self.policy_version)?;
        write!(f, "\n  reason:   {}", self.reason)?;
        if let Some(code) = self.code {
            write!(f, "\n  code:     {code}")?;
        }
        if let Some(field) = &self.field {
            write!(f, "\n  field:    {field}")?;
        }
        if self.allowed {
            write!(f, "\n  injects:  {}", self.injects.as_deref().unwrap_or("nothing"))?;
        }
        for term in &self.terms {
            write!(f, "\n  term:     {term}")?;
        }
        for other in &self.considered {
            write!(f, "\n  not {}: {} (line {})", other.route, other.reason, other.line)?;
        }
        Ok(())
    }
}
