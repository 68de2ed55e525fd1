//! Installation tokens of a GitHub App: a token signed with the app's key is exchanged for one that
//! is good for an hour.

use super::mint::{Minted, UNSTATED};
use super::remote::{Ask, ask};
use super::{Error, trust_of};
use crate::handle::now_ms;
use crate::recipe::{Algorithm, Jwt};
use crate::token::GithubApp;
use crate::{Credential, Policy, Secret};
use journal::contract::CredentialUse;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// GitHub takes tokens of the app for ten minutes at most.
const LIFETIME: Duration = Duration::from_secs(9 * 60);

#[derive(Deserialize)]
struct Granted {
    token: String,
    expires_at: Option<String>,
}

/// Fetches a token.
pub(super) fn fetch(
    policy: &Policy,
    app: &GithubApp,
    credential: &Credential,
    bound: &CredentialUse,
) -> Result<Minted, Error> {
    let key = policy.source(&credential.secret, bound.version)?;
    let jwt = Jwt {
        algorithm: Algorithm::Rs256,
        key_id: None,
        claims: BTreeMap::from([("iss".to_owned(), app.app_id.as_str().into())]),
        lifetime: LIFETIME,
        name: "authorization".to_owned(),
        format: "Bearer {secret}".to_owned(),
    };
    let signed = jwt.mint(&key, now_ms())?;
    let url = format!("{}/app/installations/{}/access_tokens", app.api, app.installation_id);
    let mut asked = serde_json::Map::new();
    if !app.repositories.is_empty() {
        asked.insert("repositories".to_owned(), app.repositories.clone().into());
    }
    if !app.permissions.is_empty() {
        asked.insert("permissions".to_owned(), serde_json::json!(app.permissions));
    }
    let content = Secret::from(serde_json::Value::Object(asked).to_string());
    let fields = vec![
        ("accept", Secret::from("application/vnd.github+json")),
        ("x-github-api-version", Secret::from("2022-11-28")),
        ("authorization", Secret::new([b"Bearer ", signed.expose()].concat())),
    ];
    let trust = trust_of(policy, &url);
    let content = Some(("application/json", content));
    let answer = ask(Ask { method: "POST", url: &url, fields, content, trust: &trust })?;
    match answer.status {
        201 => {
            let unread = Error::SourceFailed("GitHub gave no token that can be read");
            let Granted { token, expires_at } = answer.json().ok_or(unread.clone())?;
            if token.is_empty() {
                return Err(unread);
            }
            Ok(Minted { token: Secret::from(token), life: life(expires_at.as_deref()) })
        }
        401 => Err(Error::SourceDenied("GitHub does not take the key of the app")),
        403 | 404 | 422 => {
            Err(Error::SourceDenied("GitHub does not give the app this installation's token"))
        }
        _ => Err(Error::SourceFailed("GitHub failed")),
    }
}

fn life(expires_at: Option<&str>) -> Duration {
    let format = &time::format_description::well_known::Rfc3339;
    let end = expires_at.and_then(|text| time::OffsetDateTime::parse(text, format).ok());
    let Some(end) = end.and_then(|end| u64::try_from(end.unix_timestamp()).ok()) else {
        return UNSTATED;
    };
    Duration::from_secs(end.saturating_sub(now_ms() / 1000))
}
