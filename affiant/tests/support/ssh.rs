//! An sshd of the tests' own, the binary in front of it, and stock ssh clients.
#![allow(dead_code, reason = "every test file uses a part of it")]

use crate::support::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// An sshd of the test's own on a high port, with one authorised key and one user CA.
pub(crate) struct Sshd {
    directory: tempfile::TempDir,
    child: Child,
    pub(crate) port: u16,
    pub(crate) host_key: String,
    pub(crate) user_key: String,
    pub(crate) user_ca: String,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) fn user() -> String {
    let mut command = Command::new("id");
    command.arg("-un");
    succeed(command).trim().to_owned()
}

pub(crate) fn keygen(path: &Path) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path);
    succeed(command);
}

/// An sshd on a port that was free; none if it is not any more.
fn listen(root: &Path) -> Option<(Child, u16)> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let dir = root.display();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\nPidFile {dir}/pid\n\
         AuthorizedKeysFile {dir}/authorized\nTrustedUserCAKeys {dir}/user_ca.pub\n\
         StrictModes no\nUsePAM no\n\
         PasswordAuthentication no\nPermitRootLogin yes\nPrintMotd no\n\
         AcceptEnv LC_*\nSubsystem sftp internal-sftp\n"
    );
    std::fs::write(root.join("config"), config).unwrap();
    let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("sshd is not installed: run the tests by `./dev test`");
    let log = std::fs::File::create(root.join("log")).unwrap();
    let mut child = Command::new(program)
        .args(["-D", "-e", "-f"])
        .arg(root.join("config"))
        .stderr(log)
        .spawn()
        .unwrap();
    let listens = format!("Server listening on 127.0.0.1 port {port}.");
    let mut is_up = false;
    eventually("sshd", || {
        is_up = std::fs::read_to_string(root.join("log")).unwrap().contains(&listens);
        is_up || child.try_wait().unwrap().is_some()
    });
    is_up.then_some((child, port))
}

impl Sshd {
    pub(crate) fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("affiant-sshd-").tempdir().unwrap();
        let root = directory.path();
        for name in ["host", "user", "user_ca"] {
            keygen(&root.join(name));
        }
        std::fs::copy(root.join("user.pub"), root.join("authorized")).unwrap();
        // Debian's sshd wants this folder of its own even when it is started by hand.
        if user() == "root" {
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        // Another program can take a free port meanwhile: then it is another port.
        let started = (0..10).find_map(|_| listen(root));
        let (child, port) = started.expect("sshd found no port");
        let host_key = std::fs::read_to_string(root.join("host.pub")).unwrap();
        let host_key = host_key.trim().to_owned();
        let user_key = std::fs::read_to_string(root.join("user")).unwrap();
        let user_ca = std::fs::read_to_string(root.join("user_ca")).unwrap();
        Self { directory, child, port, host_key, user_key, user_ca }
    }

    /// What sshd itself says of its logins.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) fn policy(&self, host_key: &str) -> String {
        format!(
            r#"
[[credential]]
id = "deploy"
secret = "deploy-key"
inject = "ssh-key"

[[ssh]]
name = "prod"
agents = ["coder"]
match = {{ host = "prod-1", port = 22, users = ["{user}"], commands = ["*"] }}
address = "127.0.0.1:{port}"
host_keys = ["{host_key}"]
credential = "deploy"
allow = ["exec", "shell"]
shell = "any"
"#,
            user = user(),
            port = self.port
        )
    }
}

pub(crate) struct Bench {
    pub(crate) home: Home,
    pub(crate) sshd: Sshd,
    pub(crate) server: Server,
    pub(crate) config: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with("", "")
    }

    /// With more text before the route, and more keys in it.
    pub(crate) fn with(before: &str, keys: &str) -> Self {
        let sshd = Sshd::start();
        let home = Home::new();
        home.secret("deploy-key", &sshd.user_key);
        home.policy(&format!("{before}{}{keys}", sshd.policy(&sshd.host_key)));
        let server = home.serve();
        let config = home.path().join("ssh_config");
        std::fs::write(&config, home.ok(&["ssh-config", "--agent", "coder"])).unwrap();
        Self { home, sshd, server, config }
    }

    /// `ssh -J coder@127.0.0.1:PORT user@prod-1 CMD`, with nothing but the printed configuration.
    pub(crate) fn ssh(&self, more: &[&str], command: &str) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(&self.config).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
        ssh.args(more);
        ssh.arg("-J").arg(format!("coder@{}", self.server.ssh));
        ssh.arg(format!("{}@prod-1", user())).arg(command);
        clean(&mut ssh);
        ssh
    }

    pub(crate) fn newest(&self) -> Value {
        self.home.json(&["inv", "list", "--limit", "1"])["invocations"][0].clone()
    }
}
