//! A token endpoint that gives a new refresh token with each answer (RFC 6749; RFC 9700 section
//! 4.14.2: a refresh token that is shown twice ends everything that came of it).

use super::{Call, Reply, Service, locked};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What becomes of a refresh token that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It ends every token of the client.
    Ends,
    /// The one before the newest is taken once more, for clients that never got the answer.
    Grace,
}

#[derive(Debug)]
struct Book {
    refresh: String,
    before: Option<String>,
    reuse: Reuse,
    expires_in: Option<u64>,
    good: BTreeSet<String>,
    granted: usize,
    refused: usize,
    /// Answer with this status, and nothing else.
    broken: Option<u16>,
    /// The client has no secret, and shows itself by its id alone (RFC 6749 section 2.1).
    public: bool,
    /// Parameters of the last request.
    last: BTreeMap<String, String>,
}

/// A running token endpoint for the client `client` with the secret `client secret:%`.
pub struct TokenServer {
    service: Service,
    book: Arc<Mutex<Book>>,
}

/// The client's secret: what it holds has to be encoded before it is joined.
const SECRET: &str = "client%20secret%3A%25";

impl TokenServer {
    /// The name of the client that it knows.
    pub const CLIENT: &str = "client";
    /// The client's secret.
    pub const CLIENT_SECRET: &str = "client secret:%";

    /// Starts it with a first refresh token.
    ///
    /// # Errors
    /// What the operating system says of the socket.
    pub fn start(
        tls: Option<Arc<rustls::ServerConfig>>,
        refresh: &str,
        reuse: Reuse,
    ) -> io::Result<Self> {
        let book = Arc::new(Mutex::new(Book {
            refresh: refresh.to_owned(),
            before: None,
            reuse,
            expires_in: Some(3600),
            good: BTreeSet::new(),
            granted: 0,
            refused: 0,
            broken: None,
            public: false,
            last: BTreeMap::new(),
        }));
        let kept = Arc::clone(&book);
        let service =
            Service::start(tls, Arc::new(move |call: &Call| Some(locked(&kept).answer(call))))?;
        Ok(Self { service, book })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.service.address()
    }

    /// How long tokens are good from now on.
    pub fn set_expires_in(&self, seconds: Option<u64>) {
        locked(&self.book).expires_in = seconds;
    }

    /// Answers with that status and no token, until it is taken back.
    pub fn set_broken(&self, status: Option<u16>) {
        locked(&self.book).broken = status;
    }

    /// The client has no secret from now on.
    pub fn set_public(&self) {
        locked(&self.book).public = true;
    }

    /// A parameter of the last request, as it was meant.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        locked(&self.book).last.get(name).cloned()
    }

    /// Whether a token is good.
    #[must_use]
    pub fn accepts(&self, token: &str) -> bool {
        locked(&self.book).good.contains(token)
    }

    /// Ends all access tokens, and none of the refresh tokens.
    pub fn revoke_tokens(&self) {
        locked(&self.book).good.clear();
    }

    /// How often it granted, and how often it refused.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let book = locked(&self.book);
        (book.granted, book.refused)
    }

    /// The refresh token that it takes next.
    #[must_use]
    pub fn refresh_token(&self) -> String {
        locked(&self.book).refresh.clone()
    }
}

impl Book {
    fn answer(&mut self, call: &Call) -> Reply {
        if let Some(status) = self.broken {
            self.refused += 1;
            return Reply::empty(status);
        }
        match self.judged(call) {
            Ok(()) => self.grant(),
            Err(error) => {
                self.refused += 1;
                let status = if error == "invalid_client" { 401 } else { 400 };
                Reply::json(status, &json!({ "error": error }))
            }
        }
    }

    fn judged(&mut self, call: &Call) -> Result<(), &'static str> {
        let form = call.field("content-type") == Some("application/x-www-form-urlencoded");
        if call.method != "POST" || call.target != "/token" || !form {
            return Err("invalid_request");
        }
        self.last = parameters(&call.body).ok_or("invalid_request")?;
        let parameters = self.last.clone();
        let of = |name: &str| parameters.get(name).map(String::as_str);
        let pair = STANDARD.encode(format!("{}:{SECRET}", TokenServer::CLIENT));
        let by_header = call.field("authorization") == Some(&format!("Basic {pair}"));
        let by_body = of("client_id") == Some(TokenServer::CLIENT)
            && of("client_secret") == Some(TokenServer::CLIENT_SECRET);
        let by_id = call.field("authorization").is_none()
            && of("client_id") == Some(TokenServer::CLIENT)
            && of("client_secret").is_none();
        // A client shows itself in one way only (section 2.3).
        let shown = match self.public {
            true => by_id,
            false => by_header != by_body && !(by_header && of("client_secret").is_some()),
        };
        if !shown {
            return Err("invalid_client");
        }
        match of("grant_type") {
            Some("client_credentials") if of("scope") == Some("read write") => Ok(()),
            Some("client_credentials") => Err("invalid_scope"),
            Some("refresh_token") => self.refreshes(of("refresh_token").unwrap_or_default()),
            Some(_) | None => Err("unsupported_grant_type"),
        }
    }

    fn refreshes(&mut self, shown: &str) -> Result<(), &'static str> {
        let again = self.reuse == Reuse::Grace && self.before.as_deref() == Some(shown);
        if shown == self.refresh || again {
            self.before = Some(std::mem::take(&mut self.refresh));
            // A new one each time: the answer that carried the last one may be lost.
            self.refresh = format!("canary-refresh-{}", self.granted + 1);
            if again {
                self.before = Some(shown.to_owned());
            }
            return Ok(());
        }
        self.good.clear();
        self.refresh = "ended".to_owned();
        Err("invalid_grant")
    }

    fn grant(&mut self) -> Reply {
        self.granted += 1;
        let token = format!("canary-access-{}", self.granted);
        self.good.insert(token.clone());
        let mut answer = json!({
            "access_token": token,
            "token_type": "bearer",
            "refresh_token": self.refresh,
        });
        if let (Some(seconds), Some(answer)) = (self.expires_in, answer.as_object_mut()) {
            answer.insert("expires_in".to_owned(), seconds.into());
        }
        Reply::json(200, &answer)
    }
}

/// The parameters of a form, each there once.
fn parameters(body: &[u8]) -> Option<BTreeMap<String, String>> {
    let text = std::str::from_utf8(body).ok()?;
    let mut parameters = BTreeMap::new();
    for pair in text.split('&') {
        let (name, value) = pair.split_once('=')?;
        if parameters.insert(decoded(name)?, decoded(value)?).is_some() {
            return None;
        }
    }
    Some(parameters)
}

fn decoded(text: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}
