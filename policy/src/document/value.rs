//! Scalar values of the policy language: durations, sizes, names, methods, host keys.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::time::Duration;

/// Reads `10s`, `250ms`, `24h`, `7d`, `2w`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "{text:?} is not a duration: write a whole number and ms, s, m, h, d or w, as in \"10s\""
        )
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = number.checked_mul(unit_ms).filter(|&ms| ms <= 3_660 * 86_400_000);
    match ms {
        Some(0) => Err(format!("{text:?} is no time at all; write at least \"1ms\"")),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err(format!("{text:?} is longer than ten years")),
    }
}

/// Reads `512`, `8MiB`, `10MB`, `1GiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{text:?} is not a size: write a whole number and B, kB, MB, GB, KiB, MiB or GiB, as in \"8MiB\""
        )
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
    let unit_bytes: u64 = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(unit_bytes)
        .filter(|&bytes| bytes <= 1 << 50)
        .ok_or_else(|| format!("{text:?} is more than 1 PiB"))
}

/// Whether a text can be a name (route, credential, agent, secret).
pub(crate) fn is_name(text: &str, length: usize, extra: &[u8]) -> bool {
    (1..=length).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c) || extra.contains(&c))
}

/// Whether a text is a token of RFC 9110: a method, or the name of a header field.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c))
}

/// Reads an OpenSSH public key line; answers `algorithm base64`, without comment.
pub(crate) fn public_key(line: &str) -> Result<String, String> {
    const ALGORITHMS: [&str; 7] = [
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ];
    let mut words = line.split_ascii_whitespace();
    let (Some(algorithm), Some(encoded)) = (words.next(), words.next()) else {
        return Err("a key is written `ssh-ed25519 AAAA...`, as in a .pub file".to_owned());
    };
    if !ALGORITHMS.contains(&algorithm) {
        return Err(format!(
            "{algorithm:?} is not a key algorithm; known are {}",
            ALGORITHMS.join(", ")
        ));
    }
    let blob = STANDARD.decode(encoded).map_err(|_| "the key is not valid base64".to_owned())?;
    // The blob begins with the algorithm as an SSH string (RFC 4253 section 6.6).
    let inner = blob.split_first_chunk::<4>().and_then(|(length, rest)| {
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        rest.split_at_checked(length)
    });
    match inner {
        Some((name, key)) if name == algorithm.as_bytes() && !key.is_empty() => {
            Ok(format!("{algorithm} {encoded}"))
        }
        Some(_) | None => Err(format!("the base64 part is not a key of {algorithm}")),
    }
}

/// The known word that a reader most likely meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|&(d, _)| d <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits between two words: insert, delete, replace, swap of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().take(64).collect(), b.to_lowercase().chars().collect());
    let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best =
                (at(&last, j + 1) + 1).min(at(&row, j) + 1).min(at(&last, j) + usize::from(x != y));
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    at(&last, b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_exactly() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for bad in
            ["", "10", "s", "1.5s", "-1s", "10 s", "0s", "999999999999999999999s", "9999w", "ü"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(size("8MiB"), Ok(8 << 20));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(size("0"), Ok(0));
        for bad in ["", "MiB", "8mib", "8 MiB", "1e3", "99999999999999999999", "9999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn near_words_are_found() {
        let known = ["agents", "match", "credential", "idempotent", "idempotency"];
        assert_eq!(nearest("agent", known), Some("agents"));
        assert_eq!(nearest("macth", known), Some("match"));
        assert_eq!(nearest("idempotant", known), Some("idempotent"));
        assert_eq!(nearest("zzz", known), None);
    }

    #[test]
    fn public_keys_are_checked_inside() {
        let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz me@host";
        assert_eq!(public_key(line).unwrap(), line.rsplit_once(' ').unwrap().0);
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-dss AAAA",
            "ssh-ed25519 ####",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIA==",
        ] {
            assert!(public_key(bad).is_err(), "{bad}");
        }
    }
}
