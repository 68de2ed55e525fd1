//! Other people's proxies and gateways, started on loopback in a directory of their own, so that a
//! comparison is one command. Only what Debian, PyPI or cargo install; only settings that a forward
//! proxy needs and time limits as short as the matrix's.

use crate::http::Caller;
use crate::matrix::{Broker, Dialect, LOOPBACK};
use crate::pki::Authority;
use crate::subject::{Error, clean, end, io, trust};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The proxies that can be started here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// squid, without interception of TLS.
    Squid,
    /// tinyproxy.
    Tinyproxy,
    /// privoxy, without its filters.
    Privoxy,
    /// mitmproxy.
    Mitmproxy,
    /// A proxy of the library hudsucker: the program of `benches/hudsucker`.
    Hudsucker,
}

impl Baseline {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::Squid, Self::Tinyproxy, Self::Privoxy, Self::Mitmproxy, Self::Hudsucker];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Squid => "squid",
            Self::Tinyproxy => "tinyproxy",
            Self::Privoxy => "privoxy",
            Self::Mitmproxy => "mitmproxy",
            Self::Hudsucker => "hudsucker",
        }
    }

    /// Whether it takes HTTP/2 in a tunnel as it is set up: hudsucker has it outside of its default
    /// features, and those that do not intercept have no tunnel of their own to take it in.
    const fn takes_http2(self) -> bool {
        match self {
            Self::Mitmproxy => true,
            Self::Squid | Self::Tinyproxy | Self::Privoxy | Self::Hudsucker => false,
        }
    }

    /// How origins are named to it: hudsucker writes addresses into its certificates as names, which no
    /// caller takes.
    const fn host(self) -> &'static str {
        match self {
            Self::Hudsucker => "localhost",
            Self::Squid | Self::Tinyproxy | Self::Privoxy | Self::Mitmproxy => LOOPBACK,
        }
    }

    /// Starts it, with trust in the origins' authority.
    ///
    /// # Errors
    /// [`Error`] when the program is not there or does not start.
    pub fn start(self, origins_pem: &str) -> Result<Running, Error> {
        let name = self.name();
        let directory = tempfile::Builder::new()
            .prefix("conformance-baseline-")
            .tempdir()
            .map_err(io("make a directory"))?;
        let origins = directory.path().join("origins.pem");
        std::fs::write(&origins, origins_pem).map_err(io("write the CA"))?;
        let address = free_port()?;
        let prepared = self.prepare(directory.path(), address.port(), &origins)?;
        let mut command = Command::new(&prepared.program);
        command.args(&prepared.arguments).current_dir(directory.path());
        clean(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(io(format!("start {name}")))?;
        let mut process = Process { child, _directory: directory };
        listening(&mut process.child, name, address)?;
        let trust = match prepared.ca {
            None => None,
            Some(file) => {
                let pem = std::fs::read_to_string(file).map_err(io("read the proxy's CA"))?;
                Some(trust(&pem)?)
            }
        };
        let patience = Duration::from_secs(8);
        let broker = Broker {
            name: name.to_owned(),
            caller: Caller { proxy: address, authorization: None, trust, patience },
            dialect: Dialect::Plain,
            contracts: false,
            host: self.host(),
            http2: self.takes_http2(),
        };
        Ok(Running { _process: process, broker })
    }

    fn prepare(self, at: &Path, port: u16, origins: &Path) -> Result<Prepared, Error> {
        match self {
            Self::Squid => squid(at, port),
            Self::Tinyproxy => tinyproxy(at, port),
            Self::Privoxy => privoxy(at, port),
            Self::Mitmproxy => mitmproxy(at, port, origins),
            Self::Hudsucker => hudsucker(at, port, origins),
        }
    }
}

/// There is no such proxy.
#[derive(Debug, thiserror::Error)]
#[error("no baseline {0:?}; there are {names}", names = Baseline::ALL.map(Baseline::name).join(", "))]
pub struct Unknown(String);

impl FromStr for Baseline {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        let found = Self::ALL.into_iter().find(|baseline| baseline.name() == name);
        found.ok_or_else(|| Unknown(name.to_owned()))
    }
}

/// A running proxy. Ends when dropped.
pub struct Running {
    _process: Process,
    /// How it is asked.
    pub broker: Broker,
}

/// A child in a directory of its own.
struct Process {
    child: Child,
    _directory: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The program and arguments of a proxy, with its files written.
struct Prepared {
    program: PathBuf,
    arguments: Vec<String>,
    /// Where the certificate of its own authority lies, if it intercepts TLS.
    ca: Option<PathBuf>,
}

fn free_port() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("find a port"))?;
    listener.local_addr().map_err(io("find a port"))
}

fn listening(child: &mut Child, name: &str, address: SocketAddr) -> Result<(), Error> {
    const START: Duration = Duration::from_secs(30);
    let until = Instant::now() + START;
    while TcpStream::connect(address).is_err() {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(Error::Unexpected(format!("{name} ended at once: {status}")));
        }
        if Instant::now() > until {
            return Err(Error::Unexpected(format!("{name} does not listen after {START:?}")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The program, from `PATH` and the places of system daemons.
pub(crate) fn find(program: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Unexpected(format!("{program} is not installed")))
}

pub(crate) fn write(file: &Path, text: &str) -> Result<String, Error> {
    std::fs::write(file, text).map_err(io(format!("write {}", file.display())))?;
    Ok(file.display().to_string())
}

fn squid(at: &Path, port: u16) -> Result<Prepared, Error> {
    let text = format!(
        "http_port 127.0.0.1:{port}\nhttp_access allow localhost\nhttp_access deny all\n\
         cache deny all\naccess_log none\ncache_log /dev/null\ncache_store_log none\n\
         pid_filename none\npinger_enable off\nshutdown_lifetime 0 seconds\n\
         connect_timeout 3 seconds\nread_timeout 3 seconds\n\
         max_filedescriptors 8192\nvisible_hostname conformance\n"
    );
    let file = write(&at.join("configuration"), &text)?;
    let arguments = ["-N", "-f", &file].map(str::to_owned).to_vec();
    Ok(Prepared { program: find("squid")?, arguments, ca: None })
}

fn tinyproxy(at: &Path, port: u16) -> Result<Prepared, Error> {
    let text =
        format!("Port {port}\nListen 127.0.0.1\nTimeout 3\nMaxClients 512\nLogLevel Critical\n");
    let file = write(&at.join("configuration"), &text)?;
    let arguments = ["-d", "-c", &file].map(str::to_owned).to_vec();
    Ok(Prepared { program: find("tinyproxy")?, arguments, ca: None })
}

fn privoxy(at: &Path, port: u16) -> Result<Prepared, Error> {
    let text = format!(
        "listen-address 127.0.0.1:{port}\nconfdir {at}\nlogdir {at}\ntoggle 0\n\
         keep-alive-timeout 5\nconnection-sharing 1\nsocket-timeout 3\n\
         max-client-connections 512\n",
        at = at.display()
    );
    let file = write(&at.join("configuration"), &text)?;
    let arguments = ["--no-daemon", &file].map(str::to_owned).to_vec();
    Ok(Prepared { program: find("privoxy")?, arguments, ca: None })
}

fn mitmproxy(at: &Path, port: u16, origins: &Path) -> Result<Prepared, Error> {
    let arguments = vec![
        "-q".to_owned(),
        "--listen-host=127.0.0.1".to_owned(),
        format!("--listen-port={port}"),
        format!("--set=confdir={}", at.display()),
        format!("--set=ssl_verify_upstream_trusted_ca={}", origins.display()),
        "--set=flow_detail=0".to_owned(),
    ];
    let ca = Some(at.join("mitmproxy-ca-cert.pem"));
    Ok(Prepared { program: find("mitmdump")?, arguments, ca })
}

fn hudsucker(at: &Path, port: u16, origins: &Path) -> Result<Prepared, Error> {
    let authority = Authority::new("baseline CA");
    let authority = authority.map_err(|error| Error::Unexpected(error.to_string()))?;
    let ca = at.join("ca.pem");
    let arguments = vec![
        port.to_string(),
        write(&ca, authority.pem())?,
        write(&at.join("ca.key"), &authority.key_pem())?,
        origins.display().to_string(),
    ];
    Ok(Prepared { program: find("bench-hudsucker")?, arguments, ca: Some(ca) })
}
