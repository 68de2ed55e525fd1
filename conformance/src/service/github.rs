//! The endpoint of GitHub that gives installation tokens to apps.

use super::{Call, Reply, Service, locked};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a signature (RSASSA-PKCS1-v1_5 with SHA-256) over bytes is the app's.
pub type Verify = dyn Fn(&[u8], &[u8]) -> bool + Send + Sync;

#[derive(Default)]
struct Ledger {
    given: usize,
    refused: Vec<&'static str>,
    asked: Vec<Value>,
}

/// The running endpoint, for the app `12345` and its installation `678`.
pub struct Github {
    service: Service,
    ledger: Arc<Mutex<Ledger>>,
}

impl Github {
    /// Starts it; tokens are good for so many seconds.
    ///
    /// # Errors
    /// What the operating system says of the socket.
    pub fn start(verify: Box<Verify>, good_for: u64) -> io::Result<Self> {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let kept = Arc::clone(&ledger);
        let handler = move |call: &Call| {
            let mut ledger = locked(&kept);
            Some(match judged(call, &*verify) {
                Ok(asked) => {
                    ledger.given += 1;
                    ledger.asked.push(asked);
                    Reply::json(
                        201,
                        &json!({
                            "token": format!("ghs_canary{}", ledger.given),
                            "expires_at": time(now() + good_for),
                        }),
                    )
                }
                Err((status, why)) => {
                    ledger.refused.push(why);
                    Reply::json(status, &json!({ "message": why }))
                }
            })
        };
        let service = Service::start(None, Arc::new(handler))?;
        Ok(Self { service, ledger })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// How many tokens it gave.
    #[must_use]
    pub fn given(&self) -> usize {
        locked(&self.ledger).given
    }

    /// Why it refused, in order.
    #[must_use]
    pub fn refused(&self) -> Vec<&'static str> {
        locked(&self.ledger).refused.clone()
    }

    /// What it was asked for, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Value> {
        locked(&self.ledger).asked.clone()
    }
}

fn judged(call: &Call, verify: &Verify) -> Result<Value, (u16, &'static str)> {
    if (call.method.as_str(), call.target.as_str())
        != ("POST", "/app/installations/678/access_tokens")
    {
        return Err((404, "not found"));
    }
    if call.field("user-agent").is_none_or(str::is_empty) {
        return Err((403, "no user agent"));
    }
    let token = call.field("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let token = token.ok_or((401, "no token"))?;
    let (signed, signature) = token.rsplit_once('.').ok_or((401, "no signature"))?;
    let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    let signature = decoded(signature).ok_or((401, "no signature"))?;
    if !verify(signed.as_bytes(), &signature) {
        return Err((401, "another key"));
    }
    let (head, claims) = signed.split_once('.').ok_or((401, "no claims"))?;
    let json = |text: &str| serde_json::from_slice::<Value>(&decoded(text)?).ok();
    let (head, claims) = (json(head).ok_or((401, "head"))?, json(claims).ok_or((401, "claims"))?);
    let number = |name: &str| claims.get(name).and_then(Value::as_u64);
    let (issued, ends) = number("iat").zip(number("exp")).ok_or((401, "no times"))?;
    if head.get("alg") != Some(&"RS256".into()) || claims.get("iss") != Some(&"12345".into()) {
        return Err((401, "another app"));
    }
    if issued > now() || ends <= now() || ends > now() + 600 {
        return Err((401, "times"));
    }
    call.json().ok_or((422, "no content"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// RFC 3339, in UTC.
fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's days-to-civil, for days since 1970.
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let month = (5 * doy + 2) / 153;
    let day = doy - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}
