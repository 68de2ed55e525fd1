//! Gateways that know nothing of routes: `ssh -J` as OpenSSH has it. The client itself holds the key
//! and pins the targets.

use super::play::{Gateway, Placed};
use crate::baseline::{find, write};
use crate::subject::{Error, clean, io};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// OpenSSH's server as a gateway that forwards, on loopback: an `sshd -i` for each connection to a port
/// that is held here. Ends when dropped.
pub struct Jump {
    serving: JoinHandle<()>,
    directory: tempfile::TempDir,
    /// `USER@HOST:PORT`, as `ssh -J` takes it.
    pub at: String,
}

impl Drop for Jump {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Jump {
    /// Starts it in the current runtime.
    ///
    /// # Errors
    /// [`Error`] when OpenSSH is not there.
    pub async fn start() -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix("conformance-baseline-")
            .tempdir()
            .map_err(io("make a directory"))?;
        let at = directory.path();
        for name in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at.join(name));
            let status = keygen.status().map_err(io("run ssh-keygen"))?;
            if !status.success() {
                return Err(Error::Unexpected(format!("ssh-keygen: {status}")));
            }
        }
        let text = format!(
            "HostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n",
            at = at.display()
        );
        let config = at.join("sshd_config");
        write(&config, &text)?;
        let user = output("id", "-un")?;
        // Debian's sshd wants this folder of its own even when it is started by hand.
        if user == "root" {
            std::fs::create_dir_all("/run/sshd").map_err(io("make sshd's folder"))?;
        }
        let listener = TcpListener::bind(LOOPBACK).await.map_err(io("listen"))?;
        let address = listener.local_addr().map_err(io("listen"))?;
        let serving = tokio::spawn(serve(listener, find("sshd")?, config));
        Ok(Self { serving, directory, at: format!("{user}@{address}") })
    }

    /// The way through it to the targets.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn gateway(&self, placed: &Placed) -> Result<Gateway, Error> {
        let at = self.directory.path();
        gateway(placed, &self.at, Some(&at.join("user")), at).await
    }
}

/// Gives each connection a server of its own.
async fn serve(listener: TcpListener, program: PathBuf, config: PathBuf) {
    let mut sessions = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        match session(stream, &program, &config) {
            Ok(mut sshd) => {
                sessions.spawn(async move { sshd.wait().await });
            }
            Err(error) => tracing::error!("sshd: {error}"),
        }
        while sessions.try_join_next().is_some() {}
    }
}

fn session(
    stream: TcpStream,
    program: &Path,
    config: &Path,
) -> std::io::Result<tokio::process::Child> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let mut command = Command::new(program);
    command.arg("-i").arg("-f").arg(config);
    clean(&mut command);
    command.stdin(OwnedFd::from(stream.try_clone()?)).stdout(OwnedFd::from(stream));
    command.stderr(Stdio::null());
    tokio::process::Command::from(command).kill_on_drop(true).spawn()
}

/// The way through a gateway that forwards, to the targets: a configuration for `ssh` in a directory.
/// Without a key the client logs in at the gateway with what it finds by itself.
///
/// # Errors
/// [`Error`] when a file can't be written, a port was lost, or the gateway does not forward.
pub async fn gateway(
    placed: &Placed,
    jump: &str,
    key: Option<&Path>,
    directory: &Path,
) -> Result<Gateway, Error> {
    let host = jump.rsplit_once('@').map_or(jump, |(_, at)| at);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let key = key.map_or_else(String::new, |key| {
        format!("  IdentityFile {}\n  IdentitiesOnly yes\n", key.display())
    });
    // The gateway is no subject of the rows over SSH that ask for a host key.
    let mut config = format!(
        "Host {host}\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n\
         \x20 LogLevel ERROR\n{key}\n"
    );
    let own = write(&directory.join("row-key"), &placed.user_key)?;
    private(&directory.join("row-key"))?;
    let mut known = String::new();
    for (number, (address, host_key)) in
        placed.targets().map_err(io("find the targets"))?.into_iter().enumerate()
    {
        let (ip, port) = (address.ip(), address.port());
        config.push_str(&format!(
            "Host row{number}\n  HostName {ip}\n  Port {port}\n  HostKeyAlias row{number}\n\n"
        ));
        known.push_str(&format!("row{number} {host_key}\n"));
    }
    let known = write(&directory.join("known_hosts"), &known)?;
    config.push_str(&format!(
        "Host row*\n  IdentityFile {own}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n\
         \x20 GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n\
         \x20 ServerAliveInterval 2\n  ServerAliveCountMax 2\n"
    ));
    let file = directory.join("ssh_config");
    write(&file, &config)?;
    forwards(&file, jump).await?;
    Ok(Gateway { config: file, jump: jump.to_owned(), records: None })
}

/// Sends a line through the gateway: one that is not there, refuses the login or does not forward would
/// make a shrug of every row.
async fn forwards(config: &Path, jump: &str) -> Result<(), Error> {
    const LINE: &[u8] = b"conformance\n";
    const AT_MOST: Duration = Duration::from_secs(30);
    let listener = TcpListener::bind(LOOPBACK).await.map_err(io("listen"))?;
    let address = listener.local_addr().map_err(io("listen"))?;
    let mut command = Command::new("ssh");
    command.arg("-F").arg(config).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
    command.args(["-W", &address.to_string(), &format!("ssh://{jump}")]);
    clean(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut ssh = tokio::process::Command::from(command);
    let ssh = ssh.kill_on_drop(true).output();
    let greets = async {
        let (mut stream, _) = listener.accept().await?;
        stream.write_all(LINE).await
    };
    let both = async {
        tokio::pin!(ssh);
        tokio::select! {
            // It ends by itself when it is refused.
            output = &mut ssh => output,
            greeted = greets => {
                greeted?;
                ssh.await
            }
        }
    };
    let late = |_| Error::Unexpected(format!("{jump} does not forward in {AT_MOST:?}"));
    let output = tokio::time::timeout(AT_MOST, both).await.map_err(late)?.map_err(io("run ssh"))?;
    if output.stdout == LINE {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Unexpected(format!("{jump} does not forward: {said}")))
}

/// `ssh` takes no key that others can read.
fn private(file: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let only_owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(file, only_owner).map_err(io("hide the key"))
}

fn output(program: &str, argument: &str) -> Result<String, Error> {
    let output =
        Command::new(program).arg(argument).output().map_err(io(format!("run {program}")))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
