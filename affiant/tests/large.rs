//! Long bodies through the real binary: the same bytes on the other side, and memory that does not
//! grow with them.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::nginx::Nginx;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Command;
use support::*;

/// Memory that a server may take beyond what it had before, whatever the length of a body.
const GROWTH_KB: u64 = 96 * 1024;

/// Writes bytes that differ everywhere; gives their digest.
fn write_content(file: &Path, length: usize) -> Vec<u8> {
    let mut out = std::fs::File::create(file).unwrap();
    let mut block: Vec<u8> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let mut written = 0;
    while written < length {
        block[..8].copy_from_slice(&written.to_le_bytes());
        let piece = &block[..block.len().min(length - written)];
        out.write_all(piece).unwrap();
        written += piece.len();
    }
    digest(file)
}

fn digest(file: &Path) -> Vec<u8> {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let mut file = std::fs::File::open(file).unwrap();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return context.finish().as_ref().to_vec(),
            read => context.update(&buffer[..read]),
        }
    }
}

fn curl(home: &Home, server: &Server, arguments: &[&str]) -> std::process::Child {
    let mut command = Command::new("curl");
    command.args(["-sS", "--fail", "--max-time", "1200", "-x", &server.proxy()]);
    command.arg("--cacert").arg(home.path().join("bundle.pem")).args(arguments);
    clean(&mut command);
    command.spawn().unwrap()
}

/// Waits for a transfer and watches the server's memory meanwhile; the most that it had.
fn watch(mut transfer: std::process::Child, server: &Server) -> u64 {
    let mut most = 0;
    loop {
        most = most.max(memory_kb(server));
        if let Some(status) = transfer.try_wait().unwrap() {
            assert!(status.success(), "curl: {status}");
            return most;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Uploads, and downloads what arrived. `keep`: what the route keeps of results.
fn passes(length: usize, version: &str, keep: &str) {
    let server = "location /files/ { alias {dir}/www/; dav_methods PUT; }";
    let site = Nginx::start(server, |_| Ok(())).unwrap();
    let home = Home::new();
    let policy = plain_policy(&site.ca_file(), site.port()).replace("\"local\"", "\"coder\"");
    home.policy(&format!(
        "{policy}limits = {{ request_bytes = \"2GiB\", response_timeout = \"20m\" }}\n{keep}\n"
    ));
    let server = home.serve();
    let (sent, got) = (home.path().join("sent"), home.path().join("got"));
    let expected = write_content(&sent, length);
    let url = format!("https://localhost:{}/files/long", site.port());

    let before = memory_kb(&server);
    let upload = curl(&home, &server, &[version, "-T", sent.to_str().unwrap(), &url]);
    let most_up = watch(upload, &server);
    assert_eq!(digest(&site.directory().join("www/long")), expected, "the upload differs");
    let download = curl(&home, &server, &[version, "-o", got.to_str().unwrap(), &url]);
    let most_down = watch(download, &server);
    assert_eq!(digest(&got), expected, "the download differs");

    eprintln!(
        "{} MiB {version} {keep}: {before} kB before, at most {most_up} kB up, {most_down} kB down",
        length >> 20
    );
    let most = most_up.max(most_down);
    assert!(most < before + GROWTH_KB, "memory grew from {before} kB to {most} kB");
    let listed = home.json(&["inv", "list", "--agent", "coder"]);
    for invocation in listed["invocations"].as_array().unwrap() {
        assert_eq!(invocation["error"]["outcome"], "committed", "{invocation}");
    }
    let [down, up] = &listed["invocations"].as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!(down["evidence"]["response_bytes"], length, "{down}");
    assert_eq!(up["evidence"]["request_complete"], true, "{up}");
}

const DIGEST: &str = "result = { keep = \"digest\" }";
const FULL: &str = "result = { keep = \"full\", max_bytes = \"2GiB\" }";

#[test]
fn a_long_body_passes_both_ways_whole() {
    // Beyond a bound of 100 MiB, which other proxies have and do not tell.
    passes(101 << 20, "--http1.1", DIGEST);
    passes(64 << 20, "--http2", FULL);
}

#[test]
#[ignore = "long: 1 GiB each way, four times"]
fn a_gibibyte_passes_both_ways_and_memory_is_flat() {
    for version in ["--http1.1", "--http2"] {
        for keep in [DIGEST, FULL] {
            passes(1 << 30, version, keep);
        }
    }
}
