//! Other people's proxies, started on loopback in a directory of their own, so that a comparison is
//! one command. Only what Debian, PyPI or npm install; only settings that a forward proxy needs and
//! time limits as short as the matrix's.

use crate::http::Caller;
use crate::matrix::{Broker, Dialect};
use crate::subject::{Error, clean, end, io, trust};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The proxies that can be started here.
pub const NAMES: [&str; 4] = ["squid", "tinyproxy", "privoxy", "mitmproxy"];

const START: Duration = Duration::from_secs(30);

/// A running proxy. Ends when dropped.
pub struct Baseline {
    child: Child,
    _directory: tempfile::TempDir,
    /// How it is asked.
    pub broker: Broker,
}

/// The program and arguments of a proxy, with its files written.
struct Prepared {
    program: PathBuf,
    arguments: Vec<String>,
    /// Where it writes the certificate of its own authority, if it intercepts TLS.
    ca: Option<PathBuf>,
}

impl Baseline {
    /// Starts a proxy of [`NAMES`] that trusts the origins' authority.
    ///
    /// # Errors
    /// [`Error`] when the program is not there or does not start.
    pub fn start(name: &str, origins_pem: &str) -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix("conformance-baseline-")
            .tempdir()
            .map_err(io("make a directory"))?;
        let origins = directory.path().join("origins.pem");
        std::fs::write(&origins, origins_pem).map_err(io("write the CA"))?;
        let address = free_port()?;
        let prepared = prepare(name, directory.path(), address.port(), &origins)?;
        let mut command = Command::new(&prepared.program);
        command.args(&prepared.arguments).current_dir(directory.path());
        clean(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io(format!("start {name}")))?;
        if let Err(error) = listening(&mut child, name, address) {
            end(&mut child);
            return Err(error);
        }
        let trust = prepared
            .ca
            .map(|file| {
                let pem = std::fs::read_to_string(file).map_err(io("read the proxy's CA"))?;
                trust(&pem)
            })
            .transpose();
        let trust = match trust {
            Ok(trust) => trust,
            Err(error) => {
                end(&mut child);
                return Err(error);
            }
        };
        let patience = Duration::from_secs(8);
        let caller = Caller { proxy: address, authorization: None, trust, patience };
        let broker =
            Broker { name: name.to_owned(), caller, dialect: Dialect::Plain, contracts: false };
        Ok(Self { child, _directory: directory, broker })
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn free_port() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("find a port"))?;
    listener.local_addr().map_err(io("find a port"))
}

fn listening(child: &mut Child, name: &str, address: SocketAddr) -> Result<(), Error> {
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
fn find(program: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Unexpected(format!("{program} is not installed")))
}

fn write(file: &Path, text: &str) -> Result<String, Error> {
    std::fs::write(file, text).map_err(io(format!("write {}", file.display())))?;
    Ok(file.display().to_string())
}

fn prepare(name: &str, at: &Path, port: u16, origins: &Path) -> Result<Prepared, Error> {
    let file = at.join("configuration");
    match name {
        "squid" => {
            let text = format!(
                "http_port 127.0.0.1:{port}\nhttp_access allow localhost\nhttp_access deny all\n\
                 cache deny all\naccess_log none\ncache_log /dev/null\ncache_store_log none\n\
                 pid_filename none\npinger_enable off\nshutdown_lifetime 0 seconds\n\
                 connect_timeout 3 seconds\nread_timeout 3 seconds\n\
                 max_filedescriptors 8192\nvisible_hostname conformance\n"
            );
            let file = write(&file, &text)?;
            let arguments = ["-N", "-f", &file].map(str::to_owned).to_vec();
            Ok(Prepared { program: find("squid")?, arguments, ca: None })
        }
        "tinyproxy" => {
            let text = format!(
                "Port {port}\nListen 127.0.0.1\nTimeout 3\nMaxClients 512\nLogLevel Critical\n"
            );
            let file = write(&file, &text)?;
            let arguments = ["-d", "-c", &file].map(str::to_owned).to_vec();
            Ok(Prepared { program: find("tinyproxy")?, arguments, ca: None })
        }
        "privoxy" => {
            let text = format!(
                "listen-address 127.0.0.1:{port}\nconfdir {at}\nlogdir {at}\ntoggle 0\n\
                 keep-alive-timeout 5\nconnection-sharing 1\nsocket-timeout 3\n\
                 max-client-connections 512\n",
                at = at.display()
            );
            let file = write(&file, &text)?;
            let arguments = ["--no-daemon", &file].map(str::to_owned).to_vec();
            Ok(Prepared { program: find("privoxy")?, arguments, ca: None })
        }
        "mitmproxy" => {
            let arguments = [
                "-q".to_owned(),
                "--listen-host=127.0.0.1".to_owned(),
                format!("--listen-port={port}"),
                format!("--set=confdir={}", at.display()),
                format!("--set=ssl_verify_upstream_trusted_ca={}", origins.display()),
                "--set=flow_detail=0".to_owned(),
            ];
            Ok(Prepared {
                program: find("mitmdump")?,
                arguments: arguments.to_vec(),
                ca: Some(at.join("mitmproxy-ca-cert.pem")),
            })
        }
        other => Err(Error::Unexpected(format!("no baseline {other:?}; there are {NAMES:?}"))),
    }
}
