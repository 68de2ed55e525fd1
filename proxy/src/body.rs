//! The content of HTTP/1.1 messages as it comes in: lengths, chunks, and their proven end.

use crate::head::{self, Fields, Framing, Limit};
use bytes::{Bytes, BytesMut};
use journal::contract::Completion;

/// A chunk-size line, extensions included, at most.
const MAX_SIZE_LINE: usize = 1024;

/// What is wrong with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The chunk framing is malformed.
    #[error("the chunked framing is malformed")]
    Chunk,
    /// The trailer section is malformed.
    #[error("the trailer section is malformed")]
    Trailer,
    /// The trailer section is longer than a head may be.
    #[error("the trailer section is longer than 64 KiB")]
    TrailerTooLong,
    /// The trailer section has more fields than a head may have.
    #[error("the trailer section has more than 100 fields")]
    TooManyTrailers,
}

impl Fault {
    /// What a fault of a field section is in trailers.
    pub(crate) const fn of_trailers(fault: head::Fault) -> Self {
        match fault {
            head::Fault::TooLong => Self::TrailerTooLong,
            head::Fault::TooManyFields => Self::TooManyTrailers,
            head::Fault::StartLine
            | head::Fault::Target
            | head::Fault::Version
            | head::Fault::ClearTextHttp2
            | head::Fault::LineEnd
            | head::Fault::Folded
            | head::Fault::FieldName
            | head::Fault::FieldValue
            | head::Fault::ContentLength
            | head::Fault::TransferEncoding
            | head::Fault::ConflictingFraming
            | head::Fault::Host
            | head::Fault::HostValue
            | head::Fault::MaxForwards => Self::Trailer,
        }
    }
}

/// What the decoder found.
pub(crate) enum Step {
    /// Content bytes; never empty.
    Data(Bytes),
    /// More bytes are needed.
    More,
    /// The completion marker was seen; nothing follows.
    End(Completion, Fields),
}

/// Takes content out of a buffer by its framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoder {
    Empty,
    Length(u64),
    /// Before a chunk-size line.
    Size,
    /// Inside a chunk, with what is left of it.
    Chunk(u64),
    /// Before the CRLF that ends a chunk.
    ChunkEnd,
    /// Inside the trailer section.
    Trailer,
    Close,
    Done,
}

impl From<Framing> for Decoder {
    fn from(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Empty,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Size,
            Framing::Close => Self::Close,
        }
    }
}

impl Decoder {
    /// Takes the next step on what is buffered.
    pub(crate) fn step(&mut self, buffer: &mut BytesMut) -> Result<Step, Fault> {
        self.step_within(buffer, head::OF_PEERS)
    }

    /// As [`Decoder::step`], with another limit of the trailer section.
    pub(crate) fn step_within(
        &mut self,
        buffer: &mut BytesMut,
        limit: Limit,
    ) -> Result<Step, Fault> {
        loop {
            match *self {
                Self::Empty => return Ok(self.end(Completion::NoContent)),
                Self::Length(0) => return Ok(self.end(Completion::ContentLength)),
                Self::Length(left) => {
                    let (step, left) = take(buffer, left);
                    *self = Self::Length(left);
                    return Ok(step);
                }
                Self::Size => match size_line(buffer)? {
                    None => return Ok(Step::More),
                    Some(0) => *self = Self::Trailer,
                    Some(size) => *self = Self::Chunk(size),
                },
                Self::Chunk(0) => *self = Self::ChunkEnd,
                Self::Chunk(left) => {
                    let (step, left) = take(buffer, left);
                    *self = Self::Chunk(left);
                    return Ok(step);
                }
                Self::ChunkEnd => match buffer.as_ref() {
                    [b'\r', b'\n', ..] => {
                        drop(buffer.split_to(2));
                        *self = Self::Size;
                    }
                    [] | [b'\r'] => return Ok(Step::More),
                    _ => return Err(Fault::Chunk),
                },
                Self::Trailer => {
                    let trailers = trailer_section(buffer, limit)?;
                    let Some(trailers) = trailers else { return Ok(Step::More) };
                    *self = Self::Done;
                    return Ok(Step::End(Completion::Chunked, trailers));
                }
                Self::Close if buffer.is_empty() => return Ok(Step::More),
                Self::Close => return Ok(Step::Data(buffer.split().freeze())),
                Self::Done => return Ok(Step::More),
            }
        }
    }

    fn end(&mut self, completion: Completion) -> Step {
        *self = Self::Done;
        Step::End(completion, Fields::default())
    }
}

fn take(buffer: &mut BytesMut, left: u64) -> (Step, u64) {
    if buffer.is_empty() {
        return (Step::More, left);
    }
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
    (Step::Data(buffer.split_to(length).freeze()), left - length as u64)
}

/// `chunk-size [ chunk-ext ] CRLF`, extensions dropped. The size may have leading zeros, as many as the
/// line has room for (RFC 9112 section 7.1).
fn size_line(buffer: &mut BytesMut) -> Result<Option<u64>, Fault> {
    let Some(end) = buffer.iter().take(MAX_SIZE_LINE).position(|byte| *byte == b'\n') else {
        return if buffer.len() >= MAX_SIZE_LINE { Err(Fault::Chunk) } else { Ok(None) };
    };
    let line = buffer.split_to(end + 1);
    let line = line.strip_suffix(b"\r\n").ok_or(Fault::Chunk)?;
    if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(Fault::Chunk);
    }
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, extension) = line.split_at_checked(digits).ok_or(Fault::Chunk)?;
    if digits == 0 || !are_extensions(extension) {
        return Err(Fault::Chunk);
    }
    let text = std::str::from_utf8(size).map_err(|_| Fault::Chunk)?;
    // What does not fit is refused, whatever else it says.
    u64::from_str_radix(text, 16).map(Some).map_err(|_| Fault::Chunk)
}

/// `*( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )` (RFC 9112 section 7.1.1). Blanks stand in
/// front of something, and a quoted text ends.
fn are_extensions(mut rest: &[u8]) -> bool {
    const fn is_blank(byte: u8) -> bool {
        matches!(byte, b' ' | b'\t')
    }
    fn unpadded(text: &[u8]) -> &[u8] {
        let blanks = text.iter().take_while(|byte| is_blank(**byte)).count();
        text.get(blanks..).unwrap_or_default()
    }
    fn behind_token(text: &[u8]) -> Option<&[u8]> {
        let is_token = |byte: &u8| head::is_token(std::slice::from_ref(byte));
        let length = text.iter().take_while(|byte| is_token(byte)).count();
        text.get(length..).filter(|_| length > 0)
    }
    while !rest.is_empty() {
        let Some(name) = unpadded(rest).strip_prefix(b";") else { return false };
        let Some(behind) = behind_token(unpadded(name)) else { return false };
        rest = behind;
        if let Some(value) = unpadded(behind).strip_prefix(b"=") {
            let value = unpadded(value);
            let behind = match value.strip_prefix(b"\"") {
                Some(quoted) => behind_quote(quoted),
                None => behind_token(value),
            };
            let Some(behind) = behind else { return false };
            rest = behind;
        }
    }
    true
}

/// What stands behind the end of a quoted text (RFC 9110 section 5.6.4).
fn behind_quote(text: &[u8]) -> Option<&[u8]> {
    let mut escaped = false;
    let end = text.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    text.get(end + 1..)
}

fn trailer_section(buffer: &mut BytesMut, limit: Limit) -> Result<Option<Fields>, Fault> {
    if buffer.starts_with(b"\r\n") {
        drop(buffer.split_to(2));
        return Ok(Some(Fields::default()));
    }
    let mut searched = 0;
    match head::find_end_within(buffer, &mut searched, limit) {
        None => Ok(None),
        Some(Err(fault)) => Err(Fault::of_trailers(fault)),
        Some(Ok(end)) => {
            let section = buffer.split_to(end).freeze();
            head::fields(&section, 0, limit).map(Some).map_err(Fault::of_trailers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the text byte by byte, then whole: the result must be the same.
    fn check(framing: Framing, text: &str, expected: Result<(&str, Completion, usize), Fault>) {
        for pace in [1, 3, text.len().max(1)] {
            let mut decoder = Decoder::from(framing);
            let mut buffer = BytesMut::new();
            let mut content = Vec::new();
            let mut input = text.as_bytes().chunks(pace);
            let got = loop {
                match decoder.step(&mut buffer) {
                    Ok(Step::Data(data)) => content.extend_from_slice(&data),
                    Ok(Step::End(completion, trailers)) => {
                        break Ok((completion, trailers.iter().count()));
                    }
                    Err(fault) => break Err(fault),
                    Ok(Step::More) => match input.next() {
                        Some(piece) => buffer.extend_from_slice(piece),
                        None => panic!("{text:?} never ends"),
                    },
                }
            };
            let got = got.map(|(completion, n)| {
                (String::from_utf8(content.clone()).expect("utf-8"), completion, n)
            });
            let expected = expected.map(|(text, completion, n)| (text.to_owned(), completion, n));
            assert_eq!(got, expected, "{text:?} by {pace}");
        }
    }

    #[test]
    fn d_2_the_end_is_proven_by_the_framing() {
        check(Framing::Empty, "", Ok(("", Completion::NoContent, 0)));
        check(Framing::Length(3), "abcd", Ok(("abc", Completion::ContentLength, 0)));
        check(Framing::Length(0), "", Ok(("", Completion::ContentLength, 0)));
        let chunked = |text, expected| check(Framing::Chunked, text, expected);
        chunked("0\r\n\r\n", Ok(("", Completion::Chunked, 0)));
        chunked("3\r\nabc\r\n00\r\n\r\n", Ok(("abc", Completion::Chunked, 0)));
        chunked(
            "0000000000000002;a=b\r\nab\r\n00000000000000000000\r\n\r\n",
            Ok(("ab", Completion::Chunked, 0)),
        );
        for extensions in [" ;a", "\t; a = b", ";a=\"b;c\\\"d\" ;e", ";a;b;c=\"\""] {
            let text = format!("2{extensions}\r\nok\r\n0{extensions}\r\n\r\n");
            check(Framing::Chunked, &text, Ok(("ok", Completion::Chunked, 0)));
        }
        chunked(
            "A;x=\"y\"\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
            Ok(("0123456789", Completion::Chunked, 1)),
        );
    }

    /// RFC 9112 section 7.1: every size that there is a number for is one, with as many zeros before it as
    /// the line has room for.
    #[test]
    fn d_2_sizes_of_chunks_are_numbers() {
        let size = |text: &str| size_line(&mut BytesMut::from(text.as_bytes()));
        for (text, expected) in [
            ("1000000000000000\r\n", 1 << 60),
            ("ffffffffffffffff\r\n", u64::MAX),
            ("0000FFFFFFFFFFFFFFFF;x\r\n", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(Some(expected)), "{text}");
        }
        let zeros = |count: usize| size(&format!("{}2\r\n", "0".repeat(count)));
        assert_eq!(zeros(MAX_SIZE_LINE - 3), Ok(Some(2)));
        assert_eq!(zeros(MAX_SIZE_LINE), Err(Fault::Chunk));
    }

    /// S-2, V-1: framing that leaves doubt is a fault, never an end.
    #[test]
    fn s_2_malformed_chunks_are_faults() {
        for text in [
            "\r\n",
            "10000000000000000\r\n",
            "000010000000000000000\r\n",
            "g\r\n",
            "-1\r\n",
            "0x1\r\n",
            "1 2\r\n",
            "1\nabc",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "1;\x00\r\n",
            "1\r\r\n",
            "fffffffffffffffff\r\n",
            "+1\r\n",
            // Blanks stand in front of an extension, of "=" and of what is behind those; nowhere else.
            "2 \r\n",
            "2\t\r\n",
            "2; \r\n",
            "2;\r\n",
            "2;a \r\n",
            "2;a=b \r\n",
            "2;a=\r\n",
            "2;a=\"\r\n",
            "2;a=\"b\\\"\r\n",
            "2;a=\"b\"c\r\n",
            "2;a b\r\n",
            "2;=b\r\n",
            "2;a==b\r\n",
        ] {
            check(Framing::Chunked, text, Err(Fault::Chunk));
        }
        check(Framing::Chunked, "0\r\nbad trailer\r\n\r\n", Err(Fault::Trailer));
        check(Framing::Chunked, "0\r\nA: b\n\r\n", Err(Fault::Trailer));
    }

    proptest::proptest! {
        /// S-2: any content comes out of any division into chunks as it went in, however it
        /// arrives; without its last byte it never ends.
        #[test]
        fn s_2_chunks_carry_any_content(
            chunks in proptest::collection::vec(proptest::collection::vec(0_u8.., 1..40), 0..6),
            pace in 1..50_usize,
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let run = |text: &[u8]| {
                let mut decoder = Decoder::from(Framing::Chunked);
                let (mut buffer, mut content) = (BytesMut::new(), Vec::new());
                let mut input = text.chunks(pace);
                loop {
                    match decoder.step(&mut buffer).expect("well-formed") {
                        Step::Data(data) => content.extend_from_slice(&data),
                        Step::End(..) => return Some(content),
                        Step::More => buffer.extend_from_slice(input.next()?),
                    }
                }
            };
            proptest::prop_assert_eq!(run(&text), Some(chunks.concat()));
            proptest::prop_assert_eq!(run(&text[..text.len() - 1]), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let mut decoder = Decoder::from(Framing::Chunked);
            let mut buffer = BytesMut::from(bytes.as_slice());
            while matches!(decoder.step(&mut buffer), Ok(Step::Data(_))) {}
        }
    }
}
