//! The keys of `[[credential]]` that belong to recipes of injection.

use super::reader::{At, Fields};
use super::value;
use crate::grant::FRAMING;
use crate::recipe::{
    Algorithm, Digest, Encoding, Hmac, Jwt, PREFIX, Placeholder, Places, Recipe, Sigv4, Template,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Which keys go with which modes.
pub(super) const KEYS: [(&str, &[&str]); 27] = [
    ("name", &["header", "query", "cookie", "jwt", "oauth2", "github-app"]),
    ("format", &["header", "jwt", "oauth2", "github-app"]),
    ("placeholder", &["placeholder"]),
    ("in", &["placeholder"]),
    ("region", &["sigv4"]),
    ("service", &["sigv4"]),
    ("algorithm", &["hmac", "jwt"]),
    ("encoding", &["hmac"]),
    ("sign", &["hmac"]),
    ("headers", &["hmac"]),
    ("claims", &["jwt"]),
    ("lifetime", &["jwt"]),
    ("key_id", &["jwt"]),
    ("token_url", &["oauth2"]),
    ("client_id", &["oauth2"]),
    ("client_secret", &["oauth2"]),
    ("client_auth", &["oauth2"]),
    ("grant", &["oauth2"]),
    ("scope", &["oauth2"]),
    ("params", &["oauth2"]),
    ("user", &["oauth2", "github-app"]),
    ("app_id", &["github-app"]),
    ("installation_id", &["github-app"]),
    ("api_url", &["github-app"]),
    ("repositories", &["github-app"]),
    ("permissions", &["github-app"]),
    ("public_key", &["ssh-agent", "ssh_agent"]),
];

/// How long a token is valid that says nothing.
const LIFETIME: Duration = Duration::from_secs(300);

/// Reads the recipe of a mode; none where the mode is no recipe.
pub(super) fn read(
    mode: &str,
    id: Option<&str>,
    fields: &Fields<'_, '_>,
) -> Option<Option<Recipe>> {
    Some(match mode {
        "query" => read_name(fields, "\"key\"").map(|name| Recipe::Query { name }),
        "cookie" => read_cookie(fields).map(|name| Recipe::Cookie { name }),
        "placeholder" => read_placeholder(id, fields).map(Recipe::Placeholder),
        "sigv4" => Some(Recipe::Sigv4(Sigv4 {
            region: read_plain(fields, "region"),
            service: read_plain(fields, "service"),
        })),
        "hmac" => read_hmac(fields).map(Recipe::Hmac),
        "jwt" => read_jwt(fields).map(Recipe::Jwt),
        _ => return None,
    })
}

fn read_name(fields: &Fields<'_, '_>, example: &str) -> Option<String> {
    let name = fields.required("name", example)?.value;
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        fields.wrong("name", "is not the name of a parameter", None);
        return None;
    }
    Some(name.to_owned())
}

fn read_cookie(fields: &Fields<'_, '_>) -> Option<String> {
    let name = fields.required("name", "\"session\"")?.value;
    if !value::is_token(name) {
        fields.wrong("name", "is not the name of a cookie", None);
        return None;
    }
    Some(name.to_owned())
}

/// The key `region` or `service`.
fn read_plain(fields: &Fields<'_, '_>, key: &str) -> Option<String> {
    let text = fields.text(key)?.value;
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        fields.wrong(key, "has letters, digits and '-' only", None);
        return None;
    }
    Some(text.to_owned())
}

fn read_placeholder(id: Option<&str>, fields: &Fields<'_, '_>) -> Option<Placeholder> {
    let text = match fields.text("placeholder") {
        Some(text) => text.value.to_owned(),
        None => format!("{PREFIX}{}", id?),
    };
    let tail = text.strip_prefix(PREFIX).unwrap_or_default();
    if !value::is_name(tail, 64, b"") || tail.ends_with('.') {
        let hint = format!("as in \"{PREFIX}pay\", with letters, digits, '-' and '_'");
        fields.wrong("placeholder", format!("is to begin with {PREFIX}"), Some(hint));
        return None;
    }
    let mut places = Places { headers: false, path: false, query: false, content: false };
    let Some(list) = fields.texts("in") else {
        // A service keeps content, paths and queries, and may give them back on another route.
        places.headers = true;
        return (!fields.has("in")).then_some(Placeholder { text, places });
    };
    for place in list {
        match place.value {
            "header" => places.headers = true,
            "path" => places.path = true,
            "query" => places.query = true,
            "body" => places.content = true,
            _ => fields.no_word(&place, "in", &["header", "path", "query", "body"]),
        }
    }
    Some(Placeholder { text, places })
}

/// The lower-case name of a field that can carry a secret; else why it can't, and what to write.
pub(super) fn carrier(text: &str) -> Result<String, (String, Option<String>)> {
    let name = text.to_ascii_lowercase();
    if !value::is_token(&name) {
        let shown: String = text.chars().take(64).collect();
        return Err((format!("{shown:?} is not the name of a header field"), None));
    }
    if name == "cookie" {
        let hint = "write inject = \"cookie\" and name = \"THE COOKIE\"".to_owned();
        return Err(("cookie holds the agent's own cookies as well".to_owned(), Some(hint)));
    }
    // The gateway writes `Via` itself.
    if FRAMING.contains(&name.as_str()) || name == "via" || name.starts_with("affiant-") {
        return Err((format!("{name} can't carry a secret"), None));
    }
    Ok(name)
}

pub(super) fn read_header_name(fields: &Fields<'_, '_>, key: &str, text: &str) -> Option<String> {
    carrier(text).map_err(|(message, hint)| fields.wrong(key, message, hint)).ok()
}

fn read_hmac(fields: &Fields<'_, '_>) -> Option<Hmac> {
    let digest = match fields.word("algorithm", &["sha256", "sha512", "sha1"]) {
        Some(1) => Digest::Sha512,
        Some(2) => Digest::Sha1,
        Some(_) | None => Digest::Sha256,
    };
    let encoding = match fields.word("encoding", &["hex", "base64"]) {
        Some(1) => Encoding::Base64,
        Some(_) | None => Encoding::Hex,
    };
    let sign = fields.required("sign", "\"{timestamp}.{body}\"").and_then(|text| {
        let sign = Template::parse(text.value).map_err(|error| fields.wrong("sign", error, None));
        let sign = sign.ok()?;
        if sign.has_signature() {
            fields.wrong("sign", "can't hold the signature itself", None);
            return None;
        }
        Some(sign)
    });
    let headers = read_signed_headers(fields);
    Some(Hmac { digest, encoding, sign: sign?, headers: headers? })
}

/// The fields that `hmac` sends; every mistake is told where it stands.
fn read_signed_headers(fields: &Fields<'_, '_>) -> Option<BTreeMap<String, Template>> {
    let hint = || Some("write headers = { X-Signature = \"{signature}\" }".to_owned());
    if !fields.has("headers") {
        fields.wrong("headers", "is missing", hint());
    }
    let mut headers = BTreeMap::new();
    let mut is_sound = true;
    for (name, values) in fields.lists("headers")? {
        match read_signed_header(fields, &name, &values) {
            Some((lower, _)) if headers.contains_key(&lower) => {
                fields.wrong_at(name.offset, "headers", format!("{lower} is there already"));
                is_sound = false;
            }
            Some((lower, template)) => {
                headers.insert(lower, template);
            }
            None => is_sound = false,
        }
    }
    if is_sound && !headers.values().any(Template::has_signature) {
        fields.wrong("headers", "no field holds {signature}", hint());
        return None;
    }
    is_sound.then_some(headers)
}

fn read_signed_header(
    fields: &Fields<'_, '_>,
    name: &At<&str>,
    values: &[At<&str>],
) -> Option<(String, Template)> {
    let wrong = |(message, hint)| fields.refuse_at(name.offset, "headers", message, hint);
    let lower = carrier(name.value).map_err(wrong);
    let shown: String = name.value.chars().take(64).collect();
    let [value] = values else {
        fields.wrong_at(name.offset, "headers", format!("{shown} is to have one text"));
        return None;
    };
    if !value.value.bytes().all(|c| c == b' ' || c.is_ascii_graphic()) {
        let message = format!("{shown} has a character that a header can't have");
        fields.wrong_at(value.offset, "headers", message);
        return None;
    }
    let wrong = |error| {
        fields.wrong_at(value.offset, "headers", format!("{shown}: {error}"));
    };
    let template = Template::parse(value.value).map_err(wrong);
    Some((lower.ok()?, template.ok()?))
}

fn read_jwt(fields: &Fields<'_, '_>) -> Option<Jwt> {
    fields.required("algorithm", "\"RS256\"")?;
    let algorithm = match fields.word("algorithm", &["RS256", "ES256", "EdDSA"])? {
        0 => Algorithm::Rs256,
        1 => Algorithm::Es256,
        _ => Algorithm::EdDsa,
    };
    let name = match fields.text("name") {
        Some(name) => read_header_name(fields, "name", name.value)?,
        None => "authorization".to_owned(),
    };
    let format = fields.text("format").map_or("Bearer {secret}", |f| f.value);
    if !super::credential::check_format(fields, format) {
        return None;
    }
    let lifetime = fields.duration("lifetime").unwrap_or(LIFETIME);
    if lifetime.subsec_nanos() != 0 || lifetime > Duration::from_secs(86_400) {
        fields.wrong("lifetime", "is to be whole seconds, a day at most", None);
    }
    let mut claims = BTreeMap::new();
    for (claim, value) in fields.scalars("claims") {
        if ["iat", "exp"].contains(&claim.as_str()) {
            fields.wrong("claims", format!("{claim} is set for each token"), None);
        } else {
            claims.insert(claim, value);
        }
    }
    let key_id = fields.text("key_id").map(|id| id.value.to_owned());
    let format = format.to_owned();
    Some(Jwt { algorithm, key_id, claims, lifetime, name, format })
}
