//! The published test suite of Signature Version 4, whole: what of it applies is run, and what does
//! not stands here with the reason. Each vector is named as in the suite; those that differ from
//! another one in names only share its row.
//!
//! Of an agent's fields only `host`, `content-type` and AWS's own are signed: others may change on their
//! way. So the five vectors about `My-Header1` call it `X-Amz-Header1` here, and their signatures are
//! those of the suite's canonical requests under that name, made by another implementation.

use super::*;

/// The directories of the suite (`v4`), with those of its first edition that have another request.
const SUITE: &str = "double-encode-path double-url-encode get-header-key-duplicate \
    get-header-value-multiline get-header-value-order get-header-value-trim get-relative-normalized \
    get-relative-relative-normalized get-relative-relative-unnormalized get-relative-unnormalized \
    get-slash-dot-slash-normalized get-slash-dot-slash-unnormalized get-slash-normalized \
    get-slash-pointless-dot-normalized get-slash-pointless-dot-unnormalized get-slash-unnormalized \
    get-slashes-normalized get-slashes-unnormalized get-space-normalized get-space-unnormalized \
    get-special-character get-unreserved get-utf8 get-vanilla get-vanilla-empty-query-key \
    get-vanilla-query get-vanilla-query-order-encoded get-vanilla-query-order-key \
    get-vanilla-query-order-key-case get-vanilla-query-order-value get-vanilla-query-unreserved \
    get-vanilla-utf8-query get-vanilla-with-session-token post-header-key-case post-header-key-sort \
    post-header-value-case post-sts-header-after post-sts-header-before post-vanilla \
    post-vanilla-empty-query-value post-vanilla-query post-x-www-form-urlencoded \
    post-x-www-form-urlencoded-parameters";

/// Vectors that say nothing of this signer.
const NOT_APPLICABLE: &[(&str, &str)] = &[
    (
        "get-header-value-multiline",
        "a folded line is refused before it is signed (RFC 9112 section 5.2)",
    ),
    ("get-relative-unnormalized", UNNORMALIZED),
    ("get-relative-relative-unnormalized", UNNORMALIZED),
    ("get-slash-dot-slash-unnormalized", UNNORMALIZED),
    ("get-slash-pointless-dot-unnormalized", UNNORMALIZED),
    ("get-slash-unnormalized", UNNORMALIZED),
    ("get-slashes-unnormalized", UNNORMALIZED),
    ("double-encode-path", ENCODED),
    ("double-url-encode", ENCODED),
    (
        "post-sts-header-after",
        "a token that is added behind the signature: here it is always signed",
    ),
];
const UNNORMALIZED: &str =
    "paths are signed as they are for S3 only, whose name is not the vector's";
const ENCODED: &str = "what a path means that was encoded before: the client's bytes are what is sent here, \
                       and `what_reaches_the_origin_is_signed_as_it_is` has them";

type Fields = &'static [(&'static [u8], &'static [u8])];

struct Vector {
    names: &'static str,
    method: &'static str,
    target: &'static str,
    fields: Fields,
    content: &'static [u8],
    token: Option<&'static str>,
    signature: &'static str,
}

const fn get(names: &'static str, target: &'static str, signature: &'static str) -> Vector {
    Vector { names, method: "GET", target, fields: &[], content: b"", token: None, signature }
}

const fn post(names: &'static str, fields: Fields, signature: &'static str) -> Vector {
    Vector { method: "POST", fields, ..get(names, "/", signature) }
}

const UNRESERVED: &str = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const FORM: &[u8] = b"application/x-www-form-urlencoded";
const STS: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

fn vectors() -> Vec<Vector> {
    let root = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31";
    let space = "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741";
    let unreserved: &str = Box::leak(format!("/{UNRESERVED}").into_boxed_str());
    let unreserved_query: &str = Box::leak(format!("/?{UNRESERVED}={UNRESERVED}").into_boxed_str());
    let mut all = vec![
        get("get-vanilla get-vanilla-query", "/", root),
        get("get-relative-normalized", "/example/..", root),
        get("get-relative-relative-normalized", "/example1/example2/../..", root),
        get("get-slash-normalized", "//", root),
        get("get-slash-dot-slash-normalized", "/./", root),
        get(
            "get-slash-pointless-dot-normalized",
            "/./example",
            "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5",
        ),
        get(
            "get-slashes-normalized",
            "//example//",
            "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        ),
        get("get-space-normalized get-space-unnormalized", "/example space/", space),
        get(
            "get-special-character",
            "/example/$delete",
            "a853c9b21b528b19643d00910d35b83a10c366a10833ceefb45edd6c80e40f27",
        ),
        get(
            "get-unreserved",
            unreserved,
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        get(
            "get-utf8",
            "/\u{1234}",
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
    ];
    all.extend(queries(unreserved_query));
    all.extend(fields());
    all.extend(posts());
    all
}

fn queries(unreserved: &'static str) -> Vec<Vector> {
    vec![
        get(
            "get-vanilla-empty-query-key",
            "/?Param1=value1",
            "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        ),
        get(
            "get-vanilla-query-order-key-case",
            "/?Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        get(
            "get-vanilla-query-order-key",
            "/?Param1=value2&Param1=Value1",
            "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1",
        ),
        get(
            "get-vanilla-query-order-value",
            "/?Param1=value2&Param1=value1",
            "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694",
        ),
        get(
            "get-vanilla-query-order-encoded",
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        get(
            "get-vanilla-query-unreserved",
            unreserved,
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        ),
        get(
            "get-vanilla-utf8-query",
            "/?\u{1234}=bar",
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        Vector {
            target: "/?Param1=value1",
            ..post(
                "post-vanilla-query post-vanilla-empty-query-value",
                &[],
                "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
            )
        },
    ]
}

fn fields() -> Vec<Vector> {
    vec![
        Vector {
            fields: &[
                (b"X-Amz-Header1", b"value2"),
                (b"X-Amz-Header1", b"value2"),
                (b"X-Amz-Header1", b"value1"),
            ],
            ..get(
                "get-header-key-duplicate",
                "/",
                "fd5db56c277fe7e88d87b0fa36e6b7c5f7d619e01a98c4447a31c0068aaf5f65",
            )
        },
        Vector {
            fields: &[
                (b"X-Amz-Header1", b"value4"),
                (b"X-Amz-Header1", b"value1"),
                (b"X-Amz-Header1", b"value3"),
                (b"X-Amz-Header1", b"value2"),
            ],
            ..get(
                "get-header-value-order",
                "/",
                "ce07c5b65dca5be8e7e3e3030967801c0026103bd4a20f3090020a63af84916c",
            )
        },
        Vector {
            fields: &[(b"X-Amz-Header1", b" value1"), (b"X-Amz-Header2", b" \"a   b   c\"")],
            ..get(
                "get-header-value-trim",
                "/",
                "1724beda9d6811e1b07350afb978b9f44ec239c475033c20681b3062fabaa550",
            )
        },
        Vector {
            token: Some("6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"),
            ..get(
                "get-vanilla-with-session-token",
                "/",
                "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
            )
        },
    ]
}

fn posts() -> Vec<Vector> {
    vec![
        post(
            "post-vanilla post-header-key-case",
            &[],
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        post(
            "post-header-key-sort",
            &[(b"X-Amz-Header1", b"value1")],
            "db993d7c23836472a97e9b3f3cd70a12eb0387e2ad5599be2255331cd5917118",
        ),
        post(
            "post-header-value-case",
            &[(b"X-Amz-Header1", b"VALUE1")],
            "a78fb22d06b31e1784899d08eb5debe9b8498fa7a2df646016ac84826b2d45c3",
        ),
        Vector {
            token: Some(STS),
            ..post(
                "post-sts-header-before",
                &[],
                "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
            )
        },
        Vector {
            content: b"Param1=value1",
            ..post(
                "post-x-www-form-urlencoded",
                &[(b"Content-Type", FORM)],
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            )
        },
        Vector {
            content: b"Param1=value1",
            ..post(
                "post-x-www-form-urlencoded-parameters",
                &[(b"Content-Type", b"application/x-www-form-urlencoded; charset=utf8")],
                "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe",
            )
        },
    ]
}

/// I-2: every vector of the published suite that applies gives its signature.
#[test]
fn i_2_the_published_vectors_are_signed() {
    let keys = "inject = \"sigv4\"\nregion = \"us-east-1\"\nservice = \"service\"";
    let mut wrong = Vec::new();
    for vector in vectors() {
        let Vector { names, method, target, fields, content, token, signature } = vector;
        let token = token.map(|token| format!(":{token}")).unwrap_or_default();
        let secret = format!("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY{token}");
        let request = View { method, ..view(target, fields, content) };
        let edits = inject(keys).edits(&Secret::from(secret.as_str()), &request).unwrap();
        let found = field(&edits, "authorization").unwrap();
        if !found.ends_with(&format!(", Signature={signature}")) {
            wrong.push(format!("{names}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No vector of the suite is left out without a reason.
#[test]
fn every_vector_of_the_suite_is_accounted_for() {
    let run: Vec<&str> = vectors().iter().flat_map(|v| v.names.split(' ')).collect();
    let without: Vec<&str> = NOT_APPLICABLE.iter().map(|(name, _)| *name).collect();
    let mut told = [run, without].concat();
    told.sort_unstable();
    assert_eq!(told, SUITE.split_whitespace().collect::<Vec<_>>());
    assert!(NOT_APPLICABLE.iter().all(|(_, reason)| reason.len() > 20));
}
