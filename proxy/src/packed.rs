//! Looks for echoed credentials inside of compressed content (contract I-4).
//!
//! ```text
//!  Watch ──found, nothing delivered yet──► Rewrite      decoded, redacted, encoded anew
//!    ├─────found, a part was delivered───► nothing more of it is delivered
//!    └─────not what it says it is────────► as it came
//! ```
//!
//! While nothing is found the bytes pass as they came. A piece passes once all that it unpacks to is
//! known and holds no beginning of a secret. Nothing that was unpacked is kept: it goes through one
//! small buffer, and there is a bound on how much of it there may be.

use crate::head::Fields;
use crate::redact::Redactor;
use brotli::enc::BrotliEncoderParams;
use brotli::{CompressorWriter, DecompressorWriter};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder, ZlibDecoder, ZlibEncoder};
use std::collections::VecDeque;
use std::io::{self, Write};
use zstd::stream::raw::DParameter;
use zstd::stream::{raw, write};

/// What any content may unpack to.
const UNPACKED_BYTES: u64 = 64 << 20;
/// What content may unpack to, of its own length.
const UNPACKED_RATIO: u64 = 256;
/// Content that waits for the end of a match, or of a block.
const WAITING_BYTES: usize = 1 << 20;
/// The window of zstd in HTTP: 8 MiB (RFC 9659 section 3).
const ZSTD_WINDOW_LOG: u32 = 23;
/// The first byte of a brotli stream with a window beyond RFC 7932 has these lower bits.
const BROTLI_LARGE_WINDOW: u8 = 0x11;
const BUFFER: usize = 32 * 1024;

/// A content coding that can be looked into (RFC 9110 section 8.4.1, RFC 7932, RFC 8878).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// How the content of a response is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coded {
    Plain,
    By(Coding),
    /// By several codings, or by one that is not known here.
    Other,
}

impl Coded {
    /// Reads `Content-Encoding`, and gRPC's own field for its messages.
    pub(crate) fn of(fields: &Fields) -> Self {
        let plain = |member: &&[u8]| !member.eq_ignore_ascii_case(b"identity");
        let mut codings = fields.members("content-encoding").filter(plain);
        if fields.members("grpc-encoding").any(|member| plain(&member)) {
            return Self::Other;
        }
        match (codings.next(), codings.next()) {
            (None, _) => Self::Plain,
            (Some(name), None) => Coding::named(name).map_or(Self::Other, Self::By),
            (Some(_), Some(_)) => Self::Other,
        }
    }
}

impl Coding {
    fn named(name: &[u8]) -> Option<Self> {
        let known: [(&[u8], Self); 5] = [
            (b"gzip", Self::Gzip),
            (b"x-gzip", Self::Gzip),
            (b"deflate", Self::Deflate),
            (b"br", Self::Brotli),
            (b"zstd", Self::Zstd),
        ];
        known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, coding)| *coding)
    }

    /// Whether content comes out of the decoder only when a whole block went in.
    const fn is_blockwise(self) -> bool {
        matches!(self, Self::Zstd)
    }
}

/// Why the content can't pass as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It holds the credential.
    Found,
    /// It unpacks to more than is looked at.
    TooLarge,
    /// It is not coded as it says.
    Opaque,
}

/// Encoded content in which nothing was found so far.
pub(crate) struct Watch {
    coding: Coding,
    unpacker: Unpacker<Sight>,
    waiting: VecDeque<Waiting>,
}

/// A piece that can't pass yet.
struct Waiting {
    piece: Bytes,
    /// How much had come out when all of it had. `None`: some of it is still inside.
    unpacked: Option<u64>,
}

impl Watch {
    pub(crate) fn new(coding: Coding, redactor: &Redactor) -> io::Result<Self> {
        let sight = Sight { redactor: redactor.anew(), measure: Measure::default() };
        let unpacker = Unpacker::new(coding, sight)?;
        Ok(Self { coding, unpacker, waiting: VecDeque::new() })
    }

    /// Looks into a piece, and says what can pass now.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<Vec<Bytes>, Stop> {
        let before = self.unpacker.sink().measure.unpacked;
        let unpacked = self.unpacker.push(&piece);
        self.waiting.push_back(Waiting { piece, unpacked: None });
        let sight = self.unpacker.sink();
        let (after, now) = (sight.measure.unpacked, sight.redactor.held_bytes());
        if sight.redactor.found() {
            return Err(Stop::Found);
        }
        if sight.measure.is_over {
            return Err(Stop::TooLarge);
        }
        unpacked.map_err(|_| Stop::Opaque)?;
        // Until something comes out, it may be anything. What came out of a block tells of all pieces
        // but the last: that one may have begun another.
        let known = if after == 0 {
            0
        } else if !self.coding.is_blockwise() {
            self.waiting.len()
        } else if after > before {
            self.waiting.len() - 1
        } else {
            0
        };
        for waiting in self.waiting.iter_mut().take(known) {
            waiting.unpacked.get_or_insert(after);
        }
        let clear = after - now;
        let mut passing = Vec::new();
        while let Some(first) = self
            .waiting
            .pop_front_if(|waiting| waiting.unpacked.is_some_and(|unpacked| unpacked <= clear))
        {
            passing.push(first.piece);
        }
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.piece.len()).sum();
        if waiting > WAITING_BYTES { Err(Stop::TooLarge) } else { Ok(passing) }
    }

    /// What did not pass.
    pub(crate) fn take_rest(&mut self) -> Vec<Bytes> {
        self.waiting.drain(..).map(|waiting| waiting.piece).collect()
    }

    /// What the content is to be encoded anew with.
    pub(crate) fn rewrite(&self, redactor: &Redactor) -> io::Result<Rewrite> {
        Rewrite::new(self.coding, redactor)
    }
}

/// Encoded content that is unpacked, redacted, and encoded anew.
pub(crate) struct Rewrite(Unpacker<Anew>);

impl Rewrite {
    fn new(coding: Coding, redactor: &Redactor) -> io::Result<Self> {
        let measure = Measure::default();
        let anew = Anew { redactor: redactor.anew(), measure, packer: Packer::new(coding)? };
        Unpacker::new(coding, anew).map(Self)
    }

    /// Takes a piece of the original; gives what is ready of the new content.
    pub(crate) fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.0.push(piece)?;
        Ok(Bytes::from(std::mem::take(self.0.sink().packer.packed())))
    }

    /// The end of the new content. An original that breaks off gets none: encoded anew it would look
    /// whole (contract S-2).
    pub(crate) fn finish(&mut self) -> io::Result<Bytes> {
        self.0.finish()?;
        let anew = self.0.sink();
        let rest = anew.redactor.rest();
        anew.packer.write_all(&rest)?;
        anew.packer.finish()?;
        Ok(Bytes::from(std::mem::take(anew.packer.packed())))
    }
}

/// How much came out.
#[derive(Default)]
struct Measure {
    packed: u64,
    unpacked: u64,
    is_over: bool,
}

impl Measure {
    fn add(&mut self, unpacked: usize) -> io::Result<()> {
        self.unpacked += unpacked as u64;
        let bound = UNPACKED_BYTES.max(self.packed.saturating_mul(UNPACKED_RATIO));
        self.is_over |= self.unpacked > bound;
        if self.is_over { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(()) }
    }
}

/// What takes unpacked content.
trait Sink: Write {
    fn measure(&mut self) -> &mut Measure;
}

/// Looks at unpacked content, and drops it.
struct Sight {
    redactor: Redactor,
    measure: Measure,
}

impl Write for Sight {
    fn write(&mut self, unpacked: &[u8]) -> io::Result<usize> {
        self.measure.add(unpacked.len())?;
        self.redactor.piece(Bytes::copy_from_slice(unpacked));
        // The rest need not be looked at.
        if self.redactor.found() { Err(io::ErrorKind::Other.into()) } else { Ok(unpacked.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Sight {
    fn measure(&mut self) -> &mut Measure {
        &mut self.measure
    }
}

/// Redacts unpacked content, and encodes it.
struct Anew {
    redactor: Redactor,
    measure: Measure,
    packer: Packer,
}

impl Write for Anew {
    fn write(&mut self, unpacked: &[u8]) -> io::Result<usize> {
        self.measure.add(unpacked.len())?;
        let clean = self.redactor.piece(Bytes::copy_from_slice(unpacked));
        self.packer.write_all(&clean)?;
        Ok(unpacked.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Anew {
    fn measure(&mut self) -> &mut Measure {
        &mut self.measure
    }
}

/// A decoder of one coding.
enum Unpacker<S: Sink> {
    Gzip(Box<MultiGzDecoder<S>>),
    Deflate(Box<ZlibDecoder<S>>),
    Brotli { decoder: Box<DecompressorWriter<S>>, begun: bool },
    Zstd(Box<write::Decoder<'static, S>>),
}

impl<S: Sink> Unpacker<S> {
    fn new(coding: Coding, sink: S) -> io::Result<Self> {
        Ok(match coding {
            Coding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(sink))),
            Coding::Deflate => Self::Deflate(Box::new(ZlibDecoder::new(sink))),
            Coding::Brotli => {
                let decoder = Box::new(DecompressorWriter::new(sink, BUFFER));
                Self::Brotli { decoder, begun: false }
            }
            Coding::Zstd => {
                let mut decoder = raw::Decoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                Self::Zstd(Box::new(write::Decoder::with_decoder(sink, decoder)))
            }
        })
    }

    /// Everything that can come out of the piece comes out.
    fn push(&mut self, piece: &[u8]) -> io::Result<()> {
        self.sink().measure().packed += piece.len() as u64;
        match self {
            Self::Gzip(decoder) => all(decoder, piece),
            Self::Deflate(decoder) => all(decoder, piece),
            Self::Brotli { decoder, begun } => {
                let first = piece.first().filter(|_| !std::mem::replace(begun, true));
                if first.is_some_and(|byte| byte & 0x7f == BROTLI_LARGE_WINDOW) {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                all(decoder, piece)
            }
            Self::Zstd(decoder) => all(decoder, piece),
        }
    }

    /// Fails unless the original came to its own end.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Gzip(decoder) => decoder.try_finish(),
            // This decoder takes nothing behind the end, and says nothing of it.
            Self::Deflate(decoder) => match decoder.write(&[0])? {
                0 => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Self::Brotli { decoder, .. } => decoder.close(),
            Self::Zstd(decoder) => decoder.do_finish(),
        }
    }

    fn sink(&mut self) -> &mut S {
        match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => decoder.get_mut(),
            Self::Brotli { decoder, .. } => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
        }
    }
}

fn all(decoder: &mut impl Write, piece: &[u8]) -> io::Result<()> {
    decoder.write_all(piece)?;
    decoder.flush()
}

/// An encoder of one coding, into memory.
enum Packer {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(write::Encoder<'static, Vec<u8>>),
    Finished(Vec<u8>),
}

impl Packer {
    fn new(coding: Coding) -> io::Result<Self> {
        let out = Vec::new();
        Ok(match coding {
            Coding::Gzip => Self::Gzip(GzEncoder::new(out, Compression::default())),
            Coding::Deflate => Self::Deflate(ZlibEncoder::new(out, Compression::default())),
            Coding::Brotli => {
                let params = BrotliEncoderParams { quality: 5, ..BrotliEncoderParams::default() };
                Self::Brotli(Box::new(CompressorWriter::with_params(out, BUFFER, &params)))
            }
            Coding::Zstd => Self::Zstd(write::Encoder::new(out, 0)?),
        })
    }

    fn finish(&mut self) -> io::Result<()> {
        let packed = match std::mem::replace(self, Self::Finished(Vec::new())) {
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Deflate(encoder) => encoder.finish()?,
            Self::Brotli(encoder) => encoder.into_inner(),
            Self::Zstd(encoder) => encoder.finish()?,
            Self::Finished(packed) => packed,
        };
        *self = Self::Finished(packed);
        Ok(())
    }

    /// What came out so far.
    fn packed(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Deflate(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Finished(packed) => packed,
        }
    }
}

impl Write for Packer {
    fn write(&mut self, unpacked: &[u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(encoder) => encoder.write(unpacked),
            Self::Deflate(encoder) => encoder.write(unpacked),
            Self::Brotli(encoder) => encoder.write(unpacked),
            Self::Zstd(encoder) => encoder.write(unpacked),
            Self::Finished(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
