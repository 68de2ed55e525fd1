//! Tests of `docs/policy.schema.json`: it has the parser's keys and words, and takes what it takes.

use crate::Snapshot;
use crate::preset::PRESETS;
use serde_json::Value;
use std::collections::BTreeSet;

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../docs/policy.schema.json")).unwrap()
}

fn at<'a>(schema: &'a Value, pointer: &str) -> &'a Value {
    schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the schema"))
}

/// Follows references.
fn resolved<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    match part.get("$ref").and_then(Value::as_str) {
        Some(reference) => resolved(schema, at(schema, reference.trim_start_matches('#'))),
        None => part,
    }
}

/// The part of JSON Schema that the file uses; `pattern` is left to real validators.
fn valid(schema: &Value, part: &Value, value: &Value) -> bool {
    let part = resolved(schema, part);
    let typed = match part.get("type").and_then(Value::as_str) {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("unknown type {other}"),
        None => true,
    };
    let list = |key: &str| part.get(key).and_then(Value::as_array);
    let number = |key: &str| part.get(key).and_then(Value::as_u64);
    let size = value.as_array().map(Vec::len).or(value.as_str().map(str::len)).unwrap_or(0) as u64;
    typed
        && list("enum").is_none_or(|words| words.contains(value))
        && part.get("const").is_none_or(|word| word == value)
        && list("anyOf").is_none_or(|parts| parts.iter().any(|p| valid(schema, p, value)))
        && number("minimum").is_none_or(|least| value.as_u64().is_some_and(|v| v >= least))
        && number("maximum").is_none_or(|most| value.as_u64().is_some_and(|v| v <= most))
        && ["minItems", "minLength"].iter().all(|k| number(k).is_none_or(|least| size >= least))
        && number("maxLength").is_none_or(|most| size <= most)
        && list("required")
            .is_none_or(|keys| keys.iter().all(|k| value.get(k.as_str().unwrap()).is_some()))
        && value.as_array().is_none_or(|members| {
            part.get("items").is_none_or(|p| members.iter().all(|m| valid(schema, p, m)))
        })
        && value.as_object().is_none_or(|members| {
            members.iter().all(|(key, member)| {
                let known = part.get("properties").and_then(|p| p.get(key));
                match known.or(part.get("additionalProperties")) {
                    Some(Value::Bool(allowed)) => *allowed,
                    Some(part) => valid(schema, part, member),
                    None => true,
                }
            })
        })
}

fn takes(text: &str) -> bool {
    let schema = schema();
    let value: Value = toml::from_str(text).unwrap_or_else(|e| panic!("{text}\n{e}"));
    valid(&schema, &schema, &value)
}

/// Each table of the parser with its place in the schema.
#[test]
fn the_schema_has_the_keys_of_the_parser() {
    let limits: Vec<_> = super::terms::HTTP_LIMITS.to_vec();
    let tables: [(&str, &[&str]); 27] = [
        ("", super::ROOT),
        ("/properties/defaults", super::DEFAULTS),
        ("/properties/approvals", super::approvals::KNOWN),
        ("/$defs/budget", super::budget::KNOWN),
        ("/$defs/credential", super::credential::KNOWN),
        ("/$defs/hashicorp", super::token::HASHICORP),
        ("/$defs/route", super::http::KNOWN),
        ("/$defs/route/properties/match", super::http::MATCH),
        ("/$defs/route/properties/idempotency", super::key::IDEMPOTENCY),
        ("/$defs/route/properties/reconcile", super::repeat::RECONCILE),
        ("/$defs/shows", super::repeat::SHOWS),
        ("/$defs/route/properties/job/anyOf/1", super::repeat::JOB),
        ("/$defs/route/properties/batch", super::repeat::BATCH),
        ("/$defs/ssh", super::ssh::KNOWN),
        ("/$defs/ssh/properties/match", super::ssh::MATCH),
        ("/$defs/parent", super::parent::KNOWN),
        ("/$defs/trust", super::TRUST),
        ("/$defs/program", super::credential::PROGRAM),
        ("/$defs/result", super::terms::RESULT),
        ("/$defs/limits", &limits),
        ("/$defs/ssh_limits", super::terms::SSH_LIMITS),
        ("/$defs/route/properties/retry", super::repeat::RETRY),
        ("/$defs/ssh/properties/retry", super::command::RETRY),
        ("/$defs/ssh/properties/release", super::command::RELEASE),
        ("/$defs/ssh/properties/compare", super::command::COMPARE),
        ("/$defs/ssh/properties/reconcile", super::command::RECONCILE),
        ("/$defs/command_shows", super::command::SHOWS),
    ];
    let schema = schema();
    for (pointer, known) in tables {
        let part = at(&schema, pointer);
        let keys: BTreeSet<_> =
            part["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, known.iter().copied().collect(), "{pointer}");
        assert_eq!(part["additionalProperties"], Value::Bool(false), "{pointer}");
    }
    let modes = at(&schema, "/$defs/credential/properties/inject/enum").as_array().unwrap();
    let known = super::credential::MODES.iter().chain(&["ssh_key"]);
    let known: BTreeSet<_> = known.copied().collect();
    assert_eq!(modes.iter().filter_map(Value::as_str).collect::<BTreeSet<_>>(), known);
    let presets: Vec<_> = PRESETS.iter().map(|p| Value::from(p.name)).collect();
    assert_eq!(at(&schema, "/$defs/preset/enum").as_array(), Some(&presets));
}

/// Every word of an enumeration is one that the parser takes, and another is one that it refuses.
#[test]
fn the_schema_has_the_words_of_the_parser() {
    let route = "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\" }\n";
    let ssh = "[[ssh]]\nname = \"r\"\nmatch = { host = \"h\" }\n";
    let schema = schema();
    for (pointer, before, key) in [
        ("/properties/defaults/properties/egress", "[defaults]\n", "egress"),
        ("/properties/defaults/properties/private_addresses", "[defaults]\n", "private_addresses"),
        ("/$defs/route/properties/approval", route, "approval"),
        ("/$defs/route/properties/agent_header", route, "agent_header"),
        ("/$defs/route/properties/private_addresses", route, "private_addresses"),
        ("/$defs/ssh/properties/shell", ssh, "shell"),
    ] {
        let words = at(&schema, pointer)["enum"].as_array().unwrap();
        for word in words {
            let text = format!("{before}{key} = {word}\n");
            assert!(Snapshot::compile(&text, "p", 0).is_ok() && takes(&text), "{text}");
        }
        let text = format!("{before}{key} = \"another\"\n");
        assert!(Snapshot::compile(&text, "p", 0).is_err() && !takes(&text), "{text}");
    }
}

#[test]
fn the_schema_takes_every_example_and_no_misspelling() {
    let pages = [include_str!("../../../docs/policy.md"), include_str!("../../../docs/presets.md")];
    let blocks = pages.iter().flat_map(|page| page.split("```toml\n").skip(1));
    let mut texts: Vec<&str> = blocks.filter_map(|part| part.split("```").next()).collect();
    assert!(texts.len() >= 6);
    texts.push(include_str!("../example.toml"));
    texts.push(crate::STARTER);
    texts.push("[[route]]\nname = \"r\"\npreset = \"openai\"\njob = \"none\"\n");
    for text in texts {
        assert!(takes(text), "{text}");
    }
    for text in [
        "[default]\n",
        "[[route]]\nname = \"r\"\n",
        "[[route]]\nmatch = { host = \"h.test\" }\n",
        "[[route]]\nname = \"r\"\nmatch = { hosts = \"h.test\" }\n",
        "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\", methods = [] }\n",
        "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\", port = 0 }\n",
        "[[route]]\nname = \"r\"\nmatch = { host = \"h.test\", query = { a = 1 } }\n",
        "[[route]]\nname = \"r\"\npreset = \"strip\"\n",
        "[[route]]\nname = \"r\"\npreset = \"openai\"\njob = \"off\"\n",
        "[[credential]]\nid = \"c\"\nsecret = \"s\"\n",
        "[[ssh]]\nname = \"s\"\n",
        "[[trust]]\nhost = \"h\"\n",
    ] {
        assert!(!takes(text) && Snapshot::compile(text, "p", 0).is_err(), "{text}");
    }
}
