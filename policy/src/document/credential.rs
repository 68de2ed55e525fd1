//! The tables `[[credential]]`.

use super::reader::{Fields, Place, Reader};
use super::{read_preset, recipe, title, token, unique, value};
use crate::preset::Preset;
use crate::{Credential, Field, Hashicorp, Inject, SecretRef, Server};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The modes.
pub(super) const MODES: [&str; 17] = [
    "bearer",
    "basic",
    "header",
    "query",
    "cookie",
    "placeholder",
    "sigv4",
    "hmac",
    "jwt",
    "oauth2",
    "github-app",
    "mtls",
    "ssh-key",
    "password",
    "keyboard-interactive",
    "ssh-certificate",
    "ssh-agent",
];

pub(super) const PROGRAM: &[&str] = &["exec"];

pub(super) const KNOWN: &[&str] = &[
    "id",
    "secret",
    "preset",
    "inject",
    "name",
    "format",
    "placeholder",
    "in",
    "region",
    "service",
    "algorithm",
    "encoding",
    "sign",
    "headers",
    "claims",
    "lifetime",
    "key_id",
    "token_url",
    "client_id",
    "client_secret",
    "client_auth",
    "grant",
    "scope",
    "params",
    "user",
    "app_id",
    "installation_id",
    "api_url",
    "repositories",
    "permissions",
    "public_key",
];

/// All credentials, by id.
#[derive(Default)]
pub(super) struct Read {
    /// None where the table has errors.
    pub credentials: BTreeMap<String, Option<Credential>>,
    /// The presets of those that name one.
    pub presets: BTreeMap<String, &'static Preset>,
    /// Where each stands.
    pub places: BTreeMap<String, Place>,
}

/// Reads all credentials.
pub(super) fn read(reader: &Reader<'_>, root: &Fields<'_, '_>) -> Read {
    let mut read = Read::default();
    let server = token::read_hashicorp(root);
    for (table, span) in root.tables("credential") {
        let what = title("credential", table, "id");
        let fields = Fields::new(reader, table, span, what, KNOWN);
        let id = fields
            .required("id", "\"...\"")
            .and_then(|id| unique(&fields, "id", id.value, &mut read.places));
        let secret = read_secret(&fields, &server);
        let preset = read_preset(&fields);
        // A preset that is not known is told already; that `inject` is missing follows from it.
        let inject = match preset {
            Some(preset) if !fields.has("inject") => {
                let inject = preset.inject();
                refuse_other_keys(&fields, inject.mode());
                Some(inject)
            }
            None if fields.has("preset") && !fields.has("inject") => None,
            Some(_) | None => read_inject(&fields, id.as_deref(), secret.as_ref()),
        };
        if let Some(id) = id {
            if let Some(preset) = preset {
                read.presets.insert(id.clone(), preset);
            }
            let credential = secret.zip(inject).map(|(secret, inject)| Credential {
                id: id.clone(),
                secret,
                inject,
            });
            read.credentials.insert(id, credential);
        }
    }
    read
}

/// Reads the reference to a secret. Messages do not repeat it: people paste secrets here (V-3).
fn read_secret(fields: &Fields<'_, '_>, server: &Arc<Server>) -> Option<SecretRef> {
    fields.required_or_table("secret", "\"NAME\"");
    read_reference(fields, "secret", Some(server))
}

/// Reads a reference to a secret that is needed to get another.
pub(super) fn read_plain_reference(fields: &Fields<'_, '_>, key: &str) -> Option<SecretRef> {
    read_reference(fields, key, None)
}

fn read_reference(
    fields: &Fields<'_, '_>,
    key: &str,
    server: Option<&Arc<Server>>,
) -> Option<SecretRef> {
    if fields.is_table(key) {
        return read_program(fields, key);
    }
    let text = fields.text(key)?.value;
    let source = |text: &str, kind: &str| text.strip_prefix(kind).map(str::to_owned);
    let reference = if let Some(name) = source(text, "env:") {
        let good = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
        good.then_some(SecretRef::Env(name)).ok_or("`env:` is to name an environment variable")
    } else if let Some(path) = source(text, "file:") {
        let path = PathBuf::from(path);
        let good = path.is_absolute();
        good.then_some(SecretRef::File(path)).ok_or("`file:` is to name an absolute path")
    } else if let Some(path) = source(text, "agent:") {
        let path = PathBuf::from(path);
        let good = path.is_absolute();
        good.then_some(SecretRef::Agent(path)).ok_or("`agent:` is to name an absolute path")
    } else if let Some(command) = source(text, "exec:") {
        // Without a shell a quote would be part of a word, which nobody means.
        if command.contains(['"', '\'', '\\']) {
            Err("`exec:` takes words without quotes; write a table: { exec = [\"...\", \"...\"] }")
        } else {
            let words: Vec<_> = command.split_ascii_whitespace().map(str::to_owned).collect();
            let good = !words.is_empty();
            good.then_some(SecretRef::Exec(words)).ok_or("`exec:` is to name a program")
        }
    } else if let Some(wanted) = source(text, "vault:") {
        read_stored(&wanted, server)
    } else if value::is_name(text, 128, b"/") {
        Ok(SecretRef::Vault(text.to_owned()))
    } else {
        Err("is not a reference to a secret")
    };
    reference
        .map_err(|message| {
            let hint = "the name under which the vault holds it, or env:NAME, file:PATH, \
                        exec:COMMAND, agent:PATH, vault:PATH#FIELD; never the secret itself";
            fields.wrong(key, message, Some(hint.to_owned()));
        })
        .ok()
}

/// The form `vault:PATH#FIELD`.
fn read_stored(wanted: &str, server: Option<&Arc<Server>>) -> Result<SecretRef, &'static str> {
    let server = server.ok_or("what leads to HashiCorp Vault can't itself lie there")?;
    let form = "`vault:` is to name a path of the API and a field: vault:secret/data/pay#token";
    let (path, field) = wanted.split_once('#').ok_or(form)?;
    let plain = |segment: &str| {
        ![".", "..", ""].contains(&segment)
            && segment.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._~@".contains(&c))
    };
    if !path.split('/').all(plain) || path.starts_with("v1/") {
        return Err(form);
    }
    let field = Field::parse(field).ok_or(form)?;
    let (server, path) = (Arc::clone(server), path.to_owned());
    Ok(SecretRef::Hashicorp(Box::new(Hashicorp { server, path, field })))
}

/// The list form of a program: `secret = { exec = ["program", "argument"] }`.
fn read_program(fields: &Fields<'_, '_>, key: &str) -> Option<SecretRef> {
    let table = fields.table(key, PROGRAM)?;
    if !table.has("exec") {
        table.wrong("exec", "is missing", Some("write { exec = [\"program\"] }".to_owned()));
    }
    let words = table.texts("exec")?;
    if let Some(bad) = words.iter().find(|w| w.value.contains('\0')) {
        table.wrong_at(bad.offset, "exec", "an argument can't hold NUL");
        return None;
    }
    if words.first().is_some_and(|program| program.value.is_empty()) {
        table.wrong("exec", "the program has no name", None);
        return None;
    }
    Some(SecretRef::Exec(words.iter().map(|w| w.value.to_owned()).collect()))
}

fn read_inject(
    fields: &Fields<'_, '_>,
    id: Option<&str>,
    secret: Option<&SecretRef>,
) -> Option<Inject> {
    let text = fields.required("inject", "\"bearer\"")?.value;
    let inject = match text {
        "bearer" => Inject::Bearer,
        "basic" => Inject::Basic,
        "header" => read_header(fields)?,
        "oauth2" => Inject::Token(Box::new(token::oauth2(fields, secret)?)),
        "github-app" | "github_app" => Inject::Token(Box::new(token::github_app(fields)?)),
        "mtls" => Inject::Mtls,
        "password" => Inject::Password,
        "ssh-key" | "ssh_key" => Inject::SshKey,
        "keyboard-interactive" | "keyboard_interactive" => Inject::KeyboardInteractive,
        "ssh-certificate" | "ssh_certificate" => Inject::SshCertificate,
        "ssh-agent" | "ssh_agent" => read_agent(fields, secret)?,
        other => match recipe::read(other, id, fields) {
            Some(recipe) => Inject::Recipe(Box::new(recipe?)),
            None => {
                let hint = match value::nearest(other, MODES) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("supported are {}", MODES.join(", ")),
                };
                fields.wrong("inject", "is not a mode of injection", Some(hint));
                return None;
            }
        },
    };
    if matches!(secret, Some(SecretRef::Agent(_))) && !matches!(inject, Inject::SshAgent { .. }) {
        let hint = Some("write inject = \"ssh-agent\"".to_owned());
        fields.wrong("secret", "an agent gives no secret away, it signs", hint);
        return None;
    }
    refuse_other_keys(fields, text);
    Some(inject)
}

/// The mode `ssh-agent`.
fn read_agent(fields: &Fields<'_, '_>, secret: Option<&SecretRef>) -> Option<Inject> {
    if !matches!(secret, None | Some(SecretRef::Agent(_) | SecretRef::Env(_))) {
        let hint = "agent:PATH, or env:SSH_AUTH_SOCK for the broker's own variable";
        fields.wrong("secret", "is to name the socket of an agent", Some(hint.to_owned()));
        return None;
    }
    let public_key = match fields.text("public_key").map(|line| value::public_key(line.value)) {
        Some(Ok(key)) => Some(key),
        Some(Err(error)) => {
            fields.wrong("public_key", error, None);
            return None;
        }
        None => None,
    };
    Some(Inject::SshAgent { public_key })
}

/// Refuses keys that belong to other modes.
fn refuse_other_keys(fields: &Fields<'_, '_>, mode: &str) {
    for (key, modes) in recipe::KEYS {
        if fields.has(key) && !modes.contains(&mode) {
            let modes: Vec<_> = modes.iter().map(|mode| format!("{mode:?}")).collect();
            fields.wrong(key, format!("goes with inject = {} only", modes.join(" or ")), None);
        }
    }
}

/// Checks a format: `{secret}` once, and nothing that a header can't have.
pub(super) fn check_format(fields: &Fields<'_, '_>, format: &str) -> bool {
    if format.matches("{secret}").count() != 1 {
        let hint = Some("as in format = \"Token {secret}\"".to_owned());
        fields.wrong("format", "is to hold {secret} once", hint);
        return false;
    }
    if !format.bytes().all(|c| c == b'\t' || c == b' ' || c.is_ascii_graphic()) {
        fields.wrong("format", "has a character that a header can't have", None);
        return false;
    }
    true
}

fn read_header(fields: &Fields<'_, '_>) -> Option<Inject> {
    let name = fields.required("name", "\"X-Api-Key\"")?.value;
    let name = recipe::read_header_name(fields, "name", name)?;
    let format = fields.text("format").map(|f| f.value.to_owned());
    if format.as_ref().is_some_and(|format| !check_format(fields, format)) {
        return None;
    }
    Some(Inject::Header { name, format })
}
