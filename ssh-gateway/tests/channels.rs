//! Many channels over one connection: what happens in one stays in it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::openssh::{Bench, err, free_port, out};
use common::within;
use journal::Filter;
use journal::contract::{Code, InvocationId, Outcome};
use ssh_gateway::Options;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::process::Child;

/// One client connection that everything shares; `forward` is open to the target's own host.
struct Shared {
    bench: Bench,
    socket: PathBuf,
    master: Child,
}

impl Shared {
    async fn start(sshd: &str, options: &[&str]) -> Option<Self> {
        let extra = "repeat_guard = \"off\"\nresult = { keep = \"digest\" }\n\
                     limits = { connect_timeout = \"5s\" }";
        let bench = Bench::start_with(extra, sshd, Options::default()).await?;
        let text = common::policy_text(bench.sshd.address, &bench.sshd.host_key(), extra);
        let text = text.replace("\"sftp\"]", "\"sftp\", \"forward\"]");
        bench.home.policy.apply(&text, "policy.toml", "test").unwrap();
        let socket = bench.home.directory.path().join("mux");
        let mut master = bench.ssh(&["-M", "-N", "-S", socket.to_str().unwrap()]);
        master.args(options).arg("t").stdout(Stdio::null()).stderr(Stdio::null());
        let master = master.spawn().unwrap();
        let there = async {
            while !socket.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within(there).await;
        Some(Self { bench, socket, master })
    }

    fn command(&self, line: &str) -> tokio::process::Command {
        self.bench.ssh(&["-S", self.socket.to_str().unwrap(), "t", line])
    }

    /// The newest forwarding on record.
    async fn forwarded(&self) -> InvocationId {
        let filter = Filter { limit: 100, ..Filter::default() };
        let found = async {
            loop {
                let page = self.bench.home.journal.list(&filter).unwrap();
                let mut all = page.invocations.iter();
                let forwarding = all.find(|one| one.accepted().action.starts_with("forward:"));
                if let Some(forwarding) = forwarding {
                    return forwarding.id();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(found).await
    }

    async fn run(&self, line: &str) -> Output {
        tokio::time::timeout(Duration::from_secs(20), self.command(line).output())
            .await
            .expect("a channel waits for another one")
            .unwrap()
    }
}

/// Fills a listener's queue: further connections get no answer.
async fn fill(place: std::net::SocketAddr) -> Vec<TcpStream> {
    let mut fillers = Vec::new();
    let full = async {
        let quick = Duration::from_millis(300);
        while let Ok(stream) = tokio::time::timeout(quick, TcpStream::connect(place)).await {
            fillers.push(stream.unwrap());
        }
    };
    within(full).await;
    fillers
}

/// A reader that stops stalls its own command, and nothing else of the connection; killed with its
/// window used up, it leaves the connection in order.
#[tokio::test]
async fn a_stalled_reader_stalls_only_its_channel() {
    let Some(shared) = Shared::start("", &[]).await else { return };
    let mut stalled = shared.command("head -c 200000000 /dev/zero").spawn().unwrap();
    let mut stdout = stalled.stdout.take().unwrap();
    let mut first = [0; 1];
    within(stdout.read_exact(&mut first)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(out(&shared.run("echo alive").await), "alive\n");
    }
    // The same for stdin that nobody takes.
    let mut sleeping = shared.command("sleep 60").stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = sleeping.stdin.take().unwrap();
    let feeding = tokio::spawn(async move { drop(stdin.write_all(&vec![0; 4 << 20]).await) });
    assert_eq!(out(&shared.run("echo alive").await), "alive\n");
    stalled.kill().await.unwrap();
    sleeping.kill().await.unwrap();
    feeding.abort();
    assert_eq!(out(&shared.run("echo alive").await), "alive\n");
}

/// A target that allows one session per connection allows any number of commands: each has a
/// connection of its own.
#[tokio::test]
async fn max_sessions_of_the_target_is_no_limit() {
    let Some(shared) = Shared::start("MaxSessions 1", &[]).await else { return };
    let lines = ["sleep 0.5; echo 1", "sleep 0.5; echo 2", "sleep 0.5; echo 3"];
    let outputs = futures::future::join_all(lines.map(|line| shared.run(line))).await;
    let texts: Vec<String> = outputs.iter().map(out).collect();
    assert_eq!(texts, ["1\n", "2\n", "3\n"], "{outputs:?}");
}

/// A destination that never answers blocks its own forwarding only, which ends in the time that the
/// route gives.
#[tokio::test]
async fn a_dead_destination_blocks_nothing_else() {
    // A listener whose queue is full: further connections get no answer.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = dead.local_addr().unwrap();
    let _fillers = fill(place).await;
    let folder = tempfile::tempdir().unwrap();
    let near = folder.path().join("near");
    let forward = format!("{}:{place}", near.display());
    let Some(shared) = Shared::start("", &["-L", &forward]).await else { return };
    let home = &shared.bench.home;
    let mut waiting = UnixStream::connect(&near).await.unwrap();
    waiting.write_all(b"x").await.unwrap();
    assert_eq!(out(&shared.run("echo alive").await), "alive\n");
    let first = shared.forwarded().await;
    let record = home.settled(first).await;
    let verdict = record.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::ReadTimeout));
    let ended = home.ended(first);
    assert!(ended.message.contains("time to connect"), "{}", ended.message);
    assert_eq!(ended.observation.unwrap().cause, "NOT_OPENED");
    // The client's own client is told by the end of its connection.
    let mut rest = Vec::new();
    drop(within(waiting.read_to_end(&mut rest)).await);
    assert_eq!(rest, b"");
}

/// A forwarding whose client leaves while the target still opens it ends with its client.
#[tokio::test]
async fn a_forwarding_ends_with_its_client_while_it_is_opened() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = dead.local_addr().unwrap();
    let _fillers = fill(place).await;
    let folder = tempfile::tempdir().unwrap();
    let near = folder.path().join("near");
    let forward = format!("{}:{place}", near.display());
    let Some(mut shared) = Shared::start("", &["-L", &forward]).await else { return };
    let _waiting = UnixStream::connect(&near).await.unwrap();
    let id = shared.forwarded().await;
    shared.bench.home.has_event(id, "DISPATCH_STARTED").await;
    shared.master.kill().await.unwrap();
    let verdict = shared.bench.home.settled(id).await.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::CallerCancelled));
    assert_eq!(shared.bench.home.ended(id).observation.unwrap().cause, "CALLER_GONE");
}

/// A forwarding whose service resets it ends alone.
#[tokio::test]
async fn a_broken_forwarding_stays_in_its_channel() {
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = service.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = service.accept().await {
            let mut byte = [0; 1];
            drop(stream.read(&mut byte).await);
            // Closed with unread bytes: a reset.
            stream.set_zero_linger().unwrap();
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let near = folder.path().join("near");
    let forward = format!("{}:{place}", near.display());
    let Some(shared) = Shared::start("", &["-L", &forward]).await else { return };
    let mut running = shared.command("sleep 1.5; echo done").spawn().unwrap();
    for _ in 0..5 {
        let mut stream = UnixStream::connect(&near).await.unwrap();
        stream.write_all(b"abc").await.unwrap();
        let mut rest = Vec::new();
        drop(within(stream.read_to_end(&mut rest)).await);
    }
    let mut done = String::new();
    within(running.stdout.take().unwrap().read_to_string(&mut done)).await.unwrap();
    assert_eq!((done.as_str(), within(running.wait()).await.unwrap().code()), ("done\n", Some(0)));
}

/// A service that speaks first is heard from its first byte on, eight times.
#[tokio::test]
async fn the_first_bytes_of_a_forwarding_arrive() {
    let Some(shared) = Shared::start("", &[]).await else { return };
    for _ in 0..8 {
        let place = shared.bench.sshd.address.to_string();
        let mut child =
            shared.bench.ssh(&["-W", &place, "t"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut banner = [0; 8];
        within(child.stdout.as_mut().unwrap().read_exact(&mut banner)).await.unwrap();
        assert_eq!(&banner, b"SSH-2.0-");
        child.kill().await.unwrap();
    }
}

/// `-D` beside a script over stdin, as editors start their servers; and policy's refusal of a
/// forwarding leaves the script alone.
#[tokio::test]
async fn a_socks_port_beside_a_script_works() {
    let Some(shared) = Shared::start("", &[]).await else { return };
    let (script, mut stdin, port) = loop {
        let port = free_port();
        let forward = port.to_string();
        let strict = "ExitOnForwardFailure=yes";
        let mut script = shared.bench.ssh(&["-T", "-o", strict, "-D", &forward, "t", "bash"]);
        let mut script = script.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = script.stdin.take().unwrap();
        drop(stdin.write_all(b"echo ready\n").await);
        let mut ready = [0; 6];
        let read = within(script.stdout.as_mut().unwrap().read_exact(&mut ready)).await;
        // Another program can take the port meanwhile: then it is another port.
        if read.is_ok() {
            break (script, stdin, port);
        }
        let said = err(&within(script.wait_with_output()).await.unwrap());
        assert!(said.contains("in use"), "{said}");
    };
    let mut socks = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let target = shared.bench.sshd.address.port().to_be_bytes();
    socks.write_all(&[5, 1, 0]).await.unwrap();
    let mut chosen = [0; 2];
    within(socks.read_exact(&mut chosen)).await.unwrap();
    socks.write_all(&[&[5, 1, 0, 1, 127, 0, 0, 1][..], &target].concat()).await.unwrap();
    let mut answer = [0; 10];
    within(socks.read_exact(&mut answer)).await.unwrap();
    assert_eq!((chosen[1], answer[1]), (0, 0));
    let mut banner = [0; 8];
    within(socks.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"SSH-2.0-");
    drop(socks);
    stdin.write_all(b"exit 4\n").await.unwrap();
    let output = within(script.wait_with_output()).await.unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
}

/// The agent of the client is not forwarded, whatever the client asks for.
#[tokio::test]
async fn agent_forwarding_is_refused() {
    let Some(shared) = Shared::start("", &[]).await else { return };
    let socket = shared.bench.home.directory.path().join("agent");
    let mut agent = common::openssh::agent(&socket).await;
    let mut command = shared.bench.ssh(&["-A", "t", "echo [$SSH_AUTH_SOCK]"]);
    let output = within(command.env("SSH_AUTH_SOCK", &socket).output()).await.unwrap();
    assert_eq!((out(&output).as_str(), output.status.code()), ("[]\n", Some(0)));
    agent.kill().await.unwrap();
}

/// A port or a socket at the target is not forwarded back, where forwarding onwards is allowed.
#[tokio::test]
async fn remote_forwarding_is_refused() {
    let Some(shared) = Shared::start("", &[]).await else { return };
    let near = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let socket = shared.bench.home.directory.path().join("far");
    let far = format!("{}:{near}", socket.display());
    for (way, told) in [
        (format!("127.0.0.1:0:{near}"), "remote port forwarding failed for listen port 0"),
        (far, "remote port forwarding failed for listen path"),
    ] {
        let strict = "ExitOnForwardFailure=yes";
        let mut command = shared.bench.ssh(&["-o", strict, "-R", &way, "t", "echo ran"]);
        let output = within(command.output()).await.unwrap();
        assert_eq!((out(&output).as_str(), output.status.code()), ("", Some(255)), "{way}");
        assert!(err(&output).contains(told), "{way}: {}", err(&output));
        assert!(!socket.exists());
    }
}

/// A socket at the target is not reached: what `forward` allows are places with a port.
#[tokio::test]
async fn forwarding_to_a_unix_socket_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [near, far] = ["near", "far"].map(|name| folder.path().join(name));
    let service = UnixListener::bind(&far).unwrap();
    let way = format!("{}:{}", near.display(), far.display());
    let Some(shared) = Shared::start("", &["-L", &way]).await else { return };
    let mut stream = UnixStream::connect(&near).await.unwrap();
    let mut nothing = Vec::new();
    within(stream.read_to_end(&mut nothing)).await.unwrap();
    assert_eq!(nothing, b"");
    let reached = tokio::time::timeout(Duration::ZERO, service.accept()).await;
    assert!(reached.is_err(), "the target's socket was reached");
    assert_eq!(out(&shared.run("echo alive").await), "alive\n");
}

/// Known limit of the engine: a variable that is not text ends the inner connection, before anything
/// was sent.
#[tokio::test]
async fn a_variable_that_is_not_text_ends_the_connection() {
    let Some(bench) = Bench::start("").await else { return };
    let mut command = bench.ssh(&["-o", "SendEnv=LC_ODD", "t", "echo in"]);
    command.env("LC_ODD", <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff"));
    let output = within(command.output()).await.unwrap();
    assert_eq!((out(&output).as_str(), output.status.code()), ("", Some(255)));
    assert_eq!(bench.home.count(), 0);
    assert_eq!(out(&bench.run("echo in").await), "in\n");
    assert_eq!(bench.home.newest().await.verdict().outcome(), Outcome::Committed);
}
