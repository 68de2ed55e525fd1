//! What the tests of the store and of the vault share.

use policy::{HttpAction, Policy, Scheme};
use tempfile::TempDir;

/// A home of its own.
pub(crate) fn home() -> (TempDir, Policy) {
    let dir = TempDir::new().unwrap();
    let policy = Policy::init(&dir.path().join("home"), None).unwrap();
    (dir, policy)
}

/// A policy with one route to a host and the secret `tok`.
pub(crate) fn text(host: &str) -> String {
    format!(
        "[[credential]]\nid = \"c\"\nsecret = \"tok\"\ninject = \"bearer\"\n\
         [[route]]\nname = \"r\"\nmatch = {{ host = \"{host}\" }}\ncredential = \"c\"\n"
    )
}

/// A request to a host.
pub(crate) fn action(host: &str) -> HttpAction<'_> {
    HttpAction { agent: "a", scheme: Scheme::Https, host, port: 443, method: "GET", path: "/" }
}

/// The credential of the policy, applied.
pub(crate) fn canary_credential(policy: &Policy) -> policy::Credential {
    policy.apply(&text("one.test"), "p.toml", "ann").unwrap();
    policy.snapshot().http(&action("one.test")).unwrap().credential.unwrap()
}
