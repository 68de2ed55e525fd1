//! Content that is kept in the pieces in which it came, without being heavier than it is long.

use bytes::{Bytes, BytesMut};

/// A shorter piece joins the one before it: what holds it would weigh more than it does, and it keeps the
/// buffer that it was read into.
const SMALL: usize = 1024;
/// A piece of this length takes nothing more.
const JOINED: usize = 16 * 1024;

/// Puts a piece behind the others.
pub(crate) fn push(pieces: &mut Vec<Bytes>, piece: Bytes) {
    let joins = |last: &mut Bytes| piece.len() < SMALL && last.len() < JOINED;
    let Some(last) = pieces.pop_if(joins) else { return pieces.push(piece) };
    // Still a part of what it was read into, the first time.
    let mut joined = last.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    joined.extend_from_slice(&piece);
    pieces.push(joined.freeze());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content of many small pieces is kept in few.
    #[test]
    fn small_pieces_are_joined() {
        let content: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        for (length, most) in [(1, 64), (100, 64), (SMALL - 1, 64), (SMALL, 1024), (5000, 210)] {
            let mut buffer = BytesMut::from(content.as_slice());
            let mut pieces = Vec::new();
            while !buffer.is_empty() {
                let length = length.min(buffer.len());
                push(&mut pieces, buffer.split_to(length).freeze());
            }
            assert!(pieces.len() <= most, "{length}: {} pieces", pieces.len());
            assert!(pieces.concat() == content, "{length}");
        }
    }

    proptest::proptest! {
        /// Nothing is lost, and nothing changes its place, whatever the lengths.
        #[test]
        fn content_stays_what_it_is(lengths in proptest::collection::vec(0..3000_usize, 0..60)) {
            let (mut pieces, mut content) = (Vec::new(), Vec::new());
            for (n, length) in lengths.into_iter().enumerate() {
                let piece = vec![u8::try_from(n).expect("few"); length];
                content.extend_from_slice(&piece);
                push(&mut pieces, piece.into());
            }
            proptest::prop_assert_eq!(pieces.concat(), content);
        }
    }
}
