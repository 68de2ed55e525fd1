//! The control API: reading invocations and their results, and the engine's actions on them. It never
//! submits an action of its own (contract R-3).

mod answer;
pub(crate) mod approvals;
pub(crate) mod client;
pub(crate) mod console;
mod engine;
mod engines;
mod invocations;
mod metrics;
mod operator;
#[cfg(test)]
mod tests;
mod users;

pub(crate) use answer::{Problem, ProblemCode};
pub(crate) use engine::{InDoubt, in_doubt};
pub(crate) use engines::Engines;
pub(crate) use users::Users;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::Response;
use axum::routing::{get, post, put};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use journal::Journal;
use policy::Policy;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tower::ServiceExt as _;

/// What the API works on.
pub(crate) struct State {
    pub(crate) journal: Journal,
    pub(crate) policy: Arc<Policy>,
    /// Where the gateways listen, once they do.
    pub(crate) listening: OnceLock<Listening>,
    /// What can act on calls, once a server runs.
    pub(crate) engines: OnceLock<Engines>,
    /// The runs that use the server.
    pub(crate) users: Arc<Users>,
}

/// The addresses of a running server; none for what is left out.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Listening {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) ssh: Option<SocketAddr>,
    pub(crate) console: Option<SocketAddr>,
    /// The HTTP proxy over TLS.
    #[serde(default)]
    pub(crate) https: Option<SocketAddr>,
}

/// Who calls: it decides what can be seen and done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// An agent, through the proxy: its own invocations.
    Agent(String),
    /// Whoever can open the socket in the home.
    Operator,
}

/// The routes. A [`Caller`] has to be among the request's extensions.
pub(crate) fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/v1/invocations", get(invocations::list))
        .route("/v1/invocations/{id}", get(invocations::show))
        .route("/v1/invocations/{id}/events", get(invocations::events))
        .route("/v1/invocations/{id}/result", get(invocations::result))
        .route("/v1/invocations/{id}/recording", get(invocations::recording))
        .route("/v1/invocations/{id}/decision", get(engine::decision))
        .route("/v1/invocations/{id}/retry", post(engine::retry))
        .route("/v1/invocations/{id}/reconcile", post(engine::reconcile))
        .route("/v1/invocations/{id}/attest", post(engine::attest))
        .route("/v1/waiting", get(engine::waiting))
        .route("/v1/invocations/{id}/ack", post(invocations::ack))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}/request", get(approvals::request))
        .route("/v1/approvals/{id}/approve", post(approvals::approve))
        .route("/v1/approvals/{id}/deny", post(approvals::deny))
        .route("/v1/attach", get(users::attach))
        .route("/v1/health", get(operator::health))
        .route("/v1/metrics", get(metrics::metrics))
        .route("/v1/stats", get(operator::stats))
        .route(
            "/v1/policy/prepare",
            post(operator::prepare).layer(DefaultBodyLimit::max(operator::LONGEST_POLICY)),
        )
        .route("/v1/secrets/{name}", put(operator::put_secret))
        .route("/v1/vault", get(operator::vault))
        .route("/v1/vault/unlock", post(operator::unlock))
        .route("/v1/vault/lock", post(operator::lock))
        .fallback(|| async {
            Problem::new(ProblemCode::NoSuchResource, "there is nothing at this path of the API")
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(ProblemCode::MethodNotAllowed, "this resource does not take the method")
        })
        .layer(axum::middleware::from_fn(hand_over_no_head))
        .with_state(state)
}

/// Routes for GET answer HEAD as well (RFC 9110 section 9.1). Whoever has a head has no result.
async fn hand_over_no_head(
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response {
    let is_head = request.method() == http::Method::HEAD;
    let mut response = next.run(request).await;
    if is_head {
        response.extensions_mut().remove::<proxy::Fetched>();
    }
    response
}

/// The way in for agents: `http://affiant.internal/` through the proxy, `inv` at the SSH gateway.
pub(crate) struct ForAgents(pub(crate) Router);

#[async_trait::async_trait]
impl ssh_gateway::Control for ForAgents {
    async fn call(&self, agent: &str, request: http::Request<Bytes>) -> http::Response<Bytes> {
        proxy::Control::call(self, agent, request).await
    }
}

#[async_trait::async_trait]
impl proxy::Control for ForAgents {
    async fn call(&self, agent: &str, request: http::Request<Bytes>) -> http::Response<Bytes> {
        let mut request = request.map(axum::body::Body::from);
        request.extensions_mut().insert(Caller::Agent(agent.to_owned()));
        let response = match self.0.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(body) => http::Response::from_parts(parts, body.to_bytes()),
            Err(error) => {
                tracing::error!("an answer of the control API broke off: {error}");
                Problem::new(ProblemCode::Internal, "the answer could not be read to its end")
                    .into_bytes()
            }
        }
    }
}
