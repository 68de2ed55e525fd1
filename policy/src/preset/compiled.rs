//! The lines of a preset with their patterns parsed, and what a route makes of them.

use super::{Line, Preset, Repeat};
use crate::{HttpGrant, IdempotencyRule, path};
use std::sync::Arc;

/// A preset as one route applies it.
#[derive(Debug, Clone)]
pub(crate) struct Contract {
    /// The preset.
    pub preset: &'static Preset,
    lines: Arc<[(Vec<path::Pattern>, &'static Line)]>,
    /// Whether the route has a word of its own on repeating; then the lines are not asked.
    overridden: bool,
    scope: String,
}

impl Contract {
    /// Applies a preset to a route. The account behind the credential bounds what a key means.
    pub(crate) fn new(preset: &'static Preset, overridden: bool, credential: Option<&str>) -> Self {
        let parsed = |line: &'static Line| {
            let patterns = line.paths.iter().filter_map(|p| path::Pattern::parse(p).ok());
            (patterns.collect(), line)
        };
        let scope = match credential {
            Some(credential) => format!("{}/{credential}", preset.name),
            None => preset.name.to_owned(),
        };
        let lines = preset.lines.iter().map(parsed).collect();
        Self { preset, lines, overridden, scope }
    }

    /// The line that covers a call, unless the route has a word of its own.
    pub(crate) fn line(&self, method: &str, path: &str) -> Option<&'static Line> {
        if self.overridden {
            return None;
        }
        let covers = |(patterns, line): &&(Vec<path::Pattern>, &'static Line)| {
            (line.methods.is_empty() || line.methods.contains(&method))
                && patterns.iter().any(|pattern| pattern.matches(path))
        };
        self.lines.iter().find(covers).map(|(_, line)| *line)
    }

    /// Puts the contract of a call into the grant.
    pub(crate) fn apply(&self, grant: &mut HttpGrant, method: &str, path: &str) {
        grant.preset = Some(self.preset.name);
        let Some(line) = self.line(method, path) else { return };
        match line.repeat {
            Repeat::Harmless => grant.idempotent = Some(true),
            Repeat::NotPromised => grant.idempotent = Some(false),
            Repeat::WithKey(key) => {
                grant.idempotent = Some(false);
                grant.idempotency = Some(IdempotencyRule {
                    header: key.header.to_owned(),
                    scope: self.scope.clone(),
                    retention: key.retention(),
                    contract: key.contract,
                    generate: false,
                });
            }
        }
    }
}
