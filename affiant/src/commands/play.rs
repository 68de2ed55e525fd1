//! `affiant inv play`: shows the recording of an SSH shell (asciicast, version 2) as it went.

use crate::output::{self, Negative};
use anyhow::Context as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Writes the recorded output to stdout, at `speed` times the pace it came in.
///
/// The control sequences of the session reach the terminal, as they did then.
///
/// # Errors
/// When it is no recording, or stdout fails.
pub(super) fn play(recording: &[u8], speed: f64) -> anyhow::Result<()> {
    anyhow::ensure!(speed.is_finite() && speed > 0.0, "--speed is a number above 0");
    let text = std::str::from_utf8(recording).ok().context("the recording is not text")?;
    let mut lines = text.lines();
    let header: Option<serde_json::Value> =
        lines.next().and_then(|line| serde_json::from_str(line).ok());
    if header.as_ref().and_then(|header| header.get("version")?.as_u64()) != Some(2) {
        let why = "this result is no recording; `affiant inv result` shows it";
        return Err(anyhow::Error::new(Negative(why.to_owned())));
    }
    let began = Instant::now();
    let mut stdout = std::io::stdout().lock();
    for line in lines {
        let (at, kind, data): (f64, String, String) =
            serde_json::from_str(line).context("the recording is damaged")?;
        let due = Duration::try_from_secs_f64(at / speed).context("the recording is damaged")?;
        match kind.as_str() {
            "o" => {
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                stdout.write_all(data.as_bytes()).and_then(|()| stdout.flush())?;
            }
            "m" => {
                std::thread::sleep(due.saturating_sub(began.elapsed()));
                output::note(&format!("({data})"));
            }
            // A new size is the terminal's to follow; what else may stand there is not shown.
            _ => {}
        }
    }
    Ok(())
}
