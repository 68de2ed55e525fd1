//! Names and addresses: what is asked of DNS, what of its answers is dialled, and what failures say.

#![allow(clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod support;

use proxy::Options;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use support::dns::{Dns, Known};
use support::{Client, Response, World};

/// Every name below `test` leads to the plain origin's port; private addresses only below `in.test`.
async fn world(dns: &Dns) -> World {
    let options = Options { name_servers: vec![dns.address], ..Options::default() };
    World::with(
        |plain, _| {
            let port = plain.address.port();
            let route = |name: &str, host: &str, terms: &str| {
                format!(
                    "[[route]]\nname = \"{name}\"\n\
                     match = {{ scheme = \"http\", host = \"{host}\", port = {port} }}\n\
                     limits = {{ connect_timeout = \"4s\" }}\n{terms}\n"
                )
            };
            route("any", "*.test", "") + &route("in", "*.in.test", "private_addresses = \"allow\"")
        },
        options,
    )
    .await
}

async fn get(world: &World, host: &str) -> Response {
    let port = world.origin.address.port();
    let credentials = world.credentials();
    let mut client = Client::connect(world.address).await;
    client
        .send(&format!(
            "GET http://{host}:{port}/ok HTTP/1.1\r\nHost: {host}:{port}\r\n{credentials}\r\n"
        ))
        .await;
    client.response("GET").await
}

fn four(addresses: &[Ipv4Addr]) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    (addresses.to_vec(), Vec::new())
}

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// V-1: a name that policy does not allow is never asked for.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_policy_comes_before_dns() {
    let dns = Dns::start(&[("exfiltrated.example", Known::Code(3))]).await;
    let world = world(&dns).await;
    let answer = get(&world, "exfiltrated.example").await;
    assert_eq!((answer.status, answer.facts()[0].as_str()), (403, "TARGET_NOT_ALLOWED"));
    assert_eq!(dns.asked(), Vec::<String>::new());
}

/// C-4: names with a trailing dot and in any case are one name; the address that was checked is the
/// one that is dialled, whatever DNS says afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn c_4_the_checked_address_is_dialled() {
    let flip = vec![four(&[LOOPBACK]), four(&[Ipv4Addr::new(10, 9, 8, 7)])];
    let dns = Dns::start(&[
        ("a.in.test", Known::Addresses(vec![four(&[LOOPBACK])])),
        ("flip.in.test", Known::Addresses(flip)),
    ])
    .await;
    let world = world(&dns).await;
    for host in ["a.in.test", "A.In.Test", "a.in.test."] {
        let answer = get(&world, host).await;
        assert_eq!(answer.text(), "ok", "{host} {answer:?}");
        let port = world.origin.address.port();
        assert!(world.origin.last_head().contains(&format!("\r\nHost: {host}:{port}\r\n")));
    }
    assert_eq!(get(&world, "flip.in.test").await.text(), "ok");
    let asked = dns.asked();
    assert_eq!(asked.iter().filter(|name| *name == "flip.in.test").count(), 1);
}

/// C-1, C-4: of several addresses the good one serves, each other try is on record; addresses of a
/// forbidden class are not even tried.
#[tokio::test(flavor = "multi_thread")]
async fn c_4_every_try_is_on_record() {
    let both = (vec![LOOPBACK], vec![Ipv6Addr::LOCALHOST]);
    let mixed = four(&[LOOPBACK, Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(169, 254, 169, 254)]);
    let dns = Dns::start(&[
        ("both.in.test", Known::Addresses(vec![both])),
        ("mixed.test", Known::Addresses(vec![mixed])),
    ])
    .await;
    let world = world(&dns).await;
    let port = world.origin.address.port();
    let answer = get(&world, "both.in.test").await;
    assert_eq!(answer.text(), "ok");
    let evidence = world.invocation(answer.id()).await.evidence();
    let tries: Vec<_> = evidence
        .attempts
        .iter()
        .map(|a| (a.n, a.code.clone(), a.address.clone().expect("address")))
        .collect();
    assert_eq!(
        tries,
        [
            (1, "ECONNREFUSED".to_owned(), format!("[::1]:{port}")),
            (2, "ok".to_owned(), format!("127.0.0.1:{port}"))
        ]
    );
    let answer = get(&world, "mixed.test").await;
    assert_eq!((answer.status, answer.facts()[0].as_str()), (403, "ADDRESS_PROHIBITED"));
    let said = answer.field("proxy-status");
    assert!(said.starts_with("affiant;error=destination_ip_prohibited;"), "{said}");
    let evidence = world.invocation(answer.id()).await.evidence();
    assert_eq!(evidence.attempts.len(), 1);
}

/// C-1: what DNS says or does not say, in the words of RFC 9209.
#[tokio::test(flavor = "multi_thread")]
async fn c_1_failures_of_dns_have_their_kinds() {
    let dns = Dns::start(&[
        ("absent.test", Known::Code(3)),
        ("empty.test", Known::Addresses(vec![four(&[])])),
        ("failing.test", Known::Code(2)),
        ("refused.test", Known::Code(5)),
        ("bogus.test", Known::Extended(2, 6)),
        ("blocked.test", Known::Extended(5, 15)),
        ("silent.test", Known::Silent),
    ])
    .await;
    let world = world(&dns).await;
    let port = world.origin.address.port();
    for (host, status, code, error, retry) in [
        (
            "absent.test",
            502,
            "DESTINATION_NOT_FOUND",
            "destination_not_found;HOP",
            "after_correction",
        ),
        (
            "empty.test",
            502,
            "DESTINATION_NOT_FOUND",
            "destination_not_found;HOP",
            "after_correction",
        ),
        ("failing.test", 502, "DNS_ERROR", "dns_error;HOP;rcode=\"SERVFAIL\"", "backoff"),
        ("refused.test", 502, "DNS_ERROR", "dns_error;HOP;rcode=\"REFUSED\"", "backoff"),
        ("bogus.test", 502, "DNS_ERROR", "dns_error;HOP;rcode=\"SERVFAIL\";info-code=6", "backoff"),
        (
            "blocked.test",
            502,
            "DNS_ERROR",
            "dns_error;HOP;rcode=\"REFUSED\";info-code=15",
            "backoff",
        ),
        ("silent.test", 504, "DNS_TIMEOUT", "dns_timeout;HOP", "backoff"),
    ] {
        let asked = tokio::time::timeout(Duration::from_secs(15), get(&world, host));
        let answer = asked.await.expect("in time");
        let facts = answer.facts();
        assert_eq!((answer.status, facts[0].as_str()), (status, code), "{host}");
        assert_eq!(facts[1..], ["connection_setup", "not_attempted", retry]);
        let hop = format!("next-hop=\"{host}:{port}\"");
        let expected = format!("affiant;error={};", error.replace("HOP", &hop));
        let said = answer.field("proxy-status");
        assert!(said.starts_with(&expected), "{said}\n{expected}");
    }
}

/// V-1: international names come as their ASCII labels or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_international_names_are_ascii_on_the_wire() {
    let name = "xn--bcher-kva.in.test";
    let dns = Dns::start(&[(name, Known::Addresses(vec![four(&[LOOPBACK])]))]).await;
    let world = world(&dns).await;
    assert_eq!(get(&world, name).await.text(), "ok");
    assert_eq!(dns.asked(), [name]);
    for host in ["bücher.in.test", "\u{212a}elvin.in.test", "[fe80::1%25eth0]", "127.0.0.1.."] {
        let answer = get(&world, host).await;
        assert_eq!(answer.status, 400, "{host}");
    }
    assert_eq!(dns.asked().len(), 1);
}
