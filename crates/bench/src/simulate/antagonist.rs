//! Traffic of other programs on a node, by its bandwidth: `NODE=GBPS` or `NODE=PERCENT%`.
//!
//! The model is closed: other programs have a number of outstanding lines, too. The number is chosen so that they read
//! the given bandwidth while the machine is idle otherwise; beside the workload they get less, as real programs do.

use std::str::FromStr;

use anyhow::bail;
use nearfar_sim::machine::Machine;
use nearfar_sim::workload::Antagonist;

/// Largest share of a node's read bandwidth, in per cent.
const PERCENT_MAX: f64 = 95.0;

/// Bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// In GB/s.
    Gbps(f64),
    /// In per cent of the node's read bandwidth.
    Percent(f64),
}

/// The wanted traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The node that is read.
    pub node: usize,
    /// The bandwidth.
    pub amount: Amount,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = || "allowed is NODE=GBPS or NODE=PERCENT%, such as 1=2.5 or 1=40%".to_owned();
        let (node, amount) = text.split_once('=').ok_or_else(allowed)?;
        let node = node.trim().parse().map_err(|_| allowed())?;
        let amount = amount.trim();
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| allowed());
        let amount = match amount.strip_suffix('%') {
            Some(percent) => Amount::Percent(number(percent)?),
            None => Amount::Gbps(number(amount)?),
        };
        Ok(Self { node, amount })
    }
}

impl Wanted {
    /// This traffic on a machine, by the CPUs of a row; without one by those of the node, or if it has none, of the first
    /// node with CPUs.
    ///
    /// # Errors
    /// The machine has no such node, or it can't be read at this rate.
    pub fn on(self, row: Option<usize>, machine: &Machine) -> anyhow::Result<Antagonist> {
        let Self { node, amount } = self;
        let Some(of) = machine.nodes.get(node) else {
            bail!("antagonist: node {node}: allowed is 0 to {}", machine.nodes.len() - 1);
        };
        let most = of.read_gbps * PERCENT_MAX / 100.0;
        let gbps = match amount {
            Amount::Gbps(gbps) if !(0.0..=most).contains(&gbps) => {
                bail!("antagonist on node {node}: {gbps} GB/s: allowed is 0 to {most:.2}")
            }
            Amount::Percent(percent) if !(0.0..=PERCENT_MAX).contains(&percent) => {
                bail!("antagonist on node {node}: {percent} %: allowed is 0 to {PERCENT_MAX}")
            }
            Amount::Gbps(gbps) => gbps,
            Amount::Percent(percent) => of.read_gbps * percent / 100.0,
        };
        let row = row.or_else(|| machine.row(node)).unwrap_or(0);
        let Some(antagonist) = Antagonist::reading(machine, (row, node), gbps) else {
            bail!(
                "antagonist on node {node}: {gbps} GB/s: links from there to node {} allow less",
                machine.cpu_nodes[row]
            );
        };
        Ok(antagonist)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_sim::flow::{Demand, solve};
    use nearfar_sim::machine::LINE;

    #[test]
    fn alone_it_reads_the_given_bandwidth() {
        let machine = super::super::machine(super::super::FOUR_NODES).unwrap();
        for (text, gbps) in [("1=2.5", 2.5), ("3=40%", 2.2), ("0=0", 0.0), ("2=95 %", 5.225)] {
            let of = text.parse::<Wanted>().unwrap().on(None, &machine).unwrap();
            assert_eq!(of.row, of.node);
            let mut shares = vec![0.0; 4];
            shares[of.node] = 1.0;
            let demand = Demand { row: of.row, lines: of.lines, think_ns: 0.0, reads: 1.0, shares };
            let found = solve(&machine, &[demand], &[]).served[0].per_ns * LINE;
            assert!((found - gbps).abs() < 1e-3 * gbps.max(0.1), "{text}: {found}");
        }
    }

    #[test]
    fn invalid_antagonists_are_rejected_with_the_allowed_values() {
        for text in ["1", "=2", "a=2", "1=x", "1=%", "-1=2", ""] {
            assert!(text.parse::<Wanted>().unwrap_err().contains("NODE=GBPS"), "{text}");
        }
        let machine = super::super::machine(super::super::FOUR_NODES).unwrap();
        for (text, part) in [
            ("4=1", "allowed is 0 to 3"),
            ("1=9", "allowed is 0 to 5.2"),
            ("1=-1", "allowed is 0 to 5.2"),
            ("1=NaN", "NaN GB/s"),
            ("1=96%", "allowed is 0 to 95"),
        ] {
            let refused = text.parse::<Wanted>().unwrap().on(None, &machine).unwrap_err();
            assert!(refused.to_string().contains(part), "{text}: {refused}");
        }
    }
}
