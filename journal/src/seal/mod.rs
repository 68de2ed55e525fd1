//! Sealed mode: an audit copy of every event that the writing process can't read back (J-6).
//!
//! The copy is a row of files, `sealed/FIRST-LAST.age`, each with the JSON lines of
//! [`crate::export`], encrypted to a public key. The names say which sequences are covered, so a
//! missing file shows. The copier has no state of its own: it goes on behind the newest file. It
//! runs behind the log, and no segment leaves before it is copied.

mod age;
mod bech32;

pub use age::{Error as KeyError, Identity, Recipient, open};

use crate::contract::Sequence;
use crate::export;
use crate::log::disk::Directory;
use crate::whole_file;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The file with the public key.
const RECIPIENT_FILE: &str = "seal.pub";
/// The directory of the copies.
const DIRECTORY: &str = "sealed";
/// Plain bytes after which a file ends.
const FILE_BYTES: usize = 8 << 20;

/// Why the copy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Local: a file could not be read or written.
    #[error("could not {step}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Local: the key can't be used.
    #[error(transparent)]
    Key(#[from] age::Error),
    /// Local: the log could not be read.
    #[error(transparent)]
    Log(#[from] crate::verify::Error),
    /// Local: events were removed before they were copied.
    #[error("the log begins behind sequence {0}, and the copy ends before it")]
    Gap(Sequence),
}

fn io(step: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { step, source }
}

/// One sealed file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SealedFile {
    /// The first sequence that it covers.
    pub first: Sequence,
    /// The last one.
    pub last: Sequence,
    /// Where it lies.
    pub path: PathBuf,
}

/// Switches sealed mode on: events are copied from the beginning of the log.
///
/// # Errors
/// [`Error::Io`].
pub fn init(journal: &Path, to: &Recipient) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(journal.join(DIRECTORY))
        .map_err(io("make the directory of sealed files"))?;
    let line = format!("{to}\n");
    whole_file::write(&journal.join(RECIPIENT_FILE), 0o600, line.as_bytes())
        .map_err(io("write the public key"))
}

/// The public key, if sealed mode is on.
///
/// # Errors
/// [`Error`].
pub fn recipient(journal: &Path) -> Result<Option<Recipient>, Error> {
    match fs::read_to_string(journal.join(RECIPIENT_FILE)) {
        Ok(text) => Ok(Some(text.trim().parse()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { step: "read the public key", source }),
    }
}

/// The sealed files, in order.
///
/// # Errors
/// [`Error::Io`].
pub fn files(journal: &Path) -> Result<Vec<SealedFile>, Error> {
    let mut found = Vec::new();
    let directory = journal.join(DIRECTORY);
    let step = "list the sealed files";
    for entry in fs::read_dir(directory).map_err(io(step))? {
        let path = entry.map_err(io(step))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let range = name.and_then(|name| name.strip_suffix(".age")?.split_once('-'));
        let Some((first, last)) = range else { continue };
        if let (Ok(first), Ok(last)) = (first.parse(), last.parse()) {
            found.push(SealedFile { first: Sequence(first), last: Sequence(last), path });
        }
    }
    found.sort();
    Ok(found)
}

/// Up to where the log is copied; `None` when sealed mode is off.
pub(crate) fn copied(journal: &Path) -> Result<Option<Sequence>, Error> {
    if recipient(journal)?.is_none() {
        return Ok(None);
    }
    Ok(Some(files(journal)?.last().map_or(Sequence(0), |newest| newest.last)))
}

/// Copies what is durable and not copied yet. Gives up to where the log is copied.
pub(crate) fn pass(journal: &Path, durable: Sequence) -> Result<Option<Sequence>, Error> {
    let Some(to) = recipient(journal)? else { return Ok(None) };
    let begun = files(journal)?.last().map_or(Sequence(0), |newest| newest.last);
    if durable <= begun {
        return Ok(Some(begun));
    }
    let mut copy =
        Copy { journal, to, lines: Vec::new(), first: Sequence(begun.0 + 1), last: begun };
    let disk = Directory::unlocked(journal);
    export::records::<Error>(&disk, copy.first, &mut |record| {
        let sequence = Sequence(record.sequence);
        if copy.last.0 + 1 != sequence.0 && begun.0 > 0 {
            return Err(Error::Gap(sequence));
        }
        if copy.last.0 + 1 != sequence.0 {
            // Switched on after the beginning had left.
            copy.first = sequence;
        }
        if let Some(exported) = export::exported(record)? {
            serde_json::to_writer(&mut copy.lines, &exported)
                .map_err(|error| Error::Io { step: "write an event", source: error.into() })?;
            copy.lines.push(b'\n');
        }
        copy.last = sequence;
        if copy.lines.len() >= FILE_BYTES { copy.finish() } else { Ok(()) }
    })?;
    copy.finish()?;
    Ok(Some(copy.last))
}

struct Copy<'a> {
    journal: &'a Path,
    to: Recipient,
    lines: Vec<u8>,
    first: Sequence,
    last: Sequence,
}

impl Copy<'_> {
    fn finish(&mut self) -> Result<(), Error> {
        if self.last < self.first {
            return Ok(());
        }
        let sealed = age::seal(&self.to, &self.lines)?;
        let name = format!("{:016}-{:016}.age", self.first.0, self.last.0);
        let path = self.journal.join(DIRECTORY).join(name);
        whole_file::write(&path, 0o600, &sealed).map_err(io("write a sealed file"))?;
        self.lines.clear();
        self.first = Sequence(self.last.0 + 1);
        Ok(())
    }
}
