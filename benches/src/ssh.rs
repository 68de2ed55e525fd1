//! The SSH gateway against OpenSSH's own jump, `ssh -J` through an sshd, on the same machine in one
//! run: the same client with the same ciphers, interleaved.

use crate::median;
use crate::server::binary;
use anyhow::{Context as _, ensure};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Content of one transfer.
const TRANSFER_BYTES: u64 = 1 << 30;
const TRANSFER_ROUNDS: usize = 3;
const CONNECT_ROUNDS: usize = 15;
const IDLE_SESSIONS: usize = 40;
const STALLED_STREAMS: usize = 10;
/// The client's first choices, as `affiant ssh-config` writes them.
const CIPHERS: &str = "aes128-gcm@openssh.com,aes256-gcm@openssh.com";

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn output(command: &mut Command, stdin: &str) -> anyhow::Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("stdin")?.write_all(stdin.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{command:?} failed");
    Ok(String::from_utf8(output.stdout)?)
}

/// An sshd with keys of its own.
struct Sshd {
    port: u16,
    _process: Running,
}

impl Sshd {
    fn start(root: &Path, name: &str) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = root.display();
        let config = root.join(format!("{name}.config"));
        std::fs::write(
            &config,
            format!(
                "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host\nPidFile none\n\
                 AuthorizedKeysFile {dir}/user.pub\nStrictModes no\nUsePAM no\n\
                 PasswordAuthentication no\nPermitRootLogin yes\nPrintMotd no\nMaxStartups 200\n"
            ),
        )?;
        // sshd as root wants its empty directory.
        drop(std::fs::create_dir_all("/run/sshd"));
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .context("start sshd")?;
        let process = Running(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < deadline, "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { port, _process: process })
    }
}

/// Everything on one machine: a target, a jump host, a gateway, and a configuration for each way.
struct Stage {
    root: tempfile::TempDir,
    user: String,
    gateway: Running,
    _target: Sshd,
    _jump: Sshd,
}

/// The ways to the target; the first is what the others are compared with.
const WAYS: [&str; 3] = ["ssh -J, sshd", "gateway", "direct"];

impl Stage {
    fn start() -> anyhow::Result<Self> {
        let root = tempfile::Builder::new().prefix("affiant-bench-ssh-").tempdir()?;
        let path = root.path();
        for name in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path.join(name));
            output(&mut keygen, "")?;
        }
        let user = output(Command::new("id").arg("-un"), "")?.trim().to_owned();
        let (target, jump) = (Sshd::start(path, "target")?, Sshd::start(path, "jump")?);
        let host_key = std::fs::read_to_string(path.join("host.pub"))?;
        let gateway = start_gateway(path, &user, target.port, host_key.trim())?;
        write_configs(path, &user, &target, &jump, &host_key)?;
        Ok(Self { root, user, gateway, _target: target, _jump: jump })
    }

    fn ssh(&self, way: &str, command: &str) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(self.root.path().join(config_name(way)));
        ssh.args(["-o", "BatchMode=yes", "-o", &format!("Ciphers={CIPHERS}")]);
        ssh.args(["-l", &self.user, "t", command]).env_remove("SSH_AUTH_SOCK");
        ssh.stdin(Stdio::null()).stdout(Stdio::piped());
        ssh
    }

    /// Milliseconds of `ssh t true`.
    fn connect(&self, way: &str) -> anyhow::Result<f64> {
        let began = Instant::now();
        ensure!(self.ssh(way, "true").status()?.success(), "{way}: true failed");
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    }

    /// MiB per second of one transfer.
    fn transfer(&self, way: &str) -> anyhow::Result<f64> {
        let began = Instant::now();
        let command = format!("head -c {TRANSFER_BYTES} /dev/zero");
        let mut child = self.ssh(way, &command).spawn()?;
        let mut stdout = child.stdout.take().context("stdout")?;
        let mut buffer = vec![0; 1 << 20];
        let mut received = 0;
        loop {
            match stdout.read(&mut buffer)? {
                0 => break,
                length => received += length as u64,
            }
        }
        ensure!(child.wait()?.success() && received == TRANSFER_BYTES, "{way}: it was cut");
        Ok((received >> 20) as f64 / began.elapsed().as_secs_f64())
    }

    /// A kibibyte figure of the gateway's memory.
    fn memory_kib(&self, name: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.gateway.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let figure = line.and_then(|line| line.split_whitespace().next()).context("no figure")?;
        Ok(figure.parse()?)
    }
}

fn config_name(way: &str) -> PathBuf {
    PathBuf::from(match way {
        "gateway" => "gateway_config",
        "direct" => "direct_config",
        _ => "jump_config",
    })
}

fn start_gateway(root: &Path, user: &str, port: u16, host_key: &str) -> anyhow::Result<Running> {
    let home = root.join("home");
    let affiant = |arguments: &[&str], stdin: &str| -> anyhow::Result<String> {
        output(Command::new(binary()?).arg("--home").arg(&home).args(arguments), stdin)
    };
    affiant(&["init"], "")?;
    affiant(&["agent", "add", "bench"], "")?;
    affiant(&["secret", "set", "key"], &std::fs::read_to_string(root.join("user"))?)?;
    let policy = root.join("policy.toml");
    let text = format!(
        "[[credential]]\nid = \"key\"\nsecret = \"key\"\ninject = \"ssh-key\"\n\n\
         [[ssh]]\nname = \"t\"\nagents = [\"bench\"]\n\
         match = {{ host = \"t\", port = 22, users = [\"{user}\"] }}\n\
         address = \"127.0.0.1:{port}\"\nhost_keys = [\"{host_key}\"]\ncredential = \"key\"\n\
         allow = [\"exec\"]\nrepeat_guard = \"off\"\n"
    );
    std::fs::write(&policy, text)?;
    affiant(&["policy", "apply", policy.to_str().context("a path")?], "")?;
    let mut child = Command::new(binary()?)
        .arg("--home")
        .arg(&home)
        .args(["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().context("stdout")?;
    let running = Running(child);
    BufReader::new(stdout).lines().next().context("a ready line")??;
    let config = affiant(&["ssh-config", "--agent", "bench"], "")?;
    std::fs::write(root.join("gateway_config"), config)?;
    Ok(running)
}

fn write_configs(
    root: &Path,
    user: &str,
    target: &Sshd,
    jump: &Sshd,
    host_key: &str,
) -> anyhow::Result<()> {
    let dir = root.display();
    std::fs::write(root.join("known"), format!("* {host_key}"))?;
    let common = format!(
        "    User {user}\n    IdentityFile {dir}/user\n    IdentitiesOnly yes\n    \
         UserKnownHostsFile {dir}/known\n    StrictHostKeyChecking yes\n    Ciphers {CIPHERS}\n"
    );
    let host = |name: &str, port: u16| {
        format!("Host {name}\n    HostName 127.0.0.1\n    Port {port}\n{common}")
    };
    std::fs::write(root.join("direct_config"), host("t", target.port))?;
    let through = format!("{}    ProxyJump j\n{}", host("t", target.port), host("j", jump.port));
    std::fs::write(root.join("jump_config"), through)?;
    Ok(())
}

/// Runs all rows.
pub(crate) fn run() -> anyhow::Result<()> {
    let stage = Stage::start()?;
    for way in WAYS {
        stage.connect(way)?;
    }
    let before_kib = stage.memory_kib("VmRSS:")?;
    let mut idle = Vec::new();
    for _ in 0..IDLE_SESSIONS {
        let mut child = stage.ssh("gateway", "cat").stdin(Stdio::piped()).spawn()?;
        let stdin = child.stdin.as_mut().context("stdin")?;
        stdin.write_all(b"x")?;
        child.stdout.as_mut().context("stdout")?.read_exact(&mut [0])?;
        idle.push(Running(child));
    }
    let idle_kib = (stage.memory_kib("VmRSS:")? - before_kib) / IDLE_SESSIONS as f64;
    drop(idle);
    table("ssh t true, ms", CONNECT_ROUNDS, |way| stage.connect(way))?;
    table("1 GiB on stdout, MiB/s", TRANSFER_ROUNDS, |way| stage.transfer(way))?;
    println!("\ngateway, an idle session with its command: {idle_kib:.0} KiB");
    let mut stalled = Vec::new();
    for _ in 0..STALLED_STREAMS {
        let command = format!("head -c {TRANSFER_BYTES} /dev/zero");
        let mut child = stage.ssh("gateway", &command).spawn()?;
        child.stdout.as_mut().context("stdout")?.read_exact(&mut [0])?;
        stalled.push(Running(child));
    }
    // Everything is full by then, and stays so.
    std::thread::sleep(Duration::from_secs(5));
    let (now, most) = (stage.memory_kib("VmRSS:")?, stage.memory_kib("VmHWM:")?);
    println!(
        "gateway, {STALLED_STREAMS} stalled streams of 1 GiB: {:.0} MiB resident, {:.0} at most",
        now / 1024.0,
        most / 1024.0
    );
    drop(stalled);
    Ok(())
}

/// Measures all ways in turn, and prints their medians and what they are of the first.
fn table(
    title: &str,
    rounds: usize,
    mut measure: impl FnMut(&str) -> anyhow::Result<f64>,
) -> anyhow::Result<()> {
    let mut rows = WAYS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (way, row) in WAYS.iter().zip(&mut rows) {
            row.push(measure(way)?);
        }
    }
    println!("\n{title}: medians of {rounds} interleaved rounds");
    let first = rows.first().map_or(f64::NAN, |row| median(row.iter().copied()));
    for (way, row) in WAYS.iter().zip(&rows) {
        let middle = median(row.iter().copied());
        println!("{way:<14} {middle:>9.1} {:>8.2}x", middle / first);
    }
    Ok(())
}
