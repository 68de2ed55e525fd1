//! Where a request carries its idempotency key.

use super::wire::UnknownName;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Where a request carries its idempotency key. In records it is one text: the name of a header field
/// alone, as logs always had it, or the kind of place, a colon and the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum KeyPlace {
    /// A header field, by its name in lower case.
    Header(Cow<'static, str>),
    /// A parameter of the query, by its decoded name.
    Query(Cow<'static, str>),
    /// A field of content of the type `application/x-www-form-urlencoded`, by its decoded name.
    Form(Cow<'static, str>),
    /// A member of JSON content, by its pointer (RFC 6901).
    Json(Cow<'static, str>),
}

impl KeyPlace {
    /// Whether content has to be read to find the key.
    #[must_use]
    pub const fn is_in_content(&self) -> bool {
        match self {
            Self::Header(_) | Self::Query(_) => false,
            Self::Form(_) | Self::Json(_) => true,
        }
    }

    /// The path of the field of a request (contract V-2).
    #[must_use]
    pub fn field(&self) -> String {
        match self {
            Self::Header(name) => format!("request.headers.{name}"),
            Self::Query(name) => format!("target.query.{name}"),
            Self::Form(name) => format!("request.body.{name}"),
            Self::Json(pointer) => format!("request.body{pointer}"),
        }
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => f.write_str(name),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Form(name) => write!(f, "form:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

impl FromStr for KeyPlace {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        // The name of a header field has no colon.
        match text.split_once(':') {
            None => Ok(Self::Header(text.to_owned().into())),
            Some(("query", name)) => Ok(Self::Query(name.to_owned().into())),
            Some(("form", name)) => Ok(Self::Form(name.to_owned().into())),
            Some(("json", pointer)) => Ok(Self::Json(pointer.to_owned().into())),
            Some(_) => Err(UnknownName { kind: "place of a key", name: text.to_owned() }),
        }
    }
}

impl From<KeyPlace> for String {
    fn from(place: KeyPlace) -> Self {
        place.to_string()
    }
}

impl TryFrom<String> for KeyPlace {
    type Error = UnknownName;

    fn try_from(text: String) -> Result<Self, UnknownName> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K-2: a record names one place, and older records name header fields.
    #[test]
    fn k_2_places_come_back_from_records() {
        for (place, text) in [
            (KeyPlace::Header("idempotency-key".into()), "idempotency-key"),
            (KeyPlace::Query("requestId".into()), "query:requestId"),
            (KeyPlace::Form("ClientToken".into()), "form:ClientToken"),
            (KeyPlace::Json("/a:b/c".into()), "json:/a:b/c"),
        ] {
            assert_eq!(place.to_string(), text);
            assert_eq!(text.parse(), Ok(place));
        }
        assert!("cookie:x".parse::<KeyPlace>().is_err());
    }
}
