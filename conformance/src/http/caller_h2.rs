//! The caller's side of HTTP/2: a response is whole when END_STREAM says so, and cut by a reset, by
//! the end of the connection, or by a length that does not agree (RFC 9113 section 8.1.1). An opened
//! WebSocket is told as HTTP/1.1 has it: by a 101.

use super::caller::{Answer, End, Received, Request};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use http::HeaderMap;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

/// How long a connection stays after its one request.
const KEPT: Duration = Duration::from_secs(3);

/// One request over a connection of its own.
pub(super) async fn converse<S>(
    stream: S,
    request: &Request,
    patience: Duration,
) -> io::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (client, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let kept = client.clone();
    let answer = async {
        let answer = exchange(client, request, patience).await;
        // The connection stays for a while, as those of clients do. An end at once could reset what
        // the proxy still sends, and a reset says that the answer may not have been read.
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            drop(kept);
        });
        answer
    };
    tokio::spawn(connection);
    answer.await
}

async fn exchange(
    client: SendRequest<Bytes>,
    request: &Request,
    patience: Duration,
) -> io::Result<Answer> {
    let opens = request.early.is_some();
    let mut head = http::Request::builder()
        .method(if opens { "CONNECT" } else { request.method })
        .uri(format!("https://{}{}", request.authority, request.path));
    for (name, value) in &request.fields {
        head = head.header(name.to_ascii_lowercase(), value);
    }
    if let Some(content) = &request.content {
        head = head.header("content-length", content.len());
    }
    if opens {
        head = head.extension(Protocol::from_static("websocket"));
        if timeout(patience, takes_extended_connect(&client)).await.is_err() {
            return Ok(Answer::Nothing("the proxy takes no extended CONNECT".to_owned()));
        }
    }
    let head = head.body(()).map_err(io::Error::other)?;
    let mut client = client.ready().await.map_err(io::Error::other)?;
    let sent = request.content.as_deref().or(request.early.as_deref());
    let (response, mut sending) =
        client.send_request(head, sent.is_none()).map_err(io::Error::other)?;
    // What is inside of a WebSocket has no end before the WebSocket itself.
    if let Some(bytes) = sent
        && sending.send_data(Bytes::copy_from_slice(bytes), !opens).is_err()
    {
        tracing::debug!("the request was not taken in full");
    }
    let response = match timeout(patience, response).await {
        Err(_) => return Ok(Answer::Nothing("no response in time".to_owned())),
        Ok(Err(error)) => return Ok(Answer::Nothing(error.to_string())),
        Ok(Ok(response)) => response,
    };
    let (parts, mut body) = response.into_parts();
    let status = parts.status.as_u16();
    let mut received = Received {
        status: if opens && status == 200 { 101 } else { status },
        fields: lines(&parts.headers),
        content: Vec::new(),
        trailers: Vec::new(),
        end: End::Whole,
    };
    loop {
        match timeout(patience, body.data()).await {
            Err(_) => received.end = End::Late,
            Ok(Some(Err(_))) => received.end = End::Cut,
            Ok(Some(Ok(data))) => {
                received.content.extend_from_slice(&data);
                if body.flow_control().release_capacity(data.len()).is_ok() {
                    continue;
                }
                received.end = End::Cut;
            }
            Ok(None) => match timeout(patience, body.trailers()).await {
                Err(_) => received.end = End::Late,
                Ok(Err(_)) => received.end = End::Cut,
                Ok(Ok(trailers)) => {
                    received.trailers = trailers.as_ref().map(lines).unwrap_or_default()
                }
            },
        }
        return Ok(Answer::Response(received));
    }
}

/// Waits for the word of RFC 8441 section 3, before which a client must not open a WebSocket.
async fn takes_extended_connect(client: &SendRequest<Bytes>) {
    while !client.is_extended_connect_protocol_enabled() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn lines(fields: &HeaderMap) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect()
}
