//! The proxy as its embedder sees it: built once, served on one or more listeners.

use crate::listener::ListenerIdentity;
use crate::redirect::Redirects;
use crate::unread::Unread;
use crate::upstream::dial::Dialer;
use crate::upstream::pool::Pool;
use crate::upstream::versions::Versions;
use crate::{Ca, front, reconcile, retry};
use async_trait::async_trait;
use journal::contract::InvocationId;
use journal::{Journal, Strangers, action};
use policy::Policy;
use policy::repeat::ReconcileRule;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

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
    /// How long a caller may take nothing of its answer. Then it is gone.
    pub write_timeout: Duration,
    /// How long a shutdown waits for calls under way. Then they are cut, and end on record as such.
    pub drain: Duration,
    /// How long calls that are cut may take to say so, to the record and to their callers.
    pub farewell: Duration,
    /// DNS servers to ask; none: the system's.
    pub name_servers: Vec<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hold_bytes: 1 << 20,
            connections: 16 * 1024,
            head_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            farewell: Duration::from_secs(2),
            name_servers: Vec::new(),
        }
    }
}

/// A failure to build the proxy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The TLS settings towards origins could not be built.
    #[error("build the TLS settings towards origins")]
    Tls(#[source] rustls::Error),
    /// The system gave no random bytes.
    #[error("draw a name for this proxy")]
    Random,
}

/// The proxy.
pub struct Proxy {
    shared: Arc<Shared>,
}

/// What every connection uses.
pub(crate) struct Shared {
    pub(crate) journal: Journal,
    pub(crate) policy: Arc<Policy>,
    pub(crate) ca: Arc<Ca>,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) options: Options,
    pub(crate) dialer: Dialer,
    pub(crate) pool: Pool,
    pub(crate) redirects: Redirects,
    pub(crate) versions: Versions,
    pub(crate) strangers: Strangers,
    pub(crate) unread: Arc<Unread>,
    /// This proxy's name in `Via`, unlike any other's, so that loops are seen.
    pub(crate) pseudonym: String,
    /// Whether the proxy goes down: who waits for a person waits no longer.
    pub(crate) stopping: watch::Sender<bool>,
    /// Whether the time for calls under way is over.
    cut: watch::Sender<bool>,
    /// Attempts and questions that no caller's connection carries.
    unattended: watch::Sender<usize>,
}

/// An attempt or a question under way, until it is dropped.
pub(crate) struct Unattended<'a>(&'a watch::Sender<usize>);

impl Drop for Unattended<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Shared {
    /// Waits until the time for calls under way is over.
    pub(crate) async fn cut_off(&self) {
        // The sender is in here, so that it can't be gone.
        drop(self.cut.subscribe().wait_for(|cut| *cut).await);
    }

    /// What the work comes to, unless the time for calls under way is over before.
    pub(crate) async fn unless_cut<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.cut_off() => None,
        }
    }

    /// Whether the time for calls under way is over.
    pub(crate) fn is_cut(&self) -> bool {
        *self.cut.borrow()
    }

    fn unattended(&self) -> Unattended<'_> {
        self.unattended.send_modify(|count| *count += 1);
        Unattended(&self.unattended)
    }
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
        let mut tag = [0; 6];
        SystemRandom::new().fill(&mut tag).map_err(|_| Error::Random)?;
        let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        let dialer = Dialer::new(&options.name_servers).map_err(Error::Tls)?;
        let shared = Shared {
            journal,
            policy,
            ca,
            control,
            options,
            dialer,
            pool: Pool::default(),
            redirects: Redirects::default(),
            versions: Versions::default(),
            strangers: Strangers::default(),
            unread: Arc::default(),
            pseudonym: format!("{}-{tag}", crate::render::PROXY_NAME),
            stopping: watch::Sender::new(false),
            cut: watch::Sender::new(false),
            unattended: watch::Sender::new(0),
        };
        Ok(Arc::new(Self { shared: Arc::new(shared) }))
    }

    /// Makes one more attempt of the action that an invocation belongs to, in the name of `holder`
    /// (contract T-2, K-6). Gives the attempt, whose outcome is on record.
    ///
    /// # Errors
    /// [`action::Error`]; nothing was dispatched then.
    pub async fn retry(
        &self,
        id: InvocationId,
        holder: &str,
    ) -> Result<journal::Invocation, action::Error> {
        let _under_way = self.shared.unattended();
        retry::unattended(&self.shared, id, holder).await
    }

    /// Asks the origin once about the action that an invocation belongs to (contract K-7).
    ///
    /// # Errors
    /// [`action::QueryError`]; nothing was asked, or nothing could be recorded.
    pub async fn reconcile(
        &self,
        id: InvocationId,
    ) -> Result<action::Reconciled, action::QueryError> {
        let _under_way = self.shared.unattended();
        reconcile::once(&self.shared, id).await
    }

    /// How the route of a first attempt, as it is now, finds out its outcome.
    #[must_use]
    pub fn reconcile_rule(&self, first: &journal::Invocation) -> Option<ReconcileRule> {
        reconcile::rule_of(&self.shared, first).map(|(_, rule)| rule)
    }

    /// Serves a listener until `shutdown` turns true, then lets calls under way end, up to
    /// [`Options::drain`].
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: watch::Receiver<bool>) {
        self.accept_all(listener, None, shutdown).await;
    }

    /// As [`Proxy::serve`], for callers that speak TLS with the proxy itself (`https://` as the
    /// scheme of the proxy's URL).
    pub async fn serve_tls(
        self: Arc<Self>,
        listener: TcpListener,
        identity: ListenerIdentity,
        shutdown: watch::Receiver<bool>,
    ) {
        let acceptor = TlsAcceptor::from(identity.config);
        self.accept_all(listener, Some(acceptor), shutdown).await;
    }

    async fn accept_all(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let permits = Arc::new(Semaphore::new(self.shared.options.connections));
        let mut connections = JoinSet::new();
        let mut pause = ACCEPT_PAUSE;
        let mut sweep = tokio::time::interval(SWEEP);
        while !*shutdown.borrow() {
            let accepted = tokio::select! {
                accepted = accept(&listener, &permits) => accepted,
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection's task failed");
                    }
                    continue;
                }
                _ = sweep.tick() => {
                    self.shared.pool.sweep();
                    continue;
                }
                changed = shutdown.changed() => {
                    if changed.is_err() { break }
                    continue;
                }
            };
            match accepted {
                Ok((tcp, permit)) => {
                    pause = ACCEPT_PAUSE;
                    let serving =
                        front::serve(Arc::clone(&self.shared), tcp, tls.clone(), shutdown.clone());
                    connections.spawn(async move {
                        serving.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors, mostly: some will be free again.
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
        drop(listener);
        self.shared.stopping.send_replace(true);
        let unattended = &self.shared.unattended;
        if !ended_within(&mut connections, unattended, self.shared.options.drain).await {
            tracing::warn!("{} connections are cut; their calls say so", connections.len());
            self.shared.cut.send_replace(true);
            if !ended_within(&mut connections, unattended, self.shared.options.farewell).await {
                // A dropped call records that it was given up.
                connections.shutdown().await;
            }
        }
    }
}

/// Whether all ended in time, with the attempts and questions that have no connection.
async fn ended_within(
    connections: &mut JoinSet<()>,
    unattended: &watch::Sender<usize>,
    limit: Duration,
) -> bool {
    let ended = async {
        while connections.join_next().await.is_some() {}
        drop(unattended.subscribe().wait_for(|count| *count == 0).await);
    };
    tokio::time::timeout(limit, ended).await.is_ok()
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How often idle connections to origins are looked through.
const SWEEP: Duration = Duration::from_secs(15);

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(std::io::Error::other)?;
    let (tcp, _) = listener.accept().await?;
    Ok((tcp, permit))
}
