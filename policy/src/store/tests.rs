//! Tests of the store's file: what is taken out of use leaves it, what is in use stays, and a file
//! that was cut is refused before it is mapped.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;

/// The bytes of a value: its number, all over, so that any 8 of its bytes are its own.
fn value(number: u32, length: usize) -> Vec<u8> {
    format!("<{number:06}>").into_bytes().into_iter().cycle().take(length).collect()
}

fn holds(bytes: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(bytes, needle).is_some()
}

#[derive(Debug, Clone)]
enum Change {
    Put { key: u8, length: usize },
    Delete { key: u8 },
    Clear,
}

fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let length = prop_oneof![8_usize..200, 1_900_usize..4_200, 4_200_usize..30_000];
    let change = prop_oneof![
        6 => (0_u8..40, length).prop_map(|(key, length)| Change::Put { key, length }),
        3 => (0_u8..40).prop_map(|key| Change::Delete { key }),
        1 => Just(Change::Clear),
    ];
    prop::collection::vec(prop::collection::vec(change, 1..12), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// I-1: behind each commit the file holds what is in use, and no part of anything else.
    #[test]
    fn i_1_what_is_taken_out_of_use_leaves_the_file(rounds in changes()) {
        let directory = tempfile::TempDir::new().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let file = directory.path().join("data.mdb");
        let mut model: BTreeMap<(bool, String), (u32, usize)> = BTreeMap::new();
        let mut number = 0;
        for round in rounds {
            let mut txn = store.write().unwrap();
            for change in round {
                // Half of the keys in another table, so that trees share pages of the file.
                let place = |key: u8| (key.is_multiple_of(2), format!("key-{key:03}"));
                let table = |even: bool| if even { &store.sealed } else { &store.names };
                match change {
                    Change::Put { key, length } => {
                        let (even, key) = place(key);
                        number += 1;
                        store.put(table(even), &mut txn, &key, &value(number, length)).unwrap();
                        model.insert((even, key), (number, length));
                    }
                    Change::Delete { key } => {
                        let (even, key) = place(key);
                        let there = store.delete(table(even), &mut txn, &key).unwrap();
                        prop_assert_eq!(there, model.remove(&(even, key)).is_some());
                    }
                    Change::Clear => {
                        store.sealed.clear(&mut txn).unwrap();
                        model.retain(|(even, _), _| !even);
                    }
                }
            }
            store.commit(txn).unwrap();
            store.try_to_erase().unwrap();
            let bytes = fs::read(&file).unwrap();
            let live: Vec<u32> = model.values().map(|(number, _)| *number).collect();
            for gone in (1..=number).filter(|number| !live.contains(number)) {
                let needle = value(gone, 8);
                prop_assert!(!holds(&bytes, &needle), "{} is still there", gone);
            }
        }
        let reopened = |store: Arc<Store>| {
            drop(store);
            Store::open(directory.path()).unwrap()
        };
        let store = reopened(store);
        let txn = store.read().unwrap();
        for ((even, key), (number, length)) in &model {
            let table = if *even { &store.sealed } else { &store.names };
            let found = store.bytes(table, &txn, key).unwrap();
            prop_assert_eq!(found, Some(value(*number, *length)));
        }
        let count = store.sealed.len(&txn).unwrap() + store.names.len(&txn).unwrap();
        prop_assert_eq!(count, model.len() as u64);
    }
}

/// What a reader of a former version still sees is left to it, and overwritten with the next change.
#[test]
fn what_somebody_reads_is_not_overwritten() {
    let directory = tempfile::TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let put = |number: u32| {
        let mut txn = store.write().unwrap();
        store.put(&store.names, &mut txn, "key", &value(number, 9_000)).unwrap();
        store.commit(txn).unwrap();
    };
    let file = directory.path().join("data.mdb");
    put(1);
    let reader = store.read().unwrap();
    put(2);
    assert_eq!(store.bytes(&store.names, &reader, "key").unwrap(), Some(value(1, 9_000)));
    assert!(holds(&fs::read(&file).unwrap(), &value(1, 9_000)));
    assert!(matches!(store.try_to_erase(), Err(erase::Error::Read)));
    drop(reader);
    store.try_to_erase().unwrap();
    let bytes = fs::read(&file).unwrap();
    assert!(!holds(&bytes, &value(1, 8)) && holds(&bytes, &value(2, 9_000)));
}

/// A file that was cut, at whatever length, is refused with its name; LMDB would end the process.
#[test]
fn a_cut_file_is_refused() {
    let whole = tempfile::TempDir::new().unwrap();
    let store = Store::open(whole.path()).unwrap();
    for number in 0..60 {
        let mut txn = store.write().unwrap();
        let (key, length) = (format!("key-{number}"), [100, 3_000, 20_000][number as usize % 3]);
        store.put(&store.names, &mut txn, &key, &value(number, length)).unwrap();
        store.commit(txn).unwrap();
    }
    drop(store);
    let bytes = fs::read(whole.path().join("data.mdb")).unwrap();
    let pages = bytes.len() / 4096;
    let lengths = (1..pages).map(|page| page * 4096).chain([1, 100, 4095, bytes.len() - 1]);
    let mut refused = 0;
    for length in lengths {
        let cut = tempfile::TempDir::new().unwrap();
        fs::write(cut.path().join("data.mdb"), &bytes[..length]).unwrap();
        match Store::open(cut.path()) {
            Err(Error::File { path, source: FileError::Cut { has, needs } }) => {
                assert_eq!(path.file_name().unwrap(), "data.mdb");
                assert!(has == length as u64 && needs > has, "{has} {needs}");
                refused += 1;
            }
            // Only free pages were cut off: all is there.
            Ok(store) => {
                let txn = store.read().unwrap();
                for number in 0..60 {
                    let length = [100, 3_000, 20_000][number as usize % 3];
                    let found = store.bytes(&store.names, &txn, &format!("key-{number}")).unwrap();
                    assert_eq!(found, Some(value(number, length)), "cut at {length}");
                }
            }
            Err(other) => panic!("cut at {length}: {other}"),
        }
    }
    assert!(refused > pages / 2, "{refused} of {pages}");
}

/// What is no LMDB file at all is refused by name as well.
#[test]
fn another_file_is_refused() {
    let directory = tempfile::TempDir::new().unwrap();
    fs::write(directory.path().join("data.mdb"), [7; 20_000]).unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(matches!(error, Error::File { source: FileError::Unknown(_), .. }), "{error}");
    assert!(error.to_string().contains("data.mdb is damaged"), "{error}");
}

/// What a reader of an earlier process left in its place of the lock file holds nothing up: LMDB counts the
/// places anew when the first process opens the store.
#[test]
fn a_place_that_was_left_is_no_reader() {
    let directory = tempfile::TempDir::new().unwrap();
    drop(Store::open(directory.path()).unwrap());
    let lock = directory.path().join("lock.mdb");
    let mut bytes = fs::read(&lock).unwrap();
    // The last place: version 1, read by a process of any number.
    let place = bytes.len() - 64;
    bytes[place..place + 8].copy_from_slice(&1_u64.to_ne_bytes());
    bytes[place + 8..place + 12].copy_from_slice(&77_i32.to_ne_bytes());
    fs::write(&lock, bytes).unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut txn = store.write().unwrap();
    store.put(&store.names, &mut txn, "key", b"value").unwrap();
    assert!(store.commit_and_tell(txn).unwrap().is_none());
}

/// A store that is opened while another thread lets go of the last handle keeps LMDB's lock, by which other
/// processes know that it is in use.
#[cfg(target_os = "linux")]
#[test]
fn a_handle_that_closes_takes_no_lock_from_the_next() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::TempDir::new().unwrap();
    let mut store = Store::open(directory.path()).unwrap();
    let inode = fs::metadata(directory.path().join("lock.mdb")).unwrap().ino();
    let held = format!(":{inode} ");
    for round in 0..300 {
        let handle = Arc::downgrade(&store);
        let closing = std::thread::spawn(move || drop(store));
        while handle.strong_count() > 0 {
            std::thread::yield_now();
        }
        store = Store::open(directory.path()).unwrap();
        closing.join().unwrap();
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let ours = |line: &&str| line.contains(&held) && line.contains("POSIX");
        assert!(locks.lines().any(|line| ours(&line)), "round {round}: {locks}");
    }
}
