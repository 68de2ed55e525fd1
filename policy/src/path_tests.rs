//! Tests of paths and their patterns.

use super::*;
use proptest::prelude::*;

fn check(raw: &str, expected: Result<&str, Error>) {
    assert_eq!(normalize(raw), expected.map(str::to_owned), "{raw}");
}

/// V-5: the normalised target is what rules see.
#[test]
fn v_5_paths_have_one_normal_form() {
    check("/", Ok("/"));
    check("/v1/charges", Ok("/v1/charges"));
    check("/v1/charges/", Ok("/v1/charges/"));
    check("/v1/%63harges", Ok("/v1/charges"));
    check("/a/b/../c", Ok("/a/c"));
    check("/a/./b", Ok("/a/b"));
    check("/a/b/..", Ok("/a/"));
    check("/a/%2e%2E/b", Ok("/b"));
    check("/user/%40me", Ok("/user/@me"));
    check("/projects/group%2fproject", Ok("/projects/group%2Fproject"));
    check("/caf%c3%a9", Ok("/caf%C3%A9"));
    check("//admin//x", Ok("/admin/x"));
    check("/100%", Ok("/100%25"));
    check("/a%%32e", Ok("/a%252e"));
    check("*", Ok("*"));
}

/// V-1: what servers read in different ways is refused, not guessed.
#[test]
fn v_1_ambiguous_paths_are_refused() {
    check("v1", Err(Error::NotAbsolute));
    check("", Err(Error::NotAbsolute));
    check("/..", Err(Error::AboveRoot));
    check("/a/../../b", Err(Error::AboveRoot));
    check("/a%00b", Err(Error::Character));
    check("/a b", Err(Error::Character));
    check("/ü", Err(Error::Character));
    for raw in [
        "/public/..%2fadmin",
        "/public/..%5cadmin",
        "/public/..\\admin",
        "/public/..;/admin",
        "/public/.;a/admin",
        "/public//../admin",
        "//../admin",
        "/public/%252e%252e/admin",
        "/public/x%2f..%2fadmin",
        "/secret/a%2fb/../../public/x",
        "/secret/a%5Cb/../../public/x",
        "/secret/a\\b/../../public/x",
        "/secret/a%252fb/../../public/x",
        "/secret/a%255Cb/../../public/x",
        "/secret/;x/../public",
        "/secret/%3bx/../public",
    ] {
        let result = normalize(raw);
        assert!(matches!(result, Err(Error::Ambiguous | Error::AboveRoot)), "{raw} {result:?}");
    }
}

/// V-1: what servers count alike is judged.
#[test]
fn v_1_dot_segments_beside_escapes_are_resolved() {
    check("/a/../b%2Fc", Ok("/b%2Fc"));
    check("/a%2Fb/./c", Ok("/a%2Fb/c"));
    check("/a%20b/../c", Ok("/c"));
    check("/a;b/../c", Ok("/c"));
    check("/a%2", Ok("/a%252"));
}

/// V-1: to a server that reads references, two slashes begin an authority.
#[test]
fn v_1_a_path_may_begin_behind_an_authority() {
    let check = |raw: &str, expected: Option<&str>| {
        assert_eq!(behind_authority(raw).as_deref(), expected, "{raw}");
    };
    check("/public/admin", None);
    check("/", None);
    check("/a//b", None);
    check("//public/admin/del", Some("/admin/del"));
    check("///public/admin", Some("/admin"));
    check("/\\x\\admin\\del", Some("/admin/del"));
    check("//x:1/%61dmin", Some("/admin"));
    check("//x", Some("/"));
    check("//", Some("/"));
}

/// V-1: a path that servers read in different ways has its other readings.
#[test]
fn v_1_other_readings_of_a_path_are_known() {
    for (raw, expected) in [
        ("/v1/charges", &[][..]),
        ("/v1/%63harges", &[]),
        ("/user/%40me", &[]),
        ("/v1/charges/", &["/v1/charges"]),
        ("/admin%2fx", &["/admin/x"]),
        ("/admin\\x", &["/admin/x"]),
        ("/admin;v=1/x", &["/admin/x"]),
        ("/a/..;b", &[]),
        ("/admin/../pub", &["/admin/../pub"]),
        ("/b//public/x", &["/b//public/x"]),
        ("/a%2Fb;c/d/", &["/a/b;c/d", "/a/b;c/d/", "/a%2Fb/d", "/a%2Fb/d/", "/a/b/d", "/a/b/d/"]),
        ("/", &[]),
        ("*", &[]),
    ] {
        let mut found = readings(raw);
        found.sort();
        let mut expected: Vec<String> = expected.iter().map(|&text| text.to_owned()).collect();
        expected.sort();
        if raw == "/a%2Fb;c/d/" {
            assert!(expected.iter().all(|reading| found.contains(reading)), "{found:?}");
        } else {
            assert_eq!(found, expected, "{raw}");
        }
    }
}

fn covers(pattern: &str, path: &str, expected: bool) {
    let pattern = Pattern::parse(pattern).unwrap();
    assert_eq!(pattern.matches(path), expected, "{} {path}", pattern.as_str());
}

#[test]
fn one_star_stays_in_its_segment_and_two_cross() {
    covers("/v1/charges", "/v1/charges", true);
    covers("/v1/charges", "/v1/charges/", false);
    covers("/v1/*", "/v1/a", true);
    covers("/v1/*", "/v1/a/b", false);
    covers("/v1/*", "/v1/", false);
    covers("/v1/ch*s", "/v1/charges", true);
    covers("/v1/**", "/v1/a/b/c", true);
    covers("/v1/**", "/v1/", true);
    covers("/v1/**", "/v1", true);
    covers("/v1/**", "/v10", false);
    covers("/**", "/", true);
    covers("/**/refund", "/a/b/refund", true);
    covers("/**/refund", "/refund", true);
    covers("/a/**/b/**/c", "/a/x/b/b/y/c", true);
    covers("/%63harges", "/charges", true);
    covers("/**", "*", false);
}

#[test]
fn bad_patterns_are_refused() {
    for bad in ["", "v1", "/v1/**x", "/a//b", "/a/../b", "/a/./b", "/a?b", "/a b"] {
        assert!(Pattern::parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn normalisation_is_idempotent(raw in "/[a-c./%2eE5fF;\\\\*@]{0,16}") {
        if let Ok(once) = normalize(&raw) {
            prop_assert_eq!(normalize(&once), Ok(once));
        }
    }

    #[test]
    fn any_text_is_judged_without_panic(raw in ".{0,40}") {
        if let Ok(once) = normalize(&raw) {
            prop_assert_eq!(normalize(&once), Ok(once));
        }
        drop(Pattern::parse(&raw));
    }

    #[test]
    fn patterns_that_match_one_path_meet(
        a in "(/([ab]|\\*|\\*\\*|a\\*)){1,4}", b in "(/([ab]|\\*|\\*\\*|a\\*)){1,4}",
        path in "(/[ab]{0,2}){1,4}",
    ) {
        let (a, b) = (Pattern::parse(&a).unwrap(), Pattern::parse(&b).unwrap());
        let both = a.matches(&path) && b.matches(&path);
        prop_assert!(!both || a.meets(&b));
        prop_assert_eq!(a.meets(&b), b.meets(&a));
    }
}
