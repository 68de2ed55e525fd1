//! Every coding, cut everywhere.

use super::*;
use policy::Secret;
use std::io::Read as _;

const SECRET: &str = "canary-7f1";
const CODINGS: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

fn redactor() -> Redactor {
    Redactor::of(&[Secret::from(SECRET)])
}

/// Text that does not compress away.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b"0123456789abcdef"[(state >> 60) as usize]
    };
    (0..length).map(|_| next()).collect()
}

fn pack(coding: Coding, text: &[u8]) -> Vec<u8> {
    let mut packer = Packer::new(coding).expect("packer");
    packer.write_all(text).expect("packs");
    packer.finish().expect("finishes");
    std::mem::take(packer.packed())
}

/// By the reading half of each library, which the code under test does not use.
fn unpack(coding: Coding, packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match coding {
        Coding::Gzip => flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut text),
        Coding::Deflate => flate2::read::ZlibDecoder::new(packed).read_to_end(&mut text),
        Coding::Brotli => brotli::Decompressor::new(packed, 4096).read_to_end(&mut text),
        Coding::Zstd => {
            zstd::stream::read::Decoder::new(packed).expect("zstd").read_to_end(&mut text)
        }
    }
    .expect("unpacks");
    text
}

/// What passes of the pieces, until something stops it.
fn watch(coding: Coding, pieces: &[&[u8]]) -> (Vec<u8>, Option<Stop>) {
    let mut watch = Watch::new(coding, &redactor()).expect("watch");
    let mut passed = Vec::new();
    for piece in pieces {
        match watch.push(Bytes::copy_from_slice(piece)) {
            Ok(passing) => passing.iter().for_each(|piece| passed.extend_from_slice(piece)),
            Err(stop) => return (passed, Some(stop)),
        }
    }
    watch.take_rest().iter().for_each(|piece| passed.extend_from_slice(piece));
    (passed, None)
}

/// I-4: without the secret every byte passes as it came, however it was cut.
#[test]
fn i_4_encoded_content_without_a_secret_passes_as_it_came() {
    let texts: [&[u8]; 4] = [b"", b"canary-7f", b"canary-7f2 canary-7", &noise(100_000)];
    for coding in CODINGS {
        for text in texts {
            let packed = pack(coding, text);
            for size in [1, 7, 1000, packed.len()] {
                if size == 1 && packed.len() > 1000 {
                    continue;
                }
                let pieces: Vec<&[u8]> = packed.chunks(size).collect();
                assert_eq!(watch(coding, &pieces), (packed.clone(), None), "{coding:?} {size}");
            }
        }
        // More than one member or frame.
        if !matches!(coding, Coding::Deflate | Coding::Brotli) {
            let packed = [pack(coding, b"one"), pack(coding, b"two")].concat();
            assert_eq!(watch(coding, &[&packed]), (packed.clone(), None));
        }
    }
}

/// I-4: what passed before the secret was found does not unpack to it, nor to a beginning of it.
#[test]
fn i_4_a_secret_in_encoded_content_is_found_wherever_it_is_cut() {
    for coding in CODINGS {
        let text = [b"{\"key\":\"", SECRET.as_bytes(), b"\"}"].concat();
        let packed = pack(coding, &text);
        for cut in 0..packed.len() {
            let (first, second) = packed.split_at(cut);
            let (passed, stop) = watch(coding, &[first, second]);
            assert_eq!(stop, Some(Stop::Found), "{coding:?} {cut}");
            let mut shown = Vec::new();
            // It is cut, so that the end of the input is an error; what came out before counts.
            drop(match coding {
                Coding::Gzip => flate2::read::GzDecoder::new(&passed[..]).read_to_end(&mut shown),
                Coding::Deflate => {
                    flate2::read::ZlibDecoder::new(&passed[..]).read_to_end(&mut shown)
                }
                Coding::Brotli => {
                    brotli::Decompressor::new(&passed[..], 64).read_to_end(&mut shown)
                }
                Coding::Zstd => zstd::stream::read::Decoder::new(&passed[..])
                    .expect("zstd")
                    .read_to_end(&mut shown),
            });
            let shown = String::from_utf8(shown).expect("text");
            assert!(!shown.contains("can"), "{coding:?} {cut}: {shown}");
        }
    }
    // Behind many blocks, and in a second member.
    for coding in CODINGS {
        let text = [noise(200_000).as_slice(), SECRET.as_bytes(), &noise(10)].concat();
        let packed = pack(coding, &text);
        let pieces: Vec<&[u8]> = packed.chunks(4000).collect();
        let (passed, stop) = watch(coding, &pieces);
        assert_eq!(stop, Some(Stop::Found), "{coding:?}");
        assert!(passed.len() > 50_000 && packed.starts_with(&passed), "{coding:?}");
    }
    let packed = [pack(Coding::Gzip, b"canary"), pack(Coding::Gzip, b"-7f1")].concat();
    assert_eq!(watch(Coding::Gzip, &[&packed]).1, Some(Stop::Found));
}

/// A flushed event passes at once; in zstd too once the next one comes.
#[test]
fn what_was_flushed_passes() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(b"data: 1\n\n").expect("writes");
    encoder.flush().expect("flushes");
    let event = Bytes::from(std::mem::take(encoder.get_mut()));
    let mut watch = Watch::new(Coding::Gzip, &redactor()).expect("watch");
    assert_eq!(watch.push(event.clone()).expect("passes"), [event]);
}

/// I-4: encoded anew it unpacks to the same text with the secret replaced.
#[test]
fn i_4_encoded_anew_the_secret_is_replaced_and_nothing_else() {
    for coding in CODINGS {
        let text = [&noise(100_000), SECRET.as_bytes(), &noise(100_000)].concat();
        let expected = String::from_utf8(text.clone()).expect("text").replace(SECRET, "**********");
        let packed = pack(coding, &text);
        for size in [100, packed.len()] {
            let mut rewrite = Rewrite::new(coding, &redactor()).expect("rewrite");
            let mut out = Vec::new();
            for piece in packed.chunks(size) {
                out.extend_from_slice(&rewrite.push(piece).expect("pushes"));
            }
            out.extend_from_slice(&rewrite.finish().expect("finishes"));
            assert_eq!(unpack(coding, &out), expected.as_bytes(), "{coding:?} {size}");
        }
    }
}

/// S-2: an original that breaks off gets no end: encoded anew it would look whole.
#[test]
fn s_2_what_is_cut_is_not_made_whole() {
    for coding in CODINGS {
        let text = [&noise(300), SECRET.as_bytes(), &noise(300)].concat();
        let packed = pack(coding, &text);
        for cut in 0..packed.len() {
            let mut rewrite = Rewrite::new(coding, &redactor()).expect("rewrite");
            let pushed = rewrite.push(&packed[..cut]);
            let ended = pushed.and_then(|_| rewrite.finish());
            assert!(ended.is_err(), "{coding:?} {cut} of {}", packed.len());
        }
    }
}

/// A few bytes that unpack to gigabytes are looked into up to the bound, in a buffer of its own.
#[test]
fn a_decompression_bomb_stops_at_the_bound() {
    let zeros = vec![0; 1 << 20];
    for coding in CODINGS {
        let mut packer = Packer::new(coding).expect("packer");
        for _ in 0..80 {
            packer.write_all(&zeros).expect("packs");
        }
        packer.finish().expect("finishes");
        let packed = std::mem::take(packer.packed());
        assert!(packed.len() < 200_000, "{coding:?}");
        let mut watch = Watch::new(coding, &redactor()).expect("watch");
        assert_eq!(watch.push(Bytes::from(packed)), Err(Stop::TooLarge), "{coding:?}");
        assert!(watch.unpacker.sink().measure.unpacked <= UNPACKED_BYTES + (16 << 20));
    }
}

/// What is no such content is not stopped: its caller can't unpack it either.
#[test]
fn other_content_is_opaque() {
    for coding in CODINGS {
        let (passed, stop) = watch(coding, &[b"\xff\xfe plain text that nobody encoded at all"]);
        assert_eq!((passed.len(), stop), (0, Some(Stop::Opaque)), "{coding:?}");
    }
    // A window beyond the RFC's would take a gigabyte.
    assert_eq!(watch(Coding::Brotli, &[&[0x11, 0x1e, 0, 0]]).1, Some(Stop::Opaque));
}

#[test]
fn codings_are_read_from_the_head() {
    let of = |lines: &[(&str, &str)]| {
        let line =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        Coded::of(&lines.iter().map(line).collect())
    };
    assert_eq!(of(&[]), Coded::Plain);
    assert_eq!(of(&[("Content-Encoding", "identity")]), Coded::Plain);
    assert_eq!(of(&[("content-encoding", "identity, X-GZIP")]), Coded::By(Coding::Gzip));
    assert_eq!(of(&[("content-encoding", "zstd")]), Coded::By(Coding::Zstd));
    assert_eq!(of(&[("content-encoding", "br"), ("content-encoding", "gzip")]), Coded::Other);
    assert_eq!(of(&[("content-encoding", "compress")]), Coded::Other);
    assert_eq!(of(&[("grpc-encoding", "gzip")]), Coded::Other);
}
