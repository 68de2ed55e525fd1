//! Host verification by the text of a `known_hosts` file (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT).
//!
//! ```text
//! [@cert-authority|@revoked] names algorithm base64 [comment]
//! names = hashed name, or patterns with * and ?, a leading ! excludes; [host]:port off port 22
//! ```
//!
//! It never learns a key. A line that can't be read makes the whole text unusable: a revocation
//! that is misspelt must not let the revoked key in.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Certificate, HashAlg, PublicKey};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a line says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    None,
    CertAuthority,
    Revoked,
}

/// The names that a line is for.
#[derive(Debug, Clone)]
enum Names {
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
    Patterns(Vec<String>),
}

/// One line.
#[derive(Debug, Clone)]
struct Line {
    marker: Marker,
    names: Names,
    key: PublicKey,
}

/// The lines of a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownHosts(Vec<Line>);

/// A line that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {0} of known_hosts can't be read")]
pub(crate) struct ParseError(usize);

impl KnownHosts {
    /// Reads the text.
    ///
    /// # Errors
    /// [`ParseError`] with the first line that is neither blank, comment nor entry.
    pub(crate) fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                lines.push(Line::parse(line).ok_or(ParseError(at + 1))?);
            }
        }
        Ok(Self(lines))
    }

    /// The lines that name one of the places, without those that exclude another of them: what a
    /// host is called otherwise is no way around an exclusion.
    fn vouching<'a>(
        &'a self,
        places: &'a [Place],
        marker: Marker,
    ) -> impl Iterator<Item = &'a PublicKey> {
        let excluded = move |line: &Line| {
            let mut names = places.iter().flat_map(|place| [&place.name, &place.host]);
            names.any(|name| line.names.exclude(name))
        };
        places
            .iter()
            .flat_map(move |place| self.lines(place, marker))
            .filter(move |line| !excluded(line))
            .map(|line| &line.key)
    }

    fn lines<'a>(&'a self, place: &'a Place, marker: Marker) -> impl Iterator<Item = &'a Line> {
        let exact = self.0.iter().any(|line| line.names.cover(&place.name));
        // As OpenSSH: a host off port 22 that no line names so is looked for without the port.
        let name = if exact { &place.name } else { &place.host };
        self.0.iter().filter(move |line| line.marker == marker && line.names.cover(name))
    }

    /// The keys that the host may show.
    pub(crate) fn keys(&self, places: &[Place]) -> Vec<PublicKey> {
        self.vouching(places, Marker::None).cloned().collect()
    }

    /// Whether some authority may vouch for the host.
    pub(crate) fn has_authority(&self, places: &[Place]) -> bool {
        self.vouching(places, Marker::CertAuthority).next().is_some()
    }

    /// Whether the key is revoked for the host.
    pub(crate) fn revokes(&self, places: &[Place], key: &PublicKey) -> bool {
        let mut revoked = places.iter().flat_map(|place| self.lines(place, Marker::Revoked));
        revoked.any(|line| line.key.key_data() == key.key_data())
    }

    /// Whether the certificate proves the host: signed by an authority of it, for hosts, for its
    /// name, in its time, and not revoked, itself or its authority.
    pub(crate) fn vouches(
        &self,
        places: &[Place],
        certificate: &Certificate,
        now: SystemTime,
    ) -> bool {
        let signer = PublicKey::from(certificate.signature_key().clone());
        let subject = PublicKey::from(certificate.public_key().clone());
        if self.revokes(places, &signer) || self.revokes(places, &subject) {
            return false;
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        places.iter().any(|place| {
            let trusted = self
                .lines(place, Marker::CertAuthority)
                .any(|line| line.key.key_data() == signer.key_data())
                && self
                    .vouching(places, Marker::CertAuthority)
                    .any(|authority| authority.key_data() == signer.key_data());
            let named = certificate
                .valid_principals()
                .iter()
                .any(|principal| glob(&principal.to_ascii_lowercase(), &place.host));
            trusted
                && named
                && certificate.cert_type() == CertType::Host
                && certificate.critical_options().iter().next().is_none()
                && certificate.validate_at(now, [&signer.fingerprint(HashAlg::Sha256)]).is_ok()
        })
    }
}

/// A host as lines name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    host: String,
    name: String,
}

impl Place {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let name = if port == 22 { host.clone() } else { format!("[{host}]:{port}") };
        Self { host, name }
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let mut names = words.next()?;
        let marker = match names {
            "@cert-authority" => Marker::CertAuthority,
            "@revoked" => Marker::Revoked,
            other if other.starts_with('@') => return None,
            _ => Marker::None,
        };
        if marker != Marker::None {
            names = words.next()?;
        }
        let (algorithm, key) = (words.next()?, words.next()?);
        let key = PublicKey::from_openssh(&format!("{algorithm} {key}")).ok()?;
        Some(Self { marker, names: Names::parse(names)?, key })
    }
}

impl Names {
    fn parse(text: &str) -> Option<Self> {
        if let Some(hashed) = text.strip_prefix("|1|") {
            let (salt, hash) = hashed.split_once('|')?;
            let decode = |part: &str| STANDARD.decode(part).ok().filter(|bytes| bytes.len() == 20);
            return Some(Self::Hashed { salt: decode(salt)?, hash: decode(hash)? });
        }
        let patterns: Vec<_> = text.split(',').map(str::to_ascii_lowercase).collect();
        let is_sound = |p: &String| !p.trim_start_matches('!').is_empty() && !p.starts_with('|');
        patterns.iter().all(is_sound).then_some(Self::Patterns(patterns))
    }

    fn exclude(&self, name: &str) -> bool {
        match self {
            Self::Hashed { .. } => false,
            Self::Patterns(patterns) => {
                patterns.iter().any(|p| p.strip_prefix('!').is_some_and(|p| glob(p, name)))
            }
        }
    }

    fn cover(&self, name: &str) -> bool {
        match self {
            Self::Hashed { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::verify(&key, name.as_bytes(), hash).is_ok()
            }
            Self::Patterns(patterns) => {
                !self.exclude(name) && patterns.iter().any(|p| glob(p, name))
            }
        }
    }
}

/// Whether the pattern with `*` and `?` covers the whole name.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut back = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == b'?' || c == byte => (p, n) = (p + 1, n + 1),
            Some(_) | None => {
                let Some((after, from)) = back else { return false };
                back = Some((after, from + 1));
                (p, n) = (after, from + 1);
            }
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|c| *c == b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";

    fn found(names: &str, host: &str, port: u16) -> bool {
        let known = KnownHosts::parse(&format!("{names} {A} comment\n")).unwrap();
        !known.keys(&[Place::new(host, port)]).is_empty()
    }

    #[test]
    fn names_are_matched_as_openssh_does() {
        let cases = [
            ("prod-1", "prod-1", 22, true),
            ("prod-1", "PROD-1", 22, true),
            ("prod-1", "prod-11", 22, false),
            ("a,prod-1", "prod-1", 22, true),
            ("prod-?", "prod-1", 22, true),
            ("prod-?", "prod-10", 22, false),
            ("*.example", "a.b.example", 22, true),
            ("*.example,!b.example", "b.example", 22, false),
            ("!b.example", "a.example", 22, false),
            ("[prod-1]:2222", "prod-1", 2222, true),
            ("[prod-1]:2222", "prod-1", 22, false),
            // Without a line for the port, the plain name counts.
            ("prod-1", "prod-1", 2222, true),
            ("[*]:2222", "prod-1", 2222, true),
        ];
        for (names, host, port, expected) in cases {
            assert_eq!(found(names, host, port), expected, "{names} {host}:{port}");
        }
    }

    /// Numbers that look random, the same in every run.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % 1_000_003).unwrap() % below
        }
    }

    /// Lists of patterns, two thousand of them, name the hosts that they name to `ssh-keygen -F`.
    #[test]
    #[allow(clippy::print_stderr, reason = "a skipped test says why")]
    fn lists_of_patterns_mean_what_they_mean_to_openssh() {
        if std::process::Command::new("ssh-keygen").arg("-?").output().is_err() {
            eprintln!("skipped: ssh-keygen is not installed");
            return;
        }
        let mut number = numbers();
        let pattern = |number: &mut dyn FnMut(usize) -> usize| {
            let length = 1 + number(5);
            let text: String = (0..length).map(|_| ["a", "b", ".", "*", "?"][number(5)]).collect();
            let text = if number(6) == 0 { format!("[{text}]:{}", 1 + number(2)) } else { text };
            if number(4) == 0 { format!("!{text}") } else { text }
        };
        let lines: Vec<String> = (0..2000)
            .map(|_| {
                let count = 1 + number(4);
                (0..count).map(|_| pattern(&mut number)).collect::<Vec<_>>().join(",")
            })
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("known_hosts");
        let text: String = lines.iter().map(|names| format!("{names} {A}\n")).collect();
        std::fs::write(&file, &text).unwrap();
        let known = KnownHosts::parse(&text).unwrap();
        let mut matched = 0;
        for host in
            ["a", "b", "ab", "a.b", "ba.a", "aab.b", "[a]:1", "[ab]:2", "[a.b]:1", "..", "abab"]
        {
            let mut keygen = std::process::Command::new("ssh-keygen");
            let output = keygen.args(["-F", host, "-f"]).arg(&file).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let theirs: Vec<usize> = said
                .lines()
                .filter_map(|line| line.split_once(" found: line ")?.1.trim().parse().ok())
                .collect();
            let ours = known.0.iter().zip(1..).filter(|(line, _)| line.names.cover(host));
            let ours: Vec<usize> = ours.map(|(_, number)| number).collect();
            assert_eq!(ours, theirs, "{host}");
            matched += ours.len();
        }
        assert!(matched > 500, "{matched}");
    }

    /// Whatever a line is turned into, it is read or refused, and a text with a line that is refused lets
    /// nobody in.
    #[test]
    fn broken_lines_are_read_or_refused() {
        let mut number = numbers();
        let hashed = format!("|1|{0}|{0} {A}", STANDARD.encode([7; 20]));
        let sound = [format!("a,*.b,!c {A}"), format!("@revoked [a]:1 {A}"), hashed];
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut line = sound[number(3)].clone().into_bytes();
            for _ in 0..=number(3) {
                let at = number(line.len());
                match number(3) {
                    0 => line[at] = b" |@!,*#=\t\x7fA"[number(11)],
                    1 => line.truncate(at.max(1)),
                    _ => line.insert(at, line[number(line.len())]),
                }
            }
            let line = String::from_utf8(line).unwrap();
            match KnownHosts::parse(&format!("ok {A}\n{line}\n")) {
                Ok(known) => {
                    read += 1;
                    assert!(known.0.len() <= 2, "{line}");
                    drop(known.keys(&[Place::new("a", 1), Place::new("x.b", 22)]));
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error, ParseError(2), "{line}");
                }
            }
        }
        assert!(read > 100 && refused > 1000, "{read} {refused}");
    }

    #[test]
    fn what_cannot_be_read_fails_closed() {
        for line in [
            "@unknown * ssh-ed25519 AAAA",
            "prod-1 ssh-ed25519 AAAA",
            "prod-1",
            "|2|a|b ssh-ed25519 AAAA",
            "@revoked",
        ] {
            let text = format!("# comment\n\nok {A}\n{line}\n");
            assert_eq!(KnownHosts::parse(&text).unwrap_err(), ParseError(4), "{line}");
        }
        let revoked = KnownHosts::parse(&format!("* {A}\n@revoked prod-* {A}\n")).unwrap();
        let key = PublicKey::from_openssh(A).unwrap();
        assert!(revoked.revokes(&[Place::new("prod-1", 22)], &key));
        assert!(!revoked.revokes(&[Place::new("dev-1", 22)], &key));
    }
}
