//! strace, attached to the threads of one name: it counts their system calls, and strikes.

use super::Point;
use crate::subject::{Error, end, io};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// strace on the threads of one name.
pub(super) struct Tracer {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Tracer {
    pub(super) fn attach(process: u32, point: Point) -> Result<Self, Error> {
        let log = tempfile::NamedTempFile::new().map_err(io("make a file for strace"))?;
        let Point { calls, nth, .. } = point;
        let blow = point.blow.injection();
        let mut command = Command::new("strace");
        command.arg("-o").arg(log.path());
        command.args(["-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{blow}:when={nth}")]);
        let threads = threads(process, point.thread)?;
        if threads.is_empty() {
            return Err(Error::Unexpected(format!("no thread {}", point.thread)));
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
        Ok(Self { child, log })
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
