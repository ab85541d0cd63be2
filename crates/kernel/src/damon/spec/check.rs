//! Checks of a specification before anything is written: settings that every kernel refuses.

use super::{
    AccessPattern, Action, Bounds, Context, Destination, Kdamond, Operations, Scheme, Target,
};

impl Kdamond {
    /// Checks for settings that every kernel refuses.
    ///
    /// # Errors
    /// The fault, as text.
    pub fn check(&self) -> Result<(), String> {
        let Context { operations, targets, nr_regions, intervals, schemes, .. } = &self.context;
        if nr_regions.min < 3 || nr_regions.max < nr_regions.min {
            let Bounds { min, max } = nr_regions;
            return Err(format!("{min} to {max} regions; it must be at least 3, and in order"));
        }
        if intervals.sample_us == 0 || intervals.aggr_us < intervals.sample_us {
            return Err(format!(
                "a sampling interval of {} µs within {} µs of aggregation; it must be shorter, and not 0",
                intervals.sample_us, intervals.aggr_us
            ));
        }
        if targets.is_empty() {
            return Err("no target to watch".into());
        }
        for target in targets {
            check_target(*operations, target)?;
        }
        schemes.iter().try_for_each(|scheme| check_scheme(*operations, scheme))
    }
}

fn check_target(operations: Operations, target: &Target) -> Result<(), String> {
    match (operations, target.pid) {
        (Operations::Paddr, Some(pid)) => {
            return Err(format!("process {pid} as a target of paddr"));
        }
        (Operations::Vaddr | Operations::Fvaddr, None) => {
            return Err(format!("a target of {} that names no process", operations.word()));
        }
        _ => {}
    }
    if target.regions.is_empty() && operations != Operations::Vaddr {
        return Err(format!("a target of {} that names no region", operations.word()));
    }
    let ordered = target.regions.windows(2).all(|pair| pair[0].end <= pair[1].start);
    if !ordered || target.regions.iter().any(|range| range.is_empty()) {
        return Err("target regions that are empty, out of order or overlap".into());
    }
    Ok(())
}

fn check_scheme(operations: Operations, scheme: &Scheme) -> Result<(), String> {
    let AccessPattern { sz, nr_accesses, age } = &scheme.access_pattern;
    let bounds = [("size", sz), ("nr_accesses", nr_accesses), ("age", age)];
    if let Some((name, bounds)) = bounds.iter().find(|(_, bounds)| bounds.max < bounds.min) {
        return Err(format!("a scheme for {name} from {} to {}", bounds.min, bounds.max));
    }
    let migrates = matches!(scheme.action, Action::MigrateHot | Action::MigrateCold);
    match &scheme.destination {
        Destination::None if migrates => {
            Err(format!("{} without a destination", scheme.action.word()))
        }
        Destination::Weighted(nodes) if nodes.iter().all(|(_, weight)| *weight == 0) => {
            Err("destinations of which none has a weight".into())
        }
        // The kernel accepts them but migrates nothing.
        Destination::Weighted(_) if operations == Operations::Paddr => {
            Err("destinations by weight for physical addresses, which have one only".into())
        }
        Destination::Node(_) | Destination::Weighted(_) if !migrates => {
            Err(format!("a destination for {}, which moves nothing", scheme.action.word()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AddrRange, Quotas};
    use super::*;
    use nearfar_topology::NodeId;

    fn physical() -> Kdamond {
        Kdamond::physical(&[AddrRange { start: 0, end: 4096 }])
    }

    fn with(scheme: Scheme) -> Result<(), String> {
        let mut kdamond = physical();
        kdamond.context.schemes.push(scheme);
        kdamond.check()
    }

    #[test]
    fn plain_specifications_are_valid() {
        assert_eq!(physical().check(), Ok(()));
        assert_eq!(Kdamond::process(1).check(), Ok(()));
        assert_eq!(with(Scheme::new(Action::Stat)), Ok(()));
        let destination = Destination::Node(NodeId(1));
        let quotas = Quotas { bytes: 1, ..Quotas::default() };
        assert_eq!(with(Scheme { destination, quotas, ..Scheme::new(Action::MigrateHot) }), Ok(()));
    }

    #[test]
    fn invalid_specifications_are_reported_with_the_reason() {
        let mut few = physical();
        few.context.nr_regions.min = 2;
        let mut hasty = physical();
        hasty.context.intervals.sample_us = hasty.context.intervals.aggr_us + 1;
        let mut everywhere = physical();
        everywhere.context.targets[0].regions.clear();
        let mut nobody = Kdamond::process(1);
        nobody.context.targets[0].pid = None;
        let range = AddrRange { start: 8192, end: 12288 };
        let backwards = Kdamond::physical(&[range, AddrRange { start: 0, end: 4096 }]);
        for (bad, says) in [
            (few, "2 to 1000 regions"),
            (hasty, "sampling"),
            (everywhere, "no region"),
            (nobody, "no process"),
            (backwards, "out of order"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let homeless = with(Scheme::new(Action::MigrateCold)).unwrap_err();
        assert!(homeless.contains("migrate_cold"), "{homeless}");
        let spread = Destination::Weighted(vec![(NodeId(0), 1), (NodeId(1), 3)]);
        let spread = Scheme { destination: spread, ..Scheme::new(Action::MigrateCold) };
        assert!(with(spread.clone()).unwrap_err().contains("physical addresses"));
        let mut process = Kdamond::process(1);
        process.context.schemes.push(spread);
        assert_eq!(process.check(), Ok(()));
        let still =
            Scheme { destination: Destination::Node(NodeId(1)), ..Scheme::new(Action::Stat) };
        assert!(with(still).unwrap_err().contains("moves nothing"));
    }
}
