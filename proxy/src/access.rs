//! What an open passage rests on: its agent's access and policy's word. A WebSocket or a tunnel may stay
//! open for days, so both are asked for again and again.

use crate::head::Request;
use crate::judge;
use crate::request::Identity;
use crate::target::{Authority, Target};
use policy::{Body, Policy};
use std::time::Duration;
use tokio::time::sleep;

/// How often it is asked for.
const LOOK: Duration = Duration::from_secs(1);

/// What was opened.
#[derive(Clone, Copy)]
pub(crate) enum Asked<'a> {
    /// A tunnel that is left alone.
    Tunnel(&'a Authority),
    /// A WebSocket.
    Opening { head: &'a Request, target: &'a Target },
}

/// Who opened it, and what.
pub(crate) struct Access<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) identity: Option<Identity>,
    pub(crate) asked: Asked<'a>,
}

impl Access<'_> {
    /// Waits until there is none any more.
    pub(crate) async fn over(&self) {
        let mut judged = None;
        loop {
            sleep(LOOK).await;
            let Some(identity) = self.identity.as_ref().filter(|i| i.is_valid(self.policy)) else {
                return;
            };
            let snapshot = self.policy.snapshot();
            // The same policy says the same.
            if judged.replace(snapshot.version()) == Some(snapshot.version()) {
                continue;
            }
            let agent = identity.agent();
            let holds = match self.asked {
                Asked::Tunnel(Authority { host, port }) => {
                    matches!(snapshot.opaque(agent, &host.to_string(), *port), Ok(Some(_)))
                }
                Asked::Opening { head, target } => {
                    judge::ask(head, agent, target, Body::default(), |action, details| {
                        snapshot.http_with(action, details).is_ok()
                    })
                }
            };
            if !holds {
                return;
            }
        }
    }
}
