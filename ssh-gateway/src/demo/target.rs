//! A scripted SSH target: the command says how the target behaves, well or badly.

use crate::downstream::signal_name;
use crate::line::{Line, Stream};
use policy::Secret;
use russh::keys::ssh_key::{self, LineEnding};
use russh::keys::{Algorithm, PrivateKey, PublicKey};
use russh::server::{
    Auth, ChannelOpenHandle, Config, Handle, Handler, Msg, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelId, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Why the target could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No address to listen on.
    #[error("the demo target cannot listen")]
    Listen(#[source] std::io::Error),
    /// No key could be made.
    #[error("the demo target cannot make its keys")]
    Keys(#[source] ssh_key::Error),
}

/// A running target on loopback. It ends when it is dropped.
///
/// | command | what the target does |
/// |---|---|
/// | `echo TEXT` | TEXT on stdout, exit status 0 |
/// | `warn TEXT` | TEXT on stderr, exit status 3 |
/// | `exit N` | exit status N |
/// | `signal NAME` | exit signal NAME |
/// | `cat` | stdin on stdout until its end, exit status 0 |
/// | `flood N` | N bytes on stdout, exit status 0 |
/// | `sleep MS` | waits, then `done` on stdout, exit status 0 |
/// | `linger MS` | `begun` on stdout, then like `sleep` |
/// | `await` | `begun` on stdout, waits for a signal, ends by it |
/// | `vanish` | accepts, has its effect, closes the channel without an exit status |
/// | `drop` | accepts, has its effect, closes the connection |
/// | `cut` | accepts, half of the output, exit status 0, then closes the connection |
/// | `trail` | accepts, exit status 0, more output, then closes the channel without end-of-file |
/// | `bare` | like `echo`, but closes the channel without end-of-file |
/// | `late` | accepts, exit status 0, then all of the output, end-of-file and close |
/// | `beyond` | accepts, end-of-file, then output all the same |
/// | `silent` | never answers the request, nor does anything else |
/// | `mute` | never answers the request; closes the connection after 300 ms |
/// | `refuse` | refuses the request; no effect |
/// | `twice` | sends two exit statuses |
/// | `intrude` | opens a channel towards the caller; exit status 9 if that is refused |
///
/// Every command that it starts counts as one effect.
pub struct Target {
    address: SocketAddr,
    host_key: PublicKey,
    user_key: PrivateKey,
    effects: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Target {
    /// Starts a target on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When it can't listen.
    pub async fn start() -> Result<Self, TargetError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(TargetError::Listen)?;
        let address = listener.local_addr().map_err(TargetError::Listen)?;
        let mut rng = russh::keys::key::safe_rng();
        let mut random =
            || PrivateKey::random(&mut rng, Algorithm::Ed25519).map_err(TargetError::Keys);
        let (host_key, user_key) = (random()?, random()?);
        let config = Arc::new(Config {
            auth_rejection_time: Duration::ZERO,
            keys: vec![host_key.clone()],
            inactivity_timeout: None,
            ..Config::default()
        });
        let effects = Arc::new(AtomicUsize::new(0));
        let served =
            Served { config, user: user_key.public_key().clone(), effects: Arc::clone(&effects) };
        let task = tokio::spawn(accept(listener, served));
        Ok(Self { address, host_key: host_key.public_key().clone(), user_key, effects, task })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its host key, as policy pins it: `ssh-ed25519 AAAA...`.
    #[must_use]
    pub fn host_key(&self) -> String {
        // An ed25519 key always has a text.
        self.host_key.to_openssh().unwrap_or_default()
    }

    /// The private key that logs in as any user, OpenSSH PEM text.
    #[must_use]
    pub fn user_key(&self) -> Secret {
        let text = self.user_key.to_openssh(LineEnding::LF);
        text.map(|text| Secret::from(text.as_str())).unwrap_or_default()
    }

    /// How many commands it started.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.effects.load(Ordering::Acquire)
    }
}

#[derive(Clone)]
struct Served {
    config: Arc<Config>,
    user: PublicKey,
    effects: Arc<AtomicUsize>,
}

async fn accept(listener: TcpListener, served: Served) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(connection(stream, served.clone()));
    }
}

async fn connection(stream: TcpStream, served: Served) {
    let line = Line::new();
    let stream = Stream::new(stream, Arc::clone(&line));
    let handler = Peer { served: served.clone(), line: Arc::clone(&line) };
    if let Ok(session) = russh::server::run_stream(served.config, stream, handler).await
        && let Err(error) = session.await
    {
        tracing::trace!(%error, "a connection to the demo target ended");
    }
    line.cut();
}

struct Peer {
    served: Served,
    line: Arc<Line>,
}

impl Handler for Peer {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _user: &str,
        key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        let known = self.served.user.key_data() == key.public_key.key_data();
        Ok(if known { Auth::Accept } else { Auth::reject() })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        let (read, write) = channel.split();
        let script = Script {
            read,
            write,
            handle: session.handle(),
            line: Arc::clone(&self.line),
            effects: Arc::clone(&self.served.effects),
        };
        tokio::spawn(async move {
            // A caller that leaves early ends the script early.
            drop(script.run().await);
        });
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        match command {
            b"mute" | b"silent" => Ok(()),
            b"refuse" => session.channel_failure(channel),
            _ => session.channel_success(channel),
        }
    }
}

struct Script {
    read: ChannelReadHalf,
    write: ChannelWriteHalf<Msg>,
    handle: Handle,
    line: Arc<Line>,
    effects: Arc<AtomicUsize>,
}

impl Script {
    async fn run(mut self) -> Result<(), russh::Error> {
        let command = loop {
            match self.read.wait().await {
                Some(ChannelMsg::Exec { command, .. }) => break command,
                Some(_) => {}
                None => return Ok(()),
            }
        };
        let command = String::from_utf8_lossy(&command).into_owned();
        let (verb, argument) = command.split_once(' ').unwrap_or((&command, ""));
        if verb == "refuse" {
            return self.write.close().await;
        }
        self.effects.fetch_add(1, Ordering::AcqRel);
        self.perform(verb, argument).await
    }

    async fn perform(&mut self, verb: &str, argument: &str) -> Result<(), russh::Error> {
        match verb {
            "echo" => {
                self.write.data_bytes(format!("{argument}\n").into_bytes()).await?;
                self.exit(0).await
            }
            "warn" => {
                let text = format!("{argument}\n").into_bytes();
                self.write.extended_data_bytes(1, text).await?;
                self.exit(3).await
            }
            "exit" => self.exit(argument.parse().unwrap_or(0)).await,
            "signal" => self.signal(argument).await,
            "cat" => self.cat().await,
            "flood" => self.flood(argument.parse().unwrap_or(0)).await,
            "sleep" | "linger" => {
                if verb == "linger" {
                    self.write.data_bytes(&b"begun\n"[..]).await?;
                }
                let pause = Duration::from_millis(argument.parse().unwrap_or(0));
                tokio::time::sleep(pause).await;
                self.write.data_bytes(&b"done\n"[..]).await?;
                self.exit(0).await
            }
            "await" => {
                self.write.data_bytes(&b"begun\n"[..]).await?;
                loop {
                    match self.read.wait().await {
                        Some(ChannelMsg::Signal { signal }) => {
                            return self.signal(signal_name(&signal)).await;
                        }
                        Some(_) => {}
                        None => return Ok(()),
                    }
                }
            }
            _ => self.misbehave(verb, argument).await,
        }
    }

    async fn misbehave(&mut self, verb: &str, argument: &str) -> Result<(), russh::Error> {
        match verb {
            "vanish" => self.write.close().await,
            "drop" => {
                self.line.cut();
                Ok(())
            }
            "cut" => {
                self.write.data_bytes(&b"first half"[..]).await?;
                self.write.exit_status(0).await?;
                self.gone_after_write().await
            }
            "trail" => {
                self.write.exit_status(0).await?;
                self.write.data_bytes(&b"first half"[..]).await?;
                self.write.close().await
            }
            "late" => {
                self.write.exit_status(0).await?;
                self.write.data_bytes(&b"all of it\n"[..]).await?;
                self.write.eof().await?;
                self.write.close().await
            }
            "beyond" => {
                self.write.eof().await?;
                self.write.data_bytes(&b"more"[..]).await?;
                self.exit(0).await
            }
            "silent" => {
                while self.read.wait().await.is_some() {}
                Ok(())
            }
            "bare" => {
                self.write.data_bytes(format!("{argument}\n").into_bytes()).await?;
                self.write.exit_status(0).await?;
                self.write.close().await
            }
            "mute" => {
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.line.cut();
                Ok(())
            }
            "intrude" => {
                let opening = self.handle.channel_open_forwarded_tcpip("x", 1, "y", 2);
                let status = if opening.await.is_err() { 9 } else { 0 };
                self.exit(status).await
            }
            "twice" => {
                self.write.exit_status(0).await?;
                self.exit(1).await
            }
            _ => self.exit(127).await,
        }
    }

    /// Ends the connection once the caller has what was sent: it answers in order.
    async fn gone_after_write(&mut self) -> Result<(), russh::Error> {
        let asked = self.handle.cancel_forward_tcpip(String::new(), 0);
        drop(tokio::time::timeout(Duration::from_secs(5), asked).await);
        self.line.cut();
        Ok(())
    }

    async fn exit(&mut self, status: u32) -> Result<(), russh::Error> {
        self.write.eof().await?;
        self.write.exit_status(status).await?;
        self.write.close().await
    }

    async fn signal(&mut self, name: &str) -> Result<(), russh::Error> {
        let signal = Sig::Custom(name.to_owned());
        let id = self.write.id();
        self.write.eof().await?;
        let none = String::new;
        let sent = self.handle.exit_signal_request(id, signal, false, none(), none()).await;
        sent.map_err(|()| russh::Error::SendError)?;
        self.write.close().await
    }

    async fn cat(&mut self) -> Result<(), russh::Error> {
        loop {
            match self.read.wait().await {
                Some(ChannelMsg::Data { data }) => self.write.data_bytes(data).await?,
                Some(ChannelMsg::Eof) => return self.exit(0).await,
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    async fn flood(&mut self, length_bytes: usize) -> Result<(), russh::Error> {
        let piece = bytes::Bytes::from(vec![b'x'; 32 << 10]);
        let mut left = length_bytes;
        while left > 0 {
            let take = left.min(piece.len());
            self.write.data_bytes(piece.slice(..take)).await?;
            left -= take;
        }
        self.exit(0).await
    }
}
