//! Whether a client is still there, asked once it has logged in.

use russh::server::Handle;
use std::time::Duration;

/// Returns when the client has been silent for too long: `count` yields what was heard of it so far,
/// and each interval without news it is asked something that every client answers.
pub(crate) async fn lost(
    handle: Handle,
    interval: Duration,
    questions_max: usize,
    count: impl Fn() -> u64,
) {
    let (mut heard, mut unanswered) = (count(), 0);
    while unanswered <= questions_max {
        tokio::time::sleep(interval).await;
        let now = count();
        if now != heard {
            (heard, unanswered) = (now, 0);
            continue;
        }
        unanswered += 1;
        let handle = handle.clone();
        tokio::spawn(async move {
            // Ending a forwarding that was never begun is refused by every client (RFC 4254 section
            // 4). The answer shows in the count.
            let question = handle.cancel_forward_tcpip(String::new(), 0);
            drop(tokio::time::timeout(interval, question).await);
        });
    }
}
