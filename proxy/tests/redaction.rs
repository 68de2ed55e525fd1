//! Credentials that an origin sends back (contract I-2, I-4): neither the caller nor the home's files
//! get to see them.

#![allow(clippy::panic, reason = "tests")]

mod support;

use journal::contract::{Body, Outcome, Phase};
use support::encoded::{CODINGS, NAMED, encode, text, unpack};
use support::{SECRET, World};

/// I-4, E-2: in reason, names, values, trailers and the origin's own id of the request.
#[tokio::test]
async fn i_4_heads_and_trailers_are_redacted_everywhere() {
    let world = World::new().await;
    let stars = "*".repeat(SECRET.len());
    for (path, expected) in [
        ("/echo-reason", format!("HTTP/1.1 200 Bearer {stars}")),
        ("/echo-name", format!("X-{stars}-a: v")),
        ("/echo-id", format!("X-Request-Id: {}{stars}", "*".repeat(7))),
        ("/echo-trailer", format!("X-{stars}: {stars}")),
    ] {
        let path = format!("/with-credential{path}");
        let mut client = world.tunnel().await;
        client.send(&world.secure_request("POST", &path, "", "x")).await;
        let response = client.response("POST").await;
        let lines = format!("{}{}", response.head, response.trailers);
        let plain = expected.replace("Bearer ", &"*".repeat(7));
        assert!(lines.lines().any(|line| line == expected || line == plain), "{path}: {lines}");
        assert!(!lines.to_lowercase().contains(SECRET), "{path}: {lines}");
        let invocation = world.invocation(response.id()).await;
        assert!(invocation.evidence().redacted, "{path}");
        let evidence = serde_json::to_string(&invocation.envelope()).unwrap_or_default();
        assert!(!evidence.contains(SECRET), "{evidence}");
        let mut stored = world.journal.result(response.id()).unwrap_or_else(|e| panic!("{e}"));
        let head = String::from_utf8_lossy(stored.head().unwrap_or_default()).into_owned();
        assert!(!head.to_lowercase().contains(SECRET), "{head}");
        drop(stored.read_to_end());
    }
    world.journal.close().await;
    assert_eq!(world.files_with(SECRET), Vec::<std::path::PathBuf>::new());
}

fn notes(world: &World, response: &support::Response) -> Vec<String> {
    let events = world.journal.events(response.id()).unwrap_or_else(|e| panic!("{e}"));
    let note = |body: Body| if let Body::Noted(noted) = body { Some(noted.name) } else { None };
    events.into_iter().filter_map(|(_, event)| note(event.body)).collect()
}

/// I-4: with a credential, encodings are not asked for; without, they are the caller's choice.
#[tokio::test]
async fn i_4_encodings_are_not_asked_for_with_a_credential() {
    let world = World::new().await;
    let mut client = world.tunnel().await;
    let fields = "Accept-Encoding: gzip, br\r\n";
    client.send(&world.secure_request("POST", "/with-credential/ok", fields, "x")).await;
    let response = client.response("POST").await;
    let sent = world.secure.last_head();
    assert!(sent.contains("\r\nAccept-Encoding: identity\r\n"), "{sent}");
    assert_eq!(sent.to_lowercase().matches("accept-encoding").count(), 1, "{sent}");
    assert_eq!(notes(&world, &response), ["encoding_not_asked_for"]);
    client.send(&world.secure_request("POST", "/with-credential/ok", "", "y")).await;
    let response = client.response("POST").await;
    assert!(world.secure.last_head().contains("\r\nAccept-Encoding: identity\r\n"));
    assert_eq!(notes(&world, &response), Vec::<String>::new());
    client.send(&world.secure_request("POST", "/ok", fields, "z")).await;
    let response = client.response("POST").await;
    assert!(world.secure.last_head().contains("\r\nAccept-Encoding: gzip, br\r\n"));
    assert_eq!(notes(&world, &response), Vec::<String>::new());
    // An origin that encodes all the same.
    client.send(&world.secure_request("POST", "/with-credential/echo-gzip", "", "x")).await;
    let response = client.response("POST").await;
    assert_eq!(response.text(), "z".repeat(16));
    assert_eq!(notes(&world, &response), ["redaction_skipped"]);
}

/// Asks for encoded content; the response, and what its record notes.
async fn encoded(world: &World, query: &str) -> (support::Response, Vec<String>) {
    let mut client = world.tunnel().await;
    let path = format!("/with-credential/encoded?{query}");
    client.send(&world.secure_request("POST", &path, "", query)).await;
    let response = client.response("POST").await;
    let notes = notes(world, &response);
    (response, notes)
}

fn stored(world: &World, response: &support::Response) -> Option<Vec<u8>> {
    world.journal.result(response.id()).ok()?.read_to_end().ok()
}

/// I-4: in content that the origin encoded unasked, however it is cut; what is stored is what is
/// delivered.
#[tokio::test]
async fn i_4_echoes_in_encoded_content_are_replaced() {
    let world = World::new().await;
    for coding in CODINGS {
        for (framing, piece) in [("length", 0), ("chunked", 3)] {
            let shape = format!("coding={coding}&framing={framing}&piece={piece}");
            let (response, notes) =
                encoded(&world, &format!("{shape}&before=5000&after=5000")).await;
            assert!(response.complete, "{shape}: {response:?}");
            assert_eq!(response.field("content-encoding"), coding, "{shape}");
            let expected = text(5000, &"*".repeat(SECRET.len()), 5000);
            assert_eq!(unpack(coding, &response.content), Some(expected), "{shape}");
            assert_eq!(stored(&world, &response), Some(response.content.clone()), "{shape}");
            assert_eq!(notes, ["encoded_anew"], "{shape}");
            let invocation = world.invocation(response.id()).await;
            assert!(invocation.evidence().redacted, "{shape}");
            assert_eq!(invocation.verdict().outcome(), Outcome::Committed);
        }
    }
    world.journal.close().await;
    assert_eq!(world.files_with(SECRET), Vec::<std::path::PathBuf>::new());
}

/// I-4, E-4: digests of the origin's bytes, and its strong validator, do not name other bytes; held or
/// streamed, delivered and stored. Where nothing is replaced they stay.
#[tokio::test]
async fn i_4_no_digest_names_bytes_that_are_not_the_origins() {
    let options = proxy::Options { hold_bytes: 10_000, ..proxy::Options::default() };
    let world = World::with(|_, _| String::new(), options).await;
    for coding in ["gzip", "identity"] {
        for framing in ["framing=length", "framing=chunked&piece=997"] {
            for after in [100, 100_000] {
                let shape = format!("coding={coding}&{framing}&named&before=100&after={after}");
                let (response, _) = encoded(&world, &shape).await;
                assert!(response.complete, "{shape}: {response:?}");
                let stored = world.journal.result(response.id()).unwrap_or_else(|e| panic!("{e}"));
                let stored =
                    String::from_utf8_lossy(stored.head().unwrap_or_default()).into_owned();
                for head in [&response.head, &stored] {
                    assert!(!head.to_ascii_lowercase().contains("digest"), "{shape}: {head}");
                    assert!(!head.contains("Content-MD5"), "{shape}: {head}");
                }
                assert_eq!(response.field("etag"), "W/\"e\"", "{shape}");
                assert_eq!(response.field("last-modified"), "x", "{shape}");
                let trailers = response.trailers.to_ascii_lowercase();
                assert!(!trailers.contains("digest"), "{shape}: {trailers}");
                assert_eq!(trailers.contains("x-sum: 1"), framing.contains("chunked"), "{shape}");

                let (response, _) = encoded(&world, &format!("{shape}&no-echo")).await;
                assert!(NAMED.lines().all(|line| response.head.contains(line)), "{shape}");
                let digests = response.trailers.matches("Content-Digest: ").count();
                assert_eq!(digests, usize::from(framing.contains("chunked")), "{shape}");
            }
        }
    }
}

/// I-4: where nothing is found, every byte is the origin's, held or streamed.
#[tokio::test]
async fn i_4_encoded_content_without_an_echo_keeps_its_bytes() {
    let options = proxy::Options { hold_bytes: 10_000, ..proxy::Options::default() };
    let world = World::with(|_, _| String::new(), options).await;
    for coding in CODINGS {
        for length in [10, 5000, 150_000] {
            let query =
                format!("coding={coding}&framing=chunked&piece=997&no-echo&before={length}");
            let (response, notes) = encoded(&world, &query).await;
            assert!(response.complete, "{query}");
            assert!(response.content == encode(coding, &text(length, "", 0)), "{query}");
            assert_eq!(stored(&world, &response), Some(response.content.clone()), "{query}");
            assert_eq!(notes, Vec::<String>::new(), "{query}");
            assert!(!world.invocation(response.id()).await.evidence().redacted);
        }
    }
}

/// I-4, S-2: found before anything was delivered, the rest of a long response is encoded anew too;
/// found later, it is cut where the caller sees it, and the result is on record without its content.
#[tokio::test]
async fn i_4_an_echo_in_a_long_encoded_response() {
    let options = proxy::Options { hold_bytes: 10_000, ..proxy::Options::default() };
    let world = World::with(|_, _| String::new(), options).await;
    for coding in CODINGS {
        let shape = format!("coding={coding}&framing=chunked&piece=997");
        let (response, _) = encoded(&world, &format!("{shape}&before=100&after=300000")).await;
        assert!(response.complete, "{shape}");
        let expected = text(100, &"*".repeat(SECRET.len()), 300_000);
        assert!(unpack(coding, &response.content) == Some(expected), "{shape}");
        assert_eq!(stored(&world, &response), Some(response.content.clone()), "{shape}");

        let (response, _) = encoded(&world, &format!("{shape}&before=300000&after=100")).await;
        assert!(!response.complete, "{shape}");
        let whole = encode(coding, &text(300_000, SECRET, 100));
        assert!(response.content.len() > 100_000, "{shape}");
        assert!(whole.starts_with(&response.content), "{shape}");
        let invocation = world.invocation(response.id()).await;
        let verdict = invocation.verdict();
        assert_eq!(verdict.outcome(), Outcome::Committed);
        world.events(response.id(), "DELIVERY_FAILED").await;
        assert_eq!(notes(&world, &response), ["result_withheld"], "{shape}");
        assert!(invocation.evidence().redacted, "{shape}");
        assert_eq!(stored(&world, &response), None, "{shape}");
    }
    world.journal.close().await;
    assert_eq!(world.files_with(SECRET), Vec::<std::path::PathBuf>::new());
}

/// I-4: what unpacks beyond every bound is not delivered, because it can't be looked through.
#[tokio::test]
async fn i_4_a_decompression_bomb_is_withheld() {
    let world = World::new().await;
    for coding in ["deflate", "zstd"] {
        let (response, _) =
            encoded(&world, &format!("coding={coding}&framing=length&piece=4096&bomb")).await;
        let [code, phase, outcome, retry] = response.facts();
        assert_eq!((phase.as_str(), outcome.as_str()), ("result_delivery", "committed"));
        assert_eq!((code.as_str(), retry.as_str()), ("DELIVERY_FAILED", "never"), "{response:?}");
        let said = response.field("proxy-status");
        assert!(said.starts_with("affiant;error=http_response_content_coding"), "{said}");
        world.events(response.id(), "DELIVERY_FAILED").await;
        let invocation = world.invocation(response.id()).await;
        assert_eq!(invocation.verdict().phase(), Phase::ResultDelivery);
        assert_eq!(notes(&world, &response), ["result_withheld"]);
        assert_eq!(stored(&world, &response), None);
    }
}

/// I-4, S-2, C-8: an answer of a hop that failed, and whose content can't be shown, is not delivered as a head
/// without its content: the next answer on the connection is the next call's.
#[tokio::test]
async fn i_4_an_answer_of_a_hop_is_withheld_whole() {
    let world = World::new().await;
    for framing in ["framing=length", "framing=chunked&piece=7"] {
        let mut client = world.tunnel().await;
        let path = format!(
            "/with-credential/encoded?coding=gzip&{framing}&hop&damaged&before=50&after=50"
        );
        client.send(&world.secure_request("POST", &path, "", "x")).await;
        let response = client.response("POST").await;
        let [code, phase, outcome, retry] = response.facts();
        assert_eq!((phase.as_str(), outcome.as_str()), ("remote_execution", "unknown"));
        assert_eq!((code.as_str(), retry.as_str()), ("REMOTE_OUTCOME_UNKNOWN", "reconcile"));
        let said = response.field("proxy-status");
        assert!(said.starts_with("affiant;error=http_response_content_coding"), "{said}");
        assert!(said.contains("received-status=502"), "{said}");
        assert_eq!(notes(&world, &response), ["encoded_anew", "result_withheld", "hop_failed"]);
        let verdict = world.invocation(response.id()).await.verdict();
        assert_eq!(verdict.outcome(), Outcome::Unknown);
        client.send(&world.secure_request("POST", "/status/404", "", "x")).await;
        let next = client.response("POST").await;
        assert_eq!((next.status, next.text().as_str()), (404, "body"), "{framing}");
        assert_ne!(next.id(), response.id());
    }
    world.journal.close().await;
    assert_eq!(world.files_with(SECRET), Vec::<std::path::PathBuf>::new());
}
