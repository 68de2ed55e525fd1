//! What a caller has open at an origin ends with the access of its agent, for real clients and servers:
//! streams of gRPC, uploads, event streams (contract V-1, D-4).

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::peers::{Served, program};
use support::*;

/// How an agent's access ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Removed,
    Rotated,
    /// By its `--lasts`, by itself.
    Lapsed,
}

const ALL: [Ending; 3] = [Ending::Removed, Ending::Rotated, Ending::Lapsed];

/// An agent of its own for each ending, and its proxy.
fn agent(home: &Home, server: &Server, ending: Ending) -> (&'static str, String) {
    let (name, lasts): (_, &[&str]) = match ending {
        Ending::Removed => ("removed", &[]),
        Ending::Rotated => ("rotated", &[]),
        // Long enough to open a stream on a loaded machine.
        Ending::Lapsed => ("lapsed", &["--lasts", "8s"]),
    };
    let added = home.json(&[&["agent", "add", name], lasts].concat());
    let token = added["token"].as_str().unwrap();
    (name, format!("http://{name}:{token}@{}", server.http))
}

fn end(home: &Home, name: &str, ending: Ending) {
    match ending {
        Ending::Removed => drop(home.ok(&["agent", "rm", name])),
        Ending::Rotated => drop(home.ok(&["agent", "rotate", name])),
        Ending::Lapsed => {}
    }
}

fn policy(served: &Served) -> String {
    plain_policy(&served.ca_file(), served.port)
        .replace("\"local\"", "\"removed\", \"rotated\", \"lapsed\"")
}

/// A program under way, with both of its ends.
struct Running(Child, ChildStdin, BufReader<ChildStdout>);

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self(child, stdin, BufReader::new(stdout))
    }

    fn curl(home: &Home, proxy: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("curl");
        command.args(["-sS", "-N", "--max-time", "60", "-x", proxy, "--cacert"]);
        clean(&mut command);
        command.arg(home.path().join("bundle.pem")).args(arguments);
        Self::start(command)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.2.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What it still says, and its exit code. Its stdin stays open until then.
    fn end(mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.2.read_to_string(&mut rest).unwrap();
        drop(self.1);
        (rest, wait(&mut self.0, PATIENCE).code())
    }
}

/// The record of the agent's one call, once that says so.
fn record(home: &Home, agent: &str, code: &str) -> Value {
    let first = || home.json(&["inv", "list", "--agent", agent])["invocations"][0].clone();
    eventually(code, || first()["error"]["code"] == code);
    let id = first()["invocation_id"].as_str().unwrap().to_owned();
    home.json(&["inv", "show", &id])
}

fn events(home: &Home, record: &Value) -> String {
    let id = record["invocation_id"].as_str().unwrap();
    home.json(&["inv", "events", id]).to_string()
}

/// V-1, D-4: a stream of gRPC takes no message more, at the origin it is broken off, and the record says why.
#[test]
fn v_1_a_grpc_stream_ends_with_its_access() {
    let served = Served::start(python(), "grpc_server.py");
    let home = Home::new();
    home.policy(&policy(&served));
    let server = home.serve();
    for ending in ALL {
        let (name, proxy) = agent(&home, &server, ending);
        let mut command = python();
        command.env("grpc_proxy", &proxy);
        command.env("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", home.path().join("bundle.pem"));
        command.arg(program("grpc_open.py")).arg(format!("localhost:{}", served.port));
        let mut client = Running::start(command);
        for message in ["pay 1", "pay 2"] {
            writeln!(client.1, "{message}").unwrap();
            assert_eq!(client.line(), format!("echo {message}"), "{ending:?}");
        }
        end(&home, name, ending);
        // It ends by itself, with nothing sent.
        let (said, code) = client.end();
        assert_eq!((said.trim(), code), ("broken: INTERNAL", Some(0)), "{ending:?}");
        let record = record(&home, name, "REMOTE_OUTCOME_UNKNOWN");
        assert_eq!(record["error"]["outcome"], "unknown", "{record}");
        assert!(events(&home, &record).contains("\"ACCESS_OVER\""), "{record}");
        let ended = served.files().join("both-ended");
        eventually("the end at the origin", || std::fs::remove_file(&ended).is_ok());
    }
}

/// V-1, D-4: an upload takes nothing more, and is whole nowhere.
#[test]
fn v_1_an_upload_ends_with_its_access() {
    let served = Served::python();
    let home = Home::new();
    home.policy(&policy(&served));
    let server = home.serve();
    let url = format!("https://localhost:{}/files/upload", served.port);
    let file = served.files().join("upload");
    for (ending, version) in ALL.into_iter().zip(["--http1.1", "--http2", "--http1.1"]) {
        let (name, proxy) = agent(&home, &server, ending);
        let mut client = Running::curl(&home, &proxy, &[version, "-T", "-", &url]);
        client.1.write_all(b"the first part").unwrap();
        client.1.flush().unwrap();
        let arrived = || std::fs::read(&file).is_ok_and(|bytes| bytes == b"the first part");
        eventually("the first part", arrived);
        end(&home, name, ending);
        let record = record(&home, name, "REMOTE_OUTCOME_UNKNOWN");
        assert_eq!(record["error"]["outcome"], "unknown", "{ending:?}: {record}");
        assert!(events(&home, &record).contains("\"ACCESS_OVER\""), "{ending:?}: {record}");
        // Nobody may be there any more to read it.
        drop(client.1.write_all(b", and the second"));
        let (told, _) = client.end();
        assert!(told.contains("REMOTE_OUTCOME_UNKNOWN"), "{ending:?}: {told}");
        assert!(arrived());
        std::fs::remove_file(&file).unwrap();
    }
}

/// V-1, D-4: the caller of an event stream is cut where it sees it; what still comes is read for the record
/// alone, to its end.
#[test]
fn v_1_an_event_stream_ends_with_its_access() {
    let served = Served::python();
    let home = Home::new();
    home.policy(&policy(&served));
    let server = home.serve();
    // curl: a part of the transfer, or a stream that was not closed cleanly.
    for (ending, (version, exit)) in
        ALL.into_iter().zip([("--http1.1", 18), ("--http2", 92), ("--http1.1", 18)])
    {
        let (name, proxy) = agent(&home, &server, ending);
        let url = format!("https://localhost:{}/sse?id={name}", served.port);
        let mut client = Running::curl(&home, &proxy, &[version, &url]);
        assert_eq!(client.line(), "data: 0");
        end(&home, name, ending);
        assert_eq!(client.end(), ("\n".to_owned(), Some(exit)), "{ending:?}");
        for number in 0..3 {
            let mut acknowledge = Command::new("curl");
            clean(&mut acknowledge);
            acknowledge.args(["-sS", "--fail", "--max-time", "30", "-X", "POST", "--cacert"]);
            acknowledge.arg(served.ca_file());
            let ack = format!("https://localhost:{}/ack?id={name}&n={number}", served.port);
            acknowledge.arg(ack);
            succeed(acknowledge);
        }
        let record = record(&home, name, "DELIVERY_FAILED");
        assert_eq!(record["error"]["outcome"], "committed", "{ending:?}: {record}");
        assert!(events(&home, &record).contains("\"access_over\""), "{ending:?}: {record}");
        let id = record["invocation_id"].as_str().unwrap();
        assert_eq!(home.ok(&["inv", "result", id]), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    }
}
