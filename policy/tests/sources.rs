//! Sources of secrets outside of the vault: OAuth 2.0, GitHub Apps, HashiCorp Vault.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use conformance::pki::Authority;
use conformance::service::{Github, Hashicorp, Reuse, TokenServer};
use journal::contract::{Code, Outcome, Phase, Retry};
use policy::credential::Error;
use policy::{Credential, HttpAction, Policy, Scheme, Secret};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FIRST: &str = "canary-refresh-0";

fn home() -> (TempDir, Policy) {
    let dir = TempDir::new().unwrap();
    let policy = Policy::init(&dir.path().join("home"), None).unwrap();
    (dir, policy)
}

/// Applies a policy with one credential, and gives it.
fn applied(policy: &Policy, more: &str, keys: &str) -> Credential {
    let text = format!(
        "{more}[[credential]]\nid = \"c\"\n{keys}\n\
         [[route]]\nname = \"r\"\nmatch = {{ host = \"h.test\" }}\ncredential = \"c\"\n"
    );
    policy.apply(&text, "p", "t").unwrap_or_else(|error| panic!("{error:?}"));
    let (scheme, method) = (Scheme::Https, "GET");
    let action = HttpAction { agent: "a", scheme, host: "h.test", port: 443, method, path: "/" };
    policy.snapshot().http(&action).unwrap().credential.unwrap()
}

fn client(address: SocketAddr, keys: &str) -> String {
    format!(
        "inject = \"oauth2\"\ntoken_url = \"http://{address}/token\"\nclient_id = \"client\"\n{keys}"
    )
}

fn by_refresh(policy: &Policy, server: &TokenServer) -> Credential {
    policy.set_secret("seed", &Secret::from(FIRST)).unwrap();
    policy.set_secret("own", &Secret::from(TokenServer::CLIENT_SECRET)).unwrap();
    let keys = "secret = \"seed\"\ngrant = \"refresh_token\"\nclient_secret = \"own\"\n";
    applied(policy, "", &client(server.address(), keys))
}

fn token(policy: &Policy, credential: &Credential) -> Result<String, Error> {
    let (secret, used) = policy.credential(credential)?;
    assert_eq!((used.id.as_str(), used.mode.as_str()), ("c", credential.inject.mode()));
    Ok(secret.expose_text().unwrap().to_owned())
}

/// Asks for the token by so many threads at once.
fn at_once(policy: &Policy, credential: &Credential, threads: usize) -> Vec<Result<String, Error>> {
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        let ask = || {
            barrier.wait();
            token(policy, credential)
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn check_refused(found: Result<String, Error>, code: Code, retry: Retry) {
    let error = found.unwrap_err();
    let verdict = error.verdict();
    assert_eq!(
        (verdict.phase(), verdict.outcome()),
        (Phase::CredentialInjection, Outcome::NotAttempted)
    );
    assert_eq!((error.code(), verdict.retry()), (code, retry), "{error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("canary") && !shown.contains("client secret"), "{shown}");
}

/// I-1: a client gets one token for calls at once, another when its time is over, and its own code
/// when it gets none.
#[test]
fn i_1_client_credentials_are_exchanged_once() {
    let (_dir, policy) = home();
    let server = TokenServer::start(None, FIRST, Reuse::Ends).unwrap();
    policy.set_secret("own", &Secret::from(TokenServer::CLIENT_SECRET)).unwrap();
    let keys = |auth: &str| format!("secret = \"own\"\nscope = \"read write\"\n{auth}");
    let credential = applied(&policy, "", &client(server.address(), &keys("")));
    let all = at_once(&policy, &credential, 20);
    assert_eq!(all.iter().flatten().collect::<BTreeSet<_>>().len(), 1, "{all:?}");
    assert_eq!(server.counts(), (1, 0));
    assert!(server.accepts(&token(&policy, &credential).unwrap()));
    let bound = policy.bind(&credential);
    assert!(policy.at_hand(&credential, &bound).is_some());
    // Another policy text for the same id begins anew; both ways to show the client are taken.
    let credential =
        applied(&policy, "", &client(server.address(), &keys("client_auth = \"body\"\n")));
    server.set_expires_in(Some(0));
    assert!(policy.at_hand(&credential, &bound).is_none());
    for expected in 2..5 {
        assert_eq!(token(&policy, &credential).unwrap(), format!("canary-access-{expected}"));
    }
    server.set_broken(Some(503));
    let failed = at_once(&policy, &credential, 10);
    assert!(failed.iter().all(|f| matches!(f, Err(Error::SourceFailed(_)))), "{failed:?}");
    check_refused(token(&policy, &credential), Code::SecretSourceFailed, Retry::Backoff);
    server.set_broken(None);
    policy.set_secret("own", &Secret::from("wrong")).unwrap();
    check_refused(token(&policy, &credential), Code::SecretSourceDenied, Retry::AfterCorrection);
    policy.vault().lock();
    check_refused(token(&policy, &credential), Code::VaultLocked, Retry::AfterCorrection);
    drop(server);
    policy.vault().unlock(None).unwrap();
    check_refused(token(&policy, &credential), Code::SecretSourceFailed, Retry::Backoff);
}

/// I-1: a server that takes each refresh token once is asked by one call at a time, and what it gave
/// last is durable.
#[test]
fn i_1_refresh_tokens_rotate_under_fifty_calls_at_once() {
    let (dir, policy) = home();
    let server = TokenServer::start(None, FIRST, Reuse::Ends).unwrap();
    let credential = by_refresh(&policy, &server);
    let all = at_once(&policy, &credential, 50);
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(server.counts(), (1, 0));
    // Tokens that are over at once: each wave refreshes, and no token is shown twice.
    server.set_expires_in(Some(0));
    policy.refused(&credential, &policy.bind(&credential), Instant::now());
    for _ in 0..4 {
        let all = at_once(&policy, &credential, 50);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    }
    let (granted, refused) = server.counts();
    assert_eq!(refused, 0);
    assert!(granted >= 5, "{granted}");
    // The version stays what the operator set, and a new process goes on with the newest.
    assert_eq!(policy.bind(&credential).version, 1);
    drop(policy);
    let policy = Policy::open(&dir.path().join("home")).unwrap();
    token(&policy, &credential).unwrap();
    assert_eq!(server.counts(), (granted + 1, 0));
    assert!(policy.list_secrets().unwrap().iter().all(|secret| !secret.name.contains(':')));
    policy.rotate_vault(policy::vault::Protection::KeyFile).unwrap();
    token(&policy, &credential).unwrap();
    // What the operator sets anew goes before what rotated.
    policy.set_secret("seed", &Secret::from("not it")).unwrap();
    check_refused(token(&policy, &credential), Code::SecretSourceDenied, Retry::AfterCorrection);
}

/// I-1: a client without a secret shows its id with each refresh (RFC 6749 section 6), and what policy adds
/// to a request is in it as it was written.
#[test]
fn i_1_a_public_client_refreshes_by_its_id() {
    let (_dir, policy) = home();
    let server = TokenServer::start(None, FIRST, Reuse::Ends).unwrap();
    server.set_public();
    server.set_expires_in(Some(0));
    policy.set_secret("seed", &Secret::from(FIRST)).unwrap();
    let params = "params = { audience = \"https://api.test/?a=b c&d\", resource = \"r\" }\n";
    let keys = format!("secret = \"seed\"\ngrant = \"refresh_token\"\n{params}");
    let credential = applied(&policy, "", &client(server.address(), &keys));
    for expected in 1..4 {
        assert_eq!(token(&policy, &credential).unwrap(), format!("canary-access-{expected}"));
    }
    assert_eq!(server.counts(), (3, 0));
    let sent = ["audience", "resource", "client_id", "client_secret", "scope"];
    assert_eq!(
        sent.map(|name| server.parameter(name)),
        [Some("https://api.test/?a=b c&d"), Some("r"), Some(TokenServer::CLIENT), None, None]
            .map(|value| value.map(str::to_owned))
    );
}

/// I-1: a refresh token is shown by one call at a time, whichever credential asks, and whichever policy
/// was in force when it began: a server that ends a reused token's family never has reason to.
#[test]
fn i_1_credentials_that_share_a_refresh_token_take_turns() {
    let (_dir, policy) = home();
    let server = TokenServer::start(None, FIRST, Reuse::Ends).unwrap();
    server.set_expires_in(Some(0));
    let read = by_refresh(&policy, &server);
    let keys =
        "secret = \"seed\"\ngrant = \"refresh_token\"\nclient_secret = \"own\"\nscope = \"w\"\n";
    let write = applied(&policy, "", &client(server.address(), keys));
    assert_ne!(read, write);
    let barrier = std::sync::Barrier::new(20);
    std::thread::scope(|scope| {
        let ask = |credential| {
            barrier.wait();
            token(&policy, credential)
        };
        let threads: Vec<_> = (0..20)
            .map(|n| if n % 2 == 0 { &read } else { &write })
            .map(|c| scope.spawn(move || ask(c)))
            .collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
    let (granted, refused) = server.counts();
    assert_eq!(refused, 0, "a refresh token was shown twice");
    assert!(granted >= 2, "{granted}");
}

/// I-1: a refused token is not sent again, and a service that refuses every token does not make us
/// fetch one for each call.
#[test]
fn i_1_a_refused_token_is_replaced_once() {
    let (_dir, policy) = home();
    let server = TokenServer::start(None, FIRST, Reuse::Ends).unwrap();
    let credential = by_refresh(&policy, &server);
    let bound = policy.bind(&credential);
    let first = token(&policy, &credential).unwrap();
    let before = Instant::now();
    policy.refused(&credential, &bound, before - Duration::from_secs(1));
    assert_eq!(token(&policy, &credential).unwrap(), first, "it was fetched after that call");
    policy.refused(&credential, &bound, Instant::now());
    let second = token(&policy, &credential).unwrap();
    assert_ne!(second, first);
    policy.refused(&credential, &bound, Instant::now());
    assert_eq!(token(&policy, &credential).unwrap(), second);
    assert_eq!(server.counts(), (2, 0));
}

/// X-1 and I-1: a process that is killed between the endpoint's answer and the vault has used nothing
/// of the answer; the next one goes on where the server allows it, or says that it can't.
#[test]
fn x_1_a_kill_between_answer_and_vault_uses_no_token() {
    if let Some(home) = std::env::var_os("AFFIANT_TEST_REFRESHING") {
        let policy = Policy::open(Path::new(&home)).unwrap();
        let (scheme, method) = (Scheme::Https, "GET");
        let action =
            HttpAction { agent: "a", scheme, host: "h.test", port: 443, method, path: "/" };
        let credential = policy.snapshot().http(&action).unwrap().credential.unwrap();
        println!("\nready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let got = token(&policy, &credential);
        // Not reached while the vault can't be written.
        println!("used {got:?}");
        return;
    }
    for reuse in [Reuse::Grace, Reuse::Ends] {
        let (dir, policy) = home();
        let server = TokenServer::start(None, FIRST, reuse).unwrap();
        let credential = by_refresh(&policy, &server);
        let home = dir.path().join("home");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "x_1_a_kill_between_answer_and_vault_uses_no_token", "--nocapture"])
            .env("AFFIANT_TEST_REFRESHING", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        // LMDB has one writer: while this process writes, the other one can't make anything durable.
        let mut options = heed::EnvOpenOptions::new().read_txn_without_tls();
        drop(policy);
        options.map_size(1 << 30).max_dbs(16);
        #[expect(unsafe_code, reason = "memory is mapped; the test's own file is not cut")]
        // SAFETY: nobody truncates the file while it is mapped.
        let environment = unsafe { options.open(home.join("policy")) }.unwrap();
        let writing = environment.write_txn().unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while server.counts() != (1, 0) {
            assert!(Instant::now() < end, "the child never asked");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        assert!(!rest.iter().any(|line| line.contains("used")), "{rest:?}");
        drop(writing);
        drop(environment);
        let policy = Policy::open(&home).unwrap();
        let found = token(&policy, &credential);
        match reuse {
            Reuse::Grace => assert!(server.accepts(&found.unwrap())),
            Reuse::Ends => {
                check_refused(found, Code::SecretSourceDenied, Retry::AfterCorrection);
            }
        }
    }
}

/// I-1: tokens of an installation are minted with the app's key, kept, and asked for by one call.
#[test]
fn i_1_installation_tokens_are_minted_once() {
    const KEY: &str = include_str!("../src/recipe/test-rsa.pem");
    let (_dir, policy) = home();
    let body: String = KEY.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, body).unwrap();
    let pair = ring::rsa::KeyPair::from_pkcs8(&der).or_else(|_| ring::rsa::KeyPair::from_der(&der));
    let public = pair.unwrap().public().as_ref().to_vec();
    let verify = move |signed: &[u8], signature: &[u8]| {
        let algorithm = &ring::signature::RSA_PKCS1_2048_8192_SHA256;
        let key = ring::signature::UnparsedPublicKey::new(algorithm, &public);
        key.verify(signed, signature).is_ok()
    };
    let server = Github::start(Box::new(verify), 3600).unwrap();
    policy.set_secret("app", &Secret::from(KEY)).unwrap();
    let keys = format!(
        "secret = \"app\"\ninject = \"github-app\"\napp_id = \"12345\"\ninstallation_id = 678\n\
         api_url = \"http://{}\"\nrepositories = [\"one\"]\npermissions = {{ contents = \"read\" }}\n",
        server.address()
    );
    let credential = applied(&policy, "", &keys);
    let all = at_once(&policy, &credential, 20);
    assert!(
        all.iter().all(|t| t.as_deref() == Ok("ghs_canary1")),
        "{all:?} {:?}",
        server.refused()
    );
    assert_eq!(server.given(), 1);
    let asked =
        serde_json::json!({ "repositories": ["one"], "permissions": { "contents": "read" } });
    assert_eq!(server.asked(), [asked]);
    let (name, value) = credential.inject.header(&Secret::from("t")).unwrap();
    assert_eq!((name.as_str(), value.expose_text()), ("authorization", Some("Bearer t")));
    // For git over HTTPS the token is a password.
    let git = applied(&policy, "", &format!("{keys}user = \"x-access-token\"\n"));
    let (_, value) = git.inject.header(&Secret::from("t")).unwrap();
    assert_eq!(value.expose_text(), Some("Basic eC1hY2Nlc3MtdG9rZW46dA=="));
    let other = applied(&policy, "", &keys.replace("678", "679"));
    check_refused(token(&policy, &other), Code::SecretSourceDenied, Retry::AfterCorrection);
    policy.set_secret("app", &Secret::from("no key")).unwrap();
    let broken = applied(&policy, "", &keys);
    check_refused(token(&policy, &broken), Code::SecretUnreadable, Retry::AfterCorrection);
}

/// A server of HashiCorp Vault over TLS, and the `[hashicorp]` table for it.
fn hashicorp(dir: &TempDir, login: &str) -> (Hashicorp, String) {
    let authority = Authority::new("vault CA").unwrap();
    let leaf = authority.leaf(&["localhost", "127.0.0.1"]).unwrap();
    let server = Hashicorp::start(Some(leaf.server_config().unwrap())).unwrap();
    let file = dir.path().join("vault-ca.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let table = format!(
        "[hashicorp]\naddress = \"https://localhost:{}\"\nnamespace = \"team\"\nca_file = \"{}\"\n{login}\n",
        server.address().port(),
        file.display()
    );
    (server, table)
}

fn stored(reference: &str) -> String {
    format!("secret = \"vault:{reference}\"\ninject = \"bearer\"\n")
}

/// I-1: values of HashiCorp Vault come by path and field, are kept for a while, and have their codes
/// when they don't come.
#[test]
fn i_1_hashicorp_values_are_read_by_path_and_field() {
    let (dir, policy) = home();
    let file = dir.path().join("token");
    std::fs::write(&file, format!("{}\n", Hashicorp::TOKEN)).unwrap();
    let (server, table) = hashicorp(&dir, &format!("token = \"file:{}\"", file.display()));
    let read = |reference: &str| token(&policy, &applied(&policy, &table, &stored(reference)));
    assert_eq!(read("secret/data/pay#token").as_deref(), Ok("canary-kv-1"));
    assert_eq!(read("secret/data/pay#port").as_deref(), Ok("8443"));
    assert_eq!(read("secret/data/pay#user:{token}@{port}").as_deref(), Ok("user:canary-kv-1@8443"));
    assert_eq!(server.reads(), ["/v1/secret/data/pay"], "one value, read once");
    assert_eq!(read("kv/old#token").as_deref(), Ok("canary-kv-one"));
    check_refused(read("secret/data/pay#more"), Code::SecretUnreadable, Retry::AfterCorrection);
    check_refused(read("secret/data/pay#none"), Code::SecretMissing, Retry::AfterCorrection);
    check_refused(read("secret/data/none#x"), Code::SecretMissing, Retry::AfterCorrection);
    check_refused(read("secret/data/closed#x"), Code::SecretSourceDenied, Retry::AfterCorrection);
    server.set_sealed(true);
    check_refused(read("secret/data/other#x"), Code::SecretSourceFailed, Retry::Backoff);
    // What is at hand goes on while the server is sealed.
    assert_eq!(read("secret/data/pay#token").as_deref(), Ok("canary-kv-1"));
    std::fs::write(&file, "wrong").unwrap();
    server.set_sealed(false);
    check_refused(read("secret/data/new#x"), Code::SecretSourceDenied, Retry::AfterCorrection);
    // Who we are there is not said at all: another fault than a secret that is not there.
    std::fs::remove_file(&file).unwrap();
    check_refused(read("secret/data/later#x"), Code::SecretSourceUnset, Retry::AfterCorrection);
    std::fs::write(&file, Hashicorp::TOKEN).unwrap();
    // Without the CA of its own the server is not trusted.
    let untrusted: String =
        table.lines().filter(|l| !l.starts_with("ca_file")).collect::<Vec<_>>().join("\n");
    let credential = applied(&policy, &format!("{untrusted}\n"), &stored("secret/data/pay#token"));
    check_refused(token(&policy, &credential), Code::SecretSourceFailed, Retry::Backoff);
}

/// I-1: dynamic credentials are leased by one call, renewed while that helps, replaced when not, and
/// given back.
#[test]
fn i_1_hashicorp_leases_are_renewed_and_revoked() {
    let (dir, policy) = home();
    policy.set_secret("role-secret", &Secret::from("role-secret")).unwrap();
    let login = "role_id = \"role\"\nsecret_id = \"role-secret\"";
    let (server, table) = hashicorp(&dir, login);
    let credential = applied(&policy, &table, &stored("database/creds/app#{username}:{password}"));
    let all = at_once(&policy, &credential, 20);
    assert!(all.iter().all(|t| t.as_deref() == Ok("app-1:canary:pass")), "{all:?}");
    assert_eq!((server.reads().len(), server.logins()), (1, 1));
    policy.release_leases();
    assert_eq!(server.leases().1, ["database/creds/app/1"]);

    let until = |what: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(30);
        while !what() {
            assert!(Instant::now() < end, "{:?}", server.leases());
            token(&policy, &credential).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    server.set_lease(1, true);
    assert_eq!(token(&policy, &credential).as_deref(), Ok("app-2:canary:pass"));
    until(&|| server.leases().0.len() >= 2);
    assert_eq!(token(&policy, &credential).as_deref(), Ok("app-2:canary:pass"));
    server.set_lease(1, false);
    until(&|| server.leases().1.len() == 2);
    assert_eq!(server.leases().1, ["database/creds/app/1", "database/creds/app/2"]);
    server.set_lease(3600, false);
    until(&|| server.leases().1.len() == 3);
    assert_eq!(token(&policy, &credential).as_deref(), Ok("app-4:canary:pass"));
    // A login that ended early is made again.
    let logins = server.logins();
    server.end_logins();
    let other = applied(&policy, &table, &stored("kv/old#token"));
    assert_eq!(token(&policy, &other).as_deref(), Ok("canary-kv-one"));
    assert_eq!(server.logins(), logins + 1);
}
