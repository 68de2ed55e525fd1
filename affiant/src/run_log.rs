//! The log of the server that `affiant run` starts: `runs.log` of the home. It outlives the run that started the
//! server, and is bounded: a full one becomes `runs.log.1`, and what was there before is gone.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// From this length on a log is full.
const FULL_BYTES: u64 = 4 << 20;

/// The log, open at its end.
#[derive(Debug)]
pub(crate) struct RunLog {
    path: PathBuf,
    file: File,
    /// As far as this process knows.
    length: u64,
    is_stderr: bool,
}

impl RunLog {
    /// Opens the log of a home, and makes room in it.
    pub(crate) fn open(home: &Path) -> io::Result<Self> {
        let path = home.join("runs.log");
        let file = open(&path)?;
        let length = file.metadata()?.len();
        let mut log = Self { path, file, length, is_stderr: false };
        log.make_room()?;
        Ok(log)
    }

    /// For the standard error of a process.
    pub(crate) fn writer(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// Makes it the standard error of this process: a panic is to be found there as well.
    pub(crate) fn become_stderr(&mut self) -> io::Result<()> {
        rustix::stdio::dup2_stderr(&self.file)?;
        self.is_stderr = true;
        Ok(())
    }

    /// Puts a full log aside.
    fn make_room(&mut self) -> io::Result<()> {
        if self.length < FULL_BYTES {
            return Ok(());
        }
        // Two that find it full at once: the second one finds the first one's.
        flock(&self.file, FlockOperation::LockExclusive)?;
        if is_at(&self.file, &self.path)? {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            fs::rename(&self.path, aside)?;
        }
        // The lock goes with the handle.
        self.file = open(&self.path)?;
        self.length = self.file.metadata()?.len();
        if self.is_stderr { self.become_stderr() } else { Ok(()) }
    }
}

/// Whole lines, as `tracing` writes them.
impl Write for RunLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.make_room()?;
        let written = self.file.write(line)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Whether the path leads to this file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (here, there) = (file.metadata()?, fs::metadata(path));
    Ok(there.is_ok_and(|there| (here.dev(), here.ino()) == (there.dev(), there.ino())))
}

/// Reads what comes into a log from now on.
#[derive(Debug)]
pub(crate) struct Reader {
    log: RunLog,
    read: u64,
}

impl From<RunLog> for Reader {
    fn from(log: RunLog) -> Self {
        Self { read: log.length, log }
    }
}

impl Reader {
    /// What was not read yet.
    pub(crate) fn rest(&mut self) -> String {
        let mut bytes = self.rest_of_file();
        // The server may have begun another file, once since then: this one is full.
        if matches!(is_at(&self.log.file, &self.log.path), Ok(false))
            && let Ok(file) = open(&self.log.path)
        {
            (self.log.file, self.read) = (file, 0);
            bytes.extend(self.rest_of_file());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn rest_of_file(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = self.log.file.read_at(&mut piece, self.read) {
            bytes.extend_from_slice(piece.get(..length).unwrap_or_default());
            self.read += length as u64;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A full log is put aside, the next full one takes its place, each for its owner alone; who reads along
    /// misses nothing.
    #[test]
    fn a_full_log_is_put_aside() {
        let home = tempfile::tempdir().unwrap();
        let (path, aside) = (home.path().join("runs.log"), home.path().join("runs.log.1"));
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        let mut log = RunLog::open(home.path()).unwrap();
        log.write_all(b"first\n").unwrap();
        log.file.set_len(FULL_BYTES).unwrap();
        assert!(!aside.exists());
        let mut log = RunLog::open(home.path()).unwrap();
        assert_eq!((length(&path), length(&aside)), (0, FULL_BYTES));

        let mut reader = Reader::from(RunLog::open(home.path()).unwrap());
        log.write_all(b"second\n").unwrap();
        assert_eq!(reader.rest(), "second\n");
        log.write_all(b"third\n").unwrap();
        log.length = FULL_BYTES;
        log.write_all(b"fourth\n").unwrap();
        assert_eq!(reader.rest(), "third\nfourth\n");
        assert_eq!(reader.rest(), "");
        assert_eq!(fs::read(&aside).unwrap(), b"second\nthird\n");
        assert_eq!(fs::read(&path).unwrap(), b"fourth\n");
        for file in [&path, &aside] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
