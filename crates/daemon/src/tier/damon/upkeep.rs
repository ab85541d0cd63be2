//! Background migration between scans by the kernel itself, where it can tune schemes to goals.
//!
//! The scheme of each node's nearest target down keeps memory free in that node; that of its nearest target up fills
//! the node above. The goal of a boundary is divided over its near nodes in proportion to their memory. These schemes
//! sleep during a scan: it clears accessed bits, so that all pages would look idle.

use std::collections::BTreeMap;

use nearfar_kernel::damon::KDAMONDS;
use nearfar_kernel::damon::spec::Quotas;
use nearfar_kernel::fs::Fs;
use nearfar_policy::ports::KeptBy;
use nearfar_policy::tiering::migration::RESERVE;
use nearfar_policy::tiering::{BackgroundMigration, TierUsage, scale};
use nearfar_topology::{Bytes, BytesPerSecond};

use super::super::reading::meminfo;
use super::super::schemes::{upkeep, upkeep_of};
use super::{DamonMigrator, INTERVALS, RESTING};

/// Whether the kernel has schemes that stop as soon as their goal is reached; such kernels also know a node's memory
/// as a goal. The first scheme of the first kdamond shows it.
pub(super) fn is_kept_by_the_kernel(fs: &dyn Fs) -> bool {
    fs.exists(&format!("{KDAMONDS}/0/contexts/0/schemes/0/quotas/goal_tuner")).unwrap_or(false)
}

impl DamonMigrator<'_> {
    /// Puts all schemes at turn to sleep except those of background migration.
    pub(super) fn keep_up(&mut self) -> anyhow::Result<KeptBy> {
        let kept = if self.keeps { self.kept()? } else { BTreeMap::new() };
        // With samples as rare as that, background migration was seen to do nothing (Linux 7.2).
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

    /// Goals and quotas of background migration on the nodes at turn, by kdamond and scheme.
    fn kept(&self) -> anyhow::Result<BTreeMap<(usize, usize), Quotas>> {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        let sides = self.sides_of(&all)?;
        let mut kept = BTreeMap::new();
        for (index, _) in self.at_turn() {
            let node = &self.nodes[index];
            for (at, way) in node.targets.iter().enumerate() {
                let Some(scheme) = upkeep_of(node, at) else { continue };
                let to = self.nodes.iter().position(|other| other.node == way.to);
                let Some(to) = to else { continue };
                let (near, tier) = if way.up { (to, node.tier - 1) } else { (index, node.tier) };
                // Demotion to a node without free memory would fail.
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

    /// The part of a boundary's goals that applies to node `near`.
    fn part_of(
        &self,
        of: &BackgroundMigration,
        near: usize,
        tier: usize,
        sides: &[TierUsage],
    ) -> BackgroundMigration {
        let nears = self.nodes.iter().zip(sides).filter(|(node, _)| node.tier == tier);
        let total: u64 = nears.map(|(_, side)| side.total.0).sum();
        let part = |bytes: u64| scale(bytes, sides[near].total.0, total);
        BackgroundMigration {
            free_least: Bytes(part(of.free_least.0)),
            free_most: of.free_most.map(|most| Bytes(part(most.0))),
            rate: BytesPerSecond(part(of.rate.0)),
            cpu: of.cpu,
        }
    }
}
