//! Bytes that pass both ways without being judged: after an upgrade, and inside a tunnel that is not
//! intercepted. A direction that ends is ended on the other side, and the other one goes on; only
//! silence in both is bounded.

use crate::deliver::Outbound;
use crate::hello::Hello;
use crate::websocket::frames::Frames;
use bytes::{Bytes, BytesMut};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

/// How long the possible beginning of a secret is held back when nothing follows.
pub(crate) const HOLD: Duration = Duration::from_millis(20);

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Both directions ended in order.
    Closed,
    CallerBroke,
    /// The caller broke its side after one direction had ended in order: its own way of closing.
    CallerLeft,
    OriginBroke,
    /// What the origin sent are no frames of a WebSocket.
    BadFrames,
    /// Nothing passed for too long.
    Idle,
    BrokerStopped,
    /// The agent's access, or policy's word for it, is over.
    AccessOver,
    /// The TLS inside asked for another host.
    OtherName,
    /// What began as TLS can't be read.
    Unreadable,
    /// What began as TLS ended inside its ClientHello.
    CutHello,
}

impl Cause {
    /// Of what could not be sent to the caller. One that takes nothing has not left: it was cut off.
    fn of_sending(error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::TimedOut { Self::Idle } else { Self::CallerBroke }
    }

    /// The same, where one direction had ended in order before.
    const fn after_an_end(self) -> Self {
        match self {
            Self::CallerBroke => Self::CallerLeft,
            Self::Closed
            | Self::CallerLeft
            | Self::OriginBroke
            | Self::BadFrames
            | Self::Idle
            | Self::BrokerStopped
            | Self::AccessOver
            | Self::OtherName
            | Self::Unreadable
            | Self::CutHello => self,
        }
    }

    /// Its name in records.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::CallerBroke => "CALLER_BROKE",
            Self::CallerLeft => "CALLER_LEFT",
            Self::OriginBroke => "ORIGIN_BROKE",
            Self::BadFrames => "BAD_FRAMES",
            Self::Idle => "IDLE",
            Self::BrokerStopped => "BROKER_STOPPED",
            Self::AccessOver => "ACCESS_OVER",
            Self::OtherName => "OTHER_NAME",
            Self::Unreadable => "UNREADABLE_HELLO",
            Self::CutHello => "CUT_HELLO",
        }
    }
}

/// What passed, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) to_origin: u64,
    pub(crate) to_caller: u64,
    pub(crate) cause: Cause,
}

/// The direction to the caller, and what ends both.
pub(crate) struct Pump<'a> {
    down: Pin<Box<dyn Future<Output = Result<(), Cause>> + Send + 'a>>,
    stop: Pin<Box<dyn Future<Output = Cause> + Send + 'a>>,
    is_down_open: bool,
    idle: Duration,
    to_origin: Arc<AtomicU64>,
    to_caller: Arc<AtomicU64>,
    seen: (u64, u64),
}

impl<'a> Pump<'a> {
    /// Bytes pass until both directions ended, one of them broke, nothing passed for `idle`, or something
    /// says `stop`, and why. `frames`: what comes from the origin is looked through.
    pub(crate) fn new(
        out: &'a mut Outbound,
        (origin, early): (Box<dyn AsyncRead + Send + Unpin>, Bytes),
        frames: Option<Frames<'a>>,
        idle: Duration,
        stop: impl Future<Output = Cause> + Send + 'a,
    ) -> Self {
        let to_caller = Arc::<AtomicU64>::default();
        Self {
            down: Box::pin(down(origin, out, early, frames, Arc::clone(&to_caller))),
            stop: Box::pin(stop),
            is_down_open: true,
            idle,
            to_origin: Arc::default(),
            to_caller,
            seen: (0, 0),
        }
    }

    /// Waits until the beginning of what the caller sends may go on, and gives it; empty where the caller
    /// ended its direction without one. Nothing is written to the origin meanwhile.
    ///
    /// # Errors
    /// The cause for the records.
    pub(crate) async fn hello(
        &mut self,
        caller: &mut (dyn AsyncRead + Send + Unpin),
        hello: &mut Hello<'_>,
    ) -> Result<BytesMut, Cause> {
        let mut beginning = BytesMut::new();
        let seeing = async {
            loop {
                beginning.reserve(8 * 1024);
                let looked_at = beginning.len();
                if caller.read_buf(&mut beginning).await.map_err(|_| Cause::CallerBroke)? == 0 {
                    return hello.end();
                }
                if hello.see(beginning.get(looked_at..).unwrap_or_default())? {
                    return Ok(());
                }
            }
        };
        self.beside(pin!(seeing)).await?;
        Ok(beginning)
    }

    /// Passes what the caller sends, after its `beginning`, to the end of both directions.
    pub(crate) async fn run(
        &mut self,
        mut caller: Box<dyn AsyncRead + Send + Unpin>,
        beginning: BytesMut,
        mut writer: Box<dyn AsyncWrite + Send + Unpin>,
    ) -> Cause {
        let to_origin = Arc::clone(&self.to_origin);
        let up = async move {
            let mut buffer = beginning;
            loop {
                if buffer.is_empty() {
                    buffer.reserve(8 * 1024);
                    if caller.read_buf(&mut buffer).await.map_err(|_| Cause::CallerBroke)? == 0 {
                        return writer.shutdown().await.map_err(|_| Cause::OriginBroke);
                    }
                }
                let piece = buffer.split();
                writer.write_all(&piece).await.map_err(|_| Cause::OriginBroke)?;
                writer.flush().await.map_err(|_| Cause::OriginBroke)?;
                to_origin.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
        };
        if let Err(cause) = self.beside(pin!(up)).await {
            return if self.is_down_open { cause } else { cause.after_an_end() };
        }
        while self.is_down_open {
            if let Err(cause) = self.step().await {
                return cause.after_an_end();
            }
        }
        Cause::Closed
    }

    /// Waits for the caller's direction, beside all the rest.
    async fn beside(
        &mut self,
        mut up: Pin<&mut impl Future<Output = Result<(), Cause>>>,
    ) -> Result<(), Cause> {
        loop {
            tokio::select! {
                ended = &mut up => return ended,
                stepped = self.step() => stepped?,
            }
        }
    }

    /// Waits for the next that happens beside the caller's direction. Cancel-safe.
    async fn step(&mut self) -> Result<(), Cause> {
        tokio::select! {
            ended = &mut self.down, if self.is_down_open => {
                ended?;
                self.is_down_open = false;
                Ok(())
            }
            cause = &mut self.stop => Err(cause),
            () = sleep(self.idle) => {
                let now = self.counts();
                if std::mem::replace(&mut self.seen, now) == now { Err(Cause::Idle) } else { Ok(()) }
            }
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.to_origin.load(Ordering::Relaxed), self.to_caller.load(Ordering::Relaxed))
    }

    /// What passed until it ended so.
    pub(crate) fn passed(&self, cause: Cause) -> Passed {
        let (to_origin, to_caller) = self.counts();
        Passed { to_origin, to_caller, cause }
    }
}

/// Passes what the origin sends, without the credential.
async fn down(
    mut origin: impl AsyncRead + Unpin,
    out: &mut Outbound,
    early: Bytes,
    mut frames: Option<Frames<'_>>,
    passed: Arc<AtomicU64>,
) -> Result<(), Cause> {
    let mut buffer = BytesMut::from(early.as_ref());
    loop {
        let mut ended = false;
        let mut piece = None;
        if buffer.is_empty() {
            buffer.reserve(16 * 1024);
            let reading = origin.read_buf(&mut buffer);
            let read = match frames.as_mut().filter(|frames| frames.is_waiting()) {
                Some(frames) => timeout(HOLD, reading).await.unwrap_or_else(|_| {
                    piece = Some(frames.release());
                    Ok(0)
                }),
                None => reading.await,
            };
            ended = read.map_err(|_| Cause::OriginBroke)? == 0 && piece.is_none();
        }
        let piece = match (piece, &mut frames) {
            (Some(released), _) => released,
            (None, Some(frames)) if ended => frames.finish(),
            (None, Some(frames)) => frames.push(buffer.split()).map_err(|_| Cause::BadFrames)?,
            (None, None) => buffer.split(),
        };
        passed.fetch_add(piece.len() as u64, Ordering::Relaxed);
        if !piece.is_empty() {
            out.send(&piece).await.map_err(|error| Cause::of_sending(&error))?;
        }
        if ended {
            return out.finish().await.map_err(|error| Cause::of_sending(&error));
        }
    }
}
