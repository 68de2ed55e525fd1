//! Tests of the recipes: vectors, what is replaced, and what is never let out.

use super::*;
use crate::{Diagnostic, HttpAction, Snapshot};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use journal::contract::Code;
use proptest::prelude::*;
use ring::signature::{self, KeyPair as _, UnparsedPublicKey};

#[path = "recipe/signed_tests.rs"]
mod signed;
#[path = "recipe/sigv4_tests.rs"]
mod sigv4_requests;
#[path = "recipe/sigv4_suite_tests.rs"]
mod sigv4_suite;

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
const ANYWHERE: &str = "inject = \"placeholder\"\nin = [\"header\", \"path\", \"query\", \"body\"]";

#[test]
fn placeholders_are_replaced_everywhere() {
    let recipe = inject(ANYWHERE);
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
    let (all, header) = (inject(ANYWHERE), inject(PH));
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
    // As JSON writes it; and escapes that are none change nothing.
    check(&all, view("/", &[], br#"{"a":"affiant_ph\u005fd"}"#), stray);
    check(&header, view("/", &[], br#"{"a":"\u0061ffiant\u005Fph_c"}"#), stray);
    assert!(!is_stray(br#"\u0061ffiant\u00zz \u00"#));
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

/// V-1: what a service could take for a field that we set goes no further.
#[test]
fn v_1_no_rival_stays_beside_an_injected_field() {
    let key = inject("inject = \"header\"\nname = \"X-Api-Key\"");
    let sent: [Field<'_>; 4] = [
        (b"X_Api_Key", b"agents"),
        (b"x-api-key", b"agents"),
        (b"X-Api_Key", b"a"),
        (b"X-Api", b"b"),
    ];
    let edits = key.edits(&Secret::from("ours"), &view("/", &sent, b"")).unwrap();
    let (kept, added) = edits.fields(&sent);
    assert_eq!(kept, [(&b"x-api-key"[..], &b"ours"[..]), (b"X-Api", b"b")]);
    assert!(added.is_empty());
}
