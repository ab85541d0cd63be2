//! Several work queues as one copier: each job goes to a queue near its destination.
//!
//! A device on the destination's node writes without crossing sockets, and writes that cross cost more than reads that do.
//! Among queues that are equally near, the one with the fewest bytes of the batch so far is taken. If no queue can be used,
//! the CPU copies.

use super::queue::{Counts, Queue};
use crate::copy::cpu::Cpu;
use crate::copy::job::{Job, Place};
use crate::copy::{Copier, Failure, Outcome, Overlap, Ran};

/// A queue, to the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The node its device is on, if known.
    pub node: Option<u32>,
    /// Bytes it was given of this batch.
    pub bytes: u64,
    /// Whether it can be used.
    pub is_usable: bool,
}

/// The queue for a job whose destination is on `node`; where that or the queues' nodes are not known, all are near.
#[must_use]
pub fn choose(seats: &[Seat], node: Option<u32>) -> Option<usize> {
    let is_far = |seat: &Seat| seat.node.zip(node).is_some_and(|(one, other)| one != other);
    let usable = seats.iter().enumerate().filter(|(_, seat)| seat.is_usable);
    usable.min_by_key(|(_, seat)| (is_far(seat), seat.bytes)).map(|(at, _)| at)
}

/// Work queues of one or more DSA devices.
#[derive(Debug)]
pub struct Dsa {
    queues: Vec<Queue>,
    seats: Vec<Seat>,
    outcomes: Vec<Outcome>,
    cpu: Cpu,
    cpu_bytes: u64,
}

impl Dsa {
    /// Uses these queues, and the CPU while none of them can be used.
    #[must_use]
    pub fn new(queues: Vec<Queue>, cpu: Cpu) -> Self {
        let (seats, outcomes) = (Vec::with_capacity(queues.len()), Vec::new());
        Self { queues, seats, outcomes, cpu, cpu_bytes: 0 }
    }

    /// What each queue went through.
    pub fn counts(&self) -> impl Iterator<Item = Counts> {
        self.queues.iter().map(Queue::counts)
    }

    fn place(&mut self, at: usize, job: &Job) -> Outcome {
        if job.overlaps() {
            return Outcome::Failed(Failure::Overlap);
        }
        match choose(&self.seats, job.node()) {
            Some(queue) => {
                self.seats[queue].bytes += job.length() as u64;
                self.queues[queue].add(at, job);
                Outcome::Done
            }
            None => {
                self.cpu_bytes += job.length() as u64;
                self.cpu.one(job)
            }
        }
    }
}

impl Copier for Dsa {
    fn copy(&mut self, jobs: &[Job], outcomes: &mut Vec<Outcome>) {
        self.start(jobs);
        self.finish(outcomes);
    }

    fn settled(&mut self, places: &mut Vec<Place>) {
        self.queues.iter_mut().for_each(|queue| queue.settled(places));
    }
}

impl Overlap for Dsa {
    fn is_usable(&mut self) -> bool {
        self.queues.iter_mut().any(Queue::is_usable)
    }

    fn start(&mut self, jobs: &[Job]) {
        let seat =
            |queue: &mut Queue| Seat { node: queue.node(), bytes: 0, is_usable: queue.is_usable() };
        self.seats.clear();
        self.seats.extend(self.queues.iter_mut().map(seat));
        self.outcomes.clear();
        for (at, job) in jobs.iter().enumerate() {
            let outcome = self.place(at, job);
            self.outcomes.push(outcome);
        }
        self.poll();
    }

    fn poll(&mut self) -> bool {
        let mut is_done = true;
        for queue in &mut self.queues {
            is_done &= queue.poll();
        }
        is_done
    }

    fn finish(&mut self, outcomes: &mut Vec<Outcome>) -> Ran {
        let mut all = Ran { cpu_bytes: std::mem::take(&mut self.cpu_bytes), ..Ran::default() };
        for queue in &mut self.queues {
            let ran = queue.finish(&mut self.outcomes);
            all.device_bytes += ran.device_bytes;
            all.cpu_bytes += ran.cpu_bytes;
            all.faults += ran.faults;
        }
        self.cpu.fence();
        outcomes.clear();
        outcomes.append(&mut self.outcomes);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(node: Option<u32>, bytes: u64) -> Seat {
        Seat { node, bytes, is_usable: true }
    }

    #[test]
    fn a_queue_on_the_destinations_node_is_taken_however_busy() {
        let seats = [seat(Some(0), 0), seat(Some(1), 1 << 30)];
        assert_eq!(choose(&seats, Some(1)), Some(1));
        assert_eq!(choose(&seats, Some(7)), Some(0), "all are far");
    }

    #[test]
    fn among_queues_as_near_the_least_busy_is_taken_and_unknown_is_near() {
        let seats = [seat(Some(0), 5), seat(None, 4), seat(Some(0), 3)];
        assert_eq!(choose(&seats, Some(0)), Some(2));
        assert_eq!(choose(&seats, Some(1)), Some(1));
        assert_eq!(choose(&seats, None), Some(2));
    }

    #[test]
    fn a_queue_that_cannot_be_used_is_passed_over() {
        let mut seats = [seat(Some(0), 0), seat(Some(1), 0)];
        seats[0].is_usable = false;
        assert_eq!(choose(&seats, Some(0)), Some(1));
        seats[1].is_usable = false;
        assert_eq!(choose(&seats, Some(0)), None);
        assert_eq!(choose(&[], None), None);
    }
}
