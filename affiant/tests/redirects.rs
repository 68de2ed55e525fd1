//! Redirects that a client follows (contract C-7): each one is a new invocation, linked to its origin, and
//! a credential never crosses origins.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/service.rs"]
mod service;
mod support;

use service::{Done, Service};
use support::*;

/// C-7: curl follows one redirect inside of the origin, and one to another; the other origin gets no
/// credential, and the three calls are a chain on record.
#[test]
fn c_7_a_followed_redirect_is_a_new_invocation_without_the_credential() {
    let other = Service::start(|_| Done::and_answers(200, "", "elsewhere"));
    let url = other.url("/landed");
    let service = Service::start(move |asked| match asked.target.as_str() {
        "/begin" => Done::and_answers(302, "Location: /second?q=1\r\n", ""),
        "/second?q=1" => Done::and_answers(307, &format!("Location: {url}\r\n"), ""),
        _ => Done::nothing_but(404, "", ""),
    });
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let plain = format!(
        "[[route]]\nname = \"other\"\nprivate_addresses = \"allow\"\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {} }}\n",
        other.address().port()
    );
    home.policy(&format!("{}\n{plain}", service.policy("")));
    let server = home.serve();
    let landed = server.curl(&["-L", &service.url("/begin")]);
    assert_eq!((landed.status, text(&landed.body).as_str()), (200, "elsewhere"));
    let sent: Vec<_> = service.asked().iter().map(|a| a.field("authorization").is_some()).collect();
    assert_eq!(sent, [true, true]);
    let there = other.asked();
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].field("authorization"), None);

    let all = server.control("invocations");
    let all = all["invocations"].as_array().unwrap();
    assert_eq!(all.len(), 3);
    // Newest first: each one is linked to the one before.
    assert_eq!(all[0]["links"]["earlier"], all[1]["invocation_id"]);
    assert_eq!(all[1]["links"]["earlier"], all[2]["invocation_id"]);
    assert_eq!(all[2]["links"]["earlier"], serde_json::json!(null));
    assert_eq!(
        (&all[0]["credential"], &all[0]["route"]),
        (&serde_json::json!(null), &"other".into())
    );
    // The same target again, without a redirect, is linked to nothing.
    server.curl(&[&other.url("/landed")]);
    let newest = server.control("invocations?limit=1");
    assert_eq!(newest["invocations"][0]["links"]["earlier"], serde_json::json!(null));
}
