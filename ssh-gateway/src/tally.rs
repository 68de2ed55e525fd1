//! Length and digest of a command's output: of each stream alone, and of both in the order of
//! arrival.

use journal::Stream;
use journal::contract::Digest;
use sha2::{Digest as _, Sha256};

/// What went through one place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sum {
    hasher: Sha256,
    length_bytes: u64,
}

impl Sum {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.hasher.update(data);
        self.length_bytes = self.length_bytes.saturating_add(data.len() as u64);
    }

    pub(crate) const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest(self.hasher.clone().finalize().into())
    }
}

/// The output of one command.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    stdout: Sum,
    stderr: Sum,
    /// Both together. While only one of them has content it is the whole, and nothing is hashed
    /// twice.
    both: Option<Sum>,
}

impl Tally {
    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        let (this, other) = match stream {
            Stream::Stdout | Stream::Head | Stream::Content | Stream::Trailers => {
                (&mut self.stdout, &self.stderr)
            }
            Stream::Stderr => (&mut self.stderr, &self.stdout),
        };
        if self.both.is_none() && other.length_bytes > 0 {
            self.both = Some(other.clone());
        }
        this.push(data);
        if let Some(both) = &mut self.both {
            both.push(data);
        }
    }

    pub(crate) const fn stdout(&self) -> &Sum {
        &self.stdout
    }

    pub(crate) const fn stderr(&self) -> &Sum {
        &self.stderr
    }

    /// Both streams together.
    pub(crate) fn whole(&self) -> &Sum {
        match &self.both {
            Some(both) => both,
            None if self.stderr.length_bytes > 0 => &self.stderr,
            None => &self.stdout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[(Stream, &str)]) {
        let mut tally = Tally::default();
        for (stream, text) in pieces {
            tally.push(*stream, text.as_bytes());
        }
        let of = |wanted: Option<Stream>| -> String {
            let taken = pieces.iter().filter(|(stream, _)| wanted.is_none_or(|w| w == *stream));
            taken.map(|(_, text)| *text).collect()
        };
        for (sum, wanted) in [
            (tally.stdout(), Some(Stream::Stdout)),
            (tally.stderr(), Some(Stream::Stderr)),
            (tally.whole(), None),
        ] {
            let text = of(wanted);
            assert_eq!(sum.length_bytes(), text.len() as u64, "{pieces:?}");
            assert_eq!(sum.digest(), Digest::of(text.as_bytes()), "{pieces:?}");
        }
    }

    #[test]
    fn each_stream_and_both_together_are_summed() {
        check(&[]);
        check(&[(Stream::Stdout, "a"), (Stream::Stdout, "b")]);
        check(&[(Stream::Stderr, "a"), (Stream::Stderr, "b")]);
        check(&[(Stream::Stdout, "a"), (Stream::Stderr, "b"), (Stream::Stdout, "c")]);
        check(&[(Stream::Stderr, "a"), (Stream::Stdout, "b"), (Stream::Stderr, "c")]);
    }
}
