//! AWS signatures against a checker: boto3 with a key that is none, through the proxy, at moto.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use support::*;

/// I-1: S3's paths, its signed, unsigned and chunked content, and STS are signed as a service checks
/// it; without the proxy the same client is refused.
#[test]
fn i_1_moto_takes_every_signature() {
    let home = Home::new();
    let mut peer = python();
    peer.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/aws.py"));
    let mut peer = peer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(peer.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let line = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with('{'));
        serde_json::from_str(&line.expect("a line of the peer")).unwrap()
    };
    let ready = next();
    home.secret("aws", ready["key"].as_str().unwrap());
    home.policy(&format!(
        "[[credential]]\nid = \"aws\"\nsecret = \"aws\"\ninject = \"sigv4\"\n\
         [[route]]\nname = \"aws\"\nmatch = {{ scheme = \"http\", host = \"127.0.0.1\", port = {} }}\n\
         credential = \"aws\"\nprivate_addresses = \"allow\"\nrepeat_guard = \"off\"\n",
        ready["port"]
    ));
    let server = home.serve();
    let mut stdin = peer.stdin.take().unwrap();
    stdin.write_all(format!("{}\n", server.proxy()).as_bytes()).unwrap();
    let results = next();
    wait(&mut peer, PATIENCE);
    assert_eq!(results["unsigned"], "InvalidAccessKeyId", "{results}");
    for (name, found) in results["names"].as_object().unwrap() {
        assert_eq!(found, true, "{name:?} {results}");
    }
    for part in ["trailer", "large", "empty", "signed"] {
        assert_eq!(results[part], true, "{part} {results}");
    }
    for part in ["chunks", "chunks_trailer"] {
        assert_eq!(results[part], json!([true, true]), "{part} {results}");
    }
    assert_eq!(results["listed"], json!(["a b/c+d"]));
    assert_eq!(results["identity"], "user/user");
}
