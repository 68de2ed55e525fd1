//! The key file of a home: private, whole or not there, and changed without a moment of loss.
//!
//! ```text
//! change:  vault.key.next written ─► header committed to the store ─► renamed to vault.key
//! reading: vault.key, if it fits the header; else vault.key.next, if that does, renamed
//! ```

use super::{Error, Header, Key};
use crate::{Secret, seal};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const NAME: &str = "vault.key";
const NEXT: &str = "vault.key.next";
const HEAD: &str = "affiant-vault-key-1 ";

pub(super) fn path(home: &Path) -> PathBuf {
    home.join(NAME)
}

/// The key in a text, as key files have it.
pub(super) fn parse(text: &[u8]) -> Option<Key> {
    let encoded = std::str::from_utf8(text).ok()?.trim_end().strip_prefix(HEAD)?;
    let bytes = Zeroizing::new(seal::decode(encoded)?);
    Some(Zeroizing::new(bytes.as_slice().try_into().ok()?))
}

/// The text of a key, as key files have it.
pub(super) fn text(master: &Key) -> Secret {
    let encoded = Zeroizing::new(seal::encode(&**master));
    let mut text = Vec::with_capacity(HEAD.len() + encoded.len() + 1);
    text.extend_from_slice(HEAD.as_bytes());
    text.extend_from_slice(encoded.as_bytes());
    text.push(b'\n');
    Secret::new(text)
}

/// The key file's key; a fresh one where there is no key file.
pub(super) fn read_or_write(home: &Path) -> Result<Key, Error> {
    match read(&path(home)) {
        Err(Error::KeyFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let master = seal::random_key().map_err(Error::Crypto)?;
            write(home, "vault.key.new", &master)?;
            rename(home, "vault.key.new")?;
            Ok(master)
        }
        other => other,
    }
}

/// The key that fits the header, finishing a change that was cut off.
pub(super) fn read_matching(home: &Path, header: &Header) -> Result<Key, Error> {
    let path = path(home);
    let current = read(&path);
    if let Ok(key) = &current
        && header.is_of(key)
    {
        return current;
    }
    if let Ok(next) = read(&home.join(NEXT))
        && header.is_of(&next)
    {
        // Another process may do the same at this moment; either rename leaves the right file.
        if let Err(error) = rename(home, NEXT) {
            tracing::warn!(%error, "the vault's new key file can't be put in its place");
        }
        return Ok(next);
    }
    current.and(Err(Error::WrongKeyFile { path }))
}

/// Writes the next key beside the one in force.
pub(super) fn prepare(home: &Path, master: &Key) -> Result<(), Error> {
    write(home, NEXT, master)
}

/// Puts the next key into its place, unless another process has done so already.
pub(super) fn finish(home: &Path) -> Result<(), Error> {
    match rename(home, NEXT) {
        Err(Error::KeyFile { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes what a change of the vault's protection left when it was cut off before its last step. The
/// caller keeps other changes away meanwhile. The file of a change to come is left alone.
pub(super) fn remove_stale(home: &Path) {
    match fs::remove_file(path(home)) {
        Ok(()) => tracing::warn!("the former key file of the vault was still there: removed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(%error, "the former key file of the vault can't be removed"),
    }
}

/// Removes the key file: the key is somewhere else now.
pub(super) fn remove(home: &Path) -> Result<(), Error> {
    for name in [NAME, NEXT] {
        match fs::remove_file(home.join(name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(Error::KeyFile { path: home.join(name), source });
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Key, Error> {
    let failed = |source| Error::KeyFile { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::KeyFileMode { path: path.to_owned(), mode });
    }
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    file.take(256).read_to_end(&mut text).map_err(failed)?;
    parse(&text).ok_or_else(|| Error::WrongKeyFile { path: path.to_owned() })
}

/// Writes a key file whole and durable.
fn write(home: &Path, name: &str, master: &Key) -> Result<(), Error> {
    let path = home.join(name);
    let step = || -> io::Result<()> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text(master).expose())?;
        file.sync_all()?;
        File::open(home)?.sync_all()
    };
    step().map_err(|source| Error::KeyFile { path: path.clone(), source })
}

fn rename(home: &Path, name: &str) -> Result<(), Error> {
    let path = path(home);
    let step = || -> io::Result<()> {
        fs::rename(home.join(name), &path)?;
        File::open(home)?.sync_all()
    };
    step().map_err(|source| Error::KeyFile { path: path.clone(), source })
}
