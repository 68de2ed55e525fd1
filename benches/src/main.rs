//! Benches of the whole system, as ratios inside one run: these machines are noisy.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

mod idle;
mod load;
mod log;
mod peer;
mod peers;
mod policy;
mod process;
mod server;
mod ssh;

use anyhow::Context as _;
use conformance::nginx::Nginx;
use load::{Measured, Path, Target};
use std::time::Duration;

/// Rounds per row; the columns of a round run one after the other, so that noise hits all.
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    // `journal [SECONDS]`: the log alone. `peers [SECONDS] [NAME...]`: beside other proxies.
    // `idle [COUNT]`: memory of idle tunnels. `ssh`: the SSH gateway. `policy [SECONDS]`: decisions
    // alone. `[SECONDS]`: with and without syncs.
    let what = arguments.next_if(|argument| argument.parse::<f64>().is_err());
    let number = arguments.next().map(|text| text.parse::<f64>()).transpose()?;
    let seconds = number.unwrap_or(3.0);
    let length = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match what.as_deref() {
        None => runtime.block_on(compare(length)),
        Some("journal") => log::run(seconds),
        Some("peers") => runtime.block_on(peers::run(length, &arguments.collect::<Vec<_>>())),
        Some("idle") => runtime.block_on(idle::run(number.map_or(10_000, |count| count as usize))),
        Some("policy") => policy::run(seconds),
        Some("ssh") => ssh::run(),
        Some(other) => anyhow::bail!("no bench {other:?}: journal, peers, idle, policy, ssh"),
    }
}

/// What is compared: the same requests on three ways.
struct Column {
    name: &'static str,
    path: Path,
    pid: Option<u32>,
}

async fn compare(length: Duration) -> anyhow::Result<()> {
    let fill = |at: &std::path::Path| std::fs::write(at.join("www/1k"), "x".repeat(1024));
    let origin = Nginx::start("", fill).context("start nginx")?;
    let on = server::Affiant::start(&origin, true).context("start affiant, journal on")?;
    let off = server::Affiant::start(&origin, false).context("start affiant, journal off")?;
    let target = Target { port: origin.port(), path: "/1k", length: 1024 };
    let columns = [
        Column { name: "direct", path: Path::direct(origin.ca_pem())?, pid: None },
        Column { name: "no sync", path: off.path()?, pid: Some(off.pid()) },
        Column { name: "journal on", path: on.path()?, pid: Some(on.pid()) },
    ];
    println!("HTTPS GET of 1 KB from nginx, keep-alive, intercepted, bearer injected");
    for concurrency in [1, 32] {
        let rows = rounds(&columns, &target, concurrency, length).await?;
        print(concurrency, &columns, &rows);
    }
    Ok(())
}

async fn rounds(
    columns: &[Column],
    target: &Target,
    concurrency: usize,
    length: Duration,
) -> anyhow::Result<Vec<Vec<Measured>>> {
    let mut rows: Vec<Vec<Measured>> = columns.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (column, row) in columns.iter().zip(&mut rows) {
            load::run(&column.path, target, concurrency, WARM_UP, None).await?;
            row.push(load::run(&column.path, target, concurrency, length, column.pid).await?);
        }
    }
    Ok(rows)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print(concurrency: usize, columns: &[Column], rows: &[Vec<Measured>]) {
    println!("\nconcurrency {concurrency}, medians of {ROUNDS} interleaved rounds");
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "", "req/s", "of direct", "p50 us", "p99 us", "CPU us/req"
    );
    let rate = |row: &[Measured]| median(row.iter().map(Measured::rate));
    let direct = rows.first().map_or(f64::NAN, |row| rate(row));
    for (column, row) in columns.iter().zip(rows) {
        println!(
            "{:<12} {:>9.0} {:>9.3} {:>9.0} {:>9.0} {:>12}",
            column.name,
            rate(row),
            rate(row) / direct,
            median(row.iter().map(|m| m.percentile_us(0.50))),
            median(row.iter().map(|m| m.percentile_us(0.99))),
            match column.pid {
                Some(_) => format!("{:.0}", median(row.iter().map(Measured::cpu_us_per_request))),
                None => "-".to_owned(),
            },
        );
    }
    if let [direct, off, on] = rows {
        let p50 = |row: &[Measured]| median(row.iter().map(|m| m.percentile_us(0.50)));
        println!("journal on / no sync: {:.3} of the requests per second", rate(on) / rate(off));
        println!("added latency over direct, p50: {:.0} us", p50(on) - p50(direct));
    }
}
