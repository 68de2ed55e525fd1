//! What the proxy prints, through the vectors of RFC 9651 and the registry of RFC 9209.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/service.rs"]
mod service;
mod support;

use conformance::fields::{self, ERROR_TYPES};
use journal::contract::{Code, InvocationId, Outcome, Phase, Retry, Verdict};
use proxy::render::{Status, affiant_outcome, proxy_status};
use serde_json::Value;
use std::path::Path;
use support::{Home, SECRET};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// E-4: every verdict that can exist is printed so that a strict reader gets the same words back.
#[test]
fn e_4_every_verdict_is_printed_and_read_back() {
    let mut printed = 0;
    let id = InvocationId::from_parts(1_764_476_760_000, 7);
    for &phase in Phase::ALL {
        for &outcome in Outcome::ALL {
            for &retry in Retry::ALL {
                for &code in Code::ALL {
                    let Ok(verdict) = Verdict::new(phase, outcome, retry, code) else { continue };
                    for replayed in [false, true] {
                        let field = affiant_outcome(verdict, id, replayed);
                        let said = fields::outcome(&field).unwrap();
                        assert_eq!(
                            (said.outcome, said.phase, said.retry, said.code, said.replayed),
                            (outcome, Some(phase), Some(retry), Some(code), replayed),
                            "{field}"
                        );
                        assert_eq!(said.invocation, Some(id.to_string()));
                        printed += 1;
                    }
                }
            }
        }
    }
    assert!(printed > 1000, "{printed}");
}

/// E-4, RFC 9651: whatever text stands in `details` and `next-hop`, the field stays a List of one
/// member of ours. The texts are those of the vectors, the impossible ones included.
#[test]
fn e_4_no_text_breaks_proxy_status() {
    let directory = root().join("conformance/vectors/structured-fields");
    let mut texts = vec!["\"".to_owned(), "\\".to_owned(), "a, b;c".to_owned(), "\r\nX: y".into()];
    for file in ["string.json", "string-generated.json", "token-generated.json"] {
        let vectors: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(directory.join(file)).unwrap()).unwrap();
        texts.extend(vectors.iter().filter_map(|v| v["raw"][0].as_str()).map(str::to_owned));
    }
    assert!(texts.len() > 500);
    for text in &texts {
        for (error, _) in ERROR_TYPES {
            let status = Status {
                error: Some(error),
                received_status: Some(200),
                next_hop: Some(text),
                details: Some(text),
                ..Status::default()
            };
            let field = proxy_status(&status);
            let hops = fields::proxy_status(&field).unwrap_or_else(|e| panic!("{e}: {field}"));
            assert_eq!(hops.len(), 1, "{field}");
            assert_eq!(hops[0].name, "affiant");
            assert_eq!(hops[0].error.as_deref(), Some(error));
        }
    }
}

/// C-8: of the registered types those are taken for proof that nothing was forwarded which prove it, and no
/// others; what is not registered proves nothing.
#[test]
fn c_8_what_the_error_types_of_a_hop_prove() {
    let home = Home::new();
    let hop = service::Service::start(|asked| {
        let error = asked.target.rsplit('/').next().unwrap_or_default();
        let said = format!("Proxy-Status: far;error={error}\r\n");
        service::Done::nothing_but(502, &said, "")
    });
    home.secret("pay-token", SECRET);
    home.policy(&hop.policy(""));
    let server = home.serve();
    for (error, proves) in ERROR_TYPES.into_iter().chain([("of_tomorrow", false)]) {
        let answer = server.curl(&["-X", "POST", &hop.url(&format!("/{error}"))]);
        let said = fields::outcome(answer.field("affiant-outcome").unwrap()).unwrap();
        let expected = if proves { Outcome::Rejected } else { Outcome::Unknown };
        assert_eq!((said.outcome, answer.status), (expected, 502), "{error}");
    }
}

/// RFC 9209 section 2.3: the proxy's table from code to error type names registered types only.
#[test]
fn every_error_type_that_we_emit_is_registered() {
    let source = std::fs::read_to_string(root().join("proxy/src/respond/account.rs")).unwrap();
    let table = source.split("fn status(code: Code)").nth(1).unwrap();
    let table = table.split("\n}").next().unwrap();
    let emitted: Vec<&str> = table
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.contains('_') && word.chars().all(|c| c == '_' || c.is_ascii_lowercase())
        })
        .collect();
    assert!(emitted.len() > 20, "{emitted:?}");
    for name in emitted {
        assert!(ERROR_TYPES.iter().any(|(known, _)| *known == name), "{name} is not registered");
    }
}
