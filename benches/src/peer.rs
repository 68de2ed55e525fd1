//! Other people's intercepting proxies, each injecting the same header as Affiant, started on loopback
//! in a directory of its own.

use crate::load::Path;
use anyhow::{Context as _, ensure};
use conformance::pki::Authority;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(30);

/// The proxies that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With `ssl_bump`.
    Squid,
    /// The program of `benches/hudsucker`.
    Hudsucker,
    Mitmproxy,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Squid, Self::Hudsucker, Self::Mitmproxy];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Squid => "squid",
            Self::Hudsucker => "hudsucker",
            Self::Mitmproxy => "mitmproxy",
        }
    }
}

/// A running proxy, ended when dropped.
pub(crate) struct Peer {
    child: Child,
    address: SocketAddr,
    ca_pem: String,
    directory: tempfile::TempDir,
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Peer {
    /// Starts a proxy that trusts the authority in `origin_ca`.
    pub(crate) fn start(kind: Kind, origin_ca: &std::path::Path) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("affiant-bench-peer-").tempdir()?;
        let at = directory.path();
        let authority = Authority::new("bench proxy CA")?;
        std::fs::write(at.join("ca.pem"), authority.pem())?;
        std::fs::write(at.join("ca.key"), authority.key_pem())?;
        std::fs::copy(origin_ca, at.join("origins.pem"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        drop(listener);
        let mut command = match kind {
            Kind::Squid => squid(at, address.port())?,
            Kind::Hudsucker => hudsucker(at, address.port())?,
            Kind::Mitmproxy => mitmproxy(at, address.port())?,
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let mut peer = Self { child, address, ca_pem: String::new(), directory };
        let until = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            let ended = peer.child.try_wait()?;
            ensure!(ended.is_none(), "{} ended at once: {ended:?}", kind.name());
            ensure!(Instant::now() < until, "{} does not listen", kind.name());
            std::thread::sleep(Duration::from_millis(50));
        }
        let ca = match kind {
            Kind::Squid | Kind::Hudsucker => "ca.pem",
            Kind::Mitmproxy => "mitmproxy-ca-cert.pem",
        };
        peer.ca_pem = std::fs::read_to_string(peer.directory.path().join(ca))?;
        Ok(peer)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self) -> anyhow::Result<Path> {
        Path::proxied(self.address, None, &self.ca_pem)
    }
}

/// The first of some files that is there.
fn first(files: &[&str], what: &str) -> anyhow::Result<PathBuf> {
    let found = files.iter().map(PathBuf::from).find(|file| file.exists());
    found.with_context(|| format!("{what} is not installed: `./dev bench peers` installs it"))
}

/// A program whose path `./dev` gives in the environment.
fn given(variable: &str) -> anyhow::Result<Command> {
    let path = std::env::var_os(variable).with_context(|| format!("{variable} is not set"))?;
    Ok(Command::new(path))
}

fn squid(at: &std::path::Path, port: u16) -> anyhow::Result<Command> {
    let program = first(&["/usr/sbin/squid", "/opt/homebrew/sbin/squid"], "squid")?;
    let version = Command::new(&program).arg("-v").output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    ensure!(version.contains("--with-openssl"), "this squid was built without ssl_bump");
    let minter = first(
        &[
            "/usr/lib/squid/security_file_certgen",
            "/opt/homebrew/opt/squid/libexec/security_file_certgen",
        ],
        "security_file_certgen",
    )?;
    let dir = at.display();
    let minter = minter.display();
    let text = format!(
        "http_port 127.0.0.1:{port} ssl-bump tls-cert={dir}/ca.pem tls-key={dir}/ca.key \
         generate-host-certificates=on dynamic_cert_mem_cache_size=4MB\n\
         sslcrtd_program {minter} -s {dir}/db -M 4MB\nsslcrtd_children 2 startup=1 idle=1\n\
         acl step1 at_step SslBump1\nssl_bump peek step1\nssl_bump bump all\n\
         tls_outgoing_options cafile={dir}/origins.pem\n\
         request_header_access Authorization deny all\n\
         request_header_add Authorization \"Bearer bench-token\" all\n\
         http_access allow localhost\nhttp_access deny all\ncache deny all\n\
         access_log none\ncache_log {dir}/log\ncache_store_log none\npid_filename none\n\
         coredump_dir {dir}\nshutdown_lifetime 0 seconds\nmax_filedescriptors 16384\n\
         pinger_enable off\nvisible_hostname bench\n"
    );
    std::fs::write(at.join("squid.conf"), text)?;
    let mut command = Command::new(minter.to_string());
    let made = command.args(["-c", "-s"]).arg(at.join("db")).args(["-M", "4MB"]).output()?;
    ensure!(made.status.success(), "security_file_certgen: {made:?}");
    // As root, squid becomes the user of its package.
    if is_root() {
        let status = Command::new("chown").args(["-R", "proxy"]).arg(at).status()?;
        ensure!(status.success(), "chown");
    }
    let mut command = Command::new(program);
    command.args(["-N", "-f"]).arg(at.join("squid.conf"));
    Ok(command)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout.starts_with(b"0"))
}

fn hudsucker(at: &std::path::Path, port: u16) -> anyhow::Result<Command> {
    let mut command = given("AFFIANT_BENCH_HUDSUCKER")?;
    command.arg(port.to_string());
    command.args([at.join("ca.pem"), at.join("ca.key"), at.join("origins.pem")]);
    Ok(command)
}

fn mitmproxy(at: &std::path::Path, port: u16) -> anyhow::Result<Command> {
    let mut command = given("AFFIANT_BENCH_MITMDUMP")?;
    command.args(["-q", "--listen-host=127.0.0.1", "--set=flow_detail=0"]);
    command.arg(format!("--listen-port={port}")).arg(format!("--set=confdir={}", at.display()));
    let origins = at.join("origins.pem");
    command.arg(format!("--set=ssl_verify_upstream_trusted_ca={}", origins.display()));
    command.arg("--modify-headers=/~q/Authorization/Bearer bench-token");
    // Without it, long content is held as a whole.
    command.arg("--set=stream_large_bodies=1m");
    Ok(command)
}
