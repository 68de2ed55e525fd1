//! Brokers that the suite starts itself: Affiant from a binary, in a home of its own.

#![allow(clippy::indexing_slicing, reason = "a JSON value gives null for a name it does not hold")]

use crate::http::Caller;
use crate::matrix::{Broker, Dialect, LOOPBACK, Plan, Report};
use crate::ssh;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A broker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system's word.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A program ended or answered in a way that it should not.
    #[error("{0}")]
    Unexpected(String),
}

pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Variables that would send a child's own traffic elsewhere.
const PROXY_VARIABLES: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "AFFIANT_HOME",
    "AFFIANT_LOG",
];

/// Origins that one server is shown; it keeps connections to 1024 at most.
const ORIGINS: usize = 900;

/// Removes what the surrounding shell could bring in.
pub(crate) fn clean(command: &mut Command) {
    for name in PROXY_VARIABLES {
        command.env_remove(name);
    }
}

/// TLS trust in one authority.
///
/// # Errors
/// [`Error`] when the PEM text holds no certificate.
pub fn trust(pem: &str) -> Result<Arc<rustls::ClientConfig>, Error> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let refused = |error: &dyn std::fmt::Display| Error::Unexpected(format!("the CA: {error}"));
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| refused(&error))?;
        roots.add(certificate).map_err(|error| refused(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A home of Affiant with an agent.
pub struct Home {
    directory: tempfile::TempDir,
    binary: PathBuf,
    token: String,
    /// What the agent trusts.
    trust: Arc<rustls::ClientConfig>,
}

/// A running `affiant serve`. Killed when dropped.
pub struct Serving {
    child: Child,
    /// Where the proxy listens.
    pub http: SocketAddr,
    /// Where the SSH gateway listens.
    pub ssh: SocketAddr,
}

impl Home {
    /// Makes a home with the binary.
    ///
    /// # Errors
    /// [`Error`]
    pub fn new(binary: &Path) -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix("affiant-conformance-")
            .tempdir()
            .map_err(io("make a home"))?;
        let mut home =
            Self { directory, binary: binary.to_owned(), token: String::new(), trust: trust("")? };
        home.run(&["init"])?;
        let added: Value = serde_json::from_str(&home.run(&["agent", "add", "coder", "--json"])?)
            .map_err(|error| Error::Unexpected(format!("agent add: {error}")))?;
        home.token = added["token"].as_str().unwrap_or_default().to_owned();
        home.trust = trust(&home.run(&["ca", "cert"])?)?;
        Ok(home)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command of the binary in this home.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--home").arg(self.path()).args(arguments);
        clean(&mut command);
        command
    }

    /// Runs a command that has to succeed; gives what it printed.
    ///
    /// # Errors
    /// [`Error`] with its stderr when it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        let name = format!("affiant {}", arguments.join(" "));
        let output = self.command(arguments).output().map_err(io(name.clone()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::Unexpected(format!("{name}: {}: {said}", output.status)))
    }

    /// Applies a policy.
    ///
    /// # Errors
    /// [`Error`]
    pub fn policy(&self, text: &str) -> Result<(), Error> {
        let file = self.path().join("conformance-policy.toml");
        std::fs::write(&file, text).map_err(io("write the policy"))?;
        self.run(&["policy", "apply", &file.to_string_lossy()]).map(drop)
    }

    /// Starts the server; `by` is a program and its arguments that start the binary in turn.
    ///
    /// # Errors
    /// [`Error`]
    pub fn serve(&self, by: &[&str]) -> Result<Serving, Error> {
        let serve = ["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0", "--json"];
        let mut command = match by {
            [] => self.command(&serve),
            [program, first @ ..] => {
                let mut command = Command::new(program);
                command.args(first).arg(&self.binary).arg("--home").arg(self.path()).args(serve);
                clean(&mut command);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start affiant"))?;
        let stdout = child.stdout.take();
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line).map_err(io("read the ready line"))?;
        }
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let at = |name: &str| ready["ready"][name].as_str().and_then(|at| at.parse().ok());
        let (Some(http), Some(ssh)) = (at("http"), at("ssh")) else {
            let ended = child.kill().and_then(|()| child.wait());
            return Err(Error::Unexpected(format!("affiant serve did not start: {ended:?}")));
        };
        Ok(Serving { child, http, ssh })
    }

    /// The agent at a running server.
    #[must_use]
    pub fn caller(&self, http: SocketAddr, patience: Duration) -> Caller {
        let pair = STANDARD.encode(format!("coder:{}", self.token));
        Caller {
            proxy: http,
            authorization: Some(format!("Basic {pair}")),
            trust: Some(Arc::clone(&self.trust)),
            patience,
        }
    }

    /// Plays a plan against servers of this home.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn play(&self, plan: Plan, at_a_time: usize) -> Result<Report, Error> {
        let authority = self.path().join("origins.pem");
        std::fs::write(&authority, plan.authority_pem()).map_err(io("write the CA"))?;
        self.policy(&plan.policy(&authority).map_err(io("make the policy"))?)?;
        let mut all: Option<Report> = None;
        for part in plan.parts(ORIGINS) {
            let serving = self.serve(&[])?;
            let broker = self.broker(serving.http);
            let report = part.play(&broker, at_a_time).await?;
            match &mut all {
                None => all = Some(report),
                Some(all) => all.merge(report),
            }
        }
        all.ok_or_else(|| Error::Unexpected("the plan is empty".to_owned()))
    }

    /// Stores a secret.
    ///
    /// # Errors
    /// [`Error`]
    pub fn secret(&self, name: &str, value: &str) -> Result<(), Error> {
        use std::io::Write as _;
        let mut command = self.command(&["secret", "set", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start affiant"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(value.as_bytes()).map_err(io("write the secret"))?;
        }
        let status = child.wait().map_err(io("wait for affiant"))?;
        if status.success() { Ok(()) } else { Err(Error::Unexpected(format!("secret: {status}"))) }
    }

    /// How `ssh` reaches the gateway of a running server.
    ///
    /// # Errors
    /// [`Error`]
    pub fn gateway(&self, serving: &Serving) -> Result<ssh::Gateway, Error> {
        let config = self.path().join("conformance-ssh-config");
        let text = self.run(&["ssh-config", "--agent", "coder"])?;
        std::fs::write(&config, text).map_err(io("write the configuration of ssh"))?;
        Ok(ssh::Gateway {
            config,
            jump: format!("coder@{}", serving.ssh),
            records: Some(self.caller(serving.http, Duration::from_secs(20))),
        })
    }

    /// Plays SSH rows against a server of this home.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn play_ssh(&self, rows: ssh::Placed, at_a_time: usize) -> Result<Report, Error> {
        self.secret("row-key", &rows.user_key)?;
        self.policy(&rows.policy().map_err(io("make the policy"))?)?;
        let serving = self.serve(&[])?;
        let gateway = self.gateway(&serving)?;
        rows.play("affiant over SSH", &gateway, at_a_time).await
    }

    /// The broker for the matrix.
    #[must_use]
    pub fn broker(&self, http: SocketAddr) -> Broker {
        Broker {
            name: "affiant".to_owned(),
            caller: self.caller(http, Duration::from_secs(20)),
            dialect: Dialect::Affiant,
            contracts: true,
            host: LOOPBACK,
            http2: true,
        }
    }
}

impl Serving {
    /// The process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits at most so long; whether it did.
    pub fn terminate(&mut self, at_most: Duration) -> bool {
        let process = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw);
        let sent = process
            .map(|process| rustix::process::kill_process(process, rustix::process::Signal::TERM));
        matches!(sent, Some(Ok(()))) && self.ended_within(at_most)
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// [`Error`] when it can't be sent.
    pub fn strike(&self) -> Result<(), Error> {
        let process = i32::try_from(self.id()).ok().and_then(rustix::process::Pid::from_raw);
        let process = process.ok_or_else(|| Error::Unexpected("no such process".to_owned()))?;
        let sent = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        sent.map_err(|error| io("kill affiant")(error.into()))
    }

    /// Ends it by SIGKILL and waits.
    pub fn kill(mut self) {
        end(&mut self.child);
    }

    /// Waits for its end, at most so long; whether it ended by itself.
    pub fn ended_within(&mut self, at_most: Duration) -> bool {
        let until = std::time::Instant::now() + at_most;
        while std::time::Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

/// Kills a child that still runs.
pub(crate) fn end(child: &mut Child) {
    if matches!(child.try_wait(), Ok(None)) {
        let ended = child.kill().and_then(|()| child.wait());
        tracing::debug!("ended a broker: {ended:?}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
