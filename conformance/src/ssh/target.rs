//! The scripted target: listens on loopback, takes one request per connection, keeps the ledger.

use super::script::{Opening, Stage, Step};
use super::wire::{Cipher, Fields, Packets, Text, malformed, random};
use crate::peer::{self, After, Counts, Life, counted};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{SHA256, digest};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const VERSION: &str = "SSH-2.0-Conformance";
/// What a peer may send before it is told to go on. No script reads more.
const WINDOW: u32 = 1 << 20;
/// The number that this end gives its channel.
const CHANNEL: u32 = 7;

/// Numbers of messages (RFC 4250 section 4.1.2).
mod message {
    pub(super) const DISCONNECT: u8 = 1;
    pub(super) const SERVICE_REQUEST: u8 = 5;
    pub(super) const SERVICE_ACCEPT: u8 = 6;
    pub(super) const KEXINIT: u8 = 20;
    pub(super) const NEWKEYS: u8 = 21;
    pub(super) const KEX_INIT: u8 = 30;
    pub(super) const KEX_REPLY: u8 = 31;
    pub(super) const LOGIN: u8 = 50;
    pub(super) const LOGIN_FAILURE: u8 = 51;
    pub(super) const LOGIN_SUCCESS: u8 = 52;
    pub(super) const LOGIN_KEY_OK: u8 = 60;
    pub(super) const GLOBAL: u8 = 80;
    pub(super) const GLOBAL_SUCCESS: u8 = 81;
    pub(super) const GLOBAL_FAILURE: u8 = 82;
    pub(super) const OPEN: u8 = 90;
    pub(super) const OPENED: u8 = 91;
    pub(super) const OPEN_FAILURE: u8 = 92;
    pub(super) const DATA: u8 = 94;
    pub(super) const EXTENDED: u8 = 95;
    pub(super) const EOF: u8 = 96;
    pub(super) const CLOSE: u8 = 97;
    pub(super) const REQUEST: u8 = 98;
    pub(super) const SUCCESS: u8 = 99;
    pub(super) const FAILURE: u8 = 100;
}

/// What arrived.
#[derive(Debug, Default)]
struct Ledger {
    requests: Vec<Vec<u8>>,
    effects: Vec<Vec<u8>>,
}

struct Shared {
    opening: Opening,
    steps: Vec<Step>,
    key: Ed25519KeyPair,
    ledger: Mutex<Ledger>,
    life: Life,
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
        let shared = Arc::new(Shared { opening, steps, key, ledger, life: Life::default() });
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
        let Ledger { requests, effects } = &mut *ledger;
        counted(requests.drain(..).map(text), effects.drain(..).map(text))
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
    exchange_keys(&mut packets, &client, shared).await?;
    Session { packets, shared, peer: 0, stdin: Vec::new(), ended: false, asked: Vec::new() }
        .run()
        .await
}

/// RFC 4253 sections 7 and 8, RFC 8731.
async fn exchange_keys(packets: &mut Packets, client: &str, shared: &Shared) -> io::Result<()> {
    let cookie = random::<16>()?;
    let mut own = Text::new(message::KEXINIT);
    own.0.extend_from_slice(&cookie);
    let cipher = "aes256-gcm@openssh.com";
    for list in [
        "curve25519-sha256",
        "ssh-ed25519",
        cipher,
        cipher,
        "hmac-sha2-256",
        "hmac-sha2-256",
        "none",
        "none",
        "",
        "",
    ] {
        own = own.string(list);
    }
    let own = own.bool(false).u32(0).0;
    packets.send(&own).await?;
    let theirs = packets.read().await?;
    let init = packets.read().await?;
    let (kind, init) = init.split_first().ok_or_else(|| malformed("an empty message"))?;
    if *kind != message::KEX_INIT {
        return Err(malformed("another message than the key exchange's"));
    }
    let point = Fields(init).string()?;
    let rng = ring::rand::SystemRandom::new();
    let failed = |_| io::Error::other("no key agreement");
    let private = EphemeralPrivateKey::generate(&X25519, &rng).map_err(failed)?;
    let public = private.compute_public_key().map_err(failed)?;
    let peer = UnparsedPublicKey::new(&X25519, point);
    let secret = agree_ephemeral(private, &peer, <[u8]>::to_vec).map_err(failed)?;
    let host_key = blob(&shared.key);
    let hashed = Text(Vec::new()).string(client).string(VERSION).string(theirs).string(&own);
    let hashed = hashed.string(&host_key).string(point).string(&public).mpint(&secret).0;
    let hash = digest(&SHA256, &hashed);
    let signature = if shared.opening == Opening::BadSignature {
        key_pair()?.0.sign(hash.as_ref())
    } else {
        shared.key.sign(hash.as_ref())
    };
    let signature = Text(Vec::new()).string("ssh-ed25519").string(signature.as_ref()).0;
    let reply = Text::new(message::KEX_REPLY).string(host_key).string(public).string(signature);
    packets.send(&reply.0).await?;
    packets.send(&[message::NEWKEYS]).await?;
    let key = |letter: u8| {
        let base = Text(Vec::new()).mpint(&secret).0;
        digest(&SHA256, &[&base, hash.as_ref(), &[letter], hash.as_ref()].concat())
    };
    let iv = |letter: u8| key(letter).as_ref().get(..12).map(<[u8]>::to_vec).unwrap_or_default();
    packets.sealing = Some(Cipher::new(key(b'D').as_ref(), &iv(b'B'))?);
    // Whoever can't follow says so here, or goes away.
    if packets.read().await?.first() != Some(&message::NEWKEYS) {
        return Err(malformed("another message than NEWKEYS"));
    }
    packets.opening = Some(Cipher::new(key(b'C').as_ref(), &iv(b'A'))?);
    Ok(())
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
            Step::Echo => data(&self.stdin),
            Step::Stdout(bytes) => data(bytes),
            Step::Stderr(bytes) => Text::new(message::EXTENDED).u32(peer).u32(1).string(bytes).0,
            Step::Elsewhere(bytes) => Text::new(message::DATA).u32(peer + 99).string(bytes).0,
            Step::ExitStatus(status) => ask("exit-status").u32(*status).0,
            Step::ExitSignal(name) => {
                ask("exit-signal").string(name).bool(false).string("").string("").0
            }
            Step::Eof => Text::new(message::EOF).u32(peer).0,
            Step::CloseChannel => Text::new(message::CLOSE).u32(peer).0,
            Step::Message(bytes) => bytes.to_vec(),
        };
        self.packets.send(&payload).await.map(|()| After::Next)
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
