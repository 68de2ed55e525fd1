//! The answering side of one stream: takes the bytes of HTTP/1.1 responses, sends frames.

use super::progress::Progress;
use super::raw::{Writing, failed};
use super::to_map;
use crate::body::{Decoder, Step};
use crate::carrier::{self, Carrier};
use crate::handover::HandedOver;
use crate::head::{self, Fields, Framing, OF_OURS, Response};
use crate::unread::Unread;
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::time::timeout;

enum State {
    Head,
    Content(Decoder),
    Ended,
}

/// The answering side of a stream.
pub(crate) struct Stream {
    respond: SendResponse<Bytes>,
    sending: Option<SendStream<Bytes>>,
    state: State,
    buffer: BytesMut,
    method: String,
    id: u32,
    /// How it is broken off.
    reset: Reason,
    /// Whether the next head opens what was asked for.
    opens: bool,
    /// Whether chunks follow the next head, whatever it says.
    chunks: bool,
    progress: Arc<Progress>,
}

impl Stream {
    /// `method` is the request's: some responses have no content by it.
    pub(crate) fn new(
        respond: SendResponse<Bytes>,
        method: String,
        progress: Arc<Progress>,
    ) -> Self {
        let id = respond.stream_id().as_u32();
        progress.follow(id);
        let (sending, buffer) = (None, BytesMut::new());
        let reset = Reason::INTERNAL_ERROR;
        Self {
            respond,
            sending,
            state: State::Head,
            buffer,
            method,
            id,
            reset,
            opens: false,
            chunks: false,
            progress,
        }
    }

    /// Sends what the bytes say, as far as they say it; waits for the caller's window, and for as long as it
    /// opens; a caller that takes nothing for so long is gone.
    pub(crate) async fn send(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        // Content waits for what follows it: a caller may close as soon as it has as much as was
        // declared, and would answer an end that comes by itself with a reset.
        let mut held = None;
        loop {
            match &mut self.state {
                State::Ended => return Ok(()),
                State::Head => {
                    let Some(end) = head::find_end_within(&self.buffer, &mut 0, OF_OURS) else {
                        return Ok(());
                    };
                    let end = end.map_err(io::Error::other)?;
                    let head = self.buffer.split_to(end).freeze();
                    let head = head::response_within(&head, OF_OURS).map_err(io::Error::other)?;
                    self.head(&head)?;
                }
                State::Content(decoder) => {
                    let step = decoder.step_within(&mut self.buffer, OF_OURS);
                    let step = step.map_err(io::Error::other)?;
                    let data = held.take().unwrap_or_default();
                    match step {
                        Step::More => return self.data(data, false, patience).await,
                        Step::Data(next) => {
                            self.data(data, false, patience).await?;
                            held = Some(next);
                        }
                        Step::End(_, trailers) => self.end(data, &trailers, patience).await?,
                    }
                }
            }
        }
    }

    fn head(&mut self, head: &Response) -> io::Result<()> {
        let fields = to_map(&head.fields).ok_or(io::ErrorKind::InvalidData)?;
        let mut response = http::Response::new(());
        let opened = self.method == "CONNECT" && (200..300).contains(&head.status);
        // Whatever it is that was answered, it is not what the stream was to become.
        let status = if opened && !self.opens { 502 } else { head.status };
        *response.status_mut() = http::StatusCode::from_u16(status).map_err(io::Error::other)?;
        *response.headers_mut() = fields;
        if self.opens {
            return self.open(response);
        }
        if head.status < 200 {
            return self.respond.send_informational(response).map_err(failed);
        }
        let framing = if std::mem::take(&mut self.chunks) {
            Framing::Chunked
        } else {
            head::response_framing(head, &self.method).map_err(io::Error::other)?
        };
        let ended = matches!(framing, Framing::Empty | Framing::Length(0));
        let sending = self.respond.send_response(response, ended).map_err(failed)?;
        self.sending = Some(sending);
        self.state = if ended { State::Ended } else { State::Content(framing.into()) };
        Ok(())
    }

    /// Chunks follow the next head: a declared length has no other meaning there than for the caller.
    pub(crate) const fn chunks_follow(&mut self) {
        self.chunks = true;
    }

    /// The next head opens what the request asked for.
    pub(crate) const fn opens(&mut self) {
        self.opens = true;
    }

    /// What the opened stream carries from now on, with what comes on it.
    pub(crate) fn into_carrier(
        mut self,
        reading: Box<dyn AsyncRead + Send + Unpin>,
    ) -> Option<Carrier> {
        let writing = Writing::new(self.sending.take()?);
        self.state = State::Ended;
        let progress = Arc::clone(&self.progress);
        Some(Carrier::Stream(Box::new(carrier::Stream::new(reading, writing, self.id, progress))))
    }

    /// Opens what a CONNECT or an extended one asked for: with a 2xx (RFC 8441 section 5), and without the
    /// answer to a key.
    fn open(&mut self, mut response: http::Response<()>) -> io::Result<()> {
        *response.status_mut() = http::StatusCode::OK;
        response.headers_mut().remove(http::header::SEC_WEBSOCKET_ACCEPT);
        self.sending = Some(self.respond.send_response(response, false).map_err(failed)?);
        self.reset = Reason::CANCEL;
        self.state = State::Content(Decoder::Close);
        Ok(())
    }

    /// Whether the caller reset the stream, or its connection is gone.
    pub(crate) fn has_left(&mut self) -> bool {
        let cx = &mut Context::from_waker(Waker::noop());
        match &mut self.sending {
            Some(sending) => sending.poll_reset(cx).is_ready(),
            None => self.respond.poll_reset(cx).is_ready(),
        }
    }

    /// Ends what was opened, in order.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if let (State::Content(Decoder::Close), Some(sending)) = (&self.state, &mut self.sending) {
            sending.send_data(Bytes::new(), true).map_err(failed)?;
            self.state = State::Ended;
        }
        Ok(())
    }

    /// Sends content; `last`: the stream ends with it.
    async fn data(&mut self, mut data: Bytes, last: bool, patience: Duration) -> io::Result<()> {
        let sending = self.sending.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        while !data.is_empty() {
            sending.reserve_capacity(data.len());
            let room = timeout(patience, poll_fn(|cx| sending.poll_capacity(cx))).await?;
            let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(failed)?;
            let piece = data.split_to(room.min(data.len()));
            if !piece.is_empty() {
                sending.send_data(piece, last && data.is_empty()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Ends the stream behind the last of its content.
    async fn end(&mut self, data: Bytes, trailers: &Fields, patience: Duration) -> io::Result<()> {
        let trailers = to_map(trailers).ok_or(io::ErrorKind::InvalidData)?;
        let last = trailers.is_empty();
        let bare = data.is_empty();
        self.data(data, last, patience).await?;
        self.state = State::Ended;
        let sending = self.sending.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        match (last, bare) {
            (true, false) => Ok(()),
            (true, true) => sending.send_data(Bytes::new(), true).map_err(failed),
            (false, _) => sending.send_trailers(trailers).map_err(failed),
        }
    }

    /// Whether the caller's host acknowledged the whole response.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        if !matches!(self.state, State::Ended) {
            return Ok(false);
        }
        self.progress.is_acknowledged(self.id)
    }

    /// Keeps the delivery of the response: a reset of the connection takes it back.
    pub(crate) fn hand_over(&self, handed_over: HandedOver, unread: &Arc<Unread>) {
        self.progress.hand_over(self.id, handed_over, unread);
    }

    /// Waits until the head of the response left: a reset would overtake it, because the library drops
    /// what it has not written yet. For a caller that takes nothing, for ever.
    pub(crate) async fn begun(&self) {
        if self.sending.is_some() {
            self.progress.begun(self.id).await;
        }
    }

    /// Breaks an open response off visibly (contract S-2).
    pub(crate) fn abort(&mut self) {
        if !matches!(self.state, State::Ended) {
            self.state = State::Ended;
            match &mut self.sending {
                Some(sending) => sending.send_reset(self.reset),
                None => self.respond.send_reset(self.reset),
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.abort();
        self.progress.forget(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::Below;
    use crate::http2::progress::Watched;
    use tokio::net::{TcpListener, TcpStream};

    const PATIENCE: Duration = Duration::from_secs(4);
    const CONTENT: usize = 1 << 20;

    /// Sends a long answer to a caller that takes `piece` bytes of it each half a second, so many times, and
    /// then all of the rest or nothing any more.
    async fn answered(piece: usize, times: usize, takes_all: bool) -> Result<usize, io::ErrorKind> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let near = TcpStream::connect(listener.local_addr().expect("address")).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        let below = Below::tcp(&far, false).expect("a socket");
        let watched = Watched::new(far, below, None);
        let progress = watched.progress();
        let (client, server) =
            tokio::join!(h2::client::handshake(near), h2::server::handshake(watched));
        let ((client, connection), mut server) = (client.expect("client"), server.expect("server"));
        tokio::spawn(connection);
        let asked = http::Request::get("https://a.test/").body(()).expect("request");
        let mut client = client.ready().await.expect("ready");
        let (response, _) = client.send_request(asked, true).expect("sent");
        let (_, respond) = server.accept().await.expect("open").expect("a request");
        tokio::spawn(async move { while server.accept().await.is_some() {} });
        let taking = tokio::spawn(async move {
            let mut content = response.await.expect("a response").into_body();
            let (mut taken, mut owed) = (0, 0);
            for _ in 0..times {
                tokio::time::sleep(Duration::from_millis(500)).await;
                while owed < piece {
                    let Some(Ok(data)) = content.data().await else { return taken };
                    (taken, owed) = (taken + data.len(), owed + data.len());
                }
                content.flow_control().release_capacity(piece).expect("released");
                owed -= piece;
            }
            if !takes_all {
                std::future::pending::<()>().await;
            }
            content.flow_control().release_capacity(owed).expect("released");
            while let Some(Ok(data)) = content.data().await {
                taken += data.len();
                content.flow_control().release_capacity(data.len()).expect("released");
            }
            taken
        });
        let mut stream = Stream::new(respond, "GET".to_owned(), progress);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {CONTENT}\r\n\r\n");
        let answer = [head.as_bytes(), &vec![b'x'; CONTENT]].concat();
        stream.send(&answer, PATIENCE).await.map_err(|error| error.kind())?;
        Ok(taking.await.expect("taken"))
    }

    /// a caller that takes its answer slowly, and without a pause, gets all of it, whatever time that
    /// takes; one that takes nothing for too long is gone.
    #[tokio::test]
    async fn r_5_slow_callers_get_their_answer() {
        assert_eq!(answered(16 * 1024, 10, true).await, Ok(CONTENT));
        assert_eq!(answered(16 * 1024, 1, false).await, Err(io::ErrorKind::TimedOut));
    }
}
