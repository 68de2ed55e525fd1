//! RFC 9651: the HTTP working group's vectors through the parser and the printer that our fields go
//! through.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use serde_json::{Value, json};
use sfv::{
    BareItem, Dictionary, FieldType as _, InnerList, Item, List, ListEntry, Parameters, Parser,
};
use std::path::{Path, PathBuf};

fn vectors() -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors/structured-fields");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let vectors: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for vector in vectors {
            let name = vector["name"].as_str().unwrap();
            let id = format!("{}: {name}", file.file_name().unwrap().to_string_lossy());
            all.push((id, vector));
        }
    }
    all
}

/// RFC 4648 section 6, which the vectors use for bytes.
fn base32(bytes: &[u8]) -> String {
    let mut out = String::new();
    for group in bytes.chunks(5) {
        let mut padded = [0; 8];
        padded[3..3 + group.len()].copy_from_slice(group);
        let bits = u64::from_be_bytes(padded);
        let letters = (group.len() * 8).div_ceil(5);
        for n in 0..8 {
            let index = usize::try_from(bits >> (35 - 5 * n) & 31).unwrap();
            let letter = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[index];
            out.push(if n < letters { char::from(letter) } else { '=' });
        }
    }
    out
}

fn bare(item: &BareItem) -> Value {
    let typed = |kind: &str, value: Value| json!({ "__type": kind, "value": value });
    match item {
        BareItem::Decimal(number) => json!(number.to_string().parse::<f64>().unwrap()),
        BareItem::Integer(number) => json!(i64::from(*number)),
        BareItem::String(text) => json!(text.as_str()),
        BareItem::ByteSequence(bytes) => typed("binary", json!(base32(bytes))),
        BareItem::Boolean(is) => json!(is),
        BareItem::Token(token) => typed("token", json!(token.as_str())),
        BareItem::Date(date) => typed("date", json!(i64::from(date.unix_seconds()))),
        BareItem::DisplayString(text) => typed("displaystring", json!(text)),
    }
}

fn params(params: &Parameters) -> Value {
    params.iter().map(|(key, value)| json!([key.as_str(), bare(value)])).collect()
}

fn item(item: &Item) -> Value {
    json!([bare(&item.bare_item), params(&item.params)])
}

fn entry(entry: &ListEntry) -> Value {
    match entry {
        ListEntry::Item(inner) => item(inner),
        ListEntry::InnerList(InnerList { items, params: own }) => {
            json!([items.iter().map(item).collect::<Value>(), params(own)])
        }
    }
}

/// What a field parses to, in the vectors' form, and how it is printed.
fn parse(kind: &str, field: &str) -> Result<(Value, Option<String>), sfv::Error> {
    let parser = Parser::new(field);
    Ok(match kind {
        "item" => {
            let parsed = parser.parse::<Item>()?;
            (item(&parsed), Some(parsed.serialize()))
        }
        "list" => {
            let parsed = parser.parse::<List>()?;
            (parsed.iter().map(entry).collect(), parsed.serialize())
        }
        "dictionary" => {
            let parsed = parser.parse::<Dictionary>()?;
            let members = parsed.iter().map(|(key, value)| json!([key.as_str(), entry(value)]));
            (members.collect(), parsed.serialize())
        }
        other => panic!("a field of kind {other}"),
    })
}

/// Numbers compare by value: the vectors write 1.0 where JSON may give 1.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (a, b) => a == b,
    }
}

/// E-4, RFC 9651 section 4: parsing fails, or gives what it should and prints in canonical form.
#[test]
fn e_4_structured_fields_parse_and_print_by_the_vectors() {
    let vectors = vectors();
    assert!(vectors.len() > 1500, "only {} vectors", vectors.len());
    for (id, vector) in vectors {
        let lines: Vec<&str> =
            vector["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        let parsed = parse(vector["header_type"].as_str().unwrap(), &lines.join(", "));
        let Ok((value, printed)) = parsed else {
            assert!(vector["must_fail"] == true || vector["can_fail"] == true, "{id}: refused");
            continue;
        };
        assert_ne!(vector["must_fail"], true, "{id}: parsed as {value}");
        assert!(equal(&value, &vector["expected"]), "{id}: {value}");
        let canonical = vector.get("canonical").unwrap_or(&vector["raw"]).as_array().unwrap();
        let canonical = canonical.first().and_then(Value::as_str);
        assert_eq!(printed.as_deref(), canonical, "{id}");
    }
}

/// E-4: our own readers accept nothing that the grammar refuses.
#[test]
fn e_4_our_readers_are_as_strict_as_the_grammar() {
    for (id, vector) in vectors().iter().filter(|(_, vector)| vector["must_fail"] == true) {
        let field = vector["raw"][0].as_str().unwrap_or_default();
        if vector["raw"].as_array().is_some_and(|lines| lines.len() > 1) {
            continue;
        }
        match vector["header_type"].as_str().unwrap() {
            "item" => assert!(conformance::fields::outcome(field).is_err(), "{id}"),
            "list" => assert!(conformance::fields::proxy_status(field).is_err(), "{id}"),
            _ => {}
        }
    }
}

/// RFC 9209 section 2.3: the registry has each error type once.
#[test]
fn error_types_are_registered_once() {
    let mut names: Vec<&str> =
        conformance::fields::ERROR_TYPES.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 32);
}
