//! nginx as an honest origin over TLS, in a directory of its own, for tests and benches.

use crate::pki::Authority;
use crate::subject::{Error, clean, io};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(10);

/// A running nginx; its document root is `www` in its directory. Ended when dropped.
pub struct Nginx {
    directory: tempfile::TempDir,
    child: Child,
    port: u16,
    ca_pem: String,
}

impl Nginx {
    /// Starts nginx on a free port of loopback, with a leaf for `localhost` of an authority of its own.
    ///
    /// `fill` gets the directory before the start, with `www` in it. `server` is more text of the
    /// `server` block; `{dir}` and `{port}` in it stand for the directory and the port.
    ///
    /// # Errors
    /// [`Error`] when nginx is not there or does not start, or what `fill` says.
    pub fn start(
        server: &str,
        fill: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("conformance-nginx-").tempdir();
        let directory = directory.map_err(io("make a directory"))?;
        let at = directory.path();
        let ca_pem = identity(at)?;
        std::fs::create_dir(at.join("www")).map_err(io("make a directory"))?;
        fill(at).map_err(io("fill the directory"))?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(io("find a port"))?;
        let port = listener.local_addr().map_err(io("find a port"))?.port();
        drop(listener);
        let text = configuration(at, port, server);
        std::fs::write(at.join("nginx.conf"), text).map_err(io("write the configuration"))?;
        let mut command = Command::new(program()?);
        command.arg("-p").arg(at).arg("-c").arg(at.join("nginx.conf"));
        clean(&mut command);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(io("start nginx"))?;
        let mut nginx = Self { directory, child, port, ca_pem };
        nginx.listening()?;
        Ok(nginx)
    }

    fn listening(&mut self) -> Result<(), Error> {
        let until = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                let log = std::fs::read_to_string(self.directory().join("error.log"));
                let log = log.unwrap_or_default();
                return Err(Error::Unexpected(format!("nginx ended at once: {status}: {log}")));
            }
            if Instant::now() > until {
                return Err(Error::Unexpected(format!("nginx does not listen after {START:?}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Where it listens on loopback.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of its authority, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The same as a file.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.directory().join("ca.pem")
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Writes `ca.pem`, `leaf.pem` and `leaf.key`; gives the authority's certificate.
fn identity(at: &Path) -> Result<String, Error> {
    let failed = |error: crate::pki::Error| Error::Unexpected(error.to_string());
    let authority = Authority::new("nginx origin CA").map_err(failed)?;
    let leaf = authority.leaf(&["localhost", "127.0.0.1", "::1"]).map_err(failed)?;
    for (name, pem) in [
        ("ca.pem", authority.pem()),
        ("leaf.pem", &leaf.certificate_pem),
        ("leaf.key", &leaf.key_pem),
    ] {
        std::fs::write(at.join(name), pem).map_err(io(format!("write {name}")))?;
    }
    Ok(authority.pem().to_owned())
}

fn configuration(at: &Path, port: u16, server: &str) -> String {
    let dir = at.display();
    let server = server.replace("{dir}", &dir.to_string()).replace("{port}", &port.to_string());
    format!(
        "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;\n\
         events {{ worker_connections 16384; }}\nworker_rlimit_nofile 32768;\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600;\n\
         sendfile on; tcp_nodelay on; client_max_body_size 0;\n\
         client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2;\n\
         fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;\n\
         server {{ listen 127.0.0.1:{port} ssl backlog=4096; server_name localhost;\n\
         root {dir}/www; ssl_certificate {dir}/leaf.pem; ssl_certificate_key {dir}/leaf.key;\n\
         {server} }} }}\n"
    )
}

fn program() -> Result<PathBuf, Error> {
    ["/usr/sbin/nginx", "/opt/homebrew/bin/nginx", "/usr/local/bin/nginx"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .ok_or_else(|| Error::Unexpected("nginx is not installed".to_owned()))
}
