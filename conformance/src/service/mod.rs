//! Services that hand out secrets, strict in what they take: a token endpoint, GitHub's, HashiCorp
//! Vault. Each answers one request per connection and keeps a ledger.

mod github;
mod hashicorp;
mod oauth2;

pub use github::{Github, Verify};
pub use hashicorp::Hashicorp;
pub use oauth2::{Reuse, TokenServer};

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a service waits for a client.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much of a request it reads.
const LIMIT_BYTES: usize = 1 << 20;

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Header fields, names in lower case.
    pub fields: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
}

impl Call {
    /// The value of a field that is there once.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name);
        let (Some((_, value)), None) = (values.next(), values.next()) else { return None };
        Some(value)
    }

    /// The content as JSON.
    #[must_use]
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The content, JSON.
    pub body: Vec<u8>,
}

impl Reply {
    /// An answer of JSON.
    #[must_use]
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self { status, body: value.to_string().into_bytes() }
    }

    /// An answer without content.
    #[must_use]
    pub const fn empty(status: u16) -> Self {
        Self { status, body: Vec::new() }
    }
}

/// What a service answers; none: it closes the connection.
pub type Handler = dyn Fn(&Call) -> Option<Reply> + Send + Sync;

/// A running service. Ends when it is dropped.
pub struct Service {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a service on loopback; over TLS with a server configuration.
    ///
    /// # Errors
    /// What the operating system says of the socket or the thread.
    pub fn start(
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: Arc<Handler>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stopped);
        let thread = std::thread::Builder::new().name("service".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let (handler, tls) = (Arc::clone(&handler), tls.clone());
                if let Ok(stream) = stream {
                    std::thread::spawn(move || serve(stream, tls, &*handler));
                }
            }
        })?;
        Ok(Self { address, stopped, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            drop(thread.join());
        }
    }
}

fn serve(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>, handler: &Handler) {
    let bounded = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    if bounded.is_err() {
        return;
    }
    let done = match tls {
        None => exchange(stream, handler),
        Some(config) => match rustls::ServerConnection::new(config) {
            Ok(connection) => exchange(rustls::StreamOwned::new(connection, stream), handler),
            Err(_) => return,
        },
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a client of a service went away");
    }
}

fn exchange(mut stream: impl Read + Write, handler: &Handler) -> io::Result<()> {
    let Some(call) = read(&mut stream)? else { return Ok(()) };
    let Some(reply) = handler(&call) else { return Ok(()) };
    let (status, length) = (reply.status, reply.body.len());
    let kind = if length == 0 { "" } else { "Content-Type: application/json\r\n" };
    let head = format!(
        "HTTP/1.1 {status} As It Is\r\nContent-Length: {length}\r\n{kind}Connection: close\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), &reply.body].concat())?;
    stream.flush()
}

fn read(stream: &mut impl Read) -> io::Result<Option<Call>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(call) = parsed(&bytes) {
            return Ok(Some(call));
        }
        let length = stream.read(&mut piece)?;
        if length == 0 || bytes.len() > LIMIT_BYTES {
            return Ok(None);
        }
        bytes.extend_from_slice(piece.get(..length).unwrap_or_default());
    }
}

/// The request, once all of it is there. Only `Content-Length` frames content.
fn parsed(bytes: &[u8]) -> Option<Call> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, rest) = bytes.split_at_checked(end)?;
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields: Vec<_> =
        fields.map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned())).collect();
    let mut call = Call { method, target, fields, body: Vec::new() };
    let length = call.field("content-length").map_or(Some(0), |text| text.parse().ok())?;
    call.body = rest.get(4..4_usize.checked_add(length)?)?.to_vec();
    Some(call)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
