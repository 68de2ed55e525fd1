//! What the resolver does not pass on: what a name server says of a failure beside its response code, the
//! extended error (RFC 8914), and that there was no socket to ask it with. Both are read off each answer
//! on its way to the resolver.

use super::dial::is_exhausted;
use dashmap::DashMap;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hickory_resolver::config::ConnectionConfig;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::DnsHandle;
use hickory_resolver::proto::op::{DnsRequest, DnsResponse};
use hickory_resolver::proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_resolver::{ConnectionProvider, PoolContext};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

/// The option's code (RFC 8914 section 2).
const OPTION: u16 = 15;
/// Names that a word is kept for, at most.
const NAMES: usize = 256;

/// What was heard beside a failure of the resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// The INFO-CODE of the server's extended error.
    InfoCode(u16),
    /// No socket was to be had for the question: the errno. The resolver itself says of it that there
    /// are no connections.
    Exhausted(i32),
}

/// The last word on each name, until it is asked for.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<DashMap<String, Word>>);

impl Heard {
    /// The last word on the failure of the name.
    pub(super) fn take(&self, name: &str) -> Option<Word> {
        self.0.remove(&key(name)).map(|(_, word)| word)
    }

    fn hear(&self, name: &str, answer: &Result<DnsResponse, NetError>) {
        match word(answer) {
            Some(word) => {
                if self.0.len() >= NAMES {
                    self.0.clear();
                }
                self.0.insert(name.to_owned(), word);
            }
            None => drop(self.0.remove(name)),
        }
    }
}

fn key(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn word(answer: &Result<DnsResponse, NetError>) -> Option<Word> {
    match answer {
        Ok(response) => info_code(response).map(Word::InfoCode),
        Err(NetError::Io(error)) if is_exhausted(error) => {
            error.raw_os_error().map(Word::Exhausted)
        }
        Err(_) => None,
    }
}

fn info_code(response: &DnsResponse) -> Option<u16> {
    let option = response.edns.as_ref()?.option(EdnsCode::from(OPTION))?;
    let EdnsOption::Unknown(_, data) = option else { return None };
    let (code, _) = data.split_first_chunk()?;
    Some(u16::from_be_bytes(*code))
}

/// Connections to name servers that are listened to.
#[derive(Clone)]
pub(super) struct Provider {
    inner: TokioRuntimeProvider,
    heard: Heard,
}

impl Provider {
    pub(super) fn new(heard: Heard) -> Self {
        Self { inner: TokioRuntimeProvider::default(), heard }
    }
}

type Inner = <TokioRuntimeProvider as ConnectionProvider>::Conn;

impl ConnectionProvider for Provider {
    type Conn = Connection;
    type FutureConn = Pin<Box<dyn Future<Output = Result<Connection, NetError>> + Send>>;
    type RuntimeProvider = TokioRuntimeProvider;

    fn new_connection(
        &self,
        ip: IpAddr,
        config: &ConnectionConfig,
        cx: &PoolContext,
    ) -> Result<Self::FutureConn, NetError> {
        let connecting = self.inner.new_connection(ip, config, cx)?;
        let heard = self.heard.clone();
        Ok(Box::pin(async move { Ok(Connection { inner: connecting.await?, heard }) }))
    }

    fn runtime_provider(&self) -> &TokioRuntimeProvider {
        &self.inner
    }
}

/// A connection to a name server.
#[derive(Clone)]
pub(super) struct Connection {
    inner: Inner,
    heard: Heard,
}

impl DnsHandle for Connection {
    type Response = BoxStream<'static, Result<DnsResponse, NetError>>;
    type Runtime = TokioRuntimeProvider;

    fn send(&self, request: DnsRequest) -> Self::Response {
        let heard = self.heard.clone();
        let asked = request.queries.first().map(|query| key(&query.name().to_ascii()));
        let Some(name) = asked else { return self.inner.send(request).boxed() };
        self.inner.send(request).inspect(move |answer| heard.hear(&name, answer)).boxed()
    }
}
