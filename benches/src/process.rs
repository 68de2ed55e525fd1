//! What /proc says of a process and its children.

use anyhow::Context as _;
use std::time::Duration;

/// User and system time so far of a process and of its children that run (proc(5), fields 14 and 15,
/// in ticks of 10 ms).
pub(crate) fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let mut ticks = 0;
    for pid in tree(pid)? {
        ticks += fields(pid)?.iter().skip(11).take(2).copied().sum::<u64>();
    }
    Ok(Duration::from_millis(ticks * 10))
}

/// Resident memory in KiB: anonymous, and all of it.
pub(crate) fn memory_kb(pid: u32) -> anyhow::Result<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = |name: &str| -> anyhow::Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("a line")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok((value("RssAnon:")?, value("VmRSS:")?))
}

/// The process and everything below it.
fn tree(root: u32) -> anyhow::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end meanwhile.
        if let Ok(fields) = fields(pid) {
            parents.push((pid, fields.get(1).copied().unwrap_or_default()));
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(parents.iter().filter(|(_, p)| *p == u64::from(parent)).map(|(pid, _)| pid));
        at += 1;
    }
    Ok(found)
}

/// The numbers behind the name, from the state on, which counts as 0.
fn fields(pid: u32) -> anyhow::Result<Vec<u64>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = stat.rsplit_once(')').context("read /proc")?.1;
    Ok(rest.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect())
}
