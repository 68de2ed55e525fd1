//! The operator's side of the control API: over the socket of a running server, or in this process.

use super::{Caller, Listening, router};
use crate::home::Home;
use crate::output::Negative;
use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde::Deserialize as _;
use std::path::Path;
use tokio::net::UnixStream;
use tower::ServiceExt as _;

/// Where calls go.
pub(crate) enum Client {
    /// A server serves this home.
    Socket(std::path::PathBuf),
    /// None does: the records are read in this process, which then holds the home's lock.
    Local(axum::Router),
}

/// Being a user of a server, for as long as this is there.
pub(crate) struct Attachment {
    _sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    _answer: hyper::body::Incoming,
    driver: tokio::task::JoinHandle<hyper::Result<()>>,
}

impl Attachment {
    /// Waits until the server is gone.
    pub(crate) async fn lost(&mut self) {
        drop((&mut self.driver).await);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// What came of an attempt to use the home's server.
pub(crate) enum Attached {
    To(Attachment),
    /// It is about to end.
    Ending,
    NoServer,
}

impl Client {
    /// Connects to the server of the home, or opens the home.
    pub(crate) async fn connect(home: &Home) -> anyhow::Result<Self> {
        home.require()?;
        if let Some(running) = Self::running(home).await {
            return Ok(running);
        }
        let state = crate::server::open_state(home, journal::Retention::default(), true)?;
        Ok(Self::Local(router(state)))
    }

    /// The server of the home, if one runs.
    pub(crate) async fn running(home: &Home) -> Option<Self> {
        UnixStream::connect(home.socket()).await.ok().map(|_| Self::Socket(home.socket()))
    }

    /// Counts as a user of the home's server, if one runs and is not about to end.
    pub(crate) async fn attach(home: &Home) -> anyhow::Result<Attached> {
        let Ok(stream) = UnixStream::connect(home.socket()).await else {
            return Ok(Attached::NoServer);
        };
        let request = Request::builder()
            .uri("/v1/attach")
            .header(http::header::HOST, "affiant.internal")
            .body(Full::new(Bytes::new()))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        // A server that ends closes what it has not answered.
        let response = sender.send_request(request).await.ok();
        let attached = response.filter(|response| response.status().is_success());
        Ok(match attached {
            Some(response) => {
                Attached::To(Attachment { _sender: sender, _answer: response.into_body(), driver })
            }
            None => Attached::Ending,
        })
    }

    /// Where the gateways of the home's server listen; `None` when no server runs.
    pub(crate) async fn listening(home: &Home) -> anyhow::Result<Option<Listening>> {
        let Some(server) = Self::running(home).await else { return Ok(None) };
        // A server whose journal takes no calls answers 503, with the same members.
        let health = server.call(Method::GET, "/v1/health", Bytes::new()).await?;
        let health: serde_json::Value =
            serde_json::from_slice(health.body()).context("read the health of the server")?;
        let listening = health.get("listening").context("the server is not ready yet")?;
        Ok(Some(Listening::deserialize(listening)?))
    }

    /// Calls the API as an operator.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Bytes>> {
        let request = Request::builder().method(method).uri(path);
        self.send(request, body).await
    }

    /// Reads a stored result, from a byte on if one is given.
    pub(crate) async fn read_from(
        &self,
        path: &str,
        from: Option<u64>,
    ) -> anyhow::Result<Response<Bytes>> {
        let mut request = Request::builder().method(Method::GET).uri(path);
        if let Some(from) = from {
            request = request.header(http::header::RANGE, format!("bytes={from}-"));
        }
        self.send(request, Bytes::new()).await
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
    ) -> anyhow::Result<Response<Bytes>> {
        let request =
            request.header(http::header::HOST, "affiant.internal").body(Full::new(body))?;
        let response = match self {
            Self::Socket(socket) => call_socket(socket, request).await?,
            Self::Local(router) => {
                let mut request = request.map(axum::body::Body::new);
                request.extensions_mut().insert(Caller::Operator);
                let (parts, body) = router.clone().oneshot(request).await?.into_parts();
                Response::from_parts(parts, body.collect().await?.to_bytes())
            }
        };
        Ok(response)
    }

    /// Calls, and turns every answer but a success into an error with the API's own words.
    pub(crate) async fn expect(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Response<Bytes>> {
        let response = self.call(method, path, body).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response.status(), response.body()))
    }

    /// Has the API act, and reads the JSON that it answers.
    pub(crate) async fn act(&self, path: &str, body: Bytes) -> anyhow::Result<serde_json::Value> {
        let response = self.expect(Method::POST, path, body).await?;
        serde_json::from_slice(response.body()).context("read the answer of the control API")
    }

    /// Reads JSON.
    pub(crate) async fn json(&self, path: &str) -> anyhow::Result<serde_json::Value> {
        let response = self.expect(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(response.body()).context("read the answer of the control API")
    }
}

/// A refusal of the API as an error: what is not there, or not yet, is a negative answer.
pub(crate) fn refusal(status: StatusCode, body: &[u8]) -> anyhow::Error {
    let words = problem(status, body);
    match status {
        StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::GONE => {
            anyhow::Error::new(Negative(words))
        }
        _ => anyhow::Error::msg(words),
    }
}

/// The words of a problem document.
fn problem(status: StatusCode, body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let text = |name: &str| {
        parsed.as_ref().and_then(|v| v.get(name)).and_then(|v| v.as_str()).map(str::to_owned)
    };
    match (text("detail"), text("code")) {
        (Some(detail), Some(code)) => format!("{detail} ({code})"),
        (Some(detail), None) => detail,
        (None, _) => format!("the control API answered {status}"),
    }
}

/// Fields of an answer at most.
const MAX_HEADERS: usize = 256;

async fn call_socket(
    socket: &Path,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("connect to the server at {}", socket.display()))?;
    // The head of a stored result has as many fields as an origin may send, and ours.
    let mut client = hyper::client::conn::http1::Builder::new();
    let (mut sender, connection) =
        client.max_headers(MAX_HEADERS).handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    drop(sender);
    driver.abort();
    Ok(Response::from_parts(parts, body))
}
