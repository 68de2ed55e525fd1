//! By which names the SSH gateway is known to stock OpenSSH.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;
#[path = "support/ssh.rs"]
mod target;

use std::process::Command;
use support::*;
use target::Bench;

/// S-6: stock OpenSSH with strict checking takes the gateway by whatever address it listens on, and by a
/// name that it was told.
#[test]
fn s_6_a_gateway_beside_localhost_is_known_by_address_and_name() {
    let names = ["--ssh-name", "gateway.test", "--ssh-name", "other.test"];
    let Bench { home, sshd, server, .. } = Bench::new();
    server.kill();
    let server = Server::start_ssh_at(&home, "127.0.0.2:0", &names);
    let by_address = home.ok(&["ssh-config", "--agent", "coder"]);
    assert!(by_address.contains("    HostName 127.0.0.2\n"), "{by_address}");
    let port = server.ssh.port();
    let place = format!("gateway.test:{port}");
    let by_name = home.ok(&["ssh-config", "--agent", "coder", "--gateway", &place]);
    let named = format!("    HostName gateway.test\n    Port {port}\n");
    assert!(by_name.contains(&named), "{by_name}");
    // Nothing here looks names up: the address is told by hand, the name is what is checked.
    let checked = |name: &str| {
        let told = format!("    HostName 127.0.0.2\n    HostKeyAlias {name}\n    Port {port}\n");
        by_name.replace(&named, &told)
    };
    let config = home.path().join("ssh_config");
    let cases = [
        (by_address.clone(), 7),
        (checked("gateway.test"), 7),
        (checked("other.test"), 7),
        (checked("localhost"), 7),
        (checked("third.test"), 255),
    ];
    for (lines, status) in cases {
        std::fs::write(&config, &lines).unwrap();
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(&config).args(["-o", "BatchMode=yes"]);
        ssh.arg(format!("{}@prod-1", target::user())).arg("exit 7");
        clean(&mut ssh);
        let ran = finish(ssh, b"");
        assert_eq!(ran.status.code(), Some(status), "{lines}{}", text(&ran.stderr));
    }
    drop((sshd, server));
}
