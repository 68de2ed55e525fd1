//! A name server that answers by a table and counts what it is asked.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;

/// What is known of a name.
#[derive(Clone)]
pub enum Known {
    /// Its addresses, in the order of answers: each answer takes the next list, the last one stays.
    Addresses(Vec<(Vec<Ipv4Addr>, Vec<Ipv6Addr>)>),
    /// A response code.
    Code(u8),
    /// A response code, and an extended error (RFC 8914) for who asks by EDNS.
    Extended(u8, u16),
    Silent,
}

pub struct Dns {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Dns {
    pub async fn start(table: &[(&str, Known)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("socket");
        let address = socket.local_addr().expect("address");
        let mut table: HashMap<String, Known> =
            table.iter().map(|(name, known)| ((*name).to_owned(), known.clone())).collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut buffer = [0; 1500];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.expect("question");
                let (name, kind, end) = question(&buffer[..length]);
                if kind == 1 {
                    shared.lock().expect("lock").push(name.clone());
                }
                let known = table.get_mut(&name).cloned().unwrap_or(Known::Code(3));
                if let Some(Known::Addresses(lists)) = table.get_mut(&name)
                    && kind == 1
                    && lists.len() > 1
                {
                    lists.remove(0);
                }
                if let Some(answer) = answer(&buffer[..end], kind, &known, buffer[11] > 0) {
                    socket.send_to(&answer, from).await.expect("answer");
                }
            }
        });
        Self { address, asked }
    }

    /// Names whose IPv4 addresses were asked for, in order.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("lock").clone()
    }
}

/// Name, type, and the end of the question.
fn question(message: &[u8]) -> (String, u16, usize) {
    let (mut at, mut labels) = (12, Vec::new());
    while message[at] != 0 {
        let length = usize::from(message[at]);
        labels.push(String::from_utf8_lossy(&message[at + 1..at + 1 + length]).to_lowercase());
        at += 1 + length;
    }
    (labels.join("."), u16::from_be_bytes([message[at + 1], message[at + 2]]), at + 5)
}

/// `edns`: the question has an OPT record.
fn answer(asked: &[u8], kind: u16, known: &Known, edns: bool) -> Option<Vec<u8>> {
    let (code, records): (u8, Vec<Vec<u8>>) = match known {
        Known::Silent => return None,
        Known::Code(code) | Known::Extended(code, _) => (*code, Vec::new()),
        Known::Addresses(lists) => {
            let (four, six) = &lists[0];
            let of_kind = match kind {
                1 => four.iter().map(|address| address.octets().to_vec()).collect(),
                28 => six.iter().map(|address| address.octets().to_vec()).collect(),
                _ => Vec::new(),
            };
            (0, of_kind)
        }
    };
    let mut out = asked[..2].to_vec();
    out.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).expect("few"), 0, 0, 0, 0]);
    out.extend(&asked[12..]);
    for data in records {
        // The name of the question, class IN, no time to live.
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1, 0, 0, 0, 0, 0, u8::try_from(data.len()).expect("short")]);
        out.extend(data);
    }
    if let Known::Extended(_, code) = known
        && edns
    {
        out[11] = 1;
        // OPT of the root, 1232 bytes of UDP, no flags; option 15 with a text.
        out.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 10, 0, 15, 0, 6]);
        out.extend(code.to_be_bytes());
        out.extend(b"text");
    }
    Some(out)
}
