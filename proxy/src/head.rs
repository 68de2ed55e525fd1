//! Heads of HTTP/1.x messages, parsed by the letter of RFC 9112 and not a byte beyond.
//!
//! What other parsers repair is refused here, in requests and in responses alike: bare LF, folded
//! lines, white space before a colon, control bytes. One message must mean one thing to everybody.

use bytes::Bytes;
use std::fmt;
use std::ops::Range;

/// Bytes of a head at most.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Fields of a head at most.
pub(crate) const MAX_FIELDS: usize = 100;

/// How much a head or a trailer section may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    bytes: usize,
    fields: usize,
}

/// Of what peers send.
pub(crate) const OF_PEERS: Limit = Limit { bytes: MAX_BYTES, fields: MAX_FIELDS };
/// Of what this proxy wrote itself: a peer's whole section, with our own fields beside it.
pub(crate) const OF_OURS: Limit = Limit { bytes: usize::MAX, fields: usize::MAX };

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// More than [`MAX_BYTES`].
    #[error("the head is longer than 64 KiB")]
    TooLong,
    /// More than [`MAX_FIELDS`].
    #[error("the head has more than 100 fields")]
    TooManyFields,
    /// Not `method SP target SP version`, or `version SP status SP reason`.
    #[error("the start line is malformed")]
    StartLine,
    /// Not a target of visible ASCII (RFC 3986 section 2).
    #[error("the request target has a character that belongs percent-encoded there")]
    Target,
    /// Not HTTP/1.0 or HTTP/1.1.
    #[error("the protocol version is not HTTP/1.0 or HTTP/1.1")]
    Version,
    /// The preface of HTTP/2 with prior knowledge (RFC 9113 section 3.3).
    #[error("HTTP/2 without TLS is not spoken here; use TLS, or a route with `intercept = false`")]
    ClearTextHttp2,
    /// A line ends in LF without CR, or holds a CR or NUL.
    #[error("a line of the head does not end in CRLF, or holds CR or NUL")]
    LineEnd,
    /// A line begins with white space (obsolete folding).
    #[error("a field line is folded")]
    Folded,
    /// A field name is empty or holds a byte that no token has.
    #[error("a field name is malformed")]
    FieldName,
    /// A field value holds a control byte.
    #[error("a field value holds a control byte")]
    FieldValue,
    /// More than one `Content-Length`, or not a plain number.
    #[error("Content-Length is not exactly one number")]
    ContentLength,
    /// `Transfer-Encoding` is not exactly `chunked`, or not allowed here.
    #[error("Transfer-Encoding is not exactly \"chunked\"")]
    TransferEncoding,
    /// `Transfer-Encoding` and `Content-Length` together.
    #[error("Transfer-Encoding and Content-Length stand together")]
    ConflictingFraming,
    /// No or more than one `Host`.
    #[error("Host is not there exactly once")]
    Host,
    /// `Host` holds something else than a host and, perhaps, a port.
    #[error("Host is not a host with or without a port")]
    HostValue,
    /// `Max-Forwards` is there more than once, or is no number, where it counts.
    #[error("Max-Forwards is not exactly one number")]
    MaxForwards,
}

impl Fault {
    /// The path of the field that the caller can correct (contract V-2).
    pub(crate) const fn field(self) -> &'static str {
        match self {
            Self::StartLine => "request.line",
            Self::Target => "request.target",
            Self::Version | Self::ClearTextHttp2 => "request.version",
            Self::TooLong | Self::TooManyFields | Self::LineEnd => "request.head",
            Self::Folded | Self::FieldName | Self::FieldValue => "request.headers",
            Self::ContentLength | Self::ConflictingFraming => "request.headers.content-length",
            Self::TransferEncoding => "request.headers.transfer-encoding",
            Self::Host | Self::HostValue => "request.headers.host",
            Self::MaxForwards => "request.headers.max-forwards",
        }
    }
}

/// Fields that no nomination takes away: what the meaning of the message rests on, and what this hop
/// itself reads and does not pass on.
const STAPLES: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Whether the name is in our own name space.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    // To some services `_` in a name is `-` (RFC 3875 section 4.1.18).
    let (word, rest) = name.split_at_checked(7).unwrap_or_default();
    word.eq_ignore_ascii_case(b"affiant") && matches!(rest, [b'-' | b'_', _, ..])
}

fn is_staple(name: &[u8]) -> bool {
    is_ours(name) || STAPLES.iter().any(|staple| name.eq_ignore_ascii_case(staple.as_bytes()))
}

/// The minor version of HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// The protocol that a message was received by, as `Via` names it (RFC 9110 section 7.6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    By(Version),
    InFrames,
}

impl Received {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::By(Version::Http10) => "1.0",
            Self::By(Version::Http11) => "1.1",
            Self::InFrames => "2",
        }
    }
}

/// A field section in the order and spelling of the wire.
#[derive(Clone, Default)]
pub(crate) struct Fields {
    buffer: Bytes,
    spans: Vec<(Range<usize>, Range<usize>)>,
}

/// Values can be secrets, so only names are shown.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name.escape_ascii())).finish()
    }
}

impl Fields {
    /// Names and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().filter_map(|(name, value)| {
            Some((self.buffer.get(name.clone())?, self.buffer.get(value.clone())?))
        })
    }

    /// What is wrong with a section that came in frames, behind so many bytes of other kinds, and that the
    /// library lets pass: its size, and blanks around values (RFC 9113 section 8.2.1).
    pub(crate) fn fault_in_frames(&self, before: usize) -> Option<Fault> {
        let lines = self.iter().map(|(name, value)| name.len() + value.len() + 4);
        let is_padded = |(_, value): (&[u8], &[u8])| value.trim_ascii().len() < value.len();
        if self.spans.len() > MAX_FIELDS {
            Some(Fault::TooManyFields)
        } else if before + lines.sum::<usize>() > MAX_BYTES {
            Some(Fault::TooLong)
        } else {
            self.iter().any(is_padded).then_some(Fault::FieldValue)
        }
    }

    /// Takes fields away.
    pub(crate) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        let buffer = self.buffer.clone();
        self.spans.retain(|(name, _)| buffer.get(name.clone()).is_some_and(&keep));
    }

    /// Takes away what `Connection` nominates (RFC 9110 section 7.6.1). It does not go on, so nothing
    /// may be decided, approved or recorded by it.
    fn drop_nominated(&mut self) {
        let nominated: Vec<Vec<u8>> = self
            .members("connection")
            .filter(|name| !is_staple(name))
            .map(<[u8]>::to_vec)
            .collect();
        if !nominated.is_empty() {
            self.retain(|name| !nominated.iter().any(|gone| gone.eq_ignore_ascii_case(name)));
        }
    }

    /// The values of every field of the name.
    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter_map(move |(n, v)| n.eq_ignore_ascii_case(name.as_bytes()).then_some(v))
    }

    /// The first value of the name, if it is UTF-8.
    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Whether the name is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// The comma-separated members of every field of the name, trimmed, empty ones left out.
    pub(crate) fn members<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.all(name)
            .flat_map(|value| value.split(|c| *c == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|member| !member.is_empty())
    }

    /// Whether a member of the list-valued field equals the token, without regard to case.
    pub(crate) fn has_member(&self, name: &str, token: &str) -> bool {
        self.members(name).any(|member| member.eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// From names and values that are well-formed already.
impl FromIterator<(Vec<u8>, Vec<u8>)> for Fields {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(lines: I) -> Self {
        let mut buffer = Vec::new();
        let mut put = |bytes: &[u8]| {
            let from = buffer.len();
            buffer.extend_from_slice(bytes);
            from..buffer.len()
        };
        let spans = lines.into_iter().map(|(name, value)| (put(&name), put(&value))).collect();
        Self { buffer: buffer.into(), spans }
    }
}

/// The head of a request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// As it stands on the wire.
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) fields: Fields,
}

/// The head of a response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) fields: Fields,
}

/// How long the content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is none.
    Empty,
    /// The declared number of bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// Until the connection closes (responses only).
    Close,
}

/// Finds the end of the head: the offset after its empty line. `searched` remembers how far earlier
/// calls came. A bare LF ends the search early, so that a faulty head is judged without waiting for
/// more of it.
pub(crate) fn find_end(buffer: &[u8], searched: &mut usize) -> Option<Result<usize, Fault>> {
    find_end_within(buffer, searched, OF_PEERS)
}

/// As [`find_end`], with another limit.
pub(crate) fn find_end_within(
    buffer: &[u8],
    searched: &mut usize,
    limit: Limit,
) -> Option<Result<usize, Fault>> {
    let from = *searched;
    let rest = buffer.get(from..).unwrap_or_default();
    for at in memchr::memchr2_iter(b'\n', 0, rest).map(|at| from + at) {
        let crlf = buffer.get(at) == Some(&b'\n') && at > 0 && buffer.get(at - 1) == Some(&b'\r');
        if !crlf {
            return Some(Err(Fault::LineEnd));
        }
        if at >= 3 && buffer.get(at - 3..at - 1) == Some(b"\r\n".as_slice()) {
            return Some(if at < limit.bytes { Ok(at + 1) } else { Err(Fault::TooLong) });
        }
    }
    *searched = buffer.len();
    (buffer.len() >= limit.bytes).then_some(Err(Fault::TooLong))
}

const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Whether the bytes are a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_token_byte(*byte))
}

const fn is_value_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..=0xff)
}

/// Reads field lines, each ended by CRLF, up to the empty line or the end.
pub(crate) fn fields(buffer: &Bytes, from: usize, limit: Limit) -> Result<Fields, Fault> {
    let mut spans = Vec::with_capacity(16);
    let mut start = from;
    loop {
        let rest = buffer.get(start..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return if rest.is_empty() {
                Ok(Fields { buffer: buffer.clone(), spans })
            } else {
                Err(Fault::LineEnd)
            };
        };
        let line = rest.get(..end).and_then(|line| line.strip_suffix(b"\r"));
        let line = line.ok_or(Fault::LineEnd)?;
        if line.is_empty() {
            return Ok(Fields { buffer: buffer.clone(), spans });
        }
        if spans.len() >= limit.fields {
            return Err(Fault::TooManyFields);
        }
        spans.push(field_line(line, start)?);
        start += end + 1;
    }
}

/// Reads one field line and gives the spans of name and value; `base` is the line's offset.
fn field_line(line: &[u8], base: usize) -> Result<(Range<usize>, Range<usize>), Fault> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err(Fault::Folded);
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Fault::FieldName)?;
    let (name, rest) = line.split_at_checked(colon).ok_or(Fault::FieldName)?;
    if !is_token(name) {
        return Err(Fault::FieldName);
    }
    let value = rest.get(1..).unwrap_or_default();
    if value.contains(&b'\r') || value.contains(&0) {
        return Err(Fault::LineEnd);
    }
    if !value.iter().all(|byte| is_value_byte(*byte)) {
        return Err(Fault::FieldValue);
    }
    let leading = value.len() - value.trim_ascii_start().len();
    let trimmed = value.trim_ascii();
    let from = base + colon + 1 + leading;
    Ok((base..base + colon, from..from + trimmed.len()))
}

fn start_line(buffer: &Bytes) -> Result<(&[u8], usize), Fault> {
    let end = buffer.iter().position(|byte| *byte == b'\n').ok_or(Fault::StartLine)?;
    let line = buffer.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(Fault::LineEnd)?;
    if line.contains(&b'\r') || line.contains(&0) {
        return Err(Fault::LineEnd);
    }
    Ok((line, end + 1))
}

fn version(text: &[u8]) -> Result<Version, Fault> {
    match text {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        _ => Err(Fault::Version),
    }
}

/// Parses a request head that ends in its empty line.
pub(crate) fn request(buffer: &Bytes) -> Result<Request, Fault> {
    request_within(buffer, OF_PEERS)
}

/// As [`request`], with another limit.
pub(crate) fn request_within(buffer: &Bytes, limit: Limit) -> Result<Request, Fault> {
    let (line, end) = start_line(buffer)?;
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(protocol), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Fault::StartLine);
    };
    if !is_token(method) || target.is_empty() || target.iter().any(u8::is_ascii_control) {
        return Err(Fault::StartLine);
    }
    if !target.iter().all(u8::is_ascii_graphic) {
        return Err(Fault::Target);
    }
    if line == b"PRI * HTTP/2.0" {
        return Err(Fault::ClearTextHttp2);
    }
    let version = version(protocol)?;
    let mut fields = fields(buffer, end, limit)?;
    fields.drop_nominated();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Fault::StartLine);
    Ok(Request { method: text(method)?, target: text(target)?, version, fields })
}

/// Parses a response head that ends in its empty line.
pub(crate) fn response(buffer: &Bytes) -> Result<Response, Fault> {
    response_within(buffer, OF_PEERS)
}

/// As [`response`], with another limit.
pub(crate) fn response_within(buffer: &Bytes, limit: Limit) -> Result<Response, Fault> {
    let (line, end) = start_line(buffer)?;
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let version = version(parts.next().unwrap_or_default())?;
    let digits = parts.next().ok_or(Fault::StartLine)?;
    if digits.len() != 3 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Fault::StartLine);
    }
    let status = digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    // Origins leave out the space before an empty reason; RFC 9112 section 4 lets clients accept it.
    let reason = parts.next().unwrap_or_default();
    if !(100..=599).contains(&status) || !reason.iter().all(|byte| is_value_byte(*byte)) {
        return Err(Fault::StartLine);
    }
    Ok(Response { status, reason: reason.to_vec(), version, fields: fields(buffer, end, limit)? })
}

fn content_length(fields: &Fields) -> Result<Option<u64>, Fault> {
    let mut values = fields.all("content-length");
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Fault::ContentLength);
    }
    let text = std::str::from_utf8(value).map_err(|_| Fault::ContentLength)?;
    text.parse().map(Some).map_err(|_| Fault::ContentLength)
}

fn is_chunked(fields: &Fields) -> Result<bool, Fault> {
    let mut values = fields.all("transfer-encoding");
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.eq_ignore_ascii_case(b"chunked") => Ok(true),
        (Some(_), _) => Err(Fault::TransferEncoding),
    }
}

/// The framing of a request's content (RFC 9112 section 6.3), every doubt refused.
pub(crate) fn request_framing(head: &Request) -> Result<Framing, Fault> {
    let length = content_length(&head.fields)?;
    let chunked = is_chunked(&head.fields)?;
    match (chunked, length) {
        (true, Some(_)) => Err(Fault::ConflictingFraming),
        (true, None) if head.version == Version::Http10 => Err(Fault::TransferEncoding),
        (true, None) => Ok(Framing::Chunked),
        (false, Some(length)) => Ok(Framing::Length(length)),
        (false, None) => Ok(Framing::Empty),
    }
}

/// Whether a final response has no content, whatever its fields say (RFC 9110 section 6.4.1).
pub(crate) fn is_bodiless(method: &str, status: u16) -> bool {
    method == "HEAD" || matches!(status, 204 | 304)
}

/// The framing of a final response's content (RFC 9112 section 6.3).
pub(crate) fn response_framing(head: &Response, method: &str) -> Result<Framing, Fault> {
    let length = content_length(&head.fields)?;
    let chunked = is_chunked(&head.fields)?;
    if is_bodiless(method, head.status) {
        return Ok(Framing::Empty);
    }
    match (chunked, length) {
        (true, Some(_)) => Err(Fault::ConflictingFraming),
        (true, None) if head.version == Version::Http10 => Err(Fault::TransferEncoding),
        (true, None) => Ok(Framing::Chunked),
        (false, Some(length)) => Ok(Framing::Length(length)),
        (false, None) => Ok(Framing::Close),
    }
}

#[cfg(test)]
mod tests;
