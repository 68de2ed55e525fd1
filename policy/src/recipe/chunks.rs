//! Content that a client signed in chunks (`aws-chunked`), signed anew chunk by chunk.
//!
//! ```text
//! size ";chunk-signature=" signature CRLF data CRLF  ... "0;chunk-signature=" signature CRLF
//!      ( CRLF | *( name ":" value CRLF ) "x-amz-trailer-signature:" signature CRLF CRLF )
//! ```
//!
//! Each signature covers the one before, the first the request's own. A signature stands in front of
//! what it covers, so a chunk leaves when all of it is there. The length stays what it was.
//! (Amazon S3 API reference: "Signature calculations for the Authorization header: transferring
//! payload in multiple chunks".)

use super::sigv4::{sha256, tag};
use crate::credential::Error;
use std::fmt;
use zeroize::Zeroizing;

/// Longer chunks are refused: each is held until it can be signed.
const CHUNK_BYTES: usize = 8 << 20;
/// A chunk's first line, or the trailer section, at most.
const HEAD_BYTES: usize = 16 << 10;
const MARK: &str = ";chunk-signature=";
const TRAILER: &str = "x-amz-trailer-signature";

/// Signs chunks anew, in the order in which they come.
#[derive(Clone)]
pub struct ChunkSigner {
    key: Zeroizing<Vec<u8>>,
    /// Time and scope, each with the line end behind it.
    context: String,
    before: String,
    trailer: bool,
    held: Vec<u8>,
    /// How much has to be held before there is something to do.
    wanted: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Chunk,
    Trailer,
    Done,
}

impl fmt::Debug for ChunkSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkSigner").field("state", &self.state).finish_non_exhaustive()
    }
}

const MALFORMED: Error = Error::Unreadable("the content is not in signed chunks, as its head says");

impl ChunkSigner {
    /// Begins behind a request that was signed at that time, in that scope.
    pub(super) fn new(
        key: Zeroizing<Vec<u8>>,
        time: &str,
        scope: &str,
        seed: String,
        trailer: bool,
    ) -> Self {
        let context = format!("{time}\n{scope}\n");
        Self {
            key,
            context,
            before: seed,
            trailer,
            held: Vec::new(),
            wanted: 0,
            state: State::Chunk,
        }
    }

    /// Takes the next piece of the content; answers what may leave.
    ///
    /// # Errors
    /// [`Error::Unreadable`] for content in another form, [`Error::Unsupported`] for chunks of more
    /// than 8 MiB. Nothing of the content is to leave after that.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<u8>, Error> {
        self.held.extend_from_slice(piece);
        if self.held.len() < self.wanted {
            return Ok(Vec::new());
        }
        self.wanted = 0;
        let held = std::mem::take(&mut self.held);
        let (mut rest, mut out) = (held.as_slice(), Vec::with_capacity(held.len()));
        loop {
            let taken = match self.state {
                State::Chunk => self.chunk(rest, &mut out)?,
                State::Trailer => self.trailer(rest, &mut out)?,
                State::Done if rest.is_empty() => None,
                State::Done => return Err(MALFORMED),
            };
            let Some(taken) = taken else { break };
            rest = rest.get(taken..).unwrap_or_default();
        }
        self.held = rest.to_vec();
        Ok(out)
    }

    /// Says whether the content ended where its last chunk says.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn finish(&self) -> Result<(), Error> {
        if self.state == State::Done { Ok(()) } else { Err(MALFORMED) }
    }

    /// Signs the first chunk of the bytes, if all of it is there; answers its length.
    fn chunk(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        let Some(end) = line_end(bytes)? else { return Ok(None) };
        let line = bytes.get(..end).and_then(|line| std::str::from_utf8(line).ok());
        let (size, signature) = line.and_then(|l| l.split_once(MARK)).ok_or(MALFORMED)?;
        let plain = (1..=8).contains(&size.len()) && size.bytes().all(|c| c.is_ascii_hexdigit());
        let length = usize::from_str_radix(size, 16).ok().filter(|_| plain).ok_or(MALFORMED)?;
        if !is_signature(signature) {
            return Err(MALFORMED);
        }
        if length > CHUNK_BYTES {
            return Err(Error::Unsupported("signing chunks of more than 8 MiB"));
        }
        let start = end + 2;
        let last = length == 0;
        // The last chunk of content with a trailer has no line end of its own.
        let whole = start + length + if last && self.trailer { 0 } else { 2 };
        let Some(data) = bytes.get(start..whole).and_then(|rest| rest.get(..length)) else {
            self.wanted = whole;
            return Ok(None);
        };
        let behind = bytes.get(start + length..whole).unwrap_or_default();
        if !behind.is_empty() && behind != b"\r\n" {
            return Err(MALFORMED);
        }
        let signed = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{}{}\n{}\n{}",
            self.context,
            self.before,
            sha256(b""),
            sha256(data)
        );
        self.before = tag(&self.key, &signed);
        out.extend_from_slice(format!("{size}{MARK}{}\r\n", self.before).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(behind);
        if last {
            self.state = if self.trailer { State::Trailer } else { State::Done };
        }
        Ok(Some(whole))
    }

    /// Signs the trailer section, if all of it is there; answers its length.
    fn trailer(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Error> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return if bytes.len() > HEAD_BYTES { Err(MALFORMED) } else { Ok(None) };
        };
        let text = bytes.get(..end).and_then(|text| std::str::from_utf8(text).ok());
        let (mut canonical, mut signature) = (String::new(), None);
        for line in text.ok_or(MALFORMED)?.split("\r\n") {
            let (name, value) = line.split_once(':').ok_or(MALFORMED)?;
            if signature.is_some() {
                return Err(MALFORMED);
            }
            if name.eq_ignore_ascii_case(TRAILER) {
                signature = Some(value.trim());
            } else {
                out.extend_from_slice(line.as_bytes());
                out.extend_from_slice(b"\r\n");
                canonical.push_str(&format!("{}:{}\n", name.to_ascii_lowercase(), value.trim()));
            }
        }
        if !signature.is_some_and(is_signature) {
            return Err(MALFORMED);
        }
        let (context, before) = (&self.context, &self.before);
        let digest = sha256(canonical.as_bytes());
        let signed = format!("AWS4-HMAC-SHA256-TRAILER\n{context}{before}\n{digest}");
        self.before = tag(&self.key, &signed);
        out.extend_from_slice(format!("{TRAILER}:{}\r\n\r\n", self.before).as_bytes());
        self.state = State::Done;
        Ok(Some(end + 4))
    }
}

/// Where the first line ends; none: not there yet.
fn line_end(bytes: &[u8]) -> Result<Option<usize>, Error> {
    match bytes.windows(2).position(|window| window == b"\r\n") {
        None if bytes.len() > HEAD_BYTES => Err(MALFORMED),
        end => Ok(end),
    }
}

fn is_signature(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::super::sigv4::signing_key;
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn signer(seed: &str, trailer: bool) -> ChunkSigner {
        let key = signing_key(SECRET, "20130524", "us-east-1", "s3");
        let scope = "20130524/us-east-1/s3/aws4_request";
        ChunkSigner::new(key, "20130524T000000Z", scope, seed.to_owned(), trailer)
    }

    /// What a client sends, with signatures of its own.
    fn sent(trailer: &str) -> Vec<u8> {
        let chunk = |size: usize| {
            let data = "a".repeat(size);
            format!("{size:x}{MARK}{NONE}\r\n{data}\r\n")
        };
        let end = if trailer.is_empty() { "\r\n".to_owned() } else { trailer.to_owned() };
        format!("{}{}0{MARK}{NONE}\r\n{end}", chunk(65_536), chunk(1024)).into_bytes()
    }

    fn signatures(bytes: &[u8]) -> Vec<String> {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let marks = [MARK, "x-amz-trailer-signature:"];
        let found = marks.iter().flat_map(|mark| text.split(mark).skip(1));
        found.map(|rest| rest[..64].to_owned()).collect()
    }

    fn check(signer: ChunkSigner, content: &[u8], expected: &[&str]) {
        for size in [1, 7, 4096, content.len()] {
            let (mut signer, mut out) = (signer.clone(), Vec::new());
            assert!(signer.finish().is_err());
            for piece in content.chunks(size) {
                out.extend(signer.push(piece).unwrap());
            }
            signer.finish().unwrap();
            assert_eq!(out.len(), content.len());
            assert_eq!(signatures(&out), expected);
        }
    }

    /// The example of Amazon's reference: 65 KiB of `a` in chunks of 64 KiB.
    #[test]
    fn the_chunks_of_amazons_example() {
        check(
            signer("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9", false),
            &sent(""),
            &[
                "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
                "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
                "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
            ],
        );
    }

    /// The same with a trailing checksum.
    #[test]
    fn the_trailer_of_amazons_example() {
        let trailer = format!("x-amz-checksum-crc32c:sOO8/Q==\r\n{TRAILER}:{NONE}\r\n\r\n");
        check(
            signer("106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e", true),
            &sent(&trailer),
            &[
                "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
                "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
                "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
                "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435",
            ],
        );
    }

    /// I-1: content in another form is refused, however it is cut.
    #[test]
    fn i_1_other_content_is_refused() {
        let good = String::from_utf8(sent("")).unwrap();
        let trailer = format!("0{MARK}{NONE}\r\nx-amz-checksum-crc32:AAAA\r\n");
        for (content, trailing) in [
            ("plain text\r\n", false),
            (&good.replace(NONE, "00"), false),
            (&good.replace("400;", "401;"), false),
            (&good.replace("400;", "+400;"), false),
            (&format!("{good}x"), false),
            (&"x".repeat(HEAD_BYTES + 1), false),
            (&format!("{trailer}\r\n"), true),
            (&format!("{trailer}{TRAILER}:00\r\n\r\n"), true),
            (&format!("{trailer}{TRAILER}:{NONE}\r\nmore:x\r\n\r\n"), true),
        ] {
            let mut signer = signer(NONE, trailing);
            let pushed = signer.push(content.as_bytes()).and_then(|_| signer.finish());
            assert_eq!(pushed, Err(MALFORMED), "{}", &content[..content.len().min(40)]);
        }
        let mut signer = signer(NONE, false);
        let long = format!("800001{MARK}{NONE}\r\n");
        assert!(matches!(signer.push(long.as_bytes()), Err(Error::Unsupported(_))));
        let mut cut = super::tests::signer(NONE, false);
        cut.push(&good.as_bytes()[..good.len() - 1]).unwrap();
        assert_eq!(cut.finish(), Err(MALFORMED));
    }
}
