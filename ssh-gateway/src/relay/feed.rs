//! stdin, from the spool to the target.

use crate::flag::raised;
use crate::gauge::stalled;
use crate::keep::{Watch, watching};
use crate::seen::Stop;
use crate::spool::{Input, Spool};
use crate::tally::Sum;
use journal::contract::RequestSent;
use russh::ChannelWriteHalf;
use russh::client::Msg;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How far the feeder is.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) sum: Sum,
    pub(super) ended: bool,
}

/// What the feeder tells.
pub(super) enum Fed {
    /// The client ended stdin, and all of it was passed on.
    Complete(RequestSent),
    /// The client left without an end of stdin.
    Abandoned,
    /// It stopped.
    Stopped(Stop),
}

/// Feeds one command.
pub(super) struct Feeder {
    pub(super) write: Arc<ChannelWriteHalf<Msg>>,
    pub(super) lost: watch::Receiver<bool>,
    pub(super) limit_bytes: u64,
    /// How long the target may take nothing while the space for waiting input is used up.
    pub(super) patience: Duration,
    /// Whether output waits for the client meanwhile.
    pub(super) client_waits: Arc<AtomicBool>,
    pub(super) told: mpsc::UnboundedSender<Fed>,
    /// The size of the client's terminal: columns and rows.
    pub(super) size: watch::Sender<[u32; 2]>,
    pub(super) progress: Arc<Mutex<Progress>>,
    pub(super) watch: Option<Watch>,
}

impl Feeder {
    /// Passes the client's input on, in order. Ends with the target, or with the client: then stdin
    /// ends, too.
    pub(super) async fn run(mut self, mut spool: Spool) {
        let gauge = spool.gauge();
        while let Some(input) = spool.next().await {
            let passed = match input {
                Input::Data(data) => {
                    if self.count(&data) > self.limit_bytes {
                        drop(self.told.send(Fed::Stopped(Stop::InputLimit)));
                        return;
                    }
                    if let Some(watch) = &self.watch {
                        watching(watch).request(&data);
                    }
                    // A writer that waits for window is not woken when its connection dies.
                    tokio::select! {
                        passed = self.write.data_bytes(data) => passed,
                        () = raised(&mut self.lost) => return,
                        () = stalled(gauge.as_deref(), self.patience, &self.client_waits) => {
                            drop(self.told.send(Fed::Stopped(Stop::InputStalled)));
                            return;
                        }
                    }
                }
                Input::Eof => {
                    drop(self.told.send(Fed::Complete(self.end())));
                    self.write.eof().await
                }
                Input::WindowChange([columns, rows, width, height]) => {
                    self.size.send_replace([columns, rows]);
                    self.write.window_change(columns, rows, width, height).await
                }
                Input::Signal(signal) => self.write.signal(signal).await,
            };
            if passed.is_err() {
                return;
            }
        }
        let has_ended = self.progress.lock().unwrap_or_else(PoisonError::into_inner).ended;
        if !has_ended {
            drop(self.told.send(Fed::Abandoned));
            drop(self.write.eof().await);
        }
    }

    /// Counts bytes of stdin; answers how many there are.
    fn count(&self, data: &[u8]) -> u64 {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.sum.push(data);
        progress.sum.length_bytes()
    }

    /// Marks the end of stdin.
    fn end(&self) -> RequestSent {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.ended = true;
        RequestSent { length_bytes: progress.sum.length_bytes(), digest: progress.sum.digest() }
    }
}
