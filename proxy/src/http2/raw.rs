//! The content of a stream as a transport: what an extended CONNECT opens (RFC 8441 section 5). The
//! end of the stream is the end of the transport; a reset is an error.

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes asked for at a time.
const PIECE: usize = 64 * 1024;

/// What comes.
pub(crate) struct Reading {
    content: RecvStream,
    /// Taken from the stream, and not read yet.
    left: Bytes,
}

impl Reading {
    pub(crate) const fn new(content: RecvStream) -> Self {
        Self { content, left: Bytes::new() }
    }
}

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.left.is_empty() {
            match ready!(this.content.poll_data(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(piece) => this.left = piece.map_err(failed)?,
            }
        }
        let piece = this.left.split_to(this.left.len().min(buf.remaining()));
        // The peer's window opens by what was taken, so that nothing piles up.
        this.content.flow_control().release_capacity(piece.len()).map_err(failed)?;
        buf.put_slice(&piece);
        Poll::Ready(Ok(()))
    }
}

/// What goes.
pub(crate) struct Writing(SendStream<Bytes>);

impl Writing {
    pub(crate) const fn new(stream: SendStream<Bytes>) -> Self {
        Self(stream)
    }
}

impl Writing {
    /// Whether the peer reset the stream, or its connection is gone.
    pub(crate) fn has_left(&mut self) -> bool {
        self.0.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Breaks the stream off.
    pub(crate) fn reset(&mut self) {
        self.0.send_reset(Reason::CANCEL);
    }
}

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let stream = &mut self.get_mut().0;
        stream.reserve_capacity(buf.len().min(PIECE));
        let room = loop {
            let room = stream.capacity();
            if room > 0 {
                break room.min(buf.len());
            }
            ready!(stream.poll_capacity(cx)).ok_or(io::ErrorKind::BrokenPipe)?.map_err(failed)?;
        };
        let piece = Bytes::copy_from_slice(buf.get(..room).unwrap_or_default());
        stream.send_data(piece, false).map_err(failed)?;
        Poll::Ready(Ok(room))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.send_data(Bytes::new(), true).map_err(failed))
    }
}

/// The error of a stream or connection as one of a transport. The library's own text has what the peer wrote
/// into a GOAWAY, a credential perhaps (contract I-2): the reason alone goes on.
pub(crate) fn failed(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    let reason = error.reason().unwrap_or(h2::Reason::INTERNAL_ERROR);
    io::Error::new(io::ErrorKind::ConnectionReset, reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    /// I-2: what a peer writes into a GOAWAY is in no error of ours, and so in no log.
    #[tokio::test]
    async fn i_2_the_data_of_a_goaway_goes_nowhere() {
        let (near, mut far) = tokio::io::duplex(4096);
        let (_send, connection) = h2::client::handshake(near).await.expect("handshake");
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let last_stream_and_code = [0, 0, 0, 0, 0, 0, 0, 11];
        let data = b"sk-CANARY";
        let length = (last_stream_and_code.len() + data.len()) as u8;
        let head = [0, 0, length, 7, 0, 0, 0, 0, 0];
        let frames = [&settings[..], &head, &last_stream_and_code, data].concat();
        far.write_all(&frames).await.expect("written");
        let error = connection.await.expect_err("a GOAWAY");
        assert!(error.to_string().contains("CANARY"), "{error}");
        let error = failed(error);
        assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
        assert!(error.to_string().contains("excessive load"), "{error}");
    }
}
