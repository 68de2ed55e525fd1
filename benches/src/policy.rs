//! Decisions of policy: how long one takes with few and with many routes.

use anyhow::{anyhow, ensure};
use policy::{HttpAction, Policy, Scheme, Snapshot};
use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

const FEW: usize = 10;
const MANY: usize = 10_000;

/// Half of the routes by host, half by agent at one host, as fleets have them.
fn snapshot(routes: usize) -> anyhow::Result<Snapshot> {
    let mut text = String::new();
    for i in 0..routes / 2 {
        write!(
            text,
            "[[route]]\nname = \"host-{i}\"\nmatch = {{ host = \"h{i}.test\", path = \"/v1/**\" }}\n\
             [[route]]\nname = \"agent-{i}\"\nagents = [\"agent-{i}\"]\nmatch = {{ host = \"api.test\" }}\n"
        )?;
    }
    Policy::check(&text, "bench").map_err(|found| anyhow!("{found:?}"))
}

/// All at one host, with paths that begin alike and go on with a star.
fn starred(routes: usize) -> anyhow::Result<Snapshot> {
    let mut text = String::new();
    for i in 0..routes / 2 {
        write!(
            text,
            "[[route]]\nname = \"part-{i}\"\nmatch = {{ host = \"api.test\", path = \"/v1/*/p{i}/**\" }}\n\
             [[route]]\nname = \"begin-{i}\"\nmatch = {{ host = \"api.test\", path = \"/v1/b{i}-*/**\" }}\n"
        )?;
    }
    Policy::check(&text, "bench").map_err(|found| anyhow!("{found:?}"))
}

/// The time of one decision by such a path.
fn decide_starred(
    snapshot: &Snapshot,
    routes: usize,
    length: Duration,
) -> anyhow::Result<Duration> {
    let part = |i| [format!("/v1/x/p{i}/charges/123"), format!("/v1/b{i}-x/charges/123")];
    let paths: Vec<String> = (0..routes / 2).flat_map(part).collect();
    let (begun, mut decided) = (Instant::now(), 0_u32);
    while begun.elapsed() < length {
        for path in &paths {
            let (agent, scheme, host, method) = ("coder", Scheme::Https, "api.test", "POST");
            let action = HttpAction { agent, scheme, host, port: 443, method, path };
            ensure!(snapshot.http(black_box(&action)).is_ok(), "a decision that denies");
            decided = decided.saturating_add(1);
        }
    }
    Ok(begun.elapsed() / decided)
}

/// The time of one decision, over so long.
fn decide(snapshot: &Snapshot, routes: usize, length: Duration) -> anyhow::Result<Duration> {
    let names: Vec<_> =
        (0..routes / 2).map(|i| (format!("h{i}.test"), format!("agent-{i}"))).collect();
    let action = |agent, host| HttpAction {
        agent,
        scheme: Scheme::Https,
        host,
        port: 443,
        method: "POST",
        path: "/v1/charges/123",
    };
    let (begun, mut decided) = (Instant::now(), 0_u32);
    while begun.elapsed() < length {
        for (host, agent) in &names {
            let by_host = snapshot.http(black_box(&action("coder", host)));
            let by_agent = snapshot.http(black_box(&action(agent, "api.test")));
            ensure!(by_host.is_ok() && by_agent.is_ok(), "a decision that denies");
            decided = decided.saturating_add(2);
        }
    }
    Ok(begun.elapsed() / decided)
}

pub(crate) fn run(seconds: f64) -> anyhow::Result<()> {
    let length = Duration::from_secs_f64(seconds);
    let few = snapshot(FEW)?;
    let begun = Instant::now();
    let many = snapshot(MANY)?;
    let compiled = begun.elapsed();
    let begun = Instant::now();
    let stars = starred(MANY)?;
    let compiled_stars = begun.elapsed();
    println!("one decision, without the call around it");
    println!("| routes | time | of few |\n|---|---|---|");
    let least = decide(&few, FEW, length)?;
    let most = decide(&many, MANY, length)?;
    println!("| {FEW} | {least:?} | 1.0 |");
    println!("| {MANY} | {most:?} | {:.1} |", most.as_secs_f64() / least.as_secs_f64());
    let alike = decide_starred(&stars, MANY, length)?;
    let of_few = alike.as_secs_f64() / least.as_secs_f64();
    println!("| {MANY}, paths that begin alike, then a star | {alike:?} | {of_few:.1} |");
    println!(
        "\nreading and checking {MANY} routes, ties included: {compiled:?}; with stars {compiled_stars:?}"
    );
    Ok(())
}
