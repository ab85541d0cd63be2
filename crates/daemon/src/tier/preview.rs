//! `nearfar tier start --dry-run`: the effects of a start. Nothing is changed.

use std::fmt::Write as _;

use nearfar_command::machine::Machine;
use nearfar_kernel::damon::room;
use nearfar_kernel::journal::Journal;
use nearfar_topology::{BasisPoints, Bytes, NodeSet, Topology};

use super::options::EffectiveOptions;
use super::plan::{self, Plan};
use super::schemes::specifications;
use super::scope::Scope;
use super::service::{damon_stat, held};
use crate::settings;

/// Lines on the plan, and on a live machine also on the scope and the settings.
///
/// # Errors
/// The reasons for which a start would be refused, except for privileges.
pub fn preview(machine: &Machine, effective: &EffectiveOptions) -> anyhow::Result<String> {
    let options = &effective.options;
    let machine = machine.with_kinds(options.kind.as_deref().unwrap_or_default());
    let fs = machine.open()?;
    let (topology, _) = machine.read(&*fs)?;
    let plan = plan::plan(&topology, options.limits(), options.named())?;
    plan.note_doubts(&topology);
    let mut out = lines(&plan, &topology);
    if !machine.is_live() {
        return Ok(out);
    }
    let scope = Scope::find(&*fs, options)?;
    let _ = writeln!(out, "would tier {}", scope.text());
    let (_, kdamonds) = specifications(&*fs, &plan, scope.group())?;
    let journal = Journal::new(Journal::default_dir(), &*fs, "/");
    let room = room::planned(&journal, &*fs, kdamonds.len(), damon_stat(options));
    let changes = room.map_err(held)?;
    let keep = options.keep_numa_balancing == Some(true);
    let balancing = settings::numa_balancing_off(&*fs, keep)?;
    Ok(out + &settings::would_set(&*fs, changes.into_iter().chain(balancing))?)
}

/// A line for each boundary.
fn lines(plan: &Plan, machine: &Topology) -> String {
    let mut out = String::new();
    for (boundary, tiers) in plan.boundaries.iter().zip(plan.tiers.windows(2)) {
        let side = |nodes: &NodeSet| {
            let of = nodes.iter().filter_map(|id| machine.nodes.get(&id));
            let (size, kinds) = of.fold((0_u64, Vec::new()), |(size, mut kinds), node| {
                let kind = node.kind.to_string();
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
                (size.saturating_add(node.size.0), kinds)
            });
            format!("node {nodes} ({}, {})", kinds.join(" and "), Bytes(size))
        };
        let goals = &boundary.goals;
        let percent = |share: BasisPoints| match share.0 % 100 {
            0 => format!("{} %", share.0 / 100),
            rest => format!("{}.{} %", share.0 / 100, rest / 10),
        };
        let _ = writeln!(
            out,
            "would promote from {} to {}, and demote: migration at most {}/s, {} of near memory kept free, {} of a CPU",
            side(&tiers[1]),
            side(&tiers[0]),
            Bytes(goals.traffic.0),
            percent(goals.headroom),
            percent(goals.cpu)
        );
    }
    out
}
