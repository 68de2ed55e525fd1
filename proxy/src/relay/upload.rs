//! The request on its way out: head, content, trailers.

use crate::access::{Caller, Looks};
use crate::head::Framing;
use crate::incoming::{self, Incoming};
use crate::outgoing;
use crate::upstream::exchange::Sender;
use bytes::Bytes;
use journal::contract::RequestSent;
use policy::HttpGrant;
use policy::recipe::ChunkSigner;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

/// Why the request did not leave in full.
pub(crate) enum Unsent {
    Origin(io::Error),
    Caller(incoming::Error),
    Limit,
    /// The access of who sends it ended.
    Access,
}

/// What the request may not exceed.
pub(crate) struct Bounds<'a> {
    /// Content bytes at most.
    pub(crate) limit_bytes: u64,
    /// What of trailers does not go on, beside what never does.
    pub(crate) grant: &'a HttpGrant,
    /// Whose access it rests on; an attempt without a caller has none.
    pub(crate) caller: Option<Caller<'a>>,
}

/// The content of a request on its way.
pub(crate) struct Content {
    pub(crate) framing: Framing,
    /// What was read ahead.
    pub(crate) ahead: Vec<Bytes>,
    /// What changes all of it.
    pub(crate) chunks: Option<ChunkSigner>,
}

/// Sends head, content and trailers.
pub(crate) async fn upload(
    sender: &mut Sender,
    incoming: &mut Incoming,
    head: Zeroizing<Vec<u8>>,
    content: Content,
    bounds: &Bounds<'_>,
    progress: &AtomicU64,
) -> Result<RequestSent, Unsent> {
    let Content { framing, mut ahead, mut chunks } = content;
    for piece in &mut ahead {
        *piece = signed(&mut chunks, std::mem::take(piece))?;
    }
    sender.head(head, framing, &ahead).await.map_err(Unsent::Origin)?;
    drop(ahead);
    progress.fetch_add(1, Ordering::Relaxed);
    let mut looks = Looks::default();
    while let Some(piece) = incoming.next().await.map_err(Unsent::Caller)? {
        if looks.find_over(bounds.caller) {
            return Err(Unsent::Access);
        }
        if incoming.length() > bounds.limit_bytes {
            return Err(Unsent::Limit);
        }
        let piece = signed(&mut chunks, piece)?;
        if !piece.is_empty() {
            sender.content(&piece).await.map_err(Unsent::Origin)?;
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
    if chunks.is_some_and(|chunks| chunks.finish().is_err()) {
        return Err(Unsent::Caller(incoming::Error::Malformed));
    }
    let trailers = outgoing::trailers(incoming.trailers(), bounds.grant);
    sender.finish(&trailers).await.map_err(Unsent::Origin)?;
    let (length_bytes, digest) = incoming.so_far();
    Ok(RequestSent { length_bytes, digest })
}

/// The piece as it leaves; content that was to be in signed chunks and is not ends the request.
fn signed(chunks: &mut Option<ChunkSigner>, piece: Bytes) -> Result<Bytes, Unsent> {
    let Some(chunks) = chunks else { return Ok(piece) };
    let signed = chunks.push(&piece).map_err(|_| Unsent::Caller(incoming::Error::Malformed))?;
    Ok(Bytes::from(signed))
}
