//! Gateways that know nothing of routes: `ssh -J` as OpenSSH has it. The client itself holds the key
//! and pins the targets.

use super::play::{Gateway, Placed};
use crate::baseline::{Process, find, free_port, listening, write};
use crate::subject::{Error, clean, end, io};
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// An sshd that forwards, on loopback. Ends when dropped.
pub struct Jump {
    process: Process,
    /// `USER@HOST:PORT`, as `ssh -J` takes it.
    pub at: String,
}

impl Jump {
    /// Starts it.
    ///
    /// # Errors
    /// [`Error`] when OpenSSH is not there or does not start.
    pub fn start() -> Result<Self, Error> {
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
        let address = free_port()?;
        let text = format!(
            "ListenAddress {address}\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\n\
             PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             PermitRootLogin yes\nMaxStartups 200\n",
            at = at.display()
        );
        let file = write(&at.join("sshd_config"), &text)?;
        let user = output("id", "-un")?;
        // Debian's sshd wants this folder of its own even when it is started by hand.
        if user == "root" {
            std::fs::create_dir_all("/run/sshd").map_err(io("make sshd's folder"))?;
        }
        let mut command = Command::new(find("sshd")?);
        command.args(["-D", "-e", "-f", &file]);
        clean(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(io("start sshd"))?;
        let mut process = Process { child, directory };
        listening(&mut process.child, "sshd", address)?;
        Ok(Self { process, at: format!("{user}@{address}") })
    }

    /// The way through it to the targets.
    ///
    /// # Errors
    /// [`Error`]
    pub fn gateway(&self, placed: &Placed) -> Result<Gateway, Error> {
        let at = self.process.directory.path();
        gateway(placed, &self.at, Some(&at.join("user")), at)
    }
}

/// The way through a gateway that forwards, to the targets: a configuration for `ssh` in a directory.
/// Without a key the client logs in at the gateway with what it finds by itself.
///
/// # Errors
/// [`Error`] when a file can't be written, a port was lost, or the gateway does not forward.
pub fn gateway(
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
    forwards(&file, jump)?;
    Ok(Gateway { config: file, jump: jump.to_owned(), records: None })
}

/// Sends a line through the gateway: one that is not there, refuses the login or does not forward would
/// make a shrug of every row.
fn forwards(config: &Path, jump: &str) -> Result<(), Error> {
    const LINE: &[u8] = b"conformance\n";
    const AT_MOST: Duration = Duration::from_secs(30);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("listen"))?;
    listener.set_nonblocking(true).map_err(io("listen"))?;
    let address = listener.local_addr().map_err(io("listen"))?;
    let mut command = Command::new("ssh");
    command.arg("-F").arg(config).args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
    command.args(["-W", &address.to_string(), &format!("ssh://{jump}")]);
    clean(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(io("start ssh"))?;
    let until = Instant::now() + AT_MOST;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        if let Ok((mut stream, _)) = listener.accept() {
            stream.write_all(LINE).map_err(io("write to the gateway"))?;
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if Instant::now() >= until {
        end(&mut child);
    }
    let output = child.wait_with_output().map_err(io("wait for ssh"))?;
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
