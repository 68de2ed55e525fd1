//! Signature Version 4 through the public surface: what reaches the origin carries the signature of
//! AWS's published vectors, and one that an independent reader of the algorithm finds right.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

mod support;

use conformance::http::{Opening, Origin, Script, Seen};
use ring::digest::{SHA256, digest};
use ring::hmac;
use std::process::Command;
use support::*;

const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn policy(host: &str, port: u16, service: &str) -> String {
    format!(
        "[[credential]]\nid = \"aws\"\nsecret = \"aws\"\ninject = \"sigv4\"\n\
         region = \"us-east-1\"\nservice = \"{service}\"\n\n\
         [[route]]\nname = \"aws\"\nagents = [\"coder\"]\nprivate_addresses = \"allow\"\n\
         credential = \"aws\"\nidempotent = true\n\
         match = {{ scheme = \"http\", host = \"{host}\", port = {port}, path = \"/**\" }}\n"
    )
}

/// The parts of `Authorization`: scope, signed names, signature.
fn authorization(seen: &Seen) -> (String, Vec<String>, String) {
    let field = seen.field("authorization").expect("a signed request");
    let rest = field.strip_prefix("AWS4-HMAC-SHA256 ").expect("the algorithm");
    let part = |name: &str| {
        let part = rest.split(", ").find_map(|part| part.strip_prefix(name)).expect("a part");
        part.to_owned()
    };
    let (key, scope) = part("Credential=").split_once('/').map(own).expect("a scope");
    assert_eq!(key, "AKIDEXAMPLE");
    let names = part("SignedHeaders=").split(';').map(str::to_owned).collect();
    (scope, names, part("Signature="))
}

fn own((a, b): (&str, &str)) -> (String, String) {
    (a.to_owned(), b.to_owned())
}

/// The bytes that a component of a URI stands for.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&more[..2]).unwrap(), 16).unwrap());
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    bytes
}

fn encoded(bytes: &[u8], keep: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: &u8| match *byte {
        byte if plain(byte) || keep.contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    bytes.iter().map(one).collect()
}

/// The signature of a request as it arrived, by the algorithm as AWS describes it.
fn signature(seen: &Seen, service: &str) -> String {
    let (scope, names, _) = authorization(seen);
    let (path, query) = seen.target().split_once('?').unwrap_or((seen.target(), ""));
    // S3 takes each segment encoded once; every other service wants what was sent encoded once more.
    let segment = |segment: &str| match service {
        "s3" => encoded(&decoded(segment), b""),
        _ => encoded(segment.as_bytes(), b""),
    };
    let path = path.split('/').map(segment).collect::<Vec<_>>().join("/");
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<(String, String)> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(&decoded(name), b""), encoded(&decoded(value), b"")))
        .collect();
    pairs.sort();
    let query: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let fields: String = names
        .iter()
        .map(|name| {
            let value = seen.field(name).unwrap_or_else(|| panic!("{name} is signed and absent"));
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{name}:{value}\n")
        })
        .collect();
    let method = String::from_utf8_lossy(&seen.head);
    let method = method.split(' ').next().unwrap();
    let content = hex(digest(&SHA256, &seen.body).as_ref());
    let content = seen.field("x-amz-content-sha256").unwrap_or(content);
    let canonical =
        format!("{method}\n{path}\n{}\n{fields}\n{}\n{content}", query.join("&"), names.join(";"));
    let date = seen.field("x-amz-date").expect("a date");
    let canonical = hex(digest(&SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{canonical}");
    let key = scope.split('/').fold(format!("AWS4{SECRET_KEY}").into_bytes(), |key, part| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
    });
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    hex(hmac::sign(&key, text.as_bytes()).as_ref())
}

/// I-2: whatever stands in path, query, fields and content, the origin gets the bytes that were
/// signed, and no field of the hop is among what was signed.
#[test]
fn what_reaches_the_origin_is_signed_as_it_is() {
    for service in ["s3", "sqs"] {
        let home = Home::new();
        home.secret("aws", &format!("AKIDEXAMPLE:{SECRET_KEY}"));
        let origin = Origin::start(vec![Script::answer("*", 200, &[], "ok")], None).unwrap();
        home.policy(&policy("127.0.0.1", origin.address().port(), service));
        let server = home.serve();
        let url = |path: &str| format!("http://{}{path}", origin.address());
        for path in ["/", "/a%2Fb/c", "/with%20space", "/a@b:c", "/%E1%88%B4", "/a~b-_.", "/a+b"] {
            assert_eq!(server.curl(&["--path-as-is", &url(path)]).status, 200, "{service} {path}");
        }
        for path in ["/?b=2&a=1", "/?a=%2F&A=x%20y", "/?acl", "/?a=b%3Dc&a=a"] {
            assert_eq!(server.curl(&[&url(path)]).status, 200, "{service} {path}");
        }
        let post = server.curl(&[
            "-d",
            "Param1=value1",
            "-H",
            "X-Amz-Meta-Spaces:  a   b ",
            "-H",
            "Connection: keep-alive, X-Hop",
            "-H",
            "X-Hop: 1",
            &url("/post"),
        ]);
        assert_eq!(post.status, 200, "{post:?}");
        let seen = origin.seen();
        assert_eq!(seen.len(), 12);
        for one in &seen {
            let (_, names, found) = authorization(one);
            assert_eq!(found, signature(one, service), "{service} {}", one.target());
            for hop in ["connection", "x-hop", "proxy-authorization", "te", "upgrade"] {
                assert!(!names.iter().any(|name| name == hop), "{hop} is signed");
            }
        }
        assert_eq!(seen[11].body, b"Param1=value1");
    }
}

/// The published vectors: requests to example.amazonaws.com at 12:36 on 30 August 2015, so with that
/// clock, and in a network and mount namespace where the name leads to the origin.
#[test]
fn the_vectors_of_aws_reach_the_origin() {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hosts.path(), "127.0.0.1 localhost example.amazonaws.com\n").unwrap();
    let script = "ip link set lo up && mount --bind \"$1\" /etc/hosts || exit 77
        exec \"$2\" --exact child_with_the_vectors --ignored --nocapture";
    let status = Command::new("unshare")
        .args(["-n", "-m", "sh", "-c", script, "sh"])
        .arg(hosts.path())
        .arg(std::env::current_exe().unwrap())
        .env("AFFIANT_SIGV4_CHILD", "1")
        .status();
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(77 | 1)) | Err(_) => eprintln!("skipped: no right to make a network namespace"),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "it runs in the namespaces that the test above makes"]
fn child_with_the_vectors() {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    if std::env::var_os("AFFIANT_SIGV4_CHILD").is_none() || !std::path::Path::new(library).exists()
    {
        return;
    }
    let home = Home::new();
    home.secret("aws", &format!("AKIDEXAMPLE:{SECRET_KEY}"));
    let listener = std::net::TcpListener::bind("127.0.0.1:80").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let entered = runtime.enter();
    let scripts = vec![Script::answer("*", 200, &[], "ok")];
    let origin = Origin::spawn(listener, Opening::Serve, scripts, None).unwrap();
    drop(entered);
    home.policy(&policy("example.amazonaws.com", 80, "service"));
    let preload = format!("LD_PRELOAD={library}");
    let by = [
        "env",
        preload.as_str(),
        "TZ=UTC",
        "FAKETIME=2015-08-30 12:36:00",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ];
    let server = Server::start_by(&home, &by);
    let form = "Content-Type: application/x-www-form-urlencoded";
    let vectors: [(&str, &[&str], &str); 4] = [
        ("/", &[], "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (
            "/?Param2=value2&Param1=value1",
            &[],
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("/", &["-X", "POST"], "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "/",
            &["-H", form, "-d", "Param1=value1"],
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ];
    for (path, more, expected) in vectors {
        let url = format!("http://example.amazonaws.com{path}");
        let arguments: Vec<&str> = more.iter().copied().chain([url.as_str()]).collect();
        let response = server.curl(&arguments);
        assert_eq!(response.status, 200, "{response:?}");
        let seen = origin.seen().pop().unwrap();
        assert_eq!(seen.field("x-amz-date").as_deref(), Some("20150830T123600Z"));
        assert_eq!(authorization(&seen).2, expected, "{path} {more:?}");
    }
}
