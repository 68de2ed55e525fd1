//! What a decision says when it is no.

use super::EGRESS;
use crate::condition::Doubt;
use crate::{Denial, host};
use journal::contract::Code;

/// A host in normal form.
pub(super) fn normal_host(text: &str) -> Result<String, Denial> {
    host::normalize(text).map_err(|error| Denial {
        code: Code::InvalidTarget,
        field: "target.host".to_owned(),
        message: format!("The target names no usable host: {error}."),
        rule: EGRESS.to_owned(),
    })
}

/// What is not looked into can't be shown to a person: such a route is closed, never open.
pub(crate) fn approval_pending(route: &str) -> Denial {
    Denial {
        code: Code::ApprovalPending,
        field: "approval".to_owned(),
        message: format!(
            "Route {route:?} requires the approval of a person, and nobody can be shown what passes \
             a WebSocket, or a tunnel that is not intercepted."
        ),
        rule: route.to_owned(),
    }
}

/// A service answers a TRACE with the request, the credential in it (RFC 9110 section 9.3.8: a client
/// must send none).
pub(super) fn trace_refused(route: &str) -> Denial {
    Denial {
        code: Code::UnsupportedAction,
        field: "method".to_owned(),
        message: format!("Route {route:?} injects a credential, which a TRACE would bring back."),
        rule: route.to_owned(),
    }
}

/// A refusal because a condition of a route can't be judged.
pub(super) fn undecided(route: &str, Doubt { field, why }: Doubt) -> Denial {
    let code =
        if field == Doubt::PATH.field { Code::InvalidTarget } else { Code::TargetNotAllowed };
    let part = match field {
        "method" => "method",
        "target.path" => "path",
        "request.body" => "content",
        "request.headers" => "header fields",
        "command" => "command",
        _ => "query",
    };
    Denial {
        code,
        field: field.to_owned(),
        message: format!(
            "Route {route:?} looks at the {part} of this request, which can't be judged: {why}."
        ),
        rule: route.to_owned(),
    }
}

/// A refusal because no route allows the action.
pub(super) fn not_allowed(field: &str, message: String) -> Denial {
    let (field, rule) = (field.to_owned(), EGRESS.to_owned());
    Denial { code: Code::TargetNotAllowed, field, message, rule }
}

/// An agent's text, cut and escaped, for a message.
pub(super) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(64).collect();
    format!("{cut:?}")
}
