//! What the hops between here and the origin said of themselves: their members of `Proxy-Status`
//! (RFC 9209), in the order of the way. A hop's error is evidence of that hop, and never the origin's
//! own word (contract C-8).

use crate::head::Fields;
use sfv::{BareItem, List, ListEntry, Parser};

/// The members that came with one response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// All members as they came, the nearest to the origin first.
    text: String,
    /// The error types among them.
    errors: Vec<String>,
    /// Whether the nearest hop says that it received an answer, which it passed on.
    relayed: bool,
}

/// What an error of a hop leaves of the origin's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The type of error proves that nothing was forwarded; it may be tried later.
    NotForwardedNow,
    /// The same, and something has to be corrected first.
    NotForwarded,
    /// The request may have reached the origin.
    Open,
}

/// Reads the field. What is no list of structured fields says nothing.
pub(crate) fn read(fields: &Fields) -> Said {
    let lines: Vec<_> = fields.all("proxy-status").collect();
    let text = lines.join(&b", "[..]);
    let Ok(list) = Parser::new(&text).parse::<List>() else { return Said::default() };
    let errors = list.iter().filter_map(error).collect();
    let relayed = list.last().is_some_and(|member| match member {
        ListEntry::Item(item) => item.params.contains_key("received-status"),
        ListEntry::InnerList(_) => false,
    });
    Said { text: String::from_utf8_lossy(&text).into_owned(), errors, relayed }
}

/// Takes lines away that are no list of structured fields: with a member of ours behind them, nobody could
/// read that, either (RFC 9651 section 4.2). Whether there were some.
pub(crate) fn drop_unreadable(fields: &mut Fields) -> bool {
    let lines: Vec<_> = fields.all("proxy-status").collect();
    let unreadable =
        !lines.is_empty() && Parser::new(&lines.join(&b", "[..])).parse::<List>().is_err();
    if unreadable {
        fields.retain(|name| !name.eq_ignore_ascii_case(b"proxy-status"));
    }
    unreadable
}

fn error(member: &ListEntry) -> Option<String> {
    match member {
        ListEntry::Item(item) => match item.params.get("error") {
            Some(BareItem::Token(token)) => Some(token.as_str().to_owned()),
            Some(
                BareItem::Decimal(_)
                | BareItem::Integer(_)
                | BareItem::String(_)
                | BareItem::ByteSequence(_)
                | BareItem::Boolean(_)
                | BareItem::Date(_)
                | BareItem::DisplayString(_),
            )
            | None => None,
        },
        ListEntry::InnerList(_) => None,
    }
}

impl Said {
    /// All members; none were sent, or none that can be read.
    pub(crate) fn text(&self) -> Option<&str> {
        (!self.text.is_empty()).then_some(self.text.as_str())
    }

    /// Whether a hop says that it failed.
    pub(crate) const fn has_failed(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Whether the response is a hop's account of its own failure; none: it is the origin's. `gateway`: the
    /// next hop is an upstream proxy that answers in the origin's name. Of such a one 502 and 504 are its own
    /// words by their definition (RFC 9110 sections 15.6.3 and 15.6.5), unless it says whose they are.
    pub(crate) fn doubt(&self, status: u16, gateway: bool) -> Option<Doubt> {
        if self.errors.is_empty() {
            let own = gateway && matches!(status, 502 | 504) && !self.relayed;
            return own.then_some(Doubt::Open);
        }
        if status < 400 {
            return None;
        }
        let doubts: Vec<_> = self.errors.iter().map(|error| of_type(error)).collect();
        // Every hop that failed has to prove it.
        let worst = [Doubt::Open, Doubt::NotForwarded, Doubt::NotForwardedNow];
        worst.into_iter().find(|doubt| doubts.contains(doubt))
    }
}

/// The types of RFC 9209 section 2.3 that arise before anything is forwarded.
fn of_type(error: &str) -> Doubt {
    match error {
        "dns_timeout"
        | "dns_error"
        | "destination_ip_unroutable"
        | "connection_refused"
        | "connection_timeout"
        | "connection_limit_reached" => Doubt::NotForwardedNow,
        "destination_not_found"
        | "destination_ip_prohibited"
        | "tls_certificate_error"
        | "http_request_denied"
        | "proxy_loop_detected" => Doubt::NotForwarded,
        // The others can arise afterwards as well (`http_request_error` inside of content that was streamed
        // on, `destination_unavailable` after tries that failed), and what nobody knows proves nothing.
        _ => Doubt::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[&str], status: u16, text: Option<&str>, doubt: Option<Doubt>) {
        let field = |line: &&str| (b"Proxy-Status".to_vec(), line.as_bytes().to_vec());
        let said = read(&lines.iter().map(field).collect());
        assert_eq!((said.text(), said.doubt(status, false)), (text, doubt), "{lines:?}");
    }

    /// C-8: an error of a hop is not the origin's; its type may prove that nothing was forwarded.
    #[test]
    fn c_8_what_a_hop_says_of_itself() {
        let refused = "cdn; error=connection_refused";
        check(&[refused], 502, Some(refused), Some(Doubt::NotForwardedNow));
        check(
            &["a; error=dns_error, b"],
            502,
            Some("a; error=dns_error, b"),
            Some(Doubt::NotForwardedNow),
        );
        check(
            &["a; error=http_request_denied"],
            403,
            Some("a; error=http_request_denied"),
            Some(Doubt::NotForwarded),
        );
        check(
            &["a; error=http_response_timeout"],
            504,
            Some("a; error=http_response_timeout"),
            Some(Doubt::Open),
        );
        check(
            &["a; error=connection_refused", "b; error=proxy_internal_error"],
            502,
            Some("a; error=connection_refused, b; error=proxy_internal_error"),
            Some(Doubt::Open),
        );
        check(&["a; error=of_tomorrow"], 502, Some("a; error=of_tomorrow"), Some(Doubt::Open));
        // A stale answer of a cache, or a member without an error, is no account of a failure.
        check(&[refused], 200, Some(refused), None);
        check(&["a; received-status=502"], 502, Some("a; received-status=502"), None);
        check(&["a; error=\"text\""], 502, Some("a; error=\"text\""), None);
        check(&["a;;"], 502, None, None);
        check(&[], 502, None, None);
    }

    /// C-8: what only a gateway says is said by the gateway that policy put there, unless it names the origin.
    #[test]
    fn c_8_a_gateway_without_a_name() {
        let said = |lines: &[&str]| {
            let field = |line: &&str| (b"Proxy-Status".to_vec(), line.as_bytes().to_vec());
            read(&lines.iter().map(field).collect())
        };
        for status in [502, 504] {
            assert_eq!(said(&[]).doubt(status, true), Some(Doubt::Open));
            assert_eq!(said(&["squid"]).doubt(status, true), Some(Doubt::Open));
            assert_eq!(said(&["squid; received-status=502"]).doubt(status, true), None);
            assert_eq!(said(&[]).doubt(status, false), None);
            let refused = said(&["squid; error=connection_refused"]);
            assert_eq!(refused.doubt(status, true), Some(Doubt::NotForwardedNow));
        }
        for status in [200, 403, 500, 503] {
            assert_eq!(said(&[]).doubt(status, true), None);
        }
    }
}
