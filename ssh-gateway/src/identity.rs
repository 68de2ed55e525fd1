//! The gateway's own SSH identity: host CA, gateway host key and the agents' login keys, as files.
//!
//! ```text
//! HOME/ssh/            0700
//!   host_ca            0600  signs host certificates, never leaves the home
//!   host_key           0600  the one key behind every host certificate
//!   known_hosts        0644  the `@cert-authority` line for clients
//!   agents/NAME        0600  login key of an agent, for clients that cannot type a token
//!   agents/NAME.pub    0644  its public half: what the gateway accepts
//! ```
//!
//! It does not know agents or policy: whether a name may log in is asked elsewhere.

use russh::keys::ssh_key::certificate::{Builder, CertType};
use russh::keys::ssh_key::{self, LineEnding};
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far back a minted certificate is valid, for clients whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(300);
/// How long a minted certificate is valid. OpenSSH checks it when a connection starts.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// Why an identity could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory operation failed.
    #[error("cannot use {path}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A key file holds no usable key.
    #[error("{path} holds no usable private key")]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: ssh_key::Error,
    },
    /// A private key can be read by others.
    #[error("{path} must be readable by its owner only: chmod 600 {path}")]
    Permissions {
        /// The file.
        path: PathBuf,
    },
    /// The agent's name can't be the name of a file.
    #[error("the agent name has characters that a key file cannot carry")]
    AgentName,
    /// A key or certificate could not be made.
    #[error("cannot make a key or certificate")]
    Make(#[source] ssh_key::Error),
}

/// Host CA and gateway host key.
pub struct Identity {
    directory: PathBuf,
    ca: PrivateKey,
    host_key: PrivateKey,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Identity {
    /// Opens the identity in `directory` (`HOME/ssh`) and makes what is missing. Safe to call again
    /// and from several processes at once: the first key written stays.
    ///
    /// # Errors
    /// When the directory or a key in it can't be written, read or trusted.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        make_directory(directory)?;
        make_directory(&directory.join("agents"))?;
        let ca = open_key(&directory.join("host_ca"), "affiant host CA")?;
        let host_key = open_key(&directory.join("host_key"), "affiant gateway")?;
        let identity = Self { directory: directory.to_owned(), ca, host_key };
        let known_hosts = directory.join("known_hosts");
        let line = format!("{}\n", identity.ca_public_line("*")?);
        if fs::read_to_string(&known_hosts).ok().as_deref() != Some(line.as_str()) {
            write_file(&known_hosts, line.as_bytes(), 0o644, true)?;
        }
        Ok(identity)
    }

    /// The directory that holds the identity.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The `known_hosts` line that makes clients trust the host certificates, for the hosts that
    /// match `pattern` (`*` for all).
    ///
    /// # Errors
    /// When the key can't be written as text.
    pub fn ca_public_line(&self, pattern: &str) -> Result<String, Error> {
        let key = self.ca.public_key().to_openssh().map_err(Error::Make)?;
        Ok(format!("@cert-authority {pattern} {key}"))
    }

    /// The public half of the host CA.
    #[must_use]
    pub fn ca_public(&self) -> &PublicKey {
        self.ca.public_key()
    }

    /// The login key of an agent, made at the first call: the path of the private half, for
    /// `IdentityFile`. Its public half is what the gateway accepts for that agent.
    ///
    /// # Errors
    /// When the name can't be a file's name, or the files can't be written.
    pub fn agent_key(&self, agent: &str) -> Result<PathBuf, Error> {
        let path = self.agent_path(agent)?;
        let key = open_key(&path, agent)?;
        let public = key.public_key().to_openssh().map_err(Error::Make)?;
        write_file(&path.with_added_extension("pub"), public.as_bytes(), 0o644, true)?;
        Ok(path)
    }

    /// Removes the login key of an agent, so that a new one has to be made. Nothing to remove is
    /// success.
    ///
    /// # Errors
    /// When a file is there and can't be removed.
    pub fn remove_agent_key(&self, agent: &str) -> Result<(), Error> {
        let path = self.agent_path(agent)?;
        for path in [path.with_added_extension("pub"), path] {
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::File { path, source }),
            }
        }
        Ok(())
    }

    /// Whether `key` is the registered login key of `agent`. Comments don't count.
    pub(crate) fn accepts(&self, agent: &str, key: &PublicKey) -> bool {
        let Ok(path) = self.agent_path(agent) else { return false };
        let Ok(text) = fs::read_to_string(path.with_added_extension("pub")) else { return false };
        PublicKey::from_openssh(text.trim()).is_ok_and(|known| known.key_data() == key.key_data())
    }

    /// The key behind every host certificate.
    pub(crate) fn host_key(&self) -> &PrivateKey {
        &self.host_key
    }

    /// Mints a host certificate for the names, as the client writes them.
    ///
    /// # Errors
    /// When a name can't stand in a certificate.
    pub(crate) fn host_certificate(
        &self,
        names: &[&str],
        now: SystemTime,
    ) -> Result<Certificate, Error> {
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut rng = russh::keys::key::safe_rng();
        let mut builder = Builder::new_with_random_nonce(
            &mut rng,
            self.host_key.public_key(),
            since_1970.saturating_sub(BACKDATED).as_secs(),
            since_1970.saturating_add(VALID).as_secs(),
        )
        .map_err(Error::Make)?;
        builder.cert_type(CertType::Host).map_err(Error::Make)?;
        builder.key_id("affiant gateway").map_err(Error::Make)?;
        for name in names {
            builder.valid_principal(*name).map_err(Error::Make)?;
        }
        builder.sign(&self.ca).map_err(Error::Make)
    }

    fn agent_path(&self, agent: &str) -> Result<PathBuf, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if agent.is_empty() || agent.starts_with('.') || !agent.chars().all(plain) {
            return Err(Error::AgentName);
        }
        // `NAME.pub` belongs to the agent NAME.
        if agent.ends_with(".pub") {
            return Err(Error::AgentName);
        }
        Ok(self.directory.join("agents").join(agent))
    }
}

fn make_directory(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Reads the key at `path`, or makes one there.
fn open_key(path: &Path, comment: &str) -> Result<PrivateKey, Error> {
    match read_key(path) {
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut rng = russh::keys::key::safe_rng();
    let mut key = PrivateKey::random(&mut rng, Algorithm::Ed25519).map_err(Error::Make)?;
    key.set_comment(comment);
    let text = key.to_openssh(LineEnding::LF).map_err(Error::Make)?;
    write_file(path, text.as_bytes(), 0o600, false)?;
    // Another process may have been first: what is on disk counts.
    read_key(path)
}

fn read_key(path: &Path) -> Result<PrivateKey, Error> {
    let file = |source| Error::File { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(file)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Error::Permissions { path: path.to_owned() });
    }
    let text = zeroize::Zeroizing::new(fs::read_to_string(path).map_err(file)?);
    PrivateKey::from_openssh(text.as_bytes())
        .map_err(|source| Error::Key { path: path.to_owned(), source })
}

/// Writes a whole file under a temporary name, syncs it and puts it in place: by `replace`, or only
/// if the place is free.
fn write_file(path: &Path, bytes: &[u8], mode: u32, replace: bool) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let temporary = path.with_added_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        if replace {
            return fs::rename(&temporary, path);
        }
        let linked = match fs::hard_link(&temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        };
        fs::remove_file(&temporary)?;
        linked
    })();
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_made_once_and_only_the_owner_reads_them() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("ssh");
        let first = Identity::open(&directory).unwrap();
        let again = Identity::open(&directory).unwrap();
        assert_eq!(first.ca_public(), again.ca_public());
        assert_eq!(first.host_key().public_key(), again.host_key().public_key());
        let key = first.agent_key("coder").unwrap();
        assert_eq!(key, again.agent_key("coder").unwrap());
        for file in [directory.join("host_ca"), directory.join("host_key"), key] {
            assert_eq!(mode(&file), 0o600, "{file:?}");
        }
        assert_eq!(mode(&directory), 0o700);
        let line = fs::read_to_string(directory.join("known_hosts")).unwrap();
        assert!(line.starts_with("@cert-authority * ssh-ed25519 "), "{line}");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let home = tempfile::tempdir().unwrap();
        Identity::open(home.path()).unwrap();
        let path = home.path().join("host_ca");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Identity::open(home.path()), Err(Error::Permissions { .. })));
    }

    #[test]
    fn a_certificate_covers_its_names_only() {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::open(home.path()).unwrap();
        let now = SystemTime::now();
        let certificate = identity.host_certificate(&["prod-1"], now).unwrap();
        assert_eq!(certificate.cert_type(), CertType::Host);
        assert_eq!(certificate.valid_principals(), ["prod-1".to_owned()]);
        let ca = identity.ca_public().fingerprint(ssh_key::HashAlg::Sha256);
        let seconds = now.duration_since(UNIX_EPOCH).unwrap().as_secs();
        certificate.validate_at(seconds, [&ca]).unwrap();
        assert!(certificate.validate_at(seconds + 2 * 86_400, [&ca]).is_err());
    }

    #[test]
    fn agent_keys_belong_to_one_agent() {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::open(home.path()).unwrap();
        let key = read_key(&identity.agent_key("coder").unwrap()).unwrap();
        identity.agent_key("other").unwrap();
        assert!(identity.accepts("coder", key.public_key()));
        assert!(!identity.accepts("other", key.public_key()));
        assert!(!identity.accepts("nobody", key.public_key()));
        identity.remove_agent_key("coder").unwrap();
        identity.remove_agent_key("coder").unwrap();
        assert!(!identity.accepts("coder", key.public_key()));
        for bad in ["", "../x", "a/b", ".hidden", "coder.pub"] {
            assert!(matches!(identity.agent_key(bad), Err(Error::AgentName)), "{bad}");
        }
    }
}
