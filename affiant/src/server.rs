//! One server: journal, policy, both gateways and the control API, from start to drain.

use crate::cli::{Listen, Listener};
use crate::control::client::Client;
use crate::control::{Caller, Engines, ForAgents, Listening, State, console, router};
use crate::hardening;
use crate::home::Home;
use crate::reconciler;
use anyhow::{Context as _, bail};
use journal::{Journal, ResultKey};
use policy::Policy;
use policy::vault::Generations;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often new events are copied to the sealed files, when sealed mode is on.
const SEAL_EVERY: Duration = Duration::from_secs(10);
/// After how many of these the retention of the journal is applied.
const MAINTAIN_AFTER: u64 = 30;
/// How long connections of the control API have to end when all the rest has.
const FAREWELL: Duration = Duration::from_secs(1);
/// What the key for stored results is derived for.
const RESULT_KEY_PURPOSE: &str = "affiant journal results v1";

/// The exit status of a server that was started for runs and found the home in use.
pub(crate) const IN_USE: u8 = 75;

/// Another process serves the home.
#[derive(Debug, thiserror::Error)]
#[error("a server already serves {0}: stop it, or name another home with --home")]
struct Served(String);

/// Whether a start failed because another process has the home.
pub(crate) fn is_in_use(error: &anyhow::Error) -> bool {
    let of_journal = error.downcast_ref::<journal::open::Error>();
    error.is::<Served>() || matches!(of_journal, Some(journal::open::Error::InUse(_)))
}

/// A running server. Stop it with [`Server::stop`], so that calls under way can end.
pub(crate) struct Server {
    pub(crate) listening: Listening,
    pub(crate) ca_pem: String,
    state: Arc<State>,
    home: Home,
    /// They act on earlier calls as well, whether they listen or not.
    gateways: (Arc<proxy::Proxy>, Arc<ssh_gateway::Gateway>),
    shutdown: watch::Sender<bool>,
    tasks: JoinSet<()>,
    /// What serves the control API.
    control: JoinSet<()>,
}

/// Opens journal and policy of the home. Takes the home's lock.
pub(crate) fn open_state(
    home: &Home,
    retention: journal::Retention,
    durable: bool,
) -> anyhow::Result<Arc<State>> {
    let policy = Arc::new(home.open_policy()?);
    let options = journal::Options { durable, retention, ..journal::Options::new(home.journal()) };
    let (journal, recovery) = Journal::open(options, None).map_err(|error| {
        let step = if matches!(error, journal::open::Error::Damaged(_)) {
            "open the journal (`affiant journal verify` names the place, `affiant journal repair` \
             cuts there and keeps what it cuts)"
        } else {
            "open the journal"
        };
        anyhow::Error::new(error).context(step)
    })?;
    if !recovery.unknown.is_empty() {
        tracing::warn!(
            "{} dispatched calls were under way when the last run ended; see \
             `affiant inv list --outcome unknown`",
            recovery.unknown.len()
        );
    }
    hand_result_key(&journal, &policy);
    let (listening, engines) = (OnceLock::new(), OnceLock::new());
    Ok(Arc::new(State { journal, policy, listening, engines, users: Arc::default() }))
}

/// The key for stored results, when the vault is unlocked.
pub(crate) fn result_key(generations: Option<&Generations>) -> anyhow::Result<Option<ResultKey>> {
    let Some(generations) = generations else { return Ok(None) };
    let mut keys =
        generations.derive(RESULT_KEY_PURPOSE).context("derive the result key")?.into_iter();
    let first = keys.next().map(|key| ResultKey::new(*key));
    Ok(first.map(|first| keys.fold(first, |key, next| key.followed_by(*next))))
}

/// Gives the journal the key for results, as the vault is locked, unlocked, or gets another key.
fn hand_result_key(journal: &Journal, policy: &Policy) {
    let journal = journal.clone();
    policy.vault().follow(move |generations| {
        let key = result_key(generations).unwrap_or_else(|error| {
            tracing::error!("results can't be stored: {error:#}");
            None
        });
        journal.set_result_key(key);
    });
}

impl Server {
    /// Opens the home and starts to listen.
    pub(crate) async fn start(home: &Home, listen: &Listen) -> anyhow::Result<Self> {
        hardening::forbid_dumps();
        if Client::running(home).await.is_some() {
            bail!(Served(home.path().display().to_string()));
        }
        let state = open_state(home, listen.retention(), !listen.unsafe_no_sync)?;
        state.policy.erase_unused();
        let ca = Arc::new(proxy::Ca::load(&home.ca()).context("read the CA")?);
        let routes = router(Arc::clone(&state));
        let (proxy, gateway) = gateways(home, listen, &state, &ca, &routes)?;
        let engines = Engines::new(&proxy, &gateway);
        let http = bind("HTTP proxy", listen.http).await?;
        let ssh = bind("SSH gateway", listen.ssh).await?;
        if http.is_none() && ssh.is_none() && listen.https.is_none() {
            bail!("no agent could call: all of --http, --https and --ssh are off");
        }
        let https = https(listen, &ca).await?;
        let console = console_listener(listen).await?;
        let listening = Listening {
            http: http.as_ref().map(TcpListener::local_addr).transpose()?,
            ssh: ssh.as_ref().map(TcpListener::local_addr).transpose()?,
            console: console.as_ref().map(TcpListener::local_addr).transpose()?,
            https: https.as_ref().map(|(listener, _)| listener.local_addr()).transpose()?,
        };
        if state.engines.set(engines.clone()).is_err() || state.listening.set(listening).is_err() {
            bail!("this state belongs to a running server already");
        }
        let socket = control_socket(home)?;

        let (shutdown, watched) = watch::channel(false);
        let mut tasks = JoinSet::new();
        if let Some((listener, identity)) = https {
            tasks.spawn(Arc::clone(&proxy).serve_tls(listener, identity, watched.clone()));
        }
        tasks.spawn(reconciler::run(state.journal.clone(), engines, watched.clone()));
        if let Some(http) = http {
            tasks.spawn(Arc::clone(&proxy).serve(http, watched.clone()));
        }
        if let Some(ssh) = ssh {
            tasks.spawn(Arc::clone(&gateway).serve(ssh, watched.clone()));
        }
        tasks.spawn(maintain(Arc::clone(&state), watched.clone()));
        tasks.spawn(crate::webhook::run(Arc::clone(&state), watched.clone()));
        let operators = routes.layer(axum::Extension(Caller::Operator));
        let mut control = JoinSet::new();
        control.spawn(serve_control(socket, operators.clone(), watched.clone()));
        if let Some(console) = console {
            let guarded = console::guard(operators, home, console.local_addr()?)?;
            control.spawn(serve_control(console, guarded, watched));
        }
        let ca_pem = ca.certificate_pem().to_owned();
        let (home, gateways) = (home.clone(), (proxy, gateway));
        Ok(Self { listening, ca_pem, state, home, gateways, shutdown, tasks, control })
    }

    /// What the server works on.
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Takes no new calls, lets those under way end, and closes the journal.
    pub(crate) async fn stop(mut self) {
        self.shutdown.send_replace(true);
        self.state.users.close();
        join_all(&mut self.tasks).await;
        // Answers of the control API have had the time of the calls, and this. Nobody else is waited for: a
        // connection that asks for nothing, or never to its end, is anybody's.
        if tokio::time::timeout(FAREWELL, join_all(&mut self.control)).await.is_err() {
            tracing::warn!(
                "connections of the control API were cut that did not end by themselves"
            );
            self.control.abort_all();
        }
        // Nothing is begun any more.
        drop(self.gateways);
        if let Err(error) = std::fs::remove_file(self.home.socket()) {
            tracing::debug!("the control socket was gone already: {error}");
        }
        let policy = Arc::clone(&self.state.policy);
        let released = tokio::task::spawn_blocking(move || policy.release_leases());
        if let Err(error) = released.await {
            tracing::error!("giving back the leases of secrets ended badly: {error}");
        }
        self.state.journal.close().await;
        let journal = self.state.journal.clone();
        apart("the sealed copy", move || journal.seal()).await;
    }
}

async fn join_all(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!("a part of the server ended badly: {error}");
        }
    }
}

/// Both gateways, not listening yet.
fn gateways(
    home: &Home,
    listen: &Listen,
    state: &State,
    ca: &Arc<proxy::Ca>,
    routes: &axum::Router,
) -> anyhow::Result<(Arc<proxy::Proxy>, Arc<ssh_gateway::Gateway>)> {
    let proxy = proxy::Proxy::new(
        state.journal.clone(),
        Arc::clone(&state.policy),
        Arc::clone(ca),
        Arc::new(ForAgents(routes.clone())),
        proxy::Options {
            name_servers: listen.name_server.clone(),
            drain: listen.drain,
            ..Default::default()
        },
    )
    .context("set up the proxy")?;
    let identity = ssh_gateway::Identity::open(&home.ssh()).context("read the SSH identity")?;
    let gateway = ssh_gateway::Gateway::with_control(
        state.journal.clone(),
        Arc::clone(&state.policy),
        Arc::new(identity),
        ssh_gateway::Options {
            names: listen.ssh_name.clone(),
            drain: listen.drain,
            ..Default::default()
        },
        Some(Arc::new(ForAgents(routes.clone()))),
    );
    Ok((proxy, gateway))
}

/// Copies events to the sealed files, ends questions that nobody answered, and now and then applies
/// the retention of the journal.
async fn maintain(state: Arc<State>, mut shutdown: watch::Receiver<bool>) {
    let journal = &state.journal;
    for tick in 0_u64.. {
        let pass = journal.clone();
        apart("the sealed copy", move || pass.seal()).await;
        let pass = journal.clone();
        apart("the end of approvals", move || pass.expire_held()).await;
        if tick.is_multiple_of(MAINTAIN_AFTER) {
            journal.guard_for(state.policy.snapshot().longest_guard());
            let pass = journal.clone();
            apart("the retention of the journal", move || pass.maintain()).await;
        }
        let over = shutdown.wait_for(|down| *down);
        if tokio::time::timeout(SEAL_EVERY, over).await.is_ok() {
            break;
        }
    }
}

/// Runs something that blocks, and reports its failure.
async fn apart<T, E>(what: &str, work: impl FnOnce() -> Result<T, E> + Send + 'static)
where
    T: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!("{what}: {:#}", anyhow::Error::new(error)),
        Err(error) => tracing::error!("{what} ended badly: {error}"),
    }
}

async fn console_listener(listen: &Listen) -> anyhow::Result<Option<TcpListener>> {
    match listen.console {
        Some(address) if !address.ip().is_loopback() => {
            bail!(
                "--console {address}: the console has no TLS, and its token is not to cross a network: only loopback is allowed"
            )
        }
        Some(address) => bind("console", Listener::At(address)).await,
        None => Ok(None),
    }
}

/// The listener of the HTTP proxy over TLS, and who it is.
async fn https(
    listen: &Listen,
    ca: &proxy::Ca,
) -> anyhow::Result<Option<(TcpListener, proxy::ListenerIdentity)>> {
    let Some(address) = listen.https else { return Ok(None) };
    let identity = match (&listen.https_cert, &listen.https_key) {
        (Some(certificate), Some(key)) => proxy::ListenerIdentity::from_files(certificate, key)
            .with_context(|| format!("serve TLS with {}", certificate.display()))?,
        (Some(_) | None, _) => {
            let names: Vec<_> = listen.https_name.iter().map(String::as_str).collect();
            proxy::ListenerIdentity::from_ca(ca, &names)
                .context("serve TLS under the names of --https-name")?
        }
    };
    let bound = bind("HTTP proxy over TLS", Listener::At(address)).await?;
    Ok(bound.map(|bound| (bound, identity)))
}

async fn bind(what: &str, listener: Listener) -> anyhow::Result<Option<TcpListener>> {
    let Listener::At(address) = listener else { return Ok(None) };
    let bound = TcpListener::bind(address).await.with_context(|| {
        format!("the {what} can't listen on {address} (another port can be named, 0 for any)")
    });
    bound.map(Some)
}

/// The lock of the journal proves that no other server lives, so a socket file is a left-over.
fn control_socket(home: &Home) -> anyhow::Result<UnixListener> {
    let path = home.socket();
    if path.exists() {
        std::fs::remove_file(&path)
            .with_context(|| format!("remove the old socket {}", path.display()))?;
    }
    // Bound under another name and renamed once it is private: nobody can connect before.
    let unready = path.with_extension("new");
    if unready.exists() {
        std::fs::remove_file(&unready)?;
    }
    let listener = UnixListener::bind(&unready).with_context(|| {
        format!("create the socket {} (is its path longer than 100 bytes?)", path.display())
    })?;
    std::fs::set_permissions(&unready, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&unready, &path)?;
    Ok(listener)
}

async fn serve_control<L>(listener: L, routes: axum::Router, mut shutdown: watch::Receiver<bool>)
where
    L: axum::serve::Listener,
    L::Addr: std::fmt::Debug,
{
    let drained = async move {
        if shutdown.wait_for(|down| *down).await.is_err() {
            tracing::debug!("the server is gone");
        }
    };
    if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(drained).await {
        tracing::error!("the control API ended: {error}");
    }
}
