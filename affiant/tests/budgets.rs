//! Budgets of agents and the end of their access, with real curl through the binary.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Origin, Script, Step};
use serde_json::Value;
use std::process::Command;
use support::*;

struct Bench {
    home: Home,
    origin: Origin,
    server: Server,
}

fn policy(origin: &Origin, budget: &str) -> String {
    format!(
        r#"
[[budget]]
name = "coders"
agents = ["coder"]
{budget}

[[route]]
name = "origin"
match = {{ scheme = "http", host = "127.0.0.1", port = {} }}
private_addresses = "allow"
"#,
        origin.address().port()
    )
}

impl Bench {
    fn new(scripts: Vec<Script>, budget: &str) -> Self {
        let home = Home::new();
        let origin = Origin::start(scripts, None).unwrap();
        home.policy(&policy(&origin, budget));
        let server = home.serve();
        Self { home, origin, server }
    }

    fn plain(budget: &str) -> Self {
        Self::new(vec![Script::answer("*", 200, &[], "0123456789")], budget)
    }

    fn call(&self, path: &str) -> Response {
        self.server.curl(&[&format!("http://{}{path}", self.origin.address())])
    }

    /// `kill -9`, and a server on the same home whose clock is ahead by so much.
    fn restart(mut self, ahead: &str) -> Self {
        self.server.kill();
        self.server = serve_ahead(&self.home, ahead);
        self
    }
}

/// A server whose wall clock is ahead.
fn serve_ahead(home: &Home, ahead: &str) -> Server {
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"]
        .map(|place| format!("{place}/faketime/libfaketimeMT.so.1"))
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .expect("libfaketime is not installed: run the tests by `./dev test`");
    let (preload, time) = (format!("LD_PRELOAD={library}"), format!("FAKETIME={ahead}"));
    Server::start_by(home, &["env", &preload, &time, "FAKETIME_DONT_FAKE_MONOTONIC=1"])
}

fn expect_spent(response: &Response, key: &str) {
    let envelope = response.json();
    let error = &envelope["error"];
    assert_eq!(response.status, 429, "{envelope}");
    assert_eq!(error["code"], "BUDGET_SPENT", "{envelope}");
    assert_eq!(
        (&error["phase"], &error["outcome"]),
        (&"validation".into(), &"not_attempted".into())
    );
    assert_eq!(
        (&error["retry"], &error["field"]),
        (&"backoff".into(), &format!("budget.{key}").into())
    );
    assert!(error["not_before_ms"].as_u64().is_some());
    assert!(response.field("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(response.field("x-should-retry"), None);
    assert_eq!(envelope["evidence"]["dispatch_started"], false);
}

/// A call too many is refused before its dispatch with `backoff` and a time; a restart by `kill -9`
/// gives nothing back, and the time that passes does.
#[test]
fn a_restart_resets_no_budget_and_time_does() {
    let bench = Bench::plain("calls_per_hour = 2");
    for n in 0..2 {
        assert_eq!(bench.call(&format!("/{n}")).status, 200);
    }
    let spent = bench.call("/2");
    expect_spent(&spent, "calls_per_hour");
    let wait: u64 = spent.field("retry-after").unwrap().parse().unwrap();
    assert!((3000..=3660).contains(&wait), "{wait}");
    let bench = bench.restart("+1m");
    expect_spent(&bench.call("/3"), "calls_per_hour");
    let bench = bench.restart("+62m");
    assert_eq!(bench.call("/4").status, 200);
    assert_eq!(bench.origin.seen().len(), 3);
    let record = bench.home.json(&["inv", "show", &spent.invocation()]);
    assert_eq!(record["error"]["code"], "BUDGET_SPENT");
}

/// Answers from the record, refusals by policy and the calls of other agents count for nothing.
#[test]
fn only_dispatched_calls_of_the_agent_count() {
    let bench = Bench::plain("calls_per_day = 2");
    let id = "Affiant-Invocation: act_01ARZ3NDEKTSV4RRFFQ69G5FAV";
    let url = format!("http://{}/once", bench.origin.address());
    for _ in 0..3 {
        assert_eq!(bench.server.curl(&["-H", id, "-d", "a=1", &url]).status, 200);
    }
    assert_eq!(bench.server.curl(&["http://127.0.0.1:1/"]).status, 403);
    assert_eq!(bench.call("/second").status, 200);
    expect_spent(&bench.call("/third"), "calls_per_day");
    assert_eq!(bench.server.curl(&["-H", id, "-d", "a=1", &url]).status, 200, "a read is free");
    let other: Value = bench.home.json(&["agent", "add", "other"]);
    let proxy = format!("http://other:{}@{}", other["token"].as_str().unwrap(), bench.server.http);
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-x", &proxy, &url]);
    clean(&mut curl);
    assert_eq!(succeed(curl), "200");
}

/// Calls under way are bounded, and the place is free when one ends.
#[test]
fn calls_under_way_are_bounded() {
    let answer = Script::answer("*", 200, &[], "ok");
    let held = Script::new(
        "/held",
        [vec![Step::Hold], Script::answer("/held", 200, &[], "held").steps].concat(),
    );
    let bench = Bench::new(vec![held, answer], "concurrent_calls = 1");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.call("/held"));
        assert!(bench.origin.wait_for(1, PATIENCE));
        expect_spent(&bench.call("/other"), "concurrent_calls");
        bench.origin.release();
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!(bench.call("/other").status, 200);
}

/// Content is counted both ways, and across a restart.
#[test]
fn bytes_are_counted_both_ways() {
    let bench = Bench::plain("bytes_per_day = 25");
    let url = format!("http://{}/up", bench.origin.address());
    assert_eq!(bench.server.curl(&["-d", "0123456789", &url]).status, 200);
    assert_eq!(bench.call("/down").status, 200);
    let bench = bench.restart("+1m");
    expect_spent(&bench.call("/down"), "bytes_per_day");
    let bench = bench.restart("+25h");
    assert_eq!(bench.call("/down").status, 200);
}

/// A policy without a budget for the agent bounds nothing; the newest policy counts what was counted.
#[test]
fn a_budget_is_in_force_with_its_policy() {
    let bench = Bench::plain("calls_per_day = 1");
    assert_eq!(bench.call("/1").status, 200);
    expect_spent(&bench.call("/2"), "calls_per_day");
    bench.home.policy(&policy(&bench.origin, "calls_per_day = 2"));
    assert_eq!(bench.call("/3").status, 200);
    expect_spent(&bench.call("/4"), "calls_per_day");
}

/// The access of an agent ends with its time, on open connections as well, and a rotation renews it;
/// with an overlap the old token works beside the new one, and then no more.
#[test]
fn tokens_expire_and_rotate_with_an_overlap() {
    let bench = Bench::plain("calls_per_day = 99");
    let status = |server: &Server, name: &str, token: &Value| {
        let proxy = format!("http://{name}:{}@{}", token.as_str().unwrap(), server.http);
        let url = format!("http://{}/", bench.origin.address());
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-x", &proxy, &url]);
        clean(&mut curl);
        succeed(curl)
    };
    let brief: Value = bench.home.json(&["agent", "add", "brief", "--lasts", "2h"]);
    let list = bench.home.json(&["agent", "list"]);
    let listed = list.as_array().unwrap().iter().find(|agent| agent["name"] == "brief").unwrap();
    let lasts =
        listed["expires_at_ms"].as_u64().unwrap() - listed["token_set_at_ms"].as_u64().unwrap();
    assert_eq!(lasts, 7_200_000);
    let first: Value = bench.home.json(&["agent", "add", "steady"]);
    let second = bench.home.json(&["agent", "rotate", "steady", "--overlap", "1h"]);
    // `agent list` and `doctor` say that an old token works, and until when.
    let list = bench.home.json(&["agent", "list"]);
    let of = |name: &str| list.as_array().unwrap().iter().find(|agent| agent["name"] == name);
    let set = of("steady").unwrap()["token_set_at_ms"].as_u64().unwrap();
    let until = of("steady").unwrap()["old_token_until_ms"].as_u64().unwrap();
    assert!((3_590_000..=3_600_000).contains(&(until - set)), "{list}");
    assert_eq!(of("brief").unwrap()["old_token_until_ms"], Value::Null);
    let shown = bench.home.ok(&["agent", "list"]);
    assert!(shown.lines().next().unwrap().ends_with("OLD TOKEN UNTIL"), "{shown}");
    let doctor = bench.home.ok(&["doctor"]);
    let line = doctor.lines().find(|line| line.contains("agents  ")).unwrap();
    assert!(line.starts_with("note ") && !line.contains("brief"), "{line}");
    assert!(line.contains("the old token of \"steady\" works until "), "{line}");
    for (name, token) in [("brief", &brief), ("steady", &first), ("steady", &second)] {
        assert_eq!(status(&bench.server, name, &token["token"]), "200", "{name}");
    }
    drop(bench.server);
    let later = serve_ahead(&bench.home, "+90m");
    assert_eq!(status(&later, "brief", &brief["token"]), "200");
    assert_eq!(status(&later, "steady", &first["token"]), "407", "the overlap is over");
    assert_eq!(status(&later, "steady", &second["token"]), "200");
    drop(later);
    let latest = serve_ahead(&bench.home, "+3h");
    assert_eq!(status(&latest, "brief", &brief["token"]), "407", "its access ended");
    assert_eq!(status(&latest, "steady", &second["token"]), "200");
}
