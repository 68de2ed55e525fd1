//! The log on standard error, or in a file: what its filter can ask for, and what it can't.

use crate::run_log::RunLog;
use anyhow::Context as _;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Filter, Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Libraries whose lower levels describe what passes, secrets included, or have a line for each frame that
/// a peer cares to send, and the lowest level of theirs that is logged, whatever the filter says.
const CAPPED: &[(&str, Level)] = &[
    ("h2", Level::ERROR),
    ("hickory_net", Level::ERROR),
    ("pingora_core", Level::DEBUG),
    ("russh", Level::ERROR),
    ("ureq", Level::WARN),
    ("ureq_proto", Level::WARN),
];

/// The lowest level at which libraries that log by `log` prepare a line. What they say of each piece that
/// passes is copied for that, whether or not it is logged then.
const PREPARED: log::LevelFilter = log::LevelFilter::Debug;

/// The filter of `--log` where nothing is said: of libraries their errors, because what they warn of is what
/// peers do.
const DEFAULT: &str = "error,affiant=info,journal=warn,policy=warn,proxy=warn,ssh_gateway=warn";

/// Begins to log, by the filter of `--log`; to a file, if there is one for this process, which becomes its
/// standard error.
pub(crate) fn init(filter: Option<&str>, file: Option<RunLog>) -> anyhow::Result<()> {
    let filter = bounded(filter.unwrap_or(DEFAULT))?;
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
        .with_filter(filter);
    tracing_subscriber::registry().with(lines).init();
    log::set_max_level(log::max_level().min(PREPARED));
    Ok(())
}

/// What the filter lets pass and the caps do. It says which levels it lets pass at all: libraries prepare
/// every line of a level that nobody rules out.
fn bounded<S>(filter: &str) -> anyhow::Result<impl Filter<S> + use<S>> {
    let filter = EnvFilter::builder()
        .parse(filter)
        .with_context(|| format!("--log {filter:?} is no filter, try `info` or `proxy=debug`"))?;
    let caps = filter_fn(is_safe).with_max_level_hint(LevelFilter::TRACE);
    Ok(FilterExt::<S>::and(filter, caps))
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
            ("h2::proto::ping_pong", Level::WARN, false),
            ("hickory_net::udp", Level::WARN, false),
            ("ureq", Level::WARN, true),
            ("ureq::unversioned::transport", Level::INFO, false),
            ("ureq_proto::client", Level::TRACE, false),
            ("russh::client", Level::WARN, false),
            ("russh", Level::ERROR, true),
            ("pingora_core::protocols::http", Level::TRACE, false),
            ("proxy::engine", Level::TRACE, true),
            ("ureq_like", Level::TRACE, true),
        ] {
            assert_eq!(allows(target, level), allowed, "{target} {level}");
        }
    }

    /// No line is prepared that the filter does not want: what a stranger sends is not copied for a log
    /// that nobody keeps.
    #[test]
    fn levels_that_the_filter_rules_out_are_said() {
        for (filter, hint) in [
            (DEFAULT, LevelFilter::INFO),
            ("error", LevelFilter::ERROR),
            ("warn,proxy=debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ] {
            let bounded = bounded::<tracing_subscriber::Registry>(filter).expect("a filter");
            assert_eq!(bounded.max_level_hint(), Some(hint), "{filter}");
        }
        init(Some("off,h2=trace"), None).expect("a filter");
        assert_eq!(log::max_level(), PREPARED);
    }
}
