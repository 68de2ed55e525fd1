//! What is hidden, and that the rest stays (contract V-6, I-2).

use super::*;

/// Of a key.
const LINE: &str = "MHcCAQEEIBu8sYbrmE5D1qKqV4Yp0hJ7mW3cXzT9fLr6aPnQvS2doAoGCCqGSM49";

const VAULT: &str = "canary/7f1+x";

fn screen() -> Screen {
    let secrets = [Secret::from(VAULT), Secret::from("robot:s3cr3t-pass")];
    Screen::of(None, &secrets)
}

fn check_content(text: &str, expected: &str) {
    let screened = screen().content(None, text);
    assert_eq!(screened.text, expected);
    assert_eq!(screened.hidden, expected.matches("(hidden: ").count(), "{text}");
}

/// I-2: a secret of the vault is found wherever it stands and however it is written.
#[test]
fn i_2_secrets_of_the_vault_are_hidden_in_every_spelling() {
    check_content("note canary/7f1+x.", "note (hidden: 12 bytes).");
    check_content("note canary%2F7f1%2Bx.", "note (hidden: 16 bytes).");
    check_content("note canary%2f7f1%2bx.", "note (hidden: 16 bytes).");
    check_content("note Y2FuYXJ5LzdmMSt4.", "note (hidden: 16 bytes).");
    check_content("of a pair s3cr3t-pass alone", "of a pair (hidden: 11 bytes) alone");
    let path = screen().target(b"https://chat.example/bot/canary%2F7f1%2Bx/send?to=bob");
    assert_eq!(path.text, "https://chat.example/bot/(hidden: 16 bytes)/send?to=bob");
    let header = screen().header(b"X-Note", b"say canary/7f1+x");
    assert_eq!((header.text.as_str(), header.hidden), ("say (hidden: 12 bytes)", 1));
}

/// V-6: names that say credential hide their values; everything else is exact.
#[test]
fn v_6_values_under_names_of_credentials_are_hidden() {
    check_content(
        r#"{ "user":"bob", "password" : "hun\"ter2", "n": [1, {"apiKey":"k"}], "max_tokens": 64 }"#,
        r#"{ "user":"bob", "password" : "(hidden: 9 bytes)", "n": [1, {"apiKey":"(hidden: 1 bytes)"}], "max_tokens": 64 }"#,
    );
    check_content(
        r#"{"credentials":{"a":["b"]},"pass\u0077ord":12,"token":null}"#,
        r#"{"credentials":{"a":["(hidden: 1 bytes)"]},"pass\u0077ord":(hidden: 2 bytes),"token":null}"#,
    );
    check_content(
        r#"{"body":"{\"client_secret\":\"abc\",\"n\":1}"}"#,
        r#"{"body":"{\"client_secret\":\"(hidden: 3 bytes)\",\"n\":1}"}"#,
    );
    check_content(
        "amount=10&passw%6Frd=a%26b&to=bob",
        "amount=10&passw%6Frd=(hidden: 5 bytes)&to=bob",
    );
    check_content(
        "host: a\npassword: a=b\nport: 1",
        "host: a\npassword: (hidden: 3 bytes)\nport: 1",
    );
    check_content(
        "<a><Password>x y</Password></a>",
        "<a><Password>(hidden: 3 bytes)</Password></a>",
    );
    let parts = |line: &str| {
        let head = "Content-Disposition: form-data; name=\"secret\"";
        format!("--b\r\n{head}\r\n\r\n{line}\r\n--b--")
    };
    let screened =
        screen().content(Some(b"multipart/form-data; boundary=b"), &parts("line\r\nline"));
    assert_eq!(screened.text, parts("(hidden: 10 bytes)"));
    let target = screen().target(b"https://u:pw@h.example/p?a=1&X-Amz-Signature=ab12&b=2#c");
    assert_eq!(
        target.text,
        "https://u:(hidden: 2 bytes)@h.example/p?a=1&X-Amz-Signature=(hidden: 4 bytes)&b=2#c"
    );
    for name in ["Cookie", "authorization", "X-Api-Key", "X-Auth-Token", "X-Vault-Token"] {
        assert_eq!(screen().header(name.as_bytes(), b"abc").text, "(hidden: 3 bytes)", "{name}");
    }
    assert_eq!(screen().header(b"Accept", b"text/plain").text, "text/plain");
}

/// V-6: what has the form of a credential is hidden without a name.
#[test]
fn v_6_forms_of_credentials_are_hidden() {
    check_content("use ghp_abcdefghijklmnop0123 now", "use (hidden: 24 bytes) now");
    check_content("a=Bearer abcdefgh12 b", "a=Bearer (hidden: 10 bytes) b");
    check_content("sk-short and https://h.example:8080/x", "sk-short and https://h.example:8080/x");
    check_content(
        &format!(
            "k\n-----BEGIN EC PRIVATE KEY-----\n{LINE}\nabcd\n-----END EC PRIVATE KEY-----\nz"
        ),
        "k\n-----BEGIN EC PRIVATE KEY-----\n(hidden: 69 bytes)\n-----END EC PRIVATE KEY-----\nz",
    );
    check_content(
        &format!(
            r#"{{"key":"-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{LINE}\n","n":1}}"#
        ),
        r#"{"key":"-----BEGIN PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n(hidden: 64 bytes)\n","n":1}"#,
    );
}

/// V-6: command lines keep what is done and lose what it is done with.
#[test]
fn v_6_command_lines_are_screened() {
    for (command, expected) in [
        ("DB_PASSWORD=abc /opt/deploy v1", "DB_PASSWORD=(hidden: 3 bytes) /opt/deploy v1"),
        ("mysql --password=abc -e 'select 1'", "mysql --password=(hidden: 3 bytes) -e 'select 1'"),
        ("login --token abc --to x", "login --token (hidden: 3 bytes) --to x"),
        ("curl -u a:b http://h/", "curl -u (hidden: 3 bytes) http://h/"),
        ("curl -H 'X-Api-Key: abc' h", "curl -H 'X-Api-Key: (hidden: 3 bytes)' h"),
        ("/opt/deploy v42; echo done", "/opt/deploy v42; echo done"),
    ] {
        assert_eq!(screen().command(command.as_bytes()).text, expected);
    }
}

/// I-2: the digest tells equal values from others, and is none that can be computed without the key.
#[test]
fn i_2_digests_are_keyed() {
    let mark = |key: &[u8], value: &[u8]| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        Screen::of(Some(key), &[]).header(b"cookie", value).text
    };
    assert_eq!(mark(b"k", b"one"), mark(b"k", b"one"));
    assert_ne!(mark(b"k", b"one"), mark(b"k", b"two"));
    assert_ne!(mark(b"k", b"one"), mark(b"other", b"one"));
    // RFC 4231, test case 2.
    assert_eq!(
        mark(b"Jefe", b"what do ya want for nothing?"),
        "(hidden: 28 bytes, hmac 5bdcc146bf60754e)"
    );
}

mod shown;
