//! Servers in Python and Node, and the folder of programs that the tests start.

use super::{clean, python, wait};
use conformance::pki::Authority;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program of `tests/peers`.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(name)
}

/// Node with the packages that `./dev` installs.
pub fn node() -> Command {
    let modules =
        std::env::var_os("AFFIANT_TEST_NODE_MODULES").expect("run the tests by `./dev test`");
    let mut command = Command::new("node");
    clean(&mut command);
    command.env("NODE_PATH", modules);
    command
}

/// A server over TLS under a private CA, with a directory of files. Ends when dropped.
pub struct Served {
    directory: tempfile::TempDir,
    child: Child,
    pub port: u16,
}

impl Served {
    /// `server.py` (aiohttp).
    pub fn python() -> Self {
        Self::start(python(), "server.py")
    }

    /// `server.cjs` (Node, HTTP/1.1 and HTTP/2).
    pub fn node() -> Self {
        Self::start(node(), "server.cjs")
    }

    /// Any program that takes certificate, key and directory and prints its port.
    pub fn start(mut command: Command, name: &str) -> Self {
        let directory = tempfile::Builder::new().prefix("affiant-peer-").tempdir().unwrap();
        let at = directory.path();
        let authority = Authority::new("peer CA").unwrap();
        let leaf = authority.leaf(&["localhost", "127.0.0.1"]).unwrap();
        std::fs::write(at.join("ca.pem"), authority.pem()).unwrap();
        std::fs::write(at.join("leaf.pem"), &leaf.certificate_pem).unwrap();
        std::fs::write(at.join("leaf.key"), &leaf.key_pem).unwrap();
        std::fs::create_dir(at.join("files")).unwrap();
        command.arg(program(name));
        command.args([at.join("leaf.pem"), at.join("leaf.key"), at.join("files")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap_or_else(|error| panic!("{name}: {error}: {line:?}"));
        Self { directory, child, port }
    }

    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        wait(&mut self.child, Duration::from_secs(20));
    }
}
