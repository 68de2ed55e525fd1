//! A home, a gateway and targets for the tests; every wait is bounded.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod openssh;

use bytes::Bytes;
use journal::contract::{Body, Code, Ended, Envelope, InvocationId, Outcome, Phase};
use journal::{Filter, Invocation, Journal, ResultKey};
use policy::{Policy, Secret};
use ssh_gateway::demo::{Client, Login, Target};
use ssh_gateway::{Control, Gateway, Identity, Options};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A control API that says what it was asked.
struct Mirror;

#[async_trait::async_trait]
impl Control for Mirror {
    async fn call(&self, agent: &str, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let target = request.uri().path_and_query().map(ToString::to_string).unwrap();
        assert!(!target.contains("failing"), "a control API that fails");
        let mut response = http::Response::builder();
        let body = if target.ends_with("stream=stderr") {
            "err\n".to_owned()
        } else if target.ends_with("/result") {
            response = response.header("affiant-result", "ssh");
            "out\n".to_owned()
        } else if target.contains("missing") {
            response = response.status(404);
            r#"{"code":"NO_SUCH_INVOCATION","detail":"it is not here"}"#.to_owned()
        } else {
            format!(r#"{{"agent":"{agent}","target":"{} {target}"}}"#, request.method())
        };
        response.body(Bytes::from(body)).unwrap()
    }
}

/// The agent of all tests.
pub(crate) const AGENT: &str = "coder";

/// The bound of every case.
pub(crate) const CASE: Duration = Duration::from_secs(60);

/// A home with a running gateway.
pub(crate) struct Home {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) policy: Arc<Policy>,
    pub(crate) journal: Journal,
    pub(crate) identity: Arc<Identity>,
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

impl Home {
    /// Makes a home under the policy text and serves it.
    pub(crate) async fn start(policy_text: &str) -> Self {
        Self::start_with(policy_text, Options::default()).await
    }

    /// Like [`Home::start`], with other bounds.
    pub(crate) async fn start_with(policy_text: &str, options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = Arc::new(Policy::init(directory.path(), None).unwrap());
        let token = policy.add_agent(AGENT).unwrap();
        let token = token.expose_text().unwrap().to_owned();
        if let Err(error) = policy.apply(policy_text, "policy.toml", "test") {
            panic!("{error:?}");
        }
        let journal = journal::Options::new(directory.path().join("journal"));
        let journal = tokio::task::spawn_blocking(move || {
            Journal::open(journal, Some(ResultKey::new([7; 32]))).unwrap().0
        });
        let journal = journal.await.unwrap();
        let identity = Arc::new(Identity::open(&directory.path().join("ssh")).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gateway = Gateway::with_control(
            journal.clone(),
            Arc::clone(&policy),
            Arc::clone(&identity),
            options,
            Some(Arc::new(Mirror)),
        );
        let (stop, shutdown) = watch::channel(false);
        let served = tokio::spawn(gateway.serve(listener, shutdown));
        Self { directory, policy, journal, identity, address, token, stop, served }
    }

    /// Stops the gateway and waits for it.
    pub(crate) async fn stop(self) -> (tempfile::TempDir, Journal) {
        self.stop.send_replace(true);
        within(self.served).await.unwrap();
        (self.directory, self.journal)
    }

    /// The built-in client, logged in for the host `t`.
    pub(crate) async fn client(&self) -> Client {
        within(Client::connect(&self.identity, &self.login())).await.unwrap()
    }

    /// The login of the built-in client.
    pub(crate) fn login(&self) -> Login<'_> {
        Login {
            gateway: self.address,
            agent: AGENT,
            token: &self.token,
            host: "t",
            port: 22,
            user: "root",
        }
    }

    /// The invocation on record, once it is settled and readable.
    pub(crate) async fn settled(&self, id: InvocationId) -> Invocation {
        within(self.journal.changed(id)).await;
        self.journal.invocation(id).unwrap().unwrap()
    }

    /// The newest invocation, settled.
    pub(crate) async fn newest(&self) -> Invocation {
        let filter = Filter { limit: 1, ..Filter::default() };
        let id = self.journal.list(&filter).unwrap().invocations[0].id();
        self.settled(id).await
    }

    /// The newest invocation, as it is.
    pub(crate) fn newest_now(&self) -> Invocation {
        let filter = Filter { limit: 1, ..Filter::default() };
        self.journal.list(&filter).unwrap().invocations.remove(0)
    }

    /// Number of invocations on record.
    pub(crate) fn count(&self) -> usize {
        let filter = Filter { limit: 1000, ..Filter::default() };
        self.journal.list(&filter).unwrap().invocations.len()
    }

    /// The names of the events of an invocation.
    pub(crate) fn events(&self, id: InvocationId) -> Vec<&'static str> {
        let events = self.journal.events(id).unwrap();
        events.iter().map(|(_, event)| event.body.name()).collect()
    }

    /// How the invocation ended, where that is no result.
    pub(crate) fn ended(&self, id: InvocationId) -> Ended {
        let events = self.journal.events(id).unwrap();
        let ended = events.into_iter().find_map(|(_, event)| {
            if let Body::InvocationEnded(ended) = event.body { Some(*ended) } else { None }
        });
        ended.expect("no INVOCATION_ENDED")
    }

    /// Waits until the invocation has the event.
    pub(crate) async fn has_event(&self, id: InvocationId, name: &str) {
        let seen = async {
            while !self.events(id).contains(&name) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(seen).await;
    }
}

/// The demo target behind the name `t`, its key in the vault.
pub(crate) async fn demo_home(extra: &str) -> (Home, Target) {
    demo_home_with(extra, Options::default()).await
}

/// Like [`demo_home`], with other bounds.
pub(crate) async fn demo_home_with(extra: &str, options: Options) -> (Home, Target) {
    let target = Target::start().await.unwrap();
    let text = policy_text(target.address(), &target.host_key(), extra);
    let home = Home::start_with(&text, options).await;
    home.policy.set_secret("target-key", &target.user_key()).unwrap();
    (home, target)
}

/// A policy with one route `t` to the address.
pub(crate) fn policy_text(address: SocketAddr, host_key: &str, extra: &str) -> String {
    format!(
        r#"
[[credential]]
id = "key"
secret = "target-key"
inject = "ssh-key"

[[ssh]]
name = "t"
agents = ["{AGENT}"]
match = {{ host = "t" }}
address = "{address}"
host_keys = ["{host_key}"]
credential = "key"
allow = ["exec", "shell", "sftp"]
{extra}
"#
    )
}

/// Bounds a wait.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(CASE, work).await.expect("the case took too long")
}

/// The envelope that a refused or unfinished command prints after its summary line (E-5).
pub(crate) fn envelope(stderr: &[u8]) -> Envelope {
    let text = String::from_utf8_lossy(stderr).replace('\r', "");
    let json = text.lines().find(|line| line.starts_with('{'));
    let json = json.unwrap_or_else(|| panic!("no envelope in {text:?}"));
    let summary = text.lines().find(|line| line.starts_with("affiant: "));
    assert!(summary.is_some(), "no summary in {text:?}");
    serde_json::from_str(json).unwrap()
}

/// Phase, outcome and code of an envelope.
pub(crate) fn facts(envelope: &Envelope) -> (Phase, Outcome, Code) {
    let verdict = envelope.error.verdict;
    (verdict.phase(), verdict.outcome(), verdict.code())
}

/// A secret from a file.
pub(crate) fn secret_file(path: &Path) -> Secret {
    Secret::new(std::fs::read(path).unwrap())
}
