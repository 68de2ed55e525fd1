//! HTTP/1.1 towards origins: one exchange at a time on one connection.

use super::exchange::{Error, Piece, Received, Wire};
use crate::body::{Decoder, Step};
use crate::head::{self, Fields, Framing};
use crate::stream::Shared;
use crate::websocket::Opening;
use bytes::{Bytes, BytesMut};
use journal::contract::Completion;
use std::io;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use zeroize::Zeroizing;

/// The two sides of the one exchange that a connection carries now. `sound`: nothing came on it that
/// would be taken for the response. `silent`: nothing ever came on it.
pub(super) fn exchange(wire: Wire, sound: bool, silent: bool) -> (Sender, Receiver) {
    let wire = Shared::new(wire);
    let sender = Sender { wire: wire.clone(), sound, chunked: false, left: 0, ended: false };
    let (buffer, decoder) = (BytesMut::new(), Decoder::Empty);
    (sender, Receiver { wire, sound, silent, buffer, decoder, keep: false })
}

/// The connection after a complete exchange, if it may carry another one.
pub(super) fn rejoin(sender: Sender, receiver: Receiver) -> Option<Wire> {
    let sound = sender.ended && receiver.keep && receiver.decoder == Decoder::Done;
    // Bytes beyond the response would be taken for the next one's.
    if !sound || !receiver.buffer.is_empty() {
        return None;
    }
    drop(sender);
    receiver.wire.into_inner()
}

/// Sends on a connection of HTTP/1.1.
pub(crate) struct Sender {
    wire: Shared<Wire>,
    sound: bool,
    chunked: bool,
    left: u64,
    ended: bool,
}

impl Sender {
    pub(super) async fn head(
        &mut self,
        mut head: Zeroizing<Vec<u8>>,
        framing: Framing,
        content: &[Bytes],
    ) -> io::Result<()> {
        if !self.sound {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match framing {
            Framing::Empty | Framing::Close => {}
            Framing::Length(length) => self.left = length,
            Framing::Chunked => self.chunked = true,
        }
        // One write for what is small; the buffer must not grow, or it would leave copies behind.
        let mut rest = content;
        if !self.chunked
            && let [first, more @ ..] = content
            && first.len() <= head.capacity() - head.len()
        {
            self.count(first.len())?;
            head.extend_from_slice(first);
            rest = more;
        }
        self.wire.write_all(&head).await?;
        drop(head);
        for piece in rest {
            self.write(piece).await?;
        }
        self.wire.flush().await
    }

    fn count(&mut self, length: usize) -> io::Result<()> {
        // A body byte too many would be read as the next request.
        self.left = self.left.checked_sub(length as u64).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(())
    }

    async fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        if self.chunked {
            self.wire.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            self.wire.write_all(piece).await?;
            self.wire.write_all(b"\r\n").await
        } else {
            self.count(piece.len())?;
            self.wire.write_all(piece).await
        }
    }

    pub(super) async fn content(&mut self, piece: &[u8]) -> io::Result<()> {
        self.write(piece).await?;
        self.wire.flush().await
    }

    /// `trailers`: only chunks have room for them.
    pub(super) async fn finish(&mut self, trailers: &Fields) -> io::Result<()> {
        if self.chunked {
            let mut last = b"0\r\n".to_vec();
            for (name, value) in trailers.iter() {
                for part in [name, b": ", value, b"\r\n"] {
                    last.extend_from_slice(part);
                }
            }
            last.extend_from_slice(b"\r\n");
            self.wire.write_all(&last).await?;
            self.wire.flush().await?;
        } else if self.left != 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.ended = true;
        Ok(())
    }
}

/// Receives on a connection of HTTP/1.1.
pub(crate) struct Receiver {
    wire: Shared<Wire>,
    sound: bool,
    silent: bool,
    buffer: BytesMut,
    decoder: Decoder,
    keep: bool,
}

impl Receiver {
    /// Whether any byte of a response is there that is not used yet.
    pub(super) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The connection itself, and what came on it already.
    pub(super) fn into_rest(self) -> (Shared<Wire>, Bytes) {
        (self.wire, self.buffer.freeze())
    }

    async fn fill(&mut self) -> Result<(), Error> {
        self.buffer.reserve(16 * 1024);
        match self.wire.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Error::Closed),
            Ok(_) => {
                self.silent = false;
                Ok(())
            }
            Err(error) => {
                let refused = self.wire.lock().refused_certificate(&error);
                Err(refused.filter(|_| self.silent).map_or(Error::Io(error), Error::Certificate))
            }
        }
    }

    pub(super) async fn head(
        &mut self,
        method: &str,
        opening: Option<&Opening>,
    ) -> Result<Received, Error> {
        if !self.sound {
            return Err(Error::Closed);
        }
        let head = self.one_head().await?;
        match head.status {
            101 => match opening.map(|opening| opening.is_answered(&head)) {
                Some(true) => Ok(Received::Switched(head)),
                Some(false) => Err(Error::Upgrade),
                None => Err(Error::Switched),
            },
            100..=199 => Ok(Received::Interim(head)),
            _ => {
                let framing = head::response_framing(&head, method)
                    .map_err(|fault| Error::of_framing(fault, &head))?;
                self.decoder = framing.into();
                self.keep = framing != Framing::Close && keeps_alive(&head);
                Ok(Received::Final(head))
            }
        }
    }

    async fn one_head(&mut self) -> Result<head::Response, Error> {
        let mut searched = 0;
        loop {
            match head::find_end(&self.buffer, &mut searched) {
                Some(Ok(end)) => {
                    let head = self.buffer.split_to(end).freeze();
                    return head::response(&head).map_err(Error::Head);
                }
                Some(Err(fault)) => return Err(Error::Head(fault)),
                None => self.fill().await?,
            }
        }
    }

    pub(super) async fn next(&mut self) -> Result<Piece, Error> {
        loop {
            match self.decoder.step(&mut self.buffer).map_err(Error::Content)? {
                Step::Data(data) => return Ok(Piece::Data(data)),
                Step::End(completion, trailers) => return Ok(Piece::End(completion, trailers)),
                Step::More => match self.fill().await {
                    // TLS without close_notify is an error of its own, so this end is orderly.
                    Err(Error::Closed) if self.decoder == Decoder::Close => {
                        self.decoder = Decoder::Done;
                        return Ok(Piece::End(Completion::CloseDelimited, Fields::default()));
                    }
                    filled => filled?,
                },
            }
        }
    }
}

fn keeps_alive(head: &head::Response) -> bool {
    match head.version {
        head::Version::Http11 => !head.fields.has_member("connection", "close"),
        head::Version::Http10 => head.fields.has_member("connection", "keep-alive"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::exchange::Link;
    use std::time::Duration;
    use tokio::net::{TcpListener, TcpStream};

    async fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let near = TcpStream::connect(listener.local_addr().expect("address")).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        (Wire::Plain(Link::Plain(near)), far)
    }

    fn head() -> Zeroizing<Vec<u8>> {
        Zeroizing::new(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n".to_vec())
    }

    async fn read_to_end(mut far: TcpStream) -> Vec<u8> {
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), far.read_to_end(&mut all)).await;
        // A side that closes with unread bytes resets.
        let error = read.expect("in time").err().map(|error| error.kind());
        assert!(matches!(error, None | Some(io::ErrorKind::ConnectionReset)), "{error:?}");
        all
    }

    /// S-6, C-3: what came on a connection since it was looked at last is no answer to a request that was
    /// not written yet, and nothing is written behind it.
    #[tokio::test]
    async fn s_6_a_stray_answer_is_not_taken() {
        let (wire, mut far) = pair().await;
        far.write_all(b"HTTP/1.1 408 Idle\r\nContent-Length: 0\r\n\r\n").await.expect("written");
        let (mut sender, mut receiver) = exchange(wire, false, true);
        let sent = sender.head(head(), Framing::Length(3), &[Bytes::from_static(b"abc")]).await;
        assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::ConnectionAborted));
        assert!(matches!(receiver.head("POST", None).await, Err(Error::Closed)));
        assert!(rejoin(sender, receiver).is_none(), "the connection is not used again");
        assert_eq!(read_to_end(far).await, b"");
    }

    /// D-7: not a byte of content more than was declared is written, none less is an end, and the
    /// connection carries nothing after either.
    #[tokio::test]
    async fn d_7_content_has_the_length_that_was_declared() {
        for (pieces, kind) in [
            (&[&b"ab"[..], b"cd"][..], io::ErrorKind::InvalidInput),
            (&[b"ab"], io::ErrorKind::UnexpectedEof),
        ] {
            let (wire, far) = pair().await;
            let (mut sender, receiver) = exchange(wire, true, true);
            sender.head(head(), Framing::Length(3), &[]).await.expect("the head");
            let mut ended = Ok(());
            for piece in pieces {
                ended = sender.content(piece).await;
            }
            if ended.is_ok() {
                ended = sender.finish(&Fields::default()).await;
            }
            assert_eq!(ended.map_err(|error| error.kind()), Err(kind));
            assert!(rejoin(sender, receiver).is_none());
            assert_eq!(read_to_end(far).await, [&head()[..], b"ab"].concat());
        }
    }
}
