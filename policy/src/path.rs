//! Paths: the normal form that rules are matched on, and patterns over its segments.
//!
//! Only a copy is normalised; what goes upstream keeps the caller's bytes. A path that servers are
//! known to read in different ways is refused rather than judged by one of the readings.

use crate::escape::{self, Next};
use crate::glob;

/// Why a path can't be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    #[error("the path has a character that a path can't have")]
    Character,
    #[error(
        "the path can be read in more than one way (dot segments in or behind what servers decode or count differently)"
    )]
    Ambiguous,
    #[error("the path leaves the root by dot segments")]
    AboveRoot,
}

/// Brings a raw path (without query) into the form that rules are matched on: printable characters
/// decoded where that changes no structure, the other escapes in upper case, dot segments resolved,
/// runs of slashes merged. `*` (OPTIONS) stays as it is. Idempotent.
pub(crate) fn normalize(raw: &str) -> Result<String, Error> {
    if raw == "*" {
        return Ok("*".to_owned());
    }
    let decoded = decode(raw)?;
    let Some(rest) = decoded.strip_prefix('/') else { return Err(Error::NotAbsolute) };
    let mut segments: Vec<&str> = Vec::new();
    let mut trailing = false;
    let mut dotted = false;
    let mut counted_otherwise = false;
    for segment in rest.split('/') {
        trailing = false;
        counted_otherwise |= is_counted_otherwise(segment);
        match segment {
            "" => trailing = true,
            "." => {
                trailing = true;
                dotted = true;
            }
            ".." => {
                trailing = true;
                dotted = true;
                if counted_otherwise {
                    return Err(Error::Ambiguous);
                }
                if segments.pop().is_none() {
                    return Err(Error::AboveRoot);
                }
            }
            other if hides_dots(other) => return Err(Error::Ambiguous),
            other => segments.push(other),
        }
    }
    // "/a//../b" is "/a/b" to a server that keeps empty segments, and "/b" to one that merges them.
    if dotted && (rest.starts_with('/') || rest.contains("//")) {
        return Err(Error::Ambiguous);
    }
    let mut path = String::with_capacity(decoded.len());
    for segment in &segments {
        path.push('/');
        path.push_str(segment);
    }
    if trailing || path.is_empty() {
        path.push('/');
    }
    Ok(path)
}

/// The other paths that a server may take a raw path for, beside its normal form: escaped slashes and
/// backslashes as slashes, parameters behind semicolons dropped, a slash at the end dropped, dot
/// segments and empty segments kept. None for a path that all servers read alike, which most are.
/// Letters keep their case: that is what rules are asked for.
pub(crate) fn readings(raw: &str) -> Vec<String> {
    let escaped = ["%2f", "%2F", "%5c", "%5C", "\\"].iter().any(|odd| raw.contains(odd));
    let parameters = raw.contains(';');
    let dotted = raw.split('/').any(|part| matches!(part, "." | "..")) || raw.contains("%2");
    let kept = dotted || raw.contains("//") || raw.contains("/.");
    let trailing = raw.len() > 1 && raw.ends_with('/');
    if !escaped && !parameters && !kept && !trailing {
        return Vec::new();
    }
    let Ok(plain) = normalize(raw) else { return Vec::new() };
    let mut found = Vec::new();
    let mut put = |reading: String| {
        if reading != plain && !found.contains(&reading) {
            found.push(reading);
        }
    };
    let slashes = |path: &str| path.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    let bare = |path: &str| {
        let segments = path.split('/').map(|part| part.split(';').next().unwrap_or_default());
        segments.collect::<Vec<_>>().join("/")
    };
    if let Ok(decoded) = decode(raw) {
        put(decoded);
    }
    for reading in [slashes(&plain), bare(&plain), bare(&slashes(&plain)), slashes(&bare(&plain))] {
        if let Ok(reading) = normalize(&reading) {
            put(reading.strip_suffix('/').filter(|r| !r.is_empty()).unwrap_or(&reading).to_owned());
            put(reading);
        }
    }
    if let Some(shorter) = plain.strip_suffix('/').filter(|shorter| !shorter.is_empty()) {
        put(shorter.to_owned());
    }
    found
}

/// Whether a server that decodes once more, reads backslashes as slashes or drops parameters behind a
/// semicolon counts other segments here, so that a `..` behind it leaves another one out.
fn is_counted_otherwise(segment: &str) -> bool {
    const SEPARATORS: [&str; 7] = ["\\", "%2F", "%5C", "%252F", "%252f", "%255C", "%255c"];
    let is_bare = segment.starts_with(';') || segment.starts_with("%3B");
    is_bare || SEPARATORS.iter().any(|separator| segment.contains(separator))
}

/// What a server reads that takes a path for a reference (RFC 3986 section 4.2), as `new URL(path, base)` and
/// `urlsplit(path)` do: what follows two slashes is an authority to it, and the path begins behind that. To
/// WHATWG's URLs more slashes, and backslashes, are the same.
pub(crate) fn behind_authority(raw: &str) -> Option<String> {
    let slash = ['/', '\\'];
    let rest = raw.strip_prefix(slash)?.strip_prefix(slash)?;
    let authority = rest.trim_start_matches(slash);
    let path = authority.find(slash).and_then(|at| authority.get(at..)).unwrap_or("/");
    normalize(&path.replace('\\', "/")).ok()
}

/// Whether a segment would hold a dot segment if its server decoded it once more, read backslashes
/// as slashes, or dropped parameters behind a semicolon.
fn hides_dots(segment: &str) -> bool {
    // Most segments have no dot in any reading.
    if !segment.contains('.') && !segment.contains("%252") {
        return false;
    }
    let plain = segment.replace("%2F", "/").replace("%5C", "/").replace('\\', "/");
    let plain = plain.replace("%252F", "/").replace("%252f", "/");
    let plain = plain.replace("%252E", ".").replace("%252e", ".");
    plain.split('/').any(|part| {
        let name = part.split(';').next().unwrap_or(part);
        (name == "." || name == "..") && name.len() != segment.len()
    })
}

/// Decodes the escapes of printable ASCII that have no structural meaning. An escape that is none
/// becomes `%25`, so that nothing decodes twice.
fn decode(raw: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(raw.len());
    for next in escape::read(raw.as_bytes()) {
        match next {
            Next::Plain(b'?' | b'#') | Next::Escaped(0) => return Err(Error::Character),
            Next::Plain(byte) if byte.is_ascii_graphic() => out.push(char::from(byte)),
            Next::Plain(_) => return Err(Error::Character),
            Next::Broken => out.push_str("%25"),
            Next::Escaped(byte) if byte.is_ascii_graphic() && !is_structural(byte) => {
                out.push(char::from(byte));
            }
            Next::Escaped(byte) => {
                out.push('%');
                for digit in [byte >> 4, byte & 15] {
                    out.push(char::from(if digit < 10 { b'0' + digit } else { b'A' + digit - 10 }));
                }
            }
        }
    }
    Ok(out)
}

const fn is_structural(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\' | b'%' | b'?' | b'#' | b'*' | b';')
}

/// Why a text is not a path pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error(transparent)]
    Path(#[from] Error),
    #[error("`**` stands alone between slashes")]
    DoubleStar,
    #[error("a path pattern holds no dot segments and no empty segments")]
    NotNormal,
}

/// One segment of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Segment {
    /// `**`: any number of segments, none included.
    Any,
    /// `*`: one segment that is not empty.
    One,
    /// Text with stars.
    Glob(String),
    /// Text.
    Literal(String),
}

impl Segment {
    /// Narrower is greater.
    fn rank(&self) -> (u8, usize) {
        match self {
            Self::Any => (0, 0),
            Self::One => (1, 0),
            Self::Glob(text) => (2, glob::rank(text.as_bytes()).1),
            Self::Literal(_) => (3, 0),
        }
    }
}

/// A path in policy: segments in which `*` stands for characters, and `**` for segments.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    text: String,
    segments: Vec<Segment>,
}

/// How narrow a pattern is; greater is narrower. Compared after the literal prefix.
pub(crate) type Rank = Vec<(u8, usize)>;

impl Pattern {
    /// Reads a path of policy.
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let decoded = decode(text)?;
        let Some(rest) = decoded.strip_prefix('/') else { return Err(Error::NotAbsolute.into()) };
        let count = rest.split('/').count();
        let mut segments = Vec::with_capacity(count);
        for (i, segment) in rest.split('/').enumerate() {
            segments.push(match segment {
                "**" => Segment::Any,
                "*" => Segment::One,
                s if s.contains("**") => return Err(PatternError::DoubleStar),
                "." | ".." => return Err(PatternError::NotNormal),
                "" if i + 1 < count => return Err(PatternError::NotNormal),
                s if hides_dots(s) => return Err(PatternError::NotNormal),
                s if s.contains('*') => Segment::Glob(s.to_owned()),
                s => Segment::Literal(s.to_owned()),
            });
        }
        Ok(Self { text: decoded, segments })
    }

    /// The pattern in normal form.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether there is no star, so that it is one path.
    pub(crate) fn is_literal(&self) -> bool {
        self.segments.iter().all(|s| matches!(s, Segment::Literal(_)))
    }

    /// The literal segments in front of the first star, joined: `/v1/charges` of
    /// `/v1/charges/*/refund`, and nothing of `/*`.
    pub(crate) fn prefix(&self) -> String {
        let mut prefix = String::new();
        for segment in &self.segments {
            let Segment::Literal(text) = segment else { break };
            prefix.push('/');
            prefix.push_str(text);
        }
        prefix
    }

    /// The segments whose place counts from the beginning, and then those whose place counts from the
    /// end: all but what stands between the first and the last `**`.
    fn placed(&self) -> impl Iterator<Item = &Segment> {
        let first = self.segments.iter().position(|s| *s == Segment::Any);
        let last = self.segments.iter().rposition(|s| *s == Segment::Any);
        let count = self.segments.len();
        let before = self.segments.iter().take(first.unwrap_or(count));
        before.chain(self.segments.iter().skip(last.unwrap_or(count)))
    }

    /// The placed segments without a star. Patterns of one rank that differ in these share no path.
    pub(crate) fn fixed(&self) -> Vec<&str> {
        let fixed = self.placed().filter_map(|segment| match segment {
            Segment::Literal(text) => Some(text.as_str()),
            Segment::Any | Segment::One | Segment::Glob(_) => None,
        });
        fixed.collect()
    }

    /// The placed segments with a star in their text.
    pub(crate) fn globs(&self) -> Vec<&str> {
        let globs = self.placed().filter_map(|segment| match segment {
            Segment::Glob(text) => Some(text.as_str()),
            Segment::Any | Segment::One | Segment::Literal(_) => None,
        });
        globs.collect()
    }

    /// How narrow the rest behind the prefix is.
    pub(crate) fn rank(&self) -> Rank {
        let rest = self.segments.iter().skip_while(|s| matches!(s, Segment::Literal(_)));
        // The end is narrower than `**`: "/a/*" goes before "/a/*/**".
        rest.map(Segment::rank).chain(std::iter::once((1, 0))).collect()
    }

    /// Whether the pattern covers a path in normal form.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix('/') else { return false };
        let parts: Vec<&str> = rest.split('/').collect();
        // The same walk as for characters: one point of return suffices for `**`.
        let (mut s, mut p) = (0, 0);
        let mut back: Option<(usize, usize)> = None;
        while let Some(part) = parts.get(p) {
            let fits = match self.segments.get(s) {
                Some(Segment::Any) => {
                    back = Some((s + 1, p));
                    s += 1;
                    continue;
                }
                Some(Segment::One) => !part.is_empty(),
                Some(Segment::Glob(text)) => {
                    glob::matches(text.as_bytes(), part.as_bytes(), |_| true)
                }
                Some(Segment::Literal(text)) => text == part,
                None => false,
            };
            if fits {
                s += 1;
                p += 1;
            } else {
                let Some((after, from)) = back else { return false };
                back = Some((after, from + 1));
                (s, p) = (after, from + 1);
            }
        }
        self.segments.get(s..).is_some_and(|rest| rest.iter().all(|x| *x == Segment::Any))
    }

    /// Whether some path matches both patterns.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (a, b) = (&self.segments, &other.segments);
        let only_any = |s: &[Segment]| s.iter().all(|x| *x == Segment::Any);
        // As in `glob::meet`: `below[j]` says whether the rest of `a` and `b[j..]` can meet.
        let mut below: Vec<bool> =
            (0..=b.len()).map(|j| b.get(j..).is_some_and(only_any)).collect();
        for (i, x) in a.iter().enumerate().rev() {
            let mut row = vec![false; b.len() + 1];
            if let Some(last) = row.last_mut() {
                *last = a.get(i..).is_some_and(only_any);
            }
            for (j, y) in b.iter().enumerate().rev() {
                let at = |row: &[bool], j: usize| row.get(j).copied().unwrap_or(false);
                let met = if *x == Segment::Any || *y == Segment::Any {
                    at(&below, j) || at(&row, j + 1)
                } else {
                    segments_meet(x, y) && at(&below, j + 1)
                };
                if let Some(cell) = row.get_mut(j) {
                    *cell = met;
                }
            }
            below = row;
        }
        below.first().copied().unwrap_or(false)
    }
}

fn segments_meet(a: &Segment, b: &Segment) -> bool {
    fn text(segment: &Segment) -> &str {
        match segment {
            Segment::Any | Segment::One => "*",
            Segment::Glob(text) | Segment::Literal(text) => text,
        }
    }
    let empty_against_one = |x: &Segment, y: &Segment| *x == Segment::One && text(y).is_empty();
    !empty_against_one(a, b)
        && !empty_against_one(b, a)
        && glob::meet(text(a).as_bytes(), text(b).as_bytes())
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
