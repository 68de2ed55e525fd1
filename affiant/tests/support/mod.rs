//! What the tests of the binary share: a home, a running server, programs with a time limit.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of it")]

pub mod peers;

use conformance::http::{Origin, Script};
use conformance::pki::Authority;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const BINARY: &str = env!("CARGO_BIN_EXE_affiant");
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A credential that must never be seen outside of the vault and the origin.
pub const SECRET: &str = "canary-5f0c7b1e-secret";

/// A port that refuses connections, and what keeps it from others: bound, and not listened on.
pub fn refusing() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The same port, from now on with a listener; in between nobody else can have it.
pub fn listening(held: tokio::net::TcpSocket) -> std::net::TcpListener {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _entered = runtime.enter();
    let listener = held.listen(128).unwrap().into_std().unwrap();
    listener.set_nonblocking(false).unwrap();
    listener
}

/// Anonymous memory of the server; a mapped file is the system's to take back.
pub fn memory_kb(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// All files below a directory.
pub fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// A home in a temporary directory, with an agent `coder`.
pub struct Home {
    directory: tempfile::TempDir,
    pub token: String,
}

impl Home {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("affiant-test-").tempdir().unwrap();
        let home = Self { directory, token: String::new() };
        home.ok(&["init"]);
        let added: Value = home.json(&["agent", "add", "coder"]);
        let token = added["token"].as_str().unwrap().to_owned();
        Self { token, ..home }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--home").arg(self.path()).args(arguments);
        clean(&mut command);
        command
    }

    /// Runs to the end, whatever it ends with.
    pub fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments), b"")
    }

    /// Runs and expects exit code 0; gives stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        succeed(self.command(arguments))
    }

    /// Runs with `--json` and reads what it prints.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let text = self.ok(&all);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub fn secret(&self, name: &str, value: &str) {
        let output = finish(self.command(&["secret", "set", name]), value.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Applies a policy.
    pub fn policy(&self, policy: &str) {
        let file = self.path().join("test-policy.toml");
        std::fs::write(&file, policy).unwrap();
        self.ok(&["policy", "apply", file.to_str().unwrap()]);
    }

    pub fn serve(&self) -> Server {
        Server::start(self)
    }
}

/// A running `affiant serve`, killed when dropped.
pub struct Server {
    pub child: Child,
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub ssh: SocketAddr,
    pub console: Option<SocketAddr>,
    token: String,
    home: PathBuf,
}

impl Server {
    pub fn start(home: &Home) -> Self {
        Self::start_by(home, &[])
    }

    /// With more arguments of `serve`.
    pub fn start_with(home: &Home, more: &[&str]) -> Self {
        Self::start_as(home, &[], "127.0.0.1:0", more)
    }

    /// Started by another program, which takes the command as its last arguments.
    pub fn start_by(home: &Home, by: &[&str]) -> Self {
        Self::start_as(home, by, "127.0.0.1:0", &[])
    }

    /// The same, listening elsewhere.
    pub fn start_at(home: &Home, by: &[&str], address: &str) -> Self {
        Self::start_as(home, by, address, &[])
    }

    /// The SSH gateway elsewhere than the rest.
    pub fn start_ssh_at(home: &Home, ssh: &str, more: &[&str]) -> Self {
        Self::start_each(home, &[], ("127.0.0.1:0", ssh), more)
    }

    fn start_as(home: &Home, by: &[&str], address: &str, more: &[&str]) -> Self {
        Self::start_each(home, by, (address, address), more)
    }

    fn start_each(home: &Home, by: &[&str], (address, ssh): (&str, &str), more: &[&str]) -> Self {
        let mut serve =
            vec!["serve", "--http", address, "--https", address, "--ssh", ssh, "--json"];
        serve.extend(more);
        let mut command = match by {
            [] => home.command(&serve),
            [program, first @ ..] => {
                let mut command = Command::new(program);
                command.args(first).arg(BINARY).arg("--home").arg(home.path()).args(&serve);
                clean(&mut command);
                command
            }
        };
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("a ready line").unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| ready["ready"][name].as_str().unwrap().parse().unwrap();
        Self {
            child,
            http: address("http"),
            https: address("https"),
            ssh: address("ssh"),
            console: ready["ready"]["console"].as_str().map(|text| text.parse().unwrap()),
            token: home.token.clone(),
            home: home.path().to_owned(),
        }
    }

    /// The proxy's URL with the agent's token.
    pub fn proxy(&self) -> String {
        format!("http://coder:{}@{}", self.token, self.http)
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and its exit code.
    pub fn terminate(self) -> Option<i32> {
        signal(&self.child, rustix::process::Signal::TERM);
        self.exit_code()
    }

    /// Waits for its end.
    pub fn exit_code(mut self) -> Option<i32> {
        wait(&mut self.child, PATIENCE).code()
    }

    /// curl through the proxy, with the CA of the home.
    pub fn curl(&self, arguments: &[&str]) -> Response {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "--http1.1", "--max-time", "30", "-x", &self.proxy()]);
        command.arg("--cacert").arg(self.home.join("bundle.pem")).args(arguments);
        clean(&mut command);
        let output = finish(command, b"");
        Response::parse(&output)
    }

    /// Waits until an event of that name is on record.
    pub fn await_event(&self, id: &str, name: &str) {
        eventually(name, || {
            let events = self.control(&format!("invocations/{id}/events"));
            events["events"].as_array().is_some_and(|all| all.iter().any(|e| e["event"] == name))
        });
    }

    /// GET of the control API, as the agent.
    pub fn control(&self, path: &str) -> Value {
        let response = self.curl(&[&format!("http://affiant.internal/v1/{path}")]);
        response.json()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// What curl printed with `-i`: the last response, after CONNECT's and 1xx.
#[derive(Debug)]
pub struct Response {
    pub exit: Option<i32>,
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    pub stderr: String,
}

impl Response {
    pub fn parse(output: &Output) -> Self {
        let mut rest = output.stdout.as_slice();
        let (mut status, mut head) = (0, String::new());
        while rest.starts_with(b"HTTP/") {
            let end = rest.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head") + 4;
            head = text(&rest[..end]);
            status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_default();
            rest = &rest[end..];
        }
        let (exit, stderr) = (output.status.code(), text(&output.stderr));
        Self { exit, status, head, body: rest.to_vec(), stderr }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.head, text(&self.body)))
    }

    /// The outcome of `Affiant-Outcome`.
    pub fn outcome(&self) -> &str {
        let field = self.field("affiant-outcome").unwrap_or_else(|| panic!("none in {self:?}"));
        field.split(';').next().unwrap()
    }

    /// The invocation id of `Affiant-Outcome`.
    pub fn invocation(&self) -> String {
        let field = self.field("affiant-outcome").unwrap_or_else(|| panic!("none in {self:?}"));
        field.split("invocation=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    }
}

/// A TLS origin under a private CA whose PEM lies in a file.
pub struct TlsOrigin {
    pub origin: Origin,
    pub ca_file: tempfile::NamedTempFile,
}

impl TlsOrigin {
    pub fn start(scripts: Vec<Script>) -> Self {
        let authority = Authority::new("test origin CA").unwrap();
        let leaf = authority.leaf(&["localhost", "127.0.0.1"]).unwrap();
        let origin = Origin::start(scripts, Some(leaf.server_config().unwrap())).unwrap();
        let mut ca_file = tempfile::NamedTempFile::new().unwrap();
        ca_file.write_all(authority.pem().as_bytes()).unwrap();
        Self { origin, ca_file }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.origin.address().port())
    }

    /// A policy with one credentialed route to this origin for everything, and more text.
    pub fn policy(&self, more: &str) -> String {
        format!(
            r#"
[[trust]]
host = "localhost"
ca_file = "{}"

[[credential]]
id = "pay"
secret = "pay-token"
inject = "bearer"

[[route]]
name = "origin"
agents = ["coder"]
match = {{ scheme = "https", host = "localhost", port = {}, path = "/**" }}
credential = "pay"
private_addresses = "allow"
{more}
"#,
            self.ca_file.path().display(),
            self.origin.address().port()
        )
    }
}

/// Removes what the surrounding shell could bring in.
pub fn clean(command: &mut Command) {
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "AFFIANT_HOME",
        "AFFIANT_LOG",
    ] {
        command.env_remove(name);
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits for the end of a program, at most so long; then kills it and panics.
pub fn wait(child: &mut Child, at_most: Duration) -> std::process::ExitStatus {
    let end = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("a program took longer than {at_most:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program to its end within the time limit, with the given stdin.
pub fn finish(mut command: Command, stdin: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = format!("{command:?}");
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut input = child.stdin.take().unwrap();
    let bytes = stdin.to_vec();
    let writer = std::thread::spawn(move || {
        // A program may end without having read all of it.
        input.write_all(&bytes).is_ok()
    });
    let id = child.id();
    let (done, finished) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        drop(done.send(child.wait_with_output()));
    });
    let Ok(output) = finished.recv_timeout(PATIENCE) else {
        let pid = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("{name} took longer than {PATIENCE:?}");
    };
    writer.join().unwrap();
    reader.join().unwrap();
    output.unwrap()
}

/// Runs and expects exit code 0; gives stdout.
pub fn succeed(command: Command) -> String {
    let name = format!("{command:?}");
    let output = finish(command, b"");
    assert!(
        output.status.success(),
        "{name}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Polls until the condition holds, at most [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The Python with the packages of `requirements.txt`, which `./dev test` sets up.
pub fn python() -> Command {
    let path = std::env::var_os("AFFIANT_TEST_PYTHON")
        .expect("AFFIANT_TEST_PYTHON is not set: run the tests by `./dev test`");
    let mut command = Command::new(path);
    clean(&mut command);
    command
}

/// A policy that lets the agent of `affiant run` reach one port of `localhost`, with nothing injected.
pub fn plain_policy(ca_file: &Path, port: u16) -> String {
    format!(
        r#"
[[trust]]
host = "localhost"
ca_file = "{}"

[[route]]
name = "plain"
agents = ["local"]
match = {{ scheme = "https", host = "localhost", port = {port}, path = "/**" }}
private_addresses = "allow"
"#,
        ca_file.display()
    )
}

/// A route of the agent to an origin over clear text, with nothing injected, and more keys.
pub fn clear_route(name: &str, address: SocketAddr, more: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
         match = {{ scheme = \"http\", host = \"127.0.0.1\", port = {}, path = \"/**\" }}\n{more}\n",
        address.port()
    )
}

/// git in a directory, with no settings of the machine; expects success.
pub fn git(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=t", "-c", "user.email=t@t"]);
    command.args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
    succeed(command);
}

/// A home with the secret of the tests and a policy.
pub fn home(policy: &str) -> Home {
    let home = Home::new();
    home.secret("pay-token", SECRET);
    home.policy(policy);
    home
}

/// What may be done about a call now.
pub fn decision(server: &Server, id: &str) -> Value {
    server.control(&format!("invocations/{id}/decision"))
}

/// A command to the control API, by the agent: status and answer.
pub fn post(server: &Server, path: &str) -> (u16, Value) {
    let response = server.curl(&["-X", "POST", &format!("http://affiant.internal/v1/{path}")]);
    (response.status, response.json())
}

/// A retry, once its time has come.
pub fn retry_when_allowed(server: &Server, id: &str) -> (u16, Value) {
    let mut last = (0, Value::Null);
    eventually("the time to wait is over", || {
        last = post(server, &format!("invocations/{id}/retry"));
        last.1["code"] != "RETRY_TOO_EARLY"
    });
    last
}
