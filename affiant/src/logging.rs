//! The log on standard error, or in a file: what its filter can ask for, and what it can't.

use crate::run_log::RunLog;
use anyhow::Context as _;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, filter_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Libraries whose lower levels describe what passes, secrets included, and the lowest level of theirs
/// that is logged, whatever the filter says.
const CAPPED: &[(&str, Level)] =
    &[("russh", Level::ERROR), ("ureq", Level::WARN), ("ureq_proto", Level::WARN)];

/// Begins to log, by the filter of `--log`; to a file, if there is one for this process, which becomes its
/// standard error.
pub(crate) fn init(filter: Option<&str>, file: Option<RunLog>) -> anyhow::Result<()> {
    let filter = filter.unwrap_or("warn,affiant=info,pingora_core=error");
    let filter = EnvFilter::builder()
        .parse(filter)
        .with_context(|| format!("--log {filter:?} is no filter, try `info` or `proxy=debug`"))?;
    let writer = match file {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(mut log) => {
            log.become_stderr().context("log to the file")?;
            BoxMakeWriter::new(Mutex::new(log))
        }
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(filter.and(filter_fn(is_safe)));
    tracing_subscriber::registry().with(lines).init();
    Ok(())
}

fn is_safe(metadata: &Metadata<'_>) -> bool {
    allows(metadata.target(), *metadata.level())
}

fn allows(target: &str, level: Level) -> bool {
    let library = target.split("::").next().unwrap_or(target);
    let capped = CAPPED.iter().find(|(name, _)| *name == library);
    capped.is_none_or(|(_, lowest)| level <= *lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-2: no filter makes a library describe what passes.
    #[test]
    fn i_2_the_cap_holds_for_every_module_of_a_library() {
        for (target, level, allowed) in [
            ("ureq", Level::WARN, true),
            ("ureq::unversioned::transport", Level::INFO, false),
            ("ureq_proto::client", Level::TRACE, false),
            ("russh::client", Level::WARN, false),
            ("russh", Level::ERROR, true),
            ("proxy::engine", Level::TRACE, true),
            ("ureq_like", Level::TRACE, true),
        ] {
            assert_eq!(allows(target, level), allowed, "{target} {level}");
        }
    }
}
