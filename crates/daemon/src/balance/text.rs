//! Text output of a [`State`].

use std::fmt::Write as _;

use nearfar_topology::Bytes;

use super::state::{Effect, Eye, Metrics, Node, State};

/// Basis points as per cent.
fn percent(basis_points: u32) -> String {
    format!("{}.{} %", basis_points / 100, basis_points % 100 / 10)
}

impl State {
    /// All of it, in lines.
    pub fn text(&self) -> String {
        let mut text = format!(
            "Balancing {} by {} for {} s (process {})\n",
            self.scope,
            self.settings.policy.word(),
            self.running_s,
            self.identity.pid
        );
        if let Some(machine) = self.emulated.as_ref().map(|lab| lab["machine"].to_string()) {
            let _ = writeln!(text, "  this machine is emulated: {}", machine.trim_matches('"'));
        }
        let metrics = self.metrics.as_ref().map(Metrics::text);
        let _ = writeln!(text, "  {}", metrics.as_deref().unwrap_or("no accesses seen yet"));
        self.nodes.iter().for_each(|node| text.push_str(&node.text()));
        let decision = &self.decision;
        let gain = decision.gain_bp.map(|gain| format!(", gain {}", percent(gain)));
        let _ = writeln!(
            text,
            "  {}: {}{}",
            if decision.what.is_empty() { "starting" } else { &decision.what },
            if decision.why.is_empty() { "no decision yet" } else { &decision.why },
            gain.unwrap_or_default()
        );
        text.push_str(&self.effect.text());
        for moves in &self.moves {
            let bytes = Bytes(moves.bytes);
            let _ = writeln!(
                text,
                "  node {} to {}: {bytes} in {} pages",
                moves.from, moves.to, moves.pages
            );
        }
        let pages =
            self.pages.iter().map(|(word, pages)| format!("{} {pages}", word.replace('_', " ")));
        let pages = pages.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "  pages: {}; retried {}, waiting {}",
            if pages.is_empty() { "none requested" } else { &pages },
            self.retried,
            self.waiting
        );
        if self.splits.done.max(self.splits.failed) > 0 {
            let _ = writeln!(
                text,
                "  huge pages split: {}, not split: {}{}",
                self.splits.done,
                self.splits.failed,
                self.splits.unusable.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
            );
        }
        let is_emulated = self.emulated.is_some();
        self.sensors.iter().for_each(|eye| text.push_str(&eye.text(is_emulated)));
        for what in &self.left_alone {
            let _ = writeln!(text, "  excluded: {what}");
        }
        let _ = writeln!(
            text,
            "  CPU time {} ms, {} ms of it for sensors",
            self.cost.cpu_ms, self.cost.sensors_cpu_ms
        );
        text
    }
}

impl Eye {
    fn text(&self, is_emulated: bool) -> String {
        let failed = self.failed.as_ref().map(|why| format!("; failed: {why}"));
        format!(
            "  sensor {} ({}): {} samples, {} lost, {} without a node{}\n",
            self.name,
            if is_emulated { "emulated" } else { &self.nature },
            self.seen,
            self.lost,
            self.unplaced,
            failed.unwrap_or_default()
        )
    }
}

impl Metrics {
    fn text(&self) -> String {
        let rate = match self.accesses_per_ms {
            _ if !self.counted => "accesses sampled, not counted".into(),
            ..1000 => "less than 1 access per microsecond".into(),
            many => format!("{} accesses per microsecond", many / 1000),
        };
        let links =
            self.interconnect_imbalance_bp.map(|of| format!(", between nodes {}", percent(of)));
        format!(
            "{rate}: {} local; imbalance of controllers {}{}",
            percent(self.local_access_ratio_bp),
            percent(self.controller_imbalance_bp),
            links.unwrap_or_default()
        )
    }
}

impl Node {
    fn text(&self) -> String {
        let mut text = format!(
            "    node {}: {}{} of {} free",
            self.node,
            self.share_bp
                .map(|share| format!("serves {} of accesses, ", percent(share)))
                .unwrap_or_default(),
            Bytes(self.free_bytes),
            Bytes(self.total_bytes)
        );
        if let Some(local) = self.local_access_ratio_bp {
            let _ = write!(text, "; {} of its CPUs' accesses are local", percent(local));
        }
        if let Some(ns) = self.latency_ns.get(&self.node).or_else(|| self.latency_ns.values().min())
        {
            let _ = write!(text, "; load latency {ns} ns");
        }
        if let Some(price) = self.price_ns {
            let _ = write!(text, ", marginal cost {price} ns a cache line");
        }
        text + "\n"
    }
}

impl Effect {
    fn text(&self) -> String {
        let (Some(before), Some(after)) = (&self.before, &self.after) else { return String::new() };
        let predicted =
            self.predicted_gain_bp.map(|gain| format!("; predicted gain {}", percent(gain)));
        let came = if before.counted && before.accesses_per_ms > 0 {
            let (was, is) = (before.accesses_per_ms, after.accesses_per_ms);
            format!(", accesses {} to {} per microsecond", was / 1000, is / 1000)
        } else {
            String::new()
        };
        format!(
            "  since {} pages {}: local {} to {}, controllers' imbalance {} to {}{came}{}\n",
            self.moved_pages,
            if self.under_way { "began to migrate" } else { "migrated" },
            percent(before.local_access_ratio_bp),
            percent(after.local_access_ratio_bp),
            percent(before.controller_imbalance_bp),
            percent(after.controller_imbalance_bp),
            predicted.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_shows_the_predicted_and_the_measured_gain() {
        let of = |per_ms, imbalance| Metrics {
            counted: true,
            accesses_per_ms: per_ms,
            local_access_ratio_bp: 2_500,
            controller_imbalance_bp: imbalance,
            ..Metrics::default()
        };
        let state = State {
            scope: "the machine".into(),
            metrics: Some(of(180_000, 700)),
            effect: Effect {
                moved_pages: 300,
                predicted_gain_bp: Some(9_000),
                before: Some(of(90_000, 20_000)),
                after: Some(of(180_000, 700)),
                ..Effect::default()
            },
            pages: [("moved".into(), 300), ("target_full".into(), 2)].into(),
            emulated: Some(serde_json::json!({"machine": "numa-4node"})),
            ..State::default()
        };
        let text = state.text();
        for says in [
            "Balancing the machine by balanced",
            "emulated: numa-4node",
            "180 accesses per microsecond: 25.0 % local; imbalance of controllers 7.0 %",
            "imbalance 200.0 % to 7.0 %, accesses 90 to 180 per microsecond; predicted gain 90.0 %",
            "pages: moved 300, target full 2",
            "no decision yet",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn figures_that_are_unknown_are_not_shown_as_zero() {
        let node = Node { node: 1, total_bytes: 1 << 30, free_bytes: 1 << 20, ..Node::default() };
        let text = State { nodes: vec![node], ..State::default() }.text();
        assert!(
            text.contains("\n  no accesses seen yet\n    node 1: 1 MiB of 1 GiB free\n"),
            "{text}"
        );
    }
}
