//! Idle connections to origins, kept apart by everything that identifies trust.

use super::exchange::Idle;
use super::http2;
use super::tls::TrustFile;
use super::versions::Offer;
use crate::target::{Authority, Scheme};
use dashmap::DashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Connections kept for one key at most.
const PER_KEY: usize = 64;
/// Keys kept at most.
const KEYS: usize = 1024;
/// A connection that lay idle for longer is closed.
const IDLE: Duration = Duration::from_secs(45);
/// Many servers close after 5 s. An operation that must not run twice keeps clear of that race.
const IDLE_UNREPEATABLE: Duration = Duration::from_secs(3);

/// What two calls must share to share a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// Who calls: there are origins that log a connection in (NTLM, Negotiate), not a request.
    pub(crate) agent: String,
    /// Files of extra roots, as they were.
    pub(crate) trust: Vec<TrustFile>,
    /// The credential of the call.
    pub(crate) shown: Option<Shown>,
    /// The upstream proxy, and as whom.
    pub(crate) parent: Option<Through>,
    /// The versions of HTTP that were offered.
    pub(crate) offer: Offer,
}

/// What identifies the way through an upstream proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Through {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    pub(crate) trust: Vec<TrustFile>,
    pub(crate) shown: Option<Shown>,
}

/// A credential, as far as connections are kept apart by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) version: u64,
    /// What the connection itself was opened with. The versions of a source outside of the vault are
    /// not counted, and policy may point the id at another secret.
    pub(crate) opened_with: Option<Mark>,
}

/// Stands for a value that a connection was opened with; of use in this process only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn of(value: &impl Hash) -> Self {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(KEYS.hash_one(value))
    }
}

/// A connection that carries many exchanges, and when the last of them began.
struct Streams {
    connection: http2::Connection,
    used: Instant,
}

/// The pool.
#[derive(Default)]
pub(crate) struct Pool {
    idle: DashMap<Key, Vec<Idle>>,
    /// Connections that carry many exchanges, as many as the origin takes on each.
    streams: DashMap<Key, Vec<Streams>>,
}

impl Pool {
    /// A connection that is still quiet and whose address passes `allowed`, newest first.
    pub(crate) fn take(
        &self,
        key: &Key,
        repeatable: bool,
        allowed: impl Fn(IpAddr) -> bool,
    ) -> Option<Idle> {
        let limit = if repeatable { IDLE } else { IDLE_UNREPEATABLE };
        if let Some(mut kept) = self.streams.get_mut(key) {
            for streams in kept.iter_mut().rev() {
                if streams.used.elapsed() < limit
                    && allowed(streams.connection.peer().address.ip())
                    && let Some(place) = streams.connection.place()
                {
                    streams.used = Instant::now();
                    return Some(Idle::on_streams(place));
                }
            }
        }
        let mut kept = self.idle.get_mut(key)?;
        while let Some(mut idle) = kept.pop() {
            if idle.idle_for() < limit && allowed(idle.peer().address.ip()) && idle.is_quiet() {
                return Some(idle);
            }
        }
        None
    }

    /// Keeps a new connection for the exchanges after its first, if it carries many: beside those that are
    /// in use, and instead of those that were not good enough any more.
    pub(crate) fn share(&self, key: &Key, idle: &Idle) {
        if let Some(connection) = idle.streams() {
            if self.streams.len() >= KEYS && !self.streams.contains_key(key) {
                self.drop_ended();
                evict(&self.streams, |kept| newest(kept.iter().map(|streams| streams.used)));
            }
            let streams = Streams { connection: connection.clone(), used: Instant::now() };
            let mut kept = self.streams.entry(key.clone()).or_default();
            kept.retain(|kept| kept.connection.is_busy() && !kept.connection.is_over());
            if kept.len() < PER_KEY {
                kept.push(streams);
            }
        }
    }

    /// Closes what lay idle for too long.
    pub(crate) fn sweep(&self) {
        self.drop_ended();
        self.idle.retain(|_, kept| {
            kept.retain(|idle| idle.idle_for() < IDLE);
            !kept.is_empty()
        });
    }

    /// Forgets connections that carry many exchanges and are over. Exchanges under way keep theirs
    /// open.
    fn drop_ended(&self) {
        self.streams.retain(|_, kept| {
            kept.retain(|kept| kept.used.elapsed() < IDLE && !kept.connection.is_over());
            !kept.is_empty()
        });
    }

    /// Keeps a connection.
    pub(crate) fn put(&self, key: Key, idle: Idle) {
        if self.idle.len() >= KEYS && !self.idle.contains_key(&key) {
            self.sweep();
            evict(&self.idle, |kept| newest(kept.iter().map(Idle::since)));
        }
        let mut kept = self.idle.entry(key).or_default();
        kept.retain(|idle| idle.idle_for() < IDLE);
        if kept.len() < PER_KEY {
            kept.push(idle);
        }
    }
}

fn newest(times: impl Iterator<Item = Instant>) -> Instant {
    times.max().unwrap_or_else(Instant::now)
}

/// Makes room for one key more: the one that was used least recently goes, so that origins of late
/// never stand behind those of the past.
fn evict<V>(kept: &DashMap<Key, V>, used: impl Fn(&V) -> Instant) {
    if kept.len() < KEYS {
        return;
    }
    let oldest = kept.iter().min_by_key(|entry| used(entry.value())).map(|e| e.key().clone());
    if let Some(oldest) = oldest {
        kept.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{Link, Peer, Wire};
    use super::*;
    use journal::contract::PeerIdentity;
    use tokio::net::{TcpListener, TcpStream};

    fn key(port: u16) -> Key {
        let host = crate::target::Host::Address([127, 0, 0, 1].into());
        Key {
            scheme: Scheme::Http,
            authority: Authority { host, port },
            agent: "coder".to_owned(),
            trust: Vec::new(),
            shown: None,
            parent: None,
            offer: Offer::Http11,
        }
    }

    /// A pool that is full of other origins takes a new one at once, and the one that was idle for
    /// longest goes.
    #[tokio::test]
    async fn a_full_pool_takes_new_origins() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let address = listener.local_addr().expect("address");
        let pool = Pool::default();
        let (mut accepted, last) = (Vec::new(), u16::try_from(KEYS).expect("few") + 1);
        for port in 1..=last {
            let tcp = TcpStream::connect(address).await.expect("connect");
            accepted.push(listener.accept().await.expect("accept"));
            let identity = PeerIdentity::Unverified;
            let peer = Peer { connection: port.into(), address, identity, reused: false };
            pool.put(key(port), Idle::new(Wire::Plain(Link::Plain(tcp)), peer));
        }
        let take = |port| pool.take(&key(port), true, |_| true).map(|idle| idle.peer().connection);
        assert_eq!(pool.idle.len(), KEYS);
        assert_eq!((take(1), take(2), take(last)), (None, Some(2), Some(last.into())));
        // What identifies trust keeps connections apart (contract C-5).
        let shown = Shown { id: "c".to_owned(), version: 0, opened_with: Some(Mark::of(&"old")) };
        let renewed = Shown { opened_with: Some(Mark::of(&"new")), ..shown.clone() };
        assert_ne!(shown, renewed);
        assert_eq!(Mark::of(&"old"), Mark::of(&"old"));
        for other in [
            Key { trust: TrustFile::all(&["/x".into()]), ..key(3) },
            Key { agent: "other".to_owned(), ..key(3) },
            Key { shown: Some(shown), ..key(3) },
            Key { offer: Offer::Http2, ..key(3) },
            Key {
                parent: Some(Through {
                    scheme: Scheme::Http,
                    authority: key(4).authority,
                    trust: Vec::new(),
                    shown: None,
                }),
                ..key(3)
            },
        ] {
            assert!(pool.take(&other, true, |_| true).is_none());
        }
        assert_eq!(take(3), Some(3));
    }
}
