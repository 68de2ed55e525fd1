//! What idle tunnels cost in memory.

use crate::load::{self, Target};
use crate::process;
use crate::server::Affiant;
use anyhow::Context as _;
use conformance::nginx::Nginx;

/// Opens tunnels with a finished TLS handshake, each used once, and leaves them idle; then one in a
/// hundred has to carry a call again.
pub(crate) async fn run(count: usize) -> anyhow::Result<()> {
    let fill = |at: &std::path::Path| std::fs::write(at.join("www/1k"), "x".repeat(1024));
    let origin = Nginx::start("", fill).context("start nginx")?;
    let affiant = Affiant::start(&origin, true).context("start affiant")?;
    let path = affiant.path()?;
    let target = Target { port: origin.port(), path: "/1k", length: 1024 };
    // What the first calls set up once is no cost of a tunnel.
    load::run(&path, &target, 32, std::time::Duration::from_secs(1), None).await?;
    let before = process::memory_kb(affiant.pid())?;
    let mut tunnels = Vec::new();
    for number in 0..count {
        let mut tunnel = load::connect(&path, origin.port()).await?;
        load::request(&mut tunnel, &target).await?;
        tunnels.push(tunnel);
        if (number + 1) % 1000 == 0 {
            let (anonymous, all) = process::memory_kb(affiant.pid())?;
            let each = (anonymous.saturating_sub(before.0)) as f64 / (number + 1) as f64;
            println!(
                "{:>6} idle tunnels: {:.1} KiB each, {} MiB anonymous, {} MiB resident",
                number + 1,
                each,
                anonymous >> 10,
                all >> 10
            );
        }
    }
    for tunnel in tunnels.iter_mut().step_by(100) {
        load::request(tunnel, &target).await.context("a call on an idle tunnel")?;
    }
    println!("every hundredth carried a call again");
    Ok(())
}
