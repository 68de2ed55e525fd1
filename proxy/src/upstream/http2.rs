//! HTTP/2 towards origins: many exchanges on one connection, each released by a proof of its own.
//!
//! The library below resends nothing. What it can't tell, the last stream of a GOAWAY, is read off
//! the wire beside it ([`watched`]), and so is that an answer began, which voids every word that
//! nothing was processed.

mod streams;
mod watched;

use super::exchange::{Peer, Wire};
use super::facts::{Facts, Taken};
use super::tls::Alert;
use crate::http2::READ_BYTES;
use crate::http2::raw::failed;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::Mutex;
use watched::Watched;

pub(crate) use streams::{Receiver, Sender};
pub(super) use streams::{fault, into_rest};

/// Streams on a connection at the same time, however many more the origin takes.
const STREAMS: u32 = 64;
/// Bytes a stream, and a connection, may have on the way to us. Each stream's have room beside those of all
/// others: a caller that does not take its answer holds up nobody else's.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = STREAMS * STREAM_WINDOW;

/// A connection that carries many exchanges. It has no method that writes; a stream does.
#[derive(Clone)]
pub(crate) struct Connection {
    send: SendRequest<Bytes>,
    peer: Peer,
    facts: Arc<Facts>,
    /// Asks whether the origin's settings are here; taken by the first who does.
    ping: Arc<Mutex<Option<PingPong>>>,
}

/// Room for one exchange on a connection: one of the streams that the origin takes at a time. Above that
/// number the library keeps a request, and sends it whenever a stream is free, be its caller long gone.
pub(crate) struct Place {
    connection: Connection,
    taken: Taken,
}

impl Connection {
    /// Begins HTTP/2 on a connection that agreed to it, for a first exchange. Sends the preface, and no
    /// request byte.
    pub(super) async fn begin(wire: Wire, peer: Peer) -> io::Result<Place> {
        let facts = Arc::new(Facts::default());
        let watched = Watched::new(wire, Arc::clone(&facts));
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(READ_BYTES).unwrap_or(u32::MAX));
        let (send, mut connection) = builder.handshake(watched).await.map_err(failed)?;
        let ping = Arc::new(Mutex::new(connection.ping_pong()));
        let ended = Arc::clone(&facts);
        tokio::spawn(async move {
            if let Err(error) = connection.await.map_err(failed) {
                tracing::debug!(%error, "a connection to an origin ended");
            }
            ended.closed.store(true, Ordering::Release);
            ended.changed.notify_waiters();
        });
        let taken = facts.take_place(1).ok_or(io::ErrorKind::NotConnected)?;
        Ok(Place { connection: Self { send, peer, facts, ping }, taken })
    }

    pub(super) const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the connection takes no exchange any more.
    pub(super) fn is_over(&self) -> bool {
        self.facts.is_over()
    }

    /// Whether an exchange is under way on it.
    pub(super) fn is_busy(&self) -> bool {
        self.facts.places_taken() > 0
    }

    /// Room for another exchange on the same connection, if there is any.
    pub(super) fn place(&self) -> Option<Place> {
        // Before its settings came, nobody knows how many streams the origin takes.
        let limit = match self.facts.settled.load(Ordering::Acquire) {
            true => self.send.current_max_send_streams().min(STREAMS as usize),
            false => 1,
        };
        let taken = self.facts.take_place(limit).filter(|_| !self.is_over())?;
        let connection = Self { peer: Peer { reused: true, ..self.peer.clone() }, ..self.clone() };
        Some(Place { connection, taken })
    }
}

impl Place {
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the library takes one more stream.
    pub(super) async fn ready(self) -> io::Result<Self> {
        let connection = self.connection;
        let refused = || connection.facts.refused.get().copied();
        let failed = |error| refused().map_or_else(|| failed(error), Alert::into_error);
        let send = connection.send.ready().await.map_err(failed)?;
        Ok(Self { connection: Connection { send, ..connection }, ..self })
    }

    /// Whether the origin takes an extended CONNECT (RFC 8441 section 3). Its settings come before its
    /// answer to a ping does.
    pub(super) async fn carries_websockets(&self) -> bool {
        let mut ping = self.connection.ping.lock().await;
        if let Some(asking) = ping.as_mut()
            && asking.ping(Ping::opaque()).await.is_ok()
        {
            *ping = None;
        }
        self.connection.send.is_extended_connect_protocol_enabled()
    }

    /// The two sides of an exchange; the caller has given up its proof.
    pub(super) fn exchange(self) -> (Sender, Receiver) {
        streams::pair(self.connection.send, self.connection.facts, self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{Fields, Framing};
    use crate::http2::frames::{Frames, Seen};
    use crate::upstream::exchange::{Error, Link};
    use journal::contract::PeerIdentity;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use zeroize::Zeroizing;

    /// C-6: after a GOAWAY no stream can be opened any more, so that a request that was to open one was not
    /// processed; that is known at once.
    #[tokio::test]
    async fn c_6_a_goaway_before_the_stream_is_opened() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        tokio::spawn(async move {
            let mut origin = h2::server::handshake(far).await.expect("handshake");
            origin.graceful_shutdown();
            while origin.accept().await.is_some() {}
        });
        let identity = PeerIdentity::Unverified;
        let peer = Peer { connection: 1, address, identity, reused: true };
        let begun = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await;
        let place = begun.expect("begun");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while !place.connection().is_over() {
            assert!(tokio::time::Instant::now() < until, "no GOAWAY came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (mut sender, mut receiver) = place.exchange();
        let head = Zeroizing::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        assert!(sender.head(head, Framing::Empty, &[]).await.is_err());
        let answer =
            tokio::time::timeout(Duration::from_secs(20), receiver.head("GET", None)).await;
        assert!(matches!(answer.expect("at once"), Err(Error::NotProcessed)));
    }

    /// D-1, C-6: where the origin takes no stream any more, nothing of a request is handed to the library, which
    /// would keep it; that nothing was sent is known at once.
    #[tokio::test]
    async fn c_6_no_stream_is_free_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (mut far, _) = listener.accept().await.expect("far");
        let identity = PeerIdentity::Unverified;
        let peer = Peer { connection: 1, address, identity, reused: true };
        let place = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await.expect("begun");
        assert!(place.connection().place().is_none(), "its settings are not known yet");
        // SETTINGS_MAX_CONCURRENT_STREAMS with the value 0.
        far.write_all(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]).await.expect("settings");
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        while place.connection().send.current_max_send_streams() != 0 {
            assert!(tokio::time::Instant::now() < until, "no settings came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let connection = place.connection().clone();
        let (mut sender, mut receiver) = place.exchange();
        let head = Zeroizing::new(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        let sent = sender.head(head, Framing::Empty, &[]).await;
        assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::QuotaExceeded));
        let answer =
            tokio::time::timeout(Duration::from_secs(20), receiver.head("GET", None)).await;
        assert!(matches!(answer.expect("at once"), Err(Error::Unsent)));
        assert_eq!(connection.facts.places_taken(), 1);
        drop((sender, receiver));
        assert_eq!(connection.facts.places_taken(), 0);
        // Nothing but the preface, settings and their acknowledgement went out.
        drop(connection);
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), far.read_to_end(&mut all)).await;
        read.expect("in time").expect("read");
        let mut begun = Vec::new();
        Frames::of_client().see(&all, |seen| begun.push(seen));
        assert!(begun.iter().all(|seen| !matches!(seen, Seen::Begun(_))), "{begun:?}");
        assert!(begun.contains(&Seen::Ack), "{begun:?}");
    }

    /// D-2: a request is complete when its last frame was handed to the transport, and not when the library
    /// has taken it.
    #[tokio::test]
    async fn d_2_the_end_of_a_request_is_its_last_frame() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let near = TcpStream::connect(address).await.expect("near");
        let (far, _) = listener.accept().await.expect("far");
        let served = tokio::spawn(async move {
            let mut origin = h2::server::handshake(far).await.expect("handshake");
            let (request, _respond) = origin.accept().await.expect("open").expect("a request");
            let mut content = request.into_body();
            let all = async { while content.data().await.is_some() {} };
            // The connection has to be driven for its streams to go on.
            tokio::select! { () = all => content.is_end_stream(), _ = origin.accept() => false }
        });
        let peer =
            Peer { connection: 1, address, identity: PeerIdentity::Unverified, reused: false };
        let begun = Connection::begin(Wire::Plain(Link::Plain(near)), peer).await;
        let place = begun.expect("begun");
        let facts = Arc::clone(&place.connection().facts);
        let (mut sender, _receiver) = place.exchange();
        let head = Zeroizing::new(b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec());
        sender.head(head, Framing::Chunked, &[Bytes::from_static(b"abc")]).await.expect("head");
        let none = Fields::default();
        {
            // Nothing else runs meanwhile: the frames are in the library.
            let finish = sender.finish(&none);
            tokio::pin!(finish);
            assert!(futures::poll!(finish.as_mut()).is_pending());
            let finished = tokio::time::timeout(Duration::from_secs(20), finish).await;
            finished.expect("in time").expect("the end left");
        }
        assert!(served.await.expect("served"));
        assert!(facts.ended.is_empty());
    }
}
