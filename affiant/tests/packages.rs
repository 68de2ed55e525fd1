//! What package managers and git do over the proxy: pip and npm install from an index of this test,
//! git pushes and clones a large repository.

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
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::*;

/// A wheel of one module, made by hand as PEP 427 says.
const WHEEL: &str = r#"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/affiant_demo-1.0-py3-none-any.whl", "w") as wheel:
    files = {
        "affiant_demo.py": "GREETING = 'installed through the proxy'\n",
        "affiant_demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: affiant-demo\nVersion: 1.0\n",
        "affiant_demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "affiant_demo-1.0.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    for name, text in files.items():
        wheel.writestr(name, text)
"#;

#[test]
fn pip_installs_from_an_index() {
    let site = Nginx::start("", |at| {
        let project = at.join("www/simple/affiant-demo");
        std::fs::create_dir_all(&project)?;
        let mut command = python();
        command.args(["-c", WHEEL]).arg(&project);
        succeed(command);
        let link = "<a href=\"affiant_demo-1.0-py3-none-any.whl\">affiant_demo</a>";
        std::fs::write(project.join("index.html"), link)
    });
    let site = site.unwrap();
    let home = Home::new();
    home.policy(&plain_policy(&site.ca_file(), site.port()));
    let target = home.path().join("site");
    let index = format!("https://localhost:{}/simple", site.port());
    let python = std::env::var("AFFIANT_TEST_PYTHON").unwrap();
    let mut command = home.command(&["run", "--", &python, "-m", "pip", "install", "--quiet"]);
    command.args(["--disable-pip-version-check", "--no-cache-dir", "--index-url", &index]);
    command.arg("--target").arg(&target).arg("affiant-demo").env("PIP_CONFIG_FILE", "/dev/null");
    succeed(command);
    let mut command = self::python();
    command.args(["-c", "import affiant_demo; print(affiant_demo.GREETING)"]);
    assert_eq!(succeed_with(command, "PYTHONPATH", &target), "installed through the proxy\n");
    every_call_committed(&home, 2);
}

#[test]
fn npm_installs_from_a_registry() {
    let server = "location /affiant-demo { default_type application/json; }";
    let mut tarball = std::path::PathBuf::new();
    let site = Nginx::start(server, |at| {
        let package = at.join("package");
        std::fs::create_dir(&package)?;
        let manifest = r#"{"name":"affiant-demo","version":"1.0.0","main":"index.js"}"#;
        std::fs::write(package.join("package.json"), manifest)?;
        std::fs::write(package.join("index.js"), "module.exports = 'through the proxy';\n")?;
        tarball = at.join("www/affiant-demo-1.0.0.tgz");
        let mut command = Command::new("tar");
        command.arg("-czf").arg(&tarball).arg("-C").arg(at).arg("package");
        succeed(command);
        Ok(())
    });
    let site = site.unwrap();
    let registry = format!("https://localhost:{}/", site.port());
    let document = format!(
        r#"{{"name":"affiant-demo","dist-tags":{{"latest":"1.0.0"}},"versions":{{"1.0.0":
        {{"name":"affiant-demo","version":"1.0.0","main":"index.js",
        "dist":{{"tarball":"{registry}affiant-demo-1.0.0.tgz"}}}}}}}}"#
    );
    std::fs::write(site.directory().join("www/affiant-demo"), document).unwrap();

    let home = Home::new();
    home.policy(&plain_policy(&site.ca_file(), site.port()));
    let target = home.path().join("project");
    std::fs::create_dir(&target).unwrap();
    let mut command = home.command(&["run", "--", "npm", "install", "affiant-demo", "--silent"]);
    command
        .args([
            "--no-audit",
            "--no-fund",
            "--no-update-notifier",
            "--registry",
            &registry,
            "--prefix",
        ])
        .arg(&target);
    command.arg("--cache").arg(home.path().join("npm-cache"));
    command.env("NPM_CONFIG_USERCONFIG", "/dev/null");
    succeed(command);
    let mut command = Command::new("node");
    command.args(["-e", "console.log(require('affiant-demo'))"]);
    let modules = target.join("node_modules");
    assert_eq!(succeed_with(command, "NODE_PATH", &modules), "through the proxy\n");
    every_call_committed(&home, 2);
}

fn succeed_with(mut command: Command, name: &str, value: &Path) -> String {
    command.env(name, value);
    succeed(command)
}

fn every_call_committed(home: &Home, at_least: usize) {
    let listed = home.json(&["inv", "list", "--agent", "local"]);
    let invocations = listed["invocations"].as_array().unwrap();
    assert!(invocations.len() >= at_least, "{listed}");
    for invocation in invocations {
        assert_eq!(invocation["error"]["outcome"], "committed", "{invocation}");
    }
}

/// nginx in front of git's own server program, as hosts set it up.
struct GitHost {
    gateway: Child,
    site: Nginx,
}

impl GitHost {
    fn start() -> Self {
        let backend = succeed_path("git", &["--exec-path"]).join("git-http-backend");
        let server = format!(
            "location ~ ^/git(/.*) {{ fastcgi_pass unix:{{dir}}/gateway;\n\
             fastcgi_param SCRIPT_FILENAME {}; fastcgi_param PATH_INFO $1;\n\
             fastcgi_param GIT_PROJECT_ROOT {{dir}}/git; fastcgi_param GIT_HTTP_EXPORT_ALL yes;\n\
             fastcgi_param REMOTE_USER agent; fastcgi_param REQUEST_METHOD $request_method;\n\
             fastcgi_param QUERY_STRING $query_string; fastcgi_param CONTENT_TYPE $content_type;\n\
             fastcgi_param CONTENT_LENGTH $content_length; fastcgi_read_timeout 300; }}",
            backend.display()
        );
        let mut gateway = None;
        let site = Nginx::start(&server, |at| {
            let bare = at.join("git/repo.git");
            std::fs::create_dir_all(&bare)?;
            git(&bare, &["init", "-q", "--bare", "--initial-branch=main"]);
            let socket = at.join("gateway");
            let mut command = Command::new("fcgiwrap");
            command.arg("-s").arg(format!("unix:{}", socket.display()));
            // nginx's user has to be able to ask, and git to read a folder that another user owns.
            command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "safe.directory");
            command.env("GIT_CONFIG_VALUE_0", "*").stdin(Stdio::null());
            gateway = Some(command.spawn()?);
            eventually("fcgiwrap", || socket.exists());
            Ok(())
        });
        Self { gateway: gateway.unwrap(), site: site.unwrap() }
    }
}

impl Drop for GitHost {
    fn drop(&mut self) {
        self.gateway.kill().unwrap();
        self.gateway.wait().unwrap();
    }
}

fn succeed_path(program: &str, arguments: &[&str]) -> std::path::PathBuf {
    let mut command = Command::new(program);
    command.args(arguments);
    succeed(command).trim().into()
}

/// Bytes that don't compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The most memory that the server had while that ran.
fn watched(server: &Server, run: impl FnOnce() + Send) -> u64 {
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        let mut most = memory_kb(server);
        while !running.is_finished() {
            most = most.max(memory_kb(server));
            std::thread::sleep(Duration::from_millis(5));
        }
        running.join().unwrap();
        most
    })
}

/// Pushes a repository of that size in chunks, clones it back, and compares. The server never has all of it.
fn pushes_and_clones(length: usize) {
    let host = GitHost::start();
    let home = Home::new();
    home.policy(&plain_policy(&host.site.ca_file(), host.site.port()));
    let content = noise(length);
    let work = home.path().join("work");
    std::fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q", "--initial-branch=main"]);
    git(&work, &["config", "core.compression", "0"]);
    std::fs::write(work.join("big.bin"), &content).unwrap();
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "big"]);
    let url = format!("https://localhost:{}/git/repo.git", host.site.port());
    let work = work.to_str().unwrap();
    let server = home.serve();
    let before = memory_kb(&server);
    let run = |arguments: &[&str]| {
        let all = [&["run", "--", "git"], arguments].concat();
        watched(&server, || drop(home.ok(&all)))
    };
    let pushed = run(&["-C", work, "push", "-q", &url, "main"]);
    let clone = home.path().join("clone");
    let cloned = run(&["clone", "-q", &url, clone.to_str().unwrap()]);
    eprintln!("{length} bytes by git: {before} kB before, at most {pushed} and {cloned} kB");
    let grown = pushed.max(cloned).saturating_sub(before);
    assert!(grown < length as u64 / 1024, "memory grew from {before} kB by {grown} kB");
    let cloned = std::fs::read(clone.join("big.bin")).unwrap();
    assert!(cloned == content, "the clone differs from what was pushed");
    every_call_committed(&home, 4);
}

#[test]
fn git_pushes_and_clones() {
    pushes_and_clones(80_000_000);
}

#[test]
#[ignore = "long: 200 MB each way"]
fn git_pushes_and_clones_200_mb() {
    pushes_and_clones(200_000_000);
}
