//! The two response fields that every answer carries (contract E-4), by the structured-field rules
//! of RFC 9651.

use journal::contract::{InvocationId, Verdict};
use sfv::{ItemSerializer, KeyRef, ListSerializer, StringRef, TokenRef, key_ref, token_ref};

/// The name of this hop in `Proxy-Status` and `Via`.
pub const PROXY_NAME: &str = "affiant";

/// What stands in one `Proxy-Status` member of ours (RFC 9209), beside the proxy's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status<'a> {
    /// The error type token.
    pub error: Option<&'a str>,
    /// The status that the origin sent.
    pub received_status: Option<u16>,
    /// The hop that the broker asked, `host:port`.
    pub next_hop: Option<&'a str>,
    /// One sentence; what is not printable ASCII is left out.
    pub details: Option<&'a str>,
    /// Parameters of the error type.
    pub extra: &'a [Extra],
    /// Members of the hops before this one, the nearest to the origin first. Well-formed already.
    pub earlier: Option<&'a str>,
}

/// A parameter that belongs to one error type (RFC 9209 section 2.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// Its key.
    pub key: &'static str,
    /// Its value.
    pub value: Value,
}

/// The value of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// An Integer.
    Integer(u32),
    /// A String.
    Text(&'static str),
    /// A Token.
    Token(&'static str),
}

/// A coding by its name in the registries of HTTP (RFC 9110 section 18.6, RFC 9112 section 12.4). One that a
/// remote makes up has none: it is whatever the remote likes to echo (contract I-4).
pub(crate) fn coding(name: &[u8]) -> Option<&'static str> {
    const REGISTERED: [&str; 15] = [
        "aes128gcm",
        "br",
        "chunked",
        "compress",
        "dcb",
        "dcz",
        "deflate",
        "exi",
        "gzip",
        "identity",
        "pack200-gzip",
        "trailers",
        "x-compress",
        "x-gzip",
        "zstd",
    ];
    let name = name.trim_ascii();
    REGISTERED.into_iter().find(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Our member of `Proxy-Status`.
#[must_use]
pub fn proxy_status(status: &Status<'_>) -> String {
    let mut list = ListSerializer::new();
    {
        let mut member = list.bare_item(token_ref(PROXY_NAME));
        if let Some(token) = status.error.and_then(|name| TokenRef::from_str(name).ok()) {
            member = member.parameter(key_ref("error"), token);
        }
        if let Some(hop) = status.next_hop {
            member = with_text(member, key_ref("next-hop"), hop);
        }
        if let Some(code) = status.received_status {
            member = member.parameter(key_ref("received-status"), sfv::Integer::from(code));
        }
        for Extra { key, value } in status.extra {
            let Ok(key) = KeyRef::from_str(key) else { continue };
            member = match value {
                Value::Integer(number) => member.parameter(key, sfv::Integer::from(*number)),
                Value::Text(text) => with_text(member, key, text),
                Value::Token(text) => match TokenRef::from_str(text) {
                    Ok(token) => member.parameter(key, token),
                    Err(_) => member,
                },
            };
        }
        if let Some(details) = status.details {
            member = with_text(member, key_ref("details"), details);
        }
        let _written = member.finish();
    }
    let ours = list.finish().unwrap_or_default();
    match status.earlier {
        Some(earlier) => format!("{earlier}, {ours}"),
        None => ours,
    }
}

fn with_text<'a>(
    member: sfv::ParameterSerializer<&'a mut String>,
    key: &KeyRef,
    text: &str,
) -> sfv::ParameterSerializer<&'a mut String> {
    let printable: String = text.chars().filter(|c| matches!(c, ' '..='~')).collect();
    match StringRef::from_str(&printable) {
        Ok(text) => member.parameter(key, text),
        Err(_) => member,
    }
}

/// `Affiant-Outcome`: the outcome as a token with its parameters. `replayed` marks an answer from
/// the record of an earlier invocation (contract K-10, K-11).
#[must_use]
pub fn affiant_outcome(verdict: Verdict, id: InvocationId, replayed: bool) -> String {
    let Ok(outcome) = TokenRef::from_str(verdict.outcome().as_str()) else {
        return String::new();
    };
    let mut item = ItemSerializer::new().bare_item(outcome);
    for (key, value) in [
        (key_ref("phase"), verdict.phase().as_str()),
        (key_ref("retry"), verdict.retry().as_str()),
        (key_ref("code"), verdict.code().as_str()),
    ] {
        if let Ok(token) = TokenRef::from_str(value) {
            item = item.parameter(key, token);
        }
    }
    if let Ok(text) = StringRef::from_str(&id.to_string()) {
        item = item.parameter(key_ref("invocation"), text);
    }
    if replayed {
        item = item.parameter(key_ref("replayed"), true);
    }
    item.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::contract::{Code, Retry};

    /// E-4: the outcome is an Item of RFC 9651, as the contract's example has it.
    #[test]
    fn e_4_outcome_is_a_structured_item() {
        let id = InvocationId::from_parts(1_764_476_760_000, 42);
        assert_eq!(
            affiant_outcome(Verdict::committed(Retry::Never, Code::Ok), id, true),
            format!(
                "committed;phase=remote_execution;retry=never;code=OK;invocation=\"{id}\";replayed"
            )
        );
    }

    /// I-4: of a coding that is in no registry nothing is said.
    #[test]
    fn i_4_codings_are_registered_ones() {
        assert_eq!(coding(b" GZip"), Some("gzip"));
        assert_eq!(coding(b"chunked"), Some("chunked"));
        assert_eq!(coding(b"sk-CANARY-0123456789"), None);
        assert_eq!(coding(b""), None);
    }

    #[test]
    fn e_4_proxy_status_is_a_structured_list_member() {
        let status = Status {
            error: Some("connection_refused"),
            next_hop: Some("127.0.0.1:80"),
            received_status: None,
            details: Some("a \"word\"\r\n"),
            ..Status::default()
        };
        assert_eq!(
            proxy_status(&status),
            r#"affiant;error=connection_refused;next-hop="127.0.0.1:80";details="a \"word\"""#
        );
        let received = Status { received_status: Some(200), ..Status::default() };
        assert_eq!(proxy_status(&received), "affiant;received-status=200");
        assert_eq!(proxy_status(&Status::default()), "affiant");
        let text = |text| Value::Text(text);
        let extra = [
            Extra { key: "alert-id", value: Value::Integer(40) },
            Extra { key: "alert-message", value: text("handshake_failure") },
        ];
        let status = Status {
            error: Some("tls_alert_received"),
            extra: &extra,
            earlier: Some("a; error=dns_error, b"),
            ..Status::default()
        };
        assert_eq!(
            proxy_status(&status),
            "a; error=dns_error, b, affiant;error=tls_alert_received;alert-id=40;\
             alert-message=\"handshake_failure\""
        );
    }
}
