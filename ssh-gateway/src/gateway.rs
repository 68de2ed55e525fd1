//! The listener: connections in, sessions out.

use crate::{Identity, Options};
use journal::Journal;
use policy::Policy;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The SSH gateway of one home.
pub struct Gateway {}

impl Gateway {
    /// Joins the parts. Nothing runs before [`Gateway::serve`].
    #[must_use]
    pub fn new(
        journal: Journal,
        policy: Arc<Policy>,
        identity: Arc<Identity>,
        options: Options,
    ) -> Arc<Self> {
        let _ = (journal, policy, identity, options);
        todo!()
    }

    /// Takes connections until `shutdown` turns true (or its sender is gone), then no new commands;
    /// returns when the commands under way are settled, at the latest after [`Options::drain`].
    pub async fn serve(self: Arc<Self>, listener: TcpListener, shutdown: watch::Receiver<bool>) {
        let _ = (listener, shutdown);
        todo!()
    }
}
