//! Tests of keys in all their places: found, added, left out, refused.

use super::*;

const JSON: (&str, &str) = ("Content-Type", "application/x-amz-json-1.0");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");

fn ask<R>(
    query: Option<&str>,
    headers: &[(&str, &str)],
    body: &str,
    question: impl FnOnce(&Details<'_>) -> R,
) -> R {
    let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
    question(&Details { query, headers: &headers, body: Body::Whole(body.as_bytes()) })
}

fn place(text: &str) -> KeyPlace {
    text.parse().unwrap()
}

/// The key found; the text with `K` as ours; the text without.
fn texts(at: &str, text: &str) -> (Option<String>, String, String) {
    let place = place(at);
    let headers = if at.starts_with("json") { [JSON] } else { [FORM] };
    let query = at.starts_with("query").then_some(text);
    let slot = ask(query, &headers, text, |request| find(&place, request)).unwrap();
    let [with, without] = [slot.with(text.as_bytes(), "K"), slot.without(text.as_bytes())];
    let shown = |text: Option<Vec<u8>>| String::from_utf8(text.unwrap()).unwrap();
    (slot.key.clone(), shown(with), shown(without))
}

fn check(at: &str, text: &str, key: Option<&str>, with: &str, without: &str) {
    let expected = (key.map(str::to_owned), with.to_owned(), without.to_owned());
    assert_eq!(texts(at, text), expected, "{at} in {text:?}");
}

/// K-1, K-2: a key is found in queries and forms, ours goes to its place, and without it the text is
/// what it was.
#[test]
fn k_2_keys_in_pairs() {
    for at in ["query:request Id", "form:request Id"] {
        check(at, "", None, "request%20Id=K", "");
        check(at, "a=1", None, "a=1&request%20Id=K", "a=1");
        check(at, "a=1&", None, "a=1&request%20Id=K", "a=1&");
        check(at, "request+Id=k%2F1", Some("k/1"), "request%20Id=K", "");
        check(at, "a=1&request%20Id=k", Some("k"), "a=1&request%20Id=K", "a=1");
        check(at, "request+Id=k&a=1&b", Some("k"), "request%20Id=K&a=1&b", "a=1&b");
        check(at, "a&request+Id=&b", None, "a&request%20Id=K&b", "a&b");
        check(at, "a&request+Id&b", None, "a&request%20Id=K&b", "a&b");
    }
}

/// K-1, K-2: the same of JSON content, which stays byte for byte what it was around the key.
#[test]
fn k_2_keys_in_json() {
    let at = "json:/Token";
    check(at, "{}", None, r#"{"Token":"K"}"#, "{}");
    check(at, " { } ", None, r#" {"Token":"K" } "#, " { } ");
    check(at, r#"{"a": "}\"{"}"#, None, r#"{"Token":"K","a": "}\"{"}"#, r#"{"a": "}\"{"}"#);
    check(at, r#"{"Token":"k"}"#, Some("k"), r#"{"Token":"K"}"#, "{}");
    check(at, r#"{"a": 1, "Token": "k"}"#, Some("k"), r#"{"a": 1, "Token": "K"}"#, r#"{"a": 1}"#);
    check(at, r#"{"Token": "k", "a": 1}"#, Some("k"), r#"{"Token": "K", "a": 1}"#, r#"{"a": 1}"#);
    let nested = r#"{"x":{"Token":"n"},"Token":null,"b":[{"Token":1}]}"#;
    let with = r#"{"x":{"Token":"n"},"Token":"K","b":[{"Token":1}]}"#;
    check(at, nested, None, with, r#"{"x":{"Token":"n"},"b":[{"Token":1}]}"#);
    check(at, r#"{"\u0054oken":"k\u00e9"}"#, Some("k\u{e9}"), r#"{"\u0054oken":"K"}"#, "{}");
    check("json:/x/To~1ken", r#"{"x":{}}"#, None, r#"{"x":{"To/ken":"K"}}"#, r#"{"x":{}}"#);
}

fn refused(at: &str, query: Option<&str>, headers: &[(&str, &str)], body: &str, why: &str) {
    let place = place(at);
    let found = ask(query, headers, body, |request| {
        find(&place, request).and_then(|slot| slot.check_open(&place, request))
    });
    let error = found.unwrap_err();
    assert_eq!((error.field.as_str(), error.why), (&*place.field(), why), "{at} {query:?} {body}");
}

/// K-1, V-2: what a service could read in another way is refused by the field's name.
#[test]
fn k_1_keys_that_can_be_read_in_two_ways_are_refused() {
    let twice = "it is there twice";
    refused("k", None, &[("K", "1"), ("k", "1")], "", twice);
    let alike = "a field that some servers take for it is there";
    refused("idempotency-key", None, &[("Idempotency_Key", "1")], "", alike);
    refused("query:r", Some("r=1&a&%72=2"), &[], "", twice);
    refused("form:r", None, &[FORM], "r=1&r=1", twice);
    refused("query:r", Some("%zz=1"), &[], "", "an escape can't be read");
    refused("query:r", Some("r=%ff"), &[], "", "it is not UTF-8");
    let named_twice = "it gives a name twice";
    refused("json:/r", None, &[JSON], r#"{"r":"1","r":"1"}"#, named_twice);
    for body in [r#"{"r":1}"#, r#"{"r":["k"]}"#, r#"{"r":true}"#, r#"{"r":{}}"#] {
        refused("json:/r", None, &[JSON], body, "it is no text");
    }
    refused("json:/r", None, &[JSON], r#"{"r":"#, "it is not JSON");
    let packed = ("Content-Encoding", "gzip");
    refused("json:/r", None, &[JSON, packed], "{}", "it is compressed");
    refused("form:r", None, &[FORM, packed], "r=1", "the content is compressed");
    let long = "it is longer than 1,024 bytes or holds control characters";
    refused("query:r", Some(&format!("r={}", "x".repeat(1025))), &[], "", long);
    refused("json:/r", None, &[JSON], r#"{"r":"a\nb"}"#, long);
}

/// K-4: where a key of ours has no place, nothing is sent without it.
#[test]
fn k_4_no_place_is_no_key() {
    refused("json:/r", None, &[FORM], "a=1", "it is not declared as JSON");
    refused("json:/r", None, &[JSON], "", "there is no content");
    refused("json:/r", None, &[JSON], "[{}]", "what it belongs in is no object");
    refused("json:/a/r", None, &[JSON], "{}", "the object that it belongs in is not there");
    refused("json:/a/r", None, &[JSON], r#"{"a":1}"#, "what it belongs in is no object");
    refused("form:r", None, &[JSON], "{}", "there is no content of the type of a form");
    let digest = ("Content-MD5", "x");
    let why = "a header field carries a digest of the content";
    refused("json:/r", None, &[JSON, digest], "{}", why);
    // The caller's own key is none of that.
    let own = ask(None, &[JSON, digest], r#"{"r":"k"}"#, |r| find(&place("json:/r"), r));
    assert_eq!(own.unwrap().key.as_deref(), Some("k"));
}

/// K-4: a contract of some operations is about no other.
#[test]
fn k_4_operations_without_a_contract_have_no_key() {
    let rule = IdempotencyRule {
        place: place("form:ClientToken"),
        actions: vec!["RunInstances".to_owned()],
        scope: "s".to_owned(),
        retention: Duration::from_secs(60),
        contract: RemoteContract::Verified,
        generate: true,
    };
    assert!(rule.looks_at_content());
    let find = |query, body| ask(query, &[FORM], body, |request| rule.find(request));
    let key = |found: Result<Option<Slot>, Unreadable>| found.unwrap().map(|slot| slot.key);
    assert_eq!(key(find(None, "Action=RunInstances&ClientToken=k")), Some(Some("k".to_owned())));
    assert_eq!(key(find(None, "Action=RunInstances")), Some(None));
    assert_eq!(key(find(Some("Action=RunInstances"), "a=1")), Some(None));
    assert_eq!(key(find(None, "Action=StopInstances&ClientToken=k")), None);
    assert_eq!(key(find(None, "ClientToken=k")), None);
    let both = find(Some("Action=StopInstances"), "Action=RunInstances").unwrap_err();
    assert_eq!(both.why, "its operation is named twice");
}
