//! HTTP/2 from end to end: gRPC by its status, and what the protocol proves of a refused stream.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use journal::contract::Completion;
use support::http2::{Answer, Http2Client, Http2Origin};
use support::{SECRET, World};

struct Test {
    world: World,
    origin: Http2Origin,
    client: Http2Client,
    _directory: tempfile::TempDir,
}

impl Test {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let origin = Http2Origin::start(directory.path(), &[b"h2"]).await;
        let port = origin.address.port();
        let again = format!(
            "[[route]]\nname = \"again\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/again/**\" }}\n\
             retry = {{ max_attempts = 3, automatic = true }}\n\
             [[route]]\nname = \"inward\"\nagents = [\"coder\"]\nprivate_addresses = \"deny\"\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/denied\" }}\n"
        );
        let extra = origin.routes() + &again;
        let world = World::with(|_, _| extra, proxy::Options::default()).await;
        let client = Http2Client::open(&world, origin.address.port()).await;
        Self { world, origin, client, _directory: directory }
    }

    async fn call(&self, method: &str, path: &str, content: &'static [u8]) -> Answer {
        self.client.call(method, path, content).await
    }

    fn effects(&self, path: &str) -> usize {
        self.origin.effects(path)
    }
}

/// D-2: streams of one connection on both sides, proven by END_STREAM.
#[tokio::test(flavor = "multi_thread")]
async fn d_2_http2_from_end_to_end() {
    let test = Test::new().await;
    for path in ["/a", "/b?u=https://other.example/x", "/interim"] {
        let answer = test.call("POST", path, b"content").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"content".as_slice()));
        let evidence = test.world.invocation(answer.id()).await.evidence();
        assert_eq!(evidence.completion, Some(Completion::EndStream));
    }
    assert_eq!(test.origin.seen.lock().expect("lock").connections, 1);
    let answer = test.call("POST", "/with-credential/x", b"").await;
    let text = String::from_utf8_lossy(&answer.content).into_owned();
    assert_eq!(text, format!("Bearer {}", "*".repeat(SECRET.len())).replace("Bearer ", "*******"));
    let seen = test.origin.seen.lock().expect("lock");
    let head = seen.heads.last().expect("head");
    assert_eq!(head.headers["authorization"], format!("Bearer {SECRET}"));
    assert_eq!(head.headers["te"], "trailers");
    assert!(!head.headers.contains_key("host") && !head.headers.contains_key("connection"));
    let authority = head.uri.authority().expect("authority").as_str();
    assert_eq!(authority, test.origin.address.to_string());
}

/// S-9: the status of gRPC settles, wherever it stands; without one the outcome is unknown and the
/// stream is broken off.
#[tokio::test(flavor = "multi_thread")]
async fn s_9_grpc_settles_by_its_status() {
    let test = Test::new().await;
    for (path, outcome, code) in [
        ("/grpc/0", "committed", "OK"),
        ("/grpc/5", "rejected", "REMOTE_REJECTED"),
        ("/grpc/13", "committed", "REMOTE_FAILED"),
    ] {
        let answer = test.call("POST", path, b"message").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"message".as_slice()));
        let status = path.trim_start_matches("/grpc/");
        assert_eq!(answer.trailers["grpc-status"], status);
        assert_eq!(answer.trailers["grpc-message"], "m");
        let said = answer.trailers["affiant-outcome"].to_str().expect("text").to_owned();
        assert!(said.starts_with(&format!("{outcome};")), "{path} {said}");
        let verdict = test.world.invocation(answer.id()).await.verdict();
        assert_eq!(
            (verdict.outcome().as_str(), verdict.code().as_str()),
            (outcome, code),
            "{path}"
        );
    }
    let answer = test.call("POST", "/grpc/only/12", b"x").await;
    assert_eq!(answer.field("grpc-status"), "12");
    assert!(answer.field("affiant-outcome").starts_with("rejected;"));
    assert!(answer.trailers.is_empty() && answer.content.is_empty());
    let answer = test.call("POST", "/grpc/none", b"x").await;
    assert!(!answer.whole);
    let verdict = test.world.invocation(answer.id()).await.verdict();
    assert_eq!(verdict.outcome().as_str(), "unknown");
    assert_eq!(verdict.code().as_str(), "REMOTE_RESULT_INCOMPLETE");
}

/// S-9, E-4: a caller of gRPC reads the status from the last section. What an origin says in its head alone,
/// before the call has sent all of its messages, is not followed by a section of ours.
#[tokio::test(flavor = "multi_thread")]
async fn s_9_an_early_status_in_the_head_stays_the_last_section() {
    let test = Test::new().await;
    for (status, outcome) in [("16", "rejected;"), ("12", "rejected;"), ("14", "committed;")] {
        let path = format!("/grpc/early/{status}");
        let request = test.client.request("POST", &path).header("content-type", "application/grpc");
        let answer = test.client.asked(request, b"\0\0\0\0\x01x", false).await;
        assert_eq!((answer.status, answer.field("grpc-status")), (200, status));
        assert!(answer.field("affiant-outcome").starts_with(outcome), "{answer:?}");
        assert!(answer.trailers.is_empty() && answer.content.is_empty(), "{answer:?}");
    }
}

/// E-1: a call of gRPC is answered by a status of gRPC alone, with the outcome beside it, and that does not
/// invite to a repeat of what may have been processed.
#[tokio::test(flavor = "multi_thread")]
async fn e_1_refusals_are_a_status_of_grpc() {
    let test = Test::new().await;
    let call = async |path: &str| {
        let request = test.client.request("POST", path).header("content-type", "application/grpc");
        let answer = test.client.asked(request, b"\0\0\0\0\x01x", true).await;
        assert_eq!((answer.status, answer.field("content-type")), (200, "application/grpc"));
        assert!(answer.trailers.is_empty() && answer.content.is_empty(), "{answer:?}");
        assert!(answer.whole, "{answer:?}");
        answer
    };
    let answer = call("/denied").await;
    assert_eq!((answer.field("grpc-status"), answer.field("grpc-retry-pushback-ms")), ("7", "-1"));
    let said = answer.field("affiant-outcome");
    assert!(
        said.starts_with("not_attempted;phase=connection_setup;retry=after_correction;"),
        "{said}"
    );
    assert!(answer.field("proxy-status").contains("error=destination_ip_prohibited"), "{answer:?}");
    let answer = call("/reset").await;
    assert_eq!((answer.field("grpc-status"), answer.field("grpc-retry-pushback-ms")), ("2", "-1"));
    assert!(answer.field("affiant-outcome").starts_with("unknown;"), "{answer:?}");
    assert_eq!(test.effects("/reset"), 1);
    // What is repeated by its caller all the same is held back.
    let again = call("/reset").await;
    assert_eq!((again.field("grpc-status"), test.effects("/reset")), ("9", 1));
    let answer = call("/refuse").await;
    assert_eq!(answer.field("grpc-status"), "14");
    let wait_ms: i32 = answer.field("grpc-retry-pushback-ms").parse().expect("a time");
    assert!((1..=60_000).contains(&wait_ms), "{wait_ms}");
    assert!(answer.field("affiant-outcome").starts_with("rejected;"), "{answer:?}");
    // A kind of content that is none of gRPC's gets the envelope, as ever.
    let answer = test.call("POST", "/denied", b"x").await;
    assert_eq!((answer.status, answer.field("content-type")), (403, "application/problem+json"));
}

/// C-6, D-7: a refused stream settles as rejected and may be sent again later; the broker itself sent
/// it once. A reset, and a lost connection, prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_what_the_protocol_proves() {
    let test = Test::new().await;
    let answer = test.call("POST", "/refuse", b"x").await;
    assert_eq!(answer.status, 503);
    let said = answer.field("affiant-outcome");
    assert!(said.starts_with("rejected;phase=remote_execution;retry=backoff;"), "{said}");
    assert_eq!(answer.field("retry-after"), "1");
    assert_eq!(test.effects("/refuse"), 1);
    let verdict = test.world.invocation(answer.id()).await.verdict();
    assert_eq!(verdict.code().as_str(), "REMOTE_NOT_PROCESSED");
    // What was not processed does not stand in the way of the same request.
    assert_eq!(test.call("POST", "/refuse", b"x").await.status, 503);
    assert_eq!(test.effects("/refuse"), 2);
    for path in ["/reset", "/gone"] {
        let answer = test.call("POST", path, b"x").await;
        assert_eq!(answer.status, 502, "{path}");
        let verdict = test.world.invocation(answer.id()).await.verdict();
        assert_eq!(verdict.outcome().as_str(), "unknown", "{path}");
        assert_eq!(verdict.code().as_str(), "REMOTE_OUTCOME_UNKNOWN", "{path}");
        assert_eq!(test.effects(path), 1, "{path}");
    }
    let answer = test.call("POST", "/cut", b"x").await;
    assert_eq!(answer.status, 502);
    assert_eq!(test.world.invocation(answer.id()).await.verdict().outcome().as_str(), "unknown");
}

/// C-6: a connection that goes away finishes what it took, and takes no more; the next call is on a
/// new one.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_a_connection_that_goes_away() {
    let test = Test::new().await;
    for n in 1..=3 {
        let answer = test.call("POST", "/goaway", b"x").await;
        assert_eq!((answer.status, answer.content.as_slice()), (200, b"x".as_slice()));
        test.world.events(answer.id(), "RESULT_DELIVERED").await;
        assert_eq!(test.effects("/goaway"), n);
    }
    assert!(test.origin.seen.lock().expect("lock").connections >= 2);
}

/// K-3, V-5: a field that selects the route and goes no further selects it for every attempt.
#[tokio::test(flavor = "multi_thread")]
async fn k_3_a_stripped_field_selects_the_route_of_each_attempt() {
    let directory = tempfile::tempdir().expect("directory");
    let origin = Http2Origin::start(directory.path(), &[b"h2"]).await;
    let port = origin.address.port();
    let retry = "private_addresses = \"allow\"\nretry = { max_attempts = 3, automatic = true }\n";
    let route = |name: &str, headers: &str, terms: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\nagents = [\"coder\"]\n{retry}{terms}\n\
             match = {{ host = \"127.0.0.1\", port = {port}, path = \"/again/**\"{headers} }}\n"
        )
    };
    let (blue, red) = (", headers = { X-Tenant = \"blue\" }", ", headers = { X-Tenant = \"red\" }");
    let strips = "strip_headers = [\"x-tenant\"]";
    let extra = origin.routes()
        + &route("wide", "", "")
        + &route("blue", blue, &format!("credential = \"pay\"\n{strips}"))
        + &route("red", red, strips);
    let world = World::with(|_, _| extra, proxy::Options::default()).await;
    let client = Http2Client::open(&world, port).await;
    let request = client.request("POST", "/again/refuse-twice").header("x-tenant", "blue");
    let answer = client.asked(request, b"x", true).await;
    assert_eq!((answer.status, origin.effects("/again/refuse-twice")), (200, 3));
    let last = world.invocation(answer.id()).await;
    assert_eq!(last.preflight().and_then(|bound| bound.route.as_deref()), Some("blue"));
    let seen = origin.seen.lock().expect("lock").heads.pop().expect("a head");
    assert_eq!(seen.headers["authorization"], format!("Bearer {SECRET}"));
    assert!(!seen.headers.contains_key("x-tenant"));
    // K-11: what goes out alike under another route is another action.
    for (tenant, status, effects) in [("blue", 502, 1), ("blue", 424, 1), ("red", 502, 2)] {
        let request = client.request("POST", "/again/reset").header("x-tenant", tenant);
        assert_eq!(client.asked(request, b"x", true).await.status, status, "{tenant}");
        assert_eq!(origin.effects("/again/reset"), effects, "{tenant}");
    }
}

/// C-6, T-1: a stream that was refused is asked for again where the route opts in, up to its number of
/// attempts, and elsewhere not: each attempt is on record as rejected, and has one stream at the origin.
#[tokio::test(flavor = "multi_thread")]
async fn c_6_t_1_refused_streams_are_asked_for_as_often_as_the_route_says() {
    let test = Test::new().await;
    for (path, streams, status, outcome, attempts) in [
        ("/refuse-twice", 1, 503, "rejected;phase=remote_execution;retry=backoff;", vec![]),
        ("/again/refuse-twice", 3, 200, "committed;", vec!["rejected", "committed"]),
        // T-3: no attempt is left.
        (
            "/again/refuse",
            3,
            503,
            "rejected;phase=remote_execution;retry=reconcile;",
            vec!["rejected"; 2],
        ),
    ] {
        let answer = test.call("POST", path, b"content").await;
        assert_eq!((answer.status, test.effects(path)), (status, streams), "{path}");
        let said = answer.field("affiant-outcome");
        assert!(said.starts_with(outcome), "{path} {said}");
        if status == 200 {
            // K-3: with the content of the first, whose length no field says.
            assert_eq!(answer.content, b"content");
        } else {
            assert!(said.contains(";code=REMOTE_NOT_PROCESSED;"), "{path} {said}");
        }
        let mut retried = Vec::new();
        for attempt in test.world.invocation(answer.id()).await.retries() {
            let verdict = test.world.invocation(*attempt).await.verdict();
            retried.push(verdict.outcome().as_str());
        }
        assert_eq!(retried, attempts, "{path}");
    }
}
