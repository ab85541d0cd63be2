//! A specification as texts of files below `kdamonds/N/`, in the order of writing.
//!
//! A file that creates directories (`nr_schemes` and the like) precedes their contents. A setting that older kernels
//! lack has a text that is equivalent to its absence: that text needs no file.

use super::spec::{
    Bounds, Context, Destination, Filter, FilterType, Goal, Kdamond, Quotas, Scheme, Target,
};

/// A file and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Below `kdamonds/N/`.
    pub(super) path: String,
    pub(super) text: String,
    /// The text that is equivalent to a missing file, and the first Linux release that has the file.
    pub(super) lacking: Option<(&'static str, &'static str)>,
}

impl Setting {
    /// Whether writing it creates and removes directories.
    pub(super) fn makes_directories(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.starts_with("nr_") && !name.ends_with("_permil")
    }

    /// Whether a kernel without the file behaves as this setting requires.
    pub(super) fn is_as_if_absent(&self) -> bool {
        self.lacking.is_some_and(|(text, _)| text == self.text)
    }
}

/// Arrangement of filters in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filters {
    /// One directory (until Linux 6.14).
    Together,
    /// `core_filters` and `ops_filters`.
    Layered,
}

/// All settings of `kdamond`.
pub(super) fn of(kdamond: &Kdamond, filters: Filters) -> Vec<Setting> {
    let mut list = List { base: String::new(), settings: Vec::new() };
    list.newer("refresh_ms", &kdamond.refresh_ms, ("0", "6.17"));
    list.put("contexts/nr_contexts", &1);
    list.within("contexts/0", |list| context(list, &kdamond.context, filters));
    list.settings
}

struct List {
    base: String,
    settings: Vec<Setting>,
}

impl List {
    fn add(
        &mut self,
        path: &str,
        text: &dyn ToString,
        lacking: Option<(&'static str, &'static str)>,
    ) {
        let path = format!("{}{path}", self.base);
        self.settings.push(Setting { path, text: text.to_string(), lacking });
    }

    fn put(&mut self, path: &str, text: &dyn ToString) {
        self.add(path, text, None);
    }

    fn newer(&mut self, path: &str, text: &dyn ToString, lacking: (&'static str, &'static str)) {
        self.add(path, text, Some(lacking));
    }

    fn within(&mut self, directory: &str, inside: impl FnOnce(&mut Self)) {
        let outer = self.base.len();
        self.base.push_str(directory);
        self.base.push('/');
        inside(self);
        self.base.truncate(outer);
    }

    fn bounds(&mut self, directory: &str, bounds: Bounds) {
        self.put(&format!("{directory}/min"), &bounds.min);
        self.put(&format!("{directory}/max"), &bounds.max);
    }

    /// A directory of numbered directories.
    fn each<T>(&mut self, directory: &str, items: &[T], inside: impl Fn(&mut Self, &T)) {
        self.put(&format!("{directory}/nr_{directory}"), &items.len());
        for (index, item) in items.iter().enumerate() {
            self.within(&format!("{directory}/{index}"), |list| inside(list, item));
        }
    }
}

const fn flag(on: bool) -> &'static str {
    if on { "Y" } else { "N" }
}

fn context(list: &mut List, context: &Context, filters: Filters) {
    list.put("operations", &context.operations.word());
    list.newer("addr_unit", &context.addr_unit, ("1", "6.18"));
    list.newer("pause", &flag(context.pause), ("N", "7.2"));
    list.within("monitoring_attrs", |list| {
        let intervals = &context.intervals;
        list.put("intervals/sample_us", &intervals.sample_us);
        list.put("intervals/aggr_us", &intervals.aggr_us);
        list.put("intervals/update_us", &intervals.update_us);
        let goal = context.intervals_goal;
        let lacking = ("0", "6.15");
        let part = |of: fn(&super::spec::IntervalsGoal) -> u64| goal.as_ref().map_or(0, of);
        list.within("intervals/intervals_goal", |list| {
            list.newer("access_bp", &part(|goal| goal.access_bp), lacking);
            list.newer("aggrs", &part(|goal| goal.aggrs), lacking);
            list.newer("min_sample_us", &part(|goal| goal.min_sample_us), lacking);
            list.newer("max_sample_us", &part(|goal| goal.max_sample_us), lacking);
        });
        list.bounds("nr_regions", context.nr_regions);
    });
    list.each("targets", &context.targets, target);
    list.each("schemes", &context.schemes, |list, item| scheme(list, item, filters));
}

fn target(list: &mut List, target: &Target) {
    list.put("pid_target", &target.pid.unwrap_or(0));
    list.each("regions", &target.regions, |list, range| {
        list.put("start", &range.start);
        list.put("end", &range.end);
    });
}

fn scheme(list: &mut List, scheme: &Scheme, filters: Filters) {
    list.put("action", &scheme.action.word());
    let (node, several) = match &scheme.destination {
        Destination::None => (None, &[][..]),
        Destination::Node(node) => (Some(node), &[][..]),
        Destination::Weighted(several) => (None, several.as_slice()),
    };
    list.newer("target_nid", &node.map_or("-1".into(), ToString::to_string), ("-1", "6.11"));
    list.newer("dests/nr_dests", &several.len(), ("0", "6.17"));
    for (index, (node, weight)) in several.iter().enumerate() {
        list.put(&format!("dests/{index}/id"), &node);
        list.put(&format!("dests/{index}/weight"), &weight);
    }
    list.put("apply_interval_us", &scheme.apply_interval_us);
    list.within("access_pattern", |list| {
        list.bounds("sz", scheme.access_pattern.sz);
        list.bounds("nr_accesses", scheme.access_pattern.nr_accesses);
        list.bounds("age", scheme.access_pattern.age);
    });
    list.within("quotas", |list| quotas(list, &scheme.quotas));
    list.within("watermarks", |list| {
        list.put("metric", &scheme.watermarks.metric.word());
        list.put("interval_us", &scheme.watermarks.interval_us);
        list.put("high", &scheme.watermarks.high);
        list.put("mid", &scheme.watermarks.mid);
        list.put("low", &scheme.watermarks.low);
    });
    match filters {
        Filters::Together => filter_directory(list, "filters", scheme.filters.iter()),
        Filters::Layered => {
            let core = |filter: &&Filter| filter.what.is_core();
            filter_directory(list, "core_filters", scheme.filters.iter().filter(core));
            let ops = |filter: &&Filter| !filter.what.is_core();
            filter_directory(list, "ops_filters", scheme.filters.iter().filter(ops));
        }
    }
}

fn quotas(list: &mut List, quotas: &Quotas) {
    list.put("ms", &quotas.ms);
    list.put("bytes", &quotas.bytes);
    list.put("reset_interval_ms", &quotas.reset_interval_ms);
    list.put("weights/sz_permil", &quotas.weights.sz_permil);
    list.put("weights/nr_accesses_permil", &quotas.weights.nr_accesses_permil);
    list.put("weights/age_permil", &quotas.weights.age_permil);
    list.newer("goal_tuner", &quotas.goal_tuner.word(), ("consist", "7.1"));
    list.each("goals", &quotas.goals, |list, Goal { metric, target_value, current_value }| {
        let (node, path) = metric.of();
        list.put("target_metric", &metric.word());
        list.put("target_value", &target_value);
        list.put("current_value", &current_value);
        list.newer("nid", &node.map_or(0, |node| node.0), ("0", "6.16"));
        list.newer("path", &path, ("", "6.19"));
    });
}

fn filter_directory<'a>(
    list: &mut List,
    directory: &str,
    filters: impl Iterator<Item = &'a Filter>,
) {
    let filters: Vec<&Filter> = filters.collect();
    list.put(&format!("{directory}/nr_filters"), &filters.len());
    for (index, item) in filters.into_iter().enumerate() {
        list.within(&format!("{directory}/{index}"), |list| filter(list, item));
    }
}

fn filter(list: &mut List, filter: &Filter) {
    list.put("type", &filter.what.word());
    list.put("matching", &flag(filter.matching));
    list.newer("allow", &flag(filter.allow), ("N", "6.14"));
    match &filter.what {
        FilterType::Memcg(path) => list.put("memcg_path", &path),
        FilterType::Addr(range) => {
            list.put("addr_start", &range.start);
            list.put("addr_end", &range.end);
        }
        FilterType::Target(index) => list.put("damon_target_idx", &index),
        FilterType::HugepageSize(bounds) => {
            list.put("min", &bounds.min);
            list.put("max", &bounds.max);
        }
        FilterType::Anon | FilterType::Active | FilterType::Young | FilterType::Unmapped => {}
    }
}
