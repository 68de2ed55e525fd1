//! nginx as the origin: 1 KB over TLS, keep-alive without end.

use anyhow::Context as _;
use conformance::pki::Authority;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running nginx, ended when dropped.
pub(crate) struct Nginx {
    directory: tempfile::TempDir,
    child: Child,
    pub(crate) port: u16,
    pub(crate) ca_pem: String,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Nginx {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("affiant-bench-").tempdir()?;
        let root = directory.path();
        let authority = Authority::new("bench CA")?;
        let leaf = authority.leaf(&["localhost"])?;
        std::fs::write(root.join("ca.pem"), authority.pem())?;
        std::fs::write(root.join("leaf.pem"), &leaf.certificate_pem)?;
        std::fs::write(root.join("leaf.key"), &leaf.key_pem)?;
        std::fs::create_dir(root.join("www"))?;
        std::fs::write(root.join("www/1k"), "x".repeat(1024))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let dir = root.display();
        let config = format!(
            "daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600;\n\
             client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2;\n\
             fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;\n\
             server {{ listen 127.0.0.1:{port} ssl; server_name localhost; root {dir}/www;\n\
             ssl_certificate {dir}/leaf.pem; ssl_certificate_key {dir}/leaf.key; }} }}\n"
        );
        std::fs::write(root.join("nginx.conf"), config)?;
        let program = ["/usr/sbin/nginx", "/opt/homebrew/bin/nginx", "/usr/local/bin/nginx"]
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .context("nginx is not installed: `./dev bench` installs it")?;
        let child = Command::new(program)
            .arg("-p")
            .arg(root)
            .arg("-c")
            .arg(root.join("nginx.conf"))
            .stderr(Stdio::null())
            .spawn()?;
        let ca_pem = authority.pem().to_owned();
        let nginx = Self { directory, child, port, ca_pem };
        let end = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            anyhow::ensure!(Instant::now() < end, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(nginx)
    }

    /// The CA certificate as a file.
    pub(crate) fn ca_file(&self) -> std::path::PathBuf {
        self.directory.path().join("ca.pem")
    }
}
