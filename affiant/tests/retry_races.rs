//! Retries against time and death: a paused worker, a killed broker, a clock that jumps (contract K-5,
//! K-6, T-3, X-5).

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

use conformance::http::{Script, Step};
use rustix::process::Signal;
use service::{Done, Service};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use support::*;

/// What a relay does with its next connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Closes it at once.
    Refuse,
    /// Passes nothing until it is released.
    Hold,
    Pass,
}

/// Stands before an origin and decides when its connections come through.
struct Relay {
    address: SocketAddr,
    state: Arc<(Mutex<(Next, bool)>, Condvar)>,
}

fn pipe(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    drop(to.shutdown(std::net::Shutdown::Write));
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new((Mutex::new((Next::Pass, false)), Condvar::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let shared = Arc::clone(&shared);
                let next = shared.0.lock().unwrap().0;
                std::thread::spawn(move || {
                    if next == Next::Refuse {
                        return;
                    }
                    if next == Next::Hold {
                        let held = shared.0.lock().unwrap();
                        drop(shared.1.wait_while(held, |(_, released)| !*released).unwrap());
                    }
                    let upstream = TcpStream::connect(to).unwrap();
                    let back = (upstream.try_clone().unwrap(), stream.try_clone().unwrap());
                    std::thread::spawn(move || pipe(back.0, back.1));
                    pipe(stream, upstream);
                });
            }
        });
        Self { address, state }
    }

    fn next(&self, next: Next) {
        self.state.0.lock().unwrap().0 = next;
    }

    fn release(&self) {
        self.state.0.lock().unwrap().1 = true;
        self.state.1.notify_all();
    }
}

/// A home whose only route leads over a relay to an origin that answers.
fn refused_call(lease: &str) -> (Home, TlsOrigin, Relay, String) {
    let retry = format!("retry = {{ max_attempts = 9, lease = \"{lease}\" }}");
    behind_relay(Script::answer("*", 200, &[], "done"), &retry)
}

/// A home whose only route leads over a relay to an origin.
fn behind_relay(script: Script, rules: &str) -> (Home, TlsOrigin, Relay, String) {
    let origin = TlsOrigin::start(vec![script]);
    let relay = Relay::start(origin.origin.address());
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let port = |address: SocketAddr| format!("port = {}", address.port());
    let policy = origin.policy(rules).replace(&port(origin.origin.address()), &port(relay.address));
    home.policy(&policy);
    let url = format!("https://localhost:{}/pay", relay.address.port());
    (home, origin, relay, url)
}

fn leases(server: &Server, id: &str) -> usize {
    let events = server.control(&format!("invocations/{id}/events"));
    let events = events["events"].as_array().unwrap().clone();
    events.iter().filter(|event| event["event"] == "LEASE_ACQUIRED").count()
}

/// X-5, K-6: a worker takes the lease and is paused with the whole broker (SIGSTOP) until the lease is
/// over; a second worker retries; the first one resumes, and is stopped before dispatch. The origin
/// counts one effect.
#[test]
fn x_5_a_worker_paused_past_its_lease_is_stopped_before_dispatch() {
    let (home, origin, relay, url) = refused_call("1s");
    let server = home.serve();
    relay.next(Next::Refuse);
    let first = server.curl(&["-d", "amount=1", &url]);
    assert_eq!((first.status, first.outcome()), (502, "not_attempted"));
    let id = first.invocation();
    relay.next(Next::Hold);
    std::thread::scope(|scope| {
        let paused = scope.spawn(|| retry_when_allowed(&server, &id));
        eventually("the first lease", || leases(&server, &id) == 1);
        signal(&server.child, Signal::STOP);
        // What is waited for here is time itself: the lease runs out while everything stands still.
        std::thread::sleep(Duration::from_millis(1500));
        signal(&server.child, Signal::CONT);
        relay.next(Next::Pass);
        let (status, second) = retry_when_allowed(&server, &id);
        assert_eq!((status, &second["attempt"]["error"]["outcome"]), (200, &"committed".into()));
        assert_eq!(origin.origin.effects("/pay"), 1);
        relay.release();
        let (status, stopped) = paused.join().unwrap();
        assert_eq!(status, 200, "{stopped}");
        let attempt = &stopped["attempt"];
        assert_eq!(attempt["error"]["outcome"], "not_attempted");
        assert_eq!(attempt["error"]["code"], "IN_DOUBT_DUPLICATE");
        assert_eq!(attempt["evidence"]["dispatch_started"], false);
        assert_ne!(attempt["invocation_id"], second["attempt"]["invocation_id"]);
    });
    assert_eq!(leases(&server, &id), 2);
    assert_eq!((origin.origin.seen().len(), origin.origin.effects("/pay")), (1, 1));
    assert_eq!(decision(&server, &id)["decision"], "FETCH");
}

/// K-5: a worker whose set-up takes longer than the key lasts, under a lease that is longer still, is
/// stopped before dispatch: the service has forgotten the key by then.
#[test]
fn k_5_a_worker_slow_in_setup_does_not_dispatch_under_an_expired_key() {
    let lost = Script::new("*", vec![Step::ReadBody, Step::Apply, Step::Close]);
    let rules = r#"idempotency = { header = "Idempotency-Key", retention = "8s", contract = "verified" }
retry = { max_attempts = 9, lease = "10m" }
limits = { connect_timeout = "60s" }"#;
    let (home, origin, relay, url) = behind_relay(lost, rules);
    let server = home.serve();
    let first = server.curl(&["-d", "amount=1", "-H", "Idempotency-Key: k", &url]);
    assert_eq!((first.status, first.outcome()), (502, "unknown"));
    let id = first.invocation();
    relay.next(Next::Hold);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| post(&server, &format!("invocations/{id}/retry")));
        eventually("the lease", || leases(&server, &id) == 1);
        eventually("the key's end", || decision(&server, &id)["decision"] == "RECONCILE");
        relay.release();
        let (status, stopped) = slow.join().unwrap();
        assert_eq!(status, 200, "{stopped}");
        let attempt = &stopped["attempt"];
        assert_eq!(attempt["error"]["outcome"], "not_attempted");
        assert_eq!(attempt["error"]["code"], "IN_DOUBT_DUPLICATE");
        assert_eq!(attempt["error"]["retry"], "reconcile");
        assert_eq!(attempt["evidence"]["dispatch_started"], false);
    });
    assert_eq!((origin.origin.seen().len(), origin.origin.effects("/pay")), (1, 1));
}

/// K-6, T-3: two brokers: a second one on the same home is refused; when the first dies with a lease in
/// hand, the next one counts it, and its own retry is the only dispatch.
#[test]
fn k_6_a_second_broker_waits_for_the_first_ones_death_and_counts_its_lease() {
    let (home, origin, relay, url) = refused_call("10m");
    let server = home.serve();
    relay.next(Next::Refuse);
    let id = server.curl(&["-d", "amount=1", &url]).invocation();
    relay.next(Next::Hold);
    let path = format!("http://affiant.internal/v1/invocations/{id}/retry");
    eventually("the time to wait is over", || {
        decision(&server, &id)["not_before_ms"].as_u64().unwrap() <= now_ms()
    });
    std::thread::scope(|scope| {
        // It is cut when the broker dies.
        let cut = scope.spawn(|| server.curl(&["-X", "POST", "--max-time", "20", &path]).exit);
        eventually("the first lease", || leases(&server, &id) == 1);
        let second = home.run(&["serve", "--http", "127.0.0.1:0", "--ssh", "127.0.0.1:0"]);
        assert_eq!(second.status.code(), Some(2), "{}", text(&second.stderr));
        signal(&server.child, Signal::KILL);
        assert_ne!(cut.join().unwrap(), Some(0));
    });
    drop(server);
    relay.release();
    relay.next(Next::Pass);
    let server = home.serve();
    let standing = decision(&server, &id);
    assert_eq!(
        (standing["attempts"].as_u64(), &standing["decision"]),
        (Some(2), &"RETRY_NEW_ATTEMPT".into())
    );
    assert_eq!(origin.origin.effects("/pay"), 0);
    let (status, retried) = retry_when_allowed(&server, &id);
    assert_eq!((status, &retried["attempt"]["error"]["outcome"]), (200, &"committed".into()));
    assert_eq!(retried["standing"]["attempts"], 3);
    assert_eq!((leases(&server, &id), origin.origin.effects("/pay")), (2, 1));
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// A wall clock that a test sets, for programs started by it.
struct WallClock(tempfile::TempDir);

impl WallClock {
    fn new() -> Self {
        let clock = Self(tempfile::tempdir().unwrap());
        clock.set("+0");
        clock
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("clock")
    }

    fn set(&self, offset: &str) {
        // Replaced as a whole: a reader sees the old offset or the new one.
        let new = self.0.path().join("new");
        std::fs::write(&new, format!("{offset}\n")).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    /// What starts a program under it.
    fn by(&self) -> [String; 6] {
        let library = std::fs::read_dir("/usr/lib")
            .unwrap()
            .map(|entry| entry.unwrap().path().join("faketime/libfaketimeMT.so.1"))
            .find(|path| path.exists())
            .expect("faketime is installed by ./dev");
        [
            "env".to_owned(),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file().display()),
            format!("LD_PRELOAD={}", library.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}

/// K-5, X-3: a jump of the wall clock, while the broker runs or across its restart, neither extends nor
/// resets the expiry of a key: after the key's time nothing is sent again. The service has forgotten it
/// by then and would charge twice.
#[test]
fn k_5_a_clock_that_jumps_neither_extends_nor_resets_an_expiry() {
    let service = Service::start(|_| Done::and_closes());
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let rule = r#"idempotency = { header = "Idempotency-Key", retention = "8s", contract = "verified" }
retry = { max_attempts = 9 }"#;
    home.policy(&service.policy(rule));
    let clock = WallClock::new();
    let set = |offset: &str| clock.set(offset);
    let by = clock.by();
    let by: Vec<_> = by.iter().map(String::as_str).collect();
    let server = Server::start_by(&home, &by);
    let lost = server.curl(&["-d", "x", "-H", "Idempotency-Key: k", &service.url("/pay")]);
    assert_eq!(lost.outcome(), "unknown");
    let id = lost.invocation();
    assert_eq!(decision(&server, &id)["decision"], "RETRY_SAME_KEY");
    // A crash and a restart under a sound clock change nothing.
    server.kill();
    let server = Server::start_by(&home, &by);
    assert_eq!(decision(&server, &id)["decision"], "RETRY_SAME_KEY");
    // A minute back and forth under the running server: it is still the key's own time that counts.
    set("-60");
    assert_eq!(decision(&server, &id)["decision"], "RETRY_SAME_KEY");
    set("+0");
    assert_eq!(decision(&server, &id)["decision"], "RETRY_SAME_KEY");
    // Back by a day: by the wall clock the key would hold for a day and three seconds.
    set("-1d");
    eventually("the key's own time is over", || decision(&server, &id)["decision"] == "RECONCILE");
    let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
    assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    // A restart under the wrong clock resets nothing.
    assert_eq!(server.terminate(), Some(0));
    let server = Server::start_by(&home, &by);
    assert_eq!(decision(&server, &id)["decision"], "RECONCILE");
    assert_eq!(service.asked().len(), 1);
}

/// K-5, K-11: a clock that jumps forward and back under the running server. A key that is used while it
/// is ahead gets no longer life from it, in this process or after a restart under the right clock; an
/// older key that counted as over stays over; the guard's window stays as long as it is.
#[test]
fn k_5_a_clock_that_jumps_forward_and_back_extends_nothing() {
    let service = Service::start(|_| Done::and_closes());
    let home = Home::new();
    home.secret("pay-token", SECRET);
    let rule = r#"idempotency = { header = "Idempotency-Key", retention = "6s", contract = "verified" }
retry = { max_attempts = 9 }"#;
    home.policy(&service.policy(rule));
    let clock = WallClock::new();
    let by = clock.by();
    let by: Vec<_> = by.iter().map(String::as_str).collect();
    let server = Server::start_by(&home, &by);
    let pay = |server: &Server, fields: &[&str]| {
        let url = service.url("/pay");
        server.curl(&[&["-d", "x"][..], fields, &[&url]].concat())
    };
    let older = pay(&server, &["-H", "Idempotency-Key: k-1"]).invocation();
    let plain = pay(&server, &[]).invocation();
    assert_eq!(decision(&server, &older)["decision"], "RETRY_SAME_KEY");
    clock.set("+1d");
    // By anything that may be right it is over, and it stays over.
    assert_eq!(decision(&server, &older)["decision"], "RECONCILE");
    let ahead = pay(&server, &["-H", "Idempotency-Key: k-2"]).invocation();
    // K-11: ten minutes have not passed.
    let stopped = pay(&server, &[]);
    assert_eq!((stopped.status, &stopped.json()["error"]["follow"]), (424, &plain.as_str().into()));
    clock.set("+0");
    assert_eq!(decision(&server, &older)["decision"], "RECONCILE");
    let of = |id: &str| {
        let shown = server.control(&format!("invocations/{id}"));
        let key = shown["evidence"]["idempotency"]["expires_at_ms"].as_u64().unwrap();
        (key, shown["accepted_at_ms"].as_u64().unwrap())
    };
    // Its life is counted from the time that it was used, not from the clock that was ahead.
    let (expires_at_ms, accepted_at_ms) = of(&ahead);
    assert!(expires_at_ms - accepted_at_ms <= 6000);
    assert!(expires_at_ms <= now_ms() + 6000, "a day was added");
    server.kill();
    let server = Server::start_by(&home, &by);
    eventually("the older key's own time is over", || {
        decision(&server, &older)["decision"] == "RECONCILE"
    });
    eventually("the key's own time is over", || {
        decision(&server, &ahead)["decision"] == "RECONCILE"
    });
    for id in [&older, &ahead] {
        let (status, refused) = post(&server, &format!("invocations/{id}/retry"));
        assert_eq!((status, refused["code"].as_str()), (409, Some("RETRY_NOT_ALLOWED")));
    }
    assert_eq!(service.asked().len(), 3);
}
