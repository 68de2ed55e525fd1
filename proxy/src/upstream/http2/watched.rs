//! The transport below the library: what it does not tell is read off the wire beside it.

use super::{Facts, Wire};
use crate::http2::frames::{Frames, Seen};
use crate::http2::progress::Allowance;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to an origin, and what its frames say.
pub(super) struct Watched {
    wire: Wire,
    /// What comes, and what goes.
    frames: Frames,
    sent: Frames,
    /// What the origin may acknowledge without being asked. Pings of its own are not counted: a server that
    /// measures the way asks at each round of it.
    acks: Allowance,
    facts: Arc<Facts>,
}

impl Watched {
    pub(super) fn new(wire: Wire, facts: Arc<Facts>) -> Self {
        let (frames, sent) = (Frames::default(), Frames::of_client());
        Self { wire, frames, sent, acks: Allowance::new(), facts }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if let Err(error) = ready!(Pin::new(&mut this.wire).poll_read(cx, buf)) {
            if let Some(alert) = this.wire.refused_certificate(&error)
                && !this.facts.has_heard()
            {
                this.facts.refused.get_or_init(|| alert);
            }
            return Poll::Ready(Err(error));
        }
        if buf.filled().len() > before {
            this.facts.hear();
        }
        let (facts, mut acks) = (&this.facts, 0);
        this.frames.see(buf.filled().get(before..).unwrap_or_default(), |seen| match seen {
            Seen::GoAway(last) => {
                facts.last_stream.store(last, Ordering::Release);
                facts.going_away.store(true, Ordering::Release);
            }
            Seen::Begun(id) => facts.answer_begun(id),
            Seen::LongBlock(id) => facts.long_blocks.add(id),
            Seen::Ack => acks += 1,
            Seen::Settings => facts.settled.store(true, Ordering::Release),
            Seen::Headers(_) | Seen::EndStream(_) | Seen::Data(..) | Seen::Idle => {}
        });
        let now = Instant::now();
        if (0..acks).any(|_| !this.acks.take(now)) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.wire).poll_write(cx, buf))?;
        let facts = &this.facts;
        this.sent.see(buf.get(..written).unwrap_or_default(), |seen| {
            if let Seen::EndStream(id) = seen {
                facts.ended.insert(id);
                facts.changed.notify_waiters();
            }
        });
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}
