//! The text of `nearfar weights`: nodes with bandwidth and weight, then the results of each choice; as wide as the terminal.

use std::fmt::Write as _;

use nearfar_kernel::journal::{Recorded, Restored};
use nearfar_policy::TOLERANCE;
use nearfar_topology::{BasisPoints, NodeId};

use super::{Outcome, Plan, shown, to_be_set};

/// The whole text.
pub(super) fn of(plan: &Plan<'_>, applying: bool) -> String {
    let mut out = String::new();
    head(&mut out, plan);
    nodes(&mut out, plan);
    choices(&mut out, plan);
    advice(&mut out, plan, applying);
    out
}

fn head(out: &mut String, plan: &Plan<'_>) {
    let _ = match &plan.figures {
        Some(figures) => {
            let emulated = if figures.emulated == Some(true) { ", emulated" } else { "" };
            let given = if plan.is_given { " as given" } else { "" };
            writeln!(
                out,
                "Weights{given} at {} reads:writes, bandwidths from {}{emulated}",
                plan.mix, figures.source
            )
        }
        None if plan.is_given => {
            writeln!(out, "Weights as given; no bandwidths are known (nearfar probe)")
        }
        None => writeln!(out, "Weights as the kernel has them"),
    };
}

fn nodes(out: &mut String, plan: &Plan<'_>) {
    let _ = writeln!(out, "\n  node  kind     bandwidth     weight  kernel now");
    for node in plan.nodes.iter() {
        let kind = plan.machine.nodes.get(&node).map(|node| node.kind).unwrap_or_default();
        let bandwidth = plan.figures.as_ref().and_then(|figures| figures.nodes.get(&node));
        let bandwidth = bandwidth.map_or("-".into(), ToString::to_string);
        let weight = plan.weights.get(node).map_or("-".into(), |weight| weight.to_string());
        let _ = writeln!(
            out,
            "  {node:<4}  {kind:<7}  {bandwidth:<12}  {weight:<6}  {}",
            now(plan, node)
        );
    }
}

fn now(plan: &Plan<'_>, node: NodeId) -> String {
    let Some(current) = &plan.current else { return "-".into() };
    let auto = if current.auto.is_some_and(|auto| auto.is_on) { " (auto)" } else { "" };
    current.nodes.get(&node).map_or("-".into(), |weight| format!("{weight}{auto}"))
}

fn choices(out: &mut String, plan: &Plan<'_>) {
    let Some(figures) = &plan.figures else { return };
    let _ = writeln!(out, "\n  together       weights       reach         lost");
    let mut line = |name: &str, outcome: Option<Outcome>| {
        if let Some(Outcome { weights, aggregate, loss }) = outcome {
            let (weights, aggregate) = (weights.to_string(), aggregate.to_string());
            let _ =
                writeln!(out, "  {name:<13}  {weights:<12}  {aggregate:<12}  {}", percent(loss));
        }
    };
    line("these weights", plan.chosen());
    if plan.is_given {
        line("computed", figures.best().ok());
    }
    line("1:1", plan.even());
    line("kernel now", plan.kernel());
    if let Some(near) = plan.near_alone() {
        let _ = writeln!(out, "  {:<13}  {:<12}  {near}", "near alone", "");
    }
    let _ = writeln!(out, "  {:<13}  {:<12}  {}", "ideal", "", figures.ideal());
}

fn percent(loss: BasisPoints) -> String {
    let tenths = (loss.0 + 5) / 10;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn advice(out: &mut String, plan: &Plan<'_>, applying: bool) {
    let loss = plan.chosen().map(|outcome| outcome.loss);
    if let Some(loss) = loss.filter(|loss| *loss > TOLERANCE && !plan.is_given) {
        let (loss, aim) = (percent(loss), percent(TOLERANCE));
        let _ = writeln!(
            out,
            "\nNo round of 64 pages loses less than {loss} over these nodes (aim: {aim})."
        );
    }
    if plan.near_alone().is_some() {
        let _ = writeln!(
            out,
            "\nThis helps programs that need more bandwidth than near memory has; for others\nfar pages are only slower."
        );
    }
    if plan.current.is_none() {
        let _ =
            writeln!(out, "\nThis kernel lacks weighted interleave (it needs Linux 6.9 or later).");
    }
    if !plan.pending.is_empty() && !applying {
        let _ = writeln!(out, "\nSet by nearfar now; undo with: nearfar weights --restore");
    }
    if to_be_set(plan) && !applying {
        let is_sure =
            plan.is_given || plan.figures.as_ref().is_none_or(|of| of.about_links().is_none());
        let suits = plan.kernel().is_some_and(|now| now.loss <= TOLERANCE);
        let what = if suits && !plan.is_given {
            format!(
                "No need to set them: the kernel's weights lose {} or less, too.",
                percent(TOLERANCE)
            )
        } else if is_sure {
            "They are not set; as root, add --apply.".into()
        } else {
            "They are not set; measure the links first: nearfar probe".into()
        };
        let _ = writeln!(out, "\n{what}");
    }
}

/// The values that were written, or would be.
pub(super) fn written(writes: &[Recorded], dry_run: bool) -> String {
    if writes.is_empty() {
        return "Nothing to write: the weights are set already.\n".to_owned();
    }
    let mut out = String::new();
    let verb = if dry_run { "would write" } else { "wrote" };
    for Recorded { path, old, new } in writes {
        let _ = writeln!(out, "{verb} {new} to {} (was {old})", shown(path).display());
    }
    if !dry_run {
        out.push_str("Undo with: nearfar weights --restore\n");
    }
    out
}

/// The results of --restore, or of its plan.
pub(super) fn restored(report: &Restored, dry_run: bool) -> String {
    let mut out = String::new();
    let verb = if dry_run { "would restore" } else { "restored" };
    for Recorded { path, old, new } in &report.put_back {
        let _ = writeln!(out, "{verb} {old} in {} (was {new})", shown(path).display());
    }
    if report.void > 0 {
        let _ = writeln!(out, "the machine has been restarted since; earlier changes are gone");
    }
    if out.is_empty() && report.conflicts.is_empty() {
        out.push_str("nothing to restore\n");
    }
    out
}
