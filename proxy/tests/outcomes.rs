//! What an origin does, and what the caller may conclude.

#![allow(clippy::indexing_slicing, reason = "tests")]

mod support;

use journal::contract::{Body, Completion, Outcome};
use support::{Client, World};

async fn check(world: &World, method: &str, path: &str, status: u16, facts: [&str; 4]) {
    let content = if method == "POST" { "x" } else { "" };
    let response = world.plain(method, path, "", content).await;
    assert_eq!(response.status, status, "{method} {path} {response:?}");
    assert_eq!(response.facts(), facts, "{method} {path}");
    assert_eq!(world.invocation(response.id()).await.verdict().code().as_str(), facts[0]);
}

/// S-2, S-7, M-6: an incomplete or malformed response gives `unknown`, whatever came of it.
#[tokio::test]
async fn s_2_incomplete_responses_are_unknown() {
    let world = World::new().await;
    let gone = ["REMOTE_OUTCOME_UNKNOWN", "remote_execution", "unknown"];
    let cut = ["REMOTE_RESULT_INCOMPLETE", "remote_execution", "unknown"];
    let bad = ["REMOTE_PROTOCOL_ERROR", "remote_execution", "unknown"];
    for (path, [code, phase, outcome]) in [
        ("/close", gone),
        ("/half-head", cut),
        ("/cut", cut),
        ("/cut-chunked", cut),
        ("/bad-head", bad),
        ("/bare-lf", bad),
        ("/lf-in-value", bad),
        ("/nul-in-value", bad),
        ("/folded", bad),
        ("/space-colon", bad),
        ("/switch", bad),
        ("/long-head", bad),
        ("/many-interim", bad),
    ] {
        check(&world, "POST", path, 502, [code, phase, outcome, "reconcile"]).await;
        check(&world, "GET", path, 502, [code, phase, outcome, "backoff"]).await;
        assert_eq!(world.origin.effects(path), 2, "{path}");
    }
}

/// D-2, S-1, S-5: the completion marker is on record; interim responses settle nothing.
#[tokio::test]
async fn d_2_complete_responses_name_their_marker() {
    let world = World::new().await;
    for (method, path, status, text, completion) in [
        ("GET", "/ok", 200, "ok", Completion::ContentLength),
        ("GET", "/chunked", 200, "hello", Completion::Chunked),
        ("GET", "/trailers", 200, "hello", Completion::Chunked),
        ("GET", "/no-length", 200, "all there is", Completion::CloseDelimited),
        ("GET", "/interim", 200, "ok", Completion::ContentLength),
        ("GET", "/204", 204, "", Completion::NoContent),
        ("GET", "/304", 304, "", Completion::NoContent),
        ("HEAD", "/ok", 200, "", Completion::NoContent),
        ("GET", "/close-after", 200, "ok", Completion::ContentLength),
    ] {
        let response = world.plain(method, path, "", "").await;
        assert_eq!((response.status, response.text().as_str()), (status, text), "{path}");
        assert!(response.complete, "{path}");
        let evidence = world.invocation(response.id()).await.evidence();
        assert_eq!(evidence.completion, Some(completion), "{path}");
        assert_eq!(evidence.status, Some(status), "{path}");
    }
    let head = world.plain("HEAD", "/ok", "", "").await;
    assert_eq!(head.field("content-length"), "2");
    assert_eq!(world.plain("GET", "/304", "", "").await.field("content-length"), "10");
    let trailers = world.plain("GET", "/trailers", "", "").await;
    assert!(trailers.trailers.contains("X-T: 1\n"), "{}", trailers.trailers);
}

/// S-3: the status gives outcome and instruction, and the origin's answer passes unchanged.
#[tokio::test]
async fn s_3_statuses_settle() {
    let world = World::new().await;
    for (path, method, outcome, retry, forbidden) in [
        ("/status/200", "POST", "committed", "never", false),
        ("/status/302", "POST", "committed", "never", false),
        ("/status/401", "POST", "rejected", "after_correction", true),
        ("/status/409", "POST", "rejected", "after_correction", true),
        ("/status/429", "POST", "rejected", "reconcile", true),
        ("/status/429?5", "GET", "rejected", "backoff", false),
        ("/status/503?5", "GET", "rejected", "backoff", false),
        ("/status/500", "POST", "committed", "never", true),
        ("/status/500", "GET", "committed", "backoff", false),
    ] {
        let response = world.plain(method, path, "", "y").await;
        assert_eq!(response.text(), "body", "{path}");
        let start = format!("{outcome};phase=remote_execution;retry={retry};");
        assert!(response.outcome().starts_with(&start), "{path} {}", response.outcome());
        let expected = if forbidden { vec!["false"] } else { vec!["true"] };
        assert_eq!(response.all("x-should-retry"), expected, "{path}");
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
/// C-1, C-4: what fails before dispatch names its stage and was not attempted.
#[tokio::test]
async fn c_1_setup_failures_are_not_attempted() {
    let (_held, closed) = support::refusing();
    let (other_port, _babbler) = support::babble().await;
    let world = World::with(
        |origin, secure| {
            let route = |name: &str, scheme: &str, host: &str, port: u16, extra: &str| {
                format!(
                    "[[route]]\nname = \"{name}\"\nagents = [\"coder\"]\n\
                     match = {{ scheme = \"{scheme}\", host = \"{host}\", port = {port} }}\n{extra}\n"
                )
            };
            let private = "private_addresses = \"allow\"";
            [
                route("refused", "http", "127.0.0.1", closed.port(), private),
                route("prohibited", "http", "localhost", origin.address.port(), ""),
                route("untrusted", "https", "127.0.0.1", secure.address.port(), private),
                route("not-tls", "https", "127.0.0.1", other_port, private),
                route("no-name", "http", "nothing.invalid", 80, private),
            ]
            .concat()
        },
        proxy::Options::default(),
    )
    .await;
    let (plain, secure) = (world.origin.address.port(), world.secure.address.port());
    for (url, status, token, code, retry, stage, cause) in [
        (
            format!("http://{closed}/"),
            502,
            "connection_refused",
            "CONNECTION_REFUSED",
            "backoff",
            "tcp_connect",
            "ECONNREFUSED",
        ),
        (
            format!("http://localhost:{plain}/"),
            403,
            "destination_ip_prohibited",
            "ADDRESS_PROHIBITED",
            "after_correction",
            "address_check",
            "ADDRESS_PROHIBITED",
        ),
        (
            format!("https://127.0.0.1:{secure}/"),
            502,
            "tls_certificate_error",
            "TLS_CERTIFICATE_ERROR",
            "after_correction",
            "tls_handshake",
            "CERT_UNKNOWN_ISSUER",
        ),
        (
            format!("https://127.0.0.1:{other_port}/"),
            502,
            "tls_protocol_error",
            "TLS_PROTOCOL_ERROR",
            "after_correction",
            "tls_handshake",
            "TLS_PROTOCOL",
        ),
        ("http://nothing.invalid/".to_owned(), 502, "", "", "", "resolve", ""),
    ] {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client.send(&format!("GET {url} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n")).await;
        let response = client.response("GET").await;
        assert_eq!(response.status, status, "{url} {response:?}");
        let json = response.json();
        assert_eq!(json["error"]["phase"], "connection_setup", "{url}");
        assert_eq!(json["error"]["outcome"], "not_attempted", "{url}");
        let attempt = &json["evidence"]["attempts"][0];
        assert_eq!(attempt["stage"], stage, "{url} {json}");
        if !code.is_empty() {
            assert_eq!(json["error"]["code"], code, "{url}");
            assert_eq!(json["error"]["retry"], retry, "{url}");
            assert_eq!(attempt["code"], cause, "{url}");
            let start = format!("affiant;error={token}");
            assert!(response.field("proxy-status").starts_with(&start), "{url}");
        }
    }
    assert_eq!(world.origin.all_effects(), 0);
}

/// A call after which a connection to the origin is kept, and known to be.
async fn keep_one(world: &World) {
    let response = world.plain("GET", "/ok", "", "").await;
    assert_eq!(response.status, 200);
    world.events(response.id(), "RESULT_DELIVERED").await;
}

/// C-3, D-7: a kept connection that dies under a call is asked once, and gives `unknown`.
#[tokio::test]
async fn c_3_a_dead_kept_connection_is_unknown() {
    let world = World::new().await;
    keep_one(&world).await;
    let response = world.plain("GET", "/close", "", "").await;
    assert_eq!(
        response.facts(),
        ["REMOTE_OUTCOME_UNKNOWN", "remote_execution", "unknown", "backoff"]
    );
    assert_eq!(response.json()["evidence"]["connection_reused"], true);
    assert_eq!(world.origin.connections(), 1);
    assert_eq!(world.origin.effects("/close"), 1);
    // One that died while it lay idle is not used.
    assert_eq!(world.plain("GET", "/close-after", "", "").await.status, 200);
    assert_eq!(world.plain("GET", "/ok", "", "").await.status, 200);
}

/// C-3, D-7: the same of a POST, with content and without: it is not known to be repeatable, and is not
/// repeated.
#[tokio::test]
async fn c_3_a_post_on_a_dead_kept_connection_is_unknown() {
    for content in ["", "x"] {
        let world = World::new().await;
        keep_one(&world).await;
        let response = world.plain("POST", "/close", "", content).await;
        assert_eq!(
            response.facts(),
            ["REMOTE_OUTCOME_UNKNOWN", "remote_execution", "unknown", "reconcile"]
        );
        assert_eq!(response.json()["evidence"]["connection_reused"], true);
        assert_eq!((world.origin.connections(), world.origin.effects("/close")), (1, 1));
    }
}

/// C-3: a connection that ended while it lay idle is not used for a call: another is dialled, and nothing is
/// in doubt. In clear text and over TLS, whose end is a record of its own (RFC 8446 section 6.1).
#[tokio::test]
async fn c_3_a_connection_that_ended_idle_is_not_used() {
    for method in ["GET", "POST"] {
        let world = World::new().await;
        let mut tunnel = world.tunnel().await;
        for origin in [&world.origin, &world.secure] {
            let mut call = async |method: &str, path: &str| {
                if std::ptr::eq(origin, &world.origin) {
                    return world.plain(method, path, "", "").await;
                }
                tunnel.send(&world.secure_request(method, path, "", "")).await;
                tunnel.response(method).await
            };
            let first = call("GET", "/close-after").await;
            assert_eq!(first.status, 200);
            world.events(first.id(), "RESULT_DELIVERED").await;
            let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
            while origin.peer.ended() == 0 {
                assert!(tokio::time::Instant::now() < until, "the origin did not end it");
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            let answer = call(method, "/ok").await;
            assert_eq!((answer.status, origin.effects("/ok")), (200, 1), "{method}");
            let evidence = world.invocation(answer.id()).await.evidence();
            assert_eq!((evidence.connection_reused, origin.connections()), (Some(false), 2));
        }
    }
}

/// E-4: the limits of a route bound the wait for a head and each pause, and no stream as a whole.
#[tokio::test]
async fn e_4_a_stream_may_last_longer_than_its_limits() {
    let route = |origin: &support::Origin| {
        format!(
            "[[route]]\nname = \"short\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
             limits = {{ response_timeout = \"1s\" }}\n\
             match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/events\" }}\n",
            origin.address.port()
        )
    };
    let world = World::with(|origin, _| route(origin), proxy::Options::default()).await;
    // One each 20 ms.
    let response = world.plain("GET", "/events?150", "", "").await;
    assert!(response.complete && response.text().ends_with("data: 149\n\n"), "{response:?}");
    assert!(response.trailers.contains("Affiant-Outcome: committed;"), "{}", response.trailers);
}

/// E-4, S-2: a response over the threshold is streamed, `unknown` first, the outcome in trailers.
#[tokio::test]
async fn e_4_long_responses_carry_their_outcome_in_trailers() {
    let world = World::new().await;
    let length = 3_000_000;
    let response = world.plain("GET", &format!("/big?{length}"), "", "").await;
    assert_eq!(response.status, 200);
    assert!(response.outcome().starts_with("unknown;phase=remote_execution;"));
    assert!(response.complete);
    assert_eq!(response.content.len(), length);
    assert!(response.content.iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % 251));
    assert!(response.trailers.contains("Affiant-Outcome: committed;"), "{}", response.trailers);
    assert!(response.trailers.contains("Proxy-Status: affiant;"), "{}", response.trailers);
    let id = response.id();
    let invocation = world.invocation(id).await;
    assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
    let stored = world.journal.result(id).expect("stored").read_to_end().expect("read");
    assert_eq!(stored, response.content);
}

#[tokio::test]
async fn e_4_event_streams_are_not_held() {
    let world = World::new().await;
    let response = world.plain("GET", "/events", "", "").await;
    assert_eq!(response.text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert!(response.trailers.contains("Affiant-Outcome: committed;"), "{}", response.trailers);
}

/// S-2: a streamed response that is cut at the origin is cut for the caller.
#[tokio::test]
async fn s_2_a_cut_stream_is_visibly_cut() {
    let world = World::new().await;
    let response = world.plain("POST", "/cut-stream", "", "x").await;
    assert_eq!(response.status, 200);
    assert!(!response.complete);
    assert_eq!(response.trailers, "");
    let verdict = world.invocation(response.id()).await.verdict();
    assert_eq!(verdict.outcome(), Outcome::Unknown);
    assert_eq!(verdict.code().as_str(), "REMOTE_RESULT_INCOMPLETE");
}

/// C-8, S-2: a hop that says behind the content that it lost the rest is heard: the content is not whole, held or
/// streamed, and nothing is kept as a result. What a hop says of no error changes nothing.
#[tokio::test]
async fn c_8_a_hop_that_lost_the_rest() {
    let world = World::new().await;
    let held = world.plain("POST", "/lost", "", "x").await;
    assert_eq!(held.status, 502, "{held:?}");
    let facts = ["REMOTE_RESULT_INCOMPLETE", "remote_execution", "unknown", "reconcile"];
    assert_eq!(held.facts(), facts);
    let said = held.field("proxy-status");
    let start = "cdn; error=http_response_incomplete, affiant;error=http_response_incomplete;";
    assert!(said.starts_with(start), "{said}");
    let streamed = world.plain("POST", "/lost-stream", "", "x").await;
    assert_eq!((streamed.status, streamed.complete), (200, false), "{streamed:?}");
    assert_eq!(streamed.trailers, "");
    for response in [&held, &streamed] {
        let invocation = world.invocation(response.id()).await;
        let verdict = invocation.verdict();
        let facts = (verdict.outcome(), verdict.code().as_str());
        assert_eq!(facts, (Outcome::Unknown, "REMOTE_RESULT_INCOMPLETE"));
        assert!(world.journal.result(response.id()).is_err());
        let events = world.journal.events(response.id()).expect("events");
        assert!(events.iter().any(|(_, event)| matches!(
            &event.body,
            Body::Noted(noted) if noted.name == "hop_failed" && noted.detail.starts_with("cdn;")
        )));
    }
    let whole = world.plain("POST", "/passed-on", "", "x").await;
    assert!(whole.outcome().starts_with("committed;"), "{}", whole.outcome());
    assert_eq!((whole.text().as_str(), whole.complete), ("hello", true));
}

/// D-4, R-2: the caller goes away, the origin's result is recorded and can be had by its id.
#[tokio::test]
async fn d_4_a_result_is_recorded_for_a_caller_that_left() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let mut client = Client::connect(world.address).await;
    let fields = format!("Affiant-Invocation: {id}\r\n");
    client.send(&world.plain_request("POST", "/gate", &fields, "x")).await;
    world.origin.reached("/gate", 1).await;
    drop(client);
    world.origin.open_gate();
    let events = world.events(id, "DELIVERY_FAILED").await;
    assert_eq!(events[events.len() - 2].body.name(), "RESULT_COMMITTED");
    let verdict = world.invocation(id).await.verdict();
    assert_eq!(
        [verdict.phase().as_str(), verdict.outcome().as_str(), verdict.retry().as_str()],
        ["result_delivery", "committed", "fetch_result"]
    );
    assert_eq!(world.journal.result(id).expect("stored").read_to_end().expect("read"), b"ok");
    assert_eq!(world.origin.effects("/gate"), 1);
}

/// Early answers: the origin's refusal reaches the caller though the content was not taken.
#[tokio::test]
async fn an_early_answer_reaches_the_caller() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    let content = "x".repeat(4 << 20);
    let request = world.plain_request("PUT", "/early", "", &content);
    let (head, _) = request.split_at(request.find("\r\n\r\n").expect("end") + 4);
    client.send(head).await;
    let response = client.response("PUT").await;
    assert_eq!(response.status, 413, "{response:?}");
    assert_eq!(response.text(), "big");
    assert!(response.outcome().starts_with("rejected;"));
    assert_eq!(response.field("connection"), "close");
}

/// HTTP/1.0 has no chunks: a long response without a length goes until the close, a cut one ends in a reset.
#[tokio::test]
async fn s_2_callers_of_http_1_0_see_the_end_and_the_cut() {
    let world = World::new().await;
    let credentials = world.credentials();
    for path in ["/until-close?2000000", "/big?2000000", "/chunked", "/ok", "/cut-stream"] {
        let url = world.plain_url(path);
        let mut client = Client::connect(world.address).await;
        let keep = "Connection: keep-alive\r\n";
        client.send(&format!("GET {url} HTTP/1.0\r\n{keep}{credentials}\r\n")).await;
        let response = client.response("GET").await;
        assert_eq!(response.status, 200);
        assert_eq!(response.all("transfer-encoding").len(), 0, "{path}");
        match path {
            "/until-close?2000000" => {
                assert_eq!(response.content.len(), 2_000_000);
                assert_eq!(response.field("connection"), "close");
            }
            "/cut-stream" => assert!(client.was_reset()),
            _ => {
                assert_eq!(response.field("connection"), "keep-alive", "{path}");
                assert_eq!(response.field("content-length"), response.content.len().to_string());
            }
        }
    }
}

/// An upload that goes on for longer than the response may take is not cut off.
#[tokio::test]
async fn a_slow_upload_is_not_a_late_response() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"quick\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/status/**\" }}\n\
                 private_addresses = \"allow\"\nlimits = {{ response_timeout = \"400ms\" }}\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("PUT", "/status/200", "", &"x".repeat(12));
    let (head, content) = request.split_at(request.len() - 12);
    client.send(head).await;
    for piece in content.as_bytes().chunks(1) {
        client.send_bytes(piece).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(client.response("PUT").await.text(), "body");
}

/// D-2: no response in time, and a response that stops, are told apart.
#[tokio::test]
async fn d_2_timeouts_are_told_apart() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"quick\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/gate*\" }}\n\
                 private_addresses = \"allow\"\nlimits = {{ response_timeout = \"200ms\", idle_timeout = \"200ms\" }}\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    check(
        &world,
        "POST",
        "/gate",
        504,
        ["RESPONSE_TIMEOUT", "remote_execution", "unknown", "reconcile"],
    )
    .await;
    check(
        &world,
        "POST",
        "/gate-stall",
        504,
        ["READ_TIMEOUT", "remote_execution", "unknown", "reconcile"],
    )
    .await;
}
