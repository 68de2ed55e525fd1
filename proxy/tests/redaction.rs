//! Credentials that an origin sends back (contract I-2, I-4): neither the caller nor the home's files
//! get to see them.

#![allow(clippy::panic, reason = "tests")]

mod support;

use journal::contract::Body;
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
    assert_eq!(response.text(), "zz");
    assert_eq!(notes(&world, &response), ["redaction_skipped"]);
}
