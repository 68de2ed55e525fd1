//! The keys of `[[credential]]` for tokens that services mint, and the table `[hashicorp]`.

use super::credential::{check_format, read_plain_reference};
use super::reader::Fields;
use super::{recipe, value};
use crate::credential::may_carry_secrets;
use crate::token::{ClientAuth, Form, GithubApp, Grant, Mint, Oauth2, Token};
use crate::{Login, SecretRef, Server};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const HASHICORP: &[&str] =
    &["address", "namespace", "ca_file", "token", "role_id", "secret_id", "mount"];

const GITHUB: &str = "https://api.github.com";

/// Reads the mode `oauth2`.
pub(super) fn oauth2(fields: &Fields<'_, '_>, secret: Option<&SecretRef>) -> Option<Token> {
    let url = read_url(fields, "token_url", "\"https://id.example/oauth/token\"")?;
    let client_id = fields.required("client_id", "\"...\"")?.value.to_owned();
    let own = fields.has("client_secret").then(|| read_plain_reference(fields, "client_secret"));
    let (grant, has_secret) = match fields.word("grant", &["client_credentials", "refresh_token"]) {
        Some(1) => {
            if !matches!(secret, None | Some(SecretRef::Vault(_))) {
                let hint = "a new refresh token takes the place of the old one, in the vault";
                let message = "is to be the name of a refresh token in the vault";
                fields.wrong("secret", message, Some(hint.to_owned()));
            }
            let has_secret = own.is_some();
            (Grant::RefreshToken(own.flatten()), has_secret)
        }
        Some(_) | None => {
            if own.is_some() {
                let message =
                    "goes with grant = \"refresh_token\" only; else `secret` is the client's";
                fields.wrong("client_secret", message, None);
            }
            (Grant::ClientCredentials, true)
        }
    };
    let client_auth = match fields.word("client_auth", &["basic", "body", "none"]) {
        Some(0) => ClientAuth::Basic,
        Some(1) => ClientAuth::Body,
        Some(_) => ClientAuth::None,
        None if has_secret => ClientAuth::Basic,
        None => ClientAuth::None,
    };
    if has_secret == (client_auth == ClientAuth::None) {
        let message =
            if has_secret { "leaves the client's secret unused" } else { "needs client_secret" };
        fields.wrong("client_auth", message, None);
    }
    let scope = fields.text("scope").map(|scope| scope.value.to_owned());
    let params = read_texts(fields, "params");
    for taken in ["grant_type", "refresh_token", "client_id", "client_secret", "scope"] {
        if params.contains_key(taken) {
            fields.wrong("params", format!("{taken} is set by the other keys"), None);
        }
    }
    let from = Mint::Oauth2(Oauth2 { url, client_id, grant, client_auth, scope, params });
    read_place(fields, from)
}

/// Reads the mode `github-app`.
pub(super) fn github_app(fields: &Fields<'_, '_>) -> Option<Token> {
    let app_id = fields.required("app_id", "\"12345\"")?.value.to_owned();
    if !fields.has("installation_id") {
        fields.wrong("installation_id", "is missing", Some("installation_id = 678".to_owned()));
    }
    let installation_id = fields.number("installation_id", 1, u64::MAX >> 1)?;
    let api = match fields.has("api_url") {
        true => read_url(fields, "api_url", "")?.trim_end_matches('/').to_owned(),
        false => GITHUB.to_owned(),
    };
    let repositories = fields.texts("repositories").unwrap_or_default();
    let repositories = repositories.iter().map(|name| name.value.to_owned()).collect();
    let permissions = read_texts(fields, "permissions");
    let app = GithubApp { api, app_id, installation_id, repositories, permissions };
    read_place(fields, Mint::GithubApp(app))
}

/// Where the token goes: the keys `name`, `format` and `user`.
fn read_place(fields: &Fields<'_, '_>, from: Mint) -> Option<Token> {
    let name = match fields.text("name") {
        Some(name) => recipe::read_header_name(fields, "name", name.value)?,
        None => "authorization".to_owned(),
    };
    let form = match (fields.text("user"), fields.text("format")) {
        (None, format) => {
            let format = format.map_or("Bearer {secret}", |format| format.value);
            if !check_format(fields, format) {
                return None;
            }
            Form::Format(format.to_owned())
        }
        (Some(_), Some(_)) => {
            fields.wrong("format", "does not go with `user`", None);
            return None;
        }
        (Some(user), None) => {
            if user.value.contains(':') || user.value.chars().any(char::is_control) {
                fields.wrong("user", "is not the name of a user", None);
            }
            Form::Basic(user.value.to_owned())
        }
    };
    Some(Token { from, name, form })
}

/// A URL that secrets go to.
fn read_url(fields: &Fields<'_, '_>, key: &str, example: &str) -> Option<String> {
    let url = fields.required(key, example)?.value;
    if !may_carry_secrets(url) {
        let hint = "secrets go there: https, or http to this machine itself".to_owned();
        fields.wrong(key, "is not a URL for secrets", Some(hint));
        return None;
    }
    Some(url.to_owned())
}

fn read_texts(fields: &Fields<'_, '_>, key: &str) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for (name, value) in fields.scalars(key) {
        if let serde_json::Value::String(text) = value {
            texts.insert(name, text);
        } else {
            fields.wrong(key, format!("{name} is to be a text"), None);
        }
    }
    texts
}

/// The table `[hashicorp]`; absent, the environment says everything.
pub(super) fn read_hashicorp(root: &Fields<'_, '_>) -> Arc<Server> {
    let Some(fields) = root.table("hashicorp", HASHICORP) else { return Arc::default() };
    let address = fields.has("address").then(|| read_url(&fields, "address", "")).flatten();
    let namespace = fields.text("namespace").map(|text| text.value.to_owned());
    let ca_file = fields.text("ca_file").map(|file| PathBuf::from(file.value)).filter(|file| {
        let absolute = file.is_absolute();
        if !absolute {
            fields.wrong("ca_file", "is not an absolute path", None);
        }
        absolute
    });
    let login = if fields.has("role_id") || fields.has("secret_id") || fields.has("mount") {
        if fields.has("token") {
            fields.wrong("token", "does not go with `role_id`", None);
        }
        let role_id = fields.required("role_id", "\"...\"").map(|text| text.value.to_owned());
        fields.required_or_table("secret_id", "\"vault-secret-id\"");
        let secret_id = read_plain_reference(&fields, "secret_id");
        let mount = fields.text("mount").map_or("approle", |text| text.value).to_owned();
        if !value::is_name(&mount, 128, b"/") {
            fields.wrong("mount", "is not where a method is mounted", None);
        }
        match role_id.zip(secret_id) {
            Some((role_id, secret_id)) => Login::AppRole { mount, role_id, secret_id },
            None => Login::Environment,
        }
    } else if fields.has("token") {
        read_plain_reference(&fields, "token").map_or(Login::Environment, Login::Token)
    } else {
        Login::Environment
    };
    Arc::new(Server { address, namespace, ca_file, login })
}
