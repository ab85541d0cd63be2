//! One seed: a tier on a simulated device, with operations, ends and faults drawn from the seed, checked against a
//! model.
//!
//! There is only one thread and nothing waits, so a seed is deterministic. Checked properties:
//!
//! - Every value found is whole and belongs to its key.
//! - While the tier runs, after a clean close and after a crash with `discard`, a read returns the value stored last or
//!   nothing, for all faults of the device.
//! - After a crash with `keep` a read returns a value that was stored since the last `clear`. If the process was killed
//!   and the device had no faults, it is not a value that was replaced or removed before the last flush.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers are small, or a part of them is wanted"
)]

mod device;
mod dice;
mod index;
mod model;
mod objects;
mod tally;

use std::collections::HashMap;
use std::io::{Write as _, stderr};
use std::path::Path;
use std::sync::Arc;

use nearfar_cache_disk::{
    AfterCrash, Config, Device, Disk, Error, Object, Opened, Outcome, Recovered, Refused, Wait,
    Where,
};

use device::{BLOCK, End, Faults, Simulated, State};
use dice::Dice;
use index::Index;
use model::{Back, KEYS, Model};
use objects::{hash, meta, name, value, version_of};
pub(crate) use tally::Tally;

const REGION: usize = 4 * BLOCK;
/// Operations of a seed, at most.
const STEPS: usize = 120;

struct Run {
    dice: Dice,
    device: Arc<Simulated>,
    config: Config,
    is_faulty: bool,
    faults: Faults,
    rots: bool,
    disk: Option<Disk>,
    index: Index,
    model: Model,
    tally: Tally,
    /// The device may have changed something since everything was forgotten.
    faulted: bool,
    trace: bool,
}

/// A violated promise.
type Wrong = String;

fn config(dice: &mut Dice) -> Config {
    let (lanes, writing, free_regions) =
        (dice.between(1, 2), dice.between(1, 2), dice.between(1, 2));
    let regions = lanes + writing + free_regions + dice.between(1, 4);
    let sets = [0, 1, 3, 6][dice.below(4)];
    // 256 KiB before the table, a block of table, sets, and regions from a multiple of their size.
    let begin = (65 + sets as u64) * BLOCK as u64;
    let begin = begin.next_multiple_of(REGION as u64);
    Config {
        bytes: begin + (regions * REGION) as u64,
        region_bytes: REGION,
        small_bytes: (sets * BLOCK) as u64,
        small_max: 400,
        small_waiting: dice.between(500, 4000),
        small_least: dice.between(1, 2) as u16,
        lanes,
        writing,
        free_regions,
        reinsert_percent: if dice.one_in(2) { 50 } else { 0 },
        errors_max: dice.between(1, 4) as u32,
        least_hits: 0,
        ghosts: 1,
        format: true,
        ..Config::default()
    }
}

/// Which faults a seed has, and how often.
fn faults(dice: &mut Dice) -> Faults {
    let mut faults = Faults::default();
    let mut some = |fault: &mut usize, chance: usize, times: usize| {
        if dice.one_in(chance) {
            *fault = dice.between(times / 4, times);
        }
    };
    some(&mut faults.lost, 4, 60);
    some(&mut faults.astray, 4, 60);
    some(&mut faults.late, 4, 60);
    some(&mut faults.write_error, 4, 40);
    some(&mut faults.read_error, 4, 40);
    some(&mut faults.flip, 4, 40);
    some(&mut faults.read_astray, 4, 40);
    some(&mut faults.sync_error, 4, 20);
    some(&mut faults.stuck, 12, 100);
    faults
}

/// Runs a seed.
///
/// # Errors
/// The violated promise, with the seed.
pub(crate) fn run(seed: u64, trace: bool) -> Result<Tally, Wrong> {
    let mut dice = Dice::new(seed);
    let config = config(&mut dice);
    let is_faulty = dice.one_in(2);
    let faults = if is_faulty { faults(&mut dice) } else { Faults::default() };
    let state = State::new(config.bytes as usize, Dice::new(dice.next()));
    let mut run = Run {
        is_faulty,
        rots: is_faulty && dice.one_in(2),
        index: Index { keeps: dice.one_in(2), ..Index::default() },
        dice,
        device: Simulated::new(state),
        config,
        faults,
        disk: None,
        model: Model::new(),
        tally: Tally { seeds: 1, ..Tally::default() },
        faulted: false,
        trace,
    };
    let done = run.all();
    drop(run.disk.take());
    run.tally.add(&run.device.state().tally);
    done.map(|()| run.tally).map_err(|wrong| format!("SEED={seed}: {wrong}"))
}

impl Run {
    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            // A closed standard error is ignored.
            let _ = writeln!(stderr(), "{}", what());
        }
    }

    fn all(&mut self) -> Result<(), Wrong> {
        self.say(|| format!("{:?}\n{:?} rots {}", self.config, self.faults, self.rots));
        self.open(Back::Ever)?;
        for step in 0..self.dice.between(20, STEPS) {
            self.tally.operations += 1;
            self.say(|| format!("-- {step}"));
            self.step().map_err(|wrong| format!("operation {step}: {wrong}"))?;
            let ended = self.device.state().ended;
            if let Some(end) = ended {
                self.after_end(end).map_err(|wrong| format!("operation {step}: {wrong}"))?;
            }
        }
        self.close()?;
        let ended = self.device.state().ended;
        if let Some(end) = ended {
            self.after_end(end)?;
        }
        self.check_all()
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let key = self.dice.below(KEYS);
        match self.dice.below(100) {
            0..34 => self.store_large(key),
            34..58 => self.store_small(key),
            58..68 => self.remove(key),
            68..82 => {
                self.check(key)?;
            }
            82..84 => self.check_many()?,
            84..92 => self.tick(),
            92..94 => self.flush(),
            94 => self.clear(),
            95 | 96 => self.close()?,
            _ => {
                let end = if self.dice.one_in(2) { End::Kill } else { End::Cut };
                if self.dice.one_in(3) {
                    self.device.state().end(end);
                } else {
                    let writes = self.dice.between(1, 12);
                    self.say(|| format!("{end:?} after {writes} writes"));
                    self.device.state().ends = Some((writes, end));
                }
            }
        }
        Ok(())
    }

    fn disk(&self) -> Disk {
        self.disk.clone().expect("it is open between operations")
    }

    fn tick(&self) {
        let ticked = self.disk().tick(1, &self.index);
        self.say(|| format!("tick: {ticked:?}"));
    }

    fn forget(&self, key: usize) {
        if let Some(place) = self.index.with(|places| places.remove(&hash(key))) {
            self.disk().forget(place);
        }
    }

    fn store_large(&mut self, key: usize) {
        let disk = self.disk();
        let version = self.model.next();
        let value = value(key, version, self.dice.between(8, 3500));
        let object = Object { hash: hash(key), key: &name(key), meta: meta(version) };
        let mut tries = self.dice.below(4);
        let stored = loop {
            match disk.append(&object, &[&value[..4], &value[4..]]) {
                Err(Refused::Busy) if tries > 0 => {
                    tries -= 1;
                    self.tick();
                }
                stored => break stored,
            }
        };
        self.say(|| format!("store {key} version {version}, {} bytes: {stored:?}", value.len()));
        self.forget(key);
        disk.remove_small(hash(key), &name(key));
        if let Ok(place) = stored {
            self.index.with(|places| places.insert(hash(key), place));
        }
        self.model.set(key, stored.is_ok().then_some(version));
    }

    fn store_small(&mut self, key: usize) {
        let disk = self.disk();
        let version = self.model.next();
        let value = value(key, version, self.dice.between(8, 380));
        let object = Object { hash: hash(key), key: &name(key), meta: meta(version) };
        let stored = disk.append_small(&object, &[&value]);
        self.say(|| {
            format!("store small {key} version {version}, {} bytes: {stored:?}", value.len())
        });
        if stored.is_err() {
            disk.remove_small(hash(key), &name(key));
        }
        self.forget(key);
        self.model.set(key, stored.is_ok().then_some(version));
    }

    fn remove(&mut self, key: usize) {
        self.say(|| format!("remove {key}"));
        self.forget(key);
        self.disk().remove_small(hash(key), &name(key));
        self.model.set(key, None);
    }

    fn flush(&mut self) {
        let flushed = self.disk().flush();
        self.say(|| format!("flush: {flushed}"));
        if flushed && self.device.state().ended.is_none() {
            self.model.flushed();
        }
    }

    fn clear(&mut self) {
        let cleared = self.disk().clear();
        self.say(|| format!("clear: {cleared:?}"));
        self.index.with(HashMap::clear);
        if cleared.is_ok() {
            self.model.clear();
            self.faulted = false;
        } else {
            (0..KEYS).for_each(|key| self.model.set(key, None));
        }
    }

    /// Closes it and opens it again, unless that fails.
    fn close(&mut self) -> Result<(), Wrong> {
        let closed = self.disk().close();
        self.say(|| format!("close: {closed:?}"));
        let ended = self.device.state().ended;
        if closed.is_err() {
            self.tally.not_closed += 1;
            if ended.is_none() && self.faults_are_off() {
                return Err(format!("close failed without a fault: {closed:?}"));
            }
            // The tier continues, unless it can't undo a superblock that is marked as closed: then it accepts nothing
            // more.
            if ended.is_none() && (self.takes_nothing() || self.dice.one_in(2)) {
                self.device.state().end(End::Kill);
            }
            return Ok(());
        }
        if ended.is_some() {
            return Err(String::from("closed, though the machine had ended"));
        }
        self.tally.closed += 1;
        self.disk = None;
        if self.rots && self.dice.one_in(2) {
            (0..self.dice.between(1, 3)).for_each(|_| self.device.state().rot());
            self.faulted = true;
        }
        self.say(|| format!("reopen after close; rotten: {}", self.faulted));
        self.open(Back::Ever)?;
        self.check_all()
    }

    fn takes_nothing(&self) -> bool {
        let object = Object { hash: 0, key: b"", meta: meta(0) };
        self.disk().append_with(&object, 8, &mut |_| false) == Err(Refused::Closed)
    }

    fn faults_are_off(&self) -> bool {
        !self.is_faulty && !self.faulted
    }

    fn after_end(&mut self, end: End) -> Result<(), Wrong> {
        self.disk = None;
        let keeps = self.dice.one_in(2);
        self.config.after_crash = if keeps { AfterCrash::Keep } else { AfterCrash::Discard };
        if self.rots && self.dice.one_in(4) {
            self.device.state().rot();
            self.faulted = true;
        }
        self.say(|| {
            format!("reopen after {end:?}, {:?}; rotten: {}", self.config.after_crash, self.faulted)
        });
        let is_exact = end == End::Kill && self.faults_are_off();
        self.open(if is_exact { Back::SinceFlush } else { Back::Ever })?;
        self.check_all()
    }

    /// Opens the tier, with retries on a failing device; a damaged tier is wiped and created again. If it was not
    /// closed, old objects may reappear.
    fn open(&mut self, mut back: Back) -> Result<(), Wrong> {
        for tries in 0.. {
            self.index.with(HashMap::clear);
            {
                let mut state = self.device.state();
                state.begin();
                state.faults = if tries < 2 { self.faults } else { Faults::default() };
                if tries < 2 && self.dice.one_in(8) {
                    let end = if self.dice.one_in(2) { End::Kill } else { End::Cut };
                    state.ends = Some((self.dice.between(1, 5), end));
                }
            }
            let device: Arc<dyn Device> = Arc::clone(&self.device) as _;
            let mut twice = None;
            let index = &self.index;
            let mut found = |one: &Recovered| {
                if index.with(|places| places.insert(one.hash, one.place)).is_some() {
                    twice = Some(one.hash);
                }
            };
            let opened = Disk::open_on(&device, Path::new("simulated"), &self.config, &mut found);
            self.say(|| format!("open: {:?}", opened.as_ref().map(|(_, opened)| opened)));
            if let Some(hash) = twice {
                return Err(format!("hash {hash:x} was told twice"));
            }
            match opened {
                Ok((disk, opened)) => {
                    self.disk = Some(disk);
                    self.opened(&opened, back);
                    self.device.state().faults = self.faults;
                    return Ok(());
                }
                Err(Error::Io { .. }) if self.device.state().ended.is_some() => {
                    self.tally.ends_opening += 1;
                    if self.device.state().ended == Some(End::Cut) {
                        back = Back::Ever;
                    }
                }
                Err(Error::Io { .. }) if tries < 2 && !self.faults_are_off() => {}
                Err(Error::Foreign { .. } | Error::Unformatted { .. })
                    if !self.faults_are_off() =>
                {
                    if tries >= 2 {
                        self.tally.refused += 1;
                        self.device.state().image.fill(0);
                    }
                }
                Err(error) => return Err(format!("not opened: {error}")),
            }
        }
        Ok(())
    }

    fn opened(&mut self, opened: &Opened, back: Back) {
        let is_empty = opened.is_new || opened.discarded;
        let tally = &mut self.tally;
        match (opened.is_new, opened.was_closed, opened.discarded) {
            (true, ..) => {}
            (_, true, false) => tally.reopened += 1,
            (_, true, true) => tally.damaged += 1,
            (_, false, true) => tally.discarded += 1,
            (_, false, false) => tally.kept += 1,
        }
        if is_empty {
            self.model.clear();
            self.faulted = false;
        } else if !opened.was_closed {
            self.model.keep(back);
        }
        self.model.flushed();
    }

    /// Checks a value against the model.
    fn judge(&mut self, key: usize, found: Option<Option<u64>>) -> Result<bool, Wrong> {
        self.tally.reads += 1;
        let Some(version) = found else { return Ok(false) };
        let version = version
            .ok_or_else(|| format!("key {key}: a value that is not whole, or of another key"))?;
        self.tally.hits += 1;
        self.tally.older += u64::from(self.model.newest_ever(key) > Some(version));
        if self.device.state().ended.is_some() || self.model.allows(key, version) {
            return Ok(true);
        }
        Err(format!("key {key}: found version {version}, may be {}", self.model.expected(key)))
    }

    /// Reads a key as a cache does: at the place of its entry, else among the small objects.
    fn check(&mut self, key: usize) -> Result<bool, Wrong> {
        let (disk, name) = (self.disk(), name(key));
        let taken = |outcome: Outcome<'_>| outcome.item().map(|item| version_of(key, &item));
        let place = self.index.with(|places| places.get(&hash(key)).copied());
        let large = place.and_then(|place| disk.read(Where::Large(place), &name, taken));
        let found = large.or_else(|| disk.read(Where::Small(hash(key)), &name, taken));
        self.say(|| format!("get {key}: {found:?}, may be {}", self.model.expected(key)));
        self.judge(key, found)
    }

    /// Reads several keys at once.
    fn check_many(&mut self) -> Result<(), Wrong> {
        let Ok(mut reader) = self.disk().reader(4) else { return Ok(()) };
        let mut found = Vec::new();
        for token in 0..self.dice.between(1, 4) {
            let key = self.dice.below(KEYS);
            let place = self.index.with(|places| places.get(&hash(key)).copied());
            let at = place.map_or(Where::Small(hash(key)), Where::Large);
            let token = (token * KEYS + key) as u64;
            if reader.submit(token, at, &name(key)).is_err() {
                return Err(String::from("a reader of four has no room for four"));
            }
        }
        while reader.under_way() > 0 {
            let polled = reader.poll(Wait::ForOne, &mut |token, outcome| {
                let key = token as usize % KEYS;
                found.push((key, outcome.item().map(|item| version_of(key, &item))));
            });
            match polled {
                Ok(_) => {}
                Err(_) if self.is_faulty => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        self.say(|| format!("get at once: {found:?}"));
        found.into_iter().try_for_each(|(key, found)| self.judge(key, found).map(drop))
    }

    fn check_all(&mut self) -> Result<(), Wrong> {
        for key in 0..KEYS {
            let could_be = self.model.newest(key).is_some();
            if self.check(key)? {
                self.tally.entries_kept += 1;
            } else if could_be {
                self.tally.entries_dropped += 1;
            }
        }
        Ok(())
    }
}
