//! What is open rests on its agent's access, and a passage on policy's word as well. A WebSocket, a tunnel,
//! an upload or a streamed answer may stay open for days, so these are asked for again and again.

use crate::head::Request;
use crate::judge;
use crate::request::{Identity, Tunnel};
use crate::target::{Authority, Target};
use policy::{Body, Policy};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is asked for.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// Who makes a call, by what it shows.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) head: &'a Request,
    pub(crate) tunnel: Option<&'a Tunnel>,
}

impl Caller<'_> {
    /// Who calls, if policy still knows agent and token (contract V-1).
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self.tunnel {
            Some(tunnel) => Some(&tunnel.identity).filter(|i| i.is_valid(self.policy)).cloned(),
            None => Identity::of(self.head, self.policy),
        }
    }

    /// Waits until policy knows it no more.
    pub(crate) async fn over(&self) {
        loop {
            sleep(LOOK).await;
            if self.identity().is_none() {
                return;
            }
        }
    }
}

/// Looks at the caller of a call that lasts. The first one is not due at once: a short call costs nothing.
#[derive(Default)]
pub(crate) struct Looks(Option<Instant>);

impl Looks {
    /// Whether the caller's access is found to be over now; none for attempts without a caller.
    pub(crate) fn find_over(&mut self, caller: Option<Caller<'_>>) -> bool {
        let now = Instant::now();
        let is_due = self.0.is_some_and(|due| now >= due);
        if is_due || self.0.is_none() {
            self.0 = Some(now + LOOK);
        }
        is_due && caller.is_some_and(|caller| caller.identity().is_none())
    }
}

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
