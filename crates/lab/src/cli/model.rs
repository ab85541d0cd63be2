//! Options that switch parts of the timing model on or off, whatever the machine file has.

use nearfar_timing::config::tlb_size_is_possible;

use super::Failure;
use crate::machine::Machine;

/// Parts of the timing model.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// Entries of each CPU's TLB; 0: address translation costs nothing [default: from the machine file]
    #[arg(long, value_name = "N")]
    tlb: Option<u32>,
    /// Charge transfers of cache lines between CPUs, even if the machine file does not
    #[arg(long)]
    coherence: bool,
}

impl ModelArgs {
    /// The machine with these parts.
    pub(super) fn apply(&self, mut machine: Machine) -> Result<Machine, Failure> {
        if let Some(entries) = self.tlb {
            if !tlb_size_is_possible(entries) {
                let message = format!("--tlb {entries}: not 0 or a power of two from 16 to 65536");
                return Err(Failure { status: 2, message });
            }
            machine.processor.tlb_entries = entries;
        }
        machine.processor.coherence |= self.coherence;
        Ok(machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog::built_in;

    #[test]
    fn options_override_the_machine_file() {
        let processor = |tlb, coherence| {
            let machine = built_in("cxl-2tier").unwrap();
            ModelArgs { tlb, coherence }.apply(machine).map(|machine| machine.processor).ok()
        };
        let file = built_in("cxl-2tier").unwrap().processor;
        assert_eq!(processor(None, false), Some(file));
        assert!(processor(Some(0), true).is_some_and(|p| p.tlb_entries == 0 && p.coherence));
        assert_eq!(processor(Some(1000), false), None);
    }
}
