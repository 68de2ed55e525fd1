//! A connection of HTTP/2 frame by frame, as a caller.

use super::World;
use super::wire::{Client, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

/// A literal field without indexing (RFC 7541 section 6.2.2); lengths above 126 in two or more bytes.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        match text.len() {
            short @ 0..127 => block.push(u8::try_from(short).expect("short")),
            long => {
                block.push(127);
                let mut left = long - 127;
                while left >= 128 {
                    block.push(u8::try_from(left % 128 + 128).expect("a byte"));
                    left /= 128;
                }
                block.push(u8::try_from(left).expect("a byte"));
            }
        }
        block.extend_from_slice(text.as_bytes());
    }
    block
}

pub fn authority(world: &World) -> String {
    format!("localhost:{}", world.secure.address.port())
}

pub fn fields(authority: &str, path: &str) -> Vec<u8> {
    let of = [(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", path)];
    of.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// A connection of HTTP/2 frame by frame.
pub struct Raw {
    pub stream: Box<dyn Transport>,
}

impl Raw {
    pub async fn tunnel(world: &World, host: &'static str, port: u16) -> Box<dyn Transport> {
        let mut client = Client::connect(world.address).await;
        let credentials = world.credentials();
        client
            .send(&format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: x\r\n{credentials}\r\n"))
            .await;
        assert_eq!(client.response("CONNECT").await.status, 200);
        client.into_h2(world.ca.certificate_pem(), host).await
    }

    pub async fn open(world: &World, host: &'static str, port: u16) -> Self {
        let stream = Self::tunnel(world, host, port).await;
        let mut raw = Self { stream };
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        raw.send(&frame(SETTINGS, 0, 0, b"")).await;
        raw
    }

    /// False when the other side takes no more.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok() && self.stream.flush().await.is_ok()
    }

    /// Type, stream and payload of the next frame; none at the end.
    pub async fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await.ok()?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], id, payload))
    }
}
