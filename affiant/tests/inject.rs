//! Modes of injection through the real proxy: what the origin gets, and what never leaves.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

#[path = "support/canary.rs"]
mod canary;
mod support;

use conformance::http::Script;
use std::fmt::Write as _;
use support::*;

const AWS: &str = "AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// One credential and one route for each mode, told apart by the path.
fn policy(origin: &TlsOrigin) -> String {
    let port = origin.origin.address().port();
    let ca = origin.ca_file.path().display();
    let mut text = format!("[[trust]]\nhost = \"localhost\"\nca_file = \"{ca}\"\n");
    for (id, secret, keys) in [
        ("ph", "tok", "inject = \"placeholder\"\nin = [\"header\", \"path\", \"query\", \"body\"]"),
        ("query", "tok", "inject = \"query\"\nname = \"key\""),
        ("bearer", "tok", "inject = \"bearer\""),
        ("header", "tok", "inject = \"header\"\nname = \"X-Key\"\nformat = \"k {secret}\""),
        ("basic", "bot", "inject = \"basic\""),
        ("cookie", "tok", "inject = \"cookie\"\nname = \"sid\""),
        ("aws", "aws", "inject = \"sigv4\"\nregion = \"eu-west-1\"\nservice = \"sqs\""),
        (
            "hmac",
            "tok",
            "inject = \"hmac\"\nsign = \"{body}\"\nheaders = { X-Signature = \"v1={signature}\" }",
        ),
    ] {
        let target = format!("host = \"localhost\", port = {port}, path = \"/{id}/**\"");
        write!(
            text,
            "[[credential]]\nid = \"{id}\"\nsecret = \"{secret}\"\n{keys}\n\
             [[route]]\nname = \"{id}\"\nmatch = {{ {target} }}\ncredential = \"{id}\"\n\
             private_addresses = \"allow\"\nidempotent = true\n"
        )
        .unwrap();
    }
    let open = format!("host = \"localhost\", port = {port}, path = \"/open/**\"");
    write!(
        text,
        "[[route]]\nname = \"open\"\nmatch = {{ {open} }}\nprivate_addresses = \"allow\"\n"
    )
    .unwrap();
    text
}

/// I-1, I-2 and I-4: each mode puts the secret where it belongs, the echo is redacted, and neither a file
/// of the home, a log at the lowest level that anybody can ask for, nor anything that operators are told
/// holds it.
#[test]
fn i_4_every_mode_injects_and_echoes_are_redacted() {
    let home = Home::new();
    let echo = format!("you sent {SECRET}");
    // A key that only signs is never shown to the origin.
    let origin = TlsOrigin::start(vec![
        Script::answer("/aws/", 200, &[], "signed"),
        Script::answer("/hmac/x", 200, &[], "signed"),
        Script::answer("*", 200, &[], &echo),
    ]);
    home.secret("tok", SECRET);
    home.secret("aws", AWS);
    home.policy(&policy(&origin));
    home.secret("bot", &format!("bot:{SECRET}"));
    let (server, log) = canary::logged(&home);
    let call = |arguments: &[&str], path: &str| {
        let url = origin.url(path);
        let response = server.curl(&[arguments, &[&url]].concat());
        assert_eq!(response.status, 200, "{path}: {response:?}");
        let seen = origin.origin.seen().pop().unwrap();
        (response, seen)
    };
    let json = ["-H", "Content-Type: application/json", "-d", r#"{"t":"affiant_ph_ph"}"#];
    let more = ["-H", "X-Key: k affiant_ph_ph", "-u", "bot:affiant_ph_ph"];
    let (response, seen) =
        call(&[&json[..], &more].concat(), "/ph/affiant_ph_ph/x?t=affiant_ph_ph");
    assert_eq!(seen.target(), format!("/ph/{SECRET}/x?t={SECRET}"));
    assert_eq!(text(&seen.body), format!(r#"{{"t":"{SECRET}"}}"#));
    assert_eq!(seen.field("content-length"), Some(seen.body.len().to_string()));
    assert_eq!(seen.field("x-key"), Some(format!("k {SECRET}")));
    assert!(seen.field("authorization").is_some_and(|v| !v.contains("affiant")));
    assert!(!text(&response.body).contains(SECRET), "{response:?}");

    // The same in HTTP/2 of the caller.
    let (response, seen) =
        call(&[&["--http2"], &json[..], &more].concat(), "/ph/affiant_ph_ph/y?t=affiant_ph_ph");
    assert!(response.head.starts_with("HTTP/2"), "{}", response.head);
    assert_eq!(seen.target(), format!("/ph/{SECRET}/y?t={SECRET}"));
    assert_eq!(text(&seen.body), format!(r#"{{"t":"{SECRET}"}}"#));
    assert!(!text(&response.body).contains(SECRET), "{response:?}");

    let (response, seen) = call(&[], "/query/x?key=evil&a=1");
    assert_eq!(seen.target(), format!("/query/x?a=1&key={SECRET}"));
    assert!(!text(&response.body).contains(SECRET), "{response:?}");
    let (_, seen) = call(&["-H", "Cookie: a=1; sid=evil"], "/cookie/x");
    assert_eq!(seen.field("cookie"), Some(format!("a=1; sid={SECRET}")));
    let dummy = "AWS4-HMAC-SHA256 Credential=DUMMY/20150830/x/y/aws4_request, Signature=00";
    let (_, seen) = call(&["-H", &format!("Authorization: {dummy}"), "-d", "a=b"], "/aws/");
    let signed = seen.field("authorization").unwrap();
    assert!(signed.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"), "{signed}");
    assert!(signed.contains("/eu-west-1/sqs/aws4_request"), "{signed}");
    assert!(seen.field("x-amz-date").is_some());
    let (_, seen) = call(&["-d", "body"], "/hmac/x");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
    let code = ring::hmac::sign(&key, b"body");
    let code: String = code.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(seen.field("x-signature"), Some(format!("v1={code}")));
    for (path, name, value) in [
        ("/bearer/x", "authorization", format!("Bearer {SECRET}")),
        ("/header/x", "x-key", format!("k {SECRET}")),
        ("/basic/x", "authorization", format!("Basic {}", base64(&format!("bot:{SECRET}")))),
    ] {
        let (response, seen) = call(&["-d", "body"], path);
        assert_eq!(seen.field(name), Some(value), "{path}");
        assert!(!text(&response.body).contains(SECRET), "{path}: {response:?}");
    }

    let aws = AWS.split(':').nth(1).unwrap();
    let basic = base64(&format!("bot:{SECRET}"));
    canary::nowhere(&home, server, &log, &[SECRET, aws, &basic]);
}

fn base64(text: &str) -> String {
    let mut command = std::process::Command::new("base64");
    command.arg("-w0");
    let output = finish(command, text.as_bytes());
    String::from_utf8(output.stdout).unwrap()
}

/// I-1: a placeholder that nothing replaces never leaves, in whatever part it stands.
#[test]
fn i_1_stray_placeholders_never_leave() {
    let home = Home::new();
    let origin = TlsOrigin::start(vec![Script::answer("*", 200, &[], "ok")]);
    home.secret("tok", SECRET);
    home.secret("aws", AWS);
    home.policy(&policy(&origin));
    let server = home.serve();
    let big = vec![b'x'; (1 << 20) + 1];
    let file = home.path().join("big");
    std::fs::write(&file, big).unwrap();
    let file = format!("@{}", file.display());
    for (arguments, path, code) in [
        (&["-H", "X: affiant_ph_ph"][..], "/open/x", "SECRET_MISSING"),
        (&["-d", "affiant_ph_ph"], "/open/x", "SECRET_MISSING"),
        (&[], "/open/affiant_ph_ph", "SECRET_MISSING"),
        (&[], "/query/x?t=affiant_ph_ph", "SECRET_MISSING"),
        (&["-H", "X: affiant_ph_other"], "/ph/x", "SECRET_MISSING"),
        (&["-d", "affiant_ph_ph2"], "/ph/x", "SECRET_MISSING"),
        (&["--data-binary", &file], "/ph/x", "INJECTION_UNSUPPORTED"),
        (&["--data-binary", &file], "/aws/x", "INJECTION_UNSUPPORTED"),
    ] {
        let url = origin.url(path);
        let response = server.curl(&[arguments, &[&url]].concat());
        assert_eq!((response.status, response.outcome()), (500, "not_attempted"), "{response:?}");
        let error = &response.json()["error"];
        assert_eq!(
            (&error["code"], &error["phase"]),
            (&code.into(), &"credential_injection".into())
        );
    }
    assert!(origin.origin.seen().is_empty());
    // Without the placeholder the same calls leave.
    assert_eq!(server.curl(&[&origin.url("/open/x")]).status, 200);
    assert_eq!(server.curl(&[&origin.url("/ph/x")]).status, 200);
    // Nor does one on its own route whose secret is not there.
    home.ok(&["secret", "rm", "tok"]);
    for (arguments, path) in [
        (&["-H", "X: affiant_ph_ph"][..], "/ph/x"),
        (&["-d", "affiant_ph_ph"], "/ph/x"),
        (&[], "/ph/affiant_ph_ph"),
    ] {
        let url = origin.url(path);
        let response = server.curl(&[arguments, &[&url]].concat());
        let told = response.json();
        assert_eq!((response.status, response.outcome()), (500, "not_attempted"), "{told}");
        let error = ["code", "phase"].map(|name| told["error"][name].as_str().unwrap());
        assert_eq!(error, ["SECRET_MISSING", "credential_injection"], "{path}");
    }
    assert_eq!(origin.origin.seen().len(), 2);
}

/// I-4: a stock nginx that compresses unasked, and a stock curl that unpacks.
#[test]
fn i_4_an_echo_in_what_nginx_compresses_is_replaced() {
    let home = Home::new();
    let server = "location /inner/ { gzip on; gzip_proxied any; gzip_min_length 1; gzip_types *; \
                  return 200 \"you sent $http_authorization, $args\"; }\n\
                  location / { proxy_pass https://127.0.0.1:{port}/inner/; \
                  proxy_http_version 1.1; proxy_set_header Accept-Encoding gzip; }";
    let nginx = conformance::nginx::Nginx::start(server, |_| Ok(())).unwrap();
    home.secret("pay-token", SECRET);
    home.policy(&format!(
        "[[credential]]\nid = \"pay\"\nsecret = \"pay-token\"\ninject = \"bearer\"\n\
         [[trust]]\nhost = \"localhost\"\nca_file = \"{}\"\n\
         [[route]]\nname = \"echo\"\ncredential = \"pay\"\nprivate_addresses = \"allow\"\n\
         match = {{ host = \"localhost\", port = {} }}\n",
        nginx.ca_file().display(),
        nginx.port()
    ));
    let server = home.serve();
    let words = "word.".repeat(500);
    let url = format!("https://localhost:{}/x?{words}", nginx.port());
    for version in ["--http1.1", "--http2"] {
        let response = server.curl(&["--compressed", version, &url]);
        assert_eq!(response.field("content-encoding"), Some("gzip"), "{}", response.head);
        let expected = format!("you sent {}, {words}", "*".repeat("Bearer ".len() + SECRET.len()));
        assert_eq!(text(&response.body), expected, "{version}");
        let shown = home.json(&["inv", "show", &response.invocation()]);
        assert_eq!(shown["evidence"]["redacted"], true, "{shown}");
        let stored = home.path().join(format!("stored{version}.gz"));
        home.ok(&["inv", "result", &response.invocation(), "-o", stored.to_str().unwrap()]);
        let mut unpack = std::process::Command::new("gzip");
        unpack.arg("-dc").arg(&stored);
        assert_eq!(text(&finish(unpack, b"").stdout), expected);
    }
}
