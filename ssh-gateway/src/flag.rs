//! A flag that is raised once, and waited for.

use tokio::sync::watch;

/// Waits until the flag is raised. A sender that is gone without a word counts as well.
pub(crate) async fn raised(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|raised| *raised).await);
}
