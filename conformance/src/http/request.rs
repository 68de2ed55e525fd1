//! Reads requests of HTTP/1.1, strictly.

use super::origin::{Shared, Transport};
use std::io;
use tokio::io::{AsyncReadExt as _, BufReader};

/// Longest head, in bytes, that an origin reads.
const HEAD_LIMIT: usize = 256 * 1024;

/// Reads the head of the next request; none where the connection ends before it.
pub(super) async fn read_head<S: Transport>(
    stream: &mut BufReader<S>,
    shared: &Shared,
) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && head.is_empty() => {
                return Ok(None);
            }
            Err(error) => {
                shared.stray(head.len());
                return Err(error);
            }
        }
        if head.len() > HEAD_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"));
        }
    }
    Ok(Some(head))
}

/// The value of the first field of that name, whatever its case.
pub(super) fn field(head: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    text.split("\r\n").skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// Reads the content of a request, and the trailer section behind it.
pub(super) async fn read_body<S: Transport>(
    stream: &mut BufReader<S>,
    head: &[u8],
) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut body = Vec::new();
    if field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        loop {
            let length = u64::from_str_radix(read_line(stream).await?.trim(), 16)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if length == 0 {
                return Ok((body, read_trailers(stream).await?));
            }
            (&mut *stream).take(length).read_to_end(&mut body).await?;
            read_line(stream).await?;
        }
    }
    if let Some(length) = field(head, "content-length").and_then(|text| text.parse().ok()) {
        let read = (&mut *stream).take(length).read_to_end(&mut body).await?;
        if read as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((body, Vec::new()))
}

/// Reads a trailer section to its empty line.
async fn read_trailers<S: Transport>(stream: &mut BufReader<S>) -> io::Result<Vec<u8>> {
    let mut section = Vec::new();
    loop {
        let line = read_line(stream).await?;
        section.extend_from_slice(line.as_bytes());
        section.extend_from_slice(b"\r\n");
        if line.is_empty() {
            return Ok(section);
        }
    }
}

async fn read_line<S: Transport>(stream: &mut BufReader<S>) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len().saturating_sub(2));
    String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
