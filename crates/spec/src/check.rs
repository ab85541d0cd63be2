//! Whether a program's heap can be what is asked for on a machine, before the program runs.

use std::format;
use std::string::{String, ToString as _};

use nearfar_topology::{CpuId, Topology};

use crate::conf::{Conf, ConfError, KEYS};
use crate::spec::{Spec, SpecError};

/// Why a heap can't be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// It is not written as configurations are.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// It is not written as kinds are, or names what is not there.
    #[error(transparent)]
    Kind(#[from] SpecError),
}

/// What `NEARFAR_CONF` is to be for a heap that is written as a kind ("far;limit=4g") or as a configuration ("heap=far from=1m"),
/// on a machine as seen from `cpus`.
///
/// # Errors
/// [`HeapError`]: neither, or such nodes are not there.
pub fn check(text: &str, machine: &Topology, cpus: &[CpuId]) -> Result<String, HeapError> {
    let is_word = |word: &str| word.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key));
    let is_conf = text.split_whitespace().any(is_word);
    let conf = if is_conf { text.to_string() } else { format!("heap={text}") };
    if !is_conf && text.contains(char::is_whitespace) {
        // A kind of several words would be several settings.
        return Err(SpecError::Place { found: text.to_string() }.into());
    }
    let Conf { heap, .. } = conf.parse()?;
    if let Some(kind) = heap {
        let Spec { place, spill, .. } = kind.parse()?;
        place.on(machine, cpus)?;
        spill.map(|spill| spill.on(machine, cpus)).transpose()?;
    }
    Ok(conf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit;

    #[test]
    fn a_kind_and_a_configuration_are_both_understood() {
        let machine = testkit::dram_and_cxl();
        let checked = |text: &str| check(text, &machine, &[]).map_err(|why| why.to_string());
        assert_eq!(checked("far").unwrap(), "heap=far");
        assert_eq!(checked("weighted:0=3,1=1;limit=4g").unwrap(), "heap=weighted:0=3,1=1;limit=4g");
        assert_eq!(checked("heap=far from=64k").unwrap(), "heap=far from=64k");
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
