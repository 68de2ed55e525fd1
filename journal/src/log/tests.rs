//! Crash tests of the log on the simulated disk, and one test per recovery rule.

use super::disk::Disk as _;
use super::recover::{Watermark, recover, survey};
use super::sim::{Fault, Random, Sim};
use super::spares::Spares;
use super::tail::Tail;
use super::{Draft, Kind, file_name};
use crate::open::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const SEGMENT: u64 = 256 << 10;

/// What a reader sees: sequence and payload.
type Seen = Vec<(u64, Vec<u8>)>;

struct Opened {
    tail: Tail,
    seen: Seen,
    discarded: u64,
    store: [u8; 16],
}

fn read_log(
    sim: &Sim,
    watermark: Option<&Watermark>,
) -> Result<(Seen, super::recover::Found), Error> {
    let mut seen = Vec::new();
    let survey = survey(sim)?;
    let found = recover(sim, &survey, watermark, &mut |_, record| {
        seen.push((record.sequence, record.payload.to_vec()));
        Ok(())
    })?;
    Ok((seen, found))
}

fn open(sim: &Sim) -> Result<Opened, Error> {
    let (seen, found) = read_log(sim, None)?;
    let io = |source| Error::Io { step: "begin", source };
    for name in survey(sim)?.unused {
        sim.remove(&name).map_err(io)?;
    }
    sim.sync_directory().map_err(io)?;
    let disk: Arc<Sim> = Arc::new(sim.clone());
    let spares = Arc::new(Spares::new(disk.clone(), SEGMENT, true));
    spares.resume(found.next_segment);
    let room = Arc::new(AtomicU64::new(0));
    let tail = Tail::begin(disk, spares, SEGMENT, &found.start, 1, room).map_err(io)?;
    Ok(Opened { tail, seen, discarded: found.start.discarded, store: found.start.store })
}

fn draft(payload: Vec<u8>) -> Draft {
    Draft { kind: Kind::Event, invocation: [1; 16], at_ms: 5, payload, attachment: None }
}

fn batch(random: &mut Random) -> Vec<Draft> {
    let payload = |random: &mut Random| {
        let length = match random.below(4) {
            0 => 20_000,
            1 => 3_000,
            _ => 300,
        };
        (0..random.below(length)).map(|n| (n as u8) ^ random.next() as u8).collect::<Vec<u8>>()
    };
    (0..=random.below(4)).map(|_| draft(payload(random))).collect()
}

/// Appends batches until the disk fails. Gives what was acknowledged.
fn work(tail: &mut Tail, random: &mut Random, batches: usize, acknowledged: &mut Seen) -> bool {
    let mut positions = Vec::new();
    for _ in 0..batches {
        let drafts = batch(random);
        let first = tail.last_sequence() + 1;
        if tail.append(drafts.iter(), 7, &mut positions).is_err() {
            return false;
        }
        let numbered = (first..).zip(drafts.into_iter().map(|draft| draft.payload));
        acknowledged.extend(numbered);
    }
    true
}

fn life(sim: &Sim, seed: u64, batches: usize) -> Seen {
    let mut acknowledged = Vec::new();
    if let Ok(mut opened) = open(sim) {
        work(&mut opened.tail, &mut Random::new(seed), batches, &mut acknowledged);
    }
    acknowledged
}

/// The first life up to a crash, the crash, recovery, a second life, a second crash, recovery:
/// nothing that was acknowledged is missing, and nothing is refused.
fn check_crash(acknowledged: &Seen, after: &Sim, random: &mut Random, what: &str) {
    let opened = open(after).unwrap_or_else(|error| panic!("{what}: {error}"));
    let seen: Seen = opened.seen.iter().filter(|(_, payload)| !is_note(payload)).cloned().collect();
    assert!(seen.starts_with(acknowledged), "{what}: {} of {}", seen.len(), acknowledged.len());
    assert!(seen.len() <= acknowledged.len() + 5, "{what}: more than one batch in doubt");
    let mut tail = opened.tail;
    let mut both = opened.seen;
    assert!(work(&mut tail, random, 2, &mut both), "{what}");
    let again = after.after_power_cut(random);
    let (seen, _) = read_log(&again, None).unwrap_or_else(|error| panic!("{what}, then: {error}"));
    assert!(seen.starts_with(&both), "{what}: seen, then vanished");
}

fn is_note(payload: &[u8]) -> bool {
    payload.starts_with(b"{\"segment\"")
}

/// J-7: a crash at every write and every sync of a workload that rolls over twice; at each of them
/// a kill and power cuts. `AFFIANT_CRASH_SEEDS` sets the number of workloads.
#[test]
fn j_7_a_crash_at_every_call_loses_nothing_acknowledged() {
    let seeds = std::env::var("AFFIANT_CRASH_SEEDS").ok().and_then(|n| n.parse().ok());
    for seed in 1..=seeds.unwrap_or(1) {
        crash_everywhere(seed, 130);
    }
}

fn crash_everywhere(seed: u64, batches: usize) {
    let whole = Sim::new();
    life(&whole, seed, batches);
    let calls = whole.calls();
    assert!(whole.names().len() >= 3, "the workload must roll over: {:?}", whole.names());
    let mut points = 0;
    for call in 1..=calls {
        let sim = Sim::new();
        sim.fault_at(call, Fault::Crash);
        let acknowledged = life(&sim, seed, batches);
        let mut random = Random::new(call * 1000 + seed);
        let killed = sim.after_kill();
        let what = format!("seed {seed}, call {call}, kill");
        check_crash(&acknowledged, &killed, &mut random, &what);
        points += 1;
        for n in 0..3 {
            let cut = sim.after_power_cut(&mut random);
            let what = format!("seed {seed}, call {call}, power cut {n}");
            check_crash(&acknowledged, &cut, &mut random, &what);
            points += 1;
        }
    }
    println!("seed {seed}: {points} crash points over {calls} calls");
}

/// J-7: a failed write or sync at every call, then recovery by the same process (no crash), then a
/// power cut.
#[test]
fn j_7_a_failed_call_poisons_and_recovery_keeps_what_was_acknowledged() {
    let whole = Sim::new();
    life(&whole, 2, 25);
    for call in 1..=whole.calls() {
        let sim = Sim::new();
        sim.fault_at(call, Fault::Fail);
        let acknowledged = life(&sim, 2, 25);
        let mut random = Random::new(call + 1000);
        let what = format!("call {call} fails");
        check_crash(&acknowledged, &sim, &mut random, &what);
    }
}

/// The log handle stays poisoned after one failure, and is never retried.
#[test]
fn a_failed_sync_poisons_the_tail_for_good() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    sim.fault_at(sim.calls() + 2, Fault::Fail);
    let mut positions = Vec::new();
    let one = [draft(b"one".to_vec())];
    assert!(opened.tail.append(one.iter(), 1, &mut positions).is_err());
    let calls = sim.calls();
    assert!(opened.tail.append(one.iter(), 1, &mut positions).is_err());
    assert_eq!(sim.calls(), calls, "a poisoned tail does not touch the disk");
}

/// One write and one sync per batch, nothing else, and the bytes are the padded ones.
#[test]
fn a_batch_is_one_write_and_one_sync() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    let mut positions = Vec::new();
    for n in 0..10 {
        let before = sim.calls();
        let drafts = [draft(vec![1; 100 * n]), draft(vec![2; 3])];
        let written = opened.tail.append(drafts.iter(), 1, &mut positions).unwrap();
        assert_eq!(sim.calls() - before, 2);
        assert_eq!(written, 4096);
    }
}

fn filled(batches: usize) -> (Sim, Seen) {
    let sim = Sim::new();
    let acknowledged = life(&sim, 3, batches);
    (sim, acknowledged)
}

fn damage(sim: &Sim) -> crate::verify::Damage {
    match read_log(sim, None) {
        Err(Error::Damaged(damage)) => damage,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the damage was not seen"),
    }
}

/// Rule 1: a missing segment in the middle, and a bad header of any but the youngest.
#[test]
fn rule_1_a_gap_and_a_bad_header_are_refused() {
    let (sim, _) = filled(130);
    let gap = sim.copy();
    gap.remove(&file_name(2)).unwrap();
    assert_eq!(damage(&gap).segment, 3);
    let header = sim.copy();
    header.flip(&file_name(1), 60, 3);
    assert_eq!(damage(&header).segment, 1);
    let youngest = sim.copy();
    let last = sim.names().len() as u64;
    youngest.flip(&file_name(last), 60, 3);
    assert_eq!(damage(&youngest).what, "the segment has frames but no good header");
}

/// Rule 2: a sealed segment must reach what its successor says.
#[test]
fn rule_2_a_bad_last_frame_of_a_sealed_segment_is_refused() {
    let (sim, _) = filled(130);
    let length = sim.open(&file_name(1)).unwrap().length().unwrap() as usize;
    sim.flip(&file_name(1), length - 4096, 1);
    let found = damage(&sim);
    assert_eq!(found.segment, 1);
    assert_eq!(found.offset % 4096, 0);
}

/// Rule 3, first half: without the sync, what recovery has seen can vanish.
#[test]
fn rule_3_without_the_sync_what_was_seen_vanishes() {
    let run = |lazy: bool| {
        let sim = Sim::new();
        let mut opened = open(&sim).unwrap();
        // The write happens, the sync does not: the process is killed in between.
        sim.fault_at(sim.calls() + 2, Fault::Crash);
        let one = [draft(b"unacknowledged".to_vec())];
        assert!(opened.tail.append(one.iter(), 1, &mut Vec::new()).is_err());
        let killed = sim.after_kill();
        killed.set_cached_reads(lazy);
        killed.set_lazy_sync(lazy);
        let (seen, _) = read_log(&killed, None).unwrap();
        killed.set_lazy_sync(false);
        // No pending write survives this cut.
        let mut cut = killed.copy();
        for seed in 0.. {
            cut = killed.after_power_cut(&mut Random::new(seed));
            if cut.durable(&file_name(1)) == killed.durable(&file_name(1)) {
                break;
            }
        }
        let (after, _) = read_log(&cut, None).unwrap();
        (seen.len(), after.len())
    };
    assert_eq!(run(false), (1, 1));
    assert_eq!(run(true), (1, 0), "the rule is switched off and must be missed");
}

/// Rule 3, second half: after a failed sync the cache lies; only the device tells.
#[test]
fn rule_3_without_reading_past_the_cache_a_lost_batch_is_believed() {
    let run = |cached: bool| {
        let sim = Sim::new();
        let mut opened = open(&sim).unwrap();
        sim.fault_at(sim.calls() + 2, Fault::Fail);
        let one = [draft(b"lost".to_vec())];
        assert!(opened.tail.append(one.iter(), 1, &mut Vec::new()).is_err());
        sim.set_cached_reads(cached);
        read_log(&sim, None).unwrap().0.len()
    };
    assert_eq!(run(false), 0);
    assert_eq!(run(true), 1, "the rule is switched off and must be missed");
}

/// Rule 5: damage before the last frame is damage, at the last frame it is a torn batch.
#[test]
fn rule_5_a_bad_frame_in_the_middle_is_refused_and_a_torn_last_one_is_cut() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    for n in 0..3 {
        let one = [draft(vec![n; 10])];
        opened.tail.append(one.iter(), 1, &mut Vec::new()).unwrap();
    }
    let middle = sim.copy();
    middle.flip(&file_name(1), 2 * 4096 + 70, 0);
    let found = damage(&middle);
    assert_eq!((found.segment, found.offset, found.frame), (1, 8192, 2));
    assert_eq!(found.sequence.0, 1);
    let last = sim.copy();
    last.flip(&file_name(1), 3 * 4096 + 70, 0);
    let opened = open(&last).unwrap();
    assert_eq!(opened.seen.len(), 2);
    assert!(opened.discarded > 0);
    let (_, found) = read_log(&last, None).unwrap();
    assert_eq!(found.start.last_sequence, 2);
}

/// Rule 6: a log that ends below the watermark, or contradicts it.
#[test]
fn rule_6_a_log_behind_or_beside_the_index_is_refused() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    let one = [draft(b"one".to_vec())];
    opened.tail.append(one.iter(), 1, &mut Vec::new()).unwrap();
    let behind = sim.copy();
    opened.tail.append(one.iter(), 1, &mut Vec::new()).unwrap();
    let store = opened.store;
    let seen = opened.tail.watermark(store);
    assert!(read_log(&sim, Some(&seen)).unwrap().0.is_empty());
    assert!(matches!(read_log(&behind, Some(&seen)), Err(Error::Damaged(_))));
    let other = Watermark { chain: [9; 32], ..seen };
    assert!(matches!(read_log(&sim, Some(&other)), Err(Error::Damaged(_))));
}

/// Rule 8: recovery begins a new segment and never writes to an old one.
#[test]
fn rule_8_the_old_segment_is_not_appended_to() {
    let (sim, acknowledged) = filled(3);
    let before = sim.durable(&file_name(1));
    let mut opened = open(&sim).unwrap();
    let one = [draft(b"more".to_vec())];
    opened.tail.append(one.iter(), 1, &mut Vec::new()).unwrap();
    let after = sim.durable(&file_name(1));
    assert_eq!(after[..], before[..after.len()]);
    let (seen, _) = read_log(&sim, None).unwrap();
    assert_eq!(seen.len(), acknowledged.len() + 1);
}

/// The salt: a frame of another segment, or bytes of a client that look like one, are no frames.
#[test]
fn a_forged_frame_in_a_body_is_no_frame() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    let one = [draft(vec![3; 100])];
    opened.tail.append(one.iter(), 1, &mut Vec::new()).unwrap();
    let forged = sim.durable(&file_name(1))[4096..8192].to_vec();
    // A payload that holds the frame at every offset that could meet a block border.
    let body: Vec<u8> = forged.repeat(8);
    let big = [draft(body)];
    sim.fault_at(sim.calls() + 2, Fault::Crash);
    assert!(opened.tail.append(big.iter(), 1, &mut Vec::new()).is_err());
    for seed in 0..200 {
        let cut = sim.after_power_cut(&mut Random::new(seed));
        let (seen, _) = read_log(&cut, None).unwrap();
        assert!(matches!(seen.len(), 1 | 2));
    }
}

/// Every single bit of what was acknowledged, but for padding and the last batch: the flip is
/// named, and nothing is silently cut.
#[test]
fn a_flipped_bit_is_found_and_named() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    let mut lengths = Vec::new();
    for n in 0..4_u8 {
        let drafts = [draft(vec![n; 90]), draft(vec![n; 20])];
        opened.tail.append(drafts.iter(), 1, &mut Vec::new()).unwrap();
        lengths.push(64 + 80 * 2 + 110);
    }
    for (frame, length) in lengths.iter().enumerate().take(3) {
        for byte in 0..*length {
            let flipped = sim.copy();
            let bit = (byte % 8) as u8;
            flipped.flip(&file_name(1), 4096 * (frame + 1) + byte, bit);
            let found = damage(&flipped);
            assert_eq!((found.segment, found.frame), (1, frame as u64 + 1), "byte {byte}");
        }
    }
    for byte in 0..148 {
        let flipped = sim.copy();
        flipped.flip(&file_name(1), byte, (byte % 8) as u8);
        assert_eq!(damage(&flipped).segment, 1, "byte {byte} of the header");
    }
}

/// A disk that is full when a spare is made: an append that needs it fails, and nothing else.
#[test]
fn a_full_disk_does_not_hit_a_frame() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    sim.set_free(0);
    let mut acknowledged = Vec::new();
    let mut random = Random::new(4);
    let done = work(&mut opened.tail, &mut random, 200, &mut acknowledged);
    assert!(!done && !acknowledged.is_empty());
    sim.set_free(1 << 30);
    let opened = open(&sim).unwrap();
    assert_eq!(opened.seen, acknowledged);
}

/// A spare that was being zeroed when the power went can hold anything but a frame. Found by seed 8
/// of the crash test.
#[test]
fn rule_1_a_garbled_spare_is_no_damage() {
    let (sim, acknowledged) = filled(3);
    let spare = sim.create(&file_name(2)).unwrap();
    spare.write_at(&[0xe7; 3 * 4096], 0).unwrap();
    spare.sync().unwrap();
    assert_eq!(open(&sim).unwrap().seen, acknowledged);
}

/// Rule 4: a good checksum with a wrong number, sequence or chain is refused, at whichever of the two
/// frames. The checksum alone, which is the rule switched off, takes every one of them.
#[test]
fn rule_4_without_number_sequence_and_chain_a_foreign_frame_is_believed() {
    use super::format::{FrameHead, FrameView, begin_frame, finish_frame, genesis};
    use super::walk::walk;
    let store = [1; 16];
    let header = super::Header {
        store,
        segment: 1,
        salt: [2; 16],
        first_sequence: 1,
        chain_in: genesis(&store),
        previous: 0,
        previous_length: 0,
        previous_last: 0,
        length: SEGMENT,
        created_ms: 0,
        discarded: 0,
    };
    let frame = |number: u64, sequence: u64, chain_in: [u8; 32], record_chain: [u8; 32]| {
        let count = 1;
        let head = FrameHead { number, first_sequence: sequence, count, chain_in, at_ms: 1 };
        let mut out = Vec::new();
        begin_frame(&mut out);
        let next = draft(b"{}".to_vec()).encode(sequence, &record_chain, &mut out);
        (out, head, next)
    };
    let (first, head, next) = frame(1, 1, header.chain_in, header.chain_in);
    let other = [9; 32];
    for (second, expected) in [
        (frame(2, 2, next, next), None),
        (frame(3, 2, next, next), Some("the frame has the wrong number")),
        (frame(2, 3, next, next), Some("the frame's sequence does not follow")),
        (frame(2, 2, other, next), Some("the frame does not follow the chain")),
        (frame(2, 2, next, other), Some("a record does not follow the chain")),
    ] {
        let mut bytes = header.encode();
        for (mut out, head) in [(first.clone(), head), (second.0, second.1)] {
            let offset = bytes.len() as u64;
            finish_frame(&mut out, &header.salt, header.segment, offset, &head);
            assert!(FrameView::decode(&out, &header.salt, header.segment, offset).is_some());
            bytes.extend_from_slice(&out);
        }
        let walked = walk(&header, &bytes, &mut |_, _| Ok::<_, crate::verify::Damage>(()));
        assert_eq!(walked.err().map(|damage| damage.what), expected);
    }
}

/// Rule 7: what reached the disk without being acknowledged is kept, and kept again after the next
/// crash. Cut off instead, it would have been seen once and be gone later.
#[test]
fn rule_7_what_is_durable_but_not_acknowledged_is_kept() {
    let sim = Sim::new();
    let mut opened = open(&sim).unwrap();
    let mut acknowledged = Vec::new();
    assert!(work(&mut opened.tail, &mut Random::new(3), 3, &mut acknowledged));
    // The write reaches the page cache; the process is killed at the sync.
    sim.fault_at(sim.calls() + 2, Fault::Crash);
    let late = draft(b"late".to_vec());
    assert!(opened.tail.append(std::iter::once(&late), 1, &mut Vec::new()).is_err());
    let after = sim.after_kill();
    let mut expected = acknowledged.clone();
    expected.push((acknowledged.len() as u64 + 1, b"late".to_vec()));
    assert_eq!(open(&after).unwrap().seen, expected);
    let again = after.after_power_cut(&mut Random::new(4));
    let (seen, _) = read_log(&again, None).unwrap();
    assert_eq!(seen, expected, "what was seen once is seen again");
}
