//! The table of presets. Conservative: what no public document promises is not promised here.

mod clouds;
mod code;
mod messages;
mod models;
mod work;

use super::{Job, Line, Preset, Repeat, Source};

/// The day of the review.
const DATE: &str = "2026-11-30";

const fn source(url: &'static str) -> Source {
    Source { url, date: DATE, read: false }
}

/// A document whose words were read, in a stored copy, on the day of the review.
const fn read(url: &'static str) -> Source {
    Source { url, date: DATE, read: true }
}

const fn line(
    methods: &'static [&'static str],
    paths: &'static [&'static str],
    repeat: Repeat,
    why: &'static str,
    source: Source,
) -> Line {
    Line {
        methods,
        paths,
        hosts: &[],
        targets: &[],
        betas: &[],
        action: false,
        repeat,
        why,
        source,
        job: None,
    }
}

/// A line whose calls start a job.
const fn starts(job: Job, mut line: Line) -> Line {
    line.job = Some(job);
    line
}

/// A line of some hosts.
const fn at(hosts: &'static [&'static str], mut line: Line) -> Line {
    line.hosts = hosts;
    line
}

/// A line of operations that `X-Amz-Target` names.
const fn named(
    hosts: &'static [&'static str],
    targets: &'static [&'static str],
    line: Line,
) -> Line {
    let mut line = at(hosts, line);
    line.targets = targets;
    line
}

/// A line of what uses a feature that is not general yet.
const fn of_beta(betas: &'static [&'static str], mut line: Line) -> Line {
    line.betas = betas;
    line
}

/// A line of what names an `Action` in the query.
const fn with_action(mut line: Line) -> Line {
    line.action = true;
    line
}

const POST: &[&str] = &["POST"];
const ALL: &[&str] = &["/**"];
const NOT: Repeat = Repeat::NotPromised;
const YES: Repeat = Repeat::Harmless;

/// All presets, by name.
pub const PRESETS: &[Preset] = &[
    models::ANTHROPIC,
    clouds::AWS,
    clouds::CLOUDFLARE,
    models::GEMINI,
    code::GITHUB,
    code::GITLAB,
    clouds::GOOGLE_CLOUD,
    work::JIRA,
    work::LINEAR,
    work::NOTION,
    code::NPM,
    models::OPENAI,
    code::PYPI,
    messages::SENDGRID,
    work::SLACK,
    messages::STRIPE,
    messages::TWILIO,
];
