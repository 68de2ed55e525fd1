//! Tests of codes and tokens that are signed, and of what no input may do.

use super::*;

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

/// V-3: every mistake in the fields of a signed request is told at once, by name and where it stands.
#[test]
fn v_3_all_mistakes_of_signed_fields_are_told_where_they_stand() {
    let text = "[[credential]]\nid = \"c\"\nsecret = \"c\"\ninject = \"hmac\"\nsign = \"{signature}\"\n\
                [credential.headers]\nHost = \"{signature}\"\nX-A = \"{nope}\"\n\"A B\" = \"y\"\n\
                X-B = [\"1\", \"2\"]\nX-C = \"\u{e9}\"\nX-D = \"1\"\nx-d = \"2\"\nCookie = \"s\"\nvia = \"s\"\n";
    let found = Snapshot::compile(text, "p", 0).unwrap_err();
    let told: Vec<_> = found.iter().map(Diagnostic::to_string).collect();
    let headers = "`headers` of credential \"c\"";
    let known = told[2].split_once("names {nope}").unwrap().1;
    assert_eq!(
        told,
        [
            "p:5:8: `sign` of credential \"c\": can't hold the signature itself".to_owned(),
            format!("p:7:1: {headers}: host can't carry a secret"),
            format!("p:8:7: {headers}: X-A: names {{nope}}{known}"),
            format!("p:9:1: {headers}: \"A B\" is not the name of a header field"),
            format!("p:10:1: {headers}: X-B is to have one text"),
            format!("p:11:7: {headers}: X-C has a character that a header can't have"),
            format!("p:13:1: {headers}: x-d is there already"),
            format!(
                "p:14:1: {headers}: cookie holds the agent's own cookies as well (write inject = \
                 \"cookie\" and name = \"THE COOKIE\")"
            ),
            format!("p:15:1: {headers}: via can't carry a secret"),
        ]
    );
}

/// What the gateway writes itself, and what holds the agent's own, is no field for a secret.
#[test]
fn neither_via_nor_cookie_is_injected_as_a_header() {
    let header = |name: &str| format!("inject = \"header\"\nname = \"{name}\"");
    refused(&header("Via"), "`name` of credential \"c\": via can't carry a secret");
    refused(
        &header("Cookie"),
        "cookie holds the agent's own cookies as well (write inject = \"cookie\" and name = \"THE COOKIE\")",
    );
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
    let rsa = include_str!("test-rsa.pem");
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
        let edits = inject(ANYWHERE).edits(&Secret::from(secret.as_str()), &request).unwrap();
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
        let recipe = inject(ANYWHERE);
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
            ANYWHERE,
            "inject = \"sigv4\"",
            "inject = \"hmac\"\nsign = \"{body}\"\nheaders = { a = \"{signature}{path}\" }",
            "inject = \"jwt\"\nalgorithm = \"ES256\"",
        ] {
            drop(inject(keys).edits(&Secret::from(secret.as_str()), &view(&target, headers, &content)));
        }
    }
}
