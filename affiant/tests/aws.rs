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
use std::net::TcpStream;
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

/// D-2: chunks are signed anew as they pass. One that is malformed ends the request; the origin has those
/// before it, so the outcome is unknown, and the record says whose fault it was.
#[test]
fn d_2_a_bad_chunk_behind_good_ones_is_unknown() {
    let home = Home::new();
    let origin = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = origin.local_addr().unwrap();
    home.secret("aws", "AKIDEXAMPLE:secret");
    home.policy(&format!(
        "[[credential]]\nid = \"aws\"\nsecret = \"aws\"\ninject = \"sigv4\"\n\
         [[route]]\nname = \"aws\"\nmatch = {{ scheme = \"http\", host = \"127.0.0.1\", port = {} }}\n\
         credential = \"aws\"\nprivate_addresses = \"allow\"\n",
        address.port()
    ));
    let server = home.serve();
    let id = "act_01KBAS2Q3V4W5X6Y7Z8A9B0C1D";
    let mut caller = TcpStream::connect(server.http).unwrap();
    let chunk = format!("400;chunk-signature={}\r\n{}\r\n", "0".repeat(64), "c".repeat(0x400));
    // More than is read ahead of the dispatch.
    let good = chunk.repeat(1200);
    let head = format!(
        "PUT http://{address}/key HTTP/1.1\r\nHost: {address}\r\nProxy-Authorization: Bearer {}\r\n\
         Affiant-Invocation: {id}\r\nX-Amz-Date: 20261130T120000Z\r\n\
         X-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=none/20261130/us-east-1/s3/aws4_request, \
         SignedHeaders=host, Signature=00\r\n\
         X-Amz-Decoded-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        home.token,
        1202 * 0x400,
        1202 * chunk.len()
    );
    let mut sending = caller.try_clone().unwrap();
    let sent = format!("{head}{good}");
    let sent = std::thread::spawn(move || sending.write_all(sent.as_bytes()).unwrap());
    let (mut taken, _) = origin.accept().unwrap();
    // The good chunks are at the origin, as long as they were.
    let mut got = vec![0; good.len()];
    std::io::Read::read_exact(&mut taken, &mut got).unwrap();
    assert!(got.starts_with(b"PUT /key HTTP/1.1\r\n"));
    sent.join().unwrap();
    caller.write_all(chunk.replace("400;", "4x0;").as_bytes()).unwrap();
    server.await_event(id, "INVOCATION_ENDED");
    let shown = home.json(&["inv", "show", id]);
    assert_eq!(shown["error"]["outcome"], "unknown", "{shown}");
    assert_eq!(shown["error"]["code"], "CALLER_CANCELLED", "{shown}");
    let events = home.json(&["inv", "events", id]).to_string();
    assert!(events.contains("CALLER_MALFORMED"), "{events}");
}
