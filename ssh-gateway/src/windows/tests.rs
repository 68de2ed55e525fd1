use super::*;
use crate::gauge::Pool;
use std::collections::VecDeque;

const LIMIT: usize = 1 << 20;
const PACKET: u32 = 32 << 10;

/// A client's channel.
struct Sender {
    gauge: Arc<Gauge>,
    /// Whether the target takes what comes.
    takes: bool,
    wanted_bytes: u64,
    granted_bytes: u32,
    /// The engine's account of the window.
    left_bytes: u32,
    came_bytes: u64,
}

/// One connection: the client's senders, what is under way between them and the engine, and the
/// engine, which fills windows up as russh does.
struct Connection {
    windows: Windows,
    target: u32,
    senders: Vec<Sender>,
    coming: VecDeque<(usize, u32)>,
    /// Grants on their way back, each with the packets that the client sends before it arrives.
    grants: VecDeque<(usize, u32, u32)>,
    round_trip: u32,
    /// Channels to which more came than may wait.
    ended: u32,
}

impl Connection {
    /// `round_trip`: in packets.
    fn new(takes: &[bool], round_trip: u32) -> Self {
        let pool = Pool::new(1 << 30);
        let mut windows = Windows::default();
        let sender = |(channel, takes): (usize, &bool)| {
            let gauge = Gauge::new(LIMIT, &pool);
            windows.open(u32::try_from(channel).unwrap(), Arc::clone(&gauge));
            Sender {
                gauge,
                takes: *takes,
                wanted_bytes: 0,
                granted_bytes: WINDOW_BYTES,
                left_bytes: WINDOW_BYTES,
                came_bytes: 0,
            }
        };
        let senders = takes.iter().enumerate().map(sender).collect();
        let (coming, grants) = (VecDeque::new(), VecDeque::new());
        Self { windows, target: WINDOW_BYTES, senders, coming, grants, round_trip, ended: 0 }
    }

    /// Each channel of these sends a packet, in this order, if it may.
    fn client(&mut self, order: impl IntoIterator<Item = usize>) {
        for grant in &mut self.grants {
            grant.2 = grant.2.saturating_sub(1);
        }
        while let Some((channel, bytes, 0)) = self.grants.front().copied() {
            self.grants.pop_front();
            self.senders[channel].granted_bytes += bytes;
        }
        for channel in order {
            let sender = &mut self.senders[channel];
            let wanted = u32::try_from(sender.wanted_bytes.min(PACKET.into())).unwrap();
            let bytes = wanted.min(sender.granted_bytes);
            if bytes > 0 {
                sender.wanted_bytes -= u64::from(bytes);
                sender.granted_bytes -= bytes;
                self.coming.push_back((channel, bytes));
            }
        }
    }

    /// Takes a packet's worth of bytes.
    fn engine(&mut self) {
        let mut budget = PACKET;
        while budget > 0 {
            let Some((channel, bytes)) = self.coming.pop_front() else { return };
            // A packet costs something, however short it is.
            budget = budget.saturating_sub(bytes + 1024);
            self.packet(channel, bytes);
        }
    }

    fn packet(&mut self, channel: usize, bytes: u32) {
        let sender = &mut self.senders[channel];
        let number = u32::try_from(channel).unwrap();
        sender.left_bytes -= bytes;
        sender.came_bytes += u64::from(bytes);
        if sender.gauge.add(bytes as usize).is_err() {
            self.ended += u32::from(std::mem::take(&mut sender.wanted_bytes) > 0);
            return self.windows.close(number);
        }
        if sender.takes {
            sender.gauge.take(bytes as usize);
        }
        if sender.left_bytes < self.target / 2 {
            self.grants.push_back((channel, self.target - sender.left_bytes, self.round_trip));
            sender.left_bytes = self.target;
            let next_bytes = self.coming.front().map_or(0, |(_, bytes)| bytes + 40);
            self.target = self.windows.filled(number, self.target, next_bytes);
        }
        self.windows.received(number, sender.left_bytes);
    }

    /// Until the channel has sent what it wanted; answers how many rounds that took.
    fn send(&mut self, channel: usize, bytes: u64) -> u32 {
        let until = self.senders[channel].came_bytes + bytes;
        self.senders[channel].wanted_bytes += bytes;
        for round in 0.. {
            if self.senders[channel].came_bytes >= until {
                return round;
            }
            assert!(
                round < 40_000,
                "the channel is frozen at {}",
                self.senders[channel].came_bytes
            );
            self.client(0..self.senders.len());
            self.engine();
        }
        unreachable!()
    }
}

const MIB: u64 = 1 << 20;

/// A channel whose input nobody takes is starved, and its neighbour keeps the rate that it has alone.
fn check(round_trip: u32, stalled: usize) {
    let alone = Connection::new(&[true], round_trip).send(0, 64 * MIB);
    let mut takes = vec![false; stalled];
    takes.push(true);
    let mut shared = Connection::new(&takes, round_trip);
    for sender in shared.senders.iter_mut().take(stalled) {
        sender.wanted_bytes = 1 << 40;
    }
    shared.send(stalled, 8 * MIB);
    let came: u64 = shared.senders.iter().take(stalled).map(|one| one.came_bytes).sum();
    let rounds = shared.send(stalled, 64 * MIB);
    let leak: u64 = shared.senders.iter().take(stalled).map(|one| one.came_bytes).sum();
    assert!(rounds <= alone * 5 / 4, "round trip {round_trip}: {rounds} rounds for {alone}");
    assert!(leak - came <= 64 << 10, "round trip {round_trip}: {} came", leak - came);
}

#[test]
fn a_neighbour_of_starved_channels_keeps_its_rate() {
    for round_trip in [1, 2, 8, 24] {
        for stalled in [1, 2, 8] {
            check(round_trip, stalled);
        }
    }
}

/// A target that takes its input again gets all of it.
#[test]
fn a_starved_channel_goes_on_when_its_input_is_taken() {
    let mut connection = Connection::new(&[false, true], 4);
    connection.senders[0].wanted_bytes = 16 * MIB;
    connection.send(1, 16 * MIB);
    let held = connection.senders[0].came_bytes;
    assert!(held < 8 * MIB, "{held}");
    connection.senders[0].gauge.take(usize::try_from(held).unwrap());
    connection.senders[0].takes = true;
    let rounds = connection.send(0, 16 * MIB);
    assert!(rounds < 2000, "{rounds}");
}

/// A neighbour that sends little by little keeps its window, and opens none for a starved one.
#[test]
fn a_quiet_neighbour_leaks_nothing() {
    let mut connection = Connection::new(&[false, true], 2);
    connection.senders[0].wanted_bytes = 1 << 40;
    connection.send(1, 4 * MIB);
    let before = connection.senders[0].came_bytes;
    for _ in 0..2000 {
        connection.send(1, 3);
    }
    let leak = connection.senders[0].came_bytes - before;
    assert!(leak < 64 << 10, "{leak}");
}

/// Channels that were refused leave nothing behind.
#[test]
fn refused_channels_are_forgotten() {
    let pool = Pool::new(1 << 30);
    let mut windows = Windows::default();
    let open = Gauge::new(LIMIT, &pool);
    windows.open(0, Arc::clone(&open));
    for channel in 1..100 {
        windows.open(channel, Gauge::new(LIMIT, &pool));
    }
    windows.received(0, 1);
    assert_eq!((windows.channels.len(), windows.sender), (2, Some(0)));
}

/// A small generator: the same numbers in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, usize::try_from(self.below(last as u64 + 1)).unwrap());
        }
    }
}

/// How a client orders its channels' packets.
#[derive(Debug, Clone, Copy)]
enum Order {
    Stays,
    Changes,
    /// And some send nothing in a round.
    ChangesAndSkips,
}

/// A connection with channels whose input nobody takes and others, all of which send without an end;
/// until each of the others has sent 20 MiB. Answers how many channels were ended meanwhile.
fn crowded(seed: u64) -> u32 {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let round_trip = u32::try_from(1 + dice.below(24)).unwrap();
    let (stalled, good) = (1 + dice.below(10), 1 + dice.below(4));
    let order =
        [Order::Stays, Order::Changes, Order::ChangesAndSkips][usize::try_from(seed % 3).unwrap()];
    let mut takes: Vec<bool> = (0..stalled + good).map(|channel| channel >= stalled).collect();
    dice.shuffle(&mut takes);
    let mut connection = Connection::new(&takes, round_trip);
    for sender in &mut connection.senders {
        sender.wanted_bytes = 1 << 40;
    }
    let mut channels: Vec<usize> = (0..takes.len()).collect();
    for round in 0.. {
        let of_others = connection.senders.iter().filter(|sender| sender.takes);
        if of_others.clone().all(|sender| sender.came_bytes >= 20 * MIB) {
            return connection.ended;
        }
        let came: Vec<u64> = of_others.map(|sender| sender.came_bytes).collect();
        assert!(
            round < 40_000,
            "seed {seed}: {came:?} beside {stalled} stalled, {round_trip}, {order:?}"
        );
        if !matches!(order, Order::Stays) {
            dice.shuffle(&mut channels);
        }
        let skips = matches!(order, Order::ChangesAndSkips);
        connection.client(channels.iter().copied().filter(|_| !skips || dice.below(3) > 0));
        connection.engine();
    }
    unreachable!()
}

/// However many there are of either kind, and whatever the client's order: each neighbour goes on.
/// What leaks ends next to no starved channel.
#[test]
fn no_neighbour_of_starved_channels_is_frozen() {
    let ended: u32 = (1..600).map(crowded).sum();
    assert!(ended <= 6, "{ended} channels were ended");
}
