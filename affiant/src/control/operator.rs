//! What operators see and do beside invocations: health, counters, the vault.

use super::{Caller, Problem, ProblemCode, State};
use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State as Extract};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use policy::Secret;
use policy::secrets::{Error, Label};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

pub(super) fn operators_only(caller: &Caller) -> Result<(), Problem> {
    match caller {
        Caller::Operator => Ok(()),
        Caller::Agent(_) => Err(Problem::new(
            ProblemCode::OperatorsOnly,
            "this is for operators: use the `affiant` command on the machine of the broker",
        )),
    }
}

/// `GET /v1/health`: 200 when calls can be taken, else 503 with what is missing.
pub(super) async fn health(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let journal = state.journal.ready();
    let ready = journal.is_ok();
    let mut body = json!({
        "ready": ready,
        "journal": journal.err().map_or_else(|| "ready".to_owned(), |error| error.to_string()),
        "vault": state.policy.vault().status(),
        "policy_version": state.policy.snapshot().version(),
    });
    if let (Caller::Operator, Some(listening), Some(map)) =
        (caller, state.listening.get(), body.as_object_mut())
    {
        map.insert("listening".to_owned(), json!(listening));
        map.insert("runs".to_owned(), json!(state.users.count()));
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// `GET /v1/stats`: counters of the journal.
pub(super) async fn stats(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let stats = state.journal.stats();
    Ok(Json(json!({
        "appends": stats.appends,
        "frames": stats.frames,
        "led": stats.led,
        "syncs": stats.syncs,
        "written_bytes": stats.written_bytes,
        "payload_bytes": stats.payload_bytes,
        "queue_wait_us": stats.queue_wait_us,
        "sync_us": stats.sync_us,
        "queued_bytes": stats.queued_bytes,
        "peak_queued_bytes": stats.peak_queued_bytes,
        "held_invocations": stats.held_invocations,
        "reserved_bytes": stats.reserved_bytes,
        "available_bytes": stats.available_bytes,
        "healthy": stats.healthy,
        "reopened": stats.reopened,
        "durable_sequence": stats.durable_sequence,
        "indexed_sequence": stats.indexed_sequence,
    }))
    .into_response())
}

/// `GET /v1/vault`: locked or unlocked, and by what it is unlocked.
pub(super) async fn vault(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let vault = state.policy.vault();
    Ok(Json(json!({ "vault": vault.status(), "mode": vault.mode() })).into_response())
}

/// `POST /v1/vault/unlock` with the passphrase or the key as the body, where the vault takes one.
pub(super) async fn unlock(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let passphrase = Secret::new(body.to_vec());
    // Deriving the key takes a second of CPU by design.
    let policy = Arc::clone(&state.policy);
    tokio::task::spawn_blocking(move || policy.vault().unlock(Some(&passphrase)))
        .await
        .map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?
        .map_err(|error| Problem::new(refused_unlock(&error), error.to_string()))?;
    vault(Extract(state), Extension(caller)).await
}

/// Whether what was given is wrong, or what the vault reads by itself.
const fn refused_unlock(error: &policy::vault::Error) -> ProblemCode {
    use policy::vault::Error;
    match error {
        Error::Locked
        | Error::PassphraseNeeded
        | Error::WrongPassphrase
        | Error::WrongKey
        | Error::EmptyPassphrase => ProblemCode::WrongPassphrase,
        Error::KeyFileMode { .. }
        | Error::KeyFile { .. }
        | Error::WrongKeyFile { .. }
        | Error::Keyring(_)
        | Error::Damaged
        | Error::Crypto(_) => ProblemCode::VaultKeyUnusable,
    }
}

/// `POST /v1/vault/lock`.
pub(super) async fn lock(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    if state.policy.vault().mode() == policy::vault::Mode::KeyFile {
        return Err(Problem::new(
            ProblemCode::InvalidParameter,
            "this vault opens by its key file: only a vault with a passphrase can be locked",
        ));
    }
    state.policy.vault().lock();
    vault(Extract(state), Extension(caller)).await
}

/// Longest policy that is compiled ahead.
pub(super) const LONGEST_POLICY: usize = 64 << 20;

/// `POST /v1/policy/prepare` with a policy text that is about to be applied: compiles it, so that no
/// call waits for that.
pub(super) async fn prepare(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    text: String,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let policy = Arc::clone(&state.policy);
    let findings = tokio::task::spawn_blocking(move || policy.prepare(&text, "policy").err());
    let findings =
        findings.await.map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?;
    match findings.as_deref() {
        None => Ok(Json(json!({ "prepared": true })).into_response()),
        Some(findings) => {
            let first = findings.first().map(ToString::to_string).unwrap_or_default();
            Err(Problem::new(ProblemCode::InvalidParameter, first))
        }
    }
}

/// Who sets a secret, and the tags of the version, with commas between.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LabelQuery {
    by: String,
    tags: String,
}

/// `PUT /v1/secrets/{name}` with the value as the body: for a vault that only this process has open.
pub(super) async fn put_secret(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Query(LabelQuery { by, tags }): Query<LabelQuery>,
    body: Bytes,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let value = Secret::new(body.to_vec());
    let tags = tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    let label = Label { by, tags };
    let version = state.policy.set_secret_as(&name, &value, &label).map_err(|error| {
        let code = match &error {
            Error::Vault(_) => ProblemCode::VaultLocked,
            Error::Store(_) => ProblemCode::Internal,
            Error::Name | Error::Unknown | Error::Tag | Error::Empty | Error::TooLong => {
                ProblemCode::InvalidParameter
            }
        };
        Problem::new(code, error.to_string())
    })?;
    Ok(Json(json!({ "name": name, "version": version })).into_response())
}
