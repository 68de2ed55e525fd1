//! Repeats: by id (K-10), by fingerprint (K-11), by key (K-3).

#![allow(clippy::indexing_slicing, reason = "tests")]

mod support;

use support::{Client, World};

/// K-10: the same id with the same request is answered from the record.
#[tokio::test]
async fn k_10_a_repeat_by_id_is_answered_from_the_record() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let first = world.plain("POST", "/ok", &fields, "x").await;
    assert_eq!(first.id(), id);
    let second = world.plain("POST", "/ok", &fields, "x").await;
    assert_eq!((second.status, second.text().as_str()), (200, "ok"));
    assert_eq!(second.outcome(), format!("{};replayed", first.outcome()));
    assert_eq!(second.all("set-cookie"), ["a", "b"]);
    assert_eq!(second.field("date"), "Thu, 01 Jan 1970 00:00:01 GMT");
    assert_eq!(world.origin.effects("/ok"), 1);
    // Another request under that id is refused, and nothing of the first is told.
    let other = world.plain("POST", "/ok", &fields, "y").await;
    assert_eq!(other.status, 422);
    assert_eq!(
        other.facts(),
        ["IDEMPOTENCY_MISMATCH", "validation", "not_attempted", "after_correction"]
    );
    assert_ne!(other.id(), id);
    assert_eq!(world.origin.all_effects(), 1);
}

/// K-10, K-3, V-3: the id of another agent's call stands for that call, so that it can't be used; but who tries is
/// told what it is told of an id of its own, and nothing of the call. Its own refusal is on record under an id of
/// its own.
#[tokio::test]
async fn k_10_the_id_of_another_agent_is_told_like_ones_own() {
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
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let first = world.plain("POST", "/ok", &fields, "x").await;
    assert_eq!((first.status, first.id()), (200, id));
    let told = async |request: String| {
        let mut client = Client::connect(world.address).await;
        client.send(&request).await;
        let refused = client.response("POST").await;
        let own = refused.id();
        assert_ne!(own, id);
        let telling = |text: &str| text.replace(&own.to_string(), "ID");
        let head = refused.head.lines().filter(|line| !line.starts_with("Date: "));
        let head: Vec<String> = head.map(telling).collect();
        (refused.status, head, telling(&refused.text()), own)
    };
    let by_other = |content| {
        let request = world.plain_request("POST", "/ok", &fields, content);
        request.replace(&world.credentials(), &bearer)
    };
    let ones_own = told(world.plain_request("POST", "/ok", &fields, "y")).await;
    assert!(ones_own.2.contains("The id or key stands for another request; use a new one."));
    for content in ["x", "y"] {
        let others = told(by_other(content)).await;
        assert_eq!((others.0, &others.1), (422, &ones_own.1));
        let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).expect("JSON") };
        assert_eq!(json(&others.2)["error"], json(&ones_own.2)["error"]);
        let record = world.invocation(others.3).await;
        assert_eq!(record.accepted().agent.as_deref(), Some("other"));
        assert_eq!(record.accepted().link, None);
    }
    assert_eq!(world.origin.all_effects(), 1);
}

/// K-10: a repeat of a call that ended without a result gets that end.
#[tokio::test]
async fn k_10_a_repeat_of_an_unknown_call_gets_its_envelope() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let fields = format!("Affiant-Invocation: {id}\r\n");
    let first = world.plain("POST", "/close", &fields, "x").await;
    let second = world.plain("POST", "/close", &fields, "x").await;
    assert_eq!(second.status, 502);
    assert_eq!(second.facts(), first.facts());
    assert_eq!(second.id(), id);
    assert_eq!(world.origin.effects("/close"), 1);
}

/// K-10: a repeat of a call that is under way waits for it.
#[tokio::test]
async fn k_10_a_repeat_of_a_call_under_way_waits() {
    let world = World::new().await;
    let id = world.journal.new_id();
    let request =
        world.plain_request("POST", "/gate", &format!("Affiant-Invocation: {id}\r\n"), "x");
    let mut first = Client::connect(world.address).await;
    first.send(&request).await;
    world.origin.reached("/gate", 1).await;
    let mut second = Client::connect(world.address).await;
    second.send(&request).await;
    world.origin.open_gate();
    assert_eq!(first.response("POST").await.text(), "ok");
    let answer = second.response("POST").await;
    assert_eq!(answer.text(), "ok");
    assert!(answer.outcome().ends_with(";replayed"), "{}", answer.outcome());
    assert_eq!(world.origin.effects("/gate"), 1);
}

/// K-11: an equal request after an unknown one is not dispatched; what a client changes per try
/// does not help it, its own new id does.
#[tokio::test]
async fn k_11_an_equal_request_in_doubt_is_refused() {
    let world = World::new().await;
    let first = world.plain("POST", "/close", "X-Stainless-Retry-Count: 0\r\n", "x").await;
    assert_eq!(first.status, 502);
    for n in 1..4 {
        let fields = format!("X-Stainless-Retry-Count: {n}\r\nDate: {n}\r\n");
        let again = world.plain("POST", "/close", &fields, "x").await;
        assert_eq!(again.status, 424);
        assert_eq!(again.field("x-should-retry"), "false");
        assert_eq!(
            again.facts(),
            ["IN_DOUBT_DUPLICATE", "validation", "not_attempted", "reconcile"]
        );
        assert_eq!(again.json()["error"]["follow"], first.id().to_string());
        assert_ne!(again.id(), first.id());
    }
    assert_eq!(world.origin.effects("/close"), 1);
    assert_eq!(world.plain("POST", "/close", "", "other").await.status, 502);
    assert_eq!(world.origin.effects("/close"), 2);
    let own = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
    assert_eq!(world.plain("POST", "/close", &own, "x").await.status, 502);
    assert_eq!(world.origin.effects("/close"), 3);
}

/// K-11: while the first is in flight, an equal one is refused.
#[tokio::test]
async fn k_11_an_equal_request_in_flight_is_refused() {
    let world = World::new().await;
    let request = world.plain_request("POST", "/gate", "", "x");
    let mut first = Client::connect(world.address).await;
    first.send(&request).await;
    world.origin.reached("/gate", 1).await;
    let mut second = Client::connect(world.address).await;
    second.send(&request).await;
    let refused = second.response("POST").await;
    assert_eq!(refused.status, 424);
    world.origin.open_gate();
    let answer = first.response("POST").await;
    assert_eq!(answer.text(), "ok");
    assert_eq!(refused.json()["error"]["follow"], answer.id().to_string());
    assert_eq!(world.origin.effects("/gate"), 1);
}

/// K-11: after a 5xx the stored result answers; after a handed-over 2xx an equal request is a new
/// action; idempotent requests are not guarded.
#[tokio::test]
async fn k_11_settled_calls_answer_or_make_way() {
    let world = World::new().await;
    let first = world.plain("POST", "/status/500", "", "x").await;
    let second = world.plain("POST", "/status/500", "", "x").await;
    assert_eq!((second.status, second.text().as_str()), (500, "body"));
    assert_eq!(second.outcome(), format!("{};replayed", first.outcome()));
    assert_eq!(world.origin.effects("/status/500"), 1);
    for n in 1..=5 {
        let response = world.plain("POST", "/ok", "", "x").await;
        assert!(!response.outcome().contains("replayed"));
        world.events(response.id(), "RESULT_DELIVERED").await;
        assert_eq!(world.origin.effects("/ok"), n);
    }
    for n in 1..=2 {
        assert_eq!(world.plain("GET", "/close", "", "").await.status, 502);
        assert_eq!(world.origin.effects("/close"), n);
    }
}

/// K-11 without waiting: the confirmation is there as soon as the caller has its response, most of
/// the time; a repeat that comes sooner is answered from the record, never sent twice by doubt.
#[tokio::test]
async fn k_11_back_to_back_requests_on_one_connection_are_new_actions() {
    let world = World::new().await;
    let mut client = Client::connect(world.address).await;
    for n in 1..=20 {
        client.send(&world.plain_request("POST", "/ok", "", "x")).await;
        let response = client.response("POST").await;
        assert_eq!(response.status, 200);
        assert!(!response.outcome().contains("replayed"), "{n}");
    }
    assert_eq!(world.origin.effects("/ok"), 20);
}

/// K-2, K-3: a declared key is on record before dispatch; the same key with another request is
/// refused; under a verified contract an unknown outcome may be repeated with the key.
#[tokio::test]
async fn k_3_keys_are_bound_to_their_request() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"keyed\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, methods = [\"POST\"], path = \"/close\" }}\n\
                 idempotency = {{ header = \"Idempotency-Key\", scope = \"pay\", retention = \"24h\", contract = \"verified\" }}\n\
                 private_addresses = \"allow\"\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    let key = "Idempotency-Key: k1\r\n";
    let first = world.plain("POST", "/close", key, "x").await;
    assert_eq!(
        first.facts(),
        ["REMOTE_OUTCOME_UNKNOWN", "remote_execution", "unknown", "same_idempotency_key"]
    );
    assert_eq!(first.json()["evidence"]["idempotency"]["key"], "k1");
    assert_eq!(first.all("x-should-retry").len(), 0);
    let other = world.plain("POST", "/close", key, "y").await;
    assert_eq!(other.status, 422);
    let again = world.plain("POST", "/close", key, "x").await;
    assert_eq!(again.status, 502);
    assert_eq!(world.origin.effects("/close"), 2);
    let without = world.plain("POST", "/close", "", "x").await;
    assert_eq!(without.facts()[3], "reconcile");
}

/// K-11: callers that open a connection per request and repeat at once do mean new actions.
#[tokio::test]
async fn k_11_back_to_back_requests_on_new_connections_are_new_actions() {
    let world = World::new().await;
    for n in 1..=30 {
        let response = world.plain("POST", "/ok", "", "x").await;
        assert!(!response.outcome().contains("replayed"), "{n}");
    }
    assert_eq!(world.origin.effects("/ok"), 30);
}

/// R-5, K-10: where no result is kept, a repeat is told the outcome, and nothing is run again.
#[tokio::test]
async fn r_5_a_result_that_was_not_kept_is_not_made_again() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"unkept\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/ok\" }}\n\
                 private_addresses = \"allow\"\nresult = {{ keep = \"none\" }}\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    let fields = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
    assert_eq!(world.plain("POST", "/ok", &fields, "x").await.status, 200);
    let again = world.plain("POST", "/ok", &fields, "x").await;
    assert_eq!(again.status, 424);
    assert_eq!(again.facts(), ["OK", "remote_execution", "committed", "never"]);
    assert_eq!(world.origin.effects("/ok"), 1);
}

/// a result over the route's bound goes to the caller whole, and is not kept in part.
#[tokio::test]
async fn r_4_a_result_over_the_bound_is_not_kept_in_part() {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"bounded\"\nagents = [\"coder\"]\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/big\" }}\n\
                 private_addresses = \"allow\"\nresult = {{ keep = \"full\", max_bytes = \"1KiB\" }}\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    for length in [1024, 1025, 2_000_000] {
        let response = world.plain("GET", &format!("/big?{length}"), "", "").await;
        assert_eq!(response.content.len(), length);
        let invocation = world.invocation(response.id()).await;
        assert_eq!(invocation.evidence().result_stored, length <= 1024, "{length}");
        assert_eq!(world.journal.result(response.id()).is_ok(), length <= 1024, "{length}");
    }
}

/// A route that reads nothing ahead, and one that allows only short pauses.
fn paced(origin: &support::Origin) -> String {
    let port = origin.address.port();
    format!(
        "[[route]]\nname = \"unguarded\"\nagents = [\"coder\"]\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, path = \"/status/201\" }}\n\
         private_addresses = \"allow\"\nrepeat_guard = \"off\"\n\
         [[route]]\nname = \"hasty\"\nagents = [\"coder\"]\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {port}, path = \"/status/202\" }}\n\
         private_addresses = \"allow\"\nlimits = {{ idle_timeout = \"300ms\" }}\n"
    )
}

async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(2200)).await;
}

/// K-11: how the content arrives has no part in the fingerprint.
#[tokio::test]
async fn k_11_pauses_in_the_content_do_not_make_another_request() {
    let world = World::new().await;
    let request = world.plain_request("POST", "/close", "", &"x".repeat(1000));
    let mut client = Client::connect(world.address).await;
    client.send(&request).await;
    let first = client.response("POST").await;
    assert_eq!(first.status, 502);
    let mut client = Client::connect(world.address).await;
    client.send(&request[..request.len() - 500]).await;
    pause().await;
    client.send(&request[request.len() - 500..]).await;
    let again = client.response("POST").await;
    assert_eq!((again.status, again.facts()[0].as_str()), (424, "IN_DOUBT_DUPLICATE"));
    assert_eq!(world.origin.effects("/close"), 1);
}

/// V-1: a pause of the route's idle time before dispatch: nothing was attempted.
#[tokio::test]
async fn k_11_a_stall_before_dispatch_ends_the_call() {
    let world = World::with(|origin, _| paced(origin), proxy::Options::default()).await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("POST", "/status/202", "", "0123456789");
    client.send(&request[..request.len() - 5]).await;
    let response = client.response("POST").await;
    assert_eq!(response.status, 400);
    assert_eq!(response.facts(), ["CALLER_GONE", "validation", "not_attempted", "backoff"]);
    assert_eq!(world.origin.all_effects(), 0);
}

/// Without guard, id and key, content flows at once.
#[tokio::test]
async fn an_unguarded_route_streams_at_once() {
    let world = World::with(|origin, _| paced(origin), proxy::Options::default()).await;
    let mut client = Client::connect(world.address).await;
    let request = world.plain_request("POST", "/status/201", "", "0123456789");
    client.send(&request[..request.len() - 5]).await;
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while world.origin.connections() == 0 {
        assert!(tokio::time::Instant::now() < until, "not dispatched");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    client.send(&request[request.len() - 5..]).await;
    assert_eq!(client.response("POST").await.status, 201);
    assert_eq!(world.origin.last_content(), b"0123456789");
}

/// Content of `length` bytes with another byte at its end.
fn long(length: usize, last: u8) -> Vec<u8> {
    let mut content: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
    content[length - 1] = last;
    content
}

/// Sends content in pieces of the size; chunked or with a length.
async fn send_long(
    world: &World,
    path: &str,
    fields: &str,
    content: &[u8],
    size: usize,
    chunked: bool,
) -> support::Response {
    let address = world.origin.address;
    let framing = if chunked {
        "Transfer-Encoding: chunked\r\n".to_owned()
    } else {
        format!("Content-Length: {}\r\n", content.len())
    };
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!(
            "POST http://{address}{path} HTTP/1.1\r\nHost: {address}\r\n{}{fields}{framing}\r\n",
            world.credentials()
        ))
        .await;
    for piece in content.chunks(size) {
        if chunked {
            client.send(&format!("{:x}\r\n", piece.len())).await;
        }
        // A refusal may come before everything is sent.
        if !client.try_send(piece).await {
            break;
        }
        if chunked {
            client.send("\r\n").await;
        }
    }
    if chunked {
        client.send("0\r\n\r\n").await;
    }
    client.response("POST").await
}

/// K-11: long content in doubt is never sent again, however it is cut into pieces.
#[tokio::test]
async fn k_11_long_content_in_doubt_is_not_sent_again() {
    let world = World::new().await;
    for (chunked, seen) in [(false, 1), (true, 2)] {
        let content = long(3_000_000, 1);
        for (n, size) in [1 << 20, 65_536, 9_999, 3_000_000].into_iter().enumerate() {
            let response = send_long(&world, "/close", "", &content, size, chunked).await;
            let expected = if n == 0 { 502 } else { 424 };
            assert_eq!(response.status, expected, "{chunked} {size}");
        }
        assert_eq!(world.origin.effects("/close"), seen);
    }
}

/// K-3, K-10: under one id, content that only begins alike is a mismatch, each time; equal content
/// is answered from the record.
#[tokio::test]
async fn k_10_long_content_is_compared_to_its_end() {
    let world = World::new().await;
    for chunked in [false, true] {
        let path = "/status/200";
        let id = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
        let (one, two) = (long(2_500_000, 1), long(2_500_000, 2));
        let first = send_long(&world, path, &id, &one, 70_000, chunked).await;
        assert_eq!(first.status, 200);
        let before = world.origin.all_effects();
        for size in [2_500_000, 12_345] {
            let other = send_long(&world, path, &id, &two, size, chunked).await;
            assert_eq!((other.status, other.facts()[0].as_str()), (422, "IDEMPOTENCY_MISMATCH"));
            let equal = send_long(&world, path, &id, &one, size, chunked).await;
            assert_eq!((equal.status, equal.text().as_str()), (200, "body"));
            assert!(equal.outcome().ends_with(";replayed"), "{}", equal.outcome());
        }
        assert_eq!(world.origin.all_effects(), before);
    }
}

/// K-11: content that begins like that of a settled call is neither sent nor told `committed`; its
/// caller is told how to mean another action.
#[tokio::test]
async fn k_11_content_that_begins_alike_is_in_doubt() {
    let world = World::new().await;
    let path = "/status/500";
    let (one, two) = (long(2_000_000, 1), long(2_000_000, 2));
    let first = send_long(&world, path, "", &one, 50_000, false).await;
    assert_eq!(first.status, 500);
    let equal = send_long(&world, path, "", &one, 2_000_000, false).await;
    assert_eq!(equal.outcome(), format!("{};replayed", first.outcome()));
    let other = send_long(&world, path, "", &two, 50_000, false).await;
    assert_eq!((other.status, other.facts()[0].as_str()), (424, "IN_DOUBT_DUPLICATE"));
    assert_eq!(other.json()["error"]["follow"], first.id().to_string());
    assert!(other.json()["error"]["message"].to_string().contains("Affiant-Invocation"));
    assert_eq!(world.origin.effects(path), 1);
    let own = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
    assert_eq!(send_long(&world, path, &own, &two, 50_000, false).await.status, 500);
    assert_eq!(world.origin.effects(path), 2);
}

/// K-10: content of exactly the length that a fingerprint covers is covered as a whole.
#[tokio::test]
async fn k_10_content_of_exactly_a_mebibyte_is_covered_as_a_whole() {
    let world = World::new().await;
    let id = format!("Affiant-Invocation: {}\r\n", world.journal.new_id());
    let (one, two) = (long(1 << 20, 1), long(1 << 20, 2));
    assert_eq!(send_long(&world, "/close", &id, &one, 4096, true).await.status, 502);
    assert_eq!(send_long(&world, "/close", &id, &one, 1 << 20, false).await.status, 502);
    assert_eq!(send_long(&world, "/close", &id, &two, 4096, true).await.status, 422);
    assert_eq!(world.origin.effects("/close"), 1);
}
