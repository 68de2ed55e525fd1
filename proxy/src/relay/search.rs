//! The search for the credential in content, encoded or not, on its way (contract I-4).

use super::{Down, Relay};
use crate::head::{Fields, Response, is_bodiless};
use crate::packed::{Coded, Rewrite, Stop, Watch};
use crate::respond::Broken;
use bytes::Bytes;

/// How the content of a response is looked through.
pub(crate) enum Search {
    /// Byte for byte.
    Plain,
    /// Unpacked beside, while the original passes.
    Watching(Box<Watch>),
    /// The original holds the credential: what is delivered and stored is encoded anew.
    Rewriting(Box<Rewrite>),
    /// The rest is read, and neither delivered nor stored.
    Withholding,
}

impl Search {
    /// Whether the result can't be seen by anybody.
    pub(crate) const fn is_withheld(&self) -> bool {
        matches!(self, Self::Withholding)
    }
}

/// Fields that name the bytes of the content as the origin sent them (RFC 9530, RFC 3230, RFC 1864).
const DIGESTS: [&str; 4] = ["content-digest", "repr-digest", "digest", "content-md5"];

fn is_digest(name: &[u8]) -> bool {
    DIGESTS.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

impl Relay<'_> {
    /// Whether what is delivered and stored is not what came.
    pub(super) fn is_altered(&self) -> bool {
        matches!(self.search, Search::Rewriting(_)) || self.parts.redactor.altered_content()
    }

    /// The head that is true of the content now: without the length and the digests of other bytes, and
    /// with a validator that is no more than weak (RFC 9110 section 8.8.1).
    pub(super) fn true_head(&self, mut head: Response) -> Response {
        if !self.is_altered() {
            return head;
        }
        let is_anew = matches!(self.search, Search::Rewriting(_));
        let goes = |name: &[u8]| {
            is_digest(name) || (is_anew && name.eq_ignore_ascii_case(b"content-length"))
        };
        let kept = head.fields.iter().filter(|(name, _)| !goes(name)).map(|(name, value)| {
            let is_strong = name.eq_ignore_ascii_case(b"etag") && value.starts_with(b"\"");
            let weak = is_strong.then(|| [b"W/", value].concat());
            (name.to_vec(), weak.unwrap_or_else(|| value.to_vec()))
        });
        head.fields = kept.collect();
        head
    }

    /// The same of trailers.
    pub(super) fn true_trailers(&self, trailers: Fields) -> Fields {
        if !self.is_altered() {
            return trailers;
        }
        let kept = trailers.iter().filter(|(name, _)| !is_digest(name));
        kept.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// What the head asks for. Content that can't be looked into goes on record as such.
    pub(super) fn search_in(&mut self, head: &Response) -> Search {
        let coded = Coded::of(&head.fields);
        if coded == Coded::Plain || !self.parts.redactor.is_active() {
            return Search::Plain;
        }
        let has_content = !is_bodiless(self.parts.method, head.status);
        let watch = match coded {
            Coded::By(coding) if has_content => Watch::new(coding, self.parts.redactor).ok(),
            Coded::By(_) | Coded::Plain | Coded::Other => None,
        };
        match watch {
            Some(watch) => Search::Watching(Box::new(watch)),
            None if has_content => {
                self.note_skipped("the origin encoded the content unasked");
                Search::Plain
            }
            None => Search::Plain,
        }
    }

    fn note_skipped(&mut self, why: &str) {
        self.parts.call.note("redaction_skipped", why);
    }

    /// Takes a piece of content; passes what may pass.
    pub(super) async fn searched(&mut self, head: &Response, data: Bytes) -> Result<(), Broken> {
        match &mut self.search {
            Search::Plain => {
                let data = self.parts.redactor.piece(data);
                self.pass(head, data).await
            }
            Search::Watching(watch) => match watch.push(data) {
                Ok(passing) => self.pass_all(head, passing).await,
                Err(stop) => self.stopped(head, stop).await,
            },
            Search::Rewriting(rewrite) => match rewrite.push(&data) {
                Ok(data) => self.pass(head, data).await,
                Err(_) => {
                    self.withhold("the content could not be unpacked to its end");
                    Ok(())
                }
            },
            Search::Withholding => Ok(()),
        }
    }

    /// Whether a few bytes are held back from a caller that is sent the others, and may wait for them.
    pub(super) fn holds_back(&self) -> bool {
        let is_sent = matches!(self.down, Down::Streaming(_));
        is_sent && matches!(self.search, Search::Plain) && self.parts.redactor.may_release()
    }

    /// The end of the content: what waited passes.
    pub(super) async fn search_end(&mut self, head: &Response) -> Result<(), Broken> {
        let end = match &mut self.search {
            Search::Plain => Ok(vec![self.parts.redactor.rest()]),
            Search::Watching(watch) => {
                let rest = watch.take_rest().concat();
                let replaced = self.parts.redactor.text(&rest);
                if replaced.is_some() {
                    self.parts.redactor.note_found();
                }
                Ok(vec![replaced.unwrap_or(rest).into()])
            }
            Search::Rewriting(rewrite) => rewrite.finish().map(|end| vec![end]),
            Search::Withholding => Ok(Vec::new()),
        };
        match end {
            Ok(pieces) => self.pass_all(head, pieces).await,
            Err(_) => {
                self.withhold("the content could not be encoded anew");
                Ok(())
            }
        }
    }

    async fn pass_all(&mut self, head: &Response, pieces: Vec<Bytes>) -> Result<(), Broken> {
        for piece in pieces {
            self.pass(head, piece).await?;
        }
        Ok(())
    }

    /// Content that can't go on as it came.
    async fn stopped(&mut self, head: &Response, stop: Stop) -> Result<(), Broken> {
        let Search::Watching(mut watch) = std::mem::replace(&mut self.search, Search::Plain) else {
            return Ok(());
        };
        match stop {
            Stop::Found => {
                self.parts.redactor.note_found();
                match watch.rewrite(self.parts.redactor) {
                    Ok(rewrite) if matches!(self.down, Down::Untouched) => {
                        self.rewrite(head, rewrite, watch.take_rest()).await
                    }
                    Ok(_) | Err(_) => {
                        self.withhold(
                            "encoded content held the credential after a part of it was delivered",
                        );
                        Ok(())
                    }
                }
            }
            Stop::TooLarge => {
                self.withhold("the content unpacks to more than is looked through");
                Ok(())
            }
            Stop::Opaque => {
                self.note_skipped("the content is not encoded as it says");
                for piece in watch.take_rest() {
                    let piece = self.parts.redactor.piece(piece);
                    self.pass(head, piece).await?;
                }
                Ok(())
            }
        }
    }

    /// Begins anew: nothing of the content was delivered or stored.
    async fn rewrite(
        &mut self,
        head: &Response,
        mut rewrite: Rewrite,
        rest: Vec<Bytes>,
    ) -> Result<(), Broken> {
        let mut originals = std::mem::take(&mut self.held);
        originals.extend(rest);
        self.held_bytes = 0;
        let packed =
            originals.iter().map(|piece| rewrite.push(piece)).collect::<Result<Vec<_>, _>>();
        match packed {
            Ok(packed) => {
                self.parts.call.note("encoded_anew", "encoded content held the credential");
                self.search = Search::Rewriting(Box::new(rewrite));
                self.pass_all(head, packed).await
            }
            Err(_) => {
                self.withhold("the content could not be unpacked to its end");
                Ok(())
            }
        }
    }

    /// From here on nothing is delivered or stored; a response under way is broken off visibly
    /// (contract S-2). The rest is read, because it settles the call.
    fn withhold(&mut self, why: &str) {
        self.search = Search::Withholding;
        self.held = Vec::new();
        self.held_bytes = 0;
        self.parts.call.note("result_withheld", why);
        self.parts.call.discard_result();
        if matches!(self.down, Down::Streaming(_)) {
            self.parts.out.abort();
            self.down = Down::Gone;
        }
    }
}
