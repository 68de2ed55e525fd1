//! An origin that does what its path says and counts what reached it.

use super::answers;
use conformance::http::{Opening, Script, Step};
use conformance::pki::Authority;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub struct Origin {
    pub address: SocketAddr,
    pub ca_file: Option<PathBuf>,
    /// Who follows the scripts, and keeps the ledger.
    pub peer: conformance::http::Origin,
}

impl Origin {
    pub fn plain() -> Self {
        Self::serve(None, None)
    }

    /// A TLS origin for `localhost`, its CA written to `directory`.
    pub fn tls(directory: &Path) -> Self {
        let file = directory.join("origin-ca.pem");
        Self::serve(Some(identity(&file, &["localhost", "127.0.0.1"], &[])), Some(file))
    }

    fn serve(tls: Option<Arc<rustls::ServerConfig>>, ca_file: Option<PathBuf>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
        let scripts = vec![Script::new("*", [Step::Then(answers::steps)])];
        let peer = conformance::http::Origin::spawn(listener, Opening::Serve, scripts, tls);
        let peer = peer.expect("origin");
        Self { address: peer.address(), ca_file, peer }
    }

    /// Complete requests at a path, whatever their query.
    pub fn effects(&self, path: &str) -> usize {
        self.peer.effects(path.split('?').next().unwrap_or(path))
    }

    pub fn all_effects(&self) -> usize {
        self.peer.all_effects()
    }

    pub fn last_head(&self) -> String {
        self.peer.last_seen().map(|seen| seen.text()).unwrap_or_default()
    }

    pub fn last_content(&self) -> Vec<u8> {
        self.peer.last_seen().unwrap_or_default().body
    }

    /// The trailer section of the last request, with its empty line, where it came in chunks.
    pub fn last_trailers(&self) -> String {
        let trailers = self.peer.last_seen().unwrap_or_default().trailers;
        String::from_utf8(trailers).expect("text")
    }

    pub fn connections(&self) -> u32 {
        self.peer.connections()
    }

    /// Lets one `/gate` request go on.
    pub fn open_gate(&self) {
        self.peer.release_one();
    }

    /// Waits until the path was reached so many times.
    pub async fn reached(&self, path: &str, times: usize) {
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        while self.effects(path) < times {
            assert!(tokio::time::Instant::now() < until, "{path} was not reached");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// TLS settings of an origin with these names, its authority written to a file.
pub fn identity(file: &Path, names: &[&str], protocols: &[&[u8]]) -> Arc<rustls::ServerConfig> {
    let authority = Authority::new("origin").expect("authority");
    std::fs::write(file, authority.pem()).expect("file");
    let config = authority.leaf(names).expect("leaf").server_config().expect("config");
    let mut config = rustls::ServerConfig::clone(&config);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}
