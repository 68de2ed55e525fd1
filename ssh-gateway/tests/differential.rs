//! Each case twice, with stock OpenSSH: straight to sshd, and through the gateway. stdout, stderr,
//! exit status and the files that are left have to be the same. The rows of docs/ssh.md name cases
//! by their names here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, pattern};
use common::within;
use futures::stream::{self, StreamExt as _};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// What a case leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    stdout: Vec<u8>,
    stderr: String,
    code: Option<i32>,
    /// Names, modes and content.
    files: Vec<(PathBuf, u32, Vec<u8>)>,
}

/// Where stdin comes from.
#[derive(Clone, Copy)]
enum Stdin {
    Empty,
    Text(&'static str),
    Pattern(usize),
}

/// One case: a program of OpenSSH with its arguments. `{dir}` is a folder of its own, in which
/// `here` holds three megabytes; `{t}` is the target with its user.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    stdin: Stdin,
    /// Run by sh around the program's command line, in `$RUN`: pipes, signals, time.
    around: Option<&'static str>,
    /// The status that both have to give, so that two equal failures are no success.
    code: i32,
}

const fn ssh(name: &'static str, arguments: &'static [&'static str], code: i32) -> Case {
    Case { name, program: "ssh", arguments, stdin: Stdin::Empty, around: None, code }
}

const fn fed(mut case: Case, stdin: Stdin) -> Case {
    case.stdin = stdin;
    case
}

const fn around(mut case: Case, script: &'static str) -> Case {
    case.around = Some(script);
    case
}

const fn copy(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Case {
    Case { name, program, arguments, stdin: Stdin::Empty, around: None, code: 0 }
}

const REKEY: &str = "RekeyLimit=4M";
const KEX: &str = "KexAlgorithms=curve25519-sha256";

const CASES: &[Case] = &[
    ssh("status_0", &["{t}", "true"], 0),
    ssh("status_1", &["{t}", "false"], 1),
    ssh("status_127_for_no_such_command", &["{t}", "no-such-command 2>/dev/null"], 127),
    ssh("status_254", &["{t}", "exit 254"], 254),
    ssh("status_255", &["{t}", "exit 255"], 255),
    ssh("killed_by_a_signal", &["-o", "LogLevel=QUIET", "{t}", "kill -9 $$"], 255),
    ssh("dumped_by_a_signal", &["-o", "LogLevel=QUIET", "{t}", "kill -SEGV $$"], 255),
    ssh("stderr_stays_apart", &["{t}", "echo out; echo err >&2; exit 4"], 4),
    ssh("stderr_alone", &["{t}", "head -c 300000 /dev/zero | tr '\\0' e >&2"], 0),
    ssh("last_bytes_arrive", &["{t}", "seq 150000; seq 7 | sha256sum >&2; exit 9"], 9),
    ssh("late_output_without_stdin", &["-n", "{t}", "exec 0<&-; sleep 0.3; echo late; exit 7"], 7),
    ssh("status_after_closed_streams", &["{t}", "exec >&- 2>&-; sleep 0.3; exit 6"], 6),
    fed(ssh("end_of_stdin_is_passed_on", &["{t}", "cat; echo end"], 0), Stdin::Text("x\n")),
    fed(ssh("no_stdin", &["{t}", "wc -c"], 0), Stdin::Empty),
    fed(ssh("stdin_that_nobody_reads", &["{t}", "exit 3"], 3), Stdin::Pattern(3_000_000)),
    fed(ssh("stdin_of_three_megabytes", &["{t}", "sha256sum"], 0), Stdin::Pattern(3_000_000)),
    fed(ssh("both_ways_at_once", &["{t}", "cat"], 0), Stdin::Pattern(20_000_000)),
    around(
        fed(ssh("a_late_reader", &["{t}", "cat"], 0), Stdin::Pattern(20_000_000)),
        "\"$@\" | (sleep 1; sha256sum)",
    ),
    around(ssh("output_is_closed_early", &["{t}", "seq 3000000"], 0), "\"$@\" | head -n 2"),
    ssh("output_of_thirty_megabytes", &["{t}", "head -c 30000000 /dev/zero | tr '\\0' y"], 0),
    ssh("command_with_quotes", &["{t}", "printf '%s|' 'a b' \"c\\\"d\" '$HOME' \"e\nf\""], 0),
    ssh("command_that_is_not_text", &["{t}", "printf '\u{fffd}\u{1}' | od -c"], 0),
    around(ssh("long_command", &["{t}"], 0), "\"$@\" \"$(printf 'true %0120000d' 0)\""),
    around(
        ssh("command_longer_than_the_system_takes", &["{t}"], 1),
        "\"$@\" \"$(printf 'true %0120000d' 0)\" \"$(printf '%0120000d' 0)\" 2>&1 | sed 's/^.*: //'; exit 1",
    ),
    ssh("several_words", &["{t}", "echo", "a  b", "*"], 0),
    ssh("a_command_of_nothing_much", &["{t}", ":"], 0),
    fed(ssh("shell_over_stdin", &["-T", "{t}"], 5), Stdin::Text("echo $((6*7))\nexit 5\n")),
    fed(
        ssh("editor_style_shell", &["-T", "{t}", "bash"], 2),
        Stdin::Text("uname -s\necho done >&2\nexit 2\n"),
    ),
    ssh("terminal", &["-tt", "-o", "LogLevel=ERROR", "{t}", "stty size; test -t 0; exit 5"], 5),
    ssh("variables_that_pass", &["-o", "SetEnv=LC_TEST=a=b", "{t}", "echo $LC_TEST"], 0),
    ssh("variables_that_do_not", &["-o", "SetEnv=OTHER=x", "{t}", "echo [$OTHER]"], 0),
    ssh("agent_is_not_forwarded", &["-a", "{t}", "echo [$SSH_AUTH_SOCK]"], 0),
    ssh("compression_is_asked_for", &["-C", "{t}", "seq 20000"], 0),
    ssh("host_keys_are_asked_for", &["-o", "UpdateHostKeys=yes", "{t}", "true"], 0),
    ssh("keepalives", &["-o", "ServerAliveInterval=1", "{t}", "sleep 2.5; echo ok"], 0),
    ssh(
        "new_keys_during_output",
        &["-o", REKEY, "-o", KEX, "{t}", "head -c 20000000 /dev/zero | tr '\\0' r"],
        0,
    ),
    fed(
        ssh("new_keys_during_input", &["-o", REKEY, "-o", KEX, "{t}", "sha256sum"], 0),
        Stdin::Pattern(20_000_000),
    ),
    fed(
        ssh("new_keys_both_ways", &["-C", "-o", REKEY, "-o", KEX, "{t}", "cat"], 0),
        Stdin::Pattern(12_000_000),
    ),
    copy("scp_to", "scp", &["-q", "{dir}/here", "{t}:{dir}/there"]),
    copy("scp_from", "scp", &["-q", "{t}:{dir}/here", "{dir}/back"]),
    copy("scp_old_protocol_to", "scp", &["-O", "-q", "{dir}/here", "{t}:{dir}/there"]),
    copy("scp_old_protocol_from", "scp", &["-O", "-q", "{t}:{dir}/here", "{dir}/back"]),
    copy("scp_keeps_modes", "scp", &["-p", "-q", "-r", "{t}:{dir}/tree", "{dir}/copy"]),
    fed(
        copy("sftp_batch", "sftp", &["-q", "-b", "-", "{t}"]),
        Stdin::Text(
            "mkdir {dir}/d\nput {dir}/here {dir}/d/a\nrename {dir}/d/a {dir}/d/b\nchmod 600 {dir}/d/b\n\
             get {dir}/d/b {dir}/back\n-rm {dir}/none\nls -1 {dir}/d\nget -r {dir}/tree {dir}/copy\n",
        ),
    ),
    copy("rsync_to", "rsync", &["-a", "{dir}/tree", "{t}:{dir}/copy"]),
    copy("rsync_from", "rsync", &["-az", "{t}:{dir}/tree", "{dir}/copy"]),
];

/// Straight, or through the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Straight,
    Gateway,
}

struct Pair {
    bench: Bench,
    straight: PathBuf,
}

impl Pair {
    async fn start() -> Option<Self> {
        let extra = "repeat_guard = \"off\"\nresult = { keep = \"digest\" }\n\
                     limits = { request_bytes = \"8GiB\" }";
        let extra = extra.replace("\"exec\", \"shell\", \"sftp\"", "\"exec\"");
        let bench = Bench::start(&extra).await?;
        let straight = bench.home.directory.path().join("straight_config");
        let known = bench.home.directory.path().join("straight_hosts");
        std::fs::write(&known, format!("t {}\n", bench.sshd.host_key())).unwrap();
        let lines = format!(
            "Host t\n    HostName 127.0.0.1\n    Port {}\n    HostKeyAlias t\n    \
             IdentityFile {}\n    IdentitiesOnly yes\n    UserKnownHostsFile {}\n    \
             StrictHostKeyChecking yes\n",
            bench.sshd.address.port(),
            bench.sshd.directory.path().join("user_key").display(),
            known.display()
        );
        std::fs::write(&straight, lines).unwrap();
        Some(Self { bench, straight })
    }

    /// The command line of a case.
    fn line(&self, case: &Case, way: Way, directory: &Path) -> Vec<OsString> {
        let config = match way {
            Way::Straight => &self.straight,
            Way::Gateway => &self.bench.config,
        };
        let options = ["-F", config.to_str().unwrap(), "-o", "BatchMode=yes"];
        let target = format!("{}@t", self.bench.sshd.user);
        let mut line = vec![OsString::from(case.program)];
        if case.program == "rsync" {
            line.push("-e".into());
            line.push(format!("ssh {}", options.join(" ")).into());
        } else {
            line.extend(options.map(OsString::from));
        }
        for argument in case.arguments {
            line.push(filled(argument, directory, &target));
        }
        line
    }

    async fn run(&self, case: &Case, way: Way) -> Shown {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_path_buf();
        furnish(&root);
        let line = self.line(case, way, &root);
        let (program, arguments) = line.split_first().unwrap();
        let mut command = match case.around {
            None => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh"]).args(&line);
                command
            }
        };
        command
            .env_remove("SSH_AUTH_SOCK")
            .env("HOME", self.bench.home.directory.path())
            .current_dir(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = match case.stdin {
            Stdin::Empty => Vec::new(),
            Stdin::Text(text) => filled(text, &root, "").into_vec(),
            Stdin::Pattern(length) => pattern(length),
        };
        // A command that reads nothing leaves it unread.
        let feeding = tokio::spawn(async move { drop(stdin.write_all(&bytes).await) });
        let output = within(child.wait_with_output()).await.unwrap();
        feeding.abort();
        let place = root.to_str().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(place, "{dir}");
        Shown {
            stdout: if output.stdout.len() < 100_000 {
                text(&output.stdout).into_bytes()
            } else {
                output.stdout
            },
            stderr: text(&output.stderr),
            code: output.status.code(),
            files: files(&root),
        }
    }
}

/// Puts the folder and the target in. U+FFFD stands for the byte 0xff, which no text can hold.
fn filled(text: &str, directory: &Path, target: &str) -> OsString {
    let text = text.replace("{dir}", directory.to_str().unwrap()).replace("{t}", target);
    let parts: Vec<&[u8]> = text.split('\u{fffd}').map(str::as_bytes).collect();
    OsString::from_vec(parts.join(&0xff))
}

fn furnish(root: &Path) {
    std::fs::write(root.join("here"), pattern(3_000_000)).unwrap();
    let tree = root.join("tree");
    std::fs::create_dir_all(tree.join("empty")).unwrap();
    for (name, length) in [("a", 0), ("b", 1), ("c", 70_000)] {
        std::fs::write(tree.join(name), pattern(length)).unwrap();
    }
    std::fs::write(tree.join(OsStr::from_bytes(b"not-\xff-text")), b"x").unwrap();
}

/// All files below, by name, with their content.
fn files(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_path_buf();
            let mode = path.metadata().unwrap().permissions().mode();
            if path.is_dir() {
                found.push((name, mode, Vec::new()));
                folders.push(path);
            } else {
                found.push((name, mode, std::fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// What differs, without the megabytes.
fn difference(straight: &Shown, gateway: &Shown) -> String {
    let brief = |shown: &Shown| {
        let stdout = String::from_utf8_lossy(&shown.stdout);
        let names: Vec<_> =
            shown.files.iter().map(|(name, mode, content)| (name, mode, content.len())).collect();
        format!(
            "status {:?}, {} bytes {:?}, stderr {:?}, files {names:?}",
            shown.code,
            shown.stdout.len(),
            stdout.chars().take(300).collect::<String>(),
            shown.stderr
        )
    };
    format!("\n  straight: {}\n  gateway:  {}", brief(straight), brief(gateway))
}

async fn compare(pair: &Pair, case: &Case) -> Option<String> {
    let straight = pair.run(case, Way::Straight).await;
    let gateway = pair.run(case, Way::Gateway).await;
    let agrees = straight == gateway && straight.code == Some(case.code);
    (!agrees).then(|| format!("{}:{}", case.name, difference(&straight, &gateway)))
}

/// S-1: whatever OpenSSH users do, the gateway changes nothing of it.
#[tokio::test]
async fn s_1_the_gateway_changes_nothing() {
    let Some(pair) = Pair::start().await else { return };
    let failed: Vec<String> = stream::iter(CASES)
        .map(|case| compare(&pair, case))
        .buffer_unordered(3)
        .filter_map(|failed| async { failed })
        .collect()
        .await;
    assert!(failed.is_empty(), "{} of {} differ\n{}", failed.len(), CASES.len(), failed.join("\n"));
}
