//! The release binary, serving a home of its own.

use crate::load::Path;
use anyhow::{Context as _, ensure};
use base64::Engine as _;
use conformance::nginx::Nginx;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A running `affiant serve`, ended when dropped.
pub(crate) struct Affiant {
    home: tempfile::TempDir,
    child: Child,
    address: SocketAddr,
    token: String,
}

impl Drop for Affiant {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// `affiant` beside this program.
pub(crate) fn binary() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("affiant");
    ensure!(path.exists(), "{} is not built: run `./dev bench`", path.display());
    Ok(path)
}

impl Affiant {
    pub(crate) fn start(origin: &Nginx, sync: bool) -> anyhow::Result<Self> {
        let home = tempfile::Builder::new().prefix("affiant-bench-home-").tempdir()?;
        let run = |arguments: &[&str], stdin: &str| -> anyhow::Result<String> {
            let mut child = Command::new(binary()?)
                .arg("--home")
                .arg(home.path())
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            child.stdin.take().context("stdin")?.write_all(stdin.as_bytes())?;
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "affiant {arguments:?} failed");
            Ok(String::from_utf8(output.stdout)?)
        };
        run(&["init"], "")?;
        let added: Value = serde_json::from_str(&run(&["agent", "add", "bench", "--json"], "")?)?;
        let token = added.get("token").and_then(Value::as_str).context("a token")?.to_owned();
        run(&["secret", "set", "token"], "bench-token")?;
        let policy = home.path().join("bench.toml");
        std::fs::write(&policy, policy_text(origin))?;
        run(&["policy", "apply", policy.to_str().context("a path")?], "")?;

        let mut command = Command::new(binary()?);
        command.arg("--home").arg(home.path());
        command.args(["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0", "--json"]);
        if !sync {
            command.arg("--unsafe-no-sync");
        }
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("stdout")?;
        let line = BufReader::new(stdout).lines().next().context("a ready line")??;
        let ready: Value = serde_json::from_str(&line)?;
        let address = ready.pointer("/ready/http").and_then(Value::as_str).context("an address")?;
        let address = address.parse()?;
        Ok(Self { home, child, address, token })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self) -> anyhow::Result<Path> {
        let ca_pem = std::fs::read_to_string(self.home.path().join("bundle.pem"))?;
        let pair = format!("bench:{}", self.token);
        let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
        Path::proxied(self.address, Some(format!("Basic {encoded}")), &ca_pem)
    }
}

fn policy_text(origin: &Nginx) -> String {
    format!(
        r#"
[[trust]]
host = "localhost"
ca_file = "{}"

[[credential]]
id = "token"
secret = "token"
inject = "bearer"

[[route]]
name = "origin"
agents = ["bench"]
match = {{ scheme = "https", host = "localhost", port = {}, path = "/**" }}
credential = "token"
private_addresses = "allow"

[[route]]
name = "long"
agents = ["bench"]
match = {{ scheme = "https", host = "localhost", port = {}, path = "/100m" }}
credential = "token"
private_addresses = "allow"
result = {{ keep = "digest" }}

[[route]]
name = "stored"
agents = ["bench"]
match = {{ scheme = "https", host = "localhost", port = {}, path = "/stored/**" }}
credential = "token"
private_addresses = "allow"
result = {{ keep = "full", max_bytes = "1GiB" }}
"#,
        origin.ca_file().display(),
        origin.port(),
        origin.port(),
        origin.port()
    )
}
