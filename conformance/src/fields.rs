//! The structured fields (RFC 9651) of answers: `Affiant-Outcome` and `Proxy-Status` (RFC 9209).

use journal::contract::{Code, Outcome, Phase, Retry};
use sfv::{BareItem, Item, List, ListEntry, Parameters, Parser};

/// What `Affiant-Outcome` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// What is known of execution.
    pub outcome: Outcome,
    /// Where the broker stopped.
    pub phase: Option<Phase>,
    /// What may be done.
    pub retry: Option<Retry>,
    /// Why.
    pub code: Option<Code>,
    /// The invocation's id.
    pub invocation: Option<String>,
    /// Whether an earlier record answered.
    pub replayed: bool,
}

/// A field does not follow its grammar or names what the contract does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field is not what the contract says: {0}")]
pub struct Error(String);

fn word(item: &BareItem) -> Option<&str> {
    match item {
        BareItem::Token(token) => Some(token.as_str()),
        BareItem::String(text) => Some(text.as_str()),
        BareItem::Decimal(_)
        | BareItem::Integer(_)
        | BareItem::ByteSequence(_)
        | BareItem::Boolean(_)
        | BareItem::Date(_)
        | BareItem::DisplayString(_) => None,
    }
}

fn named<T: std::str::FromStr>(params: &Parameters, key: &str) -> Result<Option<T>, Error> {
    let Some(item) = params.get(key) else { return Ok(None) };
    let text = word(item).ok_or_else(|| Error(format!("{key} is not a word")))?;
    text.parse().map(Some).map_err(|_| Error(format!("{key} is {text}")))
}

/// Reads `Affiant-Outcome`.
///
/// # Errors
/// [`Error`] when it is not an Item or holds a name that the contract does not have.
pub fn outcome(field: &str) -> Result<Said, Error> {
    let item: Item = Parser::new(field).parse().map_err(|error| Error(error.to_string()))?;
    let outcome = word(&item.bare_item).unwrap_or_default();
    Ok(Said {
        outcome: outcome.parse().map_err(|_| Error(format!("the outcome is {outcome}")))?,
        phase: named(&item.params, "phase")?,
        retry: named(&item.params, "retry")?,
        code: named(&item.params, "code")?,
        invocation: item.params.get("invocation").and_then(word).map(str::to_owned),
        replayed: matches!(item.params.get("replayed"), Some(BareItem::Boolean(true))),
    })
}

/// One member of `Proxy-Status`: who speaks, and its error type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The proxy's name.
    pub name: String,
    /// The error type, when it reports one.
    pub error: Option<String>,
}

/// Reads `Proxy-Status`, nearest hop last.
///
/// # Errors
/// [`Error`] when it is not a List of tokens or strings.
pub fn proxy_status(field: &str) -> Result<Vec<Hop>, Error> {
    let list: List = Parser::new(field).parse().map_err(|error| Error(error.to_string()))?;
    list.iter()
        .map(|entry| match entry {
            ListEntry::Item(item) => Ok(Hop {
                name: word(&item.bare_item).unwrap_or_default().to_owned(),
                error: item.params.get("error").and_then(word).map(str::to_owned),
            }),
            ListEntry::InnerList(_) => Err(Error("a member is an inner list".to_owned())),
        })
        .collect()
}

/// The error types of RFC 9209, section 2.3, each with whether it proves that nothing of the request
/// was handed on.
pub const ERROR_TYPES: [(&str, bool); 32] = [
    ("dns_timeout", true),
    ("dns_error", true),
    ("destination_not_found", true),
    ("destination_unavailable", false),
    ("destination_ip_prohibited", true),
    ("destination_ip_unroutable", true),
    ("connection_refused", true),
    ("connection_terminated", false),
    ("connection_timeout", true),
    ("connection_read_timeout", false),
    ("connection_write_timeout", false),
    ("connection_limit_reached", true),
    ("tls_protocol_error", false),
    ("tls_certificate_error", true),
    ("tls_alert_received", false),
    ("http_request_error", false),
    ("http_request_denied", true),
    ("http_response_incomplete", false),
    ("http_response_header_section_size", false),
    ("http_response_header_size", false),
    ("http_response_body_size", false),
    ("http_response_trailer_section_size", false),
    ("http_response_trailer_size", false),
    ("http_response_transfer_coding", false),
    ("http_response_content_coding", false),
    ("http_response_timeout", false),
    ("http_upgrade_failed", false),
    ("http_protocol_error", false),
    ("proxy_internal_response", false),
    ("proxy_internal_error", false),
    ("proxy_configuration_error", false),
    ("proxy_loop_detected", true),
];

/// The error types that say what a code of the contract says, of what the matrix can bring about.
#[must_use]
pub fn error_types(code: &str) -> &'static [&'static str] {
    match code {
        "CONNECTION_REFUSED" => &["connection_refused"],
        "CONNECTION_TIMEOUT" => &["connection_timeout"],
        "TLS_PROTOCOL_ERROR" => &["tls_protocol_error"],
        "TLS_CERTIFICATE_ERROR" => &["tls_certificate_error"],
        "TLS_ALERT_RECEIVED" => &["tls_alert_received"],
        "UNSUPPORTED_ACTION" => &["http_upgrade_failed", "http_request_denied"],
        // The connection, or the stream, ended before an answer began.
        "CONNECTION_TERMINATED" | "REMOTE_NOT_PROCESSED" => &["connection_terminated"],
        "REMOTE_OUTCOME_UNKNOWN" => &["connection_terminated", "tls_alert_received"],
        "RESPONSE_TIMEOUT" => &["http_response_timeout", "connection_write_timeout"],
        "READ_TIMEOUT" => &["connection_read_timeout"],
        "REMOTE_RESULT_INCOMPLETE" => &["http_response_incomplete"],
        "REMOTE_PROTOCOL_ERROR" => &[
            "http_protocol_error",
            "http_upgrade_failed",
            "http_response_header_section_size",
            "http_response_trailer_section_size",
            "http_response_transfer_coding",
        ],
        _ => &[],
    }
}
