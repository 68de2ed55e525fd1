//! Attempts and questions beside each other: what is held back while the broker goes on with a call,
//! and what an answer may say of which attempt (contract K-3, K-7, K-11, J-3, X-6).

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

use rustix::process::Signal;
use serde_json::{Value, json};
use service::{Asked, Done, Service};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use support::*;

fn show(server: &Server, id: &str) -> Value {
    server.control(&format!("invocations/{id}"))
}

/// K-11, X-6: the broker goes on by itself with a call that was refused at set-up; its client gave up
/// waiting and repeats. The repeat is held back as one of a call in flight, and once the service is
/// there, it is asked once.
#[test]
fn k_11_a_repeat_of_a_call_that_the_broker_goes_on_with_is_held_back() {
    let (held, closed) = refusing();
    let rules = r#"retry = { max_attempts = 50, automatic = true, within = "5m" }"#;
    let home = home(&service::policy(closed, rules));
    let server = home.serve();
    let url = format!("http://{closed}/pay");
    let call = ["-d", "amount=1", &url];
    let gave_up = server.curl(&[&["--max-time", "2"][..], &call].concat());
    assert_eq!(gave_up.exit, Some(28), "the client's own time-out");
    let all = server.control("invocations?limit=200")["invocations"].clone();
    let first = all.as_array().unwrap().last().unwrap()["invocation_id"].clone();
    for _ in 0..2 {
        let repeat = server.curl(&call);
        assert_eq!((repeat.status, repeat.outcome()), (424, "not_attempted"));
        let error = repeat.json()["error"].clone();
        assert_eq!((&error["code"], &error["follow"]), (&json!("IN_DOUBT_DUPLICATE"), &first));
    }
    let service = Service::on(listening(held), |_| Done::and_answers(200, "", "charged"));
    eventually("the broker's own attempt", || service.effects() == 1);
    let first = first.as_str().unwrap();
    eventually("its result", || decision(&server, first)["decision"] == "FETCH");
    // K-11: it was not handed over, so it answers the repeat.
    let answered = server.curl(&call);
    assert_eq!((answered.status, text(&answered.body).as_str()), (200, "charged"));
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
}

/// T-1: the broker's own retries end with the process: the caller that they were for has lost its
/// connection, and its repeat is not held back. Nothing is lost: the instruction stands, and an attempt is
/// made on request.
#[test]
fn t_1_automatic_retries_are_not_resumed_after_a_restart() {
    let (held, closed) = refusing();
    let rules = r#"retry = { max_attempts = 50, automatic = true, within = "5m" }"#;
    let home = home(&service::policy(closed, rules));
    let server = home.serve();
    let url = format!("http://{closed}/pay");
    let call = ["-d", "amount=1", &url];
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| server.curl(&[&["--max-time", "20"][..], &call].concat()).exit);
        let attempts = || server.control("invocations?limit=200")["invocations"].clone();
        eventually("a retry", || attempts().as_array().unwrap().len() > 1);
        signal(&server.child, Signal::KILL);
        assert_ne!(cut.join().unwrap(), Some(0));
    });
    drop(server);
    let service = Service::on(listening(held), |_| Done::and_answers(200, "", "charged"));
    let server = home.serve();
    let all = server.control("invocations?limit=200")["invocations"].clone();
    let first = all.as_array().unwrap().last().unwrap()["invocation_id"].as_str().unwrap();
    let attempts = decision(&server, first)["attempts"].clone();
    let repeat = server.curl(&call);
    assert_eq!((repeat.status, text(&repeat.body).as_str()), (200, "charged"));
    let standing = decision(&server, first);
    assert_eq!(standing["decision"], "RETRY_NEW_ATTEMPT");
    assert_eq!(standing["attempts"], attempts, "nothing was tried meanwhile");
    assert_eq!(service.asked().len(), 1);
    let (status, retried) = retry_when_allowed(&server, first);
    assert_eq!((status, &retried["attempt"]["evidence"]["status"]), (200, &json!(200)));
}

/// K-11: a retry on request is not dispatched beside an equal call in flight, nor an equal call beside
/// a retry in flight.
#[test]
fn k_11_a_retry_and_an_equal_call_are_not_dispatched_beside_each_other() {
    let (held, closed) = refusing();
    let home = home(&service::policy(closed, "retry = { max_attempts = 9 }"));
    let server = home.serve();
    let url = format!("http://{closed}/pay");
    let call = ["-d", "amount=1", &url];
    let first = server.curl(&call);
    assert_eq!((first.status, first.outcome()), (502, "not_attempted"));
    let id = first.invocation();
    let (arrived, reached) = mpsc::channel();
    let (release, go_on) = mpsc::channel::<()>();
    let service = Service::on(listening(held), move |_| {
        arrived.send(()).unwrap();
        go_on.recv().unwrap();
        Done::and_answers(200, "", "charged")
    });
    std::thread::scope(|scope| {
        let repeat = scope.spawn(|| server.curl(&call));
        reached.recv().unwrap();
        let (status, refused) = retry_when_allowed(&server, &id);
        assert_eq!((status, &refused["code"]), (409, &json!("RETRY_UNDER_WAY")), "{refused}");
        release.send(()).unwrap();
        assert_eq!(repeat.join().unwrap().status, 200);
    });
    eventually("the repeat is handed over", || {
        let newest = server.control("invocations?limit=1");
        newest["invocations"][0]["delivery"] == "delivered"
    });
    // What is asked for now is asked for by name.
    std::thread::scope(|scope| {
        let retried = scope.spawn(|| retry_when_allowed(&server, &id));
        reached.recv().unwrap();
        let repeat = server.curl(&call);
        assert_eq!((repeat.status, repeat.outcome()), (424, "not_attempted"));
        release.send(()).unwrap();
        assert_eq!(retried.join().unwrap().0, 200);
    });
    assert_eq!(service.effects(), 2);
}

/// J-3, K-7: that a retry failed says nothing of the attempt before it: the call stays in doubt, can
/// be asked about, and may be repeated; a result settles it.
#[test]
fn j_3_the_failure_of_a_retry_settles_no_earlier_attempt() {
    let service = Service::start(|asked| match asked.number {
        1 => Done::and_closes(),
        2 => Done::nothing_but(500, "", "failed"),
        _ => Done::nothing_but(200, "", "put"),
    });
    let home = home(&service.policy("retry = { max_attempts = 4 }"));
    let server = home.serve();
    let lost = server.curl(&["-X", "PUT", "-d", "x", &service.url("/item")]);
    assert_eq!(lost.outcome(), "unknown");
    let id = lost.invocation();
    let (status, failed) = retry_when_allowed(&server, &id);
    assert_eq!((status, &failed["attempt"]["evidence"]["status"]), (200, &json!(500)));
    assert_eq!(show(&server, &id)["error"]["outcome"], "unknown");
    assert_eq!(decision(&server, &id)["decision"], "RETRY_NEW_ATTEMPT");
    let (status, asked) = post(&server, &format!("invocations/{id}/reconcile"));
    assert_eq!(
        (status, &asked["code"]),
        (409, &json!("NOT_RECONCILABLE")),
        "the route has no rule"
    );
    let (status, retried) = retry_when_allowed(&server, &id);
    assert_eq!((status, &retried["attempt"]["evidence"]["status"]), (200, &json!(200)));
    let settled = show(&server, &id);
    assert_eq!(settled["error"]["outcome"], "committed");
    assert_eq!(settled["links"]["observed_by"], retried["attempt"]["invocation_id"]);
}

/// K-7: nothing is asked while an attempt is under way, whose effect the answer could miss.
#[test]
fn k_7_nothing_is_asked_while_an_attempt_is_under_way() {
    let (arrived, reached) = mpsc::channel();
    let (release, go_on) = mpsc::channel::<()>();
    let service = Service::start(move |asked| match (asked.method.as_str(), asked.number) {
        ("GET", _) => Done::nothing_but(404, "", ""),
        (_, 1) => Done::and_closes(),
        _ => {
            arrived.send(()).unwrap();
            go_on.recv().unwrap();
            Done::and_closes()
        }
    });
    let rules = r#"idempotent = true
retry = { max_attempts = 4 }
reconcile = { path = "/state?{invocation_id}", rejected = { status = 404 } }"#;
    let home = home(&service.policy(rules));
    let server = home.serve();
    let id = server.curl(&["-d", "x", &service.url("/pay")]).invocation();
    let attempt = std::thread::scope(|scope| {
        let retried = scope.spawn(|| retry_when_allowed(&server, &id));
        reached.recv().unwrap();
        let (status, refused) = post(&server, &format!("invocations/{id}/reconcile"));
        assert_eq!((status, &refused["code"]), (409, &json!("RETRY_UNDER_WAY")), "{refused}");
        release.send(()).unwrap();
        retried.join().unwrap().1["attempt"]["invocation_id"].as_str().unwrap().to_owned()
    });
    assert_eq!(show(&server, &attempt)["error"]["outcome"], "unknown");
    assert_eq!(service.asked().iter().filter(|asked| asked.method == "GET").count(), 0);
    // Now nothing is under way, and the answer speaks of both.
    let (status, asked) = post(&server, &format!("invocations/{id}/reconcile"));
    assert_eq!((status, &asked["shows"]), (200, &json!("rejected")));
    assert_eq!(show(&server, &attempt)["error"]["outcome"], "rejected");
}

/// Takes connections and says nothing.
fn silent() -> (SocketAddr, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (arrived, reached) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            kept.push(stream.unwrap());
            arrived.send(()).unwrap();
        }
    });
    (address, reached)
}

/// K-7, M-7: an origin that is silent holds up no question to another one, and neither does a question
/// that is out hold up the end of the server.
#[test]
fn k_7_a_silent_origin_holds_up_nobody_else() {
    let service = Service::start(|asked| match asked.method.as_str() {
        "GET" => Done::nothing_but(200, "", "there"),
        _ => Done::and_closes(),
    });
    let (address, reached) = silent();
    let rules = "limits = { response_timeout = \"2s\" }\n\
                 reconcile = { path = \"/s\", committed = { status = 200 }, automatic = true, every = \"1s\" }";
    let asks = rules.lines().nth(1).unwrap();
    let home = Home::new();
    home.policy(
        &(clear_route("silent", address, rules) + &clear_route("speaks", service.address(), asks)),
    );
    let server = home.serve();
    let hung = server.curl(&["-d", "x", &format!("http://{address}/pay")]);
    assert_eq!((hung.status, hung.outcome()), (504, "unknown"));
    reached.recv().unwrap();
    // From here on a question to it takes its time.
    let slow =
        clear_route("silent", address, asks) + &clear_route("speaks", service.address(), asks);
    home.policy(&slow);
    reached.recv().unwrap();
    let lost = server.curl(&["-d", "x", &service.url("/pay")]).invocation();
    eventually("the other is asked", || show(&server, &lost)["error"]["outcome"] == "committed");
    assert_eq!(show(&server, &hung.invocation())["error"]["outcome"], "unknown");
    eventually("a question is out", || {
        let newest = server.control("invocations?limit=20")["invocations"].clone();
        let open = |i: &Value| i["error"]["code"] == "IN_FLIGHT" && i["action"] == "GET";
        newest.as_array().unwrap().iter().any(open)
    });
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(home.json(&["inv", "show", &hung.invocation()])["error"]["outcome"], "unknown");
}

/// D-4: a retry on request that is out at the end of the server is cut when the drain is over, and says
/// so.
#[test]
fn d_4_a_retry_that_is_out_at_the_end_is_cut_and_says_so() {
    let (address, reached) = silent();
    let home = Home::new();
    let rules =
        "idempotent = true\nretry = { max_attempts = 4 }\nlimits = { response_timeout = \"1s\" }";
    home.policy(&clear_route("silent", address, rules));
    let server = Server::start_with(&home, &["--drain", "1s"]);
    let id = server.curl(&["-d", "x", &format!("http://{address}/pay")]).invocation();
    reached.recv().unwrap();
    let patient = rules.replace("\"1s\"", "\"10m\"");
    home.policy(&clear_route("silent", address, &patient));
    eventually("the time to wait is over", || {
        decision(&server, &id)["not_before_ms"].as_u64().unwrap() <= now_ms()
    });
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| home.run(&["inv", "retry", &id]));
        reached.recv().unwrap();
        signal(&server.child, Signal::TERM);
        drop(cut.join().unwrap());
    });
    assert_eq!(server.exit_code(), Some(0));
    let retries = home.json(&["inv", "show", &id])["links"]["retries"].clone();
    let attempt = home.json(&["inv", "show", retries[0].as_str().unwrap()]);
    assert_eq!(attempt["error"]["outcome"], "unknown");
    assert_ne!(attempt["error"]["code"], "IN_FLIGHT");
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// K-3, K-10: of long content the fingerprint covers the beginning, so the second use of a key is
/// answered from the record of the first where the whole content is equal, and is a mismatch where it is
/// not. Nothing is sent again under such a key.
#[test]
fn k_3_a_key_with_other_long_content_is_a_mismatch() {
    let service = Service::start(|asked: &Asked| match asked.target.as_str() {
        "/lost" => Done::and_closes(),
        _ => Done::and_answers(200, "", "stored"),
    });
    let rules = r#"idempotency = { header = "Idempotency-Key", contract = "verified" }
retry = { max_attempts = 4 }"#;
    let home = home(&service.policy(rules));
    let server = home.serve();
    let file = |name: &str, end: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, "x".repeat(1_500_000) + end).unwrap();
        format!("@{}", path.display())
    };
    let (one, two) = (file("one", "abc"), file("two", "abd"));
    let send = |path: &str, content: &str| {
        let key = "Idempotency-Key: k-1";
        let url = service.url(path);
        server.curl(&["-H", "Expect:", "--data-binary", content, "-H", key, &url])
    };
    assert_eq!(send("/kept", &one).status, 200);
    let changed = send("/kept", &two);
    assert_eq!((changed.status, changed.outcome()), (422, "not_attempted"));
    assert_eq!(changed.json()["error"]["code"], "IDEMPOTENCY_MISMATCH");
    let again = send("/kept", &one);
    assert_eq!((again.status, text(&again.body).as_str()), (200, "stored"));
    assert_eq!((service.asked().len(), service.effects()), (1, 1));
    assert_eq!(server.terminate(), Some(0));

    let server = Server::start_with(&home, &["--drain", "2s"]);
    let key = "Idempotency-Key: k-2";
    let lost =
        server.curl(&["-H", "Expect:", "--data-binary", &one, "-H", key, &service.url("/lost")]);
    assert_eq!((lost.outcome(), &lost.json()["error"]["retry"]), ("unknown", &json!("reconcile")));
    assert_eq!(decision(&server, &lost.invocation())["decision"], "RECONCILE");
}
