//! Sensors: how traffic is seen, whoever sees it.
//!
//! A [`Sensor`] is built for a machine, and counts nodes in that machine's order. It says what it can see ([`Sees`]), tests
//! itself ([`Sensor::check`]) because some interfaces succeed and report nothing, and from [`Sensor::start`] on gives
//! [`Reading`]s, each of what was since the one before. Several sensors' readings are taken together ([`Reading::join`]) and
//! become what policies know: a round ([`Reading::round`]) and a table of sampled pages ([`Reading::add_to`]). Nothing is
//! made up: what a sensor does not see stays `None`, and what it saw but could not tell is counted ([`Counts`]).
//!
//! Not here: the sensors. The live system's are in the command, over crate kernel.

use std::collections::BTreeSet;
use std::fmt;

use nearfar_policy::traffic::Process;
use nearfar_policy::traffic::carrefour::Sampling;
use nearfar_topology::Nanoseconds;

mod reading;

pub use reading::{Counts, Heat, Reading};

/// Whose traffic a sensor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everyone's, without telling whose.
    Machine,
    /// That of chosen processes, or everyone's with its process.
    Processes,
    /// Its own alone: a probe.
    Own,
}

/// What tells addresses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// None are seen.
    None,
    /// Stretches of memory.
    Regions,
    /// Pages.
    Pages,
}

/// How true what it shows is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It comes from the machine itself.
    Measured,
    /// It comes from the lab's model of a machine.
    Emulated,
}

/// What a sensor can see. A sensor that has not been started says what its kind sees at best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Sees {
    /// Addresses.
    pub addresses: Grain,
    /// Whether an access read or wrote.
    pub writes: bool,
    /// The node whose CPU asked.
    pub cpu: bool,
    /// How many lines each node's memory serves.
    pub traffic: bool,
    /// What a load takes.
    pub latency: bool,
    /// Whose.
    pub scope: Scope,
    /// How true.
    pub nature: Nature,
}

/// Why a sensor can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The machine or its kernel has no such thing.
    Absent,
    /// It is there, but not for us.
    Forbidden,
    /// Someone else has it, or sets what it needs.
    Taken,
    /// It can be used and shows nothing, or what is known not to be so.
    Mute,
    /// It was in use and is no longer.
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
    /// In a word.
    pub why: Why,
    /// What was asked and what was found.
    pub found: String,
    /// The way out; empty if there is none.
    pub remedy: String,
}

impl Unusable {
    /// One without a way out.
    #[must_use]
    pub fn new(why: Why, found: impl Into<String>) -> Self {
        Self { why, found: found.into(), remedy: String::new() }
    }

    /// The same with a way out.
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

impl std::error::Error for Unusable {}

/// Whom to look at. What a sensor sees of others is left out, where it can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    /// Everyone.
    #[default]
    Machine,
    /// These processes, with all their threads.
    Processes(BTreeSet<Process>),
}

impl Whose {
    /// Whether a process is among them.
    #[must_use]
    pub fn has(&self, process: Process) -> bool {
        match self {
            Self::Machine => true,
            Self::Processes(these) => these.contains(&process),
        }
    }
}

/// What a sensor has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of ours, since it was started.
    pub cpu: Nanoseconds,
    /// Times that programs were interrupted for it: samples, hinting faults.
    pub interruptions: u64,
}

/// Something that sees traffic.
pub trait Sensor {
    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// What it can see.
    fn sees(&self) -> Sees;

    /// Tests whether it can be used here and shows what it should of accesses that the test itself makes. Changes no
    /// setting of the system, and leaves nothing open.
    ///
    /// # Errors
    /// [`Unusable`]: why it can't be used.
    fn check(&mut self) -> Result<(), Unusable>;

    /// Starts looking, after [`Sensor::check`]; settings of the system that it needs are journaled and written. The first
    /// reading counts from here. A sensor that is at work is told whom to look at from now on.
    ///
    /// # Errors
    /// [`Unusable`]; all is as before then.
    fn start(&mut self, whose: &Whose, now: Nanoseconds) -> Result<(), Unusable>;

    /// What was seen since the last reading.
    ///
    /// # Errors
    /// [`Unusable`], if it is not at work any more, or was not started. It may be started again.
    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable>;

    /// How many samples to take from now on. A sensor that takes none does not mind.
    ///
    /// # Errors
    /// [`Unusable`]; it goes on as before.
    fn set_sampling(&mut self, _sampling: Sampling) -> Result<(), Unusable> {
        Ok(())
    }

    /// What it has cost since it was started.
    fn cost(&self) -> Cost;

    /// Stops looking and puts back what it set. One that is not at work does not mind.
    ///
    /// # Errors
    /// [`Unusable`]: what could not be put back is in the journal still.
    fn stop(&mut self) -> Result<(), Unusable>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_way_out_and_whose_is_who_is_meant() {
        let lacking = Unusable::new(Why::Absent, "no /sys/x");
        assert_eq!(lacking.to_string(), "no /sys/x");
        assert_eq!(lacking.but("load y").to_string(), "no /sys/x; load y");
        assert!(Whose::Machine.has(Process(1)) && !Whose::Processes([].into()).has(Process(1)));
    }
}
