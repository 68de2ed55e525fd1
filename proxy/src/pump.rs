//! Bytes that pass both ways without being judged: after an upgrade, and inside a tunnel that is not
//! intercepted. A direction that ends is ended on the other side, and the other one goes on; only
//! silence in both is bounded.

use crate::deliver::Outbound;
use crate::redact::Redactor;
use crate::stream::Inbound;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

/// How long the possible beginning of a secret is held back when nothing follows.
const HOLD: Duration = Duration::from_millis(20);

/// What passed, and how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) to_origin: u64,
    pub(crate) to_caller: u64,
    /// A name of the end for records.
    pub(crate) cause: &'static str,
}

/// Passes bytes until both directions ended, one of them broke, or nothing passed for `idle`.
/// `early` came from the origin already.
pub(crate) async fn pump<W: AsyncRead + AsyncWrite + Unpin + Clone>(
    mut caller: Inbound,
    out: &mut Outbound,
    origin: W,
    early: Bytes,
    redactor: &mut Redactor,
    idle: Duration,
) -> Passed {
    let (to_origin, to_caller) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut writer = origin.clone();
    let up = async {
        loop {
            if caller.buffer.is_empty() && caller.fill().await? == 0 {
                return writer.shutdown().await;
            }
            let piece = caller.buffer.split();
            writer.write_all(&piece).await?;
            writer.flush().await?;
            to_origin.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    };
    let down = down(origin, out, early, redactor, &to_caller);
    tokio::pin!(up, down);
    let (mut up_open, mut down_open) = (true, true);
    let mut seen = (0, 0);
    let now = || (to_origin.load(Ordering::Relaxed), to_caller.load(Ordering::Relaxed));
    let cause = loop {
        let ended = tokio::select! {
            ended = &mut up, if up_open => {
                up_open = false;
                ended.map_err(|_| "CALLER_BROKE")
            }
            ended = &mut down, if down_open => {
                down_open = false;
                ended.map_err(|_| "ORIGIN_BROKE")
            }
            () = sleep(idle) => {
                if std::mem::replace(&mut seen, now()) == now() { Err("IDLE") } else { Ok(()) }
            }
        };
        match ended {
            Err(cause) => break cause,
            Ok(()) if !up_open && !down_open => break "CLOSED",
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
) -> io::Result<()> {
    let mut buffer = BytesMut::from(early.as_ref());
    loop {
        if buffer.is_empty() {
            buffer.reserve(16 * 1024);
            let read = if redactor.is_holding() {
                match timeout(HOLD, origin.read_buf(&mut buffer)).await {
                    Ok(read) => read?,
                    Err(_) => {
                        let rest = redactor.rest();
                        passed.fetch_add(rest.len() as u64, Ordering::Relaxed);
                        out.send(&rest).await?;
                        continue;
                    }
                }
            } else {
                origin.read_buf(&mut buffer).await?
            };
            if read == 0 {
                out.send(&redactor.rest()).await?;
                return out.finish().await;
            }
        }
        let piece = redactor.piece(buffer.split().freeze());
        passed.fetch_add(piece.len() as u64, Ordering::Relaxed);
        out.send(&piece).await?;
    }
}
