//! Blows at system calls: `strace` attaches to threads of a process, counts their calls from there,
//! and at the n-th sends a signal or gives back an error.

use crate::subject::{Error, end, io};
use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

/// What a system call ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The process is killed before the call.
    Kill,
    /// The call fails as a broken disk fails.
    Eio,
    /// The call fails as a full disk fails.
    Enospc,
    /// The call fails as a file system that became read-only fails.
    Erofs,
}

impl Blow {
    /// As strace injects it.
    pub(super) const fn injection(self) -> &'static str {
        match self {
            Self::Kill => "signal=SIGKILL",
            Self::Eio => "error=EIO",
            Self::Enospc => "error=ENOSPC",
            Self::Erofs => "error=EROFS",
        }
    }
}

/// Which threads are struck; each counts on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// The writer of the journal, in a process where it writes every frame: one with a single
    /// worker. So each write and each sync of a call is a point.
    Writer,
    /// Those of that name.
    Named(&'static str),
    /// All, where they touch the journal's segments: callers write frames themselves.
    Segments,
}

/// Where the process is struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The threads that are struck.
    pub threads: Threads,
    /// The system calls that are counted, as strace names them.
    pub calls: &'static str,
    /// Which of them, from 1.
    pub nth: u32,
    /// What happens there.
    pub blow: Blow,
}

/// strace on the threads of one name.
pub(super) struct Tracer {
    child: Child,
    /// It tells of new threads, so somebody has to listen.
    _said: Option<Lines<BufReader<ChildStderr>>>,
    log: tempfile::NamedTempFile,
}

impl Tracer {
    pub(super) fn attach(process: u32, journal: &Path, point: Point) -> Result<Self, Error> {
        let log = tempfile::NamedTempFile::new().map_err(io("make a file for strace"))?;
        let Point { calls, nth, .. } = point;
        let blow = point.blow.injection();
        let mut command = Command::new("strace");
        command.arg("-o").arg(log.path());
        command.args(["-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{blow}:when={nth}")]);
        let threads = match point.threads {
            Threads::Writer => threads(process, "journal-writer")?,
            Threads::Named(name) => threads(process, name)?,
            Threads::Segments => {
                command.arg("-f");
                for file in std::fs::read_dir(journal).map_err(io("list the segments"))? {
                    let path = file.map_err(io("list the segments"))?.path();
                    if path.extension().is_some_and(|extension| extension == "seg")
                        && has_begun(&path)?
                    {
                        command.arg("-P").arg(path);
                    }
                }
                vec![process.to_string()]
            }
        };
        if threads.is_empty() {
            return Err(Error::Unexpected(format!("no thread for {:?}", point.threads)));
        }
        for thread in &threads {
            command.args(["-p", thread]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(io("start strace"))?;
        let mut lines = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        for _ in &threads {
            match lines.as_mut().and_then(Iterator::next) {
                Some(Ok(line)) if line.contains("attached") => {}
                other => {
                    end(&mut child);
                    return Err(Error::Unexpected(format!("strace did not attach: {other:?}")));
                }
            }
        }
        Ok(Self { child, _said: lines, log })
    }

    /// Detaches; whether it injected anything.
    pub(super) fn stop(mut self) -> Result<bool, Error> {
        let process = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(process) = process {
            let sent = rustix::process::kill_process(process, rustix::process::Signal::TERM);
            sent.map_err(|error| io("stop strace")(error.into()))?;
        }
        self.child.wait().map_err(io("wait for strace"))?;
        let log = std::fs::read_to_string(self.log.path()).map_err(io("read strace's file"))?;
        Ok(log.contains("(INJECTED)"))
    }
}

/// Whether a segment holds records: one that is still being zeroed for later has no header.
fn has_begun(segment: &Path) -> Result<bool, Error> {
    let mut start = [0; 8];
    let read = std::fs::File::open(segment)
        .and_then(|mut file| std::io::Read::read(&mut file, &mut start))
        .map_err(io("read a segment"))?;
    Ok(start.iter().take(read).any(|byte| *byte != 0))
}

impl Drop for Tracer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The ids of a process's threads of that name.
fn threads(process: u32, name: &str) -> Result<Vec<String>, Error> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).map_err(io("list threads"))?;
    let mut found = Vec::new();
    for task in tasks {
        let path = task.map_err(io("list threads"))?.path();
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        if comm.trim() == name
            && let Some(id) = path.file_name()
        {
            found.push(id.to_string_lossy().into_owned());
        }
    }
    Ok(found)
}
