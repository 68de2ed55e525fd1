//! Names to addresses, by DNS itself rather than by the C library: its answers come with their
//! response code (RFC 9209 section 2.3.2), its time is bounded here, and no thread waits.
//!
//! `resolv.conf`, its search list and the hosts file count as they do for other programs; further
//! sources of the name service switch (mDNS, LDAP) do not.

use super::dial::Error;
use super::extended::{Heard, Provider, Word};
use hickory_resolver::Resolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{RData, RecordType};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// A whole resolution, at most.
const LIMIT: Duration = Duration::from_secs(5);
/// One question to one server, at most.
const QUESTION: Duration = Duration::from_secs(2);
/// How long the answer of the other family is waited for (RFC 8305 section 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// The resolver.
pub(crate) struct Names {
    resolver: Option<Resolver<Provider>>,
    heard: Heard,
}

impl Names {
    /// Asks these servers; none: those of the system.
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        let heard = Heard::default();
        let provider = Provider::new(heard.clone());
        let mut builder = if servers.is_empty() {
            match Resolver::builder(provider) {
                Ok(builder) => builder,
                Err(error) => {
                    tracing::warn!(%error, "the system's resolver settings can't be read");
                    return Self { resolver: None, heard };
                }
            }
        } else {
            let servers = servers.iter().map(|server| {
                let mut config = NameServerConfig::udp_and_tcp(server.ip());
                config.connections.iter_mut().for_each(|way| way.port = server.port());
                config
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            Resolver::builder_with_config(config, provider)
        };
        let options = builder.options_mut();
        options.timeout = QUESTION;
        options.attempts = 2;
        match builder.build() {
            Ok(resolver) => Self { resolver: Some(resolver), heard },
            Err(error) => {
                tracing::warn!(%error, "the resolver could not be built");
                Self { resolver: None, heard }
            }
        }
    }

    /// The addresses of a name, in the order in which they are to be tried: families in turn, IPv6
    /// first (RFC 8305 section 4).
    pub(crate) async fn resolve(
        &self,
        name: &str,
        deadline: Instant,
    ) -> Result<Vec<IpAddr>, Error> {
        let Some(resolver) = &self.resolver else {
            return Err(Error::Resolve { rcode: None, info_code: None });
        };
        let until = deadline.min(Instant::now() + LIMIT);
        let both =
            both(lookup(resolver, name, RecordType::AAAA), lookup(resolver, name, RecordType::A));
        let (six, four) = timeout_at(until, both).await.map_err(|_| Error::ResolveTimeout)?;
        joined(six, four).map_err(|error| {
            let Error::Resolve { rcode, .. } = error else { return error };
            match (self.heard.take(name), rcode) {
                (Some(Word::Exhausted(errno)), None) => {
                    Error::Exhausted(io::Error::from_raw_os_error(errno))
                }
                (Some(Word::InfoCode(code)), _) => Error::Resolve { rcode, info_code: Some(code) },
                (Some(Word::Exhausted(_)) | None, _) => Error::Resolve { rcode, info_code: None },
            }
        })
    }
}

type Answer = Result<Vec<IpAddr>, Error>;

/// What both families' answers say together.
fn joined(six: Answer, four: Answer) -> Answer {
    match (six, four) {
        (Ok(six), Ok(four)) if six.is_empty() && four.is_empty() => Err(Error::NotFound),
        (Ok(six), Ok(four)) => Ok(in_turn(six, four)),
        (Ok(some), Err(_)) | (Err(_), Ok(some)) if !some.is_empty() => Ok(some),
        // An answer of one family that there is none, and none of the other.
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
        (Err(Error::NotFound), Err(error)) | (Err(error), Err(_)) => Err(error),
    }
}

/// Both answers, without a long wait for the second one once the first one holds addresses.
async fn both(
    six: impl Future<Output = Answer>,
    four: impl Future<Output = Answer>,
) -> (Answer, Answer) {
    tokio::pin!(six, four);
    tokio::select! {
        first = &mut six => {
            let second = second(&first, four).await;
            (first, second)
        }
        first = &mut four => {
            let second = second(&first, six).await;
            (second, first)
        }
    }
}

async fn second(first: &Answer, other: impl Future<Output = Answer>) -> Answer {
    if first.as_ref().is_ok_and(|addresses| !addresses.is_empty()) {
        return timeout(RESOLUTION_DELAY, other).await.unwrap_or(Err(Error::ResolveTimeout));
    }
    other.await
}

async fn lookup(resolver: &Resolver<Provider>, name: &str, kind: RecordType) -> Answer {
    match resolver.lookup(name, kind).await {
        Ok(lookup) => Ok(lookup.answers().iter().filter_map(|r| address(&r.data)).collect()),
        Err(error) => refused(&error),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn address(data: &RData) -> Option<IpAddr> {
    match data {
        RData::A(address) => Some(address.0.into()),
        RData::AAAA(address) => Some(address.0.into()),
        _ => None,
    }
}

/// What a failed look-up says. A name without records of the kind is no failure.
#[expect(clippy::wildcard_enum_match_arm, reason = "open enumerations of another crate")]
fn refused(error: &NetError) -> Answer {
    match error {
        NetError::Timeout => Err(Error::ResolveTimeout),
        NetError::Dns(DnsError::NoRecordsFound(none)) => match none.response_code {
            ResponseCode::NoError => Ok(Vec::new()),
            ResponseCode::NXDomain => Err(Error::NotFound),
            code => Err(Error::Resolve { rcode: Some(rcode(code)), info_code: None }),
        },
        NetError::Dns(DnsError::ResponseCode(ResponseCode::NXDomain)) => Err(Error::NotFound),
        NetError::Dns(DnsError::ResponseCode(code)) => {
            Err(Error::Resolve { rcode: Some(rcode(*code)), info_code: None })
        }
        _ => Err(Error::Resolve { rcode: None, info_code: None }),
    }
}

/// The code's name in IANA's registry.
#[expect(clippy::wildcard_enum_match_arm, reason = "an open enumeration of another crate")]
fn rcode(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::NotAuth => "NOTAUTH",
        ResponseCode::NotZone => "NOTZONE",
        ResponseCode::BADVERS => "BADVERS",
        _ => "OTHER",
    }
}

fn in_turn(six: Vec<IpAddr>, four: Vec<IpAddr>) -> Vec<IpAddr> {
    let (mut six, mut four) = (six.into_iter(), four.into_iter());
    let mut all = Vec::new();
    loop {
        let (one, other) = (six.next(), four.next());
        if one.is_none() && other.is_none() {
            return all;
        }
        all.extend(one);
        all.extend(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        let six = ["2001:db8::1", "2001:db8::2", "2001:db8::3"];
        let (six, four) = (six.map(|a| a.parse().expect("address")), ["192.0.2.1"]);
        let all = in_turn(six.to_vec(), four.map(|a| a.parse().expect("address")).to_vec());
        let all: Vec<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(all, ["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"]);
    }
}
