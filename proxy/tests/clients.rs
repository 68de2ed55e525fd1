//! Stock clients through the proxy: curl, OpenSSL, Python, Node. A client that is missing fails its
//! test; `./dev test` installs them.

#![allow(clippy::indexing_slicing, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use support::World;
use tokio::process::Command;

/// Runs a client: its standard output, its standard error, and whether it succeeded.
async fn run(command: &mut Command) -> (String, String, bool) {
    command.kill_on_drop(true).stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(std::time::Duration::from_secs(60), command.output());
    let program = command_name(command);
    let output = output.await.expect("ends in time").unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr), output.status.success())
}

fn command_name(command: &Command) -> String {
    command.as_std().get_program().to_string_lossy().into_owned()
}

/// The Python that has the packages of the tests.
fn python() -> String {
    std::env::var("AFFIANT_TEST_PYTHON").expect("run the tests by `./dev test`")
}

fn curl(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "", "-m", "20", "-x", &world.url(), "--cacert"]);
    command.arg(world.ca_file()).args(arguments);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_in_clear_text_and_in_a_tunnel() {
    let world = World::new().await;
    for url in [world.plain_url("/echo"), world.secure_url("/echo")] {
        let (out, err, ok) = run(&mut curl(&world, &["-i", "-d", "some content", &url])).await;
        assert!(ok, "{err}");
        assert!(out.ends_with("some content"), "{out}");
        // curl speaks HTTP/2 in the tunnel, where names are in lower case.
        let out = out.to_lowercase();
        assert!(out.contains("\naffiant-outcome: committed;"), "{out}");
        // E-4: it prints the answer to CONNECT as well, which has none.
        assert_eq!(out.matches("affiant-outcome:").count(), 1, "{out}");
    }
    // Both requests of one curl use one connection.
    let (one, two) = (world.secure_url("/ok"), world.secure_url("/chunked"));
    let (out, err, ok) = run(&mut curl(&world, &["-v", &one, &two])).await;
    assert!(ok, "{err}");
    assert_eq!(out, "okhello");
    assert!(err.contains("Re-using existing connection"), "{err}");
}

/// Expect: the content is asked for after policy's word, and arrives whole.
#[tokio::test(flavor = "multi_thread")]
async fn curl_uploads_with_expect_and_chunks() {
    let world = World::new().await;
    let file = world.home.path().join("upload");
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| u8::try_from(i % 253).unwrap_or(0)).collect();
    std::fs::write(&file, &content).expect("file");
    let path = file.to_str().expect("path");
    for (method, framing) in [
        ("POST", "Expect: 100-continue"),
        ("PUT", "Expect: 100-continue"),
        ("POST", "Transfer-Encoding: chunked"),
        ("PUT", "Transfer-Encoding: chunked"),
    ] {
        let url = world.secure_url("/status/200");
        // Over HTTP/2 nobody waits to be asked.
        let arguments = ["--http1.1", "-v", "-X", method, "-H", framing, "-T", path, &url];
        let (out, err, ok) = run(&mut curl(&world, &arguments)).await;
        assert!(ok, "{err}");
        let asked = err.matches("< HTTP/1.1 100 Continue").count();
        // Of its own accord curl expects it for chunks as well.
        let expected = err.matches("> Expect: 100-continue").count();
        assert_eq!(asked, expected, "{err}");
        assert!(expected == 1 || !framing.starts_with("Expect"), "{err}");
        assert_eq!(out, "body");
        assert!(world.secure.last_content() == content, "{method} {framing}");
    }
    // Refused without asking for the content.
    let url = world.secure_url("/ok").replace("localhost", "example.com");
    let arguments = ["-H", "Expect: 100-continue", "-T", path, &url];
    let (_, err, ok) = run(&mut curl(&world, &arguments)).await;
    assert!(!ok);
    assert!(err.contains("403"), "{err}");
}

/// Python's strictest verification accepts the leaf, for a name and for an address.
#[tokio::test(flavor = "multi_thread")]
async fn python_verifies_the_leaf_strictly() {
    let world = World::by_address().await;
    let script = r#"
import base64, http.client, ssl, sys
proxy_host, proxy_port, token, port, ca = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
identity = base64.b64encode(f"coder:{token}".encode()).decode()
for host, expected in (("localhost", 200), ("127.0.0.1", 502)):
    connection = http.client.HTTPSConnection(proxy_host, int(proxy_port), context=context)
    connection.set_tunnel(host, int(port), headers={"Proxy-Authorization": "Basic " + identity})
    connection.request("GET", "/ok")
    response = connection.getresponse()
    body = response.read()
    assert response.status == expected, (host, response.status, body)
    certificate = connection.sock.getpeercert(binary_form=True)
    assert len(certificate) > 100
print("verified")
"#;
    let mut command = Command::new("python3");
    command.args(["-c", script, &world.address.ip().to_string()]);
    command.args([&world.address.port().to_string(), &world.token]);
    command.arg(world.secure.address.port().to_string()).arg(world.ca_file());
    let (out, err, ok) = run(&mut command).await;
    assert!(ok, "{err}");
    assert_eq!(out.trim(), "verified");
}

/// What OpenSSL itself reads in the leaf.
#[tokio::test(flavor = "multi_thread")]
async fn the_leaf_has_what_verifiers_ask_for() {
    let world = World::new().await;
    let (proxy, target) = (world.address.to_string(), world.secure.address.port());
    let script = format!(
        "openssl s_client -proxy {proxy} -proxy_user coder -proxy_pass env:TOKEN \
         -connect localhost:{target} -servername localhost -CAfile {} -verify_return_error \
         -x509_strict </dev/null | openssl x509 -noout -text",
        world.ca_file().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("TOKEN", &world.token);
    let (out, err, ok) = run(&mut command).await;
    assert!(ok, "{err}");
    for expected in [
        "Version: 3",
        "X509v3 Subject Key Identifier",
        "X509v3 Authority Key Identifier",
        "X509v3 Key Usage: critical",
        "Digital Signature",
        "TLS Web Server Authentication",
        "DNS:localhost",
        "CA:FALSE",
        "prime256v1",
    ] {
        assert!(out.contains(expected), "{expected} is missing:\n{out}");
    }
    assert!(!out.contains("Serial Number: -"), "{out}");
}

/// X-6 in small: a client that repeats by itself, as the SDKs do, causes one effect.
#[tokio::test(flavor = "multi_thread")]
async fn x_6_a_client_that_repeats_by_itself_causes_one_effect() {
    let world = World::new().await;
    let script = r#"
import json, sys, urllib.request, urllib.error
proxy, url = sys.argv[1:]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy}))
statuses = []
for attempt in range(3):
    request = urllib.request.Request(url, data=b"{}", method="POST", headers={
        "Content-Type": "application/json", "x-stainless-retry-count": str(attempt)})
    try:
        statuses.append(opener.open(request).status)
        break
    except urllib.error.HTTPError as error:
        statuses.append(error.code)
        json.loads(error.read())
        assert error.headers["x-should-retry"] == "false", dict(error.headers)
print(statuses)
"#;
    for (path, expected) in [("/close", "[502, 424, 424]"), ("/cut", "[502, 424, 424]")] {
        let mut command = Command::new("python3");
        command.args(["-c", script, &world.url(), &world.plain_url(path)]);
        let (out, err, ok) = run(&mut command).await;
        assert!(ok, "{err}");
        assert_eq!(out.trim(), expected, "{path}");
        assert_eq!(world.origin.effects(path), 1, "{path}");
    }
}

/// The fetch of Node (the package that its own is made of), with the proxy from the environment.
#[tokio::test(flavor = "multi_thread")]
async fn node_fetch() {
    let world = World::new().await;
    let modules =
        std::env::var("AFFIANT_TEST_NODE_MODULES").expect("run the tests by `./dev test`");
    let script = format!(
        "const {{ fetch, EnvHttpProxyAgent, setGlobalDispatcher }} = require('{modules}/undici');\n\
         setGlobalDispatcher(new EnvHttpProxyAgent());\n\
         fetch(process.argv[1]).then(async r => console.log(\
           r.status, await r.text(), r.headers.get('affiant-outcome').split(';')[0]))"
    );
    for url in [world.secure_url("/chunked"), world.plain_url("/chunked")] {
        let mut command = Command::new("node");
        command.args(["-e", &script, &url]).env("NO_PROXY", "");
        command.env("HTTPS_PROXY", world.url()).env("HTTP_PROXY", world.url());
        command.env("NODE_EXTRA_CA_CERTS", world.ca_file());
        let (out, err, ok) = run(&mut command).await;
        assert!(ok, "{err}");
        assert_eq!(out.trim(), "200 hello committed", "{url}");
    }
}

/// X-6: the OpenAI and Anthropic SDKs with their default retries cause one effect, whatever the
/// origin does.
#[tokio::test(flavor = "multi_thread")]
async fn x_6_sdks_cause_one_effect() {
    let world = World::new().await;
    let script = r#"
import importlib, os, sys
name, url = sys.argv[1:]
sdk = importlib.import_module(name)
messages = [{"role": "user", "content": "hello"}]
try:
    if name == "openai":
        sdk.OpenAI(api_key="dummy", base_url=url + "/v1").chat.completions.create(
            model="m", messages=messages)
    else:
        sdk.Anthropic(api_key="dummy", base_url=url).messages.create(
            model="m", max_tokens=1, messages=messages)
    print("answered")
except sdk.APIStatusError as error:
    print(error.status_code, error.response.headers.get("x-should-retry"))
"#;
    let python = python();
    for sdk in ["openai", "anthropic"] {
        for (what, expected) in [
            ("close", "502 false"),
            ("cut", "502 false"),
            ("cut-chunked", "502 false"),
            ("half-head", "502 false"),
            ("status/500", "500 false"),
            ("status/503", "503 false"),
            ("status/429", "429 false"),
            ("status/409", "409 false"),
        ] {
            let base = world.plain_url(&format!("/sdk/{what}"));
            let mut command = Command::new(&python);
            command.args(["-c", script, sdk, &base]);
            command.env("HTTP_PROXY", world.url()).env("NO_PROXY", "");
            let (out, err, ok) = run(&mut command).await;
            assert!(ok, "{err}");
            assert_eq!(out.trim(), expected, "{sdk} {what}");
            let path = match sdk {
                "openai" => format!("/sdk/{what}/v1/chat/completions"),
                _ => format!("/sdk/{what}/v1/messages"),
            };
            assert_eq!(world.origin.effects(&path), 1, "{sdk} {what}");
        }
    }
}

/// X-6: boto3, which knows nothing of `x-should-retry` and repeats on 5xx and on a close.
#[tokio::test(flavor = "multi_thread")]
async fn x_6_boto3_causes_one_effect() {
    let world = World::new().await;
    let script = r#"
import sys
import boto3
client = boto3.client("sqs", region_name="eu-central-1", endpoint_url=sys.argv[1],
    aws_access_key_id="a", aws_secret_access_key="b")
try:
    client.send_message(QueueUrl=sys.argv[1], MessageBody="hello")
    print("answered")
except Exception as error:
    print(type(error).__name__)
"#;
    let python = python();
    for what in ["close", "cut", "half-head", "status/500", "status/503", "status/504"] {
        let before = world.origin.all_effects();
        let mut command = Command::new(&python);
        command.args(["-c", script, &world.plain_url(&format!("/sdk/{what}/v1/"))]);
        command.env("HTTP_PROXY", world.url()).env("NO_PROXY", "");
        let (out, err, ok) = run(&mut command).await;
        assert!(ok, "{err}");
        assert_ne!(out.trim(), "answered", "{what}");
        assert_eq!(world.origin.all_effects() - before, 1, "{what} {out} {err}");
    }
}
