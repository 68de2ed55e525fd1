//! The scripted target: listens on loopback, takes one request per connection, keeps the ledger.

use super::exchange;
use super::script::{Opening, Stage, Step};
use super::wire::{Fields, Packets, Text, malformed, message, random};
use crate::peer::{self, After, Counts, Life, counted};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const VERSION: &str = "SSH-2.0-Conformance";
/// What a peer may send before it is told to go on. No script reads more.
const WINDOW: u32 = 1 << 20;
/// The number that this end gives its channel.
const CHANNEL: u32 = 7;

/// What arrived.
#[derive(Debug, Default)]
struct Ledger {
    requests: Vec<Vec<u8>>,
    effects: Vec<Vec<u8>>,
    /// What [`Step::Flood`] got rid of.
    flooded_bytes: u64,
    /// Floods that the peer ended.
    floods_over: usize,
}

struct Shared {
    opening: Opening,
    steps: Vec<Step>,
    key: Ed25519KeyPair,
    ledger: Mutex<Ledger>,
    life: Life,
    go: watch::Sender<bool>,
}

/// A running target. Ends when it is dropped.
pub struct Target {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.life.end();
    }
}

fn key_pair() -> io::Result<(Ed25519KeyPair, [u8; 32])> {
    let seed = random::<32>()?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
        .map_err(|error| io::Error::other(error.to_string()))?;
    Ok((pair, seed))
}

/// The public key as the protocol carries it.
fn blob(key: &Ed25519KeyPair) -> Vec<u8> {
    Text(Vec::new()).string("ssh-ed25519").string(key.public_key()).0
}

/// A fresh private key as `ssh-keygen` writes it; targets take any.
///
/// # Errors
/// Without random numbers.
pub fn user_key() -> io::Result<String> {
    let (pair, seed) = key_pair()?;
    let private = [&seed[..], pair.public_key().as_ref()].concat();
    let mut inner = Text(Vec::new()).u32(1).u32(1).string("ssh-ed25519").string(pair.public_key());
    inner = inner.string(private).string("conformance");
    for pad in 1..=(8 - inner.0.len() % 8) % 8 {
        inner.0.push(u8::try_from(pad).unwrap_or_default());
    }
    let outer = Text(b"openssh-key-v1\0".to_vec()).string("none").string("none").string("");
    let text = STANDARD.encode(outer.u32(1).string(blob(&pair)).string(inner.0).0);
    let lines: Vec<&str> = (0..text.len())
        .step_by(70)
        .filter_map(|at| text.get(at..text.len().min(at + 70)))
        .collect();
    let (begin, end) = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----");
    Ok(format!("{begin}\n{}\n{end}\n", lines.join("\n")))
}

impl Target {
    /// Starts a target as a task of the current runtime, on a socket that listens already.
    ///
    /// # Errors
    /// What the operating system says of the socket.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(
        listener: std::net::TcpListener,
        opening: Opening,
        steps: Vec<Step>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let (key, _) = key_pair()?;
        let ledger = Mutex::default();
        let (life, go) = (Life::default(), watch::Sender::new(false));
        let shared = Arc::new(Shared { opening, steps, key, ledger, life, go });
        tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its host key, as policy pins it.
    #[must_use]
    pub fn host_key(&self) -> String {
        format!("ssh-ed25519 {}", STANDARD.encode(blob(&self.shared.key)))
    }

    /// Commands that arrived, in order; a shell as `shell`, a subsystem by its name.
    #[must_use]
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.shared.ledger().requests.clone()
    }

    /// How many effects were applied.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.shared.ledger().effects.len()
    }

    /// How often each request arrived, and how many effects it had; then forgets them.
    pub(crate) fn take_counts(&self) -> HashMap<String, Counts> {
        let mut ledger = self.shared.ledger();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let Ledger { requests, effects, .. } = &mut *ledger;
        counted(requests.drain(..).map(text), effects.drain(..).map(text))
    }

    /// Bytes that [`Step::Flood`] got rid of, and how many floods the peer ended.
    #[must_use]
    pub fn flooded(&self) -> (u64, usize) {
        let ledger = self.shared.ledger();
        (ledger.flooded_bytes, ledger.floods_over)
    }

    /// Lets scripts go on behind [`Step::Await`].
    pub fn go(&self) {
        self.shared.go.send_replace(true);
    }

    /// How many effects a request had.
    #[must_use]
    pub fn effects_of(&self, request: &[u8]) -> usize {
        self.shared.ledger().effects.iter().filter(|applied| *applied == request).count()
    }
}

impl Shared {
    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the connection up, if that is what is written for this stage.
    async fn gives_up(&self, stage: Stage, stream: &mut TcpStream) -> io::Result<After> {
        let Opening::Ends(at, way) = self.opening else { return Ok(After::Next) };
        if at != stage {
            return Ok(After::Next);
        }
        self.life.give_up(way, stream).await
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    peer::serve(listener, shared, |shared| &shared.life, connection).await;
}

async fn connection(mut stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    let shared = shared.as_ref();
    stream.set_nodelay(true)?;
    if shared.gives_up(Stage::Connected, &mut stream).await? == After::Ended {
        return Ok(());
    }
    if shared.opening == Opening::NotSsh {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await?;
        return stream.shutdown().await;
    }
    stream.write_all(format!("{VERSION}\r\n").as_bytes()).await?;
    let mut client = Vec::new();
    while !client.ends_with(b"\n") {
        client.push(stream.read_u8().await?);
    }
    if shared.gives_up(Stage::Versions, &mut stream).await? == After::Ended {
        return Ok(());
    }
    let client = String::from_utf8_lossy(&client).trim_end().to_owned();
    let mut packets = Packets { stream, sealing: None, opening: None };
    if shared.opening == Opening::LongPacket {
        packets.stream.write_all(&[0xff; 16]).await?;
        return shared.life.over().await;
    }
    let signs = match shared.opening {
        Opening::BadSignature => &key_pair()?.0,
        Opening::Serve
        | Opening::Ends(..)
        | Opening::NotSsh
        | Opening::LongPacket
        | Opening::RefuseLogin
        | Opening::RefuseChannel => &shared.key,
    };
    let host = exchange::Host { blob: &blob(&shared.key), signs, version: VERSION };
    exchange::as_server(&mut packets, &client, &host).await?;
    Session { packets, shared, peer: 0, stdin: Vec::new(), ended: false, asked: Vec::new() }
        .run()
        .await
}

struct Session<'a> {
    packets: Packets,
    shared: &'a Shared,
    /// The peer's number of the channel.
    peer: u32,
    stdin: Vec<u8>,
    ended: bool,
    /// The request.
    asked: Vec<u8>,
}

impl Session<'_> {
    async fn run(mut self) -> io::Result<()> {
        loop {
            let payload = self.packets.read().await?;
            let (kind, rest) =
                payload.split_first().ok_or_else(|| malformed("an empty message"))?;
            let mut fields = Fields(rest);
            let after = match *kind {
                message::DISCONNECT => return Ok(()),
                message::SERVICE_REQUEST => {
                    let accept = Text::new(message::SERVICE_ACCEPT).string(fields.string()?);
                    self.packets.send(&accept.0).await.map(|()| After::Next)?
                }
                message::LOGIN => self.login(&mut fields).await?,
                message::OPEN => self.open(&mut fields).await?,
                message::REQUEST => self.request(&mut fields).await?,
                _ => self.other(*kind, &mut fields).await.map(|()| After::Next)?,
            };
            if after == After::Ended {
                return Ok(());
            }
        }
    }

    /// What a peer wants to have answered, whatever the script is.
    async fn other(&mut self, kind: u8, fields: &mut Fields<'_>) -> io::Result<()> {
        match kind {
            message::GLOBAL => {
                let _name = fields.string()?;
                if fields.bool()? {
                    return self.packets.send(&[message::GLOBAL_FAILURE]).await;
                }
            }
            message::DATA => {
                let _channel = fields.u32()?;
                self.stdin.extend_from_slice(fields.string()?);
            }
            message::EOF | message::CLOSE => self.ended = true,
            _ => {}
        }
        Ok(())
    }

    async fn login(&mut self, fields: &mut Fields<'_>) -> io::Result<After> {
        let (_user, _service) = (fields.string()?, fields.string()?);
        let method = fields.string()?;
        if self.shared.gives_up(Stage::Login, &mut self.packets.stream).await? == After::Ended {
            return Ok(After::Ended);
        }
        let refused = Text::new(message::LOGIN_FAILURE).string("publickey").bool(false).0;
        if method != b"publickey" || self.shared.opening == Opening::RefuseLogin {
            return self.packets.send(&refused).await.map(|()| After::Next);
        }
        let signed = fields.bool()?;
        let (algorithm, key) = (fields.string()?, fields.string()?);
        let answer = if signed {
            Text::new(message::LOGIN_SUCCESS)
        } else {
            Text::new(message::LOGIN_KEY_OK).string(algorithm).string(key)
        };
        self.packets.send(&answer.0).await.map(|()| After::Next)
    }

    async fn open(&mut self, fields: &mut Fields<'_>) -> io::Result<After> {
        let _kind = fields.string()?;
        self.peer = fields.u32()?;
        if self.shared.gives_up(Stage::Channel, &mut self.packets.stream).await? == After::Ended {
            return Ok(After::Ended);
        }
        let answer = if self.shared.opening == Opening::RefuseChannel {
            Text::new(message::OPEN_FAILURE).u32(self.peer).u32(1).string("no").string("")
        } else {
            Text::new(message::OPENED).u32(self.peer).u32(CHANNEL).u32(WINDOW).u32(1 << 15)
        };
        self.packets.send(&answer.0).await.map(|()| After::Next)
    }

    async fn request(&mut self, fields: &mut Fields<'_>) -> io::Result<After> {
        let _channel = fields.u32()?;
        let kind = fields.string()?;
        let wants_reply = fields.bool()?;
        let asked = match kind {
            b"exec" | b"subsystem" => fields.string()?.to_vec(),
            b"shell" => b"shell".to_vec(),
            _ if wants_reply => {
                return self
                    .packets
                    .send(&Text::new(message::SUCCESS).u32(self.peer).0)
                    .await
                    .map(|()| After::Next);
            }
            _ => return Ok(After::Next),
        };
        self.shared.ledger().requests.push(asked.clone());
        self.asked = asked;
        for step in self.shared.steps.clone() {
            if self.take(&step).await? == After::Ended {
                return Ok(After::Ended);
            }
        }
        Ok(After::Next)
    }

    async fn take(&mut self, step: &Step) -> io::Result<After> {
        let peer = self.peer;
        let data = |bytes: &[u8]| Text::new(message::DATA).u32(peer).string(bytes).0;
        let ask = |name: &str| Text::new(message::REQUEST).u32(peer).string(name).bool(false);
        let payload = match step {
            Step::Apply => {
                self.shared.ledger().effects.push(self.asked.clone());
                return Ok(After::Next);
            }
            Step::ReadStdin => {
                while !self.ended {
                    let payload = self.packets.read().await?;
                    let (kind, rest) = payload.split_first().unwrap_or((&0, &[]));
                    self.other(*kind, &mut Fields(rest)).await?;
                }
                return Ok(After::Next);
            }
            Step::Settle => return self.settle().await.map(|()| After::Next),
            Step::Echo => {
                let pieces: Vec<_> = self.stdin.chunks(1 << 15).map(data).collect();
                for piece in pieces {
                    self.packets.send(&piece).await?;
                }
                return Ok(After::Next);
            }
            Step::Flood => return self.flood().await.map(|()| After::Ended),
            Step::Await => {
                let mut go = self.shared.go.subscribe();
                let gone = go.wait_for(|go| *go).await.map(drop);
                return gone.map(|()| After::Next).map_err(io::Error::other);
            }
            Step::Bytes(bytes) => {
                return self.packets.stream.write_all(bytes).await.map(|()| After::Next);
            }
            Step::Close => {
                return self.packets.stream.shutdown().await.map(|()| After::Ended);
            }
            Step::Reset => return self.packets.stream.set_zero_linger().map(|()| After::Ended),
            Step::Stall => return self.shared.life.over().await.map(|()| After::Ended),
            Step::Disconnect => {
                let text = Text::new(message::DISCONNECT).u32(11).string("bye").string("");
                self.packets.send(&text.0).await?;
                return self.packets.stream.shutdown().await.map(|()| After::Ended);
            }
            Step::Accept => Text::new(message::SUCCESS).u32(peer).0,
            Step::Refuse => Text::new(message::FAILURE).u32(peer).0,
            Step::Stdout(bytes) => data(bytes),
            Step::Stderr(bytes) => Text::new(message::EXTENDED).u32(peer).u32(1).string(bytes).0,
            Step::Elsewhere(bytes) => Text::new(message::DATA).u32(peer + 99).string(bytes).0,
            Step::ExitStatus(status) => ask("exit-status").u32(*status).0,
            Step::ExitSignal(name) => {
                ask("exit-signal").string(name).bool(false).string("").string("").0
            }
            Step::Grant(bytes) => Text::new(message::ADJUST).u32(peer).u32(*bytes).0,
            Step::Eof => Text::new(message::EOF).u32(peer).0,
            Step::CloseChannel => Text::new(message::CLOSE).u32(peer).0,
            Step::Message(bytes) => bytes.to_vec(),
        };
        self.packets.send(&payload).await.map(|()| After::Next)
    }

    /// Sends on stdout until the peer ends the connection, whatever window it gives.
    async fn flood(&mut self) -> io::Result<()> {
        let piece = [b'x'; 1 << 15];
        let data = Text::new(message::DATA).u32(self.peer).string(piece).0;
        while self.packets.send(&data).await.is_ok() {
            self.shared.ledger().flooded_bytes += piece.len() as u64;
        }
        self.shared.ledger().floods_over += 1;
        Ok(())
    }

    /// Asks something that has to be answered, and waits for the answer.
    async fn settle(&mut self) -> io::Result<()> {
        let ask = Text::new(message::GLOBAL).string("keepalive@openssh.com").bool(true);
        self.packets.send(&ask.0).await?;
        loop {
            let payload = self.packets.read().await?;
            let (kind, rest) = payload.split_first().unwrap_or((&0, &[]));
            if matches!(*kind, message::GLOBAL_FAILURE | message::GLOBAL_SUCCESS) {
                return Ok(());
            }
            self.other(*kind, &mut Fields(rest)).await?;
        }
    }
}
