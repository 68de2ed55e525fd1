//! One connection of HTTP/2: reads requests, keeps the ledger, and follows the script of each.

use super::frames::{END_HEADERS, END_STREAM, Frame, block, frame, kind};
use super::script::{Last, OnStream, Step};
use crate::http::{Seen, Shared, Transport};
use crate::peer::After;
use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// SETTINGS_ENABLE_CONNECT_PROTOCOL with the value 1 (RFC 8441 section 3).
const CONNECTS: &[u8] = &[0, 8, 0, 0, 0, 1];

struct Session<'a, S> {
    stream: BufReader<S>,
    connection: u32,
    shared: &'a Shared,
    decoder: loona_hpack::Decoder<'static>,
    /// Streams that asked for a WebSocket.
    sockets: Vec<u32>,
}

/// A request on its stream.
struct Asked {
    id: u32,
    /// Its place in the ledger.
    index: usize,
    path: String,
    ended: bool,
    /// Bytes of its content that were read.
    read: usize,
}

/// Serves a connection to its end.
pub(crate) async fn serve<S: Transport>(
    stream: S,
    connection: u32,
    shared: &Shared,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.read_exact(&mut [0; PREFACE.len()]).await?;
    let decoder = loona_hpack::Decoder::new();
    let mut session = Session { stream, connection, shared, decoder, sockets: Vec::new() };
    let settings = if shared.takes_websockets() { CONNECTS } else { &[] };
    session.send(&frame(kind::SETTINGS, 0, 0, settings)).await?;
    while let Some(frame) = Frame::read(&mut session.stream).await? {
        if frame.kind != kind::HEADERS {
            session.stray(&frame);
            session.housekeeping(&frame).await?;
            continue;
        }
        let Some(mut asked) = session.asked(&frame).await? else { continue };
        let steps = shared.script(&asked.path).map(|script| script.frames).unwrap_or_default();
        for step in &steps {
            if session.take(step, &mut asked).await? == After::Ended {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl<S: Transport> Session<'_, S> {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Counts what is meant for a WebSocket and came without the script's reading it.
    fn stray(&self, frame: &Frame) {
        if frame.kind == kind::DATA && self.sockets.contains(&frame.stream) {
            self.shared.stray(frame.content().len());
        }
    }

    /// What a peer wants to have answered, whatever the script is.
    async fn housekeeping(&mut self, seen: &Frame) -> io::Result<()> {
        let acknowledged = seen.flags & 1 != 0;
        match seen.kind {
            kind::SETTINGS if !acknowledged => self.send(&frame(kind::SETTINGS, 1, 0, &[])).await,
            kind::PING if !acknowledged => self.send(&frame(kind::PING, 1, 0, &seen.payload)).await,
            kind::DATA if !seen.payload.is_empty() => {
                let more = u32::try_from(seen.payload.len()).unwrap_or_default().to_be_bytes();
                self.send(&frame(kind::WINDOW_UPDATE, 0, 0, &more)).await
            }
            _ => Ok(()),
        }
    }

    /// Takes the HEADERS of a request into the ledger; `None` for trailers.
    async fn asked(&mut self, first: &Frame) -> io::Result<Option<Asked>> {
        let mut fields = first.content().to_vec();
        let mut whole = first.ends_headers();
        while !whole {
            let more = Frame::read(&mut self.stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            fields.extend_from_slice(&more.payload);
            whole = more.ends_headers();
        }
        let lines = self.decoder.decode(&fields).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("field block: {error:?}"))
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let of = |wanted: &str| {
            let found = lines.iter().find(|(name, _)| name == wanted.as_bytes());
            found.map(|(_, value)| text(value))
        };
        let Some(mut method) = of(":method") else { return Ok(None) };
        let path = of(":path").unwrap_or_default();
        // As HTTP/1.1 would have it, so that one ledger serves both.
        if method == "CONNECT" && of(":protocol").as_deref() == Some("websocket") {
            "GET".clone_into(&mut method);
            self.sockets.push(first.stream);
        }
        let mut head = format!("{method} {path} HTTP/2\r\n");
        if let Some(authority) = of(":authority") {
            head.push_str(&format!("host: {authority}\r\n"));
        }
        for (name, value) in lines.iter().filter(|(name, _)| !name.starts_with(b":")) {
            head.push_str(&format!("{}: {}\r\n", text(name), text(value)));
        }
        head.push_str("\r\n");
        let seen = Seen { head: head.into_bytes(), connection: self.connection, ..Seen::default() };
        let index = self.shared.note(seen);
        Ok(Some(Asked { id: first.stream, index, path, ended: first.ends_stream(), read: 0 }))
    }

    /// Reads one frame of the request's content.
    async fn some(&mut self, asked: &mut Asked) -> io::Result<()> {
        while !asked.ended {
            let next = Frame::read(&mut self.stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.housekeeping(&next).await?;
            if next.stream != asked.id {
                continue;
            }
            asked.ended = next.ends_stream() && matches!(next.kind, kind::DATA | kind::HEADERS);
            if next.kind == kind::RST_STREAM {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if next.kind == kind::DATA {
                asked.read += next.content().len();
                self.shared.content(asked.index, next.content());
                if !asked.ended && !next.payload.is_empty() {
                    let more = u32::try_from(next.payload.len()).unwrap_or_default().to_be_bytes();
                    self.send(&frame(kind::WINDOW_UPDATE, 0, asked.id, &more)).await?;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    async fn take(&mut self, step: &Step, asked: &mut Asked) -> io::Result<After> {
        let flags = |end: bool| if end { END_STREAM } else { 0 };
        match step {
            Step::ReadBody => {
                while !asked.ended {
                    self.some(asked).await?;
                }
            }
            Step::ReadSome => self.some(asked).await?,
            Step::ReadBytes(count) => {
                while asked.read < *count {
                    if asked.ended {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.some(asked).await?;
                }
            }
            Step::Apply => self.shared.apply(asked.index),
            Step::Head { status, fields, end } => {
                let status = status.to_string();
                let lines = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                let block = block(std::iter::once((":status", status.as_str())).chain(lines));
                self.headers(asked.id, &block, flags(*end)).await?;
            }
            Step::Lines { fields, end } => {
                let lines = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                self.headers(asked.id, &block(lines), flags(*end)).await?;
            }
            Step::Data { content, end } => {
                self.send(&frame(kind::DATA, flags(*end), asked.id, content)).await?;
            }
            Step::ResetStream(code) => {
                self.send(&frame(kind::RST_STREAM, 0, asked.id, &code.to_be_bytes())).await?;
            }
            Step::GoAway(last, code) => {
                let last = match last {
                    Last::Before => asked.id.saturating_sub(2),
                    Last::This => asked.id,
                    Last::Highest => u32::MAX >> 1,
                };
                let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
                self.send(&frame(kind::GOAWAY, 0, 0, &payload)).await?;
            }
            Step::Frame { kind, flags, on, payload } => {
                let stream = match on {
                    OnStream::This => asked.id,
                    OnStream::Connection => 0,
                    OnStream::Unopened => asked.id + 100,
                };
                self.send(&frame(*kind, *flags, stream, payload)).await?;
            }
            Step::Bytes(bytes) => self.send(bytes).await?,
            Step::Close => return self.stream.shutdown().await.map(|()| After::Ended),
            Step::CutTls => return Ok(After::Ended),
            Step::Reset => {
                return self.stream.get_ref().socket().set_zero_linger().map(|()| After::Ended);
            }
            Step::Stall => return self.shared.life.over().await.map(|()| After::Ended),
        }
        Ok(After::Next)
    }

    /// HEADERS, and CONTINUATION for what does not fit.
    async fn headers(&mut self, stream: u32, block: &[u8], flags: u8) -> io::Result<()> {
        let mut pieces = block.chunks(1 << 14).peekable();
        let mut kind = kind::HEADERS;
        let mut flags = flags;
        if pieces.peek().is_none() {
            return self.send(&frame(kind, flags | END_HEADERS, stream, &[])).await;
        }
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                flags |= END_HEADERS;
            }
            self.send(&frame(kind, flags, stream, piece)).await?;
            (kind, flags) = (kind::CONTINUATION, 0);
        }
        Ok(())
    }
}
