//! The key `idempotency`: where an idempotency key stands, and what the service promises of it.

use super::reader::Fields;
use super::value;
use crate::{Credential, IdempotencyRule, Inject};
use journal::contract::{KeyPlace, RemoteContract};
use std::time::Duration;

pub(super) const IDEMPOTENCY: &[&str] =
    &["header", "query", "form", "json", "actions", "scope", "retention", "contract", "generate"];

/// What a remote that publishes no retention is trusted to keep a key (contract K-5).
const RETENTION: Duration = Duration::from_secs(3600);

/// Fields that frame, route or authenticate a message, and those of one hop.
const NOT_OURS: &[&str] = &[
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// The key `idempotency`; also whether it adds keys where a preset says what they are.
pub(super) fn read(
    fields: &Fields<'_, '_>,
    route: Option<&str>,
    preset: bool,
) -> (Option<IdempotencyRule>, bool) {
    let Some(table) = fields.table("idempotency", IDEMPOTENCY) else { return (None, false) };
    let generate = table.truth("generate").unwrap_or(false);
    if preset && PLACES.iter().all(|key| !table.has(key)) {
        for key in ["actions", "scope", "retention", "contract"] {
            if table.has(key) {
                let hint = Some("name a place as well, or leave it to the preset".to_owned());
                table.wrong(key, "needs a place of the key", hint);
            }
        }
        return (None, generate);
    }
    let Some(place) = read_place(&table) else { return (None, false) };
    let actions = table.texts("actions").unwrap_or_default();
    let actions: Vec<_> = actions.iter().map(|action| action.value.to_owned()).collect();
    if table.has("actions") {
        match place {
            KeyPlace::Query(_) | KeyPlace::Form(_) if actions.is_empty() => {
                table.wrong("actions", "names no operation", None);
            }
            KeyPlace::Query(_) | KeyPlace::Form(_) => {}
            KeyPlace::Header(_) | KeyPlace::Json(_) => {
                table.wrong("actions", "needs a key in the query or in a form", None);
            }
        }
    }
    let Promise { scope, retention, contract } = read_promise(&table, route);
    if let KeyPlace::Header(name) = &place
        && generate
        && NOT_OURS.contains(&&**name)
    {
        table.wrong("header", "can't carry a key of the broker's: it means something else", None);
    }
    (Some(IdempotencyRule { place, actions, scope, retention, contract, generate }), false)
}

/// Where a key can stand.
const PLACES: &[&str] = &["header", "query", "form", "json"];

/// The one of the keys that say where an idempotency key stands.
fn read_place(table: &Fields<'_, '_>) -> Option<KeyPlace> {
    let mut given = PLACES.iter().filter(|key| table.has(key));
    let (key, second) = (given.next(), given.next());
    if let Some(second) = second {
        table.wrong(second, "stands beside another place; a key stands in one", None);
        return None;
    }
    let Some(&key) = key else {
        let hint = "write header = \"Idempotency-Key\", or query, form or json".to_owned();
        table.wrong("header", "is missing", Some(hint));
        return None;
    };
    let name = table.text(key)?.value;
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        table.wrong(key, "is to be a name of 1 to 128 characters", None);
        return None;
    }
    match key {
        "query" => Some(KeyPlace::Query(name.to_owned().into())),
        "form" => Some(KeyPlace::Form(name.to_owned().into())),
        // A name without a slash is that of a member of the whole.
        "json" if name.starts_with('/') => Some(KeyPlace::Json(name.to_owned().into())),
        "json" => Some(KeyPlace::Json(format!("/{}", name.replace('~', "~0")).into())),
        _ if value::is_token(name) => Some(KeyPlace::Header(name.to_ascii_lowercase().into())),
        _ => {
            table.wrong(key, "is not the name of a header field", None);
            None
        }
    }
}

/// One place can't carry both a key of ours and the credential.
pub(super) fn check_generated(
    fields: &Fields<'_, '_>,
    rule: Option<&IdempotencyRule>,
    credential: Option<&Credential>,
) {
    let Some((rule, credential)) = rule.filter(|rule| rule.generate).zip(credential) else {
        return;
    };
    let message = match (&rule.place, &credential.inject) {
        (KeyPlace::Header(name), inject)
            if inject.own_headers().iter().any(|own| own.eq_ignore_ascii_case(name)) =>
        {
            "names the header that the credential goes into"
        }
        (KeyPlace::Query(name), Inject::Recipe(recipe)) if recipe.sets_parameter(name) => {
            "names the query parameter that the credential goes into"
        }
        (KeyPlace::Header(_) | KeyPlace::Query(_) | KeyPlace::Form(_) | KeyPlace::Json(_), _) => {
            return;
        }
    };
    fields.wrong("idempotency", message, None);
}

/// What a remote promises of a key (contract K-1).
pub(super) struct Promise {
    pub scope: String,
    pub retention: Duration,
    pub contract: RemoteContract,
}

/// The keys `scope`, `retention` and `contract`.
pub(super) fn read_promise(table: &Fields<'_, '_>, route: Option<&str>) -> Promise {
    let scope = table.text("scope").map_or_else(|| route.unwrap_or_default(), |s| s.value);
    if scope.is_empty() || scope.len() > 256 || scope.chars().any(char::is_control) {
        table.wrong("scope", "is to be a text of 1 to 256 characters", None);
    }
    let retention = table.duration("retention").unwrap_or(RETENTION);
    let contract = match table.word("contract", &["unverified", "verified"]) {
        Some(1) => RemoteContract::Verified,
        Some(_) | None => RemoteContract::Unverified,
    };
    Promise { scope: scope.to_owned(), retention, contract }
}
