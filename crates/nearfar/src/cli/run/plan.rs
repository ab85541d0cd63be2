//! Turns arguments into a plan. All invalid requests are refused here, before anything is changed.
//!
//! A plan has the CPUs, the memory policy with its nodes, the weights to set, and messages for the user; `--dry-run` prints
//! it. With `-w auto` weights come from the nodes' bandwidths, and are set only if the kernel's present weights lose more
//! than the tolerance. Not here: carrying out the plan.

use std::fmt;

use anyhow::Context as _;
use clap::ValueEnum as _;
use nearfar_kernel::features::{Feature, Features, State, TABLE};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::mempolicy::{self, Policy};
use nearfar_kernel::watch::Placement;
use nearfar_kernel::{affinity, weights};
use nearfar_policy::{TOLERANCE, Weights, worthwhile};
use nearfar_topology::{CpuId, CpuList, NodeSet, Topology};

use super::heap::{self, Heap};
use super::{Args, Named, Weighted, cpus, resolve, tiered};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::new_file;
use nearfar_command::weighing::given::Given;
use nearfar_command::weighing::source::{self, Wanted};
use nearfar_command::weighing::{MIX, Outcome, refuse_one};
use nearfar_daemon::balance::layout;

/// The resolved plan.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) placement: Placement,
    pub(super) setting: Setting,
    /// Messages for the user, on standard error.
    pub(super) notes: Vec<String>,
    command: Vec<String>,
    /// Whether nearfar stays as parent.
    pub(super) stays: bool,
    /// The tiering of `--tier`, in words.
    tiering: Option<String>,
    /// The policy of `--balance`.
    balancing: Option<String>,
    /// The heap of `--heap`.
    pub(super) heap: Option<Heap>,
    /// The kernel's current weights of the policy's nodes.
    now: Option<Weights>,
}

/// The action on the machine's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// None: the policy does not use weights.
    None,
    /// None: the current weights suit this machine.
    Suits,
    /// Set these.
    Set(Weights),
    /// None: these are CMD's own, by migration.
    Own(Weights),
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "command  {}", self.command.join(" "))?;
        match &self.placement.cpus {
            Some(cpus) => writeln!(f, "cpus     {}", CpuList(cpus))?,
            None => writeln!(f, "cpus     as they are")?,
        }
        match &self.placement.policy {
            Some(policy) => writeln!(f, "memory   {policy}")?,
            None => writeln!(f, "memory   as it is")?,
        }
        let now = self.now.as_ref().map(Weights::to_string).unwrap_or_default();
        match &self.setting {
            Setting::None if self.now.is_some() => writeln!(f, "weights  {now}, as they are")?,
            Setting::None => {}
            Setting::Suits => writeln!(f, "weights  {now}, as the machine has them")?,
            Setting::Set(weights) => {
                let until = if self.stays { "CMD ends" } else { "nearfar weights --restore" };
                writeln!(f, "weights  set to {weights} (now {now}) until {until}")?;
            }
            Setting::Own(weights) => {
                let round = weights.round().max(1);
                let part =
                    |(_, pages)| format!("{} %", (u32::from(pages) * 100 + round / 2) / round);
                let parts = weights.iter().map(part).collect::<Vec<_>>().join(", ");
                writeln!(
                    f,
                    "weights  {weights}, CMD's own ({parts}): its private pages migrate until it ends"
                )?;
            }
        }
        if let Some(tiering) = &self.tiering {
            writeln!(f, "tiering  {tiering}")?;
        }
        if let Some(policy) = &self.balancing {
            writeln!(f, "balance  {policy}, CMD and its descendants")?;
        }
        if let Some(heap) = &self.heap {
            writeln!(f, "heap     {heap}")?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note     {note}"))
    }
}

/// The plan for `args` on `machine`.
pub(super) fn plan(
    args: &Args,
    machine: &Topology,
    features: &Features,
    fs: &dyn Fs,
) -> anyhow::Result<Plan> {
    if let (Some(mix), false) = (args.mix, args.weighted_interleave == Some(Weighted::Auto)) {
        return Err(anyhow::anyhow!(
            "--mix {mix}: only -w auto weighs nodes for a mix; add it, or leave --mix out"
        ))
        .ends_with(Exit::Usage);
    }
    if let Some(Some(file)) = &args.report {
        new_file::check([file]).context("--report").ends_with(Exit::Usage)?;
    }
    if args.balance.is_some() {
        layout(machine).context("--balance")?;
    }
    let cpus = cpus::resolve(args.cpunodebind.as_ref(), args.physcpubind.as_ref(), machine)?;
    let live = args.machine.select().is_live();
    let seen_from = match &cpus {
        Some(cpus) => cpus.clone(),
        // In a container or under taskset, near memory is relative to the allowed CPUs.
        None if live => restricted(machine, affinity::get().unwrap_or_default()),
        None => Vec::new(),
    };
    let mut plan = Plan {
        placement: Placement { cpus, policy: None },
        setting: Setting::None,
        notes: Vec::new(),
        command: args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        stays: args.report.is_some() || args.tier.is_some() || args.balance.is_some(),
        tiering: args
            .tier
            .as_ref()
            .map(|file| tiered::plan(file.as_deref(), machine))
            .transpose()?,
        balancing: args
            .balance
            .and_then(|policy| policy.to_possible_value())
            .map(|policy| policy.get_name().to_owned()),
        heap: args.heap.as_ref().map(|text| heap::plan(text, machine, &seen_from)).transpose()?,
        now: None,
    };
    let countable = live.then(mempolicy::allowed_nodes);
    let countable = countable.as_ref();
    let planner = Planner { args, machine, features, fs, cpus: &seen_from, countable };
    let policy = planner.policy(&mut plan)?;
    if let Some(policy) = policy.as_ref().filter(|_| live) {
        allowed(policy)?;
    }
    plan.placement.policy = policy;
    plan.stays |= matches!(plan.setting, Setting::Own(_));
    Ok(plan)
}

/// `cpus`, or an empty list (any CPU) if they are all of the machine's.
fn restricted(machine: &Topology, cpus: Vec<CpuId>) -> Vec<CpuId> {
    let all = machine.nodes.values().flat_map(|node| &node.cpus).all(|cpu| cpus.contains(cpu));
    if all { Vec::new() } else { cpus }
}

struct Planner<'a> {
    args: &'a Args,
    machine: &'a Topology,
    features: &'a Features,
    fs: &'a dyn Fs,
    /// The CPUs relative to which memory is near or far.
    cpus: &'a [CpuId],
    /// The nodes that relative numbers count.
    countable: Option<&'a NodeSet>,
}

impl Planner<'_> {
    /// The memory policy; for weighted interleave also the action on the weights.
    fn policy(&self, plan: &mut Plan) -> anyhow::Result<Option<Policy>> {
        let args = self.args;
        Ok(Some(if let Some(named) = &args.membind {
            Policy::Bind(self.nodes("-m", named)?)
        } else if let Some(named) = args.preferred.as_ref().or(args.preferred_many.as_ref()) {
            let option = if args.preferred.is_some() { "-p" } else { "-P" };
            let nodes = self.nodes(option, named)?;
            let first = nodes.iter().next();
            if let Some(node) = first.filter(|_| nodes.len() == 1) {
                Policy::Preferred(node)
            } else {
                self.needs(Feature::PreferredMany, option)?;
                Policy::PreferredMany(nodes)
            }
        } else if let Some(named) = &args.interleave {
            Policy::Interleave(self.nodes("-i", named)?)
        } else if let Some(weighted) = &args.weighted_interleave {
            self.weighted(weighted, plan)?
        } else if args.localalloc {
            Policy::Local
        } else {
            return Ok(None);
        }))
    }

    /// The nodes that an option names.
    fn nodes(&self, option: &str, named: &Named) -> anyhow::Result<NodeSet> {
        let nodes = match (named, &self.args.cpunodebind) {
            (Named::Nodes(nodes), _) | (Named::Same, Some(nodes)) => nodes,
            (Named::Same, None) => {
                let error = anyhow::anyhow!("{option} same: stands for the nodes of -N; add it");
                return Err(error).ends_with(Exit::Usage);
            }
        };
        resolve(option, nodes, self.machine, (self.cpus, self.countable))
    }

    fn weighted(&self, weighted: &Weighted, plan: &mut Plan) -> anyhow::Result<Policy> {
        let (option, nodes) = match weighted {
            Weighted::Auto => ("-w auto", self.machine.memory_nodes()),
            Weighted::Nodes(named) => ("-w", self.nodes("-w", named)?),
            Weighted::Own(given) => return self.own(given, plan),
        };
        let weighed = self.needs(Feature::WeightedInterleave, option).and_then(|()| {
            if *weighted == Weighted::Auto {
                return self.auto(&nodes, plan);
            }
            plan.now = weights::read(self.fs).ok().and_then(|now| now.over(nodes.iter()));
            Ok(nodes.clone())
        });
        match weighed {
            Ok(nodes) => Ok(Policy::WeightedInterleave(nodes)),
            Err(error) if self.args.fallback => {
                plan.notes.push(format!(
                    "{error:#}; falling back to 1:1 interleave over {}",
                    nodes.named()
                ));
                Ok(Policy::Interleave(nodes))
            }
            Err(error) => Err(error),
        }
    }

    /// Weights of the program's own: the machine's if they have the same proportions, else by migration.
    fn own(&self, given: &Given, plan: &mut Plan) -> anyhow::Result<Policy> {
        let own = given.resolve(self.machine, (self.cpus, self.countable))?;
        let nodes: NodeSet = own.iter().map(|(node, _)| node).collect();
        let now = weights::read(self.fs).ok().and_then(|now| now.over(nodes.iter()));
        if now.as_ref().is_some_and(|now| own.is_in_proportion_to(now)) {
            (plan.now, plan.setting) = (now, Setting::Suits);
            return Ok(Policy::WeightedInterleave(nodes));
        }
        plan.setting = Setting::Own(own);
        Ok(Policy::Interleave(nodes))
    }

    /// The nodes worth interleaving over; decides whether their weights must be set.
    fn auto(&self, nodes: &NodeSet, plan: &mut Plan) -> anyhow::Result<NodeSet> {
        let on = |cpus: &[CpuId]| -> NodeSet {
            let here = |id: &_| self.machine.nodes[id].cpus.iter().any(|cpu| cpus.contains(cpu));
            self.machine.nodes.keys().copied().filter(here).collect()
        };
        let cpu_nodes = (!self.cpus.is_empty()).then(|| on(self.cpus));
        let seen = cpu_nodes.as_ref().map(|of| source::seen_from(self.machine, nodes, of));
        let nodes = seen.as_ref().filter(|seen| seen.len() > 1).unwrap_or(nodes);
        let wanted = Wanted {
            machine: self.machine,
            nodes,
            cpu_nodes: cpu_nodes.as_ref(),
            mix: self.args.mix.unwrap_or(MIX),
        };
        refuse_one(nodes).context("-w auto")?;
        let mut figures = source::figures(None, wanted).context("-w auto")?;
        if let Some(why) = figures.about_links() {
            anyhow::bail!("-w auto: {why}");
        }
        let (best, left_out) = worthwhile(&figures.nodes, TOLERANCE).context("-w auto")?;
        plan.notes.extend(left_out.iter().map(|error| format!("-w auto: {error}: left out")));
        figures.nodes.retain(|node, _| best.get(*node).is_some());
        let current = weights::read(self.fs).context("-w auto")?;
        let now = figures.kernel(&current);
        plan.now = now.as_ref().map(|now| now.weights.clone());
        let aim = figures.outcome(best.clone()).map_or(TOLERANCE, |best| best.loss.max(TOLERANCE));
        if now.as_ref().is_some_and(|now| now.loss <= aim) {
            plan.setting = Setting::Suits;
        } else {
            self.may_set(&best, now.as_ref(), plan)?;
            plan.setting = Setting::Set(best);
        }
        Ok(figures.nodes.keys().copied().collect())
    }

    /// Checks that weights may be set: only root may, on the running system.
    fn may_set(
        &self,
        best: &Weights,
        now: Option<&Outcome>,
        plan: &mut Plan,
    ) -> anyhow::Result<()> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        if self.args.dry_run {
            plan.notes.push("-w auto: setting these weights needs root".into());
            return Ok(());
        }
        let now = now.map_or_else(
            || "the kernel has none for them".into(),
            |now| {
                format!(
                    "the machine's are {}, which lose {}.{} %",
                    now.weights,
                    now.loss.0 / 100,
                    now.loss.0 / 10 % 10
                )
            },
        );
        anyhow::bail!(
            "-w auto: this machine wants weights {best}, but {now}; weights are the machine's, and setting them needs root \
             (CAP_DAC_OVERRIDE): run `nearfar weights --apply` as root once, or use them as they are with -w all"
        )
    }

    fn needs(&self, feature: Feature, option: &str) -> anyhow::Result<()> {
        let row = TABLE.iter().find(|row| row.feature == feature);
        let (name, since) = row.map_or(("", ""), |row| (row.name, row.since));
        match self.features.state(feature) {
            State::Lacking => {
                let instead = if feature == Feature::WeightedInterleave {
                    "; --fallback interleaves 1:1 instead"
                } else {
                    "; name one node"
                };
                anyhow::bail!(
                    "{option}: this kernel lacks {name}, which came with Linux {since}{instead}"
                )
            }
            State::Present | State::Unknown(_) => Ok(()),
        }
    }
}

/// Refuses nodes outside the cpuset, which the kernel would silently drop or refuse without a reason.
fn allowed(policy: &Policy) -> anyhow::Result<()> {
    let allowed = mempolicy::allowed_nodes();
    let wanted = match policy {
        Policy::Default | Policy::Local => return Ok(()),
        Policy::Preferred(node) => [*node].into_iter().collect(),
        Policy::Bind(nodes)
        | Policy::PreferredMany(nodes)
        | Policy::Interleave(nodes)
        | Policy::WeightedInterleave(nodes) => nodes.clone(),
    };
    if let Some(node) = wanted.iter().find(|node| !allowed.contains(*node)) {
        let error = anyhow::anyhow!(
            "{policy}: node {node} is not among those this process may use ({allowed}: its cgroup's cpuset, \
             Mems_allowed_list in /proc/self/status)"
        );
        return Err(error).ends_with(Exit::Usage);
    }
    Ok(())
}
