//! The home directory: where everything of one installation lies.

use anyhow::{Context as _, bail};
use policy::{Policy, Secret};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The home and the places in it.
///
/// ```text
/// ca/  ssh/  policy/  journal/  policy.toml  bundle.pem  control.sock
/// ```
#[derive(Debug, Clone)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// The home that the arguments name, else the platform's default.
    pub(crate) fn resolve(argument: Option<PathBuf>) -> anyhow::Result<Self> {
        // An empty variable is none. It is no part of the command line's definition: there it would
        // stand in every usage line as if it were required.
        let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
        let variable = || std::env::var_os("AFFIANT_HOME").map(PathBuf::from).filter(is_named);
        if let Some(path) = argument.filter(is_named).or_else(variable) {
            return Ok(Self(std::path::absolute(&path)?));
        }
        let user = std::env::home_dir()
            .context("no home directory is known: pass --home DIR or set AFFIANT_HOME")?;
        let data = if cfg!(target_os = "macos") {
            user.join("Library/Application Support")
        } else {
            std::env::var_os("XDG_DATA_HOME")
                .filter(|value| !value.is_empty())
                .map_or_else(|| user.join(".local/share"), PathBuf::from)
        };
        Ok(Self(data.join("affiant")))
    }

    /// A home at a given path.
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.0.join("ca")
    }

    pub(crate) fn ssh(&self) -> PathBuf {
        self.0.join("ssh")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    pub(crate) fn policy_file(&self) -> PathBuf {
        self.0.join("policy.toml")
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.0.join("bundle.pem")
    }

    pub(crate) fn wgetrc(&self) -> PathBuf {
        self.0.join("wgetrc")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    pub(crate) fn console_token(&self) -> PathBuf {
        self.0.join("console.token")
    }

    /// Creates the directory, readable by its owner alone.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .with_context(|| format!("create the home {}", self.0.display()))
    }

    /// Opens the policy store of a home that is complete.
    pub(crate) fn open_policy(&self) -> anyhow::Result<Policy> {
        self.require()?;
        open_policy(&self.0)
    }

    /// Refuses a home that is missing or that others can enter.
    pub(crate) fn require(&self) -> anyhow::Result<()> {
        let shown = self.0.display();
        let metadata = match std::fs::metadata(&self.0) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "there is no home at {shown}: run `affiant init`, or name another with --home"
            ),
            Err(error) => bail!("the home {shown} can't be entered: {error}"),
        };
        match self.ca().try_exists() {
            Ok(true) => {}
            Ok(false) => bail!("{shown} is no complete home: run `affiant init`"),
            Err(error) => {
                bail!("the home {shown} can't be entered: {error} (it is its owner's alone)")
            }
        }
        let mode = metadata.permissions().mode();
        if mode & 0o022 != 0 {
            bail!("others can write to the home {shown}: run `chmod 700 {shown}`");
        }
        Ok(())
    }
}

/// The name of the systemd credential that holds the vault's key.
const VAULT_KEY: &str = "affiant-vault-key";

/// Opens the policy store, with the vault's key that the service manager hands in, if it does.
fn open_policy(home: &Path) -> anyhow::Result<Policy> {
    let file = std::env::var_os("CREDENTIALS_DIRECTORY").map(|d| PathBuf::from(d).join(VAULT_KEY));
    let key = match file.filter(|file| file.exists()) {
        Some(file) => {
            let bytes = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            Some(Secret::new(bytes))
        }
        None => None,
    };
    Policy::open_with_key(home, key.as_ref()).context("open the policy store")
}

/// Writes a file as a whole or not at all, with the given mode.
pub(crate) fn write_file(path: &Path, mode: u32, bytes: &[u8]) -> anyhow::Result<()> {
    let step = || format!("write {}", path.display());
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .with_context(step)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(step)?;
    std::fs::rename(&temporary, path).with_context(step)
}
