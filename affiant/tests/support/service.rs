//! A service with a memory: an origin whose answer depends on what it was asked before.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of it")]

use crate::support::{Response, Server};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// 1 for the first request of this service.
    pub number: usize,
}

impl Asked {
    pub fn field(&self, name: &str) -> Option<&str> {
        let named = |(n, _): &&(String, String)| n.eq_ignore_ascii_case(name);
        self.fields.iter().find(named).map(|(_, value)| value.as_str())
    }
}

/// What the service does with a request: whether it has its effect, and what is sent. `None`: the
/// connection is closed without an answer.
pub struct Done {
    pub effect: bool,
    pub answer: Option<Vec<u8>>,
}

impl Done {
    /// The lost answer.
    pub fn and_closes() -> Self {
        Self { effect: true, answer: None }
    }

    pub fn and_answers(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Self {
        Self { effect: true, answer: Some(response(status, fields, body.as_ref())) }
    }

    pub fn nothing_but(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Self {
        Self { effect: false, answer: Some(response(status, fields, body.as_ref())) }
    }
}

fn response(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} S\r\nContent-Length: {length}\r\nConnection: close\r\n{fields}\r\n"
    );
    [head.as_bytes(), body].concat()
}

#[derive(Default)]
struct Ledger {
    asked: Vec<Asked>,
    effects: usize,
}

/// A running service, in clear text on loopback. One request per connection.
pub struct Service {
    address: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
}

impl Service {
    pub fn start(handle: impl FnMut(&Asked) -> Done + Send + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), handle)
    }

    pub fn on(listener: TcpListener, handle: impl FnMut(&Asked) -> Done + Send + 'static) -> Self {
        let address = listener.local_addr().unwrap();
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let (kept, handle) = (Arc::clone(&ledger), Arc::new(Mutex::new(handle)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (ledger, handle) = (Arc::clone(&kept), Arc::clone(&handle));
                std::thread::spawn(move || {
                    // A peer that goes away is no fault of the test's.
                    drop(serve(stream?, &ledger, &handle));
                    Ok::<_, std::io::Error>(())
                });
            }
        });
        Self { address, ledger }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.ledger.lock().unwrap().asked.clone()
    }

    pub fn effects(&self) -> usize {
        self.ledger.lock().unwrap().effects
    }

    /// A policy with one credentialed route to it, and more keys.
    pub fn policy(&self, more: &str) -> String {
        policy(self.address, more)
    }
}

pub fn policy(address: SocketAddr, more: &str) -> String {
    format!(
        r#"
[[credential]]
id = "pay"
secret = "pay-token"
inject = "bearer"

[[route]]
name = "service"
agents = ["coder"]
match = {{ scheme = "http", host = "{}", port = {}, path = "/**" }}
credential = "pay"
private_addresses = "allow"
{more}
"#,
        address.ip(),
        address.port()
    )
}

fn serve<H: FnMut(&Asked) -> Done>(
    stream: TcpStream,
    ledger: &Mutex<Ledger>,
    handle: &Mutex<H>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(()) };
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut asked = Asked { method, target, fields, body: Vec::new(), number: 0 };
    if asked.field("transfer-encoding").is_some() {
        asked.body = chunks(&mut reader)?;
    }
    let length = asked.field("content-length").and_then(|n| n.parse().ok());
    if let Some(length) = length {
        asked.body.resize(length, 0);
        reader.read_exact(&mut asked.body)?;
    }
    let done = {
        let mut handle = handle.lock().unwrap();
        asked.number = {
            let mut ledger = ledger.lock().unwrap();
            ledger.asked.push(asked.clone());
            ledger.asked.len()
        };
        let done = handle(&asked);
        ledger.lock().unwrap().effects += usize::from(done.effect);
        done
    };
    let mut stream = stream;
    if let Some(answer) = done.answer {
        stream.write_all(&answer)?;
    }
    stream.shutdown(std::net::Shutdown::Both)
}

/// Content in chunks without trailers (RFC 9112 section 7.1).
fn chunks(reader: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let from = content.len();
        content.resize(from + size + 2, 0);
        reader.read_exact(&mut content[from..])?;
        content.truncate(from + size);
        if size == 0 {
            return Ok(content);
        }
    }
}

/// Charges once per key, loses the first answer of each, and refuses a key with another request.
pub fn honours_keys() -> impl FnMut(&Asked) -> Done + Send {
    let mut charges: HashMap<String, Vec<u8>> = HashMap::new();
    move |asked| {
        let key = asked.field("idempotency-key").unwrap_or_default().to_owned();
        match charges.get(&key) {
            Some(body) if *body != asked.body => Done::nothing_but(422, "", "another request"),
            Some(_) => Done::nothing_but(200, "", "charged once"),
            None => {
                charges.insert(key, asked.body.clone());
                Done::and_closes()
            }
        }
    }
}

/// Asks for a charge, with more arguments of curl.
pub fn pay(server: &Server, service: &Service, more: &[&str]) -> Response {
    let url = service.url("/charges");
    let mut arguments = vec!["-d", "amount=1", "-H", "Content-Type: text/plain"];
    arguments.extend(more);
    arguments.push(&url);
    server.curl(&arguments)
}
