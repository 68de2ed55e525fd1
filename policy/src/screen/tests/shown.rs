//! What is decided on is shown, whatever stands around it (contract V-6).

use super::{LINE, check_content, screen};
use proptest::prelude::*;
use serde_json::Value;

const JSON: &[u8] = b"application/json";
const FORM: &[u8] = b"application/x-www-form-urlencoded";
const MARKER: &str = "amount-1000000";

fn check_typed(content_type: &[u8], text: &str, expected: &str) {
    assert_eq!(screen().content(Some(content_type), text).text, expected);
}

fn check_command(command: &str, expected: &str) {
    assert_eq!(screen().command(command.as_bytes()).text, expected);
}

/// V-6: a text in a member, a parameter or an element hides nothing behind its own end.
#[test]
fn v_6_content_hides_one_value_at_most() {
    for (text, expected) in [
        (
            r#"{"x":"token=1","amount":1000000,"y":2}"#,
            r#"{"x":"token=(hidden: 1 bytes)","amount":1000000,"y":2}"#,
        ),
        (
            r#"{"password":{"amount":100000,"to":"evil"},"x":1}"#,
            r#"{"password":{"amount":100000,"to":"(hidden: 4 bytes)"},"x":1}"#,
        ),
        (
            r#"{"q":"Authorization: Basic","amount":999999999}"#,
            r#"{"q":"Authorization: (hidden: 5 bytes)","amount":999999999}"#,
        ),
        (r#"{"secret":["amount",5]}"#, r#"{"secret":["(hidden: 6 bytes)",5]}"#),
        ("{'password': 'x','amount':5}", "{'password': '(hidden: 1 bytes)','amount':5}"),
        (
            r#"{"a":"\"password\":\"","amount":100000,"b":"z"}"#,
            r#"{"a":"\"password\":\"","amount":100000,"b":"z"}"#,
        ),
        ("{\"pin\":1}\n{\"n\":2}\n", "{\"pin\":(hidden: 1 bytes)}\n{\"n\":2}\n"),
        (r#"{"q":"password=\u0061b\ud83d\ude00 c"}"#, r#"{"q":"password=(hidden: 19 bytes) c"}"#),
    ] {
        check_content(text, expected);
        check_typed(JSON, text, expected);
    }
    for text in [
        r#"{"a":"-----BEGIN PRIVATE KEY-----","amount":999999,"to":"evil"}"#,
        r#"{"a":"-----BEGIN PRIVATE KEY-----","amount":999999,"b":"-----END PRIVATE KEY-----"}"#,
        r#"{"a":"<password>","amount":100000,"b":"</password>"}"#,
        r#"{"u":"http://a:b","amount":1000000,"to":"evil@x"}"#,
        r#"{"u":"http://a:b/","amount":1000000,"to":"evil@x"}"#,
        r#"{"x":"Bearer","amount":"1000000"}"#,
        r#"{"x":"api_key:","amount":1000000}"#,
        r#"{"note":"the basic implementation by token 1000000usd","tokenAmount":"1000000"}"#,
        r#"{"data":"eyJhbW91bnQiOjEwMDAwMDAsInRvIjoiZXZpbCJ9"}"#,
        r#"{"script":"-----BEGIN PRIVATE KEY-----\nreboot\n-----END PRIVATE KEY-----"}"#,
        "sk-/amount=1000000/to=evil",
        "<r><!-- <password> --><amount>5</amount><to>evil</to><!-- </password> --></r>",
        "<r><password/><amount>5</amount><to>evil</to></r>",
    ] {
        check_content(text, text);
        check_typed(JSON, text, text);
    }
}

/// V-6: what a reader of forms finds to be a parameter of its own is shown, whatever the content looks
/// like to others.
#[test]
fn v_6_parameters_of_forms_are_apart() {
    for (text, expected) in [
        ("password=1&amount=5&to=evil", "password=(hidden: 1 bytes)&amount=5&to=evil"),
        ("a=1&b[password]=%26amount%3D5&c=2", "a=1&b[password]=(hidden: 13 bytes)&c=2"),
        ("a=password%3Dx&amount=5", "a=password%3D(hidden: 1 bytes)&amount=5"),
        ("amount=5;password=x,y;to=evil", "amount=5;password=(hidden: 3 bytes);to=evil"),
        ("a=Bearer+abcdefgh12&b=1", "a=Bearer+(hidden: 10 bytes)&b=1"),
        (
            r#"{"password":"x&amount=5&to=evil&y="}"#,
            r#"{"password":"(hidden: 1 bytes)&amount=5&to=evil&y="}"#,
        ),
    ] {
        check_typed(FORM, text, expected);
    }
    let text = r#"{"password":"x&amount=5"}"#;
    check_content(text, r#"{"password":"(hidden: 1 bytes)&amount=5"}"#);
    check_typed(JSON, text, r#"{"password":"(hidden: 10 bytes)"}"#);
    check_typed(FORM, r#"{"password":"x y"}"#, r#"{"password":"(hidden: 3 bytes)"}"#);
    for target in ["/x?u=http://a:b&amount=100000&to=evil@x", "/transfer/Bearer/amount=5"] {
        assert_eq!(screen().target(target.as_bytes()).text, target);
    }
    let line = screen().target(b"POST /x?sig=ab HTTP/1.1").text;
    assert_eq!(line, "POST /x?sig=(hidden: 2 bytes) HTTP/1.1");
}

/// V-6: of parts and elements as well, the innermost with a name is what is hidden.
#[test]
fn v_6_parts_and_elements_are_apart() {
    let part = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; {name}\r\n\r\n{value}\r\n")
    };
    let content = |password: &str| {
        let parts = [
            part("name=\"password\"", password),
            part("name=\"amount\"; name=\"token\"", "5"),
            part("name=\"j\"", r#"{"pin":"1","to":"evil"}"#),
        ];
        parts.concat() + "--b--\r\n"
    };
    let sent = content("x\r\n--c\r\nname: y");
    let shown =
        content("(hidden: 15 bytes)").replace(r#""pin":"1""#, r#""pin":"(hidden: 1 bytes)""#);
    check_typed(b"multipart/form-data; boundary=b", &sent, &shown);
    let shown = shown.replace("(hidden: 15 bytes)", "(hidden: 1 bytes)\r\n--c\r\nname: y");
    check_typed(b"multipart/form-data; boundary=b; boundary=c", &sent, &shown);
    check_typed(
        b"text/plain",
        &content("x y"),
        &content("x y").replace(r#""1""#, r#""(hidden: 1 bytes)""#),
    );
    check_content(
        "<r><password>x<amount>5</amount></password><t token='y' to=\"z\">1</t></r>",
        "<r><password>(hidden: 1 bytes)<amount>5</amount></password><t token='(hidden: 1 bytes)' to=\"z\">1</t></r>",
    );
    check_typed(
        b"application/xml",
        "<r><password>a&amp;b</password><pin><![CDATA[x]]></pin><to>a&amp;b</to></r>",
        "<r><password>(hidden: 7 bytes)</password><pin><![CDATA[(hidden: 1 bytes)]]></pin><to>a&amp;b</to></r>",
    );
}

/// V-6: no command hides behind a name, a quote or a substitution.
#[test]
fn v_6_commands_are_shown() {
    for command in [
        "echo -----BEGIN PRIVATE KEY-----; rm -rf /",
        "echo '{\"token\":\"'; rm -rf /; echo '\"}'",
        "echo token=$(rm -rf /)",
        "API_KEY=`rm -rf /` ls",
        "mysql --password $(rm -rf /)",
        "mysql --password \"$(rm -rf /)\"",
        "mysql --password=\"$PW\" --token $PW",
        "mysql --password; rm -rf /",
        "curl http://a:b'';rm\t-rf\t/;echo\tx@y",
        "echo http://a:b;rm${IFS}-rf${IFS}/;echo${IFS}x@y",
        "echo \"<password>\";rm -rf /;echo \"</password>\"",
        "cat token /etc/cron.d/job1; echo Bearer /etc/cron.d/job1",
        "sudo -u root reboot; docker run -u 0:0 x; docker login --password-stdin host",
        "token= rm -rf /",
        "cat <<'--token'\n'--token' '\nrm -rf /\n'",
    ] {
        check_command(command, command);
    }
    for (command, expected) in [
        ("echo token=1;rm -rf /", "echo token=(hidden: 1 bytes);rm -rf /"),
        ("echo token=\"a b\"; rm -rf /", "echo token=\"(hidden: 1 bytes) b\"; rm -rf /"),
        (
            "mysql --password=x;rm${IFS}-rf${IFS}/",
            "mysql --password=(hidden: 1 bytes);rm${IFS}-rf${IFS}/",
        ),
        ("mysql --password='x;|$y' -e z", "mysql --password='(hidden: 5 bytes)' -e z"),
        ("mysql --password \"x; rm -rf /\"", "mysql --password \"(hidden: 1 bytes); rm -rf /\""),
        ("PASSWORD=x\\;rm\\ -rf\\ /", "PASSWORD=(hidden: 1 bytes)\\;rm\\ -rf\\ /"),
        ("PASSWORD=a\"b\"'c' ls", "PASSWORD=(hidden: 6 bytes)' ls"),
        (
            "curl -H \"Authorization: x; rm -rf /\"",
            "curl -H \"Authorization: (hidden: 1 bytes); rm -rf /\"",
        ),
        (
            "curl -H 'Authorization: Bearer xyz'",
            "curl -H 'Authorization: Bearer (hidden: 3 bytes)'",
        ),
        ("sh -c 'token=1\nrm -rf /'", "sh -c 'token=(hidden: 1 bytes)\nrm -rf /'"),
        ("X_TOKEN=1|rm -rf /", "X_TOKEN=(hidden: 1 bytes)|rm -rf /"),
        (
            "D=$(pwd) login --token 'abc' --password=a'; rm",
            "D=$(pwd) login --token '(hidden: 3 bytes)' --password=(hidden: 1 bytes)'; rm",
        ),
        ("ls # '\ntoken='a' ; rm '", "ls # '\ntoken='(hidden: 1 bytes)' ; rm '"),
        (
            "curl -d '{\"password\":\"ab\",\"n\":1}' h",
            "curl -d '{\"password\":\"(hidden: 2 bytes)\",\"n\":1}' h",
        ),
    ] {
        check_command(command, expected);
    }
    let key = format!("cat >k <<E\n-----BEGIN PRIVATE KEY-----\n{LINE}\nrm -rf /\nE");
    check_command(&key, &key.replace(LINE, "(hidden: 64 bytes)"));
}

/// What an agent may write to hide what follows.
fn decoys() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "token=",
        "password: ",
        "\"token\":\"",
        "-----BEGIN PRIVATE KEY-----\n",
        "-----END PRIVATE KEY-----",
        "http://a:b",
        "evil@x",
        "<password>",
        "</password>",
        "Bearer ",
        "Authorization: Basic ",
        "--b\r\nContent-Disposition: form-data; name=\"secret\"\r\n\r\n",
        "sk-",
        "ghp_",
        "eyJ",
        "&password=",
        "--password ",
        "'",
        "\"",
        "\\",
        "\u{1f600}",
        "{",
        "x",
    ]);
    prop::collection::vec(odd, 0..5).prop_map(|all| all.concat())
}

fn contents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        decoys().prop_map(Value::String),
        any::<u32>().prop_map(Value::from),
        Just(Value::Null)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let name = prop_oneof![decoys(), Just("password".to_owned()), Just("n".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((name, inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// V-6: in JSON, a member whose name says nothing is shown, and one whose name says credential is
    /// not, whatever is around them.
    #[test]
    fn v_6_any_json_shows_and_hides_by_its_members(
        before in contents(), after in contents(), secret in "[a-z&; \"'\\\\é\n]{0,8}",
    ) {
        let secret = format!("hush{secret}hush");
        let write = |value: &Value| serde_json::to_string(value);
        let text = format!(
            "{{\"a\":{},\"to\":\"{MARKER}\",\"n\":1234567,\"client_secret\":{},\"b\":{}}}",
            write(&before)?, write(&Value::from(secret))?, write(&after)?,
        );
        let shown = screen().content(Some(JSON), &text).text;
        let parts = format!(",\"to\":\"{MARKER}\",\"n\":1234567,\"client_secret\":\"(hidden: ");
        prop_assert!(shown.contains(&parts), "{}", shown);
        prop_assert!(!shown.contains("hush"), "{}", shown);
        let untyped = screen().content(None, &text).text;
        prop_assert!(untyped.contains(MARKER) && untyped.contains("1234567"), "{}", untyped);
    }

    /// V-6: the same of forms, parts and XML.
    #[test]
    fn v_6_any_form_shows_and_hides_by_its_parameters(before in decoys(), after in decoys()) {
        let encode = |text: &str| {
            let mut out = Vec::new();
            crate::recipe::encode::push(&mut out, text.as_bytes());
            String::from_utf8(out).unwrap_or_default()
        };
        let (a, b) = (encode(&before), encode(&after));
        let form = format!("a={a}&to={MARKER}&token=hush&b={b}");
        for shown in [
            screen().content(Some(FORM), &form).text,
            screen().target(format!("https://h.example/p?{form}").as_bytes()).text,
        ] {
            prop_assert!(shown.contains(&format!("&to={MARKER}&token=(hidden: 4 bytes)&b=")), "{}", shown);
        }
        let escape = |text: &str| quick_xml::escape::escape(text).into_owned();
        let (a, b) = (escape(&before), escape(&after));
        let xml = format!("<r x=\"{a}\"><a>{a}</a><to>{MARKER}</to><pin>hush</pin><b>{b}</b></r>");
        let shown = screen().content(Some(b"text/xml"), &xml).text;
        prop_assert!(shown.contains(&format!("<to>{MARKER}</to><pin>(hidden: 4 bytes)</pin>")), "{}", shown);
        let head = "\r\n--q\r\nContent-Disposition: form-data; name";
        let parts = format!("--q\r\n\r\n{before}{head}=to\r\n\r\n{MARKER}{head}=pin\r\n\r\nhush{head}=b\r\n\r\n{after}");
        let shown = screen().content(Some(b"multipart/form-data; boundary=\"q\""), &parts).text;
        prop_assert!(shown.contains(MARKER) && !shown.contains("hush"), "{}", shown);
    }

    /// V-6: a command that stands by itself is shown, whatever text is in front of it and behind it.
    #[test]
    fn v_6_any_command_is_shown(before in decoys(), after in decoys()) {
        let command = format!("{before} ; rm -rf /{MARKER} ; {after}");
        let shown = screen().command(command.as_bytes()).text;
        prop_assert!(shown.contains("rm ") && shown.contains("-rf "), "{}", shown);
        let text = screen().content(Some(b"text/plain"), &command).text;
        prop_assert!(text.contains("rm ") && text.contains("-rf "), "{}", text);
    }
}
