//! The answering side of one stream: takes the bytes of HTTP/1.1 responses, sends frames.

use super::progress::Progress;
use super::to_map;
use crate::body::{Decoder, Step};
use crate::head::{self, Fields, Framing, Response};
use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the head of a response that is broken off may take to leave.
const BEGIN: Duration = Duration::from_secs(1);

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
    progress: Arc<Progress>,
}

fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    } else {
        io::Error::new(io::ErrorKind::ConnectionReset, error)
    }
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
        Self { respond, sending, state: State::Head, buffer, method, id, progress }
    }

    /// Sends what the bytes say, as far as they say it; waits for the caller's window.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        loop {
            match &mut self.state {
                State::Ended => return Ok(()),
                State::Head => {
                    let Some(end) = head::find_end(&self.buffer, &mut 0) else { return Ok(()) };
                    let end = end.map_err(io::Error::other)?;
                    let head = self.buffer.split_to(end).freeze();
                    self.head(&head::response(&head).map_err(io::Error::other)?)?;
                }
                State::Content(decoder) => {
                    match decoder.step(&mut self.buffer).map_err(io::Error::other)? {
                        Step::More => return Ok(()),
                        Step::Data(data) => self.data(data).await?,
                        Step::End(_, trailers) => self.end(&trailers)?,
                    }
                }
            }
        }
    }

    fn head(&mut self, head: &Response) -> io::Result<()> {
        let fields = to_map(&head.fields).ok_or(io::ErrorKind::InvalidData)?;
        let mut response = http::Response::new(());
        *response.status_mut() =
            http::StatusCode::from_u16(head.status).map_err(io::Error::other)?;
        *response.headers_mut() = fields;
        if head.status < 200 {
            return self.respond.send_informational(response).map_err(broken);
        }
        let framing = head::response_framing(head, &self.method).map_err(io::Error::other)?;
        let ended = matches!(framing, Framing::Empty | Framing::Length(0));
        let sending = self.respond.send_response(response, ended).map_err(broken)?;
        self.sending = Some(sending);
        self.state = if ended { State::Ended } else { State::Content(framing.into()) };
        Ok(())
    }

    async fn data(&mut self, mut data: Bytes) -> io::Result<()> {
        let sending = self.sending.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        while !data.is_empty() {
            sending.reserve_capacity(data.len());
            let room = poll_fn(|cx| sending.poll_capacity(cx)).await;
            let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(broken)?;
            let piece = data.split_to(room.min(data.len()));
            if !piece.is_empty() {
                sending.send_data(piece, false).map_err(broken)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, trailers: &Fields) -> io::Result<()> {
        self.state = State::Ended;
        let sending = self.sending.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let trailers = to_map(trailers).ok_or(io::ErrorKind::InvalidData)?;
        if trailers.is_empty() {
            sending.send_data(Bytes::new(), true).map_err(broken)
        } else {
            sending.send_trailers(trailers).map_err(broken)
        }
    }

    /// Whether the caller's host acknowledged the whole response.
    pub(crate) fn is_acknowledged(&self) -> io::Result<bool> {
        if !matches!(self.state, State::Ended) {
            return Ok(false);
        }
        self.progress.is_acknowledged(self.id)
    }

    /// Waits, not for long, until the head of the response left: a reset would overtake it.
    pub(crate) async fn begun(&self) {
        let until = Instant::now() + BEGIN;
        while self.sending.is_some() && !self.progress.has_begun(self.id) && Instant::now() < until
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Breaks an open response off visibly (contract S-2).
    pub(crate) fn abort(&mut self) {
        if !matches!(self.state, State::Ended) {
            self.state = State::Ended;
            match &mut self.sending {
                Some(sending) => sending.send_reset(Reason::INTERNAL_ERROR),
                None => self.respond.send_reset(Reason::INTERNAL_ERROR),
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
