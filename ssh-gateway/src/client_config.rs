//! The OpenSSH client configuration that leads through the gateway.

use std::collections::HashSet;
use std::path::Path;

/// What the configuration is made for.
#[derive(Debug, Clone)]
pub struct ClientConfig<'a> {
    /// `HOME/ssh`, see [`crate::Identity::directory`].
    pub directory: &'a Path,
    /// The host by which clients reach the gateway.
    pub host: &'a str,
    /// The gateway's port.
    pub port: u16,
    /// The agent that logs in when the command line names none.
    pub agent: &'a str,
    /// Targets that policy knows, host and port.
    pub targets: &'a [(String, u16)],
}

/// The ciphers to begin with: the client's order decides, and its own first choices cost two to
/// three times as much on both ends of both hops.
const CIPHERS: &str = "Ciphers ^aes128-gcm@openssh.com,aes256-gcm@openssh.com";

/// The host alias of the gateway in the configuration.
const ALIAS: &str = "affiant-gateway";

/// Renders the lines. They serve both ways in: `ssh deploy@prod-1 CMD` for the targets that policy
/// names, and `ssh -J agent@HOST:PORT deploy@prod-1 CMD`.
///
/// The agent's login key stands in for a typed token (`IdentityFile .../agents/%r`), so that a
/// client in batch mode gets in; password and keyboard-interactive take the token where there is
/// no key. The host certificates are trusted by one `@cert-authority` line in `known_hosts`.
#[must_use]
pub fn client_config(config: &ClientConfig<'_>) -> String {
    let ClientConfig { directory, host, port, agent, targets } = config;
    let known_hosts = quoted(&directory.join("known_hosts"));
    let agents = quoted(&directory.join("agents").join("%r"));
    let names = match *host {
        "127.0.0.1" | "localhost" | "::1" => "127.0.0.1 localhost ::1",
        other => other,
    };
    let mut text = format!(
        "# SSH through Affiant, made by `affiant ssh-config`.\n\
         Host {ALIAS}\n    HostName {host}\n    Port {port}\n    User {agent}\n    \
         IdentityFile {agents}\n    IdentitiesOnly yes\n    {CIPHERS}\n    \
         UserKnownHostsFile {known_hosts}\n    StrictHostKeyChecking yes\n\n"
    );
    // The gateway by address, for `ssh -J agent@HOST:PORT`. A server of the user's own on this host
    // keeps its known hosts.
    text.push_str(&format!(
        "Host {names}\n    IdentityFile {agents}\n    {CIPHERS}\n    \
         UserKnownHostsFile {known_hosts} ~/.ssh/known_hosts\n\n"
    ));
    let mut seen = HashSet::new();
    for (target, port) in targets.iter().filter(|(target, _)| seen.insert(target)) {
        text.push_str(&format!(
            "Host {target}\n    Port {port}\n    ProxyJump {ALIAS}\n    \
             UserKnownHostsFile {known_hosts}\n    StrictHostKeyChecking yes\n    \
             PubkeyAuthentication no\n    {CIPHERS}\n\n"
        ));
    }
    // Targets that come into policy later, by `-J`. The first value that ssh finds counts, so this
    // changes nothing that is set above or before.
    text.push_str(&format!("Host *\n    UserKnownHostsFile {known_hosts} ~/.ssh/known_hosts\n"));
    text
}

/// A path as an argument of ssh_config(5), which has quotes but no escapes.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    if path.contains(char::is_whitespace) { format!("\"{path}\"") } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_name_gateway_targets_and_keys() {
        let text = client_config(&ClientConfig {
            directory: Path::new("/home/a b/ssh"),
            host: "127.0.0.1",
            port: 7722,
            agent: "coder",
            targets: &[("prod-1".to_owned(), 22), ("db".to_owned(), 2222), ("db".to_owned(), 22)],
        });
        assert!(text.contains("Host affiant-gateway\n    HostName 127.0.0.1\n    Port 7722\n"));
        assert!(
            text.contains("Host prod-1\n    Port 22\n    ProxyJump affiant-gateway\n"),
            "{text}"
        );
        assert_eq!(text.matches("Host db\n").count(), 1, "{text}");
        assert!(text.contains("IdentityFile \"/home/a b/ssh/agents/%r\"\n"), "{text}");
    }
}
