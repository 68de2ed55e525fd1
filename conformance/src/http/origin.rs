//! The scripted origin: listens on loopback, follows its scripts, and keeps the ledger. Where TLS agreed on HTTP/2, [`crate::http2`] serves the connection with the same ledger.

use super::ledger::{Ledger, Seen, path_of};
use super::request::{field, read_body, read_head};
use super::{Accept, Opening, Script, Step};
use crate::case::MARK;
use crate::peer::{self, After, Counts, Life, counted};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

pub(crate) struct Shared {
    opening: Opening,
    scripts: Vec<Script>,
    ledger: Mutex<Ledger>,
    /// A permit for each hold that may go on; closed when all may.
    holds: Semaphore,
    pub(crate) life: Life,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// A running origin, on a thread and a runtime of its own or as a task of a runtime that is there.
/// Ends when it is dropped.
pub struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Origin {
    /// Starts an origin; over TLS with a server configuration.
    ///
    /// # Errors
    /// What the operating system says of the socket or the thread.
    pub fn start(scripts: Vec<Script>, tls: Option<Arc<rustls::ServerConfig>>) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let shared = Arc::new(Shared::new(Opening::Serve, scripts, tls));
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("origin".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, serving));
        })?;
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Serves a connection of which someone else has accepted the TLS, as one of its own.
    ///
    /// # Errors
    /// What the connection ends by, when that is not in order.
    pub async fn serve_tls(
        &self,
        stream: tokio_rustls::server::TlsStream<TcpStream>,
    ) -> io::Result<()> {
        requests(stream, self.shared.connected(), &self.shared).await
    }

    /// Starts an origin as a task of the current runtime, on a socket that listens already.
    ///
    /// # Errors
    /// What the operating system says of the socket.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(
        listener: std::net::TcpListener,
        opening: Opening,
        scripts: Vec<Script>,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let shared = Arc::new(Shared::new(opening, scripts, tls));
        tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, thread: None })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every request that arrived, in order.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.ledger().seen.clone()
    }

    /// The request that arrived last.
    #[must_use]
    pub fn last_seen(&self) -> Option<Seen> {
        self.shared.ledger().seen.last().cloned()
    }

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.shared.ledger().connections
    }

    /// How many connections were ended by their script.
    #[must_use]
    pub fn ended(&self) -> u32 {
        self.shared.ledger().ended
    }

    /// The server names of TLS handshakes, in order; empty where there was none.
    #[must_use]
    pub fn server_names(&self) -> Vec<String> {
        self.shared.ledger().server_names.clone()
    }

    /// Bytes that arrived and never became a request.
    #[must_use]
    pub fn stray_bytes(&self) -> u64 {
        self.shared.ledger().stray_bytes
    }

    /// Whether a client sent anything as TLS early data, which this origin would take.
    #[must_use]
    pub fn had_early_data(&self) -> bool {
        self.shared.ledger().early_data
    }

    /// How many effects were applied at a path.
    #[must_use]
    pub fn effects(&self, path: &str) -> usize {
        self.shared.ledger().effects.iter().filter(|applied| *applied == path).count()
    }

    /// How many effects were applied, wherever.
    #[must_use]
    pub fn all_effects(&self) -> usize {
        self.shared.ledger().effects.len()
    }

    /// How often each path was asked for, and how many effects were applied there; then forgets them.
    pub fn take_counts(&self) -> HashMap<String, Counts> {
        let mut ledger = self.shared.ledger();
        let Ledger { seen, effects, .. } = &mut *ledger;
        counted(seen.drain(..).map(|seen| path_of(seen.target()).to_owned()), effects.drain(..))
    }

    /// Waits until so many requests arrived; false when the time is over.
    #[must_use]
    pub fn wait_for(&self, requests: usize, at_most: Duration) -> bool {
        let end = std::time::Instant::now() + at_most;
        while self.shared.ledger().seen.len() < requests {
            if std::time::Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Lets every [`Step::Hold`] go on, those to come included.
    pub fn release(&self) {
        self.shared.holds.close();
    }

    /// Lets one [`Step::Hold`] go on, this one or the next to come.
    pub fn release_one(&self) {
        self.shared.holds.add_permits(1);
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.life.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the origin's thread panicked");
        }
    }
}

impl Shared {
    fn new(opening: Opening, scripts: Vec<Script>, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        Self {
            opening,
            scripts,
            ledger: Mutex::default(),
            holds: Semaphore::new(0),
            tls: tls.map(tokio_rustls::TlsAcceptor::from),
            life: Life::default(),
        }
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection into the ledger; its number.
    fn connected(&self) -> u32 {
        let mut ledger = self.ledger();
        ledger.connections += 1;
        ledger.connections
    }

    /// Takes a request into the ledger; its place there.
    pub(crate) fn note(&self, seen: Seen) -> usize {
        let mut ledger = self.ledger();
        ledger.seen.push(seen);
        ledger.seen.len() - 1
    }

    /// More content of a request.
    pub(crate) fn content(&self, index: usize, piece: &[u8]) {
        if let Some(seen) = self.ledger().seen.get_mut(index) {
            seen.body.extend_from_slice(piece);
        }
    }

    /// The trailers of a request.
    fn trailers(&self, index: usize, trailers: Vec<u8>) {
        if let Some(seen) = self.ledger().seen.get_mut(index) {
            seen.trailers = trailers;
        }
    }

    /// Counts the effect of a request.
    pub(crate) fn apply(&self, index: usize) {
        let mut ledger = self.ledger();
        let target = ledger.seen.get(index).map(|seen| seen.target().to_owned());
        ledger.effects.push(path_of(&target.unwrap_or_default()).to_owned());
    }

    /// Counts bytes that came where none may come.
    pub(crate) fn stray(&self, count: usize) {
        self.ledger().stray_bytes += count as u64;
    }

    /// Whether connections of HTTP/2 take an extended CONNECT.
    pub(crate) fn takes_websockets(&self) -> bool {
        self.opening != Opening::WithoutWebSockets
    }

    pub(crate) fn script(&self, target: &str) -> Option<Script> {
        let path = path_of(target);
        let of = |wanted: &str| self.scripts.iter().find(|script| script.path == wanted);
        let below = |script: &&Script| {
            script
                .path
                .strip_suffix("/*")
                .is_some_and(|at| path.strip_prefix(at).is_some_and(|rest| rest.starts_with('/')))
        };
        of(path).or_else(|| self.scripts.iter().find(below)).or_else(|| of("*")).cloned()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    peer::serve(listener, shared, |shared| &shared.life, connection).await;
}

async fn connection(mut stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let shared = shared.as_ref();
    let number = shared.connected();
    stream.set_nodelay(true)?;
    match shared.opening {
        Opening::Serve | Opening::WithoutWebSockets => {}
        Opening::GivesUp(way) => return shared.life.give_up(way, &mut stream).await.map(drop),
        Opening::CloseAfterHello | Opening::ClearText | Opening::Silent => {
            return unserved(stream, shared).await;
        }
    }
    let Some(acceptor) = &shared.tls else { return requests(stream, number, shared).await };
    let mut stream = acceptor.accept(stream).await?;
    let name = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
    shared.ledger().server_names.push(name);
    if stream.get_mut().1.early_data().is_some() {
        shared.ledger().early_data = true;
    }
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return crate::http2::serve(stream, number, shared).await;
    }
    if acceptor.config().alpn_protocols == [b"h2"] {
        // Whoever offers no protocol is spoken to in none.
        return stream.shutdown().await;
    }
    requests(stream, number, shared).await
}

/// Reads the first bytes and does not serve them.
async fn unserved(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut first = [0; 1024];
    let read = stream.read(&mut first).await?;
    if shared.tls.is_none() {
        shared.stray(read);
    }
    match shared.opening {
        Opening::ClearText => {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await?;
            stream.shutdown().await
        }
        Opening::Silent => shared.life.over().await,
        Opening::Serve
        | Opening::WithoutWebSockets
        | Opening::GivesUp(_)
        | Opening::CloseAfterHello => stream.shutdown().await,
    }
}

/// The transport under a connection, for what only the socket can do.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin {
    fn socket(&self) -> &TcpStream;
}

impl Transport for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Transport for tokio_rustls::server::TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

async fn requests<S: Transport>(stream: S, number: u32, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(head) = read_head(&mut stream, shared).await? {
        let seen = Seen { head: head.clone(), connection: number, ..Seen::default() };
        let script = shared.script(seen.target());
        let index = shared.note(seen);
        let Some(script) = script else {
            stream.write_all(b"HTTP/1.1 404 No Script\r\nContent-Length: 0\r\n\r\n").await?;
            continue;
        };
        let mut steps = VecDeque::from(script.steps);
        while let Some(step) = steps.pop_front() {
            if let Step::Then(decide) = step {
                let seen = shared.ledger().seen.get(index).cloned().unwrap_or_default();
                decide(&seen).into_iter().rev().for_each(|step| steps.push_front(step));
            } else if take(&mut stream, &step, &head, index, shared).await? == After::Ended {
                shared.ledger().ended += 1;
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Takes one step of a script.
async fn take<S: Transport>(
    stream: &mut BufReader<S>,
    step: &Step,
    head: &[u8],
    index: usize,
    shared: &Shared,
) -> io::Result<After> {
    match step {
        Step::ReadBody => {
            let (body, trailers) = read_body(stream, head).await?;
            shared.content(index, &body);
            shared.trailers(index, trailers);
        }
        Step::ReadBytes(count) => {
            stream.read_exact(&mut vec![0; *count]).await?;
        }
        Step::Apply => shared.apply(index),
        Step::Send(bytes) => {
            stream.write_all(bytes).await?;
            stream.flush().await?;
        }
        Step::Switch { answer, after } => {
            let accept = match answer {
                Accept::Right => accept(head),
                Accept::Wrong => "bGll".to_owned(),
                Accept::Extended => {
                    accept(head) + "\r\nSec-WebSocket-Extensions: permessage-deflate; x=1"
                }
            };
            let text = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 {MARK}: 1\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            stream.write_all(&[text.as_bytes(), after].concat()).await?;
            stream.flush().await?;
        }
        Step::Drip(bytes) => {
            for byte in bytes.iter() {
                stream.write_all(&[*byte]).await?;
                stream.flush().await?;
                tokio::task::yield_now().await;
            }
        }
        Step::Echo(count) => echo(stream, *count).await?,
        Step::Pause(time) => tokio::time::sleep(*time).await,
        Step::Hold => hold(shared).await,
        // The caller has replaced it by what it decides.
        Step::Then(_) => {}
        Step::Linger => {
            stream.shutdown().await?;
            tokio::io::copy(stream, &mut tokio::io::sink()).await?;
            return Ok(After::Ended);
        }
        Step::Close => return stream.shutdown().await.map(|()| After::Ended),
        Step::CutTls => return Ok(After::Ended),
        Step::Reset => return stream.get_ref().socket().set_zero_linger().map(|()| After::Ended),
        Step::Stall => return shared.life.over().await.map(|()| After::Ended),
    }
    Ok(After::Next)
}

/// The answer to the key of an upgrade (RFC 6455 section 4.2.2).
fn accept(head: &[u8]) -> String {
    let key = field(head, "sec-websocket-key").unwrap_or_default();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    STANDARD.encode(digest)
}

async fn hold(shared: &Shared) {
    tokio::select! {
        permit = shared.holds.acquire() => if let Ok(permit) = permit { permit.forget() },
        _ = shared.life.over() => (),
    }
}

/// Sends back what comes, while it comes.
async fn echo<S: Transport>(stream: &mut BufReader<S>, count: u64) -> io::Result<()> {
    let mut left = count;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        let piece = stream.fill_buf().await?;
        let piece = piece.get(..most).unwrap_or(piece).to_vec();
        if piece.is_empty() {
            break;
        }
        stream.consume(piece.len());
        stream.write_all(&piece).await?;
        stream.flush().await?;
        left -= piece.len() as u64;
    }
    Ok(())
}
