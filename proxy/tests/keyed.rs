//! Two calls with one key at the same moment (contract K-1, K-3, K-11): what the service is known to do
//! with keys decides.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use support::{Client, World};

/// A route with keys under that contract, and a call with one that waits for the origin's gate.
async fn begun(contract: &str) -> (World, Client) {
    let world = World::with(
        |origin, _| {
            format!(
                "[[route]]\nname = \"keyed\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
                 match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/gate\" }}\n\
                 idempotency = {{ header = \"Idempotency-Key\", scope = \"pay\", retention = \"24h\", \
                 contract = \"{contract}\" }}\n",
                origin.address.port()
            )
        },
        proxy::Options::default(),
    )
    .await;
    let mut first = Client::connect(world.address).await;
    first.send(&world.plain_request("POST", "/gate", KEY, "charge")).await;
    world.origin.reached("/gate", 1).await;
    let other = world.plain("POST", "/gate", KEY, "another").await;
    let facts = ["IDEMPOTENCY_MISMATCH", "validation", "not_attempted", "after_correction"];
    assert_eq!((other.status, other.facts()), (422, facts.map(str::to_owned)), "{contract}");
    (world, first)
}

const KEY: &str = "Idempotency-Key: k-1\r\n";

/// K-3, K-11: of a service of which nothing is known, an equal call is held back and told where to look, and
/// another one under the key is refused.
#[tokio::test]
async fn k_11_a_key_that_proves_nothing_lets_one_of_two_calls_out() {
    let (world, mut first) = begun("unverified").await;
    let equal = world.plain("POST", "/gate", KEY, "charge").await;
    assert_eq!((equal.status, equal.facts()[0].as_str()), (424, "IN_DOUBT_DUPLICATE"));
    world.origin.open_gate();
    let answer = first.response("POST").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    assert_eq!(equal.json()["error"]["follow"], answer.id().to_string());
    assert_eq!(equal.facts()[1..3], ["validation", "not_attempted"]);
    assert_eq!(world.origin.effects("/gate"), 1);
}

/// K-1, K-3: a service that is known to hold the first result of a key may be asked by both at once: with
/// the same key and the same content, and with no other.
#[tokio::test]
async fn k_1_under_a_verified_contract_the_service_decides() {
    let (world, mut first) = begun("verified").await;
    let mut second = Client::connect(world.address).await;
    second.send(&world.plain_request("POST", "/gate", KEY, "charge")).await;
    world.origin.reached("/gate", 2).await;
    for client in [&mut first, &mut second] {
        world.origin.open_gate();
        assert_eq!(client.response("POST").await.text(), "ok");
    }
    let seen = world.origin.peer.seen();
    assert!(seen.iter().all(|seen| seen.body == b"charge"));
    let keyed = seen.iter().filter(|seen| seen.text().contains("Idempotency-Key: k-1\r\n"));
    assert_eq!((keyed.count(), seen.len()), (2, 2));
}
