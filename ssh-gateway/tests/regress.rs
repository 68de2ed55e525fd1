//! OpenSSH's own regression scripts (Debian: openssh-tests) through the gateway, and other people's
//! checks: ssh-audit, Ansible. Run by `./dev long`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, SSHD, err, out};
use common::{AGENT, Home, secret_file};
use ssh_gateway::{ClientConfig, Options, client_config};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::process::Command;

const SCRIPTS: &str = "/usr/lib/openssh/regress";

/// The names that the scripts use for their one server.
const HOSTS: [&str; 6] = ["somehost", "otherhost", "thishost", "nexthost", "host", "127.0.0.1"];

/// The scripts that test what a client sees of a server, through whatever leads there. Others test
/// the programs themselves (keys, configuration, agents) or need to be next to the server.
const THROUGH: [&str; 9] = [
    "connect",
    "exit-status",
    "exit-status-signal",
    "envpass",
    "yes-head",
    "stderr-data",
    "stderr-after-eof",
    "broken-pipe",
    "transfer",
];

async fn bounded(seconds: u64, mut command: Command) -> Output {
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(Duration::from_secs(seconds), command.output())
        .await
        .expect("it took too long")
        .unwrap()
}

/// A copy of the scripts with their keys made.
struct Scripts {
    directory: tempfile::TempDir,
}

impl Scripts {
    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn prepare() -> Option<Self> {
        if !Path::new(SCRIPTS).exists() {
            eprintln!("skipped: {SCRIPTS} is not there (Debian: openssh-tests)");
            return None;
        }
        let scripts = Self { directory: tempfile::tempdir().unwrap() };
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(format!("{SCRIPTS}/.")).arg(scripts.directory.path());
        assert!(bounded(60, copy).await.status.success());
        std::fs::write(scripts.place("nothing.sh"), "tid=\"keys\"\n").unwrap();
        let made = scripts.run("nothing", Path::new("ssh")).await;
        assert!(made.status.success(), "{} {}", out(&made), err(&made));
        Some(scripts)
    }

    /// Runs one script with this program as its ssh.
    async fn run(&self, name: &str, ssh: &Path) -> Output {
        let mut command = Command::new("sh");
        command
            .arg(self.place("test-exec.sh"))
            .arg(self.directory.path())
            .arg(self.place(&format!("{name}.sh")))
            .env("TEST_SHELL", "sh")
            .env("TEST_SSH_SSH", ssh)
            .env("TEST_SSH_SSHD", SSHD)
            .env("TEST_SSH_PORT", common::openssh::free_port().to_string())
            .env("TEST_SSH_UNSAFE_PERMISSIONS", "1")
            .env("TEST_SSH_SFTPSERVER", "/usr/lib/openssh/sftp-server")
            .current_dir(self.directory.path());
        bounded(240, command).await
    }

    /// Serves connections by an sshd each, with the configuration that the script makes.
    async fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = self.place("sshd_proxy");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stream = std::os::fd::OwnedFd::from(stream.into_std().unwrap());
                let blocking = std::net::TcpStream::from(stream.try_clone().unwrap());
                blocking.set_nonblocking(false).unwrap();
                let mut sshd = Command::new(SSHD);
                sshd.args(["-i", "-f"]).arg(&config);
                sshd.stdin(Stdio::from(stream.try_clone().unwrap())).stdout(Stdio::from(stream));
                let mut child = sshd.stderr(Stdio::null()).spawn().unwrap();
                tokio::spawn(async move { child.wait().await });
            }
        });
        address
    }

    /// An ssh that goes through the gateway, whatever configuration file it is told to read.
    fn wrapper(&self, home: &Home) -> PathBuf {
        let targets = HOSTS.map(|host| (host.to_owned(), 22));
        let config = self.place("gateway_config");
        let lines = client_config(&ClientConfig {
            directory: home.identity.directory(),
            host: "127.0.0.1",
            port: home.address.port(),
            agent: AGENT,
            targets: &targets,
        });
        // The gateway itself is one of the script's hosts here; only the alias leads to it.
        let (alias, rest) = lines.split_once("Host 127.0.0.1 localhost ::1\n").unwrap();
        let rest = rest.split_once("\n\n").unwrap().1;
        std::fs::write(&config, format!("{alias}{rest}    BatchMode yes\n")).unwrap();
        let path = self.place("ssh-through-gateway");
        // The configuration file and a proxy of the script's own give way to the gateway's.
        let script = format!(
            "#!/bin/bash\nkept=()\nwhile [ $# -gt 0 ]; do\n  case \"$1\" in\n  -F) shift ;;\n  \
             -o) case \"$2\" in proxycommand*) shift ;; *) kept+=(\"$1\") ;; esac ;;\n  \
             *) kept+=(\"$1\") ;;\n  esac\n  shift\ndone\nexec ssh -F {} \"${{kept[@]}}\"\n",
            config.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// S-1: OpenSSH's regression scripts pass through the gateway as they do without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: the scripts sleep a lot"]
async fn s_1_the_scripts_of_openssh_pass_through_the_gateway() {
    let Some(scripts) = Scripts::prepare().await else { return };
    let address = scripts.serve().await;
    let host_key = std::fs::read_to_string(scripts.place("host.ssh-ed25519.pub"))
        .or_else(|_| std::fs::read_to_string(scripts.place("ssh-ed25519.pub")))
        .unwrap();
    let host_key: Vec<&str> = host_key.split_whitespace().take(2).collect();
    let mut policy = String::from(
        "[[credential]]\nid = \"key\"\nsecret = \"target-key\"\ninject = \"ssh-key\"\n",
    );
    for (n, host) in HOSTS.iter().enumerate() {
        policy.push_str(&format!(
            "[[ssh]]\nname = \"h{n}\"\nagents = [\"{AGENT}\"]\nmatch = {{ host = \"{host}\" }}\n\
             address = \"{address}\"\nhost_keys = [\"{}\"]\ncredential = \"key\"\n\
             allow = [\"exec\", \"shell\", \"sftp\", \"forward\"]\nrepeat_guard = \"off\"\n\
             env = [\"_XXX_TEST*\"]\n",
            host_key.join(" ")
        ));
    }
    let home = Home::start_with(&policy, Options::default()).await;
    home.policy.set_secret("target-key", &secret_file(&scripts.place("ssh-ed25519"))).unwrap();
    home.identity.agent_key(AGENT).unwrap();
    let wrapper = scripts.wrapper(&home);
    let mut failed = Vec::new();
    for name in THROUGH {
        let before = home.count();
        let ran = scripts.run(name, &wrapper).await;
        if !ran.status.success() || home.count() == before {
            failed.push(format!("{name}: {}{}", out(&ran), err(&ran)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn python_program(name: &str) -> Option<PathBuf> {
    let python = std::env::var_os("AFFIANT_TEST_PYTHON").map(PathBuf::from)?;
    let program = python.with_file_name(name);
    if !program.exists() {
        eprintln!("skipped: {} is not installed", program.display());
        return None;
    }
    Some(program)
}

/// ssh-audit finds nothing to fail, and warns of nothing but what docs/ssh.md gives reasons for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: the audit makes many connections"]
async fn ssh_audit_warns_of_nothing_unexpected() {
    let Some(program) = python_program("ssh-audit") else { return };
    let Some(bench) = Bench::start("").await else { return };
    let mut command = Command::new(program);
    command.args(["--json", "--skip-rate-test", "-p", &bench.home.address.port().to_string()]);
    command.arg("127.0.0.1");
    let ran = bounded(120, command).await;
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", out(&ran), err(&ran)));
    let mut warned = Vec::new();
    for kind in ["kex", "key", "enc", "mac"] {
        for entry in report[kind].as_array().unwrap() {
            let name = entry["algorithm"].as_str().unwrap();
            let notes = &entry["notes"];
            assert!(notes.get("fail").is_none(), "{entry}");
            if notes.get("warn").is_some() {
                warned.push(name.to_owned());
            }
        }
    }
    warned.sort();
    assert_eq!(warned, ["curve25519-sha256", "curve25519-sha256@libssh.org"], "{report:#}");
}

/// Ansible with nothing but the printed configuration: `ping`, then a playbook with and without
/// pipelining, which ends with the same files both times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: Ansible takes its time"]
async fn ansible_pings_and_plays() {
    let Some(ansible) = python_program("ansible") else { return };
    let Some(bench) = Bench::start("repeat_guard = \"off\"").await else { return };
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let user = &bench.sshd.user;
    std::fs::write(
        path.join("hosts"),
        format!(
            "t ansible_user={user} ansible_python_interpreter=/usr/bin/python3 \
             ansible_ssh_common_args='-F {}'\n",
            bench.config.display()
        ),
    )
    .unwrap();
    let play = "- hosts: t\n  gather_facts: true\n  tasks:\n    \
        - copy: { content: \"{{ ansible_hostname }}\", dest: \"{{ place }}/name\" }\n    \
        - shell: \"cat\"\n      args: { stdin: \"over stdin\" }\n      register: said\n    \
        - assert: { that: said.stdout == 'over stdin' }\n    \
        - command: \"touch {{ place }}/{{ item }}\"\n      loop: [a, b, c, d, e]\n    \
        - command: \"false\"\n      register: failed\n      failed_when: failed.rc != 1\n";
    std::fs::write(path.join("play.yml"), play).unwrap();
    std::fs::write(path.join("ansible.cfg"), "").unwrap();
    let run = async |program: &Path, arguments: &[&str], pipelining: &str| {
        let mut command = Command::new(program);
        command
            .arg("-i")
            .arg(path.join("hosts"))
            .args(arguments)
            .env("HOME", path)
            .env("ANSIBLE_HOST_KEY_CHECKING", "True")
            .env("ANSIBLE_PIPELINING", pipelining)
            .env("ANSIBLE_CONFIG", path.join("ansible.cfg"))
            .env("LC_ALL", "C.UTF-8")
            .env_remove("SSH_AUTH_SOCK");
        bounded(400, command).await
    };
    let ping = run(&ansible, &["t", "-m", "ping"], "False").await;
    assert!(out(&ping).contains("\"ping\": \"pong\""), "{} {}", out(&ping), err(&ping));
    for pipelining in ["False", "True"] {
        let place = path.join(pipelining);
        std::fs::create_dir(&place).unwrap();
        let extra = format!("place={}", place.display());
        let book = path.join("play.yml");
        let arguments = ["-e", &extra, book.to_str().unwrap()];
        let played = run(&ansible.with_file_name("ansible-playbook"), &arguments, pipelining).await;
        assert!(played.status.success(), "{pipelining}: {} {}", out(&played), err(&played));
        let mut made: Vec<_> = std::fs::read_dir(&place)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        made.sort();
        assert_eq!(made, ["a", "b", "c", "d", "e", "name"]);
    }
}
