//! Tests of the recipes: vectors, what is replaced, and what is never let out.

use super::*;
use crate::{Diagnostic, HttpAction, Snapshot};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use journal::contract::Code;
use proptest::prelude::*;
use ring::signature::{self, KeyPair as _, UnparsedPublicKey};

/// 30 August 2015, 12:36:00 UTC.
const NOW_MS: u64 = 1_440_938_160_000;

fn view<'a>(target: &'a str, headers: &'a [(&'a [u8], &'a [u8])], content: &'a [u8]) -> View<'a> {
    View {
        method: "GET",
        scheme: Scheme::Https,
        authority: "example.amazonaws.com",
        target,
        headers,
        content: Content::Whole(content),
        now_ms: NOW_MS,
        nonce: [0xab; 16],
    }
}

fn credential(keys: &str) -> String {
    format!("[[credential]]\nid = \"c\"\nsecret = \"s\"\n{keys}\n")
}

fn inject(keys: &str) -> Inject {
    let route = "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\" }\ncredential = \"c\"\n";
    let text = credential(keys) + route;
    let snapshot = Snapshot::compile(&text, "p", 0).unwrap_or_else(|e| panic!("{text}\n{e:#?}"));
    assert!(snapshot.warnings().is_empty(), "{:?}", snapshot.warnings());
    let action = HttpAction {
        agent: "a",
        scheme: Scheme::Https,
        host: "h.test",
        port: 443,
        method: "GET",
        path: "/",
    };
    snapshot.http(&action).unwrap().credential.unwrap().inject
}

fn text(secret: &Secret) -> String {
    secret.expose_text().unwrap().to_owned()
}

fn field(edits: &Edits, name: &str) -> Option<String> {
    edits.set.iter().find(|(n, _)| n == name).map(|(_, value)| text(value))
}

fn refused(keys: &str, part: &str) {
    let found = Snapshot::compile(&credential(keys), "p", 0).unwrap_err();
    let told: Vec<_> = found.iter().map(Diagnostic::to_string).collect();
    assert!(told.iter().any(|t| t.contains(part)), "{part:?} is not in {told:#?}");
}

#[test]
fn one_header_is_one_field() {
    let edits = Inject::Bearer.edits(&Secret::from("tok"), &view("/", &[], b"")).unwrap();
    assert_eq!(field(&edits, "authorization").as_deref(), Some("Bearer tok"));
    let shown: Vec<_> = edits.shown.iter().map(text).collect();
    assert_eq!(shown, ["Bearer tok", "tok"]);
}

#[test]
fn edits_keep_the_order_of_fields() {
    let edits = Edits {
        remove: vec!["x-gone"],
        set: vec![("x-set".to_owned(), Secret::from("1")), ("x-new".to_owned(), Secret::from("2"))],
        values: vec![(4, Secret::from("3"))],
        ..Edits::default()
    };
    let headers: &[Field<'_>] = &[
        (b"A", b"a"),
        (b"X-Set", b"theirs"),
        (b"X-Gone", b"x"),
        (b"x-set", b"again"),
        (b"B", b"b"),
    ];
    let (kept, added) = edits.fields(headers);
    let expected: [Field<'_>; 3] = [(b"A", b"a"), (b"X-Set", b"1"), (b"B", b"3")];
    assert_eq!(kept, expected);
    let expected: [Field<'_>; 1] = [(b"x-new", b"2")];
    assert_eq!(added, expected);
    assert!(edits.sets(b"X-NEW") && !edits.sets(b"a"));
}

#[test]
fn parameters_take_the_place_of_the_agents() {
    let recipe = inject("inject = \"query\"\nname = \"api key\"");
    let to = |target: &str| {
        let edits = recipe.edits(&Secret::from("a&b+ c"), &view(target, &[], b"")).unwrap();
        text(&edits.target.unwrap())
    };
    assert_eq!(to("/x"), "/x?api%20key=a%26b%2B%20c");
    assert_eq!(to("/x?"), "/x?api%20key=a%26b%2B%20c");
    assert_eq!(to("/x?a=1&b"), "/x?a=1&b&api%20key=a%26b%2B%20c");
    assert_eq!(to("/x?api+key=evil&%61pi%20key&c=%20"), "/x?c=%20&api%20key=a%26b%2B%20c");
    refused("inject = \"query\"", "lacks `name`");
    refused(
        "inject = \"query\"\nname = \"k\"\nregion = \"x\"",
        "goes with inject = \"sigv4\" only",
    );
}

#[test]
fn cookies_stand_beside_the_agents() {
    let recipe = inject("inject = \"cookie\"\nname = \"sid\"");
    let to = |headers: &[(&[u8], &[u8])]| {
        let edits = recipe.edits(&Secret::from("s3cr3t"), &view("/", headers, b"")).unwrap();
        field(&edits, "cookie").unwrap()
    };
    assert_eq!(to(&[]), "sid=s3cr3t");
    assert_eq!(to(&[(b"Cookie", b"a=1; sid=evil"), (b"cookie", b"b=2;")]), "a=1; b=2; sid=s3cr3t");
    for bad in ["a;b", "a b", "a,b", "a\"b", "a\r\nb", "ü"] {
        assert!(recipe.edits(&Secret::from(bad), &view("/", &[], b"")).is_err(), "{bad}");
    }
}

const PH: &str = "inject = \"placeholder\"";

#[test]
fn placeholders_are_replaced_everywhere() {
    let recipe = inject(PH);
    assert!(recipe.looks_at_content() && recipe.own_headers().is_empty());
    let secret = Secret::from("s/\"ü");
    let basic = format!("Basic {}", STANDARD.encode("bot:affiant_ph_c"));
    let headers: &[(&[u8], &[u8])] = &[
        (b"X-Plain", b"x"),
        (b"X-Key", b"k=affiant_ph_c, affiant_ph_c"),
        (b"Authorization", basic.as_bytes()),
        (b"Content-Type", b"application/json"),
    ];
    let content = br#"{"token":"affiant_ph_c"}"#;
    let secret_header = Secret::from("s/\"x");
    let edits = recipe
        .edits(&secret_header, &view("/bot/affiant_ph_c/x?t=affiant_ph_c&a", headers, content))
        .unwrap();
    assert_eq!(text(edits.target.as_ref().unwrap()), "/bot/s%2F%22x/x?t=s%2F%22x&a");
    let values: Vec<_> = edits.values.iter().map(|(i, v)| (*i, text(v))).collect();
    let encoded = format!("Basic {}", STANDARD.encode("bot:s/\"x"));
    assert_eq!(values, [(1, "k=s/\"x, s/\"x".to_owned()), (2, encoded)]);
    assert_eq!(text(edits.content.as_ref().unwrap()), r#"{"token":"s/\"x"}"#);
    let form: &[(&[u8], &[u8])] = &[(b"content-type", b"application/x-www-form-urlencoded")];
    let edits = recipe.edits(&secret, &view("/", form, b"a=affiant_ph_c")).unwrap();
    assert_eq!(text(&edits.content.unwrap()), "a=s%2F%22%C3%BC");
    let edits = recipe.edits(&secret, &view("/", &[], b"affiant_ph_c affiant_ph_c")).unwrap();
    assert_eq!(text(&edits.content.unwrap()), "s/\"ü s/\"ü");
    let edits = recipe.edits(&secret, &view("/", &[], b"nothing")).unwrap();
    assert!(edits.content.is_none() && edits.target.is_none() && edits.values.is_empty());
}

/// I-1: what holds another placeholder, or one in a place that is not allowed, does not leave.
#[test]
fn i_1_unreplaced_placeholders_never_leave() {
    let all = inject(PH);
    let check = |inject: &Inject, request: View<'_>, code: Code| {
        let error = inject.edits(&Secret::from("s"), &request).unwrap_err();
        assert_eq!(error.code(), code, "{request:?}");
        assert_eq!(error.verdict().outcome().as_str(), "not_attempted");
    };
    let stray = Code::SecretMissing;
    check(&all, view("/affiant_ph_other", &[], b""), stray);
    check(&all, view("/affiant_ph_c2", &[], b""), stray);
    check(&all, view("/affiant_ph_c.x", &[], b""), stray);
    check(&all, view("/?x=%61ffiant_ph_other", &[], b""), stray);
    check(&all, view("/", &[(b"x", b"affiant_ph_c affiant_ph_d")], b""), stray);
    check(&all, view("/", &[(b"affiant_ph_c", b"x")], b""), stray);
    let basic = format!("Basic {}", STANDARD.encode("affiant_ph_d:x"));
    check(&all, view("/", &[(b"authorization", basic.as_bytes())], b""), stray);
    check(&all, view("/", &[], b"affiant_ph_d"), stray);
    let header = inject(&format!("{PH}\nin = [\"header\"]"));
    assert!(!header.looks_at_content());
    check(&header, view("/affiant_ph_c", &[], b""), stray);
    check(&header, view("/", &[], b"affiant_ph_c"), stray);
    let body = inject(&format!("{PH}\nin = [\"body\"]"));
    check(&body, view("/", &[(b"x", b"affiant_ph_c")], b""), stray);
    let unsupported = Code::InjectionUnsupported;
    check(&all, View { content: Content::Streamed, ..view("/", &[], b"") }, unsupported);
    check(&all, view("/", &[(b"content-encoding", b"gzip")], b"x"), unsupported);
    let streamed = View { content: Content::Streamed, ..view("/", &[], b"") };
    assert!(header.edits(&Secret::from("s"), &streamed).is_ok());
    let broken = all.edits(&Secret::from("a\r\nb"), &view("/", &[(b"x", b"affiant_ph_c")], b""));
    assert_eq!(broken.unwrap_err().code(), Code::SecretUnreadable);
    refused(&format!("{PH}\nplaceholder = \"secret\""), "begin with affiant_ph_");
    refused(&format!("{PH}\nin = [\"cookie\"]"), "header, path, query, body");
}

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

/// AWS's published test suite: get-vanilla, post-vanilla, the query's order, a form, a path in UTF-8.
#[test]
fn the_vectors_of_aws_hold() {
    let key = format!("AKIDEXAMPLE:{AWS_SECRET}");
    let scope = "region = \"us-east-1\"\nservice = \"service\"";
    let check = |request, names, expected| drop(vector(request, &key, scope, names, expected));
    let plain = "host;x-amz-date";
    check(
        view("/", &[], b""),
        plain,
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    );
    check(
        view("/?Param2=value2&Param1=value1", &[], b""),
        plain,
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    );
    check(
        view("/\u{1234}", &[], b""),
        plain,
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
    );
    let post = |headers, content| View { method: "POST", ..view("/", headers, content) };
    check(
        post(&[], b""),
        plain,
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    );
    check(
        post(&[(b"Content-Type", b"application/x-www-form-urlencoded")], b"Param1=value1"),
        "content-type;host;x-amz-date",
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    );
    check(
        view("/a%20b/../c/", &[], b""),
        plain,
        "f259e95ed875e35e1a19c9ee43dff4a6a6eb2ad206b5cf28b21f8106e83e50b0",
    );
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

#[test]
fn templates_are_signed_by_hmac() {
    let recipe = inject(
        "inject = \"hmac\"\nsign = \"{timestamp}.{method}.{target}.{body}\"\n\
         headers = { X-Signature = \"t={timestamp},v1={signature}\", X-Nonce = \"{nonce}\" }",
    );
    assert!(recipe.looks_at_content());
    assert_eq!(recipe.own_headers(), ["x-nonce", "x-signature"]);
    let edits = recipe.edits(&Secret::from("key"), &view("/a?b", &[], b"body")).unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"key");
    let code = ring::hmac::sign(&key, b"1440938160.GET./a?b.body");
    let code: String = code.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(field(&edits, "x-signature"), Some(format!("t=1440938160,v1={code}")));
    assert_eq!(field(&edits, "x-nonce"), Some("ab".repeat(16)));
    assert!(edits.shown.iter().any(|s| text(s) == code));
    let recipe = inject(
        "inject = \"hmac\"\nalgorithm = \"sha512\"\nencoding = \"base64\"\n\
         sign = \"{scheme} {host} {path} {query} {body_sha256} {timestamp_ms} {time}\"\n\
         headers = { x-s = \"{signature}\" }",
    );
    let edits = recipe.edits(&Secret::from("key"), &view("/a?b", &[], b"")).unwrap();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let signed =
        format!("https example.amazonaws.com /a b {empty} 1440938160000 2015-08-30T12:36:00Z");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA512, b"key");
    let code = STANDARD.encode(ring::hmac::sign(&key, signed.as_bytes()));
    assert_eq!(field(&edits, "x-s"), Some(code));
    let streamed = View { content: Content::Streamed, ..view("/", &[], b"") };
    assert!(recipe.edits(&Secret::from("key"), &streamed).is_err());
    let hmac = |rest: &str| format!("inject = \"hmac\"\n{rest}");
    refused(&hmac("sign = \"{x}\"\nheaders = { a = \"{signature}\" }"), "names {x}; known are");
    refused(&hmac("sign = \"{body\"\nheaders = { a = \"{signature}\" }"), "not closed");
    refused(&hmac("sign = \"{signature}\"\nheaders = { a = \"{signature}\" }"), "itself");
    refused(&hmac("sign = \"a\"\nheaders = { a = \"b\" }"), "no field holds {signature}");
    refused(&hmac("sign = \"a\"\nheaders = { host = \"{signature}\" }"), "can't carry");
    refused(&hmac("sign = \"a\""), "`headers` of credential \"c\": is missing");
}

fn jwt(
    keys: &str,
    key: &str,
) -> Result<(serde_json::Value, serde_json::Value, String, Vec<u8>), Error> {
    let recipe = inject(&format!("inject = \"jwt\"\n{keys}"));
    let edits = recipe.edits(&Secret::from(key), &view("/", &[], b""))?;
    let value = field(&edits, "authorization").unwrap();
    let token = value.strip_prefix("Bearer ").unwrap();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (head, claims) = signed.split_once('.').unwrap();
    let part = |text: &str| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    Ok((part(head), part(claims), signed.to_owned(), signature))
}

fn pem_of(der: &[u8]) -> String {
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der))
}

#[test]
fn tokens_are_minted_and_verify() {
    let random = ring::rand::SystemRandom::new();
    let rsa = include_str!("recipe/test-rsa.pem");
    let claims = "claims = { iss = \"42\", aud = [\"a\", \"b\"], n = 7, admin = false }\n\
                  lifetime = \"9m\"\nkey_id = \"k1\"";
    let (head, body, signed, signature) =
        jwt(&format!("algorithm = \"RS256\"\n{claims}"), rsa).unwrap();
    assert_eq!(head, serde_json::json!({ "alg": "RS256", "typ": "JWT", "kid": "k1" }));
    let now = NOW_MS / 1000;
    let expected = serde_json::json!({
        "iss": "42", "aud": ["a", "b"], "n": 7, "admin": false, "iat": now - 60, "exp": now + 540,
    });
    assert_eq!(body, expected);
    let body: String = rsa.lines().filter(|l| !l.starts_with('-')).collect();
    let pair = signature::RsaKeyPair::from_der(&STANDARD.decode(body).unwrap()).unwrap();
    UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, pair.public())
        .verify(signed.as_bytes(), &signature)
        .unwrap();

    let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    let der = signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    let (head, _, signed, signature) = jwt("algorithm = \"ES256\"", &pem_of(der.as_ref())).unwrap();
    assert_eq!(head["alg"], "ES256");
    let pair = signature::EcdsaKeyPair::from_pkcs8(algorithm, der.as_ref(), &random).unwrap();
    UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref())
        .verify(signed.as_bytes(), &signature)
        .unwrap();

    let der = signature::Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let (head, _, signed, signature) = jwt("algorithm = \"EdDSA\"", &pem_of(der.as_ref())).unwrap();
    assert_eq!(head["alg"], "EdDSA");
    let pair = signature::Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
    UnparsedPublicKey::new(&signature::ED25519, pair.public_key().as_ref())
        .verify(signed.as_bytes(), &signature)
        .unwrap();
    for (algorithm, key) in [("ES256", rsa), ("EdDSA", rsa), ("RS256", "no key"), ("RS256", "")] {
        let error = jwt(&format!("algorithm = \"{algorithm}\""), key).unwrap_err();
        assert_eq!(error.code(), Code::SecretUnreadable, "{algorithm}");
    }
    refused("inject = \"jwt\"", "lacks `algorithm`");
    refused("inject = \"jwt\"\nalgorithm = \"none\"", "RS256, ES256, EdDSA");
    refused("inject = \"jwt\"\nalgorithm = \"ES256\"\nclaims = { exp = 1 }", "set for each token");
    refused("inject = \"jwt\"\nalgorithm = \"ES256\"\nlifetime = \"2d\"", "a day at most");
}

proptest! {
    /// I-4: in whatever form a placeholder's secret goes on, that form is told, so that an origin
    /// which sends it back is redacted.
    #[test]
    fn i_4_every_form_that_goes_on_is_told(
        secret in "[!-~]{8,16}",
        kind in "(application/json|application/x-www-form-urlencoded|text/plain)",
    ) {
        let pair = format!("Basic {}", STANDARD.encode("bot:affiant_ph_c"));
        let headers: &[Field<'_>] =
            &[(b"content-type", kind.as_bytes()), (b"a", b"affiant_ph_c"), (b"b", pair.as_bytes())];
        let request = view("/affiant_ph_c?t=affiant_ph_c", headers, b"\"affiant_ph_c\"");
        let edits = inject(PH).edits(&Secret::from(secret.as_str()), &request).unwrap();
        let mut forms: Vec<_> = edits.shown.iter().map(text).collect();
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        let redacted = |value: &Secret| {
            forms.iter().fold(text(value), |rest, form| rest.replace(form, "*"))
        };
        prop_assert_eq!(redacted(edits.target.as_ref().unwrap()), "/*?t=*");
        prop_assert_eq!(redacted(edits.content.as_ref().unwrap()), "\"*\"");
        let values: Vec<_> = edits.values.iter().map(|(_, value)| redacted(value)).collect();
        prop_assert_eq!(values, ["*", "Basic *"]);
    }

    /// I-1: with the placeholder's mode no request leaves that still holds one.
    #[test]
    fn i_1_no_request_leaves_with_a_placeholder(
        target in "/(affiant_ph_|c|x|[?]|%61){0,6}",
        value in "(affiant_ph_|c|x| ){0,6}",
        content in "(affiant_ph_|c|x| ){0,6}",
    ) {
        let recipe = inject(PH);
        let headers: &[(&[u8], &[u8])] = &[(b"a", value.as_bytes())];
        if let Ok(edits) = recipe.edits(&Secret::from("s"), &view(&target, headers, content.as_bytes())) {
            let after = edits.target.as_ref().map_or(target.as_bytes(), Secret::expose);
            prop_assert!(!is_stray(after));
            let after = edits.values.first().map_or(value.as_bytes(), |(_, v)| v.expose());
            prop_assert!(!is_stray(after));
            let after = edits.content.as_ref().map_or(content.as_bytes(), Secret::expose);
            prop_assert!(!is_stray(after));
        }
    }

    #[test]
    fn no_request_makes_a_recipe_panic(
        target in "/.{0,30}", name in "[ -~]{0,12}", value in "[ -~]{0,40}",
        secret in ".{0,20}", content in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let headers: &[(&[u8], &[u8])] = &[(name.as_bytes(), value.as_bytes())];
        for keys in [
            "inject = \"query\"\nname = \"k\"",
            "inject = \"cookie\"\nname = \"k\"",
            PH,
            "inject = \"sigv4\"",
            "inject = \"hmac\"\nsign = \"{body}\"\nheaders = { a = \"{signature}{path}\" }",
            "inject = \"jwt\"\nalgorithm = \"ES256\"",
        ] {
            drop(inject(keys).edits(&Secret::from(secret.as_str()), &view(&target, headers, &content)));
        }
    }
}
