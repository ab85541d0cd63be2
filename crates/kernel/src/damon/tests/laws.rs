//! Laws of sessions, for any specification on either kernel: atomic start, and a commit equivalent to a start.

use super::super::settings::{self, Filters};
use super::super::spec::*;
use super::super::*;
use crate::fake::{Damon, FakeFs};
use crate::journal::Journal;
use nearfar_topology::NodeId;
use proptest::prelude::*;

fn bounds() -> impl Strategy<Value = Bounds> {
    (0u64..9, 0u64..9).prop_map(|(min, more)| Bounds { min, max: min + more })
}

fn filter() -> impl Strategy<Value = Filter> {
    let what = prop_oneof![
        Just(FilterType::Anon),
        Just(FilterType::Young),
        Just(FilterType::Unmapped),
        "/[a-z]{0,5}".prop_map(FilterType::Memcg),
        (0u32..3).prop_map(FilterType::Target),
        bounds().prop_map(FilterType::HugepageSize),
        (0u64..9).prop_map(|start| FilterType::Addr(AddrRange { start, end: 9 })),
    ];
    // Mostly filters that both kernels accept.
    (what, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(what, matching, allow)| Filter {
        what,
        matching,
        allow,
    })
}

fn goal() -> impl Strategy<Value = Goal> {
    let metric = prop_oneof![
        3 => Just(Metric::UserInput),
        3 => Just(Metric::SomeMemPsiUs),
        1 => (0u16..3).prop_map(|node| Metric::NodeMemFreeBp(NodeId(node))),
        1 => "/[a-z]{1,5}".prop_map(|path| Metric::NodeMemcgUsedBp(NodeId(1), path)),
    ];
    (metric, 0u64..99, 0u64..99).prop_map(|(metric, target_value, current_value)| Goal {
        metric,
        target_value,
        current_value,
    })
}

fn scheme() -> impl Strategy<Value = Scheme> {
    let action = prop::sample::select(Action::ALL);
    let several = prop::collection::vec((0u16..4, 1u32..9), 1..3);
    let filters = prop::collection::vec(filter(), 0..3);
    let goals = prop::collection::vec(goal(), 0..3);
    (action, prop::option::weighted(0.2, several), filters, goals, bounds(), 0u64..99).prop_map(
        |(action, several, filters, goals, age, bytes)| {
            let several = several.map(|several| {
                several.into_iter().map(|(node, weight)| (NodeId(node), weight)).collect()
            });
            let destination = match action {
                Action::MigrateHot | Action::MigrateCold => {
                    several.map_or(Destination::Node(NodeId(1)), Destination::Weighted)
                }
                _ => Destination::None,
            };
            let quotas = Quotas { bytes, goals, ..Quotas::default() };
            let access_pattern = AccessPattern { age, ..AccessPattern::default() };
            Scheme { destination, filters, quotas, access_pattern, ..Scheme::new(action) }
        },
    )
}

fn kdamond() -> impl Strategy<Value = Kdamond> {
    let schemes = prop::collection::vec(scheme(), 0..3);
    (schemes, 1u64..4, 1u64..99, prop::bool::weighted(0.1)).prop_map(
        |(schemes, regions, sample_us, pause)| {
            let range = |n| AddrRange { start: n * 8192, end: n * 8192 + 4096 };
            let several = |scheme: &Scheme| matches!(scheme.destination, Destination::Weighted(_));
            let mut kdamond = match schemes.iter().any(several) {
                true => Kdamond::process(1),
                false => Kdamond::physical(&(0..regions).map(range).collect::<Vec<_>>()),
            };
            kdamond.context.schemes = schemes;
            kdamond.context.intervals.sample_us = sample_us;
            kdamond.context.pause = pause;
            kdamond
        },
    )
}

/// Asserts that every file has the text that `kdamond` requires.
fn stands(
    fs: &FakeFs,
    index: usize,
    kernel: Damon,
    kdamond: &Kdamond,
) -> Result<(), TestCaseError> {
    let filters = if kernel == Damon::Linux6_12 { Filters::Together } else { Filters::Layered };
    for setting in settings::of(kdamond, filters) {
        let reads = fs.value(&kdamond_path(index, &setting.path));
        let absent = reads.is_none() && setting.is_as_if_absent();
        prop_assert!(absent || reads.as_ref() == Some(&setting.text), "{:?}: {:?}", setting, reads);
    }
    Ok(())
}

/// Each case syncs a journal to disk many times.
fn fewer() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 8, ..usual }
}

proptest! {
    #![proptest_config(fewer())]

    #[test]
    fn sessions_start_atomically_and_a_commit_equals_a_fresh_start(
        first in prop::collection::vec(kdamond(), 1..3),
        then in kdamond(),
        kernel in prop::sample::select(vec![Damon::Linux6_12, Damon::Linux7_2, Damon::WithoutFilters]),
    ) {
        let (dir, fs) = (tempfile::tempdir().unwrap(), FakeFs::damon(kernel));
        let (before, journal) = (fs.tree(), Journal::new(dir.path().join("journal"), &fs, "/"));
        match Session::start(&fs, &journal, &first, DamonStat::Pause) {
            Err(error) => {
                let lacks = matches!(error, DamonError::Unsupported { .. } | DamonError::Refused(_));
                prop_assert!(lacks && kernel == Damon::Linux6_12, "{}", error);
            }
            Ok(mut session) => {
                for (index, kdamond) in first.iter().enumerate() {
                    stands(&fs, index, kernel, kdamond)?;
                }
                let last = first.len() - 1;
                let standing = if session.commit(last, &then).is_ok() { &then } else { &first[last] };
                prop_assert_eq!(session.spec(last), Some(standing));
                stands(&fs, last, kernel, standing)?;
                stands(&fs, 0, kernel, if last == 0 { standing } else { &first[0] })?;
                session.stop().unwrap();
            }
        }
        prop_assert_eq!(fs.tree(), before);
    }
}
