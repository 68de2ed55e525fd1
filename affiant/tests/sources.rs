//! Credentials from elsewhere through the real proxy: OAuth 2.0, HashiCorp Vault, 1Password.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::Script;
use conformance::pki::Authority;
use conformance::service::{Call, Hashicorp, Reply, Reuse, Service, TokenServer};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use support::*;

const FIRST: &str = "canary-refresh-0";

/// No file of the home holds any of the texts.
fn scan(home: &Home, needles: &[&str]) {
    let mut left = vec![home.path().to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            for needle in needles {
                let found = bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
                assert!(!found, "{} holds {needle}", path.display());
            }
        }
    }
}

/// A server whose log, at trace level, lies in the home.
fn logged(home: &Home, environment: &[&str]) -> Server {
    let log = home.path().join("server.log");
    let script = format!("exec \"$@\" --log trace 2>{}", log.display());
    Server::start_by(home, &[&["env"], environment, &["sh", "-c", &script, "sh"]].concat())
}

struct Api {
    service: Service,
    calls: Arc<AtomicUsize>,
}

/// A service that takes the tokens of a token endpoint, and says in its answer what it got.
fn api(tokens: &Arc<TokenServer>, tls: Arc<rustls::ServerConfig>) -> Api {
    let calls = Arc::new(AtomicUsize::new(0));
    let (tokens, counted) = (Arc::clone(tokens), Arc::clone(&calls));
    let handler = move |call: &Call| {
        counted.fetch_add(1, Ordering::SeqCst);
        let shown = call.field("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let good = shown.is_some_and(|token| tokens.accepts(token));
        let said = serde_json::json!({ "got": shown });
        Some(Reply::json(if good { 200 } else { 401 }, &said))
    };
    Api { service: Service::start(Some(tls), Arc::new(handler)).unwrap(), calls }
}

/// I-1, I-2, I-4 and D-7: fifty calls at once, one refresh; a 401 is passed on and not repeated; what
/// was minted is in no answer and no file.
#[test]
fn i_1_fifty_calls_share_one_refresh() {
    let home = Home::new();
    let authority = Authority::new("CA").unwrap();
    let leaf = authority.leaf(&["localhost"]).unwrap();
    let mut ca_file = tempfile::NamedTempFile::new().unwrap();
    ca_file.write_all(authority.pem().as_bytes()).unwrap();
    let tls = leaf.server_config().unwrap();
    let tokens = TokenServer::start(Some(Arc::clone(&tls)), FIRST, Reuse::Ends).unwrap();
    let tokens = Arc::new(tokens);
    let api = api(&tokens, tls);
    home.secret("seed", FIRST);
    home.secret("own", TokenServer::CLIENT_SECRET);
    let policy = format!(
        "[[trust]]\nhost = \"localhost\"\nca_file = \"{}\"\n\
         [[credential]]\nid = \"crm\"\nsecret = \"seed\"\ninject = \"oauth2\"\ngrant = \"refresh_token\"\n\
         token_url = \"https://localhost:{}/token\"\nclient_id = \"{}\"\nclient_secret = \"own\"\n\
         [[route]]\nname = \"crm\"\nmatch = {{ host = \"localhost\", port = {} }}\ncredential = \"crm\"\n\
         private_addresses = \"allow\"\n",
        ca_file.path().display(),
        tokens.address().port(),
        TokenServer::CLIENT,
        api.service.address().port(),
    );
    home.policy(&policy);
    let server = logged(&home, &[]);
    let url = format!("https://localhost:{}/x", api.service.address().port());
    let call = |body: &str| server.curl(&["-d", body, &url]);
    let barrier = Barrier::new(50);
    std::thread::scope(|scope| {
        let one = |n: usize| {
            let (barrier, call) = (&barrier, &call);
            scope.spawn(move || {
                barrier.wait();
                call(&n.to_string())
            })
        };
        let running: Vec<_> = (0..50).map(one).collect();
        for thread in running {
            let response = thread.join().unwrap();
            assert_eq!((response.status, response.outcome()), (200, "committed"), "{response:?}");
            assert!(!text(&response.body).contains("canary"), "{response:?}");
        }
    });
    assert_eq!((tokens.counts(), api.calls.load(Ordering::SeqCst)), ((1, 0), 50));

    tokens.revoke_tokens();
    let refused = call("after");
    assert_eq!((refused.status, refused.outcome()), (401, "rejected"), "{refused:?}");
    assert_eq!(api.calls.load(Ordering::SeqCst), 51, "the call was repeated");
    assert_eq!(call("next").status, 200);
    assert_eq!(tokens.counts(), (2, 0));

    tokens.revoke_tokens();
    call("once more");
    for (broken, status, code) in
        [(Some(503), 503, "SECRET_SOURCE_FAILED"), (Some(400), 500, "SECRET_SOURCE_DENIED")]
    {
        // A token that replaced a refused one is kept for a while, whoever refuses it; so the secret
        // is set anew, which begins anew.
        home.secret("seed", &tokens.refresh_token());
        tokens.set_broken(broken);
        let before = api.calls.load(Ordering::SeqCst);
        let failed = call(code);
        assert_eq!((failed.status, failed.outcome()), (status, "not_attempted"), "{failed:?}");
        let error = &failed.json()["error"];
        let phase = "credential_injection";
        assert_eq!((&error["code"], &error["phase"]), (&code.into(), &phase.into()));
        assert_eq!(api.calls.load(Ordering::SeqCst), before);
    }
    server.terminate();
    scan(&home, &["canary-access", "canary-refresh", TokenServer::CLIENT_SECRET]);
}

/// I-1 and I-2: a lease of HashiCorp Vault, found by the environment that its own client uses; given
/// back when the server stops.
#[test]
fn i_1_a_lease_ends_with_the_server() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    let authority = Authority::new("vault CA").unwrap();
    let leaf = authority.leaf(&["localhost"]).unwrap();
    let vault = Hashicorp::start(Some(leaf.server_config().unwrap())).unwrap();
    let ca_file = home.path().join("vault-ca.pem");
    std::fs::write(&ca_file, authority.pem()).unwrap();
    let policy = origin.policy("").replace(
        "secret = \"pay-token\"\ninject = \"bearer\"",
        "secret = \"vault:database/creds/app#{username}:{password}\"\ninject = \"basic\"",
    );
    home.policy(&policy);
    let environment = [
        format!("VAULT_ADDR=https://localhost:{}", vault.address().port()),
        format!("VAULT_TOKEN={}", Hashicorp::TOKEN),
        "VAULT_NAMESPACE=team".to_owned(),
        format!("VAULT_CACERT={}", ca_file.display()),
    ];
    let environment: Vec<_> = environment.iter().map(String::as_str).collect();
    let server = logged(&home, &environment);
    for body in ["a", "b"] {
        assert_eq!(server.curl(&["-d", body, &origin.url("/x")]).status, 200);
    }
    let seen = origin.origin.seen();
    // app-1:canary:pass
    let expected = Some("Basic YXBwLTE6Y2FuYXJ5OnBhc3M=".to_owned());
    assert!(seen.iter().all(|s| s.field("authorization") == expected), "{seen:?}");
    assert_eq!(vault.reads(), ["/v1/database/creds/app"]);
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(vault.leases().1, ["database/creds/app/1"]);
    scan(&home, &["canary:pass", Hashicorp::TOKEN, "YXBwLTE6Y2FuYXJ5OnBhc3M"]);
}

/// I-1: the command line of 1Password is a program like any other; a reference that it does not know
/// ends the call before anything is sent.
#[test]
fn i_1_a_secret_comes_from_1password() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    let bin = home.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let op = bin.join("op");
    let script = format!(
        "#!/bin/sh\n[ \"$OP_SERVICE_ACCOUNT_TOKEN\" = ops_token ] || exit 6\n\
         [ \"$*\" = 'read --no-newline op://agents/pay/token' ] || {{ echo 'not found' >&2; exit 1; }}\n\
         printf %s \"$(printf %s {} | rev)\"\n",
        SECRET.chars().rev().collect::<String>()
    );
    std::fs::write(&op, script).unwrap();
    std::fs::set_permissions(&op, std::fs::Permissions::from_mode(0o755)).unwrap();
    let of = |item: &str| {
        let program = format!("{{ exec = [\"op\", \"read\", \"--no-newline\", \"{item}\"] }}");
        origin.policy("").replace("secret = \"pay-token\"", &format!("secret = {program}"))
    };
    home.policy(&of("op://agents/pay/token"));
    let path = format!("PATH={}:{}", bin.display(), std::env::var("PATH").unwrap());
    let server = logged(&home, &[&path, "OP_SERVICE_ACCOUNT_TOKEN=ops_token"]);
    assert_eq!(server.curl(&["-d", "a", &origin.url("/x")]).status, 200);
    let seen = origin.origin.seen();
    assert_eq!(seen[0].field("authorization"), Some(format!("Bearer {SECRET}")));
    home.policy(&of("op://agents/none/token"));
    let failed = server.curl(&["-d", "b", &origin.url("/x")]);
    assert_eq!((failed.status, failed.outcome()), (503, "not_attempted"), "{failed:?}");
    assert_eq!(failed.json()["error"]["code"], "SECRET_SOURCE_FAILED");
    assert_eq!(origin.origin.seen().len(), 1);
    server.terminate();
    scan(&home, &[SECRET]);
}
