//! What every scripted peer has, whatever it speaks: a life that ends with its owner, connections that
//! are taken as they come, the ways in which one is given up, and the counts.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What arrived at one path, or of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests.
    pub requests: usize,
    /// Effects.
    pub effects: usize,
}

/// Counts by name, from names of requests and of effects.
pub(crate) fn counted(
    requests: impl Iterator<Item = String>,
    effects: impl Iterator<Item = String>,
) -> HashMap<String, Counts> {
    let mut counts: HashMap<String, Counts> = HashMap::new();
    for name in requests {
        counts.entry(name).or_default().requests += 1;
    }
    for name in effects {
        counts.entry(name).or_default().effects += 1;
    }
    counts
}

/// Whether a connection goes on after a step of its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Next,
    Ended,
}

/// How a peer gives up a connection, whatever lies on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It closes the connection.
    Close,
    /// It resets the connection.
    Reset,
    /// It says nothing more, and keeps the connection open.
    Stall,
}

/// How long a peer lives: until its owner drops it.
pub(crate) struct Life {
    done: watch::Sender<bool>,
}

impl Default for Life {
    fn default() -> Self {
        Self { done: watch::Sender::new(false) }
    }
}

impl Life {
    /// Ends the peer and every connection that it stalls.
    pub(crate) fn end(&self) {
        self.done.send_replace(true);
    }

    /// Waits for the end of the peer.
    pub(crate) async fn over(&self) -> io::Result<()> {
        let mut done = self.done.subscribe();
        done.wait_for(|done| *done).await.map(drop).map_err(io::Error::other)
    }

    /// Gives a connection up.
    pub(crate) async fn give_up(&self, way: Way, stream: &mut TcpStream) -> io::Result<After> {
        match way {
            Way::Close => stream.shutdown().await?,
            Way::Reset => stream.set_zero_linger()?,
            Way::Stall => self.over().await?,
        }
        Ok(After::Ended)
    }
}

/// Takes connections until the peer's life is over, each as a task of its own.
pub(crate) async fn serve<P, F>(
    listener: TcpListener,
    peer: Arc<P>,
    life: fn(&P) -> &Life,
    connection: fn(TcpStream, Arc<P>) -> F,
) where
    P: Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let over = life(&peer).over();
    tokio::pin!(over);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
            _ = &mut over => return,
        };
        let connection = connection(stream, Arc::clone(&peer));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("a connection of a scripted peer ended: {error}");
            }
        });
    }
}
