//! Affiant beside the proxies of [`crate::peer`], in one run, journal on: requests on kept connections,
//! new tunnels, and streaming with the storing of results off and on.

use crate::load::{self, Measured, Path, Target};
use crate::peer::{Kind, Peer};
use crate::process;
use crate::server::Affiant;
use crate::{Column, ROUNDS, WARM_UP, median};
use anyhow::Context as _;
use conformance::nginx::Nginx;
use std::time::{Duration, Instant};

const CONCURRENCY: usize = 32;
const LONG: usize = 100_000_000;

/// A proxy with what was measured of it.
struct Row {
    column: Column,
    /// Where long content lies that its record keeps; `None` where nothing is ever kept.
    stored: Option<&'static str>,
    kept: Vec<Measured>,
    new: Vec<Measured>,
    plain_mb: Vec<f64>,
    stored_mb: Vec<f64>,
    long_cpu_ms: Vec<f64>,
}

/// Measures and prints. `names` limits the peers; one that can't be started is told and left out.
pub(crate) async fn run(length: Duration, names: &[String]) -> anyhow::Result<()> {
    let origin = Nginx::start("", |at| {
        std::fs::write(at.join("www/1k"), "x".repeat(1024))?;
        std::fs::create_dir(at.join("www/stored"))?;
        std::fs::write(at.join("www/stored/100m"), vec![b'x'; LONG])?;
        std::fs::hard_link(at.join("www/stored/100m"), at.join("www/100m"))
    });
    let origin = origin.context("start nginx")?;
    let affiant = Affiant::start(&origin, true).context("start affiant")?;
    let mut peers = Vec::new();
    for kind in Kind::ALL {
        if !names.is_empty() && !names.iter().any(|name| name == kind.name()) {
            continue;
        }
        match Peer::start(kind, &origin.ca_file()) {
            Ok(peer) => peers.push((kind, peer)),
            Err(error) => println!("left out: {}: {error:#}", kind.name()),
        }
    }
    let direct = Path::direct(origin.ca_pem())?;
    let mut rows = vec![
        row("direct", direct, None, None),
        row("affiant", affiant.path()?, Some(affiant.pid()), Some("/stored/100m")),
    ];
    for (kind, peer) in &peers {
        rows.push(row(kind.name(), peer.path()?, Some(peer.pid()), None));
    }
    for round in 0..ROUNDS {
        for row in &mut rows {
            measure(row, &origin, length, round == 0)
                .await
                .with_context(|| format!("measure {}", row.column.name))?;
        }
    }
    print(&rows);
    Ok(())
}

fn row(name: &'static str, path: Path, pid: Option<u32>, stored: Option<&'static str>) -> Row {
    Row {
        column: Column { name, path, pid },
        stored,
        kept: Vec::new(),
        new: Vec::new(),
        plain_mb: Vec::new(),
        stored_mb: Vec::new(),
        long_cpu_ms: Vec::new(),
    }
}

async fn measure(
    row: &mut Row,
    origin: &Nginx,
    length: Duration,
    first: bool,
) -> anyhow::Result<()> {
    let (path, pid) = (&row.column.path, row.column.pid);
    let target = Target { port: origin.port(), path: "/1k", length: 1024 };
    if first {
        load::run(path, &target, CONCURRENCY, WARM_UP, None).await?;
    }
    row.kept.push(load::run(path, &target, CONCURRENCY, length, pid).await?);
    row.new.push(load::run_new(path, &target, CONCURRENCY, length, pid).await?);
    let before = pid.map(process::cpu).transpose()?;
    row.plain_mb.push(stream(path, &Target { path: "/100m", length: LONG, ..target }).await?);
    if let (Some(before), Some(pid)) = (before, pid) {
        row.long_cpu_ms.push((process::cpu(pid)? - before).as_secs_f64() * 1e3);
    }
    if let Some(stored) = row.stored {
        row.stored_mb.push(stream(path, &Target { path: stored, length: LONG, ..target }).await?);
    }
    Ok(())
}

/// MB/s of one long response on one connection.
async fn stream(path: &Path, target: &Target) -> anyhow::Result<f64> {
    let mut connection = load::connect(path, target.port).await?;
    let begin = Instant::now();
    load::request(&mut connection, target).await?;
    Ok(LONG as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

fn print(rows: &[Row]) {
    println!(
        "intercepted HTTPS, header injected, {CONCURRENCY} connections, medians of {ROUNDS} \
         interleaved rounds\n"
    );
    println!(
        "{:<10} {:>8} {:>10} {:>9} {:>9} {:>8} {:>11} {:>9} {:>9} {:>11}",
        "",
        "req/s",
        "/CPU s",
        "p50 us",
        "p99 us",
        "new/s",
        "new/CPU s",
        "MB/s",
        "stored",
        "CPU ms/100M"
    );
    let of = |all: &[Measured], what: fn(&Measured) -> f64| median(all.iter().map(what));
    let mid = |all: &[f64]| median(all.iter().copied());
    for row in rows {
        let own = |value: f64| match row.column.pid {
            Some(_) => format!("{value:.0}"),
            None => "-".to_owned(),
        };
        println!(
            "{:<10} {:>8.0} {:>10} {:>9.0} {:>9.0} {:>8.0} {:>11} {:>9.0} {:>9} {:>11}",
            row.column.name,
            of(&row.kept, Measured::rate),
            own(of(&row.kept, Measured::per_cpu_second)),
            of(&row.kept, |m| m.percentile_us(0.50)),
            of(&row.kept, |m| m.percentile_us(0.99)),
            of(&row.new, Measured::rate),
            own(of(&row.new, Measured::per_cpu_second)),
            mid(&row.plain_mb),
            if row.stored_mb.is_empty() {
                "-".into()
            } else {
                format!("{:.0}", mid(&row.stored_mb))
            },
            own(mid(&row.long_cpu_ms)),
        );
    }
    println!();
    let Some(ours) = rows.iter().find(|row| row.column.name == "affiant") else { return };
    for peer in rows.iter().filter(|row| row.column.pid.is_some() && row.column.name != "affiant") {
        let ratio = |what: fn(&Measured) -> f64| of(&ours.kept, what) / of(&peer.kept, what);
        println!(
            "affiant / {}: req/s per CPU s {:.2}, req/s {:.2}, p99 {:.2}, new/s {:.2}, MB/s {:.2}, \
             stored {:.2}",
            peer.column.name,
            ratio(Measured::per_cpu_second),
            ratio(Measured::rate),
            ratio(|m| m.percentile_us(0.99)),
            of(&ours.new, Measured::rate) / of(&peer.new, Measured::rate),
            mid(&ours.plain_mb) / mid(&peer.plain_mb),
            mid(&ours.stored_mb) / mid(&peer.plain_mb),
        );
    }
}
