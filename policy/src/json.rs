//! The content of a request as JSON, for conditions on its fields.
//!
//! A service must not be able to see other values than policy has judged. So content is refused that
//! is compressed, is declared as something else, or gives a name twice: readers differ in which of
//! the two values they take (RFC 8259 section 4).

use crate::{Body, Details};
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::OnceCell;
use std::fmt;

/// The content: none, or JSON; or why it can't be judged.
type Read = Result<Option<Value>, &'static str>;

/// Content that is read when a condition first asks for it.
#[derive(Debug, Default)]
pub(crate) struct Content(OnceCell<Read>);

impl Content {
    /// The content of the request.
    pub(crate) fn of(&self, details: &Details<'_>) -> &Read {
        self.0.get_or_init(|| read(details))
    }
}

/// Why content of another type is not judged.
pub(crate) const UNDECLARED: &str = "it is not declared as JSON";

/// The bytes of the content, if all of them are there.
pub(crate) const fn content<'a>(details: &Details<'a>) -> Option<&'a [u8]> {
    match details.body {
        Body::Absent | Body::Whole([]) | Body::Unreadable(_) => None,
        Body::Whole(bytes) => Some(bytes),
    }
}

fn read(details: &Details<'_>) -> Read {
    let bytes = match details.body {
        Body::Absent | Body::Whole([]) => return Ok(None),
        Body::Unreadable(why) => return Err(why),
        Body::Whole(bytes) => bytes,
    };
    let named = |name: &'static str| {
        let is = move |field: &&(&[u8], &[u8])| field.0.eq_ignore_ascii_case(name.as_bytes());
        details.headers.iter().filter(is).map(|(_, value)| value.trim_ascii())
    };
    if named("content-encoding").any(|value| !value.eq_ignore_ascii_case(b"identity")) {
        return Err("it is compressed");
    }
    let mut types = named("content-type");
    let (Some(declared), None) = (types.next(), types.next()) else {
        return Err(UNDECLARED);
    };
    if !is_json(declared) {
        return Err(UNDECLARED);
    }
    let Unique(value) = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() { "it gives a name twice" } else { "it is not JSON" }
    })?;
    Ok(Some(value))
}

/// Whether a media type is JSON in UTF-8.
fn is_json(declared: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(declared) else { return false };
    let text = text.to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let named = parts.next().is_some_and(|media| {
        let structured = media.strip_prefix("application/").is_some_and(|m| m.ends_with("+json"));
        // The protocols of AWS name their version in the type.
        let of_aws = media.starts_with("application/x-amz-json-1.");
        media == "application/json" || structured || of_aws
    });
    named
        && parts.all(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            name != "charset" || ["utf-8", "utf8"].contains(&value.trim_matches('"'))
        })
}

/// JSON whose objects have no name twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue).map(Self)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(member)) = members.next_element()? {
            list.push(member);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Unique(member))) = members.next_entry::<String, Unique>()? {
            if map.insert(name, member).is_some() {
                return Err(de::Error::custom("a name is there twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&str, &str)], body: &[u8], expected: Result<&str, &'static str>) {
        let fields: Vec<_> = headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect();
        let details = Details { query: None, headers: &fields, body: Body::Whole(body) };
        let expected = expected.map(|text| serde_json::from_str(text).unwrap());
        let shown = String::from_utf8_lossy(body);
        assert_eq!(Content::default().of(&details), &expected.map(Some), "{headers:?} {shown}");
    }

    /// V-1: what readers could take for different values is not judged.
    #[test]
    fn v_1_only_plain_json_is_judged() {
        let json = ("content-type", "application/json");
        check(
            &[json],
            br#"{"a":[1,-2,0.5,"x",null,true]}"#,
            Ok(r#"{"a":[1,-2,0.5,"x",null,true]}"#),
        );
        for declared in [
            "application/json; charset=UTF-8",
            "Application/JSON",
            "application/vnd.x+json;v=1",
            "application/x-amz-json-1.1",
        ] {
            check(&[("Content-Type", declared)], b"1", Ok("1"));
        }
        let undeclared = Err("it is not declared as JSON");
        check(&[], b"{}", undeclared);
        check(&[json, json], b"{}", undeclared);
        for declared in [
            "text/json",
            "application/x-www-form-urlencoded",
            "application/json;charset=utf-16",
            "",
        ] {
            check(&[("content-type", declared)], b"{}", undeclared);
        }
        check(&[json, ("Content-Encoding", "gzip")], b"{}", Err("it is compressed"));
        check(&[json, ("Content-Encoding", "identity")], b"{}", Ok("{}"));
        let twice = Err("it gives a name twice");
        check(&[json], br#"{"a":1,"a":2}"#, twice);
        check(&[json], br#"[{"b":{"a":1,"\u0061":2}}]"#, twice);
        for text in ["{", "{}{}", "{'a':1}", "\u{feff}{}", "a=b", &"[".repeat(1000)] {
            check(&[json], text.as_bytes(), Err("it is not JSON"));
        }
        check(&[json], b"\"\xff\"", Err("it is not JSON"));
    }

    #[test]
    fn no_content_is_no_value() {
        for body in [Body::Absent, Body::Whole(b"")] {
            let details = Details { query: None, headers: &[], body };
            assert_eq!(Content::default().of(&details), &Ok(None));
        }
        let unread = Content::default();
        assert_eq!(unread.of(&Details::default()), &Err("it was not read"));
    }
}
