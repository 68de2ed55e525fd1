//! A client that sends what no library would: more than its window, windows that overflow, packets of
//! any length.

use super::exchange;
use super::wire::{Fields, Packets, Text, malformed, message};
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const VERSION: &str = "SSH-2.0-Raw";
/// The number that this end gives its channel.
const CHANNEL: u32 = 3;

/// What a command showed to the client.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
    /// Its exit status.
    pub status: Option<u32>,
}

/// A connection with one command at most.
pub struct Raw {
    packets: Packets,
    /// The peer's number of the channel.
    peer: u32,
}

impl Raw {
    /// Connects and agrees on keys. Whom it talks to is not its question.
    ///
    /// # Errors
    /// What the connection says, and what is no SSH.
    pub async fn connect(server: SocketAddr) -> io::Result<Self> {
        let (stream, server) = Self::greet(server).await?;
        let mut packets = Packets { stream, sealing: None, opening: None };
        exchange::as_client(&mut packets, VERSION, &server).await?;
        Ok(Self { packets, peer: 0 })
    }

    /// A connection on which the version lines were said and nothing else; the server's line.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn greet(server: SocketAddr) -> io::Result<(TcpStream, String)> {
        let mut stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        stream.write_all(format!("{VERSION}\r\n").as_bytes()).await?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.push(stream.read_u8().await?);
        }
        Ok((stream, String::from_utf8_lossy(&line).trim_end().to_owned()))
    }

    /// Logs in by a password.
    ///
    /// # Errors
    /// When it is refused, or the connection ends.
    pub async fn login(&mut self, user: &str, password: &str) -> io::Result<()> {
        let service = Text::new(message::SERVICE_REQUEST).string("ssh-userauth");
        self.packets.send(&service.0).await?;
        self.until(message::SERVICE_ACCEPT).await?;
        let login = Text::new(message::LOGIN).string(user).string("ssh-connection");
        let login = login.string("password").bool(false).string(password);
        self.packets.send(&login.0).await?;
        self.until(message::LOGIN_SUCCESS).await.map(drop)
    }

    /// Opens a channel with so much window for output, and asks for a command under an invocation id.
    ///
    /// # Errors
    /// When something of it is refused, or the connection ends.
    pub async fn exec(&mut self, command: &str, id: &str, window_bytes: u32) -> io::Result<()> {
        let open = Text::new(message::OPEN).string("session").u32(CHANNEL).u32(window_bytes);
        self.packets.send(&open.u32(1 << 15).0).await?;
        let opened = self.until(message::OPENED).await?;
        let mut fields = Fields(&opened);
        let _own = fields.u32()?;
        self.peer = fields.u32()?;
        let ask = |name: &str, reply: bool| {
            Text::new(message::REQUEST).u32(self.peer).string(name).bool(reply)
        };
        let named = ask("env", false).string("AFFIANT_INVOCATION").string(id).0;
        let asked = ask("exec", true).string(command).0;
        self.packets.send(&named).await?;
        self.packets.send(&asked).await?;
        self.until(message::SUCCESS).await.map(drop)
    }

    /// Lets the peer send so many bytes more.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn grant(&mut self, bytes: u32) -> io::Result<()> {
        self.packets.send(&Text::new(message::ADJUST).u32(self.peer).u32(bytes).0).await
    }

    /// Sends input, whatever window there is for it.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn input(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(1 << 15) {
            let data = Text::new(message::DATA).u32(self.peer).string(piece);
            self.packets.send(&data.0).await?;
        }
        Ok(())
    }

    /// Ends the input.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn end_input(&mut self) -> io::Result<()> {
        self.packets.send(&Text::new(message::EOF).u32(self.peer).0).await
    }

    /// Sends bytes that are no packet.
    ///
    /// # Errors
    /// What the connection says.
    pub async fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.packets.stream.write_all(bytes).await
    }

    /// Reads until the peer closes the channel, and closes it as well.
    ///
    /// # Errors
    /// When the connection ends first.
    pub async fn shown(&mut self) -> io::Result<Shown> {
        let mut shown = Shown::default();
        loop {
            let payload = self.packets.read().await?;
            let (kind, rest) = payload.split_first().ok_or_else(|| malformed("no message"))?;
            let mut fields = Fields(rest);
            match *kind {
                message::DATA => {
                    let _channel = fields.u32()?;
                    shown.stdout.extend_from_slice(fields.string()?);
                }
                message::EXTENDED => {
                    let (_channel, _code) = (fields.u32()?, fields.u32()?);
                    shown.stderr.extend_from_slice(fields.string()?);
                }
                message::REQUEST => {
                    let _channel = fields.u32()?;
                    if fields.string()? == b"exit-status" {
                        let _wants_reply = fields.bool()?;
                        shown.status = Some(fields.u32()?);
                    }
                }
                message::CLOSE => {
                    self.packets.send(&Text::new(message::CLOSE).u32(self.peer).0).await?;
                    return Ok(shown);
                }
                other => self.answer(other, &mut fields).await?,
            }
        }
    }

    /// Reads until the peer ends the connection.
    ///
    /// # Errors
    /// Never for an end of any kind.
    pub async fn ended(mut self) -> io::Result<()> {
        let mut rest = Vec::new();
        match self.packets.stream.read_to_end(&mut rest).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The fields of the next message of that kind.
    async fn until(&mut self, wanted: u8) -> io::Result<Vec<u8>> {
        loop {
            let payload = self.packets.read().await?;
            let (kind, rest) = payload.split_first().ok_or_else(|| malformed("no message"))?;
            if *kind == wanted {
                return Ok(rest.to_vec());
            }
            let refused = [message::LOGIN_FAILURE, message::OPEN_FAILURE, message::FAILURE];
            if refused.contains(kind) {
                return Err(io::Error::other(format!("refused by message {kind}")));
            }
            self.answer(*kind, &mut Fields(rest)).await?;
        }
    }

    /// What a peer wants to have answered; who confirms nothing got nothing.
    async fn answer(&mut self, kind: u8, fields: &mut Fields<'_>) -> io::Result<()> {
        if kind == message::GLOBAL {
            let _name = fields.string()?;
            if fields.bool()? {
                return self.packets.send(&[message::GLOBAL_FAILURE]).await;
            }
        }
        Ok(())
    }
}
