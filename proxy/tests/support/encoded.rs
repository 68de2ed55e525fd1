//! Content that an origin encodes unasked, with or without an echo of the credential in it.

use std::io::{Read as _, Write as _};

pub const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];
/// Fields that name the bytes of the content, and one that names something else.
pub const NAMED: &str = "ETag: \"e\"\r\nDigest: SHA-256=AA==\r\nContent-Digest: sha-256=:AA==:\r\n\
                         Repr-Digest: sha-256=:AA==:\r\nContent-MD5: AA==\r\nLast-Modified: x\r\n";
/// What the bomb unpacks to.
const BOMB_MIB: usize = 80;

/// Text around an echo; it does not compress away.
pub fn text(before: usize, echo: &str, after: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b"0123456789abcdef"[(state >> 60) as usize]
    };
    let mut text: Vec<u8> = (0..before).map(|_| next()).collect();
    text.extend_from_slice(echo.as_bytes());
    text.extend((0..after).map(|_| next()));
    text
}

pub fn encode(coding: &str, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
            encoder.write_all(text).expect("encodes");
            encoder.finish().expect("encodes");
        }
        "deflate" => {
            let mut encoder =
                flate2::write::ZlibEncoder::new(&mut out, flate2::Compression::best());
            encoder.write_all(text).expect("encodes");
            encoder.finish().expect("encodes");
        }
        "br" => {
            let mut encoder = brotli::CompressorWriter::new(&mut out, 4096, 3, 18);
            encoder.write_all(text).expect("encodes");
            drop(encoder);
        }
        "identity" => out.extend_from_slice(text),
        "zstd" => out = zstd::stream::encode_all(text, 3).expect("encodes"),
        other => panic!("{other}"),
    }
    out
}

/// The text, if the content is whole.
pub fn unpack(coding: &str, content: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    match coding {
        "gzip" => flate2::read::MultiGzDecoder::new(content).read_to_end(&mut text),
        "deflate" => flate2::read::ZlibDecoder::new(content).read_to_end(&mut text),
        "br" => brotli::Decompressor::new(content, 4096).read_to_end(&mut text),
        "zstd" => zstd::stream::read::Decoder::new(content).ok()?.read_to_end(&mut text),
        other => panic!("{other}"),
    }
    .ok()?;
    Some(text)
}

/// The response that the query describes, to a request with this head.
pub fn response(query: &str, head: &str) -> Vec<u8> {
    let value =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str| value(name).and_then(|n| n.parse().ok()).unwrap_or(0_usize);
    let has = |name: &str| query.split('&').any(|pair| pair == name);
    let coding = value("coding").expect("coding");
    let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with("authorization:"));
    let token = line.and_then(|line| line.split(' ').nth(2)).expect("a credential");
    let echo = if has("no-echo") { "" } else { token };
    let named = if has("named") { NAMED } else { "" };
    let mut content = if has("bomb") {
        encode(coding, &vec![0; BOMB_MIB << 20])
    } else {
        encode(coding, &text(number("before"), echo, number("after")))
    };
    if has("damaged") {
        let checksum = content.len().checked_sub(8).expect("a trailer of gzip");
        content[checksum] ^= 1;
    }
    // A hop answers in the origin's place, with a page that it made of the request.
    let status = match has("hop") {
        true => "502 Bad Gateway\r\nProxy-Status: hop; error=connection_terminated",
        false => "200 OK",
    };
    let start = format!("HTTP/1.1 {status}\r\nContent-Encoding: {coding}\r\n{named}");
    match value("framing") {
        Some("chunked") => {
            let mut out = format!("{start}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
            for piece in content.chunks(number("piece").max(1)) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            let trailer =
                if has("named") { "Content-Digest: sha-256=:AA==:\r\nX-Sum: 1\r\n" } else { "" };
            out.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
            out
        }
        Some("length") => {
            let head = format!("{start}Content-Length: {}\r\n\r\n", content.len());
            [head.into_bytes(), content].concat()
        }
        other => panic!("{other:?}"),
    }
}
