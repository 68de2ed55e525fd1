//! An upstream proxy: forwards, or answers by the script of its test, and shows what it was asked.

use super::http2::identity;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub struct Parent {
    pub address: SocketAddr,
    /// Of a parent that speaks TLS.
    pub ca_file: Option<PathBuf>,
    /// Heads in order.
    pub heads: Arc<Mutex<Vec<String>>>,
}

impl Parent {
    /// In clear text; `script`: the answer to everything, where it does not forward.
    pub async fn plain(script: Option<&'static str>) -> Self {
        Self::serve(None, script).await
    }

    /// Over TLS, with a certificate for `127.0.0.1`.
    pub async fn tls(directory: &Path) -> Self {
        Self::serve(Some(identity(directory, &[])), None).await
    }

    async fn serve(
        tls: Option<(Arc<rustls::ServerConfig>, PathBuf)>,
        script: Option<&'static str>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (config, ca_file) = tls.unzip();
        let acceptor = config.map(tokio_rustls::TlsAcceptor::from);
        let shared = Arc::clone(&heads);
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("accept");
                let (acceptor, heads) = (acceptor.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    match acceptor {
                        None => one(tcp, &heads, script).await,
                        Some(acceptor) => {
                            if let Ok(tls) = acceptor.accept(tcp).await {
                                one(tls, &heads, script).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, ca_file, heads }
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("lock").clone()
    }
}

/// One request, then bytes both ways.
async fn one(
    mut caller: impl AsyncRead + AsyncWrite + Unpin,
    heads: &Mutex<Vec<String>>,
    script: Option<&'static str>,
) {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if !matches!(caller.read_buf(&mut bytes).await, Ok(1..)) {
            return;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    heads.lock().expect("lock").push(head.clone());
    if let Some(script) = script {
        drop(caller.write_all(script.as_bytes()).await);
        drop(caller.flush().await);
        // Until the other side has read it.
        while matches!(caller.read_buf(&mut bytes).await, Ok(1..)) {}
        return;
    }
    let target = head.split(' ').nth(1).expect("target").to_owned();
    let authority = target.strip_prefix("http://").unwrap_or(&target);
    let authority = authority.split('/').next().expect("authority");
    let mut origin = TcpStream::connect(authority).await.expect("origin");
    if head.starts_with("CONNECT ") {
        caller.write_all(b"HTTP/1.1 200 Yes\r\n\r\n").await.expect("answer");
        caller.flush().await.expect("flush");
    } else {
        let path = target.trim_start_matches("http://").trim_start_matches(authority);
        let own = head.replacen(&target, path, 1);
        origin.write_all(own.as_bytes()).await.expect("head");
    }
    origin.write_all(&bytes[end..]).await.expect("content");
    drop(tokio::io::copy_bidirectional(&mut caller, &mut origin).await);
}
