//! What of a credential differs: where its secrets come from, and all that says where they go.

use super::{Keys, joined};
use crate::token::{Form, GithubApp, Grant, Mint, Oauth2, Token};
use crate::{Credential, Field, Hashicorp, Inject, Login, SecretRef};
use journal::contract::Digest;

/// The keys of a credential. What has no key of its own is in `settings`, a digest: whatever differs,
/// something differs here.
pub(super) fn keys(credential: &Credential) -> Keys {
    let Credential { id: _, secret, inject } = credential;
    let mut keys = Keys::from([
        ("secret", reference(secret)),
        ("inject", mode(inject)),
        ("settings", digest(&format!("{secret:?} {inject:?}"))),
    ]);
    match inject {
        Inject::Header { name: _, format } => {
            keys.extend(format.clone().map(|format| ("format", format)));
        }
        Inject::Token(token) => minted(token, &mut keys),
        Inject::SshAgent { public_key } => {
            keys.extend(public_key.clone().map(|key| ("public_key", key)));
        }
        Inject::Bearer
        | Inject::Basic
        | Inject::Mtls
        | Inject::Password
        | Inject::SshKey
        | Inject::KeyboardInteractive
        | Inject::SshCertificate
        | Inject::Recipe(_) => {}
    }
    keys
}

fn mode(inject: &Inject) -> String {
    match inject.header_name() {
        Some(header) => format!("{} in {header}", inject.mode()),
        None => inject.mode().to_owned(),
    }
}

fn minted(token: &Token, keys: &mut Keys) {
    match &token.form {
        Form::Format(format) => keys.insert("format", format.clone()),
        Form::Basic(user) => keys.insert("user", user.clone()),
    };
    match &token.from {
        Mint::Oauth2(Oauth2 { url, client_id, grant, client_auth: _, scope, params }) => {
            keys.insert("token_url", url.clone());
            keys.insert("client_id", client_id.clone());
            keys.extend(scope.clone().map(|scope| ("scope", scope)));
            let params = params.iter().map(|(name, value)| format!("{name}={value}"));
            keys.insert("params", joined(params));
            if let Grant::RefreshToken(Some(secret)) = grant {
                keys.insert("client_secret", reference(secret));
            }
        }
        Mint::GithubApp(app) => {
            let GithubApp { api, app_id, installation_id, repositories, permissions } = app;
            keys.insert("api_url", api.clone());
            keys.insert("app_id", app_id.clone());
            keys.insert("installation_id", installation_id.to_string());
            keys.insert("repositories", joined(repositories.iter().cloned()));
            let permissions = permissions.iter().map(|(name, value)| format!("{name}={value}"));
            keys.insert("permissions", joined(permissions));
        }
    }
}

/// Where a secret comes from.
pub(super) fn reference(secret: &SecretRef) -> String {
    match secret {
        SecretRef::Vault(name) => format!("vault:{name}"),
        SecretRef::Env(name) => format!("env:{name}"),
        SecretRef::File(path) => format!("file:{}", path.display()),
        SecretRef::Agent(path) => format!("agent:{}", path.display()),
        // Arguments of a program are not shown: people put tokens there.
        SecretRef::Exec(words) => {
            let program = words.first().map(String::as_str).unwrap_or_default();
            format!("exec:{program} with arguments {}", digest(&format!("{words:?}")))
        }
        SecretRef::Hashicorp(wanted) => {
            let Hashicorp { server, path, field } = wanted.as_ref();
            let field = match field {
                Field::Named(name) => name.clone(),
                Field::Joined(parts, last) => {
                    let parts = parts.iter().map(|(before, name)| format!("{before}{{{name}}}"));
                    parts.collect::<String>() + last
                }
            };
            let address = server.address.as_deref().unwrap_or("VAULT_ADDR");
            let login = match &server.login {
                Login::Environment => "VAULT_TOKEN".to_owned(),
                Login::Token(source) => format!("token {}", reference(source)),
                Login::AppRole { mount, role_id, secret_id } => {
                    format!("role {role_id} at {mount}, {}", reference(secret_id))
                }
            };
            format!("hashicorp:{path}#{field} at {address} by {login}")
        }
    }
}

fn digest(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use crate::Snapshot;

    fn compile(text: &str) -> Snapshot {
        Snapshot::compile(text, "p", 0).unwrap_or_else(|e| panic!("{text}\n{e:#?}"))
    }

    fn credential(rest: &str) -> String {
        format!(
            "[[credential]]\nid = \"c\"\n{rest}\n\
             [[route]]\nname = \"r\"\nmatch = {{ host = \"a.test\" }}\ncredential = \"c\"\n"
        )
    }

    /// Whatever of a credential, a parent or the defaults differs is told.
    #[test]
    fn nothing_that_moves_a_secret_is_left_out() {
        let oauth = "secret = \"s\"\ninject = \"oauth2\"\ntoken_url = \"https://t.test/t\"\n\
                     client_id = \"me\"\nscope = \"read\"\nparams = { audience = \"x\" }";
        let refresh = "secret = \"s\"\ninject = \"oauth2\"\ngrant = \"refresh_token\"\n\
                       token_url = \"https://t.test/t\"\nclient_id = \"me\"\nclient_secret = \"cs\"";
        let app = "secret = \"s\"\ninject = \"github-app\"\napp_id = \"1\"\ninstallation_id = 7\n\
                   permissions = { contents = \"read\" }";
        let header = "secret = \"s\"\ninject = \"header\"\nname = \"X-K\"\nformat = \"T {secret}\"";
        let hmac = "secret = \"s\"\ninject = \"hmac\"\nsign = \"{body}\"\n\
                    headers = { X-S = \"{signature}\" }";
        let jwt =
            "secret = \"s\"\ninject = \"jwt\"\nalgorithm = \"RS256\"\nclaims = { iss = \"1\" }";
        let place = "secret = \"s\"\ninject = \"placeholder\"\nin = [\"path\"]";
        let exec = "secret = { exec = [\"op\", \"read\", \"one\"] }\ninject = \"bearer\"";
        for (text, from, to) in [
            (oauth, "t.test/t", "evil.test/t"),
            (oauth, "\"me\"", "\"you\""),
            (oauth, "read", "write"),
            (oauth, "\"x\"", "\"y\""),
            (refresh, "\"cs\"", "\"other\""),
            (app, "= 7", "= 8"),
            (app, "\"read\"", "\"write\""),
            (header, "T {secret}", "U {secret}"),
            (hmac, "{body}", "{path}"),
            (jwt, "iss = \"1\"", "iss = \"2\""),
            (place, "\"path\"", "\"query\""),
            (exec, "one", "two"),
            (exec, "\"op\"", "\"cat\""),
        ] {
            let (before, after) = (credential(text), credential(&text.replace(from, to)));
            let changes = super::super::diff(&compile(&before), &compile(&after));
            assert_eq!(changes.len(), 1, "{from} -> {to}: {changes:#?}");
            assert_eq!((changes[0].kind, changes[0].name.as_str()), ("credential", "c"));
        }
    }

    #[test]
    fn parents_stores_and_defaults_are_compared() {
        let vault = "[hashicorp]\naddress = \"https://v.test\"\ntoken = \"env:T\"\n".to_owned()
            + &credential("secret = \"vault:secret/data/pay#token\"\ninject = \"bearer\"");
        let parent = "[defaults]\nparent = \"p\"\negress = \"allow\"\nprivate_addresses = \"deny\"\n\
                      [[credential]]\nid = \"pc\"\nsecret = \"s\"\ninject = \"basic\"\n\
                      [[parent]]\nname = \"p\"\nurl = \"http://p.test:3128\"\ncredential = \"pc\"\n\
                      no_proxy = [\"10.0.0.0/8\"]\n";
        for (text, from, to, kind) in [
            (vault.as_str(), "v.test", "evil.test", "credential"),
            (&vault, "env:T", "env:U", "credential"),
            (&vault, "#token", "#other", "credential"),
            (parent, "p.test", "evil.test", "parent"),
            (parent, "10.0.0.0/8", "0.0.0.0/0", "parent"),
            (parent, "secret = \"s\"", "secret = \"t\"", "credential"),
            (parent, "private_addresses = \"deny\"", "private_addresses = \"allow\"", "defaults"),
            (parent, "parent = \"p\"\negress", "egress", "defaults"),
        ] {
            let changes = super::super::diff(&compile(text), &compile(&text.replace(from, to)));
            assert_eq!(changes.len(), 1, "{from} -> {to}: {changes:#?}");
            assert_eq!(changes[0].kind, kind, "{from} -> {to}");
        }
    }
}
