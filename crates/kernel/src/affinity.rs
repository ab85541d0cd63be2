//! CPU affinity of threads. Children inherit it and exec keeps it, as with the memory policy.

use std::io;

use nearfar_topology::CpuId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AffinityError {
    /// A number above the maximum of the call.
    #[error("CPU {cpu} is out of range; CPUs are 0 to {}", CpuSet::MAX_CPU - 1)]
    TooLarge {
        /// The CPU.
        cpu: CpuId,
    },
    /// The kernel refused.
    #[error(
        "can't run on CPUs {cpus}: sched_setaffinity failed: {source}; Cpus_allowed_list in /proc/self/status says \
         which this process may use"
    )]
    Refused {
        /// The CPUs, in words.
        cpus: String,
        /// The errno.
        source: io::Error,
    },
    /// The current CPUs could not be read.
    #[error("can't read the CPU affinity: {0}")]
    Get(io::Error),
}

/// Restricts the calling thread, and its children, to `cpus`.
///
/// # Errors
/// [`AffinityError`]; the affinity is unchanged.
pub fn set(cpus: &[CpuId]) -> Result<(), AffinityError> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        let index = usize::try_from(cpu.0).ok().filter(|index| *index < CpuSet::MAX_CPU);
        set.set(index.ok_or(AffinityError::TooLarge { cpu: *cpu })?);
    }
    sched_setaffinity(None, &set).map_err(|errno| {
        let cpus: Vec<String> = cpus.iter().map(CpuId::to_string).collect();
        AffinityError::Refused { cpus: cpus.join(","), source: errno.into() }
    })
}

/// The CPUs the calling thread may run on, in order.
///
/// # Errors
/// [`AffinityError::Get`].
pub fn get() -> Result<Vec<CpuId>, AffinityError> {
    let set = sched_getaffinity(None).map_err(|errno| AffinityError::Get(errno.into()))?;
    let ids = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
    Ok(ids.filter_map(|cpu| u32::try_from(cpu).ok().map(CpuId)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_affinity_restricts_the_thread_to_the_given_cpus() {
        let first = get().unwrap()[0];
        let inside = std::thread::spawn(move || {
            set(&[first]).unwrap();
            get().unwrap()
        });
        assert_eq!(inside.join().unwrap(), [first]);
    }

    #[test]
    fn cpus_that_are_not_there_are_refused_by_name() {
        let error = set(&[CpuId(u32::MAX)]).unwrap_err().to_string();
        assert!(error.contains("CPU 4294967295"), "{error}");
        let error = set(&[CpuId(1023)]).unwrap_err().to_string();
        assert!(error.contains("1023") && error.contains("Cpus_allowed_list"), "{error}");
        assert!(set(&[]).is_err(), "no CPU at all is no place to run");
    }
}
