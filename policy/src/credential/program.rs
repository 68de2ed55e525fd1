//! Secrets from a program (`exec:`): no shell, bounded in time and output. What it writes to standard error is dropped: it could hold the secret.

use super::Error;
use crate::Secret;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// How long a program may take.
pub(super) const TIME: Duration = Duration::from_secs(10);
/// How much it may write.
pub(super) const LENGTH_BYTES: usize = 64 * 1024;

/// A pause between two looks at a program that has closed its output.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs a program and takes its output, without one line end at its end, as the secret.
pub(super) fn run(arguments: &[String], time: Duration) -> Result<Secret, Error> {
    super::trimmed(output(arguments, &[], time)?)
}

/// Runs a program that reads `input`, which is shorter than what a pipe takes at once, and gives what
/// it writes.
pub(crate) fn output(
    arguments: &[String],
    input: &[u8],
    time: Duration,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let (name, rest) = arguments.split_first().ok_or(Error::SourceFailed("it names no program"))?;
    let begun = Instant::now();
    let mut child = Command::new(name)
        .args(rest)
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A group of its own, so that what it starts can be ended with it.
        .process_group(0)
        .spawn()
        .map_err(|error| {
            if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&error.kind()) {
                Error::SourceUnset("its program is not there, or may not be started")
            } else {
                Error::SourceFailed("its program can't be started")
            }
        })?;
    if let Some(mut stdin) = child.stdin.take()
        && stdin.write_all(input).is_err()
    {
        return Err(abandon(&mut child, "its program does not read"));
    }
    let Some(stdout) = child.stdout.take() else {
        return Err(abandon(&mut child, "its program has no output"));
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Sized at once: growing would leave copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + 1));
        let limit = u64::try_from(LENGTH_BYTES).unwrap_or(u64::MAX) + 1;
        let read = stdout.take(limit).read_to_end(&mut bytes).map(|_| bytes);
        // The receiver is gone once the time is up; then the bytes are zeroed here.
        drop(sender.send(read));
    });
    let bytes = match receiver.recv_timeout(time) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(abandon(&mut child, "the output of its program can't be read")),
        Err(_) => return Err(abandon(&mut child, "its program took too long")),
    };
    if bytes.len() > LENGTH_BYTES {
        return Err(abandon(&mut child, "its program wrote more than 64 KiB"));
    }
    let Some(status) = wait(&mut child, begun + time) else {
        return Err(abandon(&mut child, "its program took too long"));
    };
    if !status.success() {
        return Err(Error::SourceFailed("its program failed"));
    }
    Ok(bytes)
}

/// Waits for the end of a program, but no longer than until the given time.
fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(PAUSE),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Ends a program and all that it started.
fn abandon(child: &mut Child, why: &'static str) -> Error {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group
        && let Err(error) = kill_process_group(group, Signal::KILL)
    {
        tracing::debug!(%error, "a secret's program was gone already");
    }
    if let Err(error) = child.wait() {
        tracing::warn!(%error, "a secret's program can't be waited for");
    }
    Error::SourceFailed(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str], time: Duration, expected: Result<&str, Error>) {
        let arguments: Vec<_> = arguments.iter().map(|&a| a.to_owned()).collect();
        let found = run(&arguments, time).map(|s| s.expose_text().unwrap().to_owned());
        assert_eq!(found, expected.map(str::to_owned), "{arguments:?}");
    }

    /// I-1: a program that fails, in whatever way, is a source that failed.
    #[test]
    fn i_1_programs_give_secrets_or_fail() {
        let failed = |why| Err(Error::SourceFailed(why));
        check(&["printf", "tok\\n"], TIME, Ok("tok"));
        check(&["printf", "%s", "a b;$(id)"], TIME, Ok("a b;$(id)"));
        check(&["sh", "-c", "echo noise >&2; printf tok"], TIME, Ok("tok"));
        check(&["cat"], TIME, Err(Error::Missing));
        check(&["true"], TIME, Err(Error::Missing));
        check(&["sh", "-c", "printf tok; exit 3"], TIME, failed("its program failed"));
        let unset = || Err(Error::SourceUnset("its program is not there, or may not be started"));
        check(&["/nowhere/at/all"], TIME, unset());
        check(&["/etc/passwd"], TIME, unset());
        check(
            &["head", "-c", "65537", "/dev/zero"],
            TIME,
            failed("its program wrote more than 64 KiB"),
        );
        check(&[], TIME, failed("it names no program"));
    }

    /// I-1: what hangs is ended, with everything that it started.
    #[test]
    fn i_1_programs_that_hang_are_ended() {
        let short = Duration::from_millis(200);
        let late = || Err(Error::SourceFailed("its program took too long"));
        let begun = Instant::now();
        check(&["sleep", "60"], short, late());
        check(&["sh", "-c", "sleep 60 & sleep 60"], short, late());
        check(&["sh", "-c", "exec >&-; sleep 60"], short, late());
        check(&["sh", "-c", "yes | head -c 1000; exec sleep 60"], short, late());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
