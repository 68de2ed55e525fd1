//! Many streams at once through the real binary.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use support::peers::Served;
use support::*;

/// Opens a call in absolute form; the answer is read line by line.
fn open(server: &Server, token: &str, method: &str, url: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "{method} {url} HTTP/1.1\r\nHost: localhost\r\nProxy-Authorization: Bearer {token}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    BufReader::new(stream)
}

/// Reads up to a line that begins so.
fn read_to(stream: &mut BufReader<TcpStream>, begin: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended before {begin:?}");
        if line.starts_with(begin) {
            return line;
        }
    }
}

fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Every stream has its event before anyone gets the next.
fn streams(count: usize) {
    raise_descriptors();
    let served = Served::python();
    let home = Home::new();
    let policy = plain_policy(&served.ca_file(), served.port);
    home.policy(&policy.replace("\"local\"", "\"coder\""));
    let server = home.serve();
    let base = format!("https://localhost:{}", served.port);
    let before = memory_kb(&server);
    let url = format!("{base}/sse?id=all");
    let mut streams: Vec<_> = (0..count).map(|_| open(&server, &home.token, "GET", &url)).collect();
    for number in 0..3 {
        for stream in &mut streams {
            read_to(stream, &format!("data: {number}"));
        }
        if number == 0 {
            let each = (memory_kb(&server) - before) / count as u64;
            eprintln!("{count} event streams: {each} kB of anonymous memory for each");
        }
        let ack = format!("{base}/ack?id=all&n={number}");
        let mut answer = open(&server, &home.token, "POST", &ack);
        assert!(read_to(&mut answer, "HTTP/1.1").starts_with("HTTP/1.1 204"));
    }
    for stream in &mut streams {
        let outcome = read_to(stream, "Affiant-Outcome: ");
        assert!(outcome.starts_with("Affiant-Outcome: committed;"), "{outcome}");
    }
}

#[test]
fn event_streams_at_once_each_get_their_events() {
    streams(200);
}

#[test]
#[ignore = "long: a thousand TLS handshakes, unoptimised"]
fn a_thousand_event_streams_each_get_their_events() {
    streams(1000);
}
