//! The tier against a map: for any sequence of operations, a read returns the value stored last, or nothing.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::*;
use super::testkit::*;

#[derive(Clone, Debug)]
enum Step {
    Store { number: u64, len: usize },
    Remove { number: u64 },
    StoreSmall { number: u64, len: usize },
    RemoveSmall { number: u64 },
    Load { number: u64 },
    Tick,
    Flush,
    Clear,
    Close,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..40_u64, prop_oneof![8..9000_usize, 20_000..24_000_usize]).prop_map(|(number, len)| Step::Store { number, len }),
        10 => (0..40_u64).prop_map(|number| Step::Remove { number }),
        40 => (0..200_u64, 8..500_usize).prop_map(|(number, len)| Step::StoreSmall { number, len }),
        10 => (0..200_u64).prop_map(|number| Step::RemoveSmall { number }),
        40 => (0..200_u64).prop_map(|number| Step::Load { number }),
        10 => Just(Step::Tick),
        2 => Just(Step::Flush),
        1 => Just(Step::Clear),
        2 => Just(Step::Close),
        2 => Just(Step::Crash),
    ]
}

/// The tier, its index, and the expected contents.
struct Pair {
    folder: tempfile::TempDir,
    config: Config,
    disk: Option<Disk>,
    index: Index,
    large: HashMap<u64, u64>,
    small: HashMap<u64, u64>,
    version: u64,
}

impl Pair {
    fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("it is open between steps")
    }

    /// Objects in the index must be found, as stored last.
    fn check(&self, number: u64) {
        let found = load(self.disk(), &self.index, number);
        assert_eq!(found.is_some(), self.index.place(number).is_some(), "large {number}");
        assert!(found.is_none() || found == self.large.get(&number).copied(), "large {number}");
        let found = load_small(self.disk(), number);
        assert!(found.is_none() || found == self.small.get(&number).copied(), "small {number}");
    }

    fn reopen(&mut self, in_order: bool) {
        let disk = self.disk.take().expect("it is open between steps");
        if in_order {
            disk.close().expect("nothing fails here");
        }
        drop(disk);
        self.index.places.lock().expect("one thread").clear();
        let path = file(&self.folder);
        let (disk, opened) =
            Disk::open(&path, &self.config, &mut self.index.recover()).expect("it is ours");
        assert_eq!(opened.was_closed, in_order);
        assert_eq!(opened.torn, 0);
        if !in_order {
            // Recovered versions may be older than the last stored one, and are the expected ones from now on.
            for number in 0..200 {
                let found = load(&disk, &self.index, number);
                assert_eq!(found.is_some(), self.index.place(number).is_some());
                match found {
                    Some(found) => self.large.insert(number, found),
                    None => self.large.remove(&number),
                };
                let found = load_small(&disk, number);
                match found {
                    Some(found) => self.small.insert(number, found),
                    None => self.small.remove(&number),
                };
            }
        }
        self.disk = Some(disk);
    }

    fn step(&mut self, step: &Step) {
        self.version += 1;
        let version = self.version;
        match *step {
            Step::Store { number, len } => {
                assert!(store(self.disk(), &self.index, number, version, len));
                self.large.insert(number, version);
                self.check(number);
            }
            Step::Remove { number } => {
                if let Some(place) = self.index.remove(number) {
                    self.disk().forget(place);
                }
                self.large.remove(&number);
            }
            Step::StoreSmall { number, len } => {
                if store_small(self.disk(), number, version, len) == Err(Refused::Busy) {
                    self.disk().tick(1, &self.index);
                    assert_eq!(store_small(self.disk(), number, version, len), Ok(()));
                }
                self.small.insert(number, version);
                assert_eq!(load_small(self.disk(), number), Some(version));
            }
            Step::RemoveSmall { number } => {
                self.disk().remove_small(hash(&key(number)), &key(number));
                self.small.remove(&number);
                assert_eq!(load_small(self.disk(), number), None);
            }
            Step::Load { number } => self.check(number),
            Step::Tick => drop(self.disk().tick(1, &self.index)),
            Step::Flush => assert!(self.disk().flush()),
            Step::Clear => {
                self.disk().clear().expect("nothing fails here");
                self.index.places.lock().expect("one thread").clear();
                (self.large, self.small) = (HashMap::new(), HashMap::new());
            }
            Step::Close => self.reopen(true),
            Step::Crash => self.reopen(false),
        }
    }
}

fn run(steps: &[Step], config: Config, keep: u64) {
    let folder = folder();
    let index = Index { keep, ..Index::default() };
    let (disk, opened) = Disk::open(&file(&folder), &config, &mut |_| {}).expect("a new file");
    assert!(opened.is_new);
    let mut pair = Pair {
        folder,
        config,
        disk: Some(disk),
        index,
        large: HashMap::new(),
        small: HashMap::new(),
        version: 0,
    };
    steps.iter().for_each(|step| pair.step(step));
    (0..200).for_each(|number| pair.check(number));
    let stats = pair.disk().stats();
    assert_eq!((stats.checksum_errors, stats.read_errors, stats.write_errors), (0, 0, 0));
    assert_eq!(stats.regions_retired, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn io_uring_access_returns_the_latest_value_or_a_miss(
        steps in proptest::collection::vec(step(), 1..300),
        keep in 0..4_u64,
        lanes in 1..3_usize,
    ) {
        run(&steps, Config { lanes, ..config() }, keep);
    }

    #[test]
    fn plain_system_calls_return_the_latest_value_or_a_miss(
        steps in proptest::collection::vec(step(), 1..300),
        writing in 1..4_usize,
        small_least in 1..4_u16,
    ) {
        run(&steps, Config { access: Access::Plain, writing, small_least, ..config() }, 0);
    }
}
