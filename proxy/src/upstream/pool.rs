//! Idle connections to origins, kept apart by everything that identifies trust.

use super::exchange::Idle;
use super::http2;
use super::versions::Offer;
use crate::target::{Authority, Scheme};
use dashmap::DashMap;
use std::net::IpAddr;
use std::path::PathBuf;
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
    /// Files of extra roots.
    pub(crate) trust: Vec<PathBuf>,
    /// Id and version of the credential.
    pub(crate) credential: Option<(String, u64)>,
    /// The versions of HTTP that were offered.
    pub(crate) offer: Offer,
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
    /// Connections that carry many exchanges.
    streams: DashMap<Key, Streams>,
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
        if let Some(mut streams) = self.streams.get_mut(key)
            && streams.used.elapsed() < limit
            && allowed(streams.connection.peer().address.ip())
            && let Some(connection) = streams.connection.again()
        {
            streams.used = Instant::now();
            return Some(Idle::on_streams(connection));
        }
        let mut kept = self.idle.get_mut(key)?;
        while let Some(mut idle) = kept.pop() {
            if idle.idle_for() < limit && allowed(idle.peer().address.ip()) && idle.is_quiet() {
                return Some(idle);
            }
        }
        None
    }

    /// Keeps a new connection for the exchanges after its first, if it carries many.
    pub(crate) fn share(&self, key: &Key, idle: &Idle) {
        if let Some(connection) = idle.streams()
            && self.streams.len() < KEYS
        {
            let streams = Streams { connection: connection.clone(), used: Instant::now() };
            self.streams.insert(key.clone(), streams);
        }
    }

    /// Closes what lay idle for too long.
    pub(crate) fn sweep(&self) {
        // Exchanges under way keep their connection open.
        self.streams
            .retain(|_, kept| kept.used.elapsed() < IDLE && kept.connection.again().is_some());
        self.idle.retain(|_, kept| {
            kept.retain(|idle| idle.idle_for() < IDLE);
            !kept.is_empty()
        });
    }

    /// Keeps a connection.
    pub(crate) fn put(&self, key: Key, idle: Idle) {
        if self.idle.len() >= KEYS && !self.idle.contains_key(&key) {
            self.sweep();
            if self.idle.len() >= KEYS {
                return;
            }
        }
        let mut kept = self.idle.entry(key).or_default();
        kept.retain(|idle| idle.idle_for() < IDLE);
        if kept.len() < PER_KEY {
            kept.push(idle);
        }
    }
}
