//! What acts on a call: the gateway that it came through.

use journal::action::{Error, QueryError, Reconciled};
use journal::contract::Gateway;
use journal::{Invocation, append};
use policy::repeat::Pace;
use std::sync::{Arc, Weak};

/// The gateways of a running server.
#[derive(Clone)]
pub(crate) struct Engines {
    proxy: Weak<proxy::Proxy>,
    ssh: Weak<ssh_gateway::Gateway>,
}

/// A server that goes down takes no attempt any more.
const GOING_DOWN: append::Error = append::Error::Closed;

impl Engines {
    pub(crate) fn new(proxy: &Arc<proxy::Proxy>, ssh: &Arc<ssh_gateway::Gateway>) -> Self {
        Self { proxy: Arc::downgrade(proxy), ssh: Arc::downgrade(ssh) }
    }

    /// One more attempt of the action (contract T-2).
    pub(crate) async fn retry(
        &self,
        first: &Invocation,
        holder: &str,
    ) -> Result<Invocation, Error> {
        let gone = || Error::Journal(GOING_DOWN);
        match first.accepted().gateway {
            Gateway::Http => self.proxy.upgrade().ok_or_else(gone)?.retry(first.id(), holder).await,
            Gateway::Ssh => self.ssh.upgrade().ok_or_else(gone)?.retry(first.id(), holder).await,
        }
    }

    /// One question about the action (contract K-7).
    pub(crate) async fn reconcile(&self, first: &Invocation) -> Result<Reconciled, QueryError> {
        let gone = || QueryError::Journal(GOING_DOWN);
        match first.accepted().gateway {
            Gateway::Http => self.proxy.upgrade().ok_or_else(gone)?.reconcile(first.id()).await,
            Gateway::Ssh => self.ssh.upgrade().ok_or_else(gone)?.reconcile(first.id()).await,
        }
    }

    /// Who asks about the action, and how often; none: nobody can.
    pub(crate) fn pace(&self, first: &Invocation) -> Option<Pace> {
        match first.accepted().gateway {
            Gateway::Http => Some(self.proxy.upgrade()?.reconcile_rule(first)?.pace),
            Gateway::Ssh => self.ssh.upgrade()?.pace(first),
        }
    }
}
