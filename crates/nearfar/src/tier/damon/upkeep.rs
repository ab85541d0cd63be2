//! Upkeep between looks by the kernel itself, where it can tune schemes to goals: who keeps up what.
//!
//! Each node's scheme for its nearest way down keeps room in that node, and the one for its nearest way up fills the node
//! above. What a boundary is to have is shared by its near nodes as their memory is. During a look these schemes sleep: it
//! has pages forgotten, and all would look unused.

use std::collections::BTreeMap;

use nearfar_control::tiering::KeptBy;
use nearfar_kernel::damon::KDAMONDS;
use nearfar_kernel::damon::spec::Quotas;
use nearfar_kernel::fs::Fs;
use nearfar_policy::tiering::{Side, Upkeep};
use nearfar_topology::{Bytes, BytesPerSecond};

use super::super::node::scale;
use super::super::reading::meminfo;
use super::super::schemes::{upkeep, upkeep_of};
use super::{Damon, INTERVALS, RESERVE, RESTING};

/// Whether the kernel has schemes that stop as soon as their goal is reached; kernels that do know a node's memory as a goal.
/// Shown by the first kdamond's first scheme.
pub(super) fn is_kept_by_the_kernel(fs: &dyn Fs) -> bool {
    fs.exists(&format!("{KDAMONDS}/0/contexts/0/schemes/0/quotas/goal_tuner")).unwrap_or(false)
}

impl Damon<'_> {
    /// Has all schemes at turn sleep but those of upkeep.
    pub(super) fn keep_up(&mut self) -> anyhow::Result<KeptBy> {
        let kept = if self.keeps { self.kept()? } else { BTreeMap::new() };
        // Schemes that keep something up were seen not to, where samples are that rare (Linux 7.2).
        let intervals = if self.keeps { INTERVALS } else { RESTING };
        for (index, _) in self.at_turn() {
            self.wake_at(index, intervals, |at, scheme| {
                let Some(quotas) = kept.get(&(index, at)) else { return false };
                scheme.quotas.clone_from(quotas);
                true
            })?;
        }
        Ok(if self.keeps { KeptBy::Machine } else { KeptBy::Loop })
    }

    /// What schemes are to keep, of nodes at turn, by kdamond and scheme.
    fn kept(&self) -> anyhow::Result<BTreeMap<(usize, usize), Quotas>> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let sides = self.sides_of(&all)?;
        let mut kept = BTreeMap::new();
        for (index, _) in self.at_turn() {
            let node = &self.nodes[index];
            for (at, way) in node.ways.iter().enumerate() {
                let Some(scheme) = upkeep_of(node, at) else { continue };
                let to = self.nodes.iter().position(|other| other.node == way.to);
                let Some(to) = to else { continue };
                let (near, tier) = if way.up { (to, node.tier - 1) } else { (index, node.tier) };
                // Demotion to where there is no room would be tried in vain.
                if !way.up && sides[to].free.0 <= sides[to].total.0 / RESERVE {
                    continue;
                }
                let Some(asked) = self.upkeeps.get(tier) else { continue };
                let asked = self.part_of(asked, near, tier, &sides);
                let id = self.nodes[near].node;
                let quotas = upkeep(&asked, way.up, id, &meminfo(self.fs, id), sides[near].free);
                kept.extend(quotas.map(|quotas| ((index, scheme), quotas)));
            }
        }
        Ok(kept)
    }

    /// The part of what a boundary is to have that is node `near`'s.
    fn part_of(&self, of: &Upkeep, near: usize, tier: usize, sides: &[Side]) -> Upkeep {
        let nears = self.nodes.iter().zip(sides).filter(|(node, _)| node.tier == tier);
        let total: u64 = nears.map(|(_, side)| side.total.0).sum();
        let part = |bytes: u64| scale(bytes, sides[near].total.0, total);
        Upkeep {
            free_least: Bytes(part(of.free_least.0)),
            free_most: of.free_most.map(|most| Bytes(part(most.0))),
            rate: BytesPerSecond(part(of.rate.0)),
            cpu: of.cpu,
        }
    }
}
