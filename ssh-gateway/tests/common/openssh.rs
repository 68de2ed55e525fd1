//! A stock sshd, and stock clients in front of a gateway.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use super::{AGENT, Home, policy_text, secret_file, within};
use ssh_gateway::{ClientConfig, Options, client_config};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

pub(crate) const SSHD: &str = "/usr/sbin/sshd";

/// A running sshd with keys of its own.
pub(crate) struct Sshd {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) user: String,
    /// Killed when dropped.
    _process: Child,
}

impl Sshd {
    /// Starts sshd with further lines of configuration, or says why it can't.
    pub(crate) async fn start_with(extra: &str) -> Option<Self> {
        if !Path::new(SSHD).exists() {
            eprintln!("skipped: {SSHD} is not installed (Debian: openssh-server)");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["host_key", "user_key"] {
            keygen(&path.join(name)).await;
        }
        std::fs::copy(path.join("user_key.pub"), path.join("authorized_keys")).unwrap();
        // sshd as root wants its empty directory.
        drop(std::fs::create_dir_all("/run/sshd"));
        // Another program can take the port meanwhile: then it is another port.
        for _ in 0..10 {
            let port = free_port();
            if let Some(process) = listen(path, port, extra).await {
                let address = SocketAddr::from(([127, 0, 0, 1], port));
                let user = Command::new("id").arg("-un").output().await.unwrap().stdout;
                let user = String::from_utf8(user).unwrap().trim().to_owned();
                return Some(Self { directory, address, user, _process: process });
            }
        }
        panic!("sshd found no port: {}", std::fs::read_to_string(path.join("log")).unwrap());
    }

    pub(crate) fn host_key(&self) -> String {
        let line = std::fs::read_to_string(self.directory.path().join("host_key.pub")).unwrap();
        line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn user_key(&self) -> policy::Secret {
        secret_file(&self.directory.path().join("user_key"))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

/// An sshd that listens on the port; none if it got it not.
async fn listen(path: &Path, port: u16, extra: &str) -> Option<Child> {
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {0}/host_key\nPidFile none\n\
             AuthorizedKeysFile {0}/authorized_keys\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
             AcceptEnv LANG LC_*\nSubsystem sftp internal-sftp\nMaxStartups 100\n{extra}\n",
        path.display()
    );
    std::fs::write(path.join("sshd_config"), config).unwrap();
    let log = std::fs::File::create(path.join("log")).unwrap();
    let mut process = Command::new(SSHD)
        .args(["-D", "-e", "-f"])
        .arg(path.join("sshd_config"))
        .stdin(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let listens = format!("Server listening on 127.0.0.1 port {port}.");
    let up = async {
        loop {
            let log = std::fs::read_to_string(path.join("log")).unwrap();
            if log.contains(&listens) {
                return true;
            }
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(up).await.then_some(process)
}

/// An agent of OpenSSH that listens, without keys; killed when dropped.
pub(crate) async fn agent(socket: &Path) -> Child {
    let mut agent = Command::new("ssh-agent");
    agent.args(["-D", "-a"]).arg(socket).stdout(Stdio::null()).kill_on_drop(true);
    let agent = agent.spawn().unwrap();
    let there = async {
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(there).await;
    agent
}

pub(crate) async fn keygen(path: &Path) {
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(within(made).await.unwrap().success());
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A gateway in front of an sshd, and a client configuration.
pub(crate) struct Bench {
    pub(crate) home: Home,
    pub(crate) sshd: Sshd,
    pub(crate) config: PathBuf,
}

impl Bench {
    pub(crate) async fn start(extra: &str) -> Option<Self> {
        Self::start_with(extra, "", Options::default()).await
    }

    /// With a target that lets nobody in but by a certificate of the CA whose key is `target-key`. The
    /// directory holds that key, and has to stay.
    pub(crate) async fn start_with_user_ca() -> Option<(Self, tempfile::TempDir)> {
        let keys = tempfile::tempdir().unwrap();
        let ca = keys.path().join("user_ca");
        keygen(&ca).await;
        let config = format!("TrustedUserCAKeys {}.pub\nLogLevel VERBOSE", ca.display());
        let bench = Self::start_with("", &config, Options::default()).await?;
        std::fs::write(bench.sshd.directory.path().join("authorized_keys"), "").unwrap();
        bench.home.policy.set_secret("target-key", &secret_file(&ca)).unwrap();
        Some((bench, keys))
    }

    pub(crate) async fn start_with(extra: &str, sshd: &str, options: Options) -> Option<Self> {
        let sshd = Sshd::start_with(sshd).await?;
        let text = policy_text(sshd.address, &sshd.host_key(), extra);
        let home = Home::start_with(&text, options).await;
        home.policy.set_secret("target-key", &sshd.user_key()).unwrap();
        home.identity.agent_key(AGENT).unwrap();
        let config = home.directory.path().join("ssh_config");
        let lines = client_config(&ClientConfig {
            directory: home.identity.directory(),
            host: "127.0.0.1",
            port: home.address.port(),
            agent: AGENT,
            targets: &[("t".to_owned(), 22)],
        });
        std::fs::write(&config, lines).unwrap();
        Some(Self { home, sshd, config })
    }

    /// A client command in batch mode, its own surroundings kept out.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("-F")
            .arg(&self.config)
            .args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"])
            .env_remove("SSH_AUTH_SOCK")
            .env_remove("SSH_ASKPASS")
            .env("HOME", self.home.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// `ssh t ARGUMENTS...`
    pub(crate) fn ssh(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("ssh");
        command.args(["-l", &self.sshd.user]).args(arguments);
        command
    }

    /// Applies a policy: one route for the host `t`, whose keys the caller writes.
    pub(crate) fn apply(&self, inject: &str, route: &str) {
        let text = format!(
            "[[credential]]\nid = \"c\"\nsecret = \"target-key\"\ninject = \"{inject}\"\n\
             [[ssh]]\nname = \"t\"\nagents = [\"{AGENT}\"]\nmatch = {{ host = \"t\" }}\n\
             address = \"{}\"\n{route}\n",
            self.sshd.address
        );
        if let Err(error) = self.home.policy.apply(&text, "policy.toml", "test") {
            panic!("{error:?}\n{text}");
        }
    }

    pub(crate) async fn run(&self, line: &str) -> Output {
        within(self.ssh(&["t", line]).output()).await.unwrap()
    }

    /// Runs with stdin.
    pub(crate) async fn run_with(&self, line: &str, stdin: Vec<u8>) -> Output {
        let mut child = self.ssh(&["t", line]).stdin(Stdio::piped()).spawn().unwrap();
        let mut writer = child.stdin.take().unwrap();
        let feeding = tokio::spawn(async move {
            drop(writer.write_all(&stdin).await);
        });
        let output = within(child.wait_with_output()).await.unwrap();
        feeding.abort();
        output
    }
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn pattern(length_bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    })
    .take(length_bytes)
    .collect()
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    journal::contract::Digest::of(bytes).to_string().replace("sha256:", "")
}
