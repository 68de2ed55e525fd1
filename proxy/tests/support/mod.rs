//! A home, a proxy and a misbehaving origin in one process, for the tests of the crate.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "support of tests: a failure here is a failure of the test"
)]

pub mod answers;
pub mod dns;
pub mod encoded;
pub mod frames;
pub mod http2;
pub mod origin;
pub mod parent;
pub mod wire;

use async_trait::async_trait;
use journal::contract::{Event, InvocationId};
use journal::{Invocation, Journal, ResultKey};
use policy::{Policy, Secret};
use proxy::{Ca, Control, Options, Proxy};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use origin::Origin;
pub use wire::{Client, Response};

pub const SECRET: &str = "canary-7f1-secret";

/// Everything of one test.
pub struct World {
    pub home: TempDir,
    pub policy: Arc<Policy>,
    pub journal: Journal,
    pub proxy: Arc<Proxy>,
    pub ca: Arc<Ca>,
    pub address: SocketAddr,
    pub token: String,
    pub origin: Origin,
    pub secure: Origin,
    /// What an answer of the control API says to be the result of.
    pub fetched: Arc<std::sync::Mutex<Option<proxy::Fetched>>>,
    shutdown: watch::Sender<bool>,
}

/// Says that its answers are the result of an invocation.
struct Echo(Arc<std::sync::Mutex<Option<proxy::Fetched>>>);

#[async_trait]
impl Control for Echo {
    async fn call(
        &self,
        agent: &str,
        request: http::Request<bytes::Bytes>,
    ) -> http::Response<bytes::Bytes> {
        let text = format!("{agent} {} {}", request.method(), request.uri());
        let text = if request.uri() == "/big" { text.repeat(1 << 20) } else { text };
        let mut response = http::Response::new(text.into());
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain"));
        if let Some(fetched) = *self.0.lock().expect("lock") {
            response.extensions_mut().insert(fetched);
        }
        response
    }
}

/// A policy that lets the agent `coder` reach both origins; `extra` is appended. What comes in two pieces is
/// held together, however slow the machine is, unless a route says otherwise.
pub fn policy_text(origin: &Origin, secure: &Origin, extra: &str) -> String {
    let terms = "private_addresses = \"allow\"";
    format!(
        r#"
[defaults]
private_addresses = "deny"
limits = {{ hold_time = "1h" }}
[[credential]]
id = "pay"
secret = "pay-token"
inject = "bearer"
[[trust]]
host = "localhost"
ca_file = "{ca}"
[[route]]
name = "plain"
agents = ["coder"]
match = {{ scheme = "http", host = "127.0.0.1", port = {plain} }}
{terms}
[[route]]
name = "secure"
agents = ["coder"]
match = {{ scheme = "https", host = "localhost", port = {tls} }}
{terms}
[[route]]
name = "credential"
agents = ["coder"]
match = {{ scheme = "https", host = "localhost", port = {tls}, path = "/with-credential/**" }}
credential = "pay"
agent_header = "replace"
{terms}
{extra}
"#,
        ca = secure.ca_file.as_ref().expect("ca").display(),
        plain = origin.address.port(),
        tls = secure.address.port(),
    )
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_, _| String::new(), Options::default()).await
    }

    /// With a route to the TLS origin by its address, for which its CA is not trusted.
    pub async fn by_address() -> Self {
        let route = |_: &Origin, secure: &Origin| {
            format!(
                "[[route]]\nname = \"address\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"https\", host = \"127.0.0.1\", port = {} }}\n\
                 private_addresses = \"allow\"\n",
                secure.address.port()
            )
        };
        Self::with(route, Options::default()).await
    }

    pub async fn with(extra: impl FnOnce(&Origin, &Origin) -> String, options: Options) -> Self {
        let home = tempfile::tempdir().expect("home");
        let origin = Origin::plain();
        let secure = Origin::tls(home.path());
        let policy = Policy::init(home.path(), None).expect("policy");
        let token = policy.add_agent("coder").expect("agent");
        let token = token.expose_text().expect("text").to_owned();
        policy.set_secret("pay-token", &Secret::from(SECRET)).expect("secret");
        let extra = extra(&origin, &secure);
        let text = policy_text(&origin, &secure, &extra);
        policy.apply(&text, "policy.toml", "test").unwrap_or_else(|e| panic!("{e:?}"));
        let ca_directory = home.path().join("ca");
        std::fs::create_dir(&ca_directory).expect("directory");
        drop(Ca::create(&ca_directory).expect("ca"));
        let ca = Arc::new(Ca::load(&ca_directory).expect("ca"));
        let policy = Arc::new(policy);
        let directory = home.path().join("journal");
        let key = policy.vault().derive("results").expect("key");
        let options_of_journal =
            journal::Options { segment_bytes: 1 << 20, ..journal::Options::new(directory) };
        let (journal, _) = tokio::task::spawn_blocking(move || {
            Journal::open(options_of_journal, Some(ResultKey::new(*key)))
        })
        .await
        .expect("task")
        .expect("journal");
        let fetched = Arc::default();
        let proxy = Proxy::new(
            journal.clone(),
            Arc::clone(&policy),
            Arc::clone(&ca),
            Arc::new(Echo(Arc::clone(&fetched))),
            options,
        )
        .expect("proxy");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let (shutdown, watching) = watch::channel(false);
        tokio::spawn(Arc::clone(&proxy).serve(listener, watching));
        Self { home, policy, journal, proxy, ca, address, token, origin, secure, fetched, shutdown }
    }

    /// `Proxy-Authorization: ...` as a line.
    pub fn credentials(&self) -> String {
        use base64::Engine as _;
        let text = format!("coder:{}", self.token);
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        format!("Proxy-Authorization: Basic {encoded}\r\n")
    }

    /// The proxy's URL with the agent's identity.
    pub fn url(&self) -> String {
        format!("http://coder:{}@{}", self.token, self.address)
    }

    pub fn ca_file(&self) -> PathBuf {
        self.home.path().join("ca/ca-cert.pem")
    }

    pub fn plain_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.origin.address)
    }

    pub fn secure_url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.secure.address.port())
    }

    /// A request in absolute form to the plain origin, on a new connection.
    pub async fn plain(&self, method: &str, path: &str, fields: &str, content: &str) -> Response {
        let mut client = Client::connect(self.address).await;
        client.send(&self.plain_request(method, path, fields, content)).await;
        client.response(method).await
    }

    pub fn plain_request(&self, method: &str, path: &str, fields: &str, content: &str) -> String {
        let address = self.origin.address;
        let credentials = self.credentials();
        let length = if content.is_empty() && method != "POST" {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", content.len())
        };
        format!(
            "{method} http://{address}{path} HTTP/1.1\r\nHost: {address}\r\n{credentials}{fields}{length}\r\n{content}"
        )
    }

    /// A client inside an intercepted tunnel to the TLS origin.
    pub async fn tunnel(&self) -> Client {
        let port = self.secure.address.port();
        let mut client = Client::connect(self.address).await;
        let credentials = self.credentials();
        client
            .send(&format!(
                "CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n{credentials}\r\n"
            ))
            .await;
        let response = client.response("CONNECT").await;
        assert_eq!(response.status, 200, "{response:?}");
        client.into_tls(self.ca.certificate_pem(), "localhost").await
    }

    pub fn secure_request(&self, method: &str, path: &str, fields: &str, content: &str) -> String {
        let port = self.secure.address.port();
        let length = if content.is_empty() && method != "POST" {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", content.len())
        };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{fields}{length}\r\n{content}"
        )
    }

    /// The invocation once it is settled and that is durable.
    pub async fn invocation(&self, id: InvocationId) -> Invocation {
        let settled = tokio::time::timeout(Duration::from_secs(10), self.journal.changed(id));
        settled.await.expect("settles");
        self.journal.invocation(id).expect("read").expect("on record")
    }

    /// The names of the events on record, once the last of them is `last`.
    pub async fn events(&self, id: InvocationId, last: &str) -> Vec<Event> {
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let events = self.journal.events(id).expect("events");
            if events.last().is_some_and(|(_, event)| event.body.name() == last) {
                return events.into_iter().map(|(_, event)| event).collect();
            }
            let seen: Vec<_> = events.iter().map(|(_, event)| event.body.name()).collect();
            assert!(tokio::time::Instant::now() < until, "{last} never came: {seen:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn newest(&self) -> Invocation {
        let filter = journal::Filter { limit: 1, ..Default::default() };
        self.journal.list(&filter).expect("list").invocations.remove(0)
    }

    /// Files below the home that hold the text.
    pub fn files_with(&self, text: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = vec![self.home.path().to_owned()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).expect("directory") {
                let path = entry.expect("entry").path();
                if path.is_dir() {
                    open.push(path);
                } else if memchr::memmem::find(
                    &std::fs::read(&path).expect("file"),
                    text.as_bytes(),
                )
                .is_some()
                {
                    found.push(path);
                }
            }
        }
        found
    }

    pub fn shut_down(&self) {
        self.shutdown.send(true).expect("served");
    }
}

/// A port that refuses connections, and what keeps it from others: bound, and not listened on.
pub fn refusing() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().expect("socket");
    socket.bind("127.0.0.1:0".parse().expect("address")).expect("bound");
    let address = socket.local_addr().expect("address");
    (socket, address)
}

/// An origin that answers every connection with a line of text.
pub async fn babble() -> (u16, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let task = tokio::spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.expect("accept");
            drop(tcp.write_all(b"220 good morning\r\n").await);
            // Until the other side has read it.
            while matches!(tcp.read(&mut [0; 512]).await, Ok(1..)) {}
        }
    });
    (port, task)
}
