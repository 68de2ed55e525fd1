//! The rows of the matrix and what they need before they can be played.

use crate::case::{Case, Contract, Identity, Method, Pairing, Shape, cases};
use crate::pki::{self, Authority};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::net::TcpSocket;

/// One row.
#[derive(Clone)]
pub struct Row {
    /// What is played.
    pub case: Arc<Case>,
    /// In which shape.
    pub shape: Shape,
    /// Under which contract.
    pub contract: Contract,
}

impl Row {
    /// The row's id: its place on every axis.
    #[must_use]
    pub fn id(&self) -> String {
        let Shape { pairing, method, tls, reused, streamed } = self.shape;
        format!(
            "{}/{}/{}/{}/{}/{}/{}",
            pairing.as_str(),
            if tls { "tls" } else { "clear" },
            if reused { "reused" } else { "fresh" },
            if streamed { "streamed" } else { "held" },
            method.as_str(),
            self.contract.as_str(),
            self.case.name
        )
    }
}

/// Every row: all shapes without a contract, and every contract where connections are fresh, because
/// what a route declares and where a connection comes from do not meet.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases().into_iter().map(Arc::new) {
        for shape in shapes() {
            if !case.applies(&shape) {
                continue;
            }
            for contract in [Contract::Plain, Contract::Idempotent, Contract::Once, Contract::Key] {
                let simple = !shape.pairing.is_crossed()
                    && !shape.reused
                    && (!shape.streamed || shape.pairing == Pairing::Grpc)
                    && shape.tls;
                if contract == Contract::Plain || (simple && declares(contract, shape.method)) {
                    rows.push(Row { case: Arc::clone(&case), shape, contract });
                }
            }
        }
    }
    rows
}

/// Whether the contract says of that method what the method itself does not say.
const fn declares(contract: Contract, method: Method) -> bool {
    match contract {
        Contract::Plain => false,
        Contract::Idempotent => matches!(method, Method::Post),
        Contract::Once => matches!(method, Method::Get | Method::Put | Method::Delete),
        Contract::Key => matches!(method, Method::Post | Method::Put),
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for method in Method::ALL {
        for streamed in [false, true] {
            for tls in [false, true] {
                for reused in [false, true] {
                    let pairing = Pairing::Http1;
                    shapes.push(Shape { pairing, method, tls, reused, streamed });
                }
            }
            // Which protocol the caller speaks and which connection the origin gets do not meet.
            let (tls, reused) = (true, false);
            for pairing in [Pairing::Http2Caller, Pairing::Http2Origin] {
                shapes.push(Shape { pairing, method, tls, reused, streamed });
            }
            for reused in [false, true] {
                shapes.push(Shape { pairing: Pairing::Http2, method, tls, reused, streamed });
            }
        }
    }
    for streamed in [false, true] {
        for reused in [false, true] {
            let (pairing, method, tls) = (Pairing::Grpc, Method::Post, true);
            shapes.push(Shape { pairing, method, tls, reused, streamed });
        }
    }
    for tls in [false, true] {
        let (pairing, method) = (Pairing::WebSocket, Method::Get);
        shapes.push(Shape { pairing, method, tls, reused: false, streamed: false });
    }
    for (pairing, reused) in [
        (Pairing::WebSocketCaller, false),
        (Pairing::WebSocketOrigin, false),
        (Pairing::WebSocketStreams, false),
        (Pairing::WebSocketStreams, true),
    ] {
        let (method, tls) = (Method::Get, true);
        shapes.push(Shape { pairing, method, tls, reused, streamed: false });
    }
    shapes
}

/// A port that is taken before it is used.
pub(super) enum Socket {
    Listening(TcpListener),
    /// Bound without listening: whoever connects is refused, and nobody else gets the port.
    Refusing(TcpSocket),
}

impl Socket {
    pub(super) fn new(listens: bool) -> io::Result<Self> {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        if listens {
            return TcpListener::bind(loopback).map(Self::Listening);
        }
        let socket = TcpSocket::new_v4()?;
        socket.bind(loopback)?;
        Ok(Self::Refusing(socket))
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        match self {
            Self::Listening(listener) => Ok(listener.local_addr()?.port()),
            Self::Refusing(socket) => Ok(socket.local_addr()?.port()),
        }
    }
}

/// A row with its port.
pub(super) struct Item {
    pub(super) row: Row,
    /// Taken in advance where a route names the port.
    pub(super) socket: Option<Socket>,
}

/// The identities that origins show.
pub(super) struct Identities {
    trusted: pki::Leaf,
    stranger: pki::Leaf,
    wrong_name: pki::Leaf,
    expired: pki::Leaf,
}

impl Identities {
    pub(super) fn of(
        &self,
        identity: Identity,
        pairing: Pairing,
    ) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
        let leaf = match identity {
            Identity::Trusted => &self.trusted,
            Identity::Stranger => &self.stranger,
            Identity::WrongName => &self.wrong_name,
            Identity::Expired => &self.expired,
        };
        if pairing.origin_speaks_http2() { leaf.http2_config() } else { leaf.server_config() }
    }
}

/// Why a plan could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate.
    #[error("could not make the origins' certificates")]
    Certificate(#[from] pki::Error),
    /// A socket.
    #[error("could not take a port")]
    Socket(#[from] io::Error),
}

/// Rows that can be played: ports and certificates are there.
pub struct Plan {
    pub(super) items: Vec<Item>,
    pub(super) identities: Arc<Identities>,
    authority_pem: String,
}

impl Plan {
    /// Prepares rows.
    ///
    /// # Errors
    /// [`Error`]
    pub fn new(rows: Vec<Row>) -> Result<Self, Error> {
        let authority = Authority::new("conformance origins")?;
        let name = &["127.0.0.1", "localhost"];
        let identities = Arc::new(Identities {
            trusted: authority.leaf(name)?,
            stranger: Authority::new("a stranger")?.leaf(name)?,
            wrong_name: authority.leaf(&["elsewhere.example"])?,
            expired: authority.expired_leaf(name)?,
        });
        let items = rows
            .into_iter()
            .map(|row| {
                let socket = match row.contract {
                    Contract::Plain => None,
                    Contract::Idempotent | Contract::Once | Contract::Key => {
                        Some(Socket::new(row.case.peer(&row.shape).listens)?)
                    }
                };
                Ok(Item { row, socket })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { items, identities, authority_pem: authority.pem().to_owned() })
    }

    /// The same rows in parts of so many at most. Every row has an origin of its own, and brokers
    /// bound the number of origins that they keep connections to.
    #[must_use]
    pub fn parts(self, of: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut items = self.items.into_iter().peekable();
        while items.peek().is_some() {
            parts.push(Self {
                items: items.by_ref().take(of.max(1)).collect(),
                identities: Arc::clone(&self.identities),
                authority_pem: self.authority_pem.clone(),
            });
        }
        parts
    }

    /// How many rows it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The certificate of the origins' authority, which the broker has to trust.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// The policy for Affiant, with the authority's certificate in a file.
    ///
    /// # Errors
    /// [`io::Error`] when a port was lost.
    pub fn policy(&self, authority_file: &std::path::Path) -> io::Result<String> {
        let mut text = format!(
            "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n\
             limits = {{ connect_timeout = \"4s\", response_timeout = \"4s\", idle_timeout = \"4s\", \
             hold_time = \"1h\" }}\n\n[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"\n",
            authority_file.display()
        );
        for item in &self.items {
            let Some(socket) = &item.socket else { continue };
            let port = socket.port()?;
            let scheme = if item.row.shape.tls { "https" } else { "http" };
            let declared = match item.row.contract {
                Contract::Plain => String::new(),
                Contract::Idempotent => "idempotent = true\n".to_owned(),
                Contract::Once => "idempotent = false\n".to_owned(),
                Contract::Key => format!(
                    "idempotency = {{ header = \"Idempotency-Key\", scope = \"s{port}\", \
                     retention = \"24h\", contract = \"verified\" }}\n"
                ),
            };
            text.push_str(&format!(
                "\n[[route]]\nname = \"r{port}\"\n{declared}\
                 match = {{ scheme = \"{scheme}\", host = \"127.0.0.1\", port = {port} }}\n"
            ));
        }
        Ok(text)
    }
}
