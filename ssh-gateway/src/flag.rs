//! A flag that is raised once, and waited for.

use tokio::sync::watch;

/// Waits until the flag is raised. A sender that is gone without a word counts as well.
pub(crate) async fn raised(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|raised| *raised).await);
}

/// Waits until something is said there. A sender that is gone without a word never says anything.
pub(crate) async fn said<T: Copy>(word: &mut watch::Receiver<Option<T>>) -> T {
    match word.wait_for(Option::is_some).await.ok().and_then(|said| *said) {
        Some(said) => said,
        None => std::future::pending().await,
    }
}
