//! Tests of AWS signatures: what botocore signs, where the scope comes from. The published vectors
//! are in `sigv4_suite_tests.rs`.

use super::*;

fn sigv4(keys: &str, request: View<'_>, secret: &str) -> Result<Edits, Error> {
    inject(&format!("inject = \"sigv4\"\n{keys}")).edits(&Secret::from(secret), &request)
}

const AWS_SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn vector(request: View<'_>, secret: &str, keys: &str, names: &str, expected: &str) -> Edits {
    let edits = sigv4(keys, request, secret).unwrap();
    let found = field(&edits, "authorization").unwrap();
    let ends = format!("SignedHeaders={names}, Signature={expected}");
    assert!(found.ends_with(&ends), "{found}\n{ends}");
    assert_eq!(field(&edits, "x-amz-date").as_deref(), Some("20150830T123600Z"));
    edits
}

/// Requests as botocore signs them: a session token, S3's paths and digests; the scope from the host.
#[test]
fn requests_are_signed_as_botocore_does() {
    let key = format!("AKIDEXAMPLE:{AWS_SECRET}:TOKEN/+=");
    let headers: &[(&[u8], &[u8])] = &[
        (b"X-Amz-Target", b"DynamoDB_20120810.GetItem"),
        (b"Content-Type", b"application/x-amz-json-1.0"),
        (b"X-Amz-Security-Token", b"of the agent"),
        (b"X-Amz-Date", b"20010101T000000Z"),
    ];
    let authority = "dynamodb.eu-west-1.amazonaws.com";
    let request = View { method: "POST", authority, ..view("/", headers, b"{}") };
    let edits = vector(
        request,
        &key,
        "",
        "content-type;host;x-amz-date;x-amz-security-token;x-amz-target",
        "c6a0d7a6d9a48c5ef5a91732372ee104b7b6a709796e47eb8e83e02af10503a1",
    );
    assert_eq!(field(&edits, "x-amz-security-token").as_deref(), Some("TOKEN/+="));
    assert!(edits.remove.is_empty());
    let key = format!("AKIDEXAMPLE:{AWS_SECRET}");
    let authority = "bucket.s3.amazonaws.com";
    let target = "/a%20b/c%2Bd?list-type=2&prefix=x%2Fy";
    let edits = vector(
        View { authority, ..view(target, &[], b"") },
        &key,
        "",
        "host;x-amz-content-sha256;x-amz-date",
        "78157b2a21313fb240b52f2e891af0721469ba250afa5a1710fcbafa2c17469b",
    );
    assert_eq!(edits.remove, ["x-amz-security-token"]);
    vector(
        View {
            method: "PUT",
            authority,
            ..view("/key", &[(b"content-type", b"text/plain")], b"hello")
        },
        &key,
        "",
        "content-type;host;x-amz-content-sha256;x-amz-date",
        "503ed0ab727401989494ab9a9e6481fc40bdcdd0b6c1dde569bb86b20cac3c44",
    );
}

#[test]
fn the_scope_comes_from_policy_client_or_host() {
    let scope = |keys: &str, authority: &str, headers: &[(&[u8], &[u8])]| {
        let request = View { authority, ..view("/", headers, b"") };
        let edits = sigv4(keys, request, "AK:SK").ok()?;
        let value = field(&edits, "authorization")?;
        let scope = value.split("AK/20150830/").nth(1)?.split("/aws4_request").next()?.to_owned();
        Some(scope)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(scope("", "s3.eu-west-1.amazonaws.com", &[]), some("eu-west-1/s3"));
    assert_eq!(scope("", "b.s3.dualstack.eu-west-1.amazonaws.com:443", &[]), some("eu-west-1/s3"));
    assert_eq!(scope("", "sts.amazonaws.com", &[]), some("us-east-1/sts"));
    assert_eq!(scope("", "minio.test", &[]), None);
    let client: &[(&[u8], &[u8])] = &[(
        b"Authorization",
        b"AWS4-HMAC-SHA256 Credential=DUMMY/20150830/eu-north-1/s3/aws4_request, SignedHeaders=host, Signature=00",
    )];
    assert_eq!(scope("", "minio.test", client), some("eu-north-1/s3"));
    assert_eq!(scope("region = \"local\"", "minio.test", client), some("local/s3"));
    assert_eq!(scope("region = \"a\"\nservice = \"b\"", "sts.amazonaws.com", client), some("a/b"));
}

#[test]
fn content_is_signed_as_far_as_it_is_known() {
    let s3 = "region = \"a\"\nservice = \"s3\"";
    let hash = |keys: &str, request: View<'_>| {
        sigv4(keys, request, "AK:SK").map(|edits| field(&edits, "x-amz-content-sha256"))
    };
    let streamed = View { content: Content::Streamed, ..view("/", &[], b"") };
    assert_eq!(hash(s3, streamed), Ok(Some("UNSIGNED-PAYLOAD".to_owned())));
    let clear = View { scheme: Scheme::Http, ..streamed };
    assert_eq!(hash(s3, clear).unwrap_err().code(), Code::InjectionUnsupported);
    let other = "region = \"a\"\nservice = \"sqs\"";
    assert_eq!(hash(other, streamed).unwrap_err().code(), Code::InjectionUnsupported);
    assert_eq!(hash(other, view("/", &[], b"x")), Ok(None));
    let declared = "a".repeat(64);
    for (value, kept) in [
        (declared.as_str(), true),
        ("UNSIGNED-PAYLOAD", true),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", true),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", true),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", true),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", false),
        ("x", false),
    ] {
        let headers: &[(&[u8], &[u8])] = &[(b"X-Amz-Content-Sha256", value.as_bytes())];
        let found = hash(s3, View { headers, ..streamed });
        assert_eq!(found.ok().flatten().as_deref(), kept.then_some(value), "{value}");
    }
    for bad in ["", "AK", "AK:", ":SK", "A K:SK", "A,K:SK"] {
        assert!(sigv4(s3, view("/", &[], b""), bad).is_err(), "{bad}");
    }
}

/// A query that was signed in advance with a dummy key is signed anew, by header.
#[test]
fn presigned_queries_are_signed_anew() {
    let target = "/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&versionId=3&X-Amz-Credential=D%2F20150830%2Feu-north-1%2Fs3%2Faws4_request&X-Amz-Date=x&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00";
    let edits = sigv4("", view(target, &[], b""), "AK:SK").unwrap();
    assert_eq!(text(&edits.target.clone().unwrap()), "/k?versionId=3");
    assert!(field(&edits, "authorization").unwrap().contains("/eu-north-1/s3/"));
}
