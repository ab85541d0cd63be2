//! Checks, before a program runs, whether a machine can provide the heap configured for it.

use std::format;
use std::string::{String, ToString as _};
use std::vec::Vec;

use nearfar_topology::{CpuId, Topology};

use crate::conf::{Conf, ConfError, KEYS};
use crate::spec::{Placed, Spec, SpecError};

/// Reasons why a heap can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The text is not a configuration.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// The text is not a kind, or names nodes that do not exist.
    #[error(transparent)]
    Kind(#[from] SpecError),
}

/// The spill of a bound kind without one: plain memory.
const SPILL: &str = ";spill=default";

/// The value of `NEARFAR_CONF` for a heap written as a kind ("far;limit=4g") or as a configuration ("heap=far
/// from=1m"), on a machine as seen from `cpus`. A kind that is bound to nodes, and has neither a limit nor a spill,
/// gets plain memory as its spill: else the kernel would kill the program once these nodes are full.
///
/// # Errors
/// [`HeapError`]: the text is neither, or such nodes do not exist.
pub fn check(text: &str, machine: &Topology, cpus: &[CpuId]) -> Result<String, HeapError> {
    let is_word = |word: &str| word.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key));
    let is_conf = text.split_whitespace().any(is_word);
    let conf = if is_conf { text.to_string() } else { format!("heap={text}") };
    if !is_conf && text.contains(char::is_whitespace) {
        // Spaces in a kind would separate settings.
        return Err(SpecError::Place { found: text.to_string() }.into());
    }
    let Conf { heap, .. } = conf.parse()?;
    let Some(kind) = heap else { return Ok(conf) };
    let Spec { place, spill, limit, .. } = kind.parse()?;
    let placed = place.on(machine, cpus)?;
    let is_bound = matches!(placed, Placed::Bind(_) | Placed::Weights(_));
    let is_open = spill.is_none() && limit.is_none();
    spill.map(|spill| spill.on(machine, cpus)).transpose()?;
    if !(is_bound && is_open) {
        return Ok(conf);
    }
    let with_spill = |word: &str| match word.strip_prefix("heap=") {
        Some(_) => format!("{word}{SPILL}"),
        None => word.to_string(),
    };
    Ok(conf.split_whitespace().map(with_spill).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit;

    #[test]
    fn a_bound_kind_spills_to_plain_memory_by_default() {
        let machine = testkit::dram_and_cxl();
        let checked = |text: &str| check(text, &machine, &[]).unwrap();
        for bound in ["far", "bind:0,1", "0", "capacity", "weighted:0=3,1=1", "far;huge=yes"] {
            assert_eq!(checked(bound), format!("heap={bound};spill=default"));
        }
        assert_eq!(
            checked("from=1m heap=far  mmap=off"),
            "from=1m heap=far;spill=default mmap=off"
        );
        for told in ["far;limit=4g", "far;spill=near", "far;limit=4g;spill=near"] {
            assert_eq!(checked(told), format!("heap={told}"));
        }
        for open in ["default", "prefer:far", "interleave:all", "weighted:0,1"] {
            assert_eq!(checked(open), format!("heap={open}"));
        }
    }

    #[test]
    fn a_kind_and_a_configuration_are_both_accepted() {
        let machine = testkit::dram_and_cxl();
        let checked = |text: &str| check(text, &machine, &[]).map_err(|why| why.to_string());
        assert_eq!(checked("prefer:far").unwrap(), "heap=prefer:far");
        assert_eq!(checked("weighted:0=3,1=1;limit=4g").unwrap(), "heap=weighted:0=3,1=1;limit=4g");
        assert_eq!(checked("heap=prefer:far from=64k").unwrap(), "heap=prefer:far from=64k");
        assert_eq!(checked("mmap=off").unwrap(), "mmap=off");
        for (text, named) in [
            ("", "``"),
            ("nowhere", "`nowhere`"),
            ("bind:7", "7"),
            ("heap=far;spill=hbm", "hbm"),
            ("far near", "`far near`"),
            ("heap=far colour=red", "`colour=red`"),
        ] {
            let said = checked(text).unwrap_err();
            assert!(said.contains(named), "{text}: {said}");
        }
    }
}
