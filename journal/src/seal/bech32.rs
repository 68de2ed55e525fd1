//! Bech32 (BIP 173), the text form of age's keys.

const ALPHABET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];

fn checksum_step(sum: u32, value: u8) -> u32 {
    let top = sum >> 25;
    let shifted = (sum & 0x1ff_ffff) << 5 ^ u32::from(value);
    (0_u32..)
        .zip(GENERATOR)
        .filter(|(n, _)| top >> n & 1 == 1)
        .fold(shifted, |sum, (_, generator)| sum ^ generator)
}

fn checksum(prefix: &str, values: impl Iterator<Item = u8>) -> u32 {
    let high = prefix.bytes().map(|byte| byte >> 5);
    let low = prefix.bytes().map(|byte| byte & 31);
    high.chain([0]).chain(low).chain(values).fold(1, checksum_step)
}

/// Regroups bits; `None` when the rest is no padding of zeros.
fn regroup(values: &[u8], from: u32, to: u32, pad: bool) -> Option<Vec<u8>> {
    let (mut held, mut bits, mut out) = (0_u32, 0, Vec::new());
    for value in values {
        held = (held << from | u32::from(*value)) & 0xffff;
        bits += from;
        while bits >= to {
            bits -= to;
            out.push((held >> bits & ((1 << to) - 1)) as u8);
        }
    }
    let rest = held << (to - bits) & ((1 << to) - 1);
    if pad && bits > 0 {
        out.push(rest as u8);
    }
    (pad || bits < from && rest == 0).then_some(out)
}

/// Text of a prefix (lower case) and bytes.
pub(super) fn encode(prefix: &str, bytes: &[u8]) -> String {
    let values = regroup(bytes, 8, 5, true).unwrap_or_default();
    let sum = checksum(prefix, values.iter().copied().chain([0; 6])) ^ 1;
    let check = (0..6).map(|n| (sum >> (5 * (5 - n)) & 31) as u8);
    let letters = values.iter().copied().chain(check);
    let text: String =
        letters.filter_map(|v| ALPHABET.get(usize::from(v))).map(|c| char::from(*c)).collect();
    format!("{prefix}1{text}")
}

/// The bytes of a text with that prefix (lower case); `None` for anything else.
pub(super) fn decode(prefix: &str, text: &str) -> Option<Vec<u8>> {
    if text.bytes().any(|c| c.is_ascii_lowercase()) && text.bytes().any(|c| c.is_ascii_uppercase())
    {
        return None;
    }
    let text = text.to_ascii_lowercase();
    let letters = text.strip_prefix(prefix)?.strip_prefix('1')?;
    let value = |c: u8| ALPHABET.iter().position(|letter| *letter == c).map(|n| n as u8);
    let values = letters.bytes().map(value).collect::<Option<Vec<u8>>>()?;
    if checksum(prefix, values.iter().copied()) != 1 {
        return None;
    }
    let data = values.get(..values.len().checked_sub(6)?)?;
    regroup(data, 5, 8, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_a_changed_letter_is_found() {
        let bytes: Vec<u8> = (0..32).collect();
        let text = encode("age", &bytes);
        assert_eq!(decode("age", &text), Some(bytes.clone()));
        assert_eq!(decode("age", &text.to_ascii_uppercase()), Some(bytes));
        for n in 4..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[n] = if changed[n] == b'q' { b'p' } else { b'q' };
            assert_eq!(decode("age", std::str::from_utf8(&changed).unwrap()), None, "{n}");
        }
        assert_eq!(decode("age", ""), None);
        assert_eq!(decode("age", "age1"), None);
    }
}
