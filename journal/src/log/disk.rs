//! The little of a file system that the log needs, as a trait, so that tests can crash it.

use parking_lot::Mutex;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What direct I/O wants of addresses, offsets and lengths.
const ALIGN: usize = super::BLOCK;

/// A directory of segment files.
pub(crate) trait Disk: Send + Sync {
    /// The names in it.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new, empty file; an error if it is there.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Gives a file another name, in the place of what had that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations and removals durable.
    fn sync_directory(&self) -> io::Result<()>;
    /// Bytes that this user can still allocate.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// One segment file.
pub(crate) trait File: Send + Sync {
    /// Its length.
    fn length(&self) -> io::Result<u64>;
    /// Writes all of the bytes in one call; a short write is an error.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// As [`File::write_at`], past the page cache where the platform can and length and offset are
    /// aligned to blocks: for what nobody reads soon. Says whether it went past it.
    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        self.write_at(bytes, offset).map(|()| false)
    }
    /// Makes content and length durable.
    fn sync(&self) -> io::Result<()>;
    /// Reads exactly so many bytes.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Reads up to so many bytes from its beginning, from the device and not from the page cache where the platform can:
    /// after a failed sync Linux keeps pages that look clean but never reached the disk.
    fn read_stable(&self, limit: u64) -> io::Result<Vec<u8>>;
    /// Cuts it to a length.
    fn truncate(&self, length: u64) -> io::Result<()>;
}

/// The end of the name of a file that is being written.
pub(crate) const UNFINISHED: &str = ".new";

/// Writes a file as a whole or not at all, durably. Blocks of zeros become holes.
pub(crate) fn replace(disk: &dyn Disk, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}{UNFINISHED}");
    if disk.list()?.contains(&temporary) {
        disk.remove(&temporary)?;
    }
    let file = disk.create(&temporary)?;
    file.truncate(bytes.len() as u64)?;
    let mut begun: Option<usize> = None;
    let zeros = [0_u8; super::BLOCK];
    for (n, block) in bytes.chunks(super::BLOCK).enumerate() {
        let offset = n * super::BLOCK;
        if zeros.get(..block.len()) != Some(block) {
            begun.get_or_insert(offset);
            continue;
        }
        if let Some(from) = begun.take() {
            file.write_at(bytes.get(from..offset).unwrap_or_default(), from as u64)?;
        }
    }
    if let Some(from) = begun {
        file.write_at(bytes.get(from..).unwrap_or_default(), from as u64)?;
    }
    file.sync()?;
    disk.rename(&temporary, name)?;
    disk.sync_directory()
}

/// A directory of the real file system.
pub(crate) struct Directory {
    path: PathBuf,
    durable: bool,
    writable: bool,
}

impl Directory {
    /// Makes the directory if it is not there and takes its lock, which holds as long as the file
    /// that is given back.
    pub(crate) fn lock(path: &Path, durable: bool) -> Result<(Self, fs::File), crate::open::Error> {
        use crate::open::Error;
        let io = |step| move |source| Error::Io { step, source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io("create the directory"))?;
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(io("open the lock file"))?;
        match lock.try_lock() {
            Ok(()) => Ok((Self { path: path.to_owned(), durable, writable: true }, lock)),
            Err(fs::TryLockError::WouldBlock) => Err(Error::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(source)) => {
                Err(Error::Io { step: "lock the directory", source })
            }
        }
    }

    /// The same directory for reading beside a running writer.
    pub(crate) fn unlocked(path: &Path) -> Self {
        Self { path: path.to_owned(), durable: true, writable: false }
    }
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.path.join(name);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(Arc::new(RealFile::new(file, path, self.durable)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.path.join(name);
        let file = fs::OpenOptions::new().read(true).write(self.writable).open(&path)?;
        Ok(Arc::new(RealFile::new(file, path, self.durable)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        if self.durable { fs::File::open(&self.path)?.sync_all() } else { Ok(()) }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile {
    file: fs::File,
    path: PathBuf,
    durable: bool,
    /// The same file past the page cache, for writing; opened when it is asked for.
    direct: OnceLock<Option<fs::File>>,
    /// Where bytes that lie elsewhere are aligned.
    space: Mutex<Vec<u8>>,
}

impl RealFile {
    fn new(file: fs::File, path: PathBuf, durable: bool) -> Self {
        Self { file, path, durable, direct: OnceLock::new(), space: Mutex::new(Vec::new()) }
    }

    /// Writes past the page cache; `None` where that is not to be had.
    fn write_direct(&self, bytes: &[u8], offset: u64) -> Option<io::Result<usize>> {
        let open = || open_direct(&self.path, fs::OpenOptions::new().write(true));
        let direct = self.direct.get_or_init(open).as_ref().filter(|_| self.durable)?;
        let written = if bytes.as_ptr().align_offset(ALIGN) == 0 {
            direct.write_at(bytes, offset)
        } else {
            let mut space = self.space.lock();
            space.resize(bytes.len() + ALIGN, 0);
            let skip = space.as_ptr().align_offset(ALIGN);
            let aligned = space.get_mut(skip..skip + bytes.len())?;
            aligned.copy_from_slice(bytes);
            direct.write_at(aligned, offset)
        };
        match written {
            // Not on this file system, or not in blocks of this size.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
            written => Some(written),
        }
    }
}

impl File for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = self.file.write_at(bytes, offset)?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        match self.write_direct(bytes, offset) {
            Some(Ok(written)) if written == bytes.len() => Ok(true),
            Some(Ok(_)) => Err(io::ErrorKind::WriteZero.into()),
            Some(Err(error)) => Err(error),
            None => self.write_at(bytes, offset).map(|()| false),
        }
    }

    fn sync(&self) -> io::Result<()> {
        if self.durable { self.file.sync_data() } else { Ok(()) }
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn read_stable(&self, limit: u64) -> io::Result<Vec<u8>> {
        if self.durable
            && let Some(direct) = open_direct(&self.path, fs::OpenOptions::new().read(true))
            && let Ok(bytes) = read_all(&direct, limit)
        {
            return Ok(bytes);
        }
        read_all(&self.file, limit)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}

/// Opens past the page cache; `None` where the file system does not offer it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path, how: &mut fs::OpenOptions) -> Option<fs::File> {
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).ok()?;
    how.custom_flags(flags).open(path).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open_direct(_path: &Path, _how: &mut fs::OpenOptions) -> Option<fs::File> {
    None
}

/// Reads a file from its beginning, up to a limit in whole blocks, through a buffer that direct
/// reading accepts.
fn read_all(file: &fs::File, limit: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len().min(limit.next_multiple_of(ALIGN as u64));
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let piece = length.next_multiple_of(ALIGN).clamp(ALIGN, 1 << 20);
    let mut out = Vec::with_capacity(length);
    let mut space = vec![0_u8; piece + ALIGN];
    let skip = space.as_ptr().align_offset(ALIGN);
    let Some(buffer) = space.get_mut(skip..skip + piece) else {
        return Err(io::Error::other("no aligned buffer"));
    };
    while out.len() < length {
        let read = file.read_at(buffer, out.len() as u64)?;
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        out.extend_from_slice(bytes);
    }
    out.truncate(length);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes past the page cache, or can't because it is no whole block, is in the file all the same.
    #[test]
    fn what_goes_past_the_cache_is_in_the_file() {
        const BLOCK: usize = 4096;
        let home = tempfile::tempdir().unwrap();
        let (disk, _lock) = Directory::lock(home.path(), true).unwrap();
        let file = disk.create("segment").unwrap();
        file.write_at(&[1; 3 * BLOCK], 0).unwrap();
        let space = vec![2; 2 * BLOCK];
        let aligned = &space[space.as_ptr().align_offset(BLOCK)..][..BLOCK];
        file.write_past_cache(aligned, BLOCK as u64).unwrap();
        assert!(!file.write_past_cache(&[3; 5], 2 * BLOCK as u64).unwrap());
        file.sync().unwrap();
        let expected = [&[1; BLOCK][..], aligned, &[3; 5], &[1; BLOCK - 5]].concat();
        let mut found = vec![0; expected.len()];
        file.read_at(&mut found, 0).unwrap();
        assert!(found == expected, "another content");
    }
}
