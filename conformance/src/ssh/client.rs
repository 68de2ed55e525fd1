//! Stock OpenSSH through the gateway.

use super::play::{Asked, Gateway};
use crate::subject::clean;
use journal::contract::{InvocationId, Outcome};
use serde_json::Value;
use std::io;
use std::process::Stdio;
use std::time::Duration;

/// What the client showed.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Ran {
    /// The outcome that it told: the envelope's, or that of a whole result.
    pub(crate) fn told(&self, whole: &[u8]) -> Option<Outcome> {
        let stderr = String::from_utf8_lossy(&self.stderr);
        let envelope = stderr.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = envelope.as_ref().and_then(|envelope| envelope.pointer("/error/outcome"));
        let said = said.and_then(Value::as_str).and_then(|text| text.parse().ok());
        let complete = self.status == Some(0) && self.stdout == whole;
        said.or(complete.then_some(Outcome::Committed))
    }
}

/// One request to a target, as user `u`.
pub(crate) async fn run(
    gateway: &Gateway,
    host: &str,
    asked: Asked,
    command: &str,
    id: InvocationId,
    patience: Duration,
) -> io::Result<Ran> {
    let mut ssh = std::process::Command::new("ssh");
    ssh.arg("-F").arg(&gateway.config).args(["-T", "-o", "BatchMode=yes"]);
    ssh.args(["-o", "ConnectTimeout=20", "-o", &format!("SetEnv=AFFIANT_INVOCATION={id}")]);
    ssh.args(["-J", &gateway.jump]);
    let host = format!("u@{host}");
    match asked {
        Asked::Exec => ssh.arg(host).arg(command),
        Asked::Shell => ssh.arg(host),
        Asked::Subsystem => ssh.arg("-s").arg(host).arg(command),
    };
    clean(&mut ssh);
    ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut ssh = tokio::process::Command::from(ssh);
    match tokio::time::timeout(patience, ssh.kill_on_drop(true).output()).await {
        Err(_) => Ok(Ran {
            status: None,
            stdout: Vec::new(),
            stderr: format!("no end in {patience:?}").into_bytes(),
        }),
        Ok(output) => output.map(|output| Ran {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: output.stderr,
        }),
    }
}
