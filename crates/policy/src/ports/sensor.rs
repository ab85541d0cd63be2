//! The sensor port: memory traffic as a machine's sensors report it.
//!
//! A [`Sensor`] is built for a machine and numbers nodes in that machine's order. It declares its capabilities ([`Sees`]) and
//! tests itself ([`Sensor::check`]), because some interfaces succeed and report nothing. From [`Sensor::start`] on it returns
//! [`Reading`]s, each of the time since the reading before. A value that a sensor can't measure is `None`, never an estimate.
//!
//! Not here: sensors (crates sensors and sim implement the port) and the use of readings (crate control).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use core::fmt;

use nearfar_topology::Nanoseconds;

use super::reading::Reading;
use crate::traffic::Process;
use crate::traffic::carrefour::Sampling;

/// The processes that a sensor can observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All together, without distinction.
    Machine,
    /// Chosen ones, or all with the process of each access.
    Processes,
    /// Only itself: a probe.
    Own,
}

/// Resolution of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// No addresses.
    None,
    /// Regions of memory.
    Regions,
    /// Pages.
    Pages,
}

/// Origin of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// The machine itself.
    Measured,
    /// The lab's model of a machine.
    Emulated,
    /// The simulator.
    Simulated,
}

/// Capabilities of a sensor. Before its start, a sensor reports the most that its kind can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Sees {
    /// Resolution of addresses.
    pub addresses: Grain,
    /// Whether reads and writes are distinguished.
    pub writes: bool,
    /// Whether the requesting node is known.
    pub cpu: bool,
    /// Whether the lines served by each node's memory are counted.
    pub traffic: bool,
    /// Whether load latency is measured.
    pub latency: bool,
    /// Processes observed.
    pub scope: Scope,
    /// Origin of the values.
    pub nature: Nature,
}

/// The reason why a sensor can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The machine or its kernel does not support it.
    Absent,
    /// Not permitted.
    Forbidden,
    /// In use by another program, or its settings are.
    Taken,
    /// It works but reports nothing, or values known to be wrong.
    Mute,
    /// It has failed while in use.
    Failed,
}

impl Why {
    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Forbidden => "forbidden",
            Self::Taken => "taken",
            Self::Mute => "mute",
            Self::Failed => "failed",
        }
    }
}

/// A sensor that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The reason.
    pub why: Why,
    /// The attempt and its result.
    pub found: String,
    /// The remedy; empty if there is none.
    pub remedy: String,
}

impl Unusable {
    /// Without a remedy.
    #[must_use]
    pub fn new(why: Why, found: impl Into<String>) -> Self {
        Self { why, found: found.into(), remedy: String::new() }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn but(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.found)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl core::error::Error for Unusable {}

/// The processes to observe. A sensor leaves out accesses of others, if it can distinguish them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Targets {
    /// All processes.
    #[default]
    Machine,
    /// These processes, with all their threads.
    Processes(BTreeSet<Process>),
}

impl Targets {
    /// Whether a process is in scope.
    #[must_use]
    pub fn has(&self, process: Process) -> bool {
        match self {
            Self::Machine => true,
            Self::Processes(these) => these.contains(&process),
        }
    }
}

/// The cost of a sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of this program, since the sensor's start.
    pub cpu: Nanoseconds,
    /// Interruptions of programs: samples, hinting faults.
    pub interruptions: u64,
}

/// A source of traffic measurements.
pub trait Sensor {
    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// Its capabilities.
    fn sees(&self) -> Sees;

    /// Tests whether it can be used here, and whether it reports accesses that the test itself makes. Changes no
    /// setting of the system, and leaves nothing open.
    ///
    /// # Errors
    /// [`Unusable`], with the reason.
    fn check(&mut self) -> Result<(), Unusable>;

    /// Starts observing, after [`Sensor::check`]; system settings that it needs are journaled and written. The first
    /// reading begins here. A sensor that runs already adopts the new scope.
    ///
    /// # Errors
    /// [`Unusable`]; then all settings are as before.
    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable>;

    /// The values since the last reading.
    ///
    /// # Errors
    /// [`Unusable`], if it has failed or was not started. It may be started again.
    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable>;

    /// Sets the sampling density. Sensors without samples ignore it.
    ///
    /// # Errors
    /// [`Unusable`]; it continues as before.
    fn set_sampling(&mut self, _sampling: Sampling) -> Result<(), Unusable> {
        Ok(())
    }

    /// The cost since its start.
    fn cost(&self) -> Cost;

    /// Stops observing and restores settings. Does nothing if it is not running.
    ///
    /// # Errors
    /// [`Unusable`]; settings that could not be restored remain in the journal.
    fn stop(&mut self) -> Result<(), Unusable>;
}

impl<S: Sensor + ?Sized> Sensor for Box<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn sees(&self) -> Sees {
        (**self).sees()
    }

    fn check(&mut self) -> Result<(), Unusable> {
        (**self).check()
    }

    fn start(&mut self, targets: &Targets, now: Nanoseconds) -> Result<(), Unusable> {
        (**self).start(targets, now)
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        (**self).read(now)
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        (**self).set_sampling(sampling)
    }

    fn cost(&self) -> Cost {
        (**self).cost()
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        (**self).stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_error_shows_its_remedy_and_targets_match_their_processes() {
        let lacking = Unusable::new(Why::Absent, "no /sys/x");
        assert_eq!(lacking.to_string(), "no /sys/x");
        assert_eq!(lacking.but("load y").to_string(), "no /sys/x; load y");
        assert!(Targets::Machine.has(Process(1)) && !Targets::Processes([].into()).has(Process(1)));
    }

    /// A sensor that records its calls in its cost and remembers the density.
    #[derive(Debug)]
    struct Fake {
        calls: u64,
        sampling: Option<Sampling>,
        fails: bool,
    }

    impl Fake {
        fn call(&mut self, call: u32) -> Result<(), Unusable> {
            self.calls = self.calls * 10 + u64::from(call);
            if self.fails { Err(Unusable::new(Why::Failed, "gone")) } else { Ok(()) }
        }
    }

    impl Sensor for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn sees(&self) -> Sees {
            Sees {
                addresses: Grain::Regions,
                writes: true,
                cpu: false,
                traffic: false,
                latency: true,
                scope: Scope::Own,
                nature: Nature::Emulated,
            }
        }

        fn check(&mut self) -> Result<(), Unusable> {
            self.call(1)
        }

        fn start(&mut self, _: &Targets, _: Nanoseconds) -> Result<(), Unusable> {
            self.call(2)
        }

        fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
            self.call(3).map(|()| Reading { elapsed: now, ..Reading::default() })
        }

        fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
            self.sampling = Some(sampling);
            self.call(4)
        }

        fn cost(&self) -> Cost {
            Cost { cpu: Nanoseconds(self.calls), interruptions: self.sampling.map_or(0, |_| 1) }
        }

        fn stop(&mut self) -> Result<(), Unusable> {
            self.call(5)
        }
    }

    #[test]
    fn a_boxed_sensor_forwards_every_call() {
        for fails in [false, true] {
            let own = Fake { calls: 0, sampling: None, fails };
            let mut boxed: Box<dyn Sensor> = Box::new(own);
            let results = [
                boxed.check(),
                boxed.start(&Targets::Machine, Nanoseconds(1)),
                boxed.read(Nanoseconds(7)).map(|reading| assert_eq!(reading.elapsed.0, 7)),
                // Without forwarding the trait's own method would accept any density and do nothing.
                boxed.set_sampling(Sampling::Sparse),
                boxed.stop(),
            ];
            assert!(results.iter().all(|result| result.is_err() == fails), "{results:?}");
            assert_eq!(boxed.cost(), Cost { cpu: Nanoseconds(12_345), interruptions: 1 });
            assert_eq!((boxed.name(), boxed.sees().scope), ("fake", Scope::Own));
        }
    }

    #[test]
    fn each_reason_has_a_distinct_word() {
        let all = [Why::Absent, Why::Forbidden, Why::Taken, Why::Mute, Why::Failed];
        let words: BTreeSet<&str> = all.map(Why::word).into();
        assert_eq!(words.len(), all.len());
    }

    #[test]
    fn processes_outside_the_scope_are_left_out() {
        let these = Targets::Processes([Process(3), Process(5)].into());
        let has = [3, 4, 5].map(|process| these.has(Process(process)));
        assert_eq!((has, Targets::default()), ([true, false, true], Targets::Machine));
    }
}
