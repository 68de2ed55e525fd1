//! Status line and `Proxy-Status` of the broker's own answers (RFC 9209 section 2.3).

use crate::render::{Extra, Value};
use crate::upstream::tls::Alert;
use crate::upstream::{dial, exchange};
use crate::{body, head};
use journal::contract::{Code, Outcome, Retry, Verdict};

/// The origin did not change to the protocol that was asked for.
pub(crate) const UPGRADE_FAILED: &str = "http_upgrade_failed";

/// What an answer of the broker's own says in its status line and its member of `Proxy-Status`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub(crate) status: u16,
    /// The error type of RFC 9209.
    pub(crate) error: &'static str,
    /// The hop that was asked.
    pub(crate) hop: Option<String>,
    /// The status that this hop answered with.
    pub(crate) received_status: Option<u16>,
    pub(crate) extra: Vec<Extra>,
    /// What the hops before this one said.
    pub(crate) earlier: Option<String>,
}

impl Account {
    /// By the verdict alone.
    pub(crate) fn of(verdict: Verdict) -> Self {
        match (verdict.code(), verdict.outcome()) {
            // Content that grew over the limit on its way: no word here may say that nothing was sent.
            (Code::PayloadLimit, Outcome::Unknown) => {
                Self::with_status(502, "connection_terminated")
            }
            (code, _) => {
                let (status, error) = status(code);
                Self::with_status(status, error)
            }
        }
    }

    /// Of an expectation that can't be met (RFC 9110 section 15.5.18).
    pub(super) fn of_expectation() -> Self {
        Self::with_status(417, "http_request_error")
    }

    fn with_status(status: u16, error: &'static str) -> Self {
        let mut extra = Vec::new();
        if error == "http_request_error" {
            extra.push(Extra { key: "status-code", value: Value::Integer(status.into()) });
            let phrase = crate::deliver::reason(status);
            extra.push(Extra { key: "status-phrase", value: Value::Text(phrase) });
        }
        Self { status, error, extra, ..Self::default() }
    }

    /// Of coded content that can't be looked through and so can't be handed over.
    pub(crate) fn undecodable(coding: Option<&'static str>) -> Self {
        Self { status: 502, error: "http_response_content_coding", ..Self::default() }
            .coding(coding)
    }

    /// The coding that is at fault (RFC 9209 sections 2.3.24 and 2.3.25).
    fn coding(self, coding: Option<&'static str>) -> Self {
        match coding {
            Some(coding) => self.with("coding", Value::Token(coding)),
            None => self,
        }
    }

    /// Of a request that its caller broke off or left malformed. It is too late to say that nothing was sent,
    /// and the type does not say it.
    pub(super) fn of_caller() -> Self {
        Self::with_status(400, "http_request_error")
    }

    pub(super) fn of_setup(failure: &dial::Failure) -> Self {
        let account = Self::of(failure.error.verdict());
        let account = Self { hop: Some(failure.hop.clone()), ..account };
        match &failure.error {
            dial::Error::Resolve { rcode: Some(rcode), info_code } => {
                let account = account.with("rcode", Value::Text(rcode));
                match info_code {
                    Some(code) => account.with("info-code", Value::Integer((*code).into())),
                    None => account,
                }
            }
            dial::Error::NotFound => account,
            dial::Error::Tls { alert: Some(alert), .. } => account.alert(*alert),
            dial::Error::NoProtocol => account.alert(Alert::NO_PROTOCOL),
            dial::Error::NoWebSocket => Self { status: 502, error: UPGRADE_FAILED, ..account },
            dial::Error::Refused { status, said } => Self {
                // A credential that the upstream proxy does not take is a matter of settings.
                error: match status {
                    401 | 407 => "proxy_configuration_error",
                    _ => account.error,
                },
                received_status: Some(*status),
                earlier: said.text().map(str::to_owned),
                ..account
            },
            dial::Error::Resolve { rcode: None, .. }
            | dial::Error::ResolveTimeout
            | dial::Error::Prohibited
            | dial::Error::Exhausted(_)
            | dial::Error::Connect(_)
            | dial::Error::Timeout
            | dial::Error::Broken(_)
            | dial::Error::Tls { alert: None, .. }
            | dial::Error::Trust(_)
            | dial::Error::ParentSpeech => account,
        }
    }

    /// What is wrong with a response, where RFC 9209 has a type of its own for it.
    pub(super) fn of_response(self, error: &exchange::Error) -> Self {
        match error {
            exchange::Error::Io(error) => match Alert::behind(error) {
                Some(alert) => Self { error: "tls_alert_received", ..self }.alert(alert),
                None => self,
            },
            exchange::Error::Certificate(alert) => {
                Self { status: 502, error: "tls_alert_received", ..self }.alert(*alert)
            }
            exchange::Error::Head(head::Fault::TooLong) => {
                let size = u32::try_from(head::MAX_BYTES).unwrap_or(u32::MAX);
                Self { error: "http_response_header_section_size", ..self }
                    .with("header-section-size", Value::Integer(size))
            }
            // The parameters are sizes that were received, and the size was not at fault.
            exchange::Error::Head(head::Fault::TooManyFields) => {
                Self { error: "http_response_header_section_size", ..self }
            }
            exchange::Error::Content(body::Fault::TooManyTrailers) => {
                Self { error: "http_response_trailer_section_size", ..self }
            }
            exchange::Error::Coding(coding) => {
                Self { error: "http_response_transfer_coding", ..self }.coding(*coding)
            }
            exchange::Error::Content(body::Fault::TrailerTooLong) => {
                let size = u32::try_from(head::MAX_BYTES).unwrap_or(u32::MAX);
                Self { error: "http_response_trailer_section_size", ..self }
                    .with("trailer-section-size", Value::Integer(size))
            }
            exchange::Error::Upgrade => Self { error: UPGRADE_FAILED, ..self },
            exchange::Error::Head(_)
            | exchange::Error::Content(_)
            | exchange::Error::Closed
            | exchange::Error::Interim
            | exchange::Error::Switched
            | exchange::Error::NotProcessed
            | exchange::Error::Unsent
            | exchange::Error::Reset(_)
            | exchange::Error::Stream => self,
        }
    }

    fn with(mut self, key: &'static str, value: Value) -> Self {
        self.extra.push(Extra { key, value });
        self
    }

    pub(super) fn alert(self, alert: Alert) -> Self {
        self.with("alert-id", Value::Integer(alert.id.into()))
            .with("alert-message", Value::Text(alert.name))
    }
}

/// Status and RFC 9209 error type of an answer that the broker makes itself.
pub(crate) const fn status(code: Code) -> (u16, &'static str) {
    match code {
        Code::InvalidRequest
        | Code::InvalidTarget
        | Code::InvalidInvocationId
        | Code::CallerGone => (400, "http_request_error"),
        Code::AuthorityMismatch => (421, "http_request_error"),
        Code::UnsupportedAction => (501, "http_request_denied"),
        Code::LoopDetected => (502, "proxy_loop_detected"),
        Code::PayloadLimit => (413, "http_request_denied"),
        Code::AgentUnauthenticated => (407, "http_request_denied"),
        Code::TargetNotAllowed
        | Code::HeaderForbidden
        | Code::ApprovalMismatch
        | Code::ApprovalPending
        | Code::ApprovalExpired
        | Code::ApprovalDenied => (403, "http_request_denied"),
        Code::BudgetSpent => (429, "http_request_denied"),
        Code::AddressProhibited => (403, "destination_ip_prohibited"),
        Code::IdempotencyMismatch | Code::IdempotencyKeyUnreadable => (422, "http_request_denied"),
        Code::InDoubtDuplicate | Code::InFlight => (424, "http_request_denied"),
        Code::JournalUnavailable
        | Code::ShuttingDown
        | Code::ResourcesExhausted
        | Code::VaultLocked
        | Code::SecretSourceFailed => (503, "proxy_internal_error"),
        Code::InternalError => (500, "proxy_internal_error"),
        Code::SecretMissing
        | Code::SecretUnreadable
        | Code::SecretSourceDenied
        | Code::SecretSourceUnset
        | Code::InjectionUnsupported => (500, "proxy_configuration_error"),
        Code::DnsError => (502, "dns_error"),
        Code::DnsTimeout => (504, "dns_timeout"),
        Code::DestinationNotFound => (502, "destination_not_found"),
        Code::DestinationUnroutable => (502, "destination_ip_unroutable"),
        Code::ConnectionRefused => (502, "connection_refused"),
        Code::ConnectionTimeout => (504, "connection_timeout"),
        Code::ConnectionTerminated => (502, "connection_terminated"),
        Code::TlsProtocolError => (502, "tls_protocol_error"),
        Code::TlsCertificateError => (502, "tls_certificate_error"),
        Code::TlsAlertReceived => (502, "tls_alert_received"),
        Code::ProxyTunnelRefused => (502, "destination_unavailable"),
        // Of the SSH gateway; they do not arise here.
        Code::HostKeyMismatch
        | Code::HostKeyUnknown
        | Code::SshTransportFailed
        | Code::RemoteAuthFailed
        | Code::ChannelRefused
        | Code::RequestRefused
        | Code::ResultLimit => (502, "proxy_internal_error"),
        // An earlier invocation with this end, of which no result is kept.
        Code::Ok | Code::RemoteRejected | Code::RemoteFailed | Code::NotJudged => {
            (424, "http_request_denied")
        }
        Code::RemoteNotProcessed => (503, "connection_terminated"),
        Code::RemoteOutcomeUnknown | Code::CallerCancelled => (502, "connection_terminated"),
        Code::ResponseTimeout => (504, "http_response_timeout"),
        Code::ReadTimeout => (504, "connection_read_timeout"),
        Code::RemoteResultIncomplete => (502, "http_response_incomplete"),
        Code::RemoteProtocolError => (502, "http_protocol_error"),
        Code::BrokerRestarted | Code::ResultNotStored | Code::DeliveryFailed => {
            (502, "proxy_internal_error")
        }
    }
}

/// Whether an answer says `x-should-retry: false` (contract K-11).
pub(crate) const fn forbids_retry(status: u16, verdict: Verdict) -> bool {
    status >= 400 && !may_repeat(verdict)
}

/// Whether the instruction is to submit the same call again.
pub(crate) const fn may_repeat(verdict: Verdict) -> bool {
    matches!(verdict.retry(), Retry::Backoff | Retry::SameIdempotencyKey)
}
