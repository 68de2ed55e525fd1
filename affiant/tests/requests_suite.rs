//! The test suite of the Python library requests, behind the proxy.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use std::process::{Command, Stdio};
use support::*;

/// Tests that can't hold behind any proxy of this kind, or not without a network, and why.
const LEFT_OUT: [(&str, &str); 11] = [
    ("test_lowlevel.py::test_chunked_encoding_error", "a malformed answer is this proxy's 502"),
    ("test_lowlevel.py::test_conflicting_content_lengths", "the same"),
    (
        "test_lowlevel.py::test_chunked_upload_uses_only_specified_host_header",
        "a Host that is not the target's is refused",
    ),
    ("test_lowlevel.py::test_use_proxy_from_environment", "sets proxies of its own"),
    ("test_requests.py::test_proxy_env_vars_override_default", "the same"),
    (
        "test_requests.py::TestRequests::test_proxy_authorization_preserved_on_request",
        "sends a token that is none to this proxy",
    ),
    ("test_requests.py::TestRequests::test_errors", "a refused connection is this proxy's 502"),
    ("test_requests.py::TestTimeout::test_connect_timeout", "needs a network that drops"),
    ("test_requests.py::TestTimeout::test_total_timeout_connect", "the same"),
    (
        "test_requests.py::TestPreparingURLs::test_redirecting_to_bad_url",
        "a URL without a host goes to the proxy, which refuses it",
    ),
    (
        "test_testserver.py::TestTestServer::test_multiple_requests",
        "the server that is gone is this proxy's 502",
    ),
];

#[test]
#[ignore = "long: some 590 tests of another project"]
fn the_suite_of_requests_passes_behind_the_proxy() {
    let folder = std::env::var("AFFIANT_TEST_REQUESTS").expect("run it by `./dev long`");
    let home = Home::new();
    home.policy("[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n");
    let server = home.serve();
    let mut command = Command::new(format!("{folder}/bin/python"));
    command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "behind_proxy", "tests"]);
    for (test, _) in LEFT_OUT {
        command.arg("--deselect").arg(format!("tests/{test}"));
    }
    let plugin = support::peers::program("behind_proxy.py");
    command.current_dir(format!("{folder}/suite"));
    clean(&mut command);
    command.env("PYTHONPATH", plugin.parent().unwrap()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("BEHIND_PROXY", server.proxy()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let summary = said.lines().last().unwrap_or_default();
    eprintln!("{summary}");
    let word = summary.split(" passed").next().unwrap_or_default().rsplit(' ').next();
    let passed: usize = word.unwrap().parse().unwrap();
    assert!(passed > 560, "{summary}");

    // They did come through here.
    let listed = home.json(&["inv", "list", "--agent", "coder"]);
    assert!(listed["invocations"].as_array().unwrap().len() > 10, "{listed}");
}
