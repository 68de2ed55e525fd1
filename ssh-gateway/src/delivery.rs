//! Hand-overs under way.
//!
//! A client can start its next command on the exit status, before its confirmation is on record. An
//! equal command that came in between would get the old result as one that was never handed over
//! (contract K-11); so it waits here until the hand-over is decided.

use crate::flag::raised;
use journal::contract::InvocationId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

type Flags = HashMap<InvocationId, watch::Sender<bool>>;

/// The hand-overs under way in this process.
#[derive(Debug, Default)]
pub(crate) struct Deliveries(Arc<Mutex<Flags>>);

/// One hand-over; decided when this is dropped.
#[derive(Debug)]
pub(crate) struct Delivery {
    flags: Arc<Mutex<Flags>>,
    id: InvocationId,
}

impl Deliveries {
    /// Begins the hand-over of a result.
    pub(crate) fn begin(&self, id: InvocationId) -> Delivery {
        lock(&self.0).insert(id, watch::Sender::new(false));
        Delivery { flags: Arc::clone(&self.0), id }
    }

    /// Waits until the hand-over is decided; false when none was under way.
    pub(crate) async fn decided(&self, id: InvocationId) -> bool {
        let flag = lock(&self.0).get(&id).map(watch::Sender::subscribe);
        match flag {
            Some(mut flag) => {
                raised(&mut flag).await;
                true
            }
            None => false,
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(flag) = lock(&self.flags).remove(&self.id) {
            flag.send_replace(true);
        }
    }
}

fn lock(flags: &Mutex<Flags>) -> std::sync::MutexGuard<'_, Flags> {
    flags.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn k_11_an_equal_command_waits_for_a_hand_over_under_way() {
        let deliveries = Deliveries::default();
        let id = InvocationId::from_parts(1, 2);
        assert!(!deliveries.decided(id).await);
        let delivery = deliveries.begin(id);
        let waiting = deliveries.decided(id);
        let ending = async {
            tokio::task::yield_now().await;
            drop(delivery);
        };
        assert!(tokio::join!(waiting, ending).0);
        assert!(!deliveries.decided(id).await);
    }
}
