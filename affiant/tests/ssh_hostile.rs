//! SSH peers on both sides that keep to no window and no length, against the real binary: what they
//! get, what is held for them, and what is on record.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::ssh::{Opening, Raw, Step, Target, user_key};
use serde_json::Value;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

const ID: &str = "act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
/// A grant that makes a window of 1 MiB overflow to nothing (RFC 4254 section 5.2 forbids it).
const OVERFLOW: u32 = u32::MAX - (1 << 20) + 1;
const MIB: usize = 1 << 20;

/// The binary between a raw client and a scripted target.
struct Between {
    home: Home,
    server: Server,
    target: Target,
}

/// A command that is accepted and has its effect, and what follows.
fn accepted(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    [Step::Apply, Step::Accept].into_iter().chain(steps).collect()
}

fn end() -> [Step; 3] {
    [Step::Eof, Step::ExitStatus(0), Step::CloseChannel]
}

impl Between {
    fn start(steps: Vec<Step>, limits: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::spawn(listener, Opening::Serve, steps).unwrap();
        let home = Home::new();
        home.secret("row-key", &user_key().unwrap());
        let (address, key) = (target.address(), target.host_key());
        home.policy(&format!(
            "[defaults]\nprivate_addresses = \"allow\"\n\n[[credential]]\nid = \"row\"\n\
             secret = \"row-key\"\ninject = \"ssh-key\"\n\n[[ssh]]\nname = \"t\"\n\
             agents = [\"coder\"]\n\
             match = {{ host = \"t\", port = 22, users = [\"u\"], commands = [\"*\"] }}\n\
             address = \"{address}\"\nhost_keys = [\"{key}\"]\ncredential = \"row\"\n\
             allow = [\"exec\"]\n{limits}\n"
        ));
        let server = home.serve();
        Self { home, server, target }
    }

    /// A client that is logged in and whose command runs.
    async fn client(&self, window_bytes: u32) -> Raw {
        let mut client = Raw::connect(self.server.ssh).await.unwrap();
        client.login("u%t", &self.home.token).await.unwrap();
        client.exec("run", ID, window_bytes).await.unwrap();
        client
    }

    /// The record, settled. The client's request is answered before there is one.
    fn record(&self) -> Value {
        eventually("the record", || self.has_event("ACTION_ACCEPTED"));
        self.server.control(&format!("invocations/{ID}?wait=20s"))
    }

    fn has_event(&self, name: &str) -> bool {
        let events = self.server.control(&format!("invocations/{ID}/events"));
        events.to_string().contains(name)
    }
}

/// Outcome, retry, code and message of a record.
fn facts(record: &Value) -> [&str; 4] {
    ["outcome", "retry", "code", "message"]
        .map(|name| record["error"][name].as_str().unwrap_or_else(|| panic!("{record}")))
}

/// Plays within the time limit. The target runs beside the case, which may block.
fn play(case: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, case()).await.expect("in time") });
}

/// S-1: a target that does not wait for its window loses nothing by it: what came is what was sent, and
/// its result stands. (RFC 4254 section 5.2 lets a receiver drop the surplus; this one grants as it reads.)
#[test]
fn s_1_output_beyond_the_window_is_whole() {
    play(async || {
        let piece = |at: u8| Step::Stdout(vec![at; 1 << 15].into());
        let steps = accepted((0..=255).map(piece).chain(end()));
        let between = Between::start(steps, "");
        let shown = between.client(u32::MAX).await.shown().await.unwrap();
        let expected: Vec<u8> = (0..=255).flat_map(|at| vec![at; 1 << 15]).collect();
        assert!(shown.stdout == expected, "{} bytes", shown.stdout.len());
        assert_eq!((shown.stderr.as_slice(), shown.status), (&[][..], Some(0)));
        let record = between.record();
        assert_eq!(facts(&record)[..3], ["committed", "never", "OK"]);
        assert_eq!(record["evidence"]["response_bytes"], 8 * MIB);
    });
}

/// S-8: a target that floods a client which takes nothing is held back, not stored: it gets rid of what
/// windows, queues and sockets hold, and is cut off at the deadline.
#[test]
fn s_8_a_flood_beyond_the_window_is_held_back() {
    play(async || {
        let limits = "limits = { response_timeout = \"3s\" }";
        let between = Between::start(accepted([Step::Flood]), limits);
        let client = between.client(0).await;
        let record = between.record();
        assert_eq!(facts(&record)[..3], ["unknown", "reconcile", "READ_TIMEOUT"], "{record}");
        eventually("the end of the flood", || between.target.flooded().1 == 1);
        let (flooded_bytes, _) = between.target.flooded();
        assert!((1..32 << 20).contains(&flooded_bytes), "{flooded_bytes} bytes");
        assert_eq!(between.target.effects(), 1);
        drop(client);
    });
}

/// S-8: input beyond the window that waits for a target which takes none ends the command, by name.
#[test]
fn s_8_input_beyond_the_window_ends_by_name() {
    play(async || {
        let between = Between::start(accepted([Step::Await]), "");
        let mut client = between.client(1 << 20).await;
        client.input(&vec![b'x'; 40 * MIB]).await.unwrap();
        let shown = client.shown().await.unwrap();
        assert_eq!(shown.status, Some(255));
        let told = text(&shown.stderr);
        let record = between.record();
        let message = "More input came than waits for a target at most; the command may still run.";
        let expected = ["unknown", "reconcile", "REMOTE_OUTCOME_UNKNOWN", message];
        assert_eq!(facts(&record), expected);
        assert!(told.contains(message), "{told}");
        assert!(memory_kb(&between.server) < 200 << 10, "{} KB", memory_kb(&between.server));
        assert_eq!(between.target.effects(), 1);
    });
}

/// S-1: input that does not wait for its window reaches a target that takes it, whole.
#[test]
fn s_1_input_beyond_the_window_is_whole() {
    play(async || {
        let grant = Step::Grant(32 << 20);
        let steps = [grant, Step::ReadStdin, Step::Echo].into_iter().chain(end());
        let between = Between::start(accepted(steps), "");
        let mut client = between.client(u32::MAX).await;
        let input: Vec<u8> = (0..255).flat_map(|at| vec![at; 1 << 15]).collect();
        client.input(&input).await.unwrap();
        client.end_input().await.unwrap();
        let shown = client.shown().await.unwrap();
        assert!(shown.stdout == input, "{} bytes, {:?}", shown.stdout.len(), text(&shown.stderr));
        assert_eq!(facts(&between.record())[..3], ["committed", "never", "OK"]);
    });
}

/// S-1: a window that overflows, of the target or of the client, stays at the highest that there is: input
/// and output go on.
#[test]
fn s_1_windows_that_overflow_stay_open() {
    play(async || {
        let steps = [Step::Grant(OVERFLOW), Step::ReadStdin, Step::Echo].into_iter().chain(end());
        let between = Between::start(accepted(steps), "");
        let mut client = between.client(1 << 20).await;
        client.grant(OVERFLOW).await.unwrap();
        client.input(b"through both").await.unwrap();
        client.end_input().await.unwrap();
        let shown = client.shown().await.unwrap();
        assert_eq!((text(&shown.stdout).as_str(), shown.status), ("through both", Some(0)));
        let record = between.record();
        assert_eq!(facts(&record)[..3], ["committed", "never", "OK"]);
        assert!(between.has_event("RESULT_DELIVERED"));
    });
}

/// V-1, RFC 4253 section 6: a client's first packet of 4 GB ends its connection at once, and no other.
#[test]
fn v_1_a_length_of_4_gb_is_not_waited_for() {
    play(async || {
        let between = Between::start(accepted(end()), "");
        let (mut stream, _) = Raw::greet(between.server.ssh).await.unwrap();
        stream.write_all(&[0xff; 16]).await.unwrap();
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest).await;
        assert!(
            read.is_ok() || read.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
        );
        let shown = between.client(1 << 20).await.shown().await.unwrap();
        assert_eq!(shown.status, Some(0));
    });
}

/// D-4, R-2: a client that breaks the protocol while its command runs has gone. The result is read to its
/// end, recorded, not delivered, and there to be fetched.
#[test]
fn d_4_a_client_that_sends_no_packet_has_gone() {
    play(async || {
        let out = [Step::Await, Step::Stdout("result".into())];
        let between = Between::start(accepted(out.into_iter().chain(end())), "");
        let mut client = between.client(1 << 20).await;
        between.server.await_event(ID, "REMOTE_RESPONSE_STARTED");
        client.bytes(&[0xff; 4]).await.unwrap();
        client.ended().await.unwrap();
        eventually("the client's leaving", || between.has_event("CALLER_GONE"));
        between.target.go();
        eventually("the failed delivery", || between.has_event("DELIVERY_FAILED"));
        let record = between.record();
        let [outcome, retry, code, _] = facts(&record);
        assert_eq!([outcome, retry, code], ["committed", "fetch_result", "DELIVERY_FAILED"]);
        assert_eq!(record["error"]["phase"], "result_delivery");
        let stored = between.home.run(&["inv", "result", ID]);
        assert_eq!((text(&stored.stdout).as_str(), between.target.effects()), ("result", 1));
    });
}

/// Passes one connection on, the client's bytes only until they are held back; and resets it at the end.
async fn line(to: SocketAddr, held: Arc<AtomicBool>, mut cut: watch::Receiver<bool>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut gateway = tokio::net::TcpStream::connect(to).await.unwrap();
        {
            let (mut from_client, mut to_client) = client.split();
            let (mut from_gateway, mut to_gateway) = gateway.split();
            let forth = async {
                let mut buffer = [0; 1 << 14];
                while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
                    if !held.load(Ordering::Acquire) {
                        to_gateway.write_all(&buffer[..length]).await.unwrap();
                    }
                }
            };
            tokio::select! {
                () = forth => {}
                _ = tokio::io::copy(&mut from_gateway, &mut to_client) => {}
                _ = cut.wait_for(|cut| *cut) => {}
            }
        }
        gateway.set_zero_linger().unwrap();
    });
    port
}

/// R-5, K-11: a client whose connection breaks while it is asked whether it has everything has confirmed
/// nothing, however many of its commands end at once.
#[test]
fn r_5_a_connection_that_breaks_confirms_nothing() {
    play(async || {
        let out = [Step::Await, Step::Stdout("result".into())];
        let between = Between::start(accepted(out.into_iter().chain(end())), "");
        let (held, cut) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(false));
        let port = line(between.server.ssh, Arc::clone(&held), cut.subscribe()).await;
        let mut client = python();
        client.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/ssh_client.py"));
        client.arg(port.to_string()).args(["t", "u", &between.home.token, "at-once"]);
        client
            .args((0..16).map(|n| format!("run {n}")))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        eventually("the commands", || between.target.requests().len() == 16);
        held.store(true, Ordering::Release);
        between.target.go();
        let listed = || {
            let list = between.server.control("invocations?outcome=committed&limit=50");
            list["invocations"].as_array().unwrap().clone()
        };
        eventually("the results", || listed().len() == 16);
        cut.send_replace(true);
        eventually("the deliveries", || listed().iter().all(|one| one["delivery"] != "pending"));
        let delivered: Vec<Value> = listed().iter().map(|one| one["delivery"].clone()).collect();
        assert_eq!(delivered, ["failed"; 16]);
        wait(&mut client, PATIENCE);
    });
}
