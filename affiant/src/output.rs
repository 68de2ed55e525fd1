//! What commands give out: tables for people, JSON for machines, files where one is named.

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Writes to stdout. A reader that went away (`| head`) is no fault of ours.
pub(crate) fn print(text: &str) {
    ignore_broken_pipe(std::io::stdout().lock().write_all(text.as_bytes()));
}

/// Writes a line to stdout, and flushes: programs wait for such lines.
pub(crate) fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    ignore_broken_pipe(writeln!(stdout, "{text}").and_then(|()| stdout.flush()));
}

/// Writes a line to stderr.
pub(crate) fn note(text: &str) {
    ignore_broken_pipe(writeln!(std::io::stderr().lock(), "{text}"));
}

fn ignore_broken_pipe(result: std::io::Result<()>) {
    if result.is_err() {
        // Nobody is left to be told.
        std::process::exit(1);
    }
}

/// The thing asked for is not there: an answer, not a failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Negative(pub(crate) String);

/// One line that says what failed and why. Exit code 1 for a negative answer, else 2.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    note(&format!("affiant: {error:#}"));
    let negative = error.is::<Negative>()
        || matches!(error.downcast_ref(), Some(policy::agent::Error::Unknown(_)))
        || matches!(error.downcast_ref(), Some(policy::secrets::Error::Unknown))
        || matches!(error.downcast_ref(), Some(policy::rollback::Error::Unknown(_)));
    if negative { ExitCode::FAILURE } else { ExitCode::from(2) }
}

/// Pretty JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Makes a file for its owner alone: whole and durable, or not at all, and never in the place of another. Until
/// it is whole it lies beside it, under a name of its own.
///
/// # Errors
/// Of the system; `AlreadyExists` where there is a file of that name.
pub(crate) fn new_file(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    let above = File::open(directory)?;
    let mut file = tempfile::Builder::new().prefix(".affiant-").tempfile_in(directory)?;
    file.as_file_mut().write_all(content)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    above.sync_all()
}

/// Rows in aligned columns; the first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|i| rows.iter().filter_map(|row| row.get(i)).map(|c| c.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let bold = std::io::stdout().is_terminal();
    for (n, row) in rows.iter().enumerate() {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let text = cells.join("  ");
        let text = text.trim_end();
        if n == 0 && bold {
            line(&format!("\u{1b}[1m{text}\u{1b}[0m"));
        } else {
            line(text);
        }
    }
}

/// Who runs the command, for records.
pub(crate) fn who() -> String {
    std::env::var("USER")
        .or_else(|_| std::env::var("LOGNAME"))
        .unwrap_or_else(|_| format!("uid {}", rustix::process::getuid()))
}

/// Milliseconds since 1970 as RFC 3339, in UTC.
pub(crate) fn time(at_ms: u64) -> String {
    time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000)
        .ok()
        .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| format!("{at_ms} ms"))
}
