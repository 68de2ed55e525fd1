//! The keyring of the desktop as the place of the master key: whatever serves the Secret Service API
//! (GNOME Keyring, KWallet, KeePassXC), asked by libsecret's own program.
//!
//! Each key is an item of its own, named by a digest of it, so that the one that fits the header is
//! there before and after a change.

use super::{Error, Header, Key, file};
use crate::credential::program;
use std::time::Duration;

/// A person may have to unlock the keyring first.
const TIME: Duration = Duration::from_secs(60);
const PROGRAM: &str = "secret-tool";

/// The key that fits the header.
pub(super) fn read(header: &Header) -> Result<Key, Error> {
    let text = ask("lookup", header, &[]).map_err(|()| {
        Error::Keyring("it does not hold the key of this vault, or nobody unlocks it")
    })?;
    file::parse(&text).filter(|key| header.is_of(key)).ok_or(Error::WrongKey)
}

/// Keeps the key of the header.
pub(super) fn keep(header: &Header, master: &Key) -> Result<(), Error> {
    if !is_installed() {
        return Err(Error::Keyring("`secret-tool` is not installed (Debian: libsecret-tools)"));
    }
    ask("store", header, file::text(master).expose())
        .map_err(|()| Error::Keyring("it did not take the key: is there a desktop session?"))?;
    // What it took, it also gives.
    read(header).map(drop)
}

/// Removes the key of a header that is not in force any more.
pub(super) fn remove(header: &Header) {
    if ask("clear", header, &[]).is_err() {
        tracing::warn!("the vault's former key can't be removed from the keyring");
    }
}

fn ask(verb: &str, header: &Header, input: &[u8]) -> Result<zeroize::Zeroizing<Vec<u8>>, ()> {
    let label: &[&str] = if verb == "store" { &["--label=Key of an Affiant vault"] } else { &[] };
    let attributes = ["application", "affiant", "vault", header.name()];
    let words = [PROGRAM, verb].into_iter().chain(label.iter().copied()).chain(attributes);
    let arguments: Vec<String> = words.map(str::to_owned).collect();
    program::output(&arguments, input, TIME).map_err(|error| {
        tracing::debug!(%error, verb, "the keyring was asked in vain");
    })
}

fn is_installed() -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(PROGRAM).is_file())
    })
}
