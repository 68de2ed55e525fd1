//! Tests of conditions: what is met, what is not, and what can't be judged.

use super::*;
use crate::Body;

fn conditions(headers: &[(&str, &[&str])], query: &[(&str, &[&str])]) -> Conditions {
    let wanted = |list: &[(&str, &[&str])]| {
        let owned = |p: &[&str]| p.iter().map(|&p| p.to_owned()).collect::<Vec<_>>();
        list.iter().map(|&(name, patterns)| (name.to_owned(), owned(patterns))).collect()
    };
    Conditions { headers: wanted(headers), query: wanted(query), ..Conditions::default() }
}

fn unmet<'a>(conditions: &'a Conditions, details: &Details<'_>) -> Option<Unmet<'a>> {
    conditions.unmet(details, &Content::default())
}

fn on_body(body: &[(&str, &[Literal])]) -> Conditions {
    let body = body.iter().map(|(p, l)| ((*p).to_owned(), l.to_vec())).collect();
    Conditions { body, ..Conditions::default() }
}

/// V-1: each pointer leads to one of its values; what can't be judged says so.
#[test]
fn v_1_fields_of_content_are_compared() {
    let text = |pattern: &str| Literal::Text(pattern.to_owned());
    let model = on_body(&[
        ("/model", &[text("small-*"), text("tiny")]),
        ("/stream", &[Literal::Truth(false)]),
        ("/n/0", &[Literal::Number(1)]),
    ]);
    let json = [(&b"content-type"[..], &b"application/json"[..])];
    let check = |body: Body<'_>, expected: Option<Unmet<'_>>| {
        let details = Details { query: None, headers: &json, body };
        assert_eq!(unmet(&model, &details), expected, "{body:?}");
    };
    check(Body::Whole(br#"{"model":"small-2","stream":false,"n":[1]}"#), None);
    check(Body::Whole(br#"{"model":"tiny","stream":false,"n":[1.0]}"#), None);
    let unmet = |pointer| Some(Unmet::Body(pointer));
    check(Body::Whole(br#"{"model":"large","stream":false,"n":[1]}"#), unmet("/model"));
    check(Body::Whole(br#"{"model":["x"],"stream":false,"n":[1]}"#), unmet("/model"));
    check(Body::Whole(br#"{"model":["tiny","x"],"stream":false,"n":[1]}"#), unmet("/model"));
    check(Body::Whole(br#"{"model":"tiny","stream":false,"n":[1.5]}"#), unmet("/n/0"));
    check(Body::Whole(br#"{"model":"tiny","stream":false}"#), unmet("/n/0"));
    check(Body::Absent, unmet("/model"));
    let unjudged = |doubt| Some(Unmet::Unjudged(doubt));
    for text in [
        &br#"{"model":"tiny","stream":"false","n":[1]}"#[..],
        br#"{"model":"tiny","stream":0,"n":[1]}"#,
        br#"{"model":"tiny","stream":false,"n":[" 1"]}"#,
        br#"{"model":"tiny","stream":false,"n":[true]}"#,
        br#"{"model":"tiny","stream":false,"n":["0x1"]}"#,
        br#"{"model":"tiny","stream":false,"n":["1_0"]}"#,
        br#"{"model":"tiny","stream":"off","n":[1]}"#,
        br#"{"model":"tiny","stream":null,"n":[1]}"#,
        br#"{"model":["tiny"],"stream":false,"n":[1]}"#,
        br#"{"model":[["small-1"]],"stream":false,"n":[1]}"#,
        br#"{"model":"tiny","stream":false,"n":[[1]]}"#,
    ] {
        check(Body::Whole(text), unjudged(Doubt::TYPE));
    }
    for text in [
        &br#"{"model":"tiny","Model":"large","stream":false,"n":[1]}"#[..],
        br#"{"MODEL":"tiny","stream":false,"n":[1]}"#,
        br#"{"model":"tiny","\u017ftream":false,"n":[1]}"#,
    ] {
        check(Body::Whole(text), unjudged(Doubt::MEMBER));
    }
    // Somewhere else such a name means nothing, and what is surely unmet stays so.
    check(Body::Whole(br#"{"model":"tiny","stream":false,"n":[1],"x":{"Model":1}}"#), None);
    check(Body::Whole(br#"{"MODEL":"x","stream":true,"n":[1]}"#), unmet("/stream"));
    check(Body::Whole(b"model=tiny"), Some(Unmet::Unjudged(Doubt::body("it is not JSON"))));
    check(Body::Unreadable("why"), Some(Unmet::Unjudged(Doubt::body("why"))));
    assert_eq!(model.body_in_words(), r#"/model = "small-*" | "tiny", /n/0 = 1, /stream = false"#);
    let large = on_body(&[("/model", &[text("large")])]);
    assert_eq!(large.relate(&on_body(&[("/model", &[text("s*")])])), Relation::Ordered);
    assert_eq!(large.relate(&on_body(&[("/model", &[text("l*")])])), Relation::Crossing);
    assert_eq!(large.relate(&on_body(&[("/model", &[Literal::Truth(true)])])), Relation::Ordered);
    assert_eq!(large.relate(&on_body(&[("/other", &[text("large")])])), Relation::Crossing);
}

/// V-1: a value of another type is not judged where some reader makes one of it that matches.
#[test]
fn v_1_values_are_not_converted() {
    let text = |pattern: &str| Literal::Text(pattern.to_owned());
    for (literal, near, far) in [
        (text("100"), &["100", "100.0", "1e2", "[100]"][..], &["101", "true", "null", "{}"][..]),
        (text("True"), &["true"], &["false", "1"]),
        (text(""), &["null", "false"], &["0", "true"]),
        (text("*"), &["1", "true", "null"], &["{}", "[1,2]"]),
        (
            Literal::Truth(true),
            &["1", "-1", "\"yes\"", "\"TRUE\"", "\"x\""],
            &["0", "\"\"", "null"],
        ),
        (Literal::Truth(false), &["0", "\"\"", "\"no\"", "null"], &["1", "\"yes\""]),
        (
            Literal::Number(100),
            &["\"100\"", "\" 0x64\"", "\"1_00\"", "\"1e2\""],
            &["\"x\"", "true", "null"],
        ),
        (Literal::Number(0), &["\"\"", "false", "null"], &["true", "\"no\""]),
    ] {
        for (values, expected) in [(near, true), (far, false)] {
            for value in values {
                let value = serde_json::from_str(value).unwrap();
                assert_eq!(literal.nearly_matches(&value), expected, "{literal} {value}");
                assert!(!literal.matches(&value), "{literal} {value}");
            }
        }
    }
}

#[test]
fn every_occurrence_has_to_match() {
    let action = conditions(&[], &[("Action", &["Describe*", "List*"])]);
    let met = |query: &str| unmet(&action, &Details { query: Some(query), ..Details::default() });
    assert_eq!(met("Action=DescribeInstances&Version=1"), None);
    assert_eq!(met("&&Action=ListUsers"), None);
    assert_eq!(met("%41ction=Describe%49mages"), None);
    let expected = Some(Unmet::Query("Action"));
    for query in [
        "",
        "Action",
        "Action=RunInstances",
        "action=RunInstances",
        "x=1;Action=RunInstances",
        "Action=RunInstances&Action=Run",
    ] {
        assert_eq!(met(query), expected, "{query}");
    }
    // V-1: readers differ in which of two values they take, and how they read an escape.
    let differ = [
        "Action=DescribeInstances&Action=RunInstances",
        "Action=DescribeInstances&%41ction=RunInstances",
        "Action=DescribeInstances&Action=",
        "Action=DescribeInstances;Action=RunInstances",
        "x=1;Action=DescribeInstances",
        "Action=DescribeInstances&action=RunInstances",
        "Action=DescribeInstances&Action%5B%5D=RunInstances",
        "action=DescribeInstances",
        "Action[]=DescribeInstances",
    ];
    for query in differ {
        assert_eq!(met(query), Some(Unmet::Unjudged(Doubt::QUERY)), "{query}");
    }
    for query in ["Action=Describe%zz", "Action=DescribeX&x=%4", "Action=Run&x=%4"] {
        assert_eq!(met(query), Some(Unmet::Unjudged(Doubt::UNREADABLE)), "{query}");
    }
    assert_eq!(unmet(&action, &Details::default()), expected);
}

#[test]
fn header_names_have_no_case_and_values_have() {
    let target = conditions(&[("x-amz-target", &["DynamoDB_20120810.Get*"])], &[]);
    let met = |fields: &[(&[u8], &[u8])]| {
        unmet(&target, &Details { headers: fields, ..Details::default() }).is_none()
    };
    assert!(met(&[(b"X-Amz-Target", b" DynamoDB_20120810.GetItem ")]));
    assert!(!met(&[(b"X-Amz-Target", b"dynamodb_20120810.getitem")]));
    assert!(!met(&[]));
    let put = (&b"x-amz-target"[..], &b"DynamoDB_20120810.PutItem"[..]);
    assert!(!met(&[(b"X-Amz-Target", b"DynamoDB_20120810.GetItem"), put]));
    // V-1: to some servers `_` is `-`.
    let get = (&b"X-Amz-Target"[..], &b"DynamoDB_20120810.GetItem"[..]);
    let other_get = (&b"X_Amz_Target"[..], get.1);
    let other_put = (&b"X_Amz-Target"[..], put.1);
    assert!(met(&[get, other_get]));
    let of = |fields: &[_]| unmet(&target, &Details { headers: fields, ..Details::default() });
    for fields in [&[get, other_put][..], &[other_get]] {
        assert_eq!(of(fields), Some(Unmet::Unjudged(Doubt::HEADERS)), "{fields:?}");
    }
    assert_eq!(of(&[other_put]), Some(Unmet::Header("x-amz-target")));
}

#[test]
fn conditions_relate() {
    let get = conditions(&[("a", &["x*"])], &[]);
    let put = conditions(&[("a", &["y*"])], &[]);
    let other = conditions(&[("b", &["x"])], &[]);
    let both = conditions(&[("a", &["x*"]), ("b", &["x"])], &[]);
    assert_eq!(get.relate(&get), Relation::Equal);
    assert_eq!(get.relate(&put), Relation::Ordered);
    assert_eq!(get.relate(&other), Relation::Crossing);
    assert_eq!(get.relate(&both), Relation::Ordered);
    assert_eq!(get.relate(&Conditions::default()), Relation::Ordered);
    assert!(both.breadth() < get.breadth());
}
