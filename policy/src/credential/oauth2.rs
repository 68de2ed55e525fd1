//! OAuth 2.0 tokens: by client credentials (RFC 6749 section 4.4) and by refresh (section 6).
//!
//! A server may give a new refresh token with each answer and take none but the newest. So the new
//! one is durable before the access token that came with it is used: whatever happens then, the
//! vault holds what the server takes next.

use super::mint::{Minted, UNSTATED};
use super::remote::{Answer, Ask, ask};
use super::{Error, trust_of};
use crate::recipe::encode;
use crate::token::{ClientAuth, Grant, Oauth2};
use crate::{Credential, Policy, Secret, SecretRef};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::sync::PoisonError;
use std::time::Duration;
use zeroize::Zeroizing;

/// What a token endpoint answers (section 5.1). The texts become secrets at once.
#[derive(Deserialize)]
struct Granted {
    access_token: Option<String>,
    token_type: Option<String>,
    expires_in: Option<serde_json::Value>,
    refresh_token: Option<String>,
}

/// Why it refuses (section 5.2).
#[derive(Deserialize)]
struct Refused {
    error: String,
}

/// Fetches a token.
pub(super) fn fetch(
    policy: &Policy,
    client: &Oauth2,
    credential: &Credential,
    version: u64,
) -> Result<Minted, Error> {
    let name = match (&client.grant, &credential.secret) {
        (Grant::ClientCredentials, _) => {
            return exchange(policy, client, credential, version, None);
        }
        (Grant::RefreshToken(_), SecretRef::Vault(name)) => name,
        (
            Grant::RefreshToken(_),
            SecretRef::Env(_)
            | SecretRef::File(_)
            | SecretRef::Agent(_)
            | SecretRef::Exec(_)
            | SecretRef::Hashicorp(_),
        ) => return Err(Error::Unsupported("a refresh token outside of the vault")),
    };
    let refresh = policy.minted.refresh(name, version);
    let mut unstored = refresh.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(late) = unstored.take() {
        store(policy, name, version, late, &mut unstored)?;
    }
    exchange(policy, client, credential, version, Some((name, &mut unstored)))
}

/// Asks the token endpoint. `refresh`: the name of the refresh token, and where a new one stands
/// until it is durable.
fn exchange(
    policy: &Policy,
    client: &Oauth2,
    credential: &Credential,
    version: u64,
    refresh: Option<(&str, &mut Option<Secret>)>,
) -> Result<Minted, Error> {
    let trust = trust_of(policy, &client.url);
    let mut form = Form::default();
    let (client_secret, refreshed) = match &client.grant {
        Grant::ClientCredentials => {
            form.add("grant_type", b"client_credentials");
            (Some(policy.source(&credential.secret, version)?), None)
        }
        Grant::RefreshToken(secret) => {
            let kept = refresh.as_ref().map(|(name, _)| policy.rotated(name, version));
            let current = match kept.transpose()?.flatten() {
                Some(current) => current,
                None => policy.source(&credential.secret, version)?,
            };
            form.add("grant_type", b"refresh_token");
            form.add("refresh_token", current.expose());
            let secret = secret.as_ref().map(|secret| policy.newest_of(secret)).transpose()?;
            (secret, Some(current))
        }
    };
    if let Some(scope) = &client.scope {
        form.add("scope", scope.as_bytes());
    }
    for (name, value) in &client.params {
        form.add(name, value.as_bytes());
    }
    let mut fields = vec![("accept", Secret::from("application/json"))];
    match (client.client_auth, &client_secret) {
        (ClientAuth::Basic, Some(secret)) => fields.push(("authorization", basic(client, secret))),
        (ClientAuth::Body, Some(secret)) => {
            form.add("client_id", client.client_id.as_bytes());
            form.add("client_secret", secret.expose());
        }
        (ClientAuth::None, _) | (_, None) => form.add("client_id", client.client_id.as_bytes()),
    }
    let content = Some(("application/x-www-form-urlencoded", form.into_secret()));
    let answer = ask(Ask { method: "POST", url: &client.url, fields, content, trust: &trust })?;
    let Granted { access_token, token_type, expires_in, refresh_token } = granted(&answer)?;
    if let (Some(current), Some((name, unstored)), Some(new)) = (refreshed, refresh, refresh_token)
    {
        let new = Secret::from(new);
        if new.expose() != current.expose() && !new.is_empty() {
            store(policy, name, version, new, unstored)?;
        }
    }
    let bearer = token_type.is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    let token = access_token.filter(|token| !token.is_empty() && bearer);
    let token = token.ok_or(Error::SourceFailed("its token endpoint gave no bearer token"))?;
    Ok(Minted { token: Secret::from(token), life: life(expires_in.as_ref()) })
}

/// Makes a new refresh token durable. If that fails it is kept for the next try, and what came with
/// it is not used.
fn store(
    policy: &Policy,
    name: &str,
    version: u64,
    new: Secret,
    unstored: &mut Option<Secret>,
) -> Result<(), Error> {
    policy.store_rotated(name, version, &new).map_err(|error| {
        tracing::error!(%error, "a new refresh token can't be stored; the token is not used");
        *unstored = Some(new);
        Error::SourceFailed("its new refresh token can't be stored")
    })
}

/// What the endpoint granted, or why not, in words that hold nothing of the answer.
fn granted(answer: &Answer) -> Result<Granted, Error> {
    match answer.status {
        200 => {
            let read = answer.json();
            read.ok_or(Error::SourceFailed("its token endpoint gave no answer that can be read"))
        }
        400..=403 => {
            let refused = answer.json::<Refused>();
            Err(Error::SourceDenied(match refused.as_ref().map(|r| r.error.as_str()) {
                Some("invalid_grant") => {
                    "its token endpoint takes the grant no longer (invalid_grant)"
                }
                Some("invalid_client") => {
                    "its token endpoint does not take the client (invalid_client)"
                }
                Some("unauthorized_client") => {
                    "its token endpoint does not let the client do this (unauthorized_client)"
                }
                Some("invalid_scope") => {
                    "its token endpoint does not give this scope (invalid_scope)"
                }
                Some(_) | None => "its token endpoint refused",
            }))
        }
        _ => Err(Error::SourceFailed("its token endpoint failed")),
    }
}

/// How long a token is good: a number, which some servers write as a text.
fn life(expires_in: Option<&serde_json::Value>) -> Duration {
    let seconds = expires_in.and_then(|value| {
        let number = value.as_u64().or_else(|| value.as_f64().map(|float| float.max(0.0) as u64));
        number.or_else(|| value.as_str()?.parse().ok())
    });
    seconds.map_or(UNSTATED, |seconds| Duration::from_secs(seconds.min(365 * 86_400)))
}

fn basic(client: &Oauth2, secret: &Secret) -> Secret {
    // Both parts are encoded as in a form before they are joined (section 2.3.1).
    let room = 3 * (client.client_id.len() + secret.len()) + 1;
    let mut pair = Zeroizing::new(Vec::with_capacity(room));
    encode::push(&mut pair, client.client_id.as_bytes());
    pair.push(b':');
    encode::push(&mut pair, secret.expose());
    let encoded = Zeroizing::new(STANDARD.encode(&*pair));
    Secret::new([b"Basic ", encoded.as_bytes()].concat())
}

/// Content of the type `application/x-www-form-urlencoded`.
#[derive(Default)]
struct Form(Vec<(String, Secret)>);

impl Form {
    fn add(&mut self, name: &str, value: &[u8]) {
        self.0.push((name.to_owned(), Secret::new(value.to_vec())));
    }

    fn into_secret(self) -> Secret {
        // Sized at once: growing would leave copies behind.
        let room = self.0.iter().map(|(name, value)| 3 * (name.len() + value.len()) + 2).sum();
        let mut content = Vec::with_capacity(room);
        for (name, value) in &self.0 {
            if !content.is_empty() {
                content.push(b'&');
            }
            encode::push(&mut content, name.as_bytes());
            content.push(b'=');
            encode::push(&mut content, value.expose());
        }
        Secret::new(content)
    }
}
