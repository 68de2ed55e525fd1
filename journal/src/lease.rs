//! Leases: one active retry of an invocation at a time (contract K-6).
//!
//! ```text
//!  LEASE_ACQUIRED g ─► LEASE_RENEWED g* ─► LEASE_USED g + DISPATCH_STARTED of the retry ─► LEASE_RELEASED g
//!        │ time over, given back, or another process
//!        └─► LEASE_ACQUIRED g+1: from here on nothing of g is appended
//! ```
//!
//! The fence is the append itself: use and dispatch are checked and queued under the same locks, so
//! a worker that slept between the check and the dispatch can't exist. Time is the monotonic clock of
//! the process. A lease of an earlier process counts as over: its process is gone, or it could
//! not have been replaced (one process per home), and its generation is behind.

use crate::append;
use crate::contract::{
    Body, InvocationId, LeaseAcquired, LeaseReleased, LeaseRenewed, LeaseUsed, Source,
};
use crate::core::Core;
use crate::enqueue::{Part, Queued, Wait};
use crate::entry::Entry;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a lease is not had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Caller: another worker holds it.
    #[error("{holder} holds the lease (generation {generation})")]
    Held {
        /// Who.
        holder: String,
        /// Of its lease.
        generation: u64,
    },
    /// Caller: its time or that of the key is over, it was given back, or a newer one exists.
    #[error("the lease of generation {0} is over")]
    Over(u64),
    /// The append failed, or the projection refuses it.
    #[error(transparent)]
    Append(#[from] append::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    generation: u64,
    holder: String,
    until: Instant,
}

/// The leases of this process. Pure: time is an argument.
#[derive(Debug, Default, Clone)]
pub(crate) struct Table(HashMap<InvocationId, Held>);

impl Table {
    /// Whether a lease can be taken now.
    fn check_free(&self, id: InvocationId, now: Instant) -> Result<(), Error> {
        match self.0.get(&id) {
            Some(held) if now < held.until => {
                let Held { generation, holder, .. } = held.clone();
                Err(Error::Held { holder, generation })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the lease of that generation still holds.
    fn check_held(&self, id: InvocationId, generation: u64, now: Instant) -> Result<(), Error> {
        let holds =
            self.0.get(&id).is_some_and(|held| held.generation == generation && now < held.until);
        if holds { Ok(()) } else { Err(Error::Over(generation)) }
    }

    fn take(&mut self, id: InvocationId, generation: u64, holder: &str, until: Instant) {
        // What is over needs no place.
        if self.0.len() >= 1024 {
            let now = Instant::now();
            self.0.retain(|_, held| now < held.until);
        }
        self.0.insert(id, Held { generation, holder: holder.to_owned(), until });
    }

    fn extend(&mut self, id: InvocationId, until: Instant) {
        if let Some(held) = self.0.get_mut(&id) {
            held.until = until;
        }
    }

    fn drop_held(&mut self, id: InvocationId) {
        self.0.remove(&id);
    }
}

/// The right to retry one invocation. Not given back by a drop: it ends by its time.
#[must_use]
pub struct Lease {
    core: Arc<Core>,
    entry: Arc<Entry>,
    generation: u64,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let generation = self.generation;
        f.debug_struct("Lease")
            .field("id", &self.entry.id)
            .field("generation", &generation)
            .finish()
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// Takes a lease.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    id: InvocationId,
    holder: &str,
    ttl: Duration,
) -> Result<Lease, Error> {
    core.check_health()?;
    let (lease, queued) = {
        let _retiring = core.retiring.read();
        let mut leases = core.leases.lock();
        let now = Instant::now();
        leases.check_free(id, now)?;
        let entry = core.entry(id).map_err(|_| crate::admission::index_failed())?;
        let entry = entry.ok_or(append::Error::NotFound)?;
        let known = entry.state.lock().live.lease();
        let generation = known.map_or(1, |lease| lease.generation + 1);
        let lease = Lease { core: Arc::clone(core), entry, generation };
        let body = Body::LeaseAcquired(LeaseAcquired {
            generation,
            holder: holder.to_owned(),
            ttl_ms: millis(ttl),
        });
        let queued = lease.append(body)?;
        leases.take(id, generation, holder, now + ttl);
        (lease, queued)
    };
    crate::call::durable(queued.receiver).await?;
    Ok(lease)
}

impl Lease {
    /// The invocation that may be retried.
    #[must_use]
    pub fn id(&self) -> InvocationId {
        self.entry.id
    }

    /// 1 for the first lease of the invocation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    fn append(&self, body: Body) -> Result<Queued, append::Error> {
        let parts = vec![Part::Event(Source::TransportObserved, body)];
        self.core.append(&self.entry, None, parts, Wait::Later)
    }

    /// Holds it for that long from now.
    ///
    /// # Errors
    /// [`Error::Over`] when it was over before; [`Error::Append`].
    pub async fn renew(&self, ttl: Duration) -> Result<(), Error> {
        let queued = {
            let mut leases = self.core.leases.lock();
            let now = Instant::now();
            leases.check_held(self.entry.id, self.generation, now)?;
            let (generation, ttl_ms) = (self.generation, millis(ttl));
            let queued = self.append(Body::LeaseRenewed(LeaseRenewed { generation, ttl_ms }))?;
            leases.extend(self.entry.id, now + ttl);
            queued
        };
        crate::call::durable(queued.receiver).await?;
        Ok(())
    }

    /// Gives it back.
    ///
    /// # Errors
    /// [`Error::Over`] when it was over before; [`Error::Append`].
    pub async fn release(self) -> Result<(), Error> {
        let queued = {
            let mut leases = self.core.leases.lock();
            leases.check_held(self.entry.id, self.generation, Instant::now())?;
            let generation = self.generation;
            let queued = self.append(Body::LeaseReleased(LeaseReleased { generation }))?;
            leases.drop_held(self.entry.id);
            queued
        };
        crate::call::durable(queued.receiver).await?;
        Ok(())
    }

    /// Checks the lease, and the end of the permission that it was taken for (contract K-5), and
    /// queues the dispatch under it, with nothing in between.
    pub(crate) fn queue_dispatch(
        &self,
        not_after_ms: Option<u64>,
        (call, epoch): (&Arc<Entry>, u64),
        dispatch: Body,
    ) -> Result<Queued, Error> {
        let leases = self.core.leases.lock();
        leases.check_held(self.entry.id, self.generation, Instant::now())?;
        if not_after_ms.is_some_and(|at_ms| at_ms <= self.core.clock.latest_ms()) {
            return Err(Error::Over(self.generation));
        }
        let used = LeaseUsed { generation: self.generation, retry: call.id };
        let used = Body::LeaseUsed(used);
        Ok(self.core.append_under(&self.entry, used, call, epoch, dispatch)?)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.core.release_entry(&self.entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{
        Accepted, Code, Digest, Ended, Event, Gateway, Retry, Sequence, Verdict,
    };
    use crate::projection::Invocation;
    use std::collections::HashSet;

    const WORKERS: usize = 3;
    const TTL: u64 = 2;
    const CLOCK: u64 = 5;

    /// What a worker does next.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    enum Step {
        Acquire,
        /// Holds a generation and goes on to dispatch.
        Dispatch(u64),
        /// Sees to its dispatched retry, and renews or gives back.
        Active(u64),
        Done,
    }

    /// Everything that the interleaving can change.
    #[derive(Clone)]
    struct World {
        table: Table,
        invocation: Invocation,
        sequence: u64,
        clock: u64,
        workers: [Step; WORKERS],
        /// Generations under which a retry was dispatched, in order.
        dispatched: Vec<u64>,
    }

    fn id() -> InvocationId {
        InvocationId::from_parts(1, 1)
    }

    fn event(body: Body) -> Event {
        Event { invocation: id(), at_ms: 1, source: Source::TransportObserved, body }
    }

    fn unknown() -> Invocation {
        let accepted = Accepted {
            gateway: Gateway::Http,
            agent: None,
            action: "GET".into(),
            target: String::new(),
            command: None,
            fingerprint: Some(Digest::of(b"f")),
            caller_id: false,
            counted: false,
            link: None,
        };
        let start = event(Body::ActionAccepted(accepted.into()));
        let mut invocation = Invocation::start(Sequence(1), &start).unwrap();
        let ended = Ended {
            verdict: Verdict::refused(Retry::Backoff, Code::BrokerRestarted),
            message: String::new(),
            field: None,
            not_before_ms: None,
            observation: None,
        };
        let ended = event(Body::InvocationEnded(Box::new(ended)));
        invocation.apply(Sequence(2), &ended).unwrap();
        invocation
    }

    struct Explorer {
        base: Instant,
        /// Without it a worker dispatches on what it was told when it acquired.
        fence: bool,
        seen: HashSet<String>,
        violations: u64,
        ends: u64,
    }

    impl Explorer {
        fn at(&self, clock: u64) -> Instant {
            self.base + Duration::from_secs(clock)
        }

        fn apply(world: &mut World, body: Body) -> bool {
            world.sequence += 1;
            world.invocation.apply(Sequence(world.sequence), &event(body)).is_ok()
        }

        /// One atomic step of one worker: what the code does under its locks.
        fn step(&self, world: &mut World, n: usize) {
            let now = self.at(world.clock);
            let until = self.at(world.clock + TTL);
            world.workers[n] = match world.workers[n] {
                Step::Acquire => {
                    if world.table.check_free(id(), now).is_err() {
                        return;
                    }
                    let generation = world.invocation.lease().map_or(1, |l| l.generation + 1);
                    let (holder, ttl_ms) = (n.to_string(), TTL);
                    let body = Body::LeaseAcquired(LeaseAcquired { generation, holder, ttl_ms });
                    assert!(Self::apply(world, body));
                    world.table.take(id(), generation, "w", until);
                    Step::Dispatch(generation)
                }
                Step::Dispatch(generation) => {
                    let retry = InvocationId::from_parts(2, n as u128);
                    let held = world.table.check_held(id(), generation, now).is_ok();
                    let body = Body::LeaseUsed(LeaseUsed { generation, retry });
                    if self.fence && !(held && Self::apply(world, body)) {
                        Step::Done
                    } else {
                        world.dispatched.push(generation);
                        Step::Active(generation)
                    }
                }
                Step::Active(generation) => {
                    if world.table.check_held(id(), generation, now).is_ok() {
                        let body = Body::LeaseReleased(LeaseReleased { generation });
                        assert!(Self::apply(world, body));
                        world.table.drop_held(id());
                    }
                    Step::Done
                }
                Step::Done => Step::Done,
            };
        }

        fn explore(&mut self, world: &World) {
            let key = format!(
                "{:?} {:?} {} {:?} {:?}",
                world.workers,
                world.invocation.lease(),
                world.clock,
                world.dispatched,
                world.table
            );
            if !self.seen.insert(key) {
                return;
            }
            // K-6: retries are dispatched in the order of their generations, one per generation:
            // never one of an older generation behind one of a newer.
            if world.dispatched.windows(2).any(|pair| pair[0] >= pair[1]) {
                self.violations += 1;
                return;
            }
            let newest = world.invocation.lease().map_or(0, |lease| lease.generation);
            // A worker is stopped as soon as a newer lease exists.
            let mut moved = false;
            for n in 0..WORKERS {
                let mut next = world.clone();
                self.step(&mut next, n);
                if next.workers != world.workers {
                    moved = true;
                    if let (Step::Dispatch(mine), Step::Active(_)) =
                        (world.workers[n], next.workers[n])
                        && mine < newest
                    {
                        self.violations += 1;
                        continue;
                    }
                    self.explore(&next);
                }
            }
            if world.clock < CLOCK {
                moved = true;
                let mut next = world.clone();
                next.clock += 1;
                self.explore(&next);
            }
            self.ends += u64::from(!moved);
        }
    }

    fn explore(fence: bool) -> Explorer {
        let seen = HashSet::new();
        let mut explorer = Explorer { base: Instant::now(), fence, seen, violations: 0, ends: 0 };
        explorer.explore(&World {
            table: Table::default(),
            invocation: unknown(),
            sequence: 2,
            clock: 0,
            workers: [Step::Acquire; WORKERS],
            dispatched: Vec::new(),
        });
        explorer
    }

    /// K-6, X-5: every interleaving of three workers and a clock that lets leases run out.
    #[test]
    fn k_6_no_interleaving_dispatches_under_an_old_generation() {
        let explorer = explore(true);
        assert_eq!(explorer.violations, 0);
        assert!(explorer.seen.len() > 500 && explorer.ends > 0, "{}", explorer.seen.len());
        println!("{} states, {} ends", explorer.seen.len(), explorer.ends);
    }

    /// The same without the fence at the append: the violation is found.
    #[test]
    fn k_6_without_the_fence_a_paused_worker_dispatches() {
        assert!(explore(false).violations > 0);
    }
}
