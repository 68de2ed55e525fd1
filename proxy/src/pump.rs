//! Bytes that pass both ways without being judged: after an upgrade, and inside a tunnel that is not
//! intercepted. A direction that ends is ended on the other side, and the other one goes on; only
//! silence in both is bounded.

use crate::deliver::Outbound;
use crate::hello::Hello;
use crate::redact::Redactor;
use crate::upstream::exchange::Opened;
use bytes::{Bytes, BytesMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

/// How long the possible beginning of a secret is held back when nothing follows.
const HOLD: Duration = Duration::from_millis(20);

/// Both directions ended in order.
pub(crate) const CLOSED: &str = "CLOSED";
pub(crate) const CALLER_BROKE: &str = "CALLER_BROKE";
const ORIGIN_BROKE: &str = "ORIGIN_BROKE";
pub(crate) const BROKER_STOPPED: &str = "BROKER_STOPPED";

/// What passed, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) to_origin: u64,
    pub(crate) to_caller: u64,
    /// A name of the end for records.
    pub(crate) cause: &'static str,
}

/// Passes bytes until both directions ended, one of them broke, nothing passed for `idle`, or something
/// says `stop`, and why. What the caller sends goes on once its `hello` may.
pub(crate) async fn pump(
    mut caller: Box<dyn AsyncRead + Send + Unpin>,
    out: &mut Outbound,
    origin: Opened,
    hello: Option<&mut Hello<'_>>,
    redactor: &mut Redactor,
    idle: Duration,
    stop: impl Future<Output = &'static str>,
) -> Passed {
    let (to_origin, to_caller) = (AtomicU64::new(0), AtomicU64::new(0));
    let Opened { reader, mut writer, early } = origin;
    let up = async {
        let mut buffer = BytesMut::new();
        let mut unseen = hello;
        loop {
            buffer.reserve(8 * 1024);
            let looked_at = buffer.len();
            if caller.read_buf(&mut buffer).await.map_err(|_| CALLER_BROKE)? == 0 {
                return writer.shutdown().await.map_err(|_| ORIGIN_BROKE);
            }
            if let Some(hello) = &mut unseen {
                if !hello.see(buffer.get(looked_at..).unwrap_or_default())? {
                    continue;
                }
                unseen = None;
            }
            let piece = buffer.split();
            writer.write_all(&piece).await.map_err(|_| ORIGIN_BROKE)?;
            writer.flush().await.map_err(|_| ORIGIN_BROKE)?;
            to_origin.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    };
    let down = down(reader, out, early, redactor, &to_caller);
    tokio::pin!(up, down, stop);
    let (mut up_open, mut down_open) = (true, true);
    let mut seen = (0, 0);
    let now = || (to_origin.load(Ordering::Relaxed), to_caller.load(Ordering::Relaxed));
    let cause = loop {
        let ended = tokio::select! {
            ended = &mut up, if up_open => {
                up_open = false;
                ended
            }
            ended = &mut down, if down_open => {
                down_open = false;
                ended
            }
            cause = &mut stop => Err(cause),
            () = sleep(idle) => {
                if std::mem::replace(&mut seen, now()) == now() { Err("IDLE") } else { Ok(()) }
            }
        };
        match ended {
            Err(cause) => break cause,
            Ok(()) if !up_open && !down_open => break CLOSED,
            Ok(()) => {}
        }
    };
    let (to_origin, to_caller) = now();
    Passed { to_origin, to_caller, cause }
}

/// Passes what the origin sends, without the credential.
async fn down(
    mut origin: impl AsyncRead + Unpin,
    out: &mut Outbound,
    early: Bytes,
    redactor: &mut Redactor,
    passed: &AtomicU64,
) -> Result<(), &'static str> {
    let mut buffer = BytesMut::from(early.as_ref());
    loop {
        if buffer.is_empty() {
            buffer.reserve(16 * 1024);
            let read = if redactor.is_holding() {
                match timeout(HOLD, origin.read_buf(&mut buffer)).await {
                    Ok(read) => read.map_err(|_| ORIGIN_BROKE)?,
                    Err(_) => {
                        let rest = redactor.rest();
                        passed.fetch_add(rest.len() as u64, Ordering::Relaxed);
                        out.send(&rest).await.map_err(|_| CALLER_BROKE)?;
                        continue;
                    }
                }
            } else {
                origin.read_buf(&mut buffer).await.map_err(|_| ORIGIN_BROKE)?
            };
            if read == 0 {
                out.send(&redactor.rest()).await.map_err(|_| CALLER_BROKE)?;
                return out.finish().await.map_err(|_| CALLER_BROKE);
            }
        }
        let piece = redactor.piece(buffer.split().freeze());
        passed.fetch_add(piece.len() as u64, Ordering::Relaxed);
        out.send(&piece).await.map_err(|_| CALLER_BROKE)?;
    }
}
