//! Content that is read before the dispatch: what a decision, a guard or a signature rests on, and what is
//! there anyhow.

use crate::engine::Job;
use crate::fingerprint::WHOLE_BYTES;
use crate::grpc;
use crate::pieces;
use crate::request;
use crate::respond::Refusal;
use bytes::Bytes;
use futures::FutureExt as _;
use tokio::task::{consume_budget, coop};

impl Job<'_> {
    /// Asks the caller for its content if it waits to be asked, and was not asked before.
    pub(crate) async fn ask_for_content(&mut self) -> Result<(), Refusal> {
        if request::expects_continue(&self.head) && self.incoming.ask() {
            let asked = self.out.send(b"HTTP/1.1 100 Continue\r\n\r\n").await;
            asked.map_err(|_| Refusal::Content(crate::incoming::Error::Gone))?;
        }
        Ok(())
    }

    /// Reads the content to its end, or beyond what a fingerprint covers. How it is paced and cut
    /// makes no difference to what follows; a pause of the route's idle time ends the call.
    /// `one_by_one`: a message of gRPC is enough.
    pub(crate) async fn read_ahead(
        &mut self,
        limit_bytes: u64,
        one_by_one: bool,
    ) -> Result<Vec<Bytes>, Refusal> {
        self.ask_for_content().await?;
        let mut ahead = Vec::new();
        while self.incoming.length() <= WHOLE_BYTES
            && !(one_by_one && grpc::has_first_message(&ahead, self.incoming.length()))
        {
            let Some(piece) = self.incoming.next().await.map_err(Refusal::Content)? else { break };
            pieces::push(&mut ahead, piece);
            if self.incoming.length() > limit_bytes {
                return Err(Refusal::PayloadLimit { limit_bytes });
            }
        }
        Ok(ahead)
    }

    /// Takes what is there of content that nothing asks to see, so that a fault in it is known before
    /// anything is sent.
    pub(crate) async fn at_hand(&mut self, limit_bytes: u64) -> Result<Vec<Bytes>, Refusal> {
        let mut ahead = Vec::new();
        while self.incoming.length() <= WHOLE_BYTES && !request::expects_continue(&self.head) {
            // What is there is there, whoever else is to have a turn first.
            consume_budget().await;
            let next = coop::unconstrained(self.incoming.next()).now_or_never();
            let Some(next) = next else { break };
            let Some(piece) = next.map_err(Refusal::Content)? else { break };
            pieces::push(&mut ahead, piece);
            if self.incoming.length() > limit_bytes {
                return Err(Refusal::PayloadLimit { limit_bytes });
            }
        }
        Ok(ahead)
    }
}
