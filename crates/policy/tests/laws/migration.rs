//! Laws of migrations: bytes go the right way, to free memory only, and never more than was decided.

use nearfar_policy::tiering::migration::{Boundary, LastScan, Migration, RESERVE, ranges};
use nearfar_policy::tiering::segments::TieredNode;
use nearfar_policy::tiering::targets::MigrationTarget;
use nearfar_policy::tiering::{Decision, Reason, TierUsage};
use nearfar_topology::{AddrRange, BasisPoints, Bytes, Nanoseconds, NodeId};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SPAN: u64 = 4096 * MIB;

/// Total MiB and the free part in per cent; and the distances to the nodes of the other tier.
type Plan = Vec<(u64, u64, u64)>;

#[derive(Clone, Debug)]
struct Scene {
    nodes: Vec<TieredNode>,
    near: Vec<(usize, TierUsage)>,
    far: Vec<(usize, TierUsage)>,
    headroom: BasisPoints,
}

impl Scene {
    fn new(near: &Plan, far: &Plan, headroom: u32) -> Self {
        let all: Vec<(bool, u64, u64, u64)> = near
            .iter()
            .map(|(total, free, used)| (true, *total, *free, *used))
            .chain(far.iter().map(|(total, free, used)| (false, *total, *free, *used)))
            .collect();
        let id = |at: usize| NodeId(u16::try_from(at).unwrap());
        let node = |(at, (is_near, _, _, used)): (usize, &(bool, u64, u64, u64))| {
            let others = all.iter().enumerate().filter(|(_, other)| other.0 != *is_near);
            let mut targets: Vec<_> = others
                .map(|(to, _)| {
                    let distance = u32::try_from(10 + (at + to) % 3).unwrap();
                    MigrationTarget::new(id(to), !is_near, distance)
                })
                .collect();
            targets.sort_by_key(|target| target.distance);
            let start = SPAN * at as u64;
            let range = AddrRange { start, end: start + SPAN };
            let mut node = TieredNode::new(id(at), usize::from(!is_near), targets, &[range]);
            for segment in node.segments_mut() {
                segment.count(100, *used);
            }
            node
        };
        let usage = |(at, (_, total, free, _)): (usize, &(bool, u64, u64, u64))| {
            (at, TierUsage { total: Bytes(total * MIB), free: Bytes(total * MIB * free / 100) })
        };
        let both: Vec<_> = all.iter().enumerate().map(usage).collect();
        Self {
            nodes: all.iter().enumerate().map(node).collect(),
            near: both[..near.len()].to_vec(),
            far: both[near.len()..].to_vec(),
            headroom: BasisPoints(headroom),
        }
    }

    fn boundary(&self) -> Boundary<'_> {
        Boundary { near: &self.near, far: &self.far, headroom: self.headroom }
    }

    /// Bytes that arrive at a node.
    fn arrives(&self, migrations: &[Migration], at: usize) -> u64 {
        let to =
            |one: &&Migration| self.nodes[one.node].targets[one.target].to == self.nodes[at].node;
        migrations.iter().filter(to).map(|one| one.bytes).sum()
    }
}

fn scenes() -> impl Strategy<Value = Scene> {
    let plan = || prop::collection::vec((1u64..4096, 0u64..=100, 0u64..=100), 1..4);
    (plan(), plan(), 0u32..2000).prop_map(|(near, far, headroom)| Scene::new(&near, &far, headroom))
}

fn sum(migrations: &[Migration]) -> u64 {
    migrations.iter().map(|one| one.bytes).sum()
}

fn decision(by_age: bool) -> Decision {
    Decision {
        promote: Bytes(64 * MIB),
        promote_window: Nanoseconds(50_000_000),
        demote: Bytes(64 * MIB),
        by_age,
        idle: Nanoseconds(200_000_000),
        period: Nanoseconds(1_000_000_000),
        reason: Reason::Exchange,
    }
}

const LAST: LastScan =
    LastScan { window: Nanoseconds(50_000_000), until_promotion: Nanoseconds(700_000_000) };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn demotions_stay_within_the_decision_and_free_far_memory(scene in scenes(), mib in 0u64..8192) {
        let demoted = scene.boundary().demotions(&scene.nodes, mib * MIB);
        prop_assert!(sum(&demoted) <= mib * MIB);
        for (at, usage) in &scene.far {
            let free = usage.free.0.saturating_sub(usage.total.0 / RESERVE);
            prop_assert!(scene.arrives(&demoted, *at) <= free, "node {at}");
        }
        for one in &demoted {
            prop_assert!(scene.near.iter().any(|(at, _)| *at == one.node));
            prop_assert!(!scene.nodes[one.node].targets[one.target].up);
        }
    }

    #[test]
    fn no_node_demotes_more_than_its_used_memory(scene in scenes(), mib in 0u64..8192) {
        let demoted = scene.boundary().demotions(&scene.nodes, mib * MIB);
        let taken: u64 = scene.near.iter().map(|(_, usage)| usage.total.0 - usage.free.0).sum();
        for (at, usage) in &scene.near {
            let given: u64 = demoted.iter().filter(|one| one.node == *at).map(|one| one.bytes).sum();
            if mib * MIB <= taken {
                prop_assert!(given <= usage.total.0 - usage.free.0 + MIB, "node {at}: {given}");
            }
        }
    }

    #[test]
    fn promotions_leave_half_of_the_headroom_free(scene in scenes(), mib in 0u64..8192) {
        let boundary = scene.boundary();
        let demoted = boundary.demotions(&scene.nodes, mib * MIB);
        let promoted = boundary.promotions(&scene.nodes, mib * MIB, &demoted);
        prop_assert!(sum(&promoted) <= mib * MIB);
        for (at, usage) in &scene.near {
            let made: u64 = demoted.iter().filter(|one| one.node == *at).map(|one| one.bytes).sum();
            let kept = usage.total.0 * u64::from(scene.headroom.0 / 2) / 10_000;
            let free = (usage.free.0 + made).saturating_sub(kept);
            prop_assert!(scene.arrives(&promoted, *at) <= free + 1, "node {at}");
        }
        for one in &promoted {
            prop_assert!(scene.far.iter().any(|(at, _)| *at == one.node));
            prop_assert!(scene.nodes[one.node].targets[one.target].up);
        }
    }

    #[test]
    fn nothing_is_promoted_from_far_nodes_without_referenced_pages(scene in scenes(), mib in 1u64..8192) {
        let promoted = scene.boundary().promotions(&scene.nodes, mib * MIB, &[]);
        for one in promoted.iter().filter(|one| one.bytes > 0) {
            prop_assert!(scene.nodes[one.node].used() > 0);
        }
    }

    #[test]
    fn demotions_never_lower_the_bytes_promoted(scene in scenes(), mib in 1u64..4096) {
        let boundary = scene.boundary();
        let demoted = boundary.demotions(&scene.nodes, mib * MIB);
        let [without, with] =
            [&[][..], &demoted].map(|after| sum(&boundary.promotions(&scene.nodes, mib * MIB, after)));
        prop_assert!(with + scene.nodes.len() as u64 >= without, "{without} {with}");
    }

    #[test]
    fn each_target_gets_a_range_of_its_own_node_or_none(scene in scenes(), by_age: bool) {
        let mut scene = scene;
        let decision = decision(by_age);
        let demoted = scene.boundary().demotions(&scene.nodes, decision.demote.0);
        let promoted = scene.boundary().promotions(&scene.nodes, decision.promote.0, &demoted);
        let sides = [(scene.near.clone(), true, demoted), (scene.far.clone(), false, promoted)];
        for (nodes, is_near, migrations) in sides {
            for (at, usage) in nodes {
                let of = migrations.iter().filter(|one| one.node == at).copied();
                let node = &mut scene.nodes[at];
                let found = ranges(node, (is_near, usage), of, &decision, LAST);
                let start = SPAN * at as u64;
                for (target, range) in found {
                    prop_assert!(target < node.targets.len());
                    prop_assert!(range.start >= start && range.end <= start + SPAN, "{range:?}");
                    prop_assert!(range.start < range.end);
                }
            }
        }
    }

    #[test]
    fn migrations_of_less_than_a_page_are_left_out(scene in scenes(), bytes in 0u64..4096) {
        let mut scene = scene;
        let usage = scene.near[0].1;
        let one = Migration { node: 0, target: 0, bytes };
        let found = ranges(&mut scene.nodes[0], (true, usage), [one].into_iter(), &decision(false), LAST);
        prop_assert!(found.is_empty());
    }
}
