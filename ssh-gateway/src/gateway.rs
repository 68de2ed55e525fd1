//! The listener: connections in, sessions out.

use crate::channel::Slot;
use crate::control::Control;
use crate::delivery::Deliveries;
use crate::door::Door;
use crate::flag::raised;
use crate::gauge::Pool;
use crate::hop::Hop;
use crate::invocation::{self, Repeater};
use crate::jump;
use crate::line::{Line, Stream};
use crate::request::Agent;
use crate::{Identity, Options, algorithms, alive};
use journal::contract::InvocationId;
use journal::{Invocation, Journal, Strangers, action};
use policy::Policy;
use policy::repeat::Pace;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// The pause after the system refused a connection for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may take to end by itself once the gateway stops: what is settled still has
/// to leave, and a client whose last command is over says goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// The SSH gateway of one home.
pub struct Gateway {
    shared: Arc<Shared>,
    connections: Arc<AtomicUsize>,
    unauthenticated: Arc<AtomicUsize>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) journal: Journal,
    pub(crate) strangers: Strangers,
    pub(crate) policy: Arc<Policy>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) options: Options,
    pub(crate) control: Option<Arc<dyn Control>>,
    pub(crate) deliveries: Deliveries,
    /// The waiting input of all channels.
    pub(crate) pool: Arc<Pool>,
    stopping: watch::Sender<bool>,
    cutting: watch::Sender<bool>,
    next_connection: AtomicU64,
    under_way: watch::Sender<usize>,
}

/// The login that an open channel rests on.
pub(crate) struct Standing {
    policy: Arc<Policy>,
    agent: Agent,
}

impl Standing {
    /// Whether it still holds.
    pub(crate) fn holds(&self) -> bool {
        self.policy.login_holds(&self.agent.name, self.agent.token_set_at_ms)
    }
}

/// A command under way; its end lets a stopping gateway go on.
pub(crate) struct UnderWay(watch::Sender<usize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Shared {
    /// Whether no new commands are taken.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Turns true when no new commands are taken.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Turns true when the commands under way have had their time.
    pub(crate) fn cutting(&self) -> watch::Receiver<bool> {
        self.cutting.subscribe()
    }

    /// A number for an upstream connection, unique within the process.
    pub(crate) fn next_connection(&self) -> u64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a command until the value is dropped.
    pub(crate) fn under_way(&self) -> UnderWay {
        self.under_way.send_modify(|count| *count += 1);
        UnderWay(self.under_way.clone())
    }

    /// All agents that policy knows and whose access has not ended.
    pub(crate) fn agents(&self) -> Vec<Agent> {
        let agents = self.policy.list_agents().unwrap_or_default();
        let agent = |info: policy::agent::Info| Agent {
            name: info.name,
            token_set_at_ms: info.token_set_at_ms,
        };
        agents.into_iter().filter(|info| self.policy.is_current(&info.name)).map(agent).collect()
    }

    /// The agent of that name.
    pub(crate) fn agent(&self, name: &str) -> Option<Agent> {
        self.agents().into_iter().find(|agent| agent.name == name)
    }

    /// Whether a login still holds. It lasts as long as its connection; who was removed meanwhile,
    /// or got a new token, or whose access ended, gets nothing more over it.
    pub(crate) fn is_current(&self, agent: &Agent) -> bool {
        self.policy.login_holds(&agent.name, agent.token_set_at_ms)
    }

    /// What a channel's input rests on, to be asked again and again.
    pub(crate) fn standing(&self, agent: &Agent) -> Standing {
        Standing { policy: Arc::clone(&self.policy), agent: agent.clone() }
    }
}

impl Gateway {
    /// Joins the parts. Nothing runs before [`Gateway::serve`].
    #[must_use]
    pub fn new(
        journal: Journal,
        policy: Arc<Policy>,
        identity: Arc<Identity>,
        options: Options,
    ) -> Arc<Self> {
        Self::with_control(journal, policy, identity, options, None)
    }

    /// Like [`Gateway::new`], with the control API behind the gateway's own commands.
    #[must_use]
    pub fn with_control(
        journal: Journal,
        policy: Arc<Policy>,
        identity: Arc<Identity>,
        options: Options,
        control: Option<Arc<dyn Control>>,
    ) -> Arc<Self> {
        let pool = Pool::new(options.stdin_total_bytes);
        let shared = Shared {
            journal,
            strangers: Strangers::new(options.max_refused_logins),
            policy,
            identity,
            options,
            control,
            deliveries: Deliveries::default(),
            pool,
            stopping: watch::Sender::new(false),
            cutting: watch::Sender::new(false),
            next_connection: AtomicU64::new(1),
            under_way: watch::Sender::new(0),
        };
        Arc::new(Self {
            shared: Arc::new(shared),
            connections: Arc::default(),
            unauthenticated: Arc::default(),
        })
    }

    /// Makes one more attempt of the action that an invocation belongs to, in the name of `holder`
    /// (contract T-2, K-6, K-9). Gives the attempt, whose outcome is on record.
    ///
    /// # Errors
    /// [`action::Error`]; nothing was dispatched then.
    pub async fn retry(&self, id: InvocationId, holder: &str) -> Result<Invocation, action::Error> {
        let _under_way = self.shared.under_way();
        action::once(&self.shared.journal, &Repeater(&self.shared), id, holder).await
    }

    /// Asks the target once about the action that an invocation belongs to (contract K-7, K-9).
    ///
    /// # Errors
    /// [`action::QueryError`]; nothing was asked, or nothing could be recorded.
    pub async fn reconcile(
        &self,
        id: InvocationId,
    ) -> Result<action::Reconciled, action::QueryError> {
        let _under_way = self.shared.under_way();
        invocation::ask(&self.shared, id).await
    }

    /// Who asks about a call in doubt, and how often, by its route as it is now; none: nobody can.
    #[must_use]
    pub fn pace(&self, first: &Invocation) -> Option<Pace> {
        invocation::rule_of(&self.shared, first).map(|(_, rule)| rule.pace)
    }

    /// Takes connections until `shutdown` turns true (or its sender is gone), then no new commands;
    /// returns when the commands under way are settled and their clients have gone, at the latest
    /// two seconds after [`Options::drain`].
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let end = watch::Sender::new(false);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _peer)) => self.admit(stream, end.subscribe()),
                    Err(error) => {
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = raised(&mut shutdown) => break,
            }
        }
        drop(listener);
        self.shared.stopping.send_replace(true);
        let mut under_way = self.shared.under_way.subscribe();
        let mut settled = async || drop(under_way.wait_for(|count| *count == 0).await);
        if tokio::time::timeout(self.shared.options.drain, settled()).await.is_err() {
            tracing::warn!(
                "commands are still under way; they are cut, and their outcome is unknown"
            );
            self.shared.cutting.send_replace(true);
            if tokio::time::timeout(FAREWELL, settled()).await.is_err() {
                tracing::warn!("not every command could be cut in time");
            }
        }
        end.send_replace(true);
        let gone = async {
            while self.connections.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(2 * FAREWELL, gone).await.is_err() {
            tracing::warn!("connections were cut that did not end by themselves");
        }
    }

    /// Starts a connection's task, if there is room for it.
    fn admit(&self, stream: TcpStream, end: watch::Receiver<bool>) {
        let options = &self.shared.options;
        let connection = Slot::take(&self.connections, options.max_connections);
        let newcomer = Slot::take(&self.unauthenticated, options.max_unauthenticated);
        let (Some(connection), Some(newcomer)) = (connection, newcomer) else {
            tracing::warn!("a connection was turned away: there are too many");
            return;
        };
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            if let Err(error) = connect(shared, stream, newcomer, end).await {
                tracing::debug!(error = &error as &dyn std::error::Error, "a connection ended");
            }
            drop(connection);
        });
    }
}

/// Why a connection was given up.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    #[error("no host certificate could be made")]
    Certificate(#[source] crate::IdentityError),
    #[error("the SSH session failed")]
    Session(#[source] russh::Error),
    #[error("the login took too long")]
    LoginGrace,
}

/// Serves one connection to its end.
async fn connect(
    shared: Arc<Shared>,
    stream: TcpStream,
    newcomer: Slot,
    mut end: watch::Receiver<bool>,
) -> Result<(), ConnectError> {
    stream.set_nodelay(true).map_err(ConnectError::Socket)?;
    // The address that this client reached, which a listener on all addresses has no other name for.
    let reached =
        stream.local_addr().map_err(ConnectError::Socket)?.ip().to_canonical().to_string();
    let mut names = vec!["127.0.0.1", "localhost", "::1", &reached];
    names.extend(shared.options.names.iter().map(String::as_str));
    let certificate = shared
        .identity
        .host_certificate(&names, SystemTime::now())
        .map_err(ConnectError::Certificate)?;
    let host_key = shared.identity.host_key();
    let line = Line::new();
    let refused = Arc::new(AtomicBool::new(false));
    let door = Door::Gateway { tries: 0, refused: Arc::clone(&refused) };
    let config = algorithms::server_config(&shared.options, host_key, certificate, door.methods());
    let (logged_in, login) = oneshot::channel();
    let handler = Hop::new(Arc::clone(&shared), Arc::clone(&line), door, logged_in);
    let stream = Stream::new(stream, Arc::clone(&line));
    let deadline = tokio::time::Instant::now() + shared.options.login_grace;
    let starting = russh::server::run_stream(config, stream, handler);
    let session = tokio::time::timeout_at(deadline, starting)
        .await
        .map_err(|_| ConnectError::LoginGrace)?
        .map_err(ConnectError::Session)?;
    match tokio::time::timeout_at(deadline, login).await {
        Ok(Ok(())) => drop(newcomer),
        // The session ended first, or time is up.
        Ok(Err(_)) | Err(_) => {
            line.cut();
            if refused.load(Ordering::Acquire) {
                jump::record_refused_login(&shared).await;
            }
            return Ok(());
        }
    }
    let heard = Arc::clone(&line);
    let lost = alive::lost(
        session.handle(),
        shared.options.keepalive_interval,
        shared.options.keepalive_max,
        move || heard.received_bytes(),
    );
    let mut session = session;
    let ended = tokio::select! {
        ended = &mut session => Some(ended),
        () = lost => None,
        () = raised(&mut end) => tokio::time::timeout(FAREWELL, &mut session).await.ok(),
    };
    line.cut();
    match ended {
        Some(ended) => ended.map_err(ConnectError::Session),
        None => Ok(()),
    }
}
