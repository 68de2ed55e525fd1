//! Upstream proxies: the way through them, their credentials, and what their failures prove.

#![allow(clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use base64::Engine as _;
use journal::contract::{Body, InvocationId, PeerIdentity, SetupStage};
use policy::Secret;
use std::path::Path;
use support::parent::Parent;
use support::{Client, Response, SECRET, World};
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::Command;

const PASSWORD: &str = "corp:canary-9b2-parent";

/// Calls that go through the parent: `/echo` of both origins, `/with-credential/echo`, tunnels to
/// `opaque`.
fn routes(url: &str, plain: u16, tls: u16, opaque: u16, more: &str) -> String {
    let terms = "private_addresses = \"allow\"\nparent = \"corp\"\n";
    format!(
        "[[parent]]\nname = \"corp\"\nurl = \"{url}\"\ncredential = \"corp\"\n{more}\n\
         [[credential]]\nid = \"corp\"\nsecret = \"corp\"\ninject = \"basic\"\n\
         [[route]]\nname = \"through-plain\"\nmatch = {{ scheme = \"http\", host = \"127.0.0.1\", \
         port = {plain}, path = \"/echo\" }}\n{terms}\
         [[route]]\nname = \"through-tls\"\nmatch = {{ host = \"localhost\", port = {tls}, \
         path = \"/echo\" }}\n{terms}\
         [[route]]\nname = \"through-status\"\nmatch = {{ host = \"localhost\", port = {tls}, \
         path = \"/status/407\" }}\n{terms}\
         [[route]]\nname = \"through-credential\"\nmatch = {{ host = \"localhost\", port = {tls}, \
         path = \"/with-credential/echo\" }}\ncredential = \"pay\"\n{terms}\
         [[route]]\nname = \"through-opaque\"\nmatch = {{ host = \"127.0.0.1\", port = {opaque} }}\n\
         intercept = false\n{terms}"
    )
}

async fn world(url: &str, opaque: u16, more: &str) -> World {
    let world = World::with(
        |plain, tls| routes(url, plain.address.port(), tls.address.port(), opaque, more),
        proxy::Options::default(),
    )
    .await;
    world.policy.set_secret("corp", &Secret::from(PASSWORD)).expect("secret");
    world
}

async fn secure(world: &World, method: &str, path: &str, content: &str) -> Response {
    let mut client = world.tunnel().await;
    client.send(&world.secure_request(method, path, "", content)).await;
    client.response(method).await
}

fn notes(world: &World, id: InvocationId, name: &str) -> Vec<String> {
    let events = world.journal.events(id).expect("events");
    let note = |body| {
        if let Body::Noted(noted) = body { Some(noted) } else { None }
    };
    let noted = events.into_iter().filter_map(|(_, event)| note(event.body));
    noted.filter(|noted| noted.name == name).map(|noted| noted.detail).collect()
}

fn basic() -> String {
    base64::engine::general_purpose::STANDARD.encode(PASSWORD)
}

/// In clear text the parent is asked in absolute form; to a TLS origin there is a tunnel through it,
/// in which the origin proves itself. The parent's credential reaches the parent alone.
#[tokio::test(flavor = "multi_thread")]
async fn c_5_calls_through_a_parent() {
    let directory = tempfile::tempdir().expect("directory");
    for parent in [Parent::plain(None).await, Parent::tls(directory.path()).await] {
        let scheme = if parent.ca_file.is_some() { "https" } else { "http" };
        let more = parent.ca_file.as_ref().map_or(String::new(), |file| {
            format!("[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{}\"", file.display())
        });
        let world = world(&format!("{scheme}://{}", parent.address), 1, &more).await;
        let address = world.origin.address;
        let answer = world.plain("POST", "/echo", "", "content").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.text().ends_with("content"));
        let asked = &parent.heads()[0];
        assert!(asked.starts_with(&format!("POST http://{address}/echo HTTP/1.1\r\n")), "{asked}");
        assert!(asked.contains(&format!("Proxy-Authorization: Basic {}\r\n", basic())), "{asked}");
        let hop = format!("next-hop=\"{}\"", parent.address);
        assert!(answer.field("proxy-status").contains(&hop), "{answer:?}");
        let told = notes(&world, answer.id(), "parent");
        assert_eq!(told, [format!("corp: {scheme}://{}, credential corp v1", parent.address)]);

        let answer = secure(&world, "POST", "/echo", "content").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let asked = parent.heads()[1].clone();
        let port = world.secure.address.port();
        assert!(asked.starts_with(&format!("CONNECT localhost:{port} HTTP/1.1\r\n")), "{asked}");
        assert!(!world.secure.last_head().contains("Proxy-Authorization"));
        let evidence = world.invocation(answer.id()).await.evidence();
        let Some(PeerIdentity::Tls { name, .. }) = evidence.peer else { panic!("no TLS") };
        assert_eq!(name, "localhost");
        assert_eq!(evidence.attempts.last().expect("a try").stage, SetupStage::TlsHandshake);

        let answer = secure(&world, "POST", "/with-credential/echo", "").await;
        assert!(world.secure.last_head().contains(SECRET), "{answer:?}");
        assert!(!answer.text().contains(SECRET));
        assert!(parent.heads().iter().all(|head| !head.contains(SECRET)));
        assert_eq!(world.files_with("canary-9b2"), Vec::<std::path::PathBuf>::new());
        assert_eq!(world.files_with(&basic()), Vec::<std::path::PathBuf>::new());
        // What no route sends through it goes past it.
        assert_eq!(secure(&world, "GET", "/ok", "").await.text(), "ok");
        assert_eq!(parent.heads().len(), 3);
    }
}

/// `no_proxy`: what is listed goes past the parent.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_listed_goes_past_the_parent() {
    let parent = Parent::plain(None).await;
    let more = "no_proxy = [\"127.0.0.0/8\"]";
    let world = world(&format!("http://{}", parent.address), 1, more).await;
    assert_eq!(world.plain("POST", "/echo", "", "x").await.status, 200);
    assert_eq!(parent.heads().len(), 0);
    assert_eq!(secure(&world, "POST", "/echo", "x").await.status, 200);
    assert_eq!(parent.heads().len(), 1);
}

/// C-1, C-8: a parent that opens no tunnel: nothing was sent, its own words stand before ours, and
/// the hop is named. A challenge of the parent is not passed on as one of ours.
#[tokio::test(flavor = "multi_thread")]
async fn c_8_a_parent_that_opens_no_tunnel() {
    for (script, error, retry, earlier) in [
        (
            "HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm=\"corp\"\r\nContent-Length: 0\r\n\r\n",
            "proxy_configuration_error;next-hop=\"HOP\";received-status=407",
            "after_correction",
            "",
        ),
        (
            "HTTP/1.1 502 Bad\r\nProxy-Status: far, near; error=connection_refused\r\n\
             Proxy-Status: corp\r\nContent-Length: 0\r\n\r\n",
            "destination_unavailable;next-hop=\"HOP\";received-status=502",
            "backoff",
            "far, near; error=connection_refused, corp, ",
        ),
        ("SSH-2.0-x\r\n\r\n", "destination_unavailable;next-hop=\"HOP\"", "after_correction", ""),
    ] {
        let parent = Parent::plain(Some(script)).await;
        let world = world(&format!("http://{}", parent.address), 1, "").await;
        let answer = secure(&world, "POST", "/echo", "x").await;
        assert_eq!(answer.status, 502, "{answer:?}");
        let expected =
            format!("{earlier}affiant;error={}", error.replace("HOP", &parent.address.to_string()));
        let said = answer.field("proxy-status");
        assert!(said.starts_with(&expected), "{said}\n{expected}");
        assert!(answer.all("proxy-authenticate").is_empty());
        let facts = answer.facts();
        assert_eq!(facts, ["PROXY_TUNNEL_REFUSED", "connection_setup", "not_attempted", retry]);
        let evidence = world.invocation(answer.id()).await.evidence();
        let last = evidence.attempts.last().expect("a try");
        let hop = parent.address.to_string();
        assert_eq!(
            (last.stage, last.address.as_deref()),
            (SetupStage::ProxyTunnel, Some(hop.as_str()))
        );
        assert_eq!(world.secure.all_effects(), 0);
    }
}

/// C-8: in clear text a hop's account of its own failure settles nothing of the origin, unless its
/// type proves that nothing was forwarded. The account is passed on with its hops in order.
#[tokio::test(flavor = "multi_thread")]
async fn c_8_a_failure_of_a_hop_is_not_the_origins() {
    for (status, said, outcome, retry, code) in [
        (
            502,
            "corp; error=connection_terminated",
            "unknown",
            "reconcile",
            "REMOTE_OUTCOME_UNKNOWN",
        ),
        (502, "corp; error=connection_refused", "rejected", "backoff", "REMOTE_NOT_PROCESSED"),
        (
            403,
            "corp; error=http_request_denied",
            "rejected",
            "after_correction",
            "REMOTE_NOT_PROCESSED",
        ),
        (502, "corp; received-status=502", "committed", "never", "REMOTE_FAILED"),
    ] {
        let script =
            format!("HTTP/1.1 {status} X\r\nProxy-Status: {said}\r\nContent-Length: 4\r\n\r\nbody");
        let parent = Parent::plain(Some(script.leak())).await;
        let world = world(&format!("http://{}", parent.address), 1, "").await;
        let answer = world.plain("POST", "/echo", "", "x").await;
        assert_eq!((answer.status, answer.text().as_str()), (status, "body"));
        assert!(answer.outcome().starts_with(&format!("{outcome};")), "{}", answer.outcome());
        let all = answer.all("proxy-status");
        assert_eq!(all[0], said);
        assert!(all[1].contains(&format!("received-status={status}")), "{all:?}");
        let verdict = world.invocation(answer.id()).await.verdict();
        let facts = [verdict.outcome().as_str(), verdict.code().as_str()];
        assert_eq!(facts, [outcome, code], "{said}");
        assert!(answer.outcome().contains(&format!("retry={retry};")), "{}", answer.outcome());
        let noted = notes(&world, answer.id(), "hop_failed");
        assert_eq!(noted.len(), usize::from(outcome != "committed"), "{said}");
    }
}

/// C-8: a parent that wants another credential forwarded nothing; the caller is not asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn c_8_a_challenge_of_the_parent_stays_with_the_operator() {
    let script = "HTTP/1.1 407 Auth\r\nProxy-Authenticate: Basic realm=\"corp\"\r\nContent-Length: 3\r\n\r\nwho";
    let parent = Parent::plain(Some(script)).await;
    let world = world(&format!("http://{}", parent.address), 1, "").await;
    let answer = world.plain("POST", "/echo", "", "x").await;
    assert_eq!(answer.status, 502);
    assert!(answer.all("proxy-authenticate").is_empty());
    assert_eq!(
        answer.facts(),
        ["REMOTE_NOT_PROCESSED", "remote_execution", "rejected", "after_correction"]
    );
    let said = answer.field("proxy-status");
    assert!(said.starts_with("affiant;error=proxy_configuration_error;"), "{said}");
}

/// C-8, S-3: inside of TLS a 407 is the origin's own refusal, whatever it means by it: the parent can't
/// have written it.
#[tokio::test(flavor = "multi_thread")]
async fn c_8_a_407_inside_of_tls_is_the_origins() {
    let parent = Parent::plain(None).await;
    let world = world(&format!("http://{}", parent.address), 1, "").await;
    let answer = secure(&world, "POST", "/status/407", "x").await;
    assert_eq!((answer.status, answer.text().as_str()), (407, "body"), "{answer:?}");
    let verdict = world.invocation(answer.id()).await.verdict();
    let facts = [verdict.outcome().as_str(), verdict.code().as_str(), verdict.retry().as_str()];
    assert_eq!(facts, ["rejected", "REMOTE_REJECTED", "after_correction"]);
    assert!(answer.field("proxy-status").contains("received-status=407"), "{}", answer.head);
    assert_eq!(world.secure.effects("/status/407"), 1);
    assert_eq!(parent.heads().len(), 1);
}

/// I-4: what the parent was shown does not reach the agent by what the parent says of itself.
#[tokio::test(flavor = "multi_thread")]
async fn i_4_a_parent_that_echoes_its_credential() {
    let shown = basic();
    let script = format!(
        "HTTP/1.1 403 No\r\nProxy-Status: corp; details=\"Basic {shown} of {PASSWORD}\"\r\n\
         Content-Length: 0\r\n\r\n"
    );
    let parent = Parent::plain(Some(script.leak())).await;
    let world = world(&format!("http://{}", parent.address), 1, "").await;
    let answer = secure(&world, "POST", "/echo", "x").await;
    assert_eq!(answer.status, 502, "{answer:?}");
    let said = answer.field("proxy-status");
    assert!(said.starts_with("corp; details=\"*****"), "{said}");
    for secret in [&shown, PASSWORD, "canary-9b2-parent"] {
        assert!(
            !answer.head.contains(secret) && !answer.text().contains(secret),
            "{secret} {said}"
        );
    }
    assert_eq!(world.files_with(&shown), Vec::<std::path::PathBuf>::new());
}

/// V-2: where it is the parent that can't be reached, the message says so and not that it is the origin.
#[tokio::test(flavor = "multi_thread")]
async fn v_2_a_parent_that_is_down_is_named() {
    // Held, and nobody listens on it.
    let held = TcpSocket::new_v4().expect("socket");
    held.bind("127.0.0.1:0".parse().expect("address")).expect("bound");
    let address = held.local_addr().expect("address");
    let world = world(&format!("http://{address}"), 1, "").await;
    let answer = world.plain("POST", "/echo", "", "x").await;
    assert_eq!(answer.facts()[..3], ["CONNECTION_REFUSED", "connection_setup", "not_attempted"]);
    let message = answer.json()["error"]["message"].clone();
    let what = format!("The upstream proxy {address} could not be connected to");
    assert_eq!(message, format!("{what}; nothing was sent."));
}

/// I-1: a credential for the parent that can't be had stops the call before anything is dialled.
#[tokio::test(flavor = "multi_thread")]
async fn i_1_a_credential_for_the_parent_that_is_missing() {
    let parent = Parent::plain(None).await;
    let world = world(&format!("http://{}", parent.address), 1, "").await;
    world.policy.remove_secret("corp").expect("removed");
    let answer = world.plain("POST", "/echo", "", "x").await;
    assert_eq!(answer.facts()[..3], ["SECRET_MISSING", "credential_injection", "not_attempted"]);
    assert_eq!(parent.heads().len(), 0);
}

/// A tunnel that is left alone goes through the parent, too, and bytes right behind the parent's
/// answer belong to it.
#[tokio::test(flavor = "multi_thread")]
async fn tunnels_that_are_left_alone_go_through_the_parent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
    let port = listener.local_addr().expect("address").port();
    let parent = Parent::plain(Some("HTTP/1.1 200 Yes\r\n\r\nearly")).await;
    let world = world(&format!("http://{}", parent.address), port, "").await;
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client
        .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    assert_eq!(client.take(5).await, b"early");
    assert!(parent.heads()[0].starts_with(&format!("CONNECT 127.0.0.1:{port} ")));
}

/// tinyproxy, with a password.
struct Tiny {
    child: tokio::process::Child,
    port: u16,
}

impl Tiny {
    async fn start(directory: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = free.local_addr().expect("address").port();
        drop(free);
        let (user, password) = PASSWORD.split_once(':').expect("two parts");
        let text = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nAllow 127.0.0.1\nBasicAuth {user} {password}\n"
        );
        let file = directory.join("tinyproxy.conf");
        std::fs::write(&file, text).expect("file");
        let child = Command::new("tinyproxy")
            .arg("-d")
            .arg("-c")
            .arg(&file)
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("tinyproxy: `./dev test` installs it");
        let until = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(tokio::time::Instant::now() < until, "tinyproxy does not listen");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        Self { child, port }
    }
}

/// Through a real proxy that asks for a password, both ways; a wrong one is the operator's to correct.
#[tokio::test(flavor = "multi_thread")]
async fn through_tinyproxy() {
    let directory = tempfile::tempdir().expect("directory");
    let mut tiny = Tiny::start(directory.path()).await;
    let world = world(&format!("http://127.0.0.1:{}", tiny.port), 1, "").await;
    let answer = world.plain("POST", "/echo", "", "content").await;
    assert_eq!((answer.status, answer.text().ends_with("content")), (200, true), "{answer:?}");
    let answer = secure(&world, "POST", "/echo", "content").await;
    assert_eq!((answer.status, answer.text().ends_with("content")), (200, true), "{answer:?}");
    world.policy.set_secret("corp", &Secret::from("corp:another-word")).expect("secret");
    let answer = secure(&world, "POST", "/echo", "again").await;
    assert_eq!(answer.status, 502, "{answer:?}");
    let said = answer.field("proxy-status");
    assert!(said.starts_with("affiant;error=proxy_configuration_error;"), "{said}");
    // Some say 401 and mean 407.
    assert!(said.contains(";received-status=401"), "{said}");
    assert_eq!((world.origin.effects("/echo"), world.secure.effects("/echo")), (1, 1));
    tiny.child.kill().await.expect("ended");
}

/// C-8, S-6: 502 and 504 of a parent in clear text are its own words, with or without a member of
/// `Proxy-Status`: the outcome stays open. Where it says that the origin sent them, they are the origin's.
#[tokio::test(flavor = "multi_thread")]
async fn c_8_a_parents_own_502_and_504_leave_the_outcome_open() {
    for (script, status, outcome, code) in [
        (
            "HTTP/1.1 504 Gateway Timeout\r\nX-Squid-Error: ERR_CONNECT_FAIL 111\r\nContent-Length: 4\r\n\r\nlost",
            504,
            "unknown",
            "REMOTE_OUTCOME_UNKNOWN",
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nlost",
            502,
            "unknown",
            "REMOTE_OUTCOME_UNKNOWN",
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\nProxy-Status: squid; received-status=502\r\n\
             Content-Length: 4\r\n\r\nlost",
            502,
            "committed",
            "REMOTE_FAILED",
        ),
        ("HTTP/1.1 500 Error\r\nContent-Length: 4\r\n\r\nlost", 500, "committed", "REMOTE_FAILED"),
    ] {
        let parent = Parent::plain(Some(script)).await;
        let world = world(&format!("http://{}", parent.address), 1, "").await;
        let answer = world.plain("POST", "/echo", "", "content").await;
        assert_eq!((answer.status, answer.text().as_str()), (status, "lost"), "{script}");
        assert!(answer.outcome().starts_with(&format!("{outcome};")), "{answer:?}");
        let verdict = world.invocation(answer.id()).await.verdict();
        assert_eq!(verdict.code().as_str(), code, "{script}");
        assert_eq!(world.origin.all_effects(), 0);
    }
}
