//! Hostile and malformed bytes: refused before dispatch, with a code, a field and a record.

#![allow(clippy::indexing_slicing, reason = "tests")]

mod support;

#[path = "strict/framing.rs"]
mod framing;

use support::{Client, World};

async fn check(world: &World, bytes: &[u8], status: u16, code: &str, field: &str) {
    let shown = String::from_utf8_lossy(bytes).into_owned();
    let before = world.origin.all_effects();
    let mut client = Client::connect(world.address).await;
    client.send_bytes(bytes).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, status, "{shown:?} {response:?}");
    let json = response.json();
    assert_eq!(json["error"]["code"], code, "{shown:?}");
    assert_eq!(json["error"]["field"], field, "{shown:?}");
    assert_eq!(json["error"]["phase"], "validation", "{shown:?}");
    assert_eq!(json["error"]["outcome"], "not_attempted", "{shown:?}");
    assert_eq!(json["error"]["retry"], "after_correction", "{shown:?}");
    assert_eq!(json["status"], status, "{shown:?}");
    assert_eq!(response.field("content-type"), "application/problem+json");
    let recorded = world.invocation(response.id()).await;
    assert_eq!(recorded.verdict().code().as_str(), code, "{shown:?}");
    assert_eq!(world.origin.all_effects(), before, "{shown:?}");
}

/// V-1, V-2: targets.
#[tokio::test]
async fn v_1_malformed_targets_are_refused() {
    let world = World::new().await;
    let credentials = world.credentials();
    let port = world.origin.address.port();
    for target in [
        "/ok".to_owned(),
        "*".to_owned(),
        format!("http://user:pass@127.0.0.1:{port}/ok"),
        format!("ftp://127.0.0.1:{port}/ok"),
        "http:///ok".to_owned(),
        "http://127.0.0.1:99999/ok".to_owned(),
        format!("http://0x7f.0.0.1:{port}/ok"),
        format!("http://2130706433:{port}/ok"),
        format!("http://[::ffff:127.0.0.1]:{port}/ok"),
        format!("http://[::ffff:7f00:1]:{port}/ok"),
        format!("http://127.0.0.1:{port}/%zz"),
        "http://[::1/ok".to_owned(),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        check(&world, text.as_bytes(), 400, "INVALID_TARGET", "request.target").await;
        assert!(!world.newest().accepted().target.contains("pass"));
    }
    let text = format!("CONNECT localhost HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    check(&world, text.as_bytes(), 400, "INVALID_TARGET", "request.target").await;
    let text = format!("CONNECT u:p@localhost:1 HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    check(&world, text.as_bytes(), 400, "INVALID_TARGET", "request.target").await;
    // I-2: whatever else is wrong with it, a password in a target is on no record.
    let text = "CONNECT bob:hunter2@localhost:1 HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut client = Client::connect(world.address).await;
    client.send(text).await;
    let response = client.response("CONNECT").await;
    assert_eq!(response.status, 407);
    assert_eq!(world.invocation(response.id()).await.accepted().target, "");
}

/// V-1: `Host` names one authority in every request but those of HTTP/1.0, whatever the target says and also
/// where it opens a tunnel (RFC 9112 section 3.2). One that differs from the target's gives way to it.
#[tokio::test]
async fn v_1_host_is_one_authority() {
    let world = World::new().await;
    let credentials = world.credentials();
    let (url, port) = (world.plain_url("/ok"), world.secure.address.port());
    let requests = [format!("GET {url}"), format!("CONNECT localhost:{port}")];
    for request in &requests {
        for host in [
            "Host: a b/%%\r\n",
            "Host: 127.0.0.1:9001, other.test\r\n",
            "Host: \r\n",
            "Host: \u{ff}\u{fe}\r\n",
            "Host: other.test:99999\r\n",
            "Host: other.test/\r\n",
            "Host: a\r\nHost: a\r\n",
            "",
        ] {
            let text = format!("{request} HTTP/1.1\r\n{host}{credentials}\r\n");
            let field = "request.headers.host";
            check(&world, text.as_bytes(), 400, "INVALID_REQUEST", field).await;
        }
        for host in ["user:pw@h", "a b@c/%%"] {
            let text = format!("{request} HTTP/1.1\r\nHost: {host}\r\n{credentials}\r\n");
            check(&world, text.as_bytes(), 400, "INVALID_TARGET", "request.target").await;
        }
        for (version, host) in
            [("1.1", "Host: other.test:1\r\n"), ("1.1", "Host: [::1]\r\n"), ("1.0", "")]
        {
            let mut client = Client::connect(world.address).await;
            client.send(&format!("{request} HTTP/{version}\r\n{host}{credentials}\r\n")).await;
            let method = request.split(' ').next().unwrap_or_default();
            assert_eq!(client.response(method).await.status, 200, "{request} {host}");
        }
    }
}

/// V-2: a request in the form that servers are asked in says what would help.
#[tokio::test]
async fn v_2_a_request_to_a_server_is_told_so() {
    let world = World::new().await;
    for target in ["/", "/ok?x", "*"] {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client.send(&format!("OPTIONS {target} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
        let answer = client.response("OPTIONS").await;
        assert_eq!((answer.status, answer.facts()[0].as_str()), (400, "INVALID_TARGET"));
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains("This is a proxy"), "{message}");
        assert!(message.contains("HTTP_PROXY"), "{message}");
    }
}

/// V-1: where hops are counted, `Max-Forwards` is one number of digits (RFC 9110 section 7.6.2).
#[tokio::test]
async fn v_1_hops_are_counted_by_one_number() {
    let world = World::new().await;
    let (url, credentials) = (world.plain_url("/ok"), world.credentials());
    for method in ["OPTIONS", "TRACE"] {
        for hops in ["+5", "", "-1", "0x1", "1, 1", "5\r\nMax-Forwards: 5", "0\r\nMax-Forwards: 0"]
        {
            let text = format!(
                "{method} {url} HTTP/1.1\r\nHost: x\r\n{credentials}Max-Forwards: {hops}\r\n\r\n"
            );
            let field = "request.headers.max-forwards";
            check(&world, text.as_bytes(), 400, "INVALID_REQUEST", field).await;
        }
        // More than any number that this proxy counts with.
        let many = "9".repeat(30);
        let mut client = Client::connect(world.address).await;
        client
            .send(&format!(
                "{method} {url} HTTP/1.1\r\nHost: x\r\n{credentials}Max-Forwards: {many}\r\n\r\n"
            ))
            .await;
        assert_eq!(client.response(method).await.status, 200);
        let left = format!("\r\nMax-Forwards: {}\r\n", u64::MAX - 1);
        assert!(world.origin.last_head().contains(&left), "{}", world.origin.last_head());
    }
}

/// V-1: what policy does not allow, what can't be carried, what came round in a loop.
#[tokio::test]
async fn v_1_refusals_have_their_codes() {
    let world = World::with(
        |origin, _| {
            let port = origin.address.port();
            format!(
                "[[route]]\nname = \"small\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, path = \"/small\" }}\n\
                 private_addresses = \"allow\"\ncredential = \"pay\"\nlimits = {{ request_bytes = \"10B\" }}\n"
            )
        },
        proxy::Options::default(),
    )
    .await;
    let credentials = world.credentials();
    let via = world.plain("GET", "/echo", "", "").await.text();
    let via = via.lines().find(|line| line.starts_with("Via: ")).expect("via").to_owned();
    let url = world.plain_url("/ok");
    let get = |url: &str, fields: &str| {
        format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}{fields}\r\n")
    };
    let denied = get("http://example.com/", "");
    check(&world, denied.as_bytes(), 403, "TARGET_NOT_ALLOWED", "target.host").await;
    let looped = get(&url, &format!("{via}\r\n"));
    check(&world, looped.as_bytes(), 502, "LOOP_DETECTED", "request.headers.via").await;
    let upgrade = format!(
        "POST {url} HTTP/1.1\r\nHost: x\r\n{credentials}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    check(&world, upgrade.as_bytes(), 501, "UNSUPPORTED_ACTION", "request.headers.upgrade").await;
    for other in ["SPDY/3.1", "tcp", "h2c, tcp"] {
        let upgrade = get(&url, &format!("Connection: upgrade\r\nUpgrade: {other}\r\n"));
        check(&world, upgrade.as_bytes(), 501, "UNSUPPORTED_ACTION", "request.headers.upgrade")
            .await;
    }
    let inside = get("https://affiant.internal/v1/invocations", "");
    check(&world, inside.as_bytes(), 501, "UNSUPPORTED_ACTION", "request.target").await;
    for port in [443, 80] {
        let tunnel =
            format!("CONNECT affiant.internal:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
        check(&world, tunnel.as_bytes(), 501, "UNSUPPORTED_ACTION", "request.target").await;
    }
    let expect = get(&url, "Expect: 200-maybe\r\n");
    check(&world, expect.as_bytes(), 417, "INVALID_REQUEST", "request.headers.expect").await;
    let id = get(&url, "Affiant-Invocation: act_x\r\n");
    let field = "request.headers.affiant-invocation";
    check(&world, id.as_bytes(), 400, "INVALID_INVOCATION_ID", field).await;
    let small = world.plain_url("/small");
    let long =
        format!("POST {small} HTTP/1.1\r\nHost: x\r\n{credentials}Content-Length: 11\r\n\r\n");
    check(&world, long.as_bytes(), 413, "PAYLOAD_LIMIT", "request.content").await;
    let long = format!(
        "POST {small} HTTP/1.1\r\nHost: x\r\n{credentials}Transfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n"
    );
    check(&world, long.as_bytes(), 413, "PAYLOAD_LIMIT", "request.content").await;
    let forbidden = get(&small, "Authorization: mine\r\n");
    check(&world, forbidden.as_bytes(), 403, "HEADER_FORBIDDEN", "request.headers.authorization")
        .await;
    let connect = format!("CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n{credentials}\r\n");
    check(&world, connect.as_bytes(), 403, "TARGET_NOT_ALLOWED", "target.host").await;
}

/// V-1: a refusal is recorded for the agent that it was given to, however early it came.
#[tokio::test]
async fn v_1_early_refusals_are_the_agents() {
    let world = World::new().await;
    let credentials = world.credentials();
    let via = world.plain("GET", "/echo", "", "").await.text();
    let via = via.lines().find(|line| line.starts_with("Via: ")).expect("via").to_owned();
    let port = world.secure.address.port();
    let connect = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n{credentials}");
    let inside = |fields: &str| world.secure_request("GET", "/ok", fields, "");
    for (in_tunnel, request, code) in [
        (false, format!("{connect}{via}\r\n\r\n"), "LOOP_DETECTED"),
        (true, inside(&format!("{via}\r\n")), "LOOP_DETECTED"),
        (true, inside("Affiant-Invocation: act_x\r\n"), "INVALID_INVOCATION_ID"),
        (true, inside("X : a\r\n"), "INVALID_REQUEST"),
        (true, inside("Content-Length: -1\r\n"), "INVALID_REQUEST"),
    ] {
        let mut client = match in_tunnel {
            true => world.tunnel().await,
            false => Client::connect(world.address).await,
        };
        client.send(&request).await;
        let response = client.response("GET").await;
        assert_eq!(response.facts()[0], code, "{request}");
        let recorded = world.invocation(response.id()).await;
        assert_eq!(recorded.accepted().agent.as_deref(), Some("coder"), "{request}");
    }
}

/// I-1: a locked vault and an absent secret stop the call before dispatch.
#[tokio::test]
async fn i_1_credentials_that_cannot_be_had() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    world.policy.remove_secret("pay-token").expect("removed");
    client.send(&world.secure_request("GET", "/with-credential/ok", "", "")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 500);
    assert_eq!(
        response.facts(),
        ["SECRET_MISSING", "credential_injection", "not_attempted", "after_correction"]
    );
    assert!(!response.text().contains("pay-token"), "V-3: the reference is not echoed");
    world.policy.vault().lock();
    client.send(&world.secure_request("GET", "/with-credential/ok", "", "")).await;
    let response = client.response("GET").await;
    assert_eq!(response.status, 503);
    assert_eq!(
        response.facts(),
        ["VAULT_LOCKED", "credential_injection", "not_attempted", "after_correction"]
    );
    assert_eq!(world.secure.all_effects(), 0);
}

/// Two requests in one write are both judged, both recorded, and answered in order.
#[tokio::test]
async fn pipelined_requests_are_all_judged() {
    let world = World::new().await;
    let credentials = world.credentials();
    let mut client = Client::connect(world.address).await;
    let both = [
        world.plain_request("POST", "/ok", "", "first"),
        format!("GET http://example.com/ HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"),
        format!(
            "POST {} HTTP/1.1\r\nHost: x\r\n{credentials}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            world.plain_url("/echo")
        ),
        world.plain_request("GET", "/chunked", "", ""),
    ]
    .concat();
    client.send(&both).await;
    let first = client.response("POST").await;
    assert_eq!(first.text(), "ok");
    assert_eq!(client.response("GET").await.status, 403);
    let third = client.response("POST").await;
    assert!(third.text().ends_with("\r\n\r\nabc"));
    world.events(first.id(), "RESULT_DELIVERED").await;
    world.events(third.id(), "RESULT_DELIVERED").await;
    assert_eq!(client.response("GET").await.text(), "hello");
    assert_eq!(world.origin.all_effects(), 3);
}

/// A head that comes slowly, or never ends, does not hold the connection for ever.
#[tokio::test]
async fn slow_heads_are_cut_off() {
    let options = proxy::Options {
        head_timeout: std::time::Duration::from_millis(200),
        ..proxy::Options::default()
    };
    let world = World::with(|_, _| String::new(), options).await;
    let mut client = Client::connect(world.address).await;
    client.send("GET http://x/ HTTP/1.1\r\nA: ").await;
    assert!(client.ends().await);
    let mut client = Client::connect(world.address).await;
    client.send(&format!("GET http://x/ HTTP/1.1\r\nA: {}", "a".repeat(70_000))).await;
    assert_eq!(client.response("GET").await.status, 400);
    assert!(client.ends().await);
}

/// V-1: heads beyond the bounds.
#[tokio::test]
async fn v_1_oversize_heads_are_refused() {
    let world = World::new().await;
    let url = world.plain_url("/ok");
    let credentials = world.credentials();
    let long = "a".repeat(70_000);
    let many = "X: y\r\n".repeat(101);
    for fields in [format!("X: {long}\r\n"), many, format!("{long}: x\r\n")] {
        let text = format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}{fields}\r\n");
        let mut client = Client::connect(world.address).await;
        client.send(&text).await;
        let response = client.response("GET").await;
        assert_eq!((response.status, response.facts()[0].as_str()), (400, "INVALID_REQUEST"));
    }
    assert_eq!(world.origin.all_effects(), 0);
}

/// V-1, V-6, K-1: a field that `Connection` nominates does not go on, so it decides nothing: no rule is
/// met by it, no key is bound by it, no condition is noted.
#[tokio::test]
async fn v_1_nominated_fields_decide_nothing() {
    let world = World::with(
        |origin, _| {
            let port = origin.address.port();
            format!(
                "[[route]]\nname = \"dry\"\nagents = [\"coder\"]\nmatch = {{ scheme = \"http\", \
                 host = \"127.0.0.1\", port = {port}, path = \"/close\" }}\n\
                 private_addresses = \"allow\"\ncredential = \"pay\"\n\
                 [[route]]\nname = \"keyed\"\nagents = [\"coder\"]\nmatch = {{ scheme = \"http\", \
                 host = \"127.0.0.1\", port = {port}, path = \"/close\", \
                 headers = {{ X-Dry-Run = \"true\" }} }}\n\
                 idempotency = {{ header = \"Idempotency-Key\", scope = \"pay\", retention = \"24h\", \
                 contract = \"verified\" }}\nprivate_addresses = \"allow\"\n"
            )
        },
        proxy::Options::default(),
    )
    .await;
    for (nominated, route, key) in [
        ("", "keyed", Some("k1")),
        ("Connection: idempotency-key\r\n", "keyed", None),
        ("Connection: close, X-Dry-Run\r\n", "dry", None),
        // What this hop itself needs can't be taken away.
        ("Connection: Host, Proxy-Authorization, Content-Length\r\n", "keyed", Some("k1")),
    ] {
        let id = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
        let fields = format!(
            "{nominated}{id}X-Dry-Run: true\r\nIdempotency-Key: k1\r\nIf-Match: \"v1\"\r\n"
        );
        let response = world.plain("POST", "/close", &fields, "x").await;
        let invocation = world.invocation(response.id()).await;
        let bound = invocation.preflight().expect("bound");
        assert_eq!(bound.route.as_deref(), Some(route), "{nominated}");
        let carried = bound.idempotency.as_ref().map(|bound| bound.key.as_str());
        assert_eq!(carried, key, "{nominated}");
        let sent = world.origin.last_head().to_lowercase();
        assert_eq!(sent.contains("x-dry-run: true"), route == "keyed", "{nominated} {sent}");
        assert_eq!(
            sent.contains("idempotency-key: k1"),
            nominated != "Connection: idempotency-key\r\n"
        );
    }
    let response =
        world.plain("POST", "/ok", "Connection: If-Match\r\nIf-Match: \"v1\"\r\n", "x").await;
    let events = world.events(response.id(), "RESULT_DELIVERED").await;
    let noted = events.iter().any(|event| event.body.name() == "NOTED");
    assert!(!noted, "{events:?}");
}

/// V-1: malformed content that is here before the request leaves is refused, although nothing asks to see
/// the content of this call.
#[tokio::test]
async fn v_1_malformed_content_that_is_here_is_refused_before_dispatch() {
    let world = World::new().await;
    let (url, credentials) = (world.plain_url("/ok"), world.credentials());
    for content in ["4\r\nabcd\r\nz\r\n", "4\r\nabcdX\r\n0\r\n\r\n", "4;\r\nabcd\r\n0\nx\r\n"] {
        let mut client = Client::connect(world.address).await;
        client
            .send(&format!(
                "PUT {url} HTTP/1.1\r\nHost: x\r\n{credentials}Transfer-Encoding: chunked\r\n\r\n{content}"
            ))
            .await;
        let answer = client.response("PUT").await;
        assert_eq!(answer.status, 400, "{content:?}");
        assert_eq!(answer.facts()[..3], ["INVALID_REQUEST", "validation", "not_attempted"]);
    }
    assert_eq!((world.origin.connections(), world.origin.all_effects()), (0, 0));
}
