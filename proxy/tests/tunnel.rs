//! CONNECT, interception, and what must agree inside of it.

#![allow(clippy::indexing_slicing, reason = "tests")]

mod support;

use support::{Client, World};

/// C-5: the verified identity of the origin is on record; requests on one tunnel share an upstream
/// connection.
#[tokio::test]
async fn c_5_a_tunnel_carries_calls_with_a_verified_peer() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    for n in 0..3 {
        client.send(&world.secure_request("GET", "/ok", "", "")).await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "{response:?}");
        let evidence = world.invocation(response.id()).await.evidence();
        let peer = serde_json::to_value(evidence.peer).expect("JSON");
        assert_eq!(peer["kind"], "tls");
        assert_eq!(peer["name"], "localhost");
        assert_eq!(evidence.connection_reused, Some(n > 0));
        world.events(response.id(), "RESULT_DELIVERED").await;
        assert!(world.secure.last_head().starts_with("GET /ok HTTP/1.1\r\nHost: localhost:"));
    }
    assert_eq!(world.secure.connections(), 1);
}

/// E-4: the answer that opens a tunnel to be looked into is the broker's own and has no outcome, as the tunnel
/// is no invocation; nor has it fields of framing (RFC 9110 section 9.3.6).
#[tokio::test]
async fn e_4_the_answer_to_connect_has_no_outcome() {
    let world = World::new().await;
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    // A length of nothing is no content.
    let credentials = world.credentials() + "Content-Length: 0\r\n";
    client
        .send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    let opened = client.response("CONNECT").await;
    assert_eq!(opened.head, "HTTP/1.1 200 Connection Established\nProxy-Status: affiant\n");
    let mut client = client.into_tls(world.ca.certificate_pem(), "localhost").await;
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(client.response("GET").await.status, 200);
    assert_eq!(world.secure.connections(), 1);
}

/// Host, target and server name must be the tunnel's.
#[tokio::test]
async fn v_1_another_authority_inside_the_tunnel_is_421() {
    let world = World::new().await;
    let port = world.secure.address.port();
    for (target, host, field) in [
        ("/ok", "other.example".to_owned(), "request.headers.host"),
        ("/ok", format!("localhost:{}", port - 1), "request.headers.host"),
        ("/ok", "localhost".to_owned(), "request.headers.host"),
        ("https://other.example/ok", format!("localhost:{port}"), "request.target"),
        ("http://localhost/ok", format!("localhost:{port}"), "request.target"),
    ] {
        let mut client = world.tunnel().await;
        client.send(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        let response = client.response("GET").await;
        assert_eq!(response.status, 421, "{target} {host}");
        assert_eq!(response.json()["error"]["field"], field, "{target} {host}");
        let recorded = world.invocation(response.id()).await;
        assert_eq!(recorded.accepted().target, format!("https://localhost:{port}"));
        assert_eq!(
            response.facts(),
            ["AUTHORITY_MISMATCH", "validation", "not_attempted", "after_correction"]
        );
    }
    assert_eq!(world.secure.all_effects(), 0);
    let mut client = world.tunnel().await;
    client.send(&format!("GET /ok HTTP/1.1\r\nHost: LOCALHOST.:{port}\r\n\r\n")).await;
    assert_eq!(client.response("GET").await.status, 200);
}

/// A ClientHello that comes in the same write as CONNECT is not lost, and a refused CONNECT leaves
/// the connection usable.
#[tokio::test]
async fn refused_tunnels_keep_the_connection() {
    let world = World::new().await;
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    client.send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    assert_eq!(client.response("GET").await.status, 407);
    let credentials = world.credentials();
    client.send(&format!("CONNECT localhost:1 HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
    let refused = client.response("GET").await;
    assert_eq!(refused.status, 403);
    let recorded = world.invocation(refused.id()).await;
    assert_eq!(recorded.accepted().action, "CONNECT");
    assert_eq!(recorded.accepted().target, "https://localhost:1");
    client
        .send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let mut client = client.into_tls(world.ca.certificate_pem(), "localhost").await;
    // Inside of a tunnel there is no second one.
    let inner = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
    client.send(&inner).await;
    let refused = client.response("GET").await;
    assert_eq!((refused.status, refused.facts()[0].as_str()), (501, "UNSUPPORTED_ACTION"));
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(client.response("GET").await.status, 200);
}

/// V-1: HTTP/2 in clear text, with prior knowledge, is refused by its name, with the tunnel's target.
#[tokio::test]
async fn v_1_clear_text_http2_in_a_tunnel_is_refused_by_name() {
    let world = World::new().await;
    let address = world.origin.address;
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client.send(&format!("CONNECT {address} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let refused = client.response("GET").await;
    assert_eq!((refused.status, refused.facts()[0].as_str()), (400, "INVALID_REQUEST"));
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("HTTP/2 without TLS"), "{message}");
    let recorded = world.invocation(refused.id()).await;
    assert_eq!(recorded.accepted().target, format!("http://{address}"));
}

/// Policy and agent are judged per request, on kept tunnels as well.
#[tokio::test]
async fn v_5_a_kept_tunnel_sees_a_new_policy_at_once() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    let first = client.response("GET").await;
    assert_eq!(first.status, 200);
    world.policy.apply("", "empty.toml", "test").expect("applied");
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(client.response("GET").await.facts()[0], "TARGET_NOT_ALLOWED");
    let text = support::policy_text(&world.origin, &world.secure, "");
    let version = world.policy.apply(&text, "policy.toml", "test").expect("applied");
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    let again = client.response("GET").await;
    assert_eq!(again.status, 200);
    let preflight = world.invocation(again.id()).await.preflight().cloned().expect("preflight");
    assert_eq!(preflight.policy_version, version);
    world.policy.remove_agent("coder").expect("removed");
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    assert_eq!(client.response("GET").await.facts()[0], "AGENT_UNAUTHENTICATED");
}

/// I-4: a credential that comes back in pieces of a stream does not pass.
#[tokio::test]
async fn i_4_a_secret_split_over_chunks_is_redacted() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/with-credential/echo-split", "", "")).await;
    let response = client.response("GET").await;
    let stars = "*".repeat("Bearer ".len() + support::SECRET.len());
    assert!(response.text().ends_with(&stars), "{}", response.text());
    assert!(world.invocation(response.id()).await.evidence().redacted);
}

/// V-1, RFC 6066 section 3: a dot at the end of a name is the caller's way to write it: `Host` keeps it, the
/// server name and the certificate have none, and policy sees one name.
#[tokio::test]
async fn v_1_a_dot_at_the_end_stays_in_host() {
    let world = World::new().await;
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client
        .send(&format!("CONNECT localhost.:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let mut client = client.into_tls(world.ca.certificate_pem(), "localhost").await;
    client.send(&format!("GET /ok HTTP/1.1\r\nHost: localhost.:{port}\r\n\r\n")).await;
    let answer = client.response("GET").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "{answer:?}");
    assert!(world.secure.last_head().contains(&format!("\r\nHost: localhost.:{port}\r\n")));
    assert_eq!(world.secure.peer.server_names(), ["localhost"]);
}

/// V-1: one identity, whichever way it is shown: in CONNECT or with a request in absolute form, as Basic
/// or as Bearer; a wrong one is none either way.
#[tokio::test]
async fn v_1_one_identity_for_both_ways() {
    let world = World::new().await;
    let basic = world.credentials();
    let bearer = |token: &str| format!("Proxy-Authorization: Bearer {token}\r\n");
    for (credentials, good) in
        [(basic, true), (bearer(&world.token), true), (bearer("afft_wrong"), false)]
    {
        let port = world.secure.address.port();
        let mut client = Client::connect(world.address).await;
        client
            .send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
            .await;
        let method = if good { "CONNECT" } else { "GET" };
        let status = if good { 200 } else { 407 };
        assert_eq!(client.response(method).await.status, status, "{credentials}");
        let url = world.plain_url("/ok");
        let mut client = Client::connect(world.address).await;
        client.send(&format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
        let answer = client.response("GET").await;
        assert_eq!(answer.status, status, "{credentials}");
        if !good {
            // Not that none was shown: that would send the caller looking in the wrong place.
            let message = answer.json()["error"]["message"].to_string();
            assert!(message.contains("is not known, or its access has ended"), "{message}");
        }
    }
    assert_eq!(world.origin.effects("/ok"), 2);
}

/// C-5: some origins log a connection in, not a request, so that two agents never share one.
#[tokio::test]
async fn c_5_connections_are_not_shared_between_agents() {
    let route = |port: u16| {
        format!(
            "[[route]]\nname = \"other\"\nagents = [\"other\"]\nprivate_addresses = \"allow\"\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port} }}\n"
        )
    };
    let world =
        World::with(|origin, _| route(origin.address.port()), proxy::Options::default()).await;
    let token = world.policy.add_agent("other").expect("agent");
    let bearer = format!("Proxy-Authorization: Bearer {}\r\n", token.expose_text().expect("text"));
    for n in 0..4 {
        let own = world.plain_request("GET", "/ok", "", "");
        let request = if n % 2 == 0 { own } else { own.replace(&world.credentials(), &bearer) };
        let mut client = Client::connect(world.address).await;
        client.send(&request).await;
        let answer = client.response("GET").await;
        assert_eq!(answer.status, 200);
        // By then the origin's connection is free again.
        world.events(answer.id(), "RESULT_DELIVERED").await;
    }
    assert_eq!((world.origin.connections(), world.origin.effects("/ok")), (2, 4));
}

/// S-6, C-5: a file of trusted certificates that changes takes the connections with it that were verified
/// by what it held.
#[tokio::test]
async fn s_6_a_changed_trust_file_is_another_trust() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    for _ in 0..2 {
        client.send(&world.secure_request("GET", "/ok", "", "")).await;
        assert_eq!(client.response("GET").await.status, 200);
    }
    assert_eq!(world.secure.connections(), 1);
    let file = world.secure.ca_file.as_ref().expect("a file");
    std::fs::write(file, world.ca.certificate_pem()).expect("another authority");
    client.send(&world.secure_request("GET", "/ok", "", "")).await;
    let refused = client.response("GET").await;
    let facts = ["TLS_CERTIFICATE_ERROR", "connection_setup", "not_attempted", "after_correction"];
    assert_eq!(refused.facts(), facts);
    assert_eq!(world.secure.effects("/ok"), 2);
}

/// I-2, C-5: the same credential for two hosts is two connections, and each call reaches its own.
#[tokio::test]
async fn i_2_connections_are_not_shared_between_hosts() {
    let directory = tempfile::tempdir().expect("directory");
    let other = support::http2::Http2Origin::start(directory.path(), &[b"http/1.1"]).await;
    let routes = other.routes();
    let world = World::with(|_, _| routes, proxy::Options::default()).await;
    let mut client = world.tunnel().await;
    let port = other.address.port();
    let mut second = Client::connect(world.address).await;
    let credentials = world.credentials();
    second
        .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(second.response("CONNECT").await.status, 200);
    let mut second = second.into_tls(world.ca.certificate_pem(), "127.0.0.1").await;
    let path = "/with-credential/ok";
    for n in 1..=3 {
        client.send(&world.secure_request("GET", path, "", "")).await;
        assert_eq!(client.response("GET").await.status, 200);
        second.send(&format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).await;
        assert_eq!(second.response("GET").await.status, 200);
        assert_eq!((world.secure.effects(path), other.http11.effects(path)), (n, n));
        assert_eq!((world.secure.connections(), other.http11.connections()), (1, 1));
        let head = other.http11.last_head();
        assert!(head.contains(&format!("Host: 127.0.0.1:{port}\r\n")), "{head}");
    }
}

/// I-2: another credential, another connection.
#[tokio::test]
async fn i_2_connections_are_not_shared_between_credentials() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    for path in ["/ok", "/with-credential/ok", "/ok", "/with-credential/ok"] {
        client.send(&world.secure_request("GET", path, "", "")).await;
        assert_eq!(client.response("GET").await.status, 200);
    }
    assert_eq!(world.secure.connections(), 2);
}

/// The control API answers through the proxy, for agents only, and leaves no record.
#[tokio::test]
async fn control_is_reached_through_the_proxy() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let url = "http://affiant.internal/v1/health?x=1";
    client.send(&format!("GET {url} HTTP/1.1\r\nHost: affiant.internal\r\n\r\n")).await;
    assert_eq!(client.response("GET").await.status, 407);
    let before = world.newest().id();
    let credentials = world.credentials();
    client
        .send(&format!("GET {url} HTTP/1.1\r\nHost: affiant.internal\r\n{credentials}\r\n"))
        .await;
    let response = client.response("GET").await;
    assert_eq!(response.text(), "coder GET /v1/health?x=1");
    assert_eq!(world.newest().id(), before);
}

/// Shutdown lets a call end, answers it, and closes.
#[tokio::test]
async fn shutdown_drains() {
    let world = World::new().await;
    let mut idle = Client::connect(world.address).await;
    let mut busy = Client::connect(world.address).await;
    busy.send(&world.plain_request("POST", "/gate", "", "x")).await;
    world.origin.reached("/gate", 1).await;
    world.shut_down();
    assert!(idle.ends().await);
    world.origin.open_gate();
    assert_eq!(busy.response("POST").await.text(), "ok");
    assert!(busy.ends().await);
}

/// S-2: without a length the end of TLS must be orderly; a mere close of the connection is a cut.
#[tokio::test]
async fn s_2_an_end_without_close_notify_is_a_cut() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    client.send(&world.secure_request("GET", "/no-length", "", "")).await;
    let response = client.response("GET").await;
    assert_eq!((response.status, response.text().as_str()), (200, "all there is"));
    client.send(&world.secure_request("GET", "/abrupt", "", "")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 502);
    assert_eq!(
        response.facts(),
        ["REMOTE_RESULT_INCOMPLETE", "remote_execution", "unknown", "backoff"]
    );
    assert_eq!(world.secure.effects("/abrupt"), 1);
}

/// A client that asks the handshake for another name than the tunnel's gets no call through.
#[tokio::test]
async fn v_1_another_server_name_is_421() {
    let world = World::by_address().await;
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    let credentials = world.credentials();
    client
        .send(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    let mut client = client.into_any_tls("localhost").await;
    client.send(&format!("GET /ok HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 421);
    assert_eq!(response.json()["error"]["field"], "tls.server_name");
    assert_eq!(world.secure.all_effects(), 0);
}

/// Clients that tunnel everything speak clear text inside: judged as such, recorded as such.
#[tokio::test]
async fn clear_text_inside_a_tunnel_is_http() {
    let world = World::new().await;
    let address = world.origin.address;
    let credentials = world.credentials();
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    client.send(&format!("GET /ok?q HTTP/1.1\r\nHost: {address}\r\n\r\n")).await;
    let response = client.response("GET").await;
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    let recorded = world.invocation(response.id()).await;
    assert_eq!(recorded.accepted().target, format!("http://{address}/ok"));
    client.send("GET /ok HTTP/1.1\r\nHost: other.example\r\n\r\n").await;
    assert_eq!(client.response("GET").await.status, 421);
    // TLS is what the route of the other origin asks for; clear text does not match it.
    let port = world.secure.address.port();
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
        .await;
    assert_eq!(client.response("CONNECT").await.status, 200);
    client.send(&format!("GET /ok HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n")).await;
    assert_eq!(client.response("GET").await.facts()[0], "TARGET_NOT_ALLOWED");
    assert_eq!(world.secure.all_effects(), 0);
}

/// Clients that leave TLS to the proxy send `https` in absolute form; the origin's identity is
/// verified all the same, and its trust is policy's.
#[tokio::test]
async fn https_in_absolute_form_is_carried() {
    let world = World::new().await;
    let credentials = world.credentials();
    let url = world.secure_url("/with-credential/ok");
    let mut client = Client::connect(world.address).await;
    client.send(&format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
    let response = client.response("GET").await;
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    let peer = world.invocation(response.id()).await.evidence().peer;
    assert_eq!(serde_json::to_value(peer).expect("JSON")["name"], "localhost");
    assert!(world.secure.last_head().contains(&format!("Bearer {}", support::SECRET)));
    let port = world.secure.address.port();
    assert!(world.secure.last_head().contains(&format!("\r\nHost: localhost:{port}\r\n")));
    assert!(!world.secure.last_head().to_ascii_lowercase().contains("proxy-authorization"));
}
