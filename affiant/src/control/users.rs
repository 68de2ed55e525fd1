//! Who uses a server that runs share: it ends with the last of them.

use super::operator::operators_only;
use super::{Caller, Problem, ProblemCode, State};
use axum::Extension;
use axum::body::Body;
use axum::extract::State as Extract;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a server that was started for runs waits for the first.
const FIRST: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Presence {
    count: usize,
    /// Whether anybody came so far.
    came: bool,
    /// Whether nobody is taken any more.
    closed: bool,
}

/// Those who use the server.
#[derive(Debug, Default)]
pub(crate) struct Users(watch::Sender<Presence>);

impl Users {
    /// One more, until the value is dropped; none when the server is ending.
    fn join(self: &Arc<Self>) -> Option<User> {
        let joined = self.0.send_if_modified(|users| {
            users.count += usize::from(!users.closed);
            users.came |= !users.closed;
            !users.closed
        });
        joined.then(|| User(Arc::clone(self)))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.borrow().count
    }

    /// Waits until somebody came and all went again, or nobody came; takes no more from then on.
    pub(crate) async fn deserted(&self) {
        let mut watched = self.0.subscribe();
        // When nobody came there is nobody to wait for.
        drop(timeout(FIRST, watched.wait_for(|users| users.came)).await);
        let close = |users: &mut Presence| {
            users.closed |= users.count == 0;
            users.closed
        };
        while !self.0.send_if_modified(close) && watched.changed().await.is_ok() {}
    }

    /// Takes no more, and lets go of those that are there.
    pub(crate) fn close(&self) {
        self.0.send_modify(|users| users.closed = true);
    }
}

/// One of the users.
struct User(Arc<Users>);

impl User {
    /// Waits until the server ends.
    async fn dismissed(self) {
        let mut watched = self.0.0.subscribe();
        drop(watched.wait_for(|users| users.closed).await);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.0.send_modify(|users| users.count = users.count.saturating_sub(1));
    }
}

/// `GET /v1/attach`: counts as a user of the server for as long as the answer is read. It ends when the
/// server does.
pub(super) async fn attach(
    Extract(state): Extract<Arc<State>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    operators_only(&caller)?;
    let user = state
        .users
        .join()
        .ok_or_else(|| Problem::new(ProblemCode::ServerEnding, "the server is about to end"))?;
    let said = futures::stream::once(async {
        Ok::<_, std::convert::Infallible>(Bytes::from("attached\n"))
    });
    let until_the_end = futures::stream::once(user.dismissed()).filter_map(async |()| None);
    Ok(Body::from_stream(said.chain(until_the_end)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server is deserted when the last went, not before, and nobody joins it then.
    #[tokio::test]
    async fn the_last_one_ends_it() {
        let users = Arc::new(Users::default());
        let (one, two) = (users.join().unwrap(), users.join().unwrap());
        assert_eq!(users.count(), 2);
        let deserted = tokio::spawn({
            let users = Arc::clone(&users);
            async move { users.deserted().await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!deserted.is_finished());
        let three = users.join().unwrap();
        drop(two);
        tokio::task::yield_now().await;
        assert!(!deserted.is_finished());
        drop(three);
        deserted.await.unwrap();
        assert!(users.join().is_none());
    }

    #[tokio::test]
    async fn who_is_there_at_the_end_is_dismissed() {
        let users = Arc::new(Users::default());
        let one = users.join().unwrap();
        users.close();
        one.dismissed().await;
        assert_eq!(users.count(), 0);
    }
}
