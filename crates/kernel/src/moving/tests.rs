//! Migration, on a fake kernel that gives up where the real one does, and on the present one.

use std::collections::BTreeSet;

use super::*;
use nearfar_topology::BytesPerSecond;
use proptest::prelude::*;

/// Four nodes. Reports and omits results as mm/migrate.c does.
#[derive(Debug, Default)]
struct Fake {
    at: BTreeMap<usize, c_int>,
    shared: BTreeSet<usize>,
    locked: BTreeSet<usize>,
    pinned: BTreeSet<usize>,
    room: [u64; 4],
    /// Pages of all attempted batches.
    attempted: usize,
}

impl Fake {
    fn with(pages: usize) -> Self {
        let at = (1..=pages).map(|page| (page * 4096, 0)).collect();
        Self { at, room: [u64::MAX; 4], ..Self::default() }
    }

    /// Migrates a group; false if the call ends here.
    fn group(&mut self, group: &[usize], node: c_int) -> Result<u64, c_int> {
        let room = usize::try_from(node).unwrap();
        let (mut left, mut full) = (0, false);
        for address in group {
            if self.pinned.contains(address) {
                left += 1;
            } else if self.room[room] == 0 {
                full = true;
            } else {
                self.room[room] -= 1;
                self.at.insert(*address, node);
            }
        }
        if full { Err(libc::ENOMEM) } else { Ok(left) }
    }
}

impl Calls for Fake {
    fn allowed(&mut self, _: &Owner) -> Option<NodeSet> {
        NodeSet::parse_list("0-2")
    }

    fn places(&mut self, _: &Owner, pages: &[usize], status: &mut [c_int]) -> io::Result<()> {
        for (page, place) in pages.iter().zip(status) {
            *place = self.at.get(page).copied().unwrap_or(-libc::ENOENT);
        }
        Ok(())
    }

    fn go(
        &mut self,
        _: &Owner,
        pages: &[usize],
        nodes: &[c_int],
        status: &mut [c_int],
    ) -> io::Result<u64> {
        let count = pages.len();
        let (mut start, mut current) = (0, -1);
        let mut at = 0;
        self.attempted += count;
        while at <= count {
            let said = match pages.get(at).map(|page| self.at.get(page)) {
                None => None,
                Some(None) => Some(-libc::ENOENT),
                Some(Some(node)) if *node == nodes[at] => Some(*node),
                Some(_) if self.shared.contains(&pages[at]) => Some(-libc::EACCES),
                Some(_) if self.locked.contains(&pages[at]) => Some(-libc::EBUSY),
                Some(_) if current == -1 || nodes[at] == current => {
                    if current == -1 {
                        (start, current) = (at, nodes[at]);
                    }
                    at += 1;
                    continue;
                }
                Some(_) => None,
            };
            if let Some(said) = said {
                status[at] = said;
            }
            if current != -1 {
                let end = at.min(count);
                match self.group(&pages[start..end], current) {
                    Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    Ok(0) => status[start..end].fill(current),
                    Ok(left) => return Ok(left + (count - end) as u64),
                }
                current = -1;
            }
            if said.is_some() || at == count {
                at += 1;
            }
        }
        Ok(0)
    }
}

fn me() -> Process {
    Process(std::process::id())
}

fn request(number: u64, to: u16) -> Request {
    Request { page: Page { process: me(), number }, huge: false, from: None, to: NodeId(to) }
}

fn mover(fake: Fake) -> Mover<Fake> {
    Mover::with(fake, Rate::new(BytesPerSecond(1 << 40), Nanoseconds(0)))
}

/// Runs until no request is queued.
fn all(mover: &mut Mover<Fake>) -> Vec<Done> {
    let (mut done, mut now) = (Vec::new(), 0);
    while mover.waiting() > 0 {
        now += 100_000_000;
        done.extend(mover.batch(Nanoseconds(now)));
    }
    done
}

#[test]
fn each_page_has_its_outcome_even_if_move_pages_stops_early() {
    let mut fake = Fake::with(9);
    fake.shared.insert(2 * 4096);
    fake.locked.insert(4 * 4096);
    fake.pinned.insert(6 * 4096);
    fake.at.insert(7 * 4096, 1);
    fake.at.remove(&(8 * 4096));
    let mut mover = mover(fake);
    mover.ask((1..=9).map(|page| request(page, 1)).chain([request(3, 3)]));
    let done = all(&mut mover);
    let outcome = |page: u64, to: u16| {
        let of = done.iter().find(|one| one.request == request(page, to));
        of.unwrap_or_else(|| panic!("nothing became of page {page}: {done:?}")).outcome
    };
    use Outcome::{Absent, Busy, Moved, NotAllowed, Shared, There, Unmoved};
    let right = [Moved, Shared, Moved, Busy, Moved, Unmoved, There, Absent, Moved];
    for (page, right) in (1..).zip(right) {
        assert_eq!(outcome(page, 1), right, "page {page}");
    }
    assert_eq!(outcome(3, 3), NotAllowed, "the cpuset has nodes 0 to 2");
    assert_eq!(done.len(), 10, "each once");
    assert_eq!(mover.tally().retried, 2 * u64::from(TRIES), "what was busy and what was pinned");
    assert_eq!(mover.tally().bytes(), Bytes(4 * 4096));
}

#[test]
fn a_full_node_accepts_pages_that_fit_and_the_rest_are_reported_full() {
    let mut fake = Fake::with(20);
    fake.room[1] = 5;
    let mut mover = mover(fake);
    mover.ask((1..=10).map(|page| request(page, 1)).chain((11..=20).map(|page| request(page, 2))));
    all(&mut mover);
    let count = |outcome| mover.tally().count(outcome);
    assert_eq!((count(Outcome::Moved), count(Outcome::Full)), (15, 5));
    assert_eq!(mover.tally().moved[&(NodeId(0), NodeId(2))], Bytes(10 * 4096));
}

#[test]
fn pending_pages_of_an_ended_process_are_dropped() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let gone = Process(child.id());
    child.wait().unwrap();
    let mut mover = mover(Fake::with(4000));
    let theirs = |number| Request { page: Page { process: gone, number }, ..request(1, 1) };
    mover.ask((1..=3000).map(theirs).chain([request(1, 1)]));
    all(&mut mover);
    let count = |outcome| mover.tally().count(outcome);
    assert_eq!((count(Outcome::Gone), count(Outcome::Moved)), (3000, 1));
}

#[test]
fn no_more_is_moved_than_the_rate_allows() {
    let rate = Rate::new(BytesPerSecond(4096 * 1000), Nanoseconds(0));
    let mut mover = Mover::with(Fake::with(500), rate);
    mover.ask((1..=500).map(|page| request(page, 1)));
    assert!(mover.batch(Nanoseconds(0)).is_empty());
    assert_eq!(mover.batch(Nanoseconds(50_000_000)).len(), 50);
    assert!(mover.next().is_some_and(|wait| wait.0 > 0), "{:?}", mover.next());
    assert_eq!(
        mover.batch(Nanoseconds(10_000_000_000)).len(),
        100,
        "a tenth of a second's at once"
    );
    assert_eq!(mover.forget(), 350);
    assert_eq!(mover.next(), None);
}

#[test]
fn own_pages_are_located_and_disallowed_nodes_are_rejected() {
    let memory = vec![1_u8; 1 << 20];
    let page = (std::hint::black_box(&memory).as_ptr() as u64).div_ceil(4096);
    let here = crate::mempolicy::allowed_nodes().iter().next().unwrap();
    let mut mover = Mover::new(Rate::new(BytesPerSecond(1 << 30), Nanoseconds(0)), Shared::Stay);
    mover.ask([
        request(page, here.0),
        request(page, 1000),
        request(1, here.0),
        request(u64::MAX / 4096, here.0),
        request(u64::MAX, here.0),
    ]);
    let done = mover.step(Nanoseconds(1_000_000_000));
    let outcomes: Vec<Outcome> = done.iter().map(|one| one.outcome).collect();
    assert_eq!(
        outcomes,
        [Outcome::There, Outcome::NotAllowed, Outcome::Absent, Outcome::Absent, Outcome::Absent]
    );
}

proptest! {
    #[test]
    fn reported_migration_outcomes_match_the_page_locations(
        pages in prop::collection::vec((0_u8..6, 0_u16..4, prop::option::of(0_u16..2)), 1..60),
        room in prop::array::uniform4(0_u64..20),
    ) {
        let mut fake = Fake::with(pages.len());
        fake.room = room;
        for (page, (kind, ..)) in (1..).zip(&pages) {
            let address = page * 4096;
            match kind {
                0 => drop(fake.shared.insert(address)),
                1 => drop(fake.locked.insert(address)),
                2 => drop(fake.pinned.insert(address)),
                3 => drop(fake.at.remove(&address)),
                _ => {}
            }
        }
        let mut mover = mover(fake);
        mover.ask((1..).zip(&pages).map(|(page, (_, to, from))| {
            Request { from: from.map(NodeId), ..request(page, *to) }
        }));
        let done = all(&mut mover);
        prop_assert_eq!(done.len(), pages.len());
        for one in done {
            let address = one.request.address().unwrap();
            let now = mover.calls.at.get(&address).copied();
            let to = c_int::from(one.request.to.0);
            let right = match one.outcome {
                Outcome::Moved => now == Some(to) && one.request.from != Some(NodeId(1)),
                Outcome::There => now == Some(to),
                Outcome::Elsewhere => now == Some(0) && one.request.from == Some(NodeId(1)),
                Outcome::Absent => now.is_none(),
                Outcome::NotAllowed => to == 3,
                Outcome::Shared => mover.calls.shared.contains(&address),
                Outcome::Busy => mover.calls.locked.contains(&address),
                // A full node hides the results of pinned pages in the group.
                Outcome::Unmoved | Outcome::Full => now == Some(0) && to != 0,
                Outcome::Gone | Outcome::Denied => false,
            };
            prop_assert!(right, "{:?}, now on {:?}", one, now);
        }
    }
}
