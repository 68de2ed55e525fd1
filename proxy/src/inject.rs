//! Injection: from a request and its credential to the changes that policy's recipes make.
//!
//! Nothing here writes to an origin. What comes out holds secrets and lives in buffers that are
//! zeroed when they are dropped.

use crate::head::{Framing, Request};
use crate::outgoing;
use crate::redact::Redactor;
use crate::target::Target;
use bytes::Bytes;
use policy::recipe::{ChunkSigner, Content, Edits, Recipe, View, is_stray, nonce};
use policy::{Credential, Inject, Secret, credential};
use std::time::{SystemTime, UNIX_EPOCH};

/// A request's credential, ready to leave with it.
pub(crate) struct Injected {
    /// What is changed in the head.
    pub(crate) edits: Edits,
    /// The framing of what leaves.
    pub(crate) framing: Framing,
    /// The whole content, where it was changed.
    pub(crate) content: Option<Bytes>,
    /// What changes content that is still on its way.
    pub(crate) chunks: Option<ChunkSigner>,
    /// Looks for echoes of the credential.
    pub(crate) redactor: Redactor,
}

/// The wall clock, in milliseconds since 1970: what a signature is dated by.
fn wall_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// Content in a buffer that is zeroed with its last owner.
struct Owned(Secret);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.expose()
    }
}

/// What is known of a request before anything is injected.
pub(crate) struct Before<'a> {
    pub(crate) head: &'a Request,
    pub(crate) target: &'a Target,
    pub(crate) framing: Framing,
    /// Content read ahead.
    pub(crate) ahead: &'a [Bytes],
    /// Whether that is all of it.
    pub(crate) whole: bool,
}

impl Before<'_> {
    /// Makes the changes that inject a credential.
    pub(crate) fn inject(
        &self,
        credential: &Credential,
        secret: &Secret,
    ) -> Result<Injected, credential::Error> {
        if !replaces_placeholders(&credential.inject) {
            self.check_strays()?;
        }
        let fields: Vec<_> = self.head.fields.iter().collect();
        let authority = outgoing::host(self.head, self.target);
        let joined = self.ahead.concat();
        let view = View {
            method: &self.head.method,
            scheme: self.target.scheme,
            authority: &authority,
            target: &self.target.path_and_query,
            headers: &fields,
            content: if self.whole { Content::Whole(&joined) } else { Content::Streamed },
            now_ms: wall_ms(),
            nonce: nonce()?,
        };
        let mut edits = credential.inject.edits(secret, &view)?;
        let redactor = match (&credential.inject, edits.set.first()) {
            (Inject::Recipe(_), _) | (_, None) => Redactor::of(&edits.shown),
            (_, Some((_, value))) => Redactor::new(secret, value),
        };
        let content = edits.content.take().map(|content| Bytes::from_owner(Owned(content)));
        let mut framing = self.framing;
        if let (Some(content), Framing::Length(length)) = (&content, &mut framing) {
            *length = u64::try_from(content.len()).unwrap_or(u64::MAX);
            edits.set.push(("content-length".to_owned(), Secret::from(length.to_string())));
        }
        let chunks = edits.chunks.take();
        Ok(Injected { edits, framing, content, chunks, redactor })
    }

    /// Refuses a request that holds a placeholder which nothing on its route stands for.
    pub(crate) fn check_strays(&self) -> Result<(), credential::Error> {
        let stray = is_stray(self.target.path_and_query.as_bytes())
            || self.head.fields.iter().any(|(_, value)| is_stray(value))
            // However it was cut on its way; most content lies in one piece.
            || match self.ahead {
                [whole] => is_stray(whole),
                pieces => is_stray(&pieces.concat()),
            };
        if stray { Err(credential::Error::Stray) } else { Ok(()) }
    }
}

fn replaces_placeholders(inject: &Inject) -> bool {
    matches!(inject, Inject::Recipe(recipe) if matches!(**recipe, Recipe::Placeholder(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-4: a placeholder that nothing stands for does not leave, wherever its content was cut on the way.
    #[test]
    fn i_4_a_placeholder_in_two_pieces_does_not_leave() {
        let text = b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let head = crate::head::request(&Bytes::from_static(text)).expect("a head");
        let target = Target::absolute(&head.target).expect("a target");
        let strays = |ahead: &[Bytes]| {
            let framing = Framing::Chunked;
            let before = Before { head: &head, target: &target, framing, ahead, whole: false };
            before.check_strays().is_err()
        };
        for (content, is_stray) in [
            (&b"{\"key\":\"affiant_ph_blue\"}"[..], true),
            (br#"{"key":"affiant\u005fph_blue"}"#, true),
            (b"{\"key\":\"affiant_blue\"}", false),
        ] {
            for at in 0..content.len() {
                let (first, rest) = content.split_at(at);
                let pieces = [Bytes::from_static(first), Bytes::from_static(rest)];
                assert_eq!(strays(&pieces), is_stray, "cut at {at}");
            }
        }
    }
}
