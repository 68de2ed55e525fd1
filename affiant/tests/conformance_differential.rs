//! Differential fuzzing through the real binary: whatever a caller sends, what is forwarded is one
//! message, and the same one, to two parsers that share no code with ours (h11 and Node's llhttp).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::numbers::{Numbers, seed};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;

const METHODS: [&[u8]; 6] = [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"M-SEARCH"];
/// Requests that are tried.
const TRIES: u32 = 1_500;

fn pick<'a>(numbers: &mut Numbers, of: &[&'a [u8]]) -> &'a [u8] {
    numbers.pick(of).unwrap()
}

/// A request with odd parts, and now and then a changed byte.
fn odd(numbers: &mut Numbers, number: u32, authority: &str, identity: &str) -> Vec<u8> {
    let method = pick(numbers, &METHODS);
    let tail = pick(
        numbers,
        &[
            b"",
            b"?",
            b"?a=b&c",
            b"/%2F%00",
            b"/a;b=c",
            b"/~!$&'()*+,;=:@",
            b"/%7e",
            b"//",
            b"/{}|",
            b"/\xc3\xa4",
            b"/\"<>",
            b"/a b",
        ],
    );
    let mut head = [method, format!(" http://{authority}/{number}").as_bytes(), tail].concat();
    head.extend_from_slice(b" HTTP/1.1\r\n");
    head.extend_from_slice(format!("Host: {authority}\r\n{identity}\r\n").as_bytes());
    for _ in 0..numbers.below(4) {
        head.extend_from_slice(pick(
            numbers,
            &[
                b"X-A: b\r\n",
                b"x-a:\r\n",
                b"X-Tab: a\tb\r\n",
                b"X-High: \xe4\xff\r\n",
                b"X-Space:   a  b  \r\n",
                b"!#$%&'*+-.^_`|~: token\r\n",
                b"X-Quote: \"a, b\"\r\n",
                b"Cookie: a=b; c=d\r\n",
                b"X-Folded: a\r\n b\r\n",
                b"X-Bare: a\nb\r\n",
                b"X Space: a\r\n",
                b"X-Colon : a\r\n",
                b"X-Nul: a\0b\r\n",
                b": empty\r\n",
                b"X-Cr: a\rb\r\n",
                b"Connection: X-A\r\n",
                b"TE: trailers\r\n",
            ],
        ));
    }
    head.extend_from_slice(pick(
        numbers,
        &[
            b"\r\n",
            b"\r\n",
            b"Content-Length: 5\r\n\r\nhello",
            b"Content-Length: 0\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n5;x=\"y\"\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n05\r\nhello\r\n00\r\n\r\n",
            b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
            b"Content-Length: +5\r\n\r\nhello",
        ],
    ));
    if numbers.below(3) == 0 {
        let at = numbers.below(head.len());
        head[at] = pick(numbers, &[b"\0", b"\r", b"\n", b" ", b":", b"\xff", b"\t", b"a"])[0];
    }
    head
}

/// Whether a request is there to its end, for the origin that only collects.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = text(&bytes[..end]).to_ascii_lowercase();
    let content = &bytes[end + 4..];
    if head.contains("\r\ntransfer-encoding: chunked") {
        return content.starts_with(b"0\r\n") && content.ends_with(b"\r\n\r\n")
            || content.windows(5).any(|window| window == b"\r\n0\r\n")
                && content.ends_with(b"\r\n\r\n");
    }
    let length = head.split("\r\ncontent-length:").nth(1).and_then(|rest| {
        rest.split("\r\n").next().unwrap_or_default().trim().parse::<usize>().ok()
    });
    content.len() >= length.unwrap_or(0)
}

/// Collects the bytes of each connection.
fn collect(listener: TcpListener, into: Arc<Mutex<Vec<Vec<u8>>>>) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let into = Arc::clone(&into);
        std::thread::spawn(move || {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let (mut bytes, mut buffer) = (Vec::new(), [0; 65536]);
            while !is_whole(&bytes) {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                }
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            if !bytes.is_empty() {
                into.lock().unwrap().push(bytes);
                // A broker that is done with the connection may not read it.
                drop(stream.write_all(answer));
            }
        });
    }
}

/// Sends the odd requests of a seed through the binary; gives what an origin received, connection by
/// connection.
fn forwarded(seed: u64) -> Vec<Vec<u8>> {
    let mut numbers = Numbers::new(seed);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let forwarded = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&forwarded);
    std::thread::spawn(move || collect(listener, into));
    let home = Home::new();
    home.policy(
        "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\nrepeat_guard = \"off\"\n\
         limits = { response_timeout = \"5s\", hold_time = \"1h\" }\n",
    );
    let server = home.serve();
    let identity = format!("Proxy-Authorization: Bearer {}", home.token);
    for number in 0..TRIES {
        let request = odd(&mut numbers, number, &origin.to_string(), &identity);
        let mut caller = TcpStream::connect(server.http).unwrap();
        caller.set_read_timeout(Some(PATIENCE)).unwrap();
        caller.write_all(&request).unwrap();
        caller.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A refusal may come with a reset when not everything was read; a head that does not end gets
        // no answer when its caller goes.
        if caller.read_to_end(&mut answer).is_ok() && !answer.is_empty() {
            assert!(answer.starts_with(b"HTTP/1.1 "), "{:?}: {:?}", text(&request), text(&answer));
        }
    }
    drop(server);
    std::mem::take(&mut *forwarded.lock().unwrap())
}

/// What a parser makes of each file of a directory.
fn read_by(program: &str, script: &str, directory: &Path) -> Vec<Value> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential");
    let mut command = Command::new(program);
    command.arg(scripts.join(script)).arg(directory);
    succeed(command).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether both parsers made a whole message of it, the same one; false if both saw it cut.
fn same_message(raw: &str, one: &Value, other: &Value) -> bool {
    // A caller whose content is malformed is cut off, and so is what was forwarded of it: to both.
    if one["ended"] == false && one["error"].is_null() {
        assert_eq!(other["ended"], false, "{raw:?} {other}");
        return false;
    }
    // llhttp has a list of methods; one that a changed byte made is not on it.
    let method = one["method"].as_str().unwrap_or_default();
    if other["error"] == "HPE_INVALID_METHOD" && !METHODS.contains(&method.as_bytes()) {
        return true;
    }
    for read in [one, other] {
        let found = (&read["error"], &read["ended"]);
        assert_eq!(found, (&Value::Null, &true.into()), "{raw:?} {read}");
    }
    assert_eq!(one["left"], 0, "bytes behind the message: {raw:?}");
    for part in ["method", "target", "fields", "content", "trailers"] {
        assert_eq!(one[part], other[part], "{part} of {raw:?}");
    }
    true
}

/// D-7, V-1: odd requests from a seed; `CONFORMANCE_SEED` repeats one run.
#[test]
fn v_1_d_7_what_is_forwarded_is_one_message_to_everybody() {
    let seed = seed();
    eprintln!("CONFORMANCE_SEED={seed}");
    let forwarded = forwarded(seed);
    let directory = tempfile::tempdir().unwrap();
    for (number, bytes) in forwarded.iter().enumerate() {
        std::fs::write(directory.path().join(format!("{number:04}")), bytes).unwrap();
    }
    let python = std::env::var("AFFIANT_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let first = read_by(&python, "read_h11.py", directory.path());
    let second = read_by("node", "read_llhttp.cjs", directory.path());
    assert_eq!((first.len(), second.len()), (forwarded.len(), forwarded.len()));
    let read = first.iter().zip(&second).zip(&forwarded);
    let whole = read.filter(|((one, other), bytes)| same_message(&text(bytes), one, other)).count();
    eprintln!("{} of {TRIES} were forwarded, {whole} of them whole", forwarded.len());
    assert!(whole > 100, "only {whole} of {} are whole", forwarded.len());
}
