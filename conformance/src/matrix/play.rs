//! Plays rows: starts the origin, makes the call, gathers what both sides saw.

use super::judge::judge;
use super::plan::{Item, Plan, Row, Socket};
use super::report::{Played, Report, at_a_time};
use super::{Broker, Dialect};
use crate::case::{Contract, EARLY, MARK, Method, Pairing, Shape, Then};
use crate::http::{Answer, End, Origin, Request, Script, Seen, Step};
use crate::http2::{OnStream, Step as Frame, kind};
use crate::subject::{Error, io as failed};
use bytes::Bytes;
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Tries to get a reused connection.
const TRIES: u32 = 8;

/// What both sides saw of one row.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// What came back to the caller.
    pub answer: Answer,
    /// How often the request arrived.
    pub dispatches: usize,
    /// How often its effect was applied.
    pub effects: usize,
    /// Bytes at the origin that never became a request.
    pub stray_bytes: u64,
    /// Whether anything came as TLS early data.
    pub early_data: bool,
    /// What is wrong with the request as it arrived.
    pub altered: Option<&'static str>,
    /// Whether it came on the connection of the request before it.
    pub reused: bool,
    /// The broker's record, if it has any.
    pub record: Option<Value>,
}

/// What holds a port.
pub(super) struct Held {
    _origin: Option<Origin>,
    _refusing: Option<tokio::net::TcpSocket>,
}

impl Plan {
    /// Plays every row that the broker can be asked, so many at a time.
    ///
    /// # Errors
    /// [`Error`] when the machine does not give what a row needs.
    pub async fn play(self, broker: &Broker, seats: usize) -> Result<Report, Error> {
        let started = Instant::now();
        let rows = self.items.len();
        let identities = self.identities;
        let asked = self.items.into_iter().enumerate();
        let asked =
            asked.filter(|(_, item)| can_be_asked(&item.row, broker)).map(|(number, item)| {
                let (identities, broker) = (Arc::clone(&identities), broker.clone());
                async move {
                    let tls = |row: &Row| {
                        let identity = row.case.peer(&row.shape).identity;
                        let config = identities.of(identity, row.shape.pairing);
                        row.shape.tls.then_some(config).transpose().map_err(io::Error::other)
                    };
                    play(number, item, &broker, tls).await.map_err(failed("play a row"))
                }
            });
        let (played, held): (Vec<_>, Vec<_>) = at_a_time(asked, seats).await?.into_iter().unzip();
        let mut report = Report::new(broker.name.clone(), played, started.elapsed());
        report.skipped = rows - report.played.len();
        report.held = held.into_iter().flatten().collect();
        Ok(report)
    }
}

/// Whether a row means something for a broker.
fn can_be_asked(row: &Row, broker: &Broker) -> bool {
    let pairing = row.shape.pairing;
    let trusted = !row.shape.tls || broker.caller.trust.is_some();
    let declared = row.contract == Contract::Plain || broker.contracts;
    // Other proxies speak on both sides what caller and origin have in common, so the two do not meet.
    // Nor do they promise WebSockets over HTTP/2.
    let own = pairing.is_crossed() || pairing == Pairing::WebSocketStreams;
    let promised = !own || broker.dialect == Dialect::Affiant;
    let spoken = !pairing.caller_speaks_http2() || broker.http2;
    trusted && declared && promised && spoken
}

async fn play(
    number: usize,
    item: Item,
    broker: &Broker,
    tls: impl Fn(&Row) -> io::Result<Option<Arc<rustls::ServerConfig>>>,
) -> io::Result<(Played, Option<Held>)> {
    let started = Instant::now();
    let Item { row, mut socket } = item;
    let peer = row.case.peer(&row.shape);
    let mut tries = 0;
    let (observed, held) = loop {
        tries += 1;
        let socket = match socket.take() {
            Some(socket) => socket,
            None => Socket::new(peer.listens)?,
        };
        let (observed, held) = once(number, &row, socket, broker, tls(&row)?).await?;
        let missed = row.shape.reused && !observed.reused && peer.then == Then::Serves;
        // A broker without a pool never gets there.
        let hopeless = broker.dialect == Dialect::Plain;
        if !missed || tries == TRIES || hopeless {
            break (observed, held);
        }
    };
    let outcome = observed.record.as_ref().and_then(|record| record.pointer("/error/outcome"));
    let played = Played {
        id: row.id(),
        rule: row.case.rule,
        took: started.elapsed(),
        dispatches: observed.dispatches,
        effects: observed.effects,
        outcome: outcome.and_then(Value::as_str).map(str::to_owned),
        missed_reuse: row.shape.reused && !observed.reused && peer.then == Then::Serves,
        findings: judge(&row, &observed, broker.dialect),
    };
    // Another row at its port would be served under this one's contract.
    Ok((played, (row.contract != Contract::Plain).then_some(held)))
}

async fn once(
    number: usize,
    row: &Row,
    socket: Socket,
    broker: &Broker,
    tls: Option<Arc<rustls::ServerConfig>>,
) -> io::Result<(Observed, Held)> {
    let authority = format!("{}:{}", broker.host, socket.port()?);
    let peer = row.case.peer(&row.shape);
    let path = format!("/{number}/{}", row.case.name);
    let script =
        Script { path: path.clone(), steps: peer.steps.clone(), frames: peer.frames.clone() };
    let scripts = vec![warming(row.shape.method, peer.then), script];
    // Kept to the end: a port without a listener refuses only while it is bound.
    let (origin, refusing) = match socket {
        Socket::Listening(listener) => {
            (Some(Origin::spawn(listener, peer.opening, scripts, tls)?), None)
        }
        Socket::Refusing(socket) => (None, Some(socket)),
    };
    if row.shape.reused {
        let mut warm = request(&row.shape, &authority, "/warm".to_owned(), None);
        if row.shape.pairing.is_websocket() {
            // What makes a connection a used one is a plain request.
            warm.fields.clear();
            warm.early = None;
        }
        ask(broker, row.shape.pairing, &warm).await;
    }
    let content = row.shape.method.has_content().then(|| vec![b'a'; row.case.request_bytes]);
    let mut asked = request(&row.shape, &authority, path.clone(), content);
    if row.contract == Contract::Key {
        asked.fields.push(("Idempotency-Key".to_owned(), format!("key-{number}")));
    }
    let answer = ask(broker, row.shape.pairing, &asked).await;
    let record = match broker.dialect {
        Dialect::Affiant => record(broker, &answer).await,
        Dialect::Plain => None,
    };
    let mut observed = Observed {
        answer,
        dispatches: 0,
        effects: 0,
        stray_bytes: 0,
        early_data: false,
        altered: None,
        reused: false,
        record,
    };
    if let Some(origin) = &origin {
        let seen = origin.seen();
        let of_path: Vec<_> = seen.iter().filter(|seen| seen.target().ends_with(&path)).collect();
        let warmed = seen.iter().find(|seen| seen.target().ends_with("/warm"));
        observed.reused = warmed
            .zip(of_path.first())
            .is_some_and(|(warmed, first)| warmed.connection == first.connection);
        observed.dispatches = of_path.len();
        let reads = peer.steps.iter().any(|step| matches!(step, Step::ReadBody))
            || peer.frames.contains(&Frame::ReadBody);
        observed.altered = of_path.first().and_then(|seen| altered(seen, &asked, reads));
        observed.effects = origin.effects(&path);
        observed.stray_bytes = origin.stray_bytes();
        observed.early_data = origin.had_early_data();
    }
    Ok((observed, Held { _origin: origin, _refusing: refusing }))
}

/// What the origin does with the request that makes a connection a used one.
fn warming(method: Method, then: Then) -> Script {
    let bodiless = method == Method::Head;
    let content = if bodiless { "" } else { "ok" };
    let text = format!("HTTP/1.1 200 OK\r\n{MARK}: 1\r\nContent-Length: 2\r\n\r\n{content}");
    let mut steps = vec![Step::ReadBody, Step::Send(text.into())];
    let fields = vec![("content-length".to_owned(), "2".to_owned())];
    let mut frames = vec![Frame::ReadBody, Frame::Head { status: 200, fields, end: bodiless }];
    if !bodiless {
        frames.push(Frame::Data { content: "ok".into(), end: true });
    }
    match then {
        Then::Serves => {}
        Then::Closes => {
            steps.push(Step::Close);
            frames.push(Frame::Close);
        }
        Then::IsFull => {
            // SETTINGS_MAX_CONCURRENT_STREAMS with the value 0, before the answer.
            let payload = Bytes::from_static(&[0, 3, 0, 0, 0, 0]);
            let on = OnStream::Connection;
            frames.insert(1, Frame::Frame { kind: kind::SETTINGS, flags: 0, on, payload });
        }
    }
    Script { path: "/warm".to_owned(), steps, frames }
}

async fn ask(broker: &Broker, pairing: Pairing, request: &Request) -> Answer {
    if pairing.caller_speaks_http2() {
        broker.caller.call_h2(request).await
    } else {
        broker.caller.call(request).await
    }
}

/// What a broker must not do to a request.
fn altered(seen: &Seen, asked: &Request, reads: bool) -> Option<&'static str> {
    let content = asked.content.as_deref().unwrap_or_default();
    if !seen.head.starts_with(format!("{} ", asked.method).as_bytes()) {
        Some("another method")
    } else if reads && seen.body != content {
        Some("another content")
    } else if seen.field("proxy-authorization").is_some() {
        Some("the credential for the proxy")
    } else if seen.field("affiant-invocation").is_some() {
        Some("the caller's id")
    } else if seen.field("host").as_deref() != Some(&asked.authority) {
        Some("another Host")
    } else {
        None
    }
}

fn request(shape: &Shape, authority: &str, path: String, content: Option<Vec<u8>>) -> Request {
    let fields: &[(&str, &str)] = match shape.pairing {
        Pairing::Http1 | Pairing::Http2Caller | Pairing::Http2Origin | Pairing::Http2 => &[],
        Pairing::Grpc => &[("content-type", "application/grpc"), ("te", "trailers")],
        // The rest is said by the extended CONNECT itself (RFC 8441 section 5).
        Pairing::WebSocketCaller | Pairing::WebSocketStreams => &[("Sec-WebSocket-Version", "13")],
        Pairing::WebSocket | Pairing::WebSocketOrigin => &[
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ],
    };
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Request {
        method: shape.method.as_str(),
        tls: shape.tls,
        authority: authority.to_owned(),
        path,
        fields: fields.iter().map(owned).collect(),
        content,
        early: shape.pairing.is_websocket().then(|| EARLY.to_vec()),
    }
}

/// The record of the invocation that the answer names, read through the broker itself.
async fn record(broker: &Broker, answer: &Answer) -> Option<Value> {
    let Answer::Response(received) = answer else { return None };
    let outcome = crate::fields::outcome(received.field("affiant-outcome")?).ok()?;
    let request = Request {
        method: "GET",
        tls: false,
        authority: "affiant.internal".to_owned(),
        path: format!("/v1/invocations/{}?wait=5s", outcome.invocation?),
        fields: Vec::new(),
        content: None,
        early: None,
    };
    match broker.caller.call(&request).await {
        Answer::Response(got) if got.status == 200 && got.end == End::Whole => {
            serde_json::from_slice(&got.content).ok()
        }
        Answer::Response(_) | Answer::Nothing(_) => None,
    }
}
