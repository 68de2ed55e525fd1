//! Happy Eyeballs (RFC 8305 section 5): addresses are tried in their order, each a moment after the
//! one before or as soon as that one failed, and the first connection wins. Only checked addresses
//! come in here.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// The Connection Attempt Delay (RFC 8305 section 8).
const DELAY: Duration = Duration::from_millis(250);

/// What became of one try.
#[derive(Debug)]
pub(crate) enum Try {
    Connected,
    Failed(io::Error),
    /// Another one won before it ended.
    Overtaken,
    TimedOut,
}

/// Connects to the first address that answers. Every try that began is told to `record`, in the
/// order of their ends, the winner last. The address of the winner is taken out of `addresses`, and so
/// is every one that failed.
pub(crate) async fn connect(
    addresses: &mut VecDeque<SocketAddr>,
    deadline: Instant,
    mut record: impl FnMut(SocketAddr, &Try),
) -> Option<(TcpStream, SocketAddr)> {
    let mut tries = JoinSet::new();
    let mut open: Vec<SocketAddr> = Vec::new();
    let mut next_at = Instant::now();
    let won = loop {
        let more = !addresses.is_empty();
        if !more && tries.is_empty() {
            break None;
        }
        tokio::select! {
            biased;
            () = sleep_until(deadline) => break None,
            Some(ended) = tries.join_next() => {
                let Ok((address, connected)) = ended else { continue };
                open.retain(|one| *one != address);
                match connected {
                    Ok(tcp) => break Some((tcp, address)),
                    Err(error) => {
                        record(address, &Try::Failed(error));
                        next_at = Instant::now();
                    }
                }
            }
            () = sleep_until(next_at), if more => {
                if let Some(address) = addresses.pop_front() {
                    open.push(address);
                    tries.spawn(async move { (address, TcpStream::connect(address).await) });
                }
                next_at = Instant::now() + DELAY;
            }
        }
    };
    for address in open {
        if won.is_some() {
            record(address, &Try::Overtaken);
            // It may be tried again if the winner can't be used.
            addresses.push_back(address);
        } else {
            record(address, &Try::TimedOut);
        }
    }
    if let Some((_, address)) = &won {
        record(*address, &Try::Connected);
    }
    won
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    /// A port that refuses, and what keeps it from others: bound, and not listened on.
    fn refusing() -> (TcpSocket, SocketAddr) {
        let socket = TcpSocket::new_v4().expect("socket");
        socket.bind("127.0.0.1:0".parse().expect("address")).expect("bound");
        let address = socket.local_addr().expect("address");
        (socket, address)
    }

    /// C-4: a refused address gives way at once; each try is told.
    #[tokio::test]
    async fn c_4_the_next_address_follows_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let ((_held, closed), good) = (refusing(), listener.local_addr().expect("address"));
        let mut addresses = VecDeque::from([closed, good]);
        let mut told = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        let won = connect(&mut addresses, deadline, |address, tried| {
            told.push((address, format!("{tried:?}").starts_with("Connected")));
        });
        assert_eq!(won.await.map(|(_, address)| address), Some(good));
        assert_eq!(told, [(closed, false), (good, true)]);
        assert!(addresses.is_empty());
    }

    /// C-4: with nothing left to try, nothing is waited for.
    #[tokio::test]
    async fn c_4_the_last_failure_ends_it() {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let (_held, closed) = refusing();
        let mut addresses = VecDeque::from([closed]);
        let ended = connect(&mut addresses, deadline, |_, _| {});
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        assert!(ended.expect("at once").is_none());
    }

    /// C-4: a silent address does not hold the next one up; it is given up, and told.
    #[tokio::test]
    async fn c_4_a_silent_address_is_overtaken() {
        // A full backlog answers nothing: the first packets of further connections are dropped.
        let socket = TcpSocket::new_v4().expect("socket");
        socket.bind("127.0.0.1:0".parse().expect("address")).expect("bound");
        let full = socket.listen(0).expect("listener");
        let silent = full.local_addr().expect("address");
        let _first = TcpStream::connect(silent).await.expect("the one that fits");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let good = listener.local_addr().expect("address");
        let mut addresses = VecDeque::from([silent, good]);
        let mut told = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        let won = connect(&mut addresses, deadline, |address, tried| {
            told.push((address, format!("{tried:?}")));
        });
        assert_eq!(won.await.map(|(_, address)| address), Some(good));
        assert_eq!(told, [(silent, "Overtaken".to_owned()), (good, "Connected".to_owned())]);
        assert_eq!(addresses, [silent]);
    }
}
