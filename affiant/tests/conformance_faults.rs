//! What else can go while a call is under way: the caller, the origin's process, the clock.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]
#![cfg(target_os = "linux")]

mod support;

use conformance::http::{Origin, Script, Step};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use support::*;

fn id(n: u32) -> String {
    format!("act_01ARZ3NDEKTSV4RRFFQ69G6F{n:02}")
}

/// A caller that sends a POST and reads nothing yet.
fn caller(home: &Home, server: &Server, origin: &Origin, path: &str, id: &str) -> TcpStream {
    let mut caller = TcpStream::connect(server.http).unwrap();
    caller.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "POST http://{at}{path} HTTP/1.1\r\nHost: {at}\r\nProxy-Authorization: Bearer {}\r\n\
         Affiant-Invocation: {id}\r\nContent-Length: 3\r\n\r\na=1",
        home.token,
        at = origin.address()
    );
    caller.write_all(request.as_bytes()).unwrap();
    caller
}

/// D-4, R-2, R-5: the caller dies at each point of its call: while the origin works, and inside a
/// streamed response. The result is read to its end, kept, and given by id; nothing is sent again.
#[test]
fn d_4_r_2_a_killed_caller_loses_nothing() {
    let home = Home::new();
    let half = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                Transfer-Encoding: chunked\r\n\r\nc\r\ndata: tick\n\n\r\n";
    let origin = Origin::start(
        vec![
            Script::new(
                "/held",
                [
                    Step::ReadBody,
                    Step::Apply,
                    Step::Hold,
                    Step::Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone".into()),
                ],
            ),
            Script::new(
                "/streamed",
                [
                    Step::ReadBody,
                    Step::Apply,
                    Step::Send(half.into()),
                    Step::Hold,
                    Step::Send("c\r\ndata: tock\n\n\r\n0\r\n\r\n".into()),
                ],
            ),
        ],
        None,
    )
    .unwrap();
    home.policy(&clear_route("o", origin.address(), ""));
    let server = home.serve();
    let held = caller(&home, &server, &origin, "/held", &id(1));
    let mut streamed = caller(&home, &server, &origin, "/streamed", &id(2));
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while !text(&got).contains("data: tick") {
        let read = streamed.read(&mut buffer).unwrap();
        assert!(read > 0, "closed early: {}", text(&got));
        got.extend_from_slice(&buffer[..read]);
    }
    eventually("both effects", || origin.effects("/held") == 1 && origin.effects("/streamed") == 1);
    for caller in [&held, &streamed] {
        rustix::net::sockopt::set_socket_linger(caller, Some(std::time::Duration::ZERO)).unwrap();
    }
    drop((held, streamed));
    origin.release();
    for (n, content) in [(1, "done"), (2, "data: tick\n\ndata: tock\n\n")] {
        let record = server.control(&format!("invocations/{}?wait=30s", id(n)));
        assert_eq!(record["error"]["outcome"], "committed", "{record}");
        assert_eq!(record["evidence"]["response_complete"], true);
        assert_eq!(home.ok(&["inv", "result", &id(n)]), content);
    }
    assert_eq!((origin.effects("/held"), origin.effects("/streamed")), (1, 1));
}

/// An origin that is a process of its own: says on stdout where it listens and what it was asked, and
/// answers `/half` with the first half of a response and everything else with nothing.
const ORIGIN: &str = r#"
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
kept = []
while True:
    peer, _ = server.accept()
    kept.append(peer)
    asked = b""
    while not asked.endswith(b"\r\n\r\na=1"):
        asked += peer.recv(65536)
    if b"/half " in asked:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
    print(asked.split()[1].decode(), flush=True)
"#;

/// D-1, S-2, D-7: the origin's process is killed while it works, and inside its response. What it did
/// is not known, a half is not passed on as a whole, and nothing is sent again.
#[test]
fn d_1_s_2_d_7_a_killed_origin_leaves_the_call_unknown() {
    let home = Home::new();
    home.policy(
        "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n\
         limits = { hold_time = \"1h\" }\n",
    );
    let server = home.serve();
    for (path, code) in
        [("/works", "REMOTE_OUTCOME_UNKNOWN"), ("/half", "REMOTE_RESULT_INCOMPLETE")]
    {
        let mut origin =
            python().args(["-c", ORIGIN]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(origin.stdout.take().unwrap()).lines();
        let port = said.next().unwrap().unwrap();
        let url = format!("http://127.0.0.1:{port}{path}");
        let response = std::thread::scope(|scope| {
            let call = scope.spawn(|| server.curl(&["-d", "a=1", &url]));
            assert_eq!(said.next().unwrap().unwrap(), path);
            origin.kill().unwrap();
            call.join().unwrap()
        });
        origin.wait().unwrap();
        assert_eq!((response.status, response.outcome()), (502, "unknown"), "{path}");
        let record = server.control(&format!("invocations/{}", response.invocation()));
        assert_eq!(record["error"]["code"], code, "{record}");
        assert_eq!(record["error"]["retry"], "reconcile", "{record}");
        assert_eq!(said.count(), 0, "{path} was asked for again");
    }
}

/// J-4: the wall clock of the process jumps back and forth, while it runs and between its runs.
/// Calls are taken, order is kept, nothing is lost and the log verifies.
#[test]
fn j_4_clock_jumps_disturb_neither_order_nor_service() {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    if !std::path::Path::new(library).exists() {
        eprintln!("skipped: {library} is not there (Debian: faketime)");
        return;
    }
    let home = Home::new();
    let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
    home.policy(&clear_route("o", origin.address(), ""));
    let offset = home.path().join("offset");
    let file = format!("FAKETIME_TIMESTAMP_FILE={}", offset.display());
    let preload = format!("LD_PRELOAD={library}");
    let by = [
        "env",
        preload.as_str(),
        file.as_str(),
        "FAKETIME_NO_CACHE=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ];
    let mut asked = Vec::new();
    for run in [["+0", "-3d", "+1h"], ["-400d", "+0", "+3000d"]] {
        std::fs::write(&offset, run[0]).unwrap();
        let server = Server::start_by(&home, &by);
        for jump in run {
            std::fs::write(&offset, jump).unwrap();
            let url = format!("http://{}/{}", origin.address(), asked.len());
            let response = server.curl(&["-d", "a=1", &url]);
            assert_eq!((response.status, response.outcome()), (200, "committed"), "{jump}");
            asked.push(response.invocation());
        }
        server.kill();
    }
    home.ok(&["journal", "verify"]);
    let server = home.serve();
    let sequences: Vec<u64> = asked
        .iter()
        .map(|id| {
            let record = server.control(&format!("invocations/{id}"));
            assert_eq!(record["error"]["outcome"], "committed");
            record["first_sequence"].as_u64().unwrap()
        })
        .collect();
    assert!(sequences.is_sorted(), "{sequences:?}");
    assert_eq!(origin.seen().len(), asked.len());
}
