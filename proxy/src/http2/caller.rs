//! One HTTP/2 connection of a caller, to the proxy itself or inside of a tunnel: a task per stream.

use super::progress::{Progress, Watched};
use super::stream::Stream;
use super::{READ_BYTES, from_map};
use crate::carrier::Below;
use crate::control;
use crate::deliver::Outbound;
use crate::engine::{Job, Known};
use crate::front::{self, BEFORE_END, LINGER};
use crate::handover::Pending;
use crate::head::{self, Fields, Framing, Request, Version};
use crate::incoming::Incoming;
use crate::proxy::Shared;
use crate::request::Tunnel;
use crate::respond::Refusal;
use crate::stream;
use crate::target::Scheme;
use crate::unread::Unread;
use crate::websocket;
use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::request::Parts;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Streams open at the same time.
const STREAMS: u32 = 128;
/// Streams that were reset and are still remembered: more at once is an attack (rapid reset).
const RESET_STREAMS: usize = 32;
/// Calls under way at the same time. One whose stream was reset goes on without its caller (contract
/// D-4), so the count of open streams does not bound them.
const CALLS: usize = 2 * STREAMS as usize;
/// How long a connection that is told to end may stay open without a call.
const FAREWELL: Duration = Duration::from_secs(5);
/// Bytes a stream, and a connection, may have on the way. Each call's have room beside those of all others:
/// content that nobody takes yet holds up no other call. What a connection can make us keep is the product.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 2 * STREAMS * STREAM_WINDOW;
/// How long the confirmation of a delivery is waited for.
const CONFIRMATION: Duration = Duration::from_secs(30);

/// Serves the connection to its end.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    shared: Arc<Shared>,
    tls: S,
    (below, written): (Below, Option<Arc<AtomicU64>>),
    tunnel: Option<Tunnel>,
    mut shutdown: watch::Receiver<bool>,
) {
    let tls = stream::Shared::new(tls);
    let watched = Watched::new(tls.clone(), below, written);
    let progress = watched.progress();
    let handshake = timeout(shared.options.head_timeout, bounds().handshake(watched));
    let Ok(Ok(mut connection)) = handshake.await else { return };
    let tunnel = tunnel.map(Arc::new);
    let mut calls = JoinSet::new();
    let mut idle_until = Instant::now() + shared.options.keep_alive;
    let mut going = *shutdown.borrow();
    let mut said = false;
    loop {
        // Not before: some callers read nothing behind a GOAWAY, and the answers under way would be lost. What
        // they ask meanwhile is refused by itself.
        if going && calls.is_empty() && !std::mem::replace(&mut said, true) {
            connection.graceful_shutdown();
        }
        let has_room = calls.len() < CALLS;
        // Without room for calls, resets pile up until the library ends the connection.
        let accept = poll_fn(|cx| match has_room {
            true => connection.poll_accept(cx),
            false => connection.poll_closed(cx).map(|_| None),
        });
        tokio::select! {
            accepted = accept => {
                let (request, respond) = match accepted {
                    Some(Ok(accepted)) => accepted,
                    Some(Err(error)) => {
                        if let Some(error) = error.get_io() {
                            progress.broke(error);
                        }
                        break;
                    }
                    None => break,
                };
                progress.asked_for_more();
                let (shared, tunnel) = (Arc::clone(&shared), tunnel.clone());
                let progress = Arc::clone(&progress);
                calls.spawn(call(shared, tunnel, request, respond, progress, shutdown.clone()));
            }
            Some(_) = calls.join_next() => {
                let pause = if going { FAREWELL } else { shared.options.keep_alive };
                idle_until = Instant::now() + pause;
            }
            () = progress.flooded() => {
                tracing::warn!("a caller's HTTP/2 connection ends: too many frames that ask nothing");
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                (going, said) = (true, true);
                idle_until = Instant::now() + FAREWELL;
            }
            _ = shutdown.changed(), if !going => {
                going = true;
                idle_until = Instant::now() + FAREWELL;
            }
            () = sleep_until(idle_until), if calls.is_empty() => {
                if going {
                    break;
                }
                going = true;
                idle_until = Instant::now() + FAREWELL;
            }
        }
    }
    drop(connection);
    progress.settle();
    linger(tls, &progress).await;
    // Calls that are under way go on without their caller (contract D-4).
    while calls.join_next().await.is_some() {}
}

/// What a caller's connection may ask for.
fn bounds() -> Builder {
    let limit = u32::try_from(READ_BYTES).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .enable_connect_protocol()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(limit)
        .max_concurrent_reset_streams(RESET_STREAMS)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

/// Closing with unread bytes would reset the connection and destroy the last frames, which say why.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(
    mut tls: stream::Shared<S>,
    progress: &Progress,
) {
    let read = async {
        let mut piece = [0; 4096];
        while tls.read(&mut piece).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    if let Ok(Err(error)) = timeout(LINGER, read).await {
        tracing::debug!(%error, "a caller's HTTP/2 connection broke off");
    }
    // What is acknowledged now is all that will be known.
    let until = Instant::now() + BEFORE_END;
    while !progress.has_arrived_whole() && Instant::now() < until {
        sleep(Duration::from_millis(2)).await;
    }
    progress.let_go();
}

/// One call on one stream.
async fn call(
    shared: Arc<Shared>,
    tunnel: Option<Arc<Tunnel>>,
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
    progress: Arc<Progress>,
    shutdown: watch::Receiver<bool>,
) {
    let (parts, content) = request.into_parts();
    let long = progress.long_blocks();
    let stream = Stream::new(respond, parts.method.to_string(), progress);
    let mut out = Outbound::stream(stream, shared.options.write_timeout);
    let tunnel = tunnel.as_deref();
    let opens = is_opening(&parts);
    let connects = parts.method == http::Method::CONNECT && !opens;
    let head = request_head(&parts, tunnel);
    let head = if opens { opening(head) } else { head };
    let raw = opens || connects;
    let framing = if raw { Ok(Framing::Empty) } else { framing(&head, &content) };
    let fault =
        head.fields.fault_in_frames(head.method.len() + head.target.len()).or(framing.err());
    let framing = framing.unwrap_or(Framing::Empty);
    let mut job = Job {
        shared: &shared,
        tunnel,
        head,
        framing,
        incoming: match raw {
            true => Incoming::tunnel(content),
            false => Incoming::stream(content, framing, long),
        },
        out: &mut out,
        keep_alive: true,
        known: Known::default(),
        again: None,
    };
    let finished = if let Some(fault) = fault {
        job.refuse(None, &Refusal::Head(fault)).await
    } else if *shutdown.borrow() {
        job.refuse(None, &Refusal::ShuttingDown).await
    } else if connects && tunnel.is_none() {
        match front::open_tunnel(&mut job).await {
            Ok((authority, identity)) => {
                let reading = job.incoming.take_rest();
                drop(job);
                let carrier = reading.and_then(|reading| out.into_carrier(reading));
                if let Some(carrier) = carrier {
                    front::inside(shared, carrier, authority, identity, shutdown).await;
                }
                return;
            }
            Err(finished) => finished,
        }
    } else if control::is_meant(&job.head, tunnel) {
        control::answer(&mut job).await
    } else {
        job.run().await
    };
    drop(job);
    if let Some(pending) = finished.pending {
        confirm(&out, pending, &shared.unread).await;
    }
}

/// Waits until the caller's host has the response, or it is clear that it never will.
async fn confirm(out: &Outbound, pending: Pending, unread: &Arc<Unread>) {
    let until = Instant::now() + CONFIRMATION;
    let mut pause = Duration::from_millis(1);
    loop {
        match out.is_acknowledged() {
            Ok(true) => {
                if let Some(handed_over) = pending.arrived() {
                    out.hand_over(handed_over, unread);
                }
                return;
            }
            Ok(false) if Instant::now() < until => {}
            Ok(false) | Err(_) => return pending.fail(),
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Whether the stream asks for a WebSocket (RFC 8441 section 5).
fn is_opening(parts: &Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    parts.method == http::Method::CONNECT
        && protocol.is_some_and(|protocol| protocol.as_str() == websocket::PROTOCOL)
}

/// An extended CONNECT as the upgrade that it stands for: the rest of the crate, policy included,
/// knows one form.
fn opening(head: Request) -> Request {
    let mut lines: Vec<(Vec<u8>, Vec<u8>)> =
        head.fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    lines.retain(|(name, _)| name != b"sec-websocket-key");
    let mut add = |name: &str, value: &str| {
        lines.push((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
    };
    add("connection", "Upgrade");
    add("upgrade", "websocket");
    if let Some(key) = websocket::key() {
        add("sec-websocket-key", &key);
    }
    Request { method: "GET".to_owned(), fields: lines.into_iter().collect(), ..head }
}

/// The request as a head of HTTP/1.1: `:authority` is `Host`, cookie crumbs are one line again (RFC
/// 9113 section 8.2.3).
fn request_head(parts: &Parts, tunnel: Option<&Tunnel>) -> Request {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    let scheme = parts.uri.scheme_str().unwrap_or(Scheme::Https.as_str());
    let connects = parts.method == http::Method::CONNECT && parts.uri.path_and_query().is_none();
    let target = match authority {
        Some(authority) if connects => authority.to_owned(),
        // Only OPTIONS asks for all of a server (RFC 9113 section 8.3.1); this form has no authority.
        Some(_) if path == "*" && parts.method != http::Method::OPTIONS => path.to_owned(),
        // Another scheme than the tunnel's is another target; without a tunnel all of it is one.
        Some(authority) if tunnel.is_none() || scheme != Scheme::Https.as_str() => {
            // All of a server has no path in this form (RFC 9112 section 3.2.4).
            format!("{scheme}://{authority}{}", if path == "*" { "" } else { path })
        }
        Some(_) | None => path.to_owned(),
    };
    let mut lines: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if let Some(authority) = authority {
        lines.push((b"host".to_vec(), authority.as_bytes().to_vec()));
    }
    let mut cookie: Option<usize> = None;
    for (name, value) in from_map(&parts.headers).iter() {
        if name == b"host" && authority.is_some_and(|known| known.as_bytes() == value) {
            continue;
        }
        if name == b"cookie" {
            if let Some((_, whole)) = cookie.and_then(|at| lines.get_mut(at)) {
                whole.extend_from_slice(b"; ");
                whole.extend_from_slice(value);
                continue;
            }
            cookie = Some(lines.len());
        }
        lines.push((name.to_vec(), value.to_vec()));
    }
    let fields: Fields = lines.into_iter().collect();
    Request { method: parts.method.to_string(), target, version: Version::Http11, fields }
}

/// How the content is framed when it goes on.
fn framing(head: &Request, content: &RecvStream) -> Result<Framing, head::Fault> {
    match head::request_framing(head)? {
        Framing::Empty if !content.is_end_stream() => Ok(Framing::Chunked),
        framing @ (Framing::Empty | Framing::Length(_) | Framing::Chunked | Framing::Close) => {
            Ok(framing)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// V-1: all of a server is asked for by OPTIONS alone (RFC 9113 section 8.3.1); in no other request
    /// is a star the root.
    #[test]
    fn v_1_a_star_is_for_options() {
        let target = |method: &str| {
            let uri = http::Uri::builder().scheme("https").authority("a.test:1");
            let uri = uri.path_and_query("*").build().expect("uri");
            let request = http::Request::builder().method(method).uri(uri).body(());
            let head = request_head(&request.expect("request").into_parts().0, None);
            (crate::request::target(&head, None).ok().map(|t| t.path_and_query), head.target)
        };
        let options = (Some("*".to_owned()), "https://a.test:1".to_owned());
        assert_eq!(target("OPTIONS"), options);
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(target(method), (None, "*".to_owned()), "{method}");
        }
    }
}
