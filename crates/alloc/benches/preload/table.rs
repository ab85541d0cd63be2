//! Figures as a table.

use crate::child::Used;
use crate::{Rounds, Way};

/// A figure of what was used.
type Figure = fn(&Used) -> f64;

pub(crate) fn print(name: &str, rounds: &Rounds) {
    println!("{name}: medians of rounds, and ratios within a round");
    println!("  {:<28} {:>9} {:>8}  {:>9} {:>8}", "", "CPU s", "ratio", "peak MiB", "ratio");
    let base = rounds.iter().find(|(way, _)| way.is_base);
    let base = base.map(|(_, figures)| figures.as_slice());
    for (Way { name, .. }, figures) in rounds {
        let [seconds, peak]: [Figure; 2] = [|used| used.seconds, |used| used.peak_kib / 1024.0];
        println!(
            "  {name:<28} {:>9.3} {}  {:>9.1} {}",
            median(figures.iter().map(seconds)),
            ratio(base, figures, seconds),
            median(figures.iter().map(peak)),
            ratio(base, figures, peak),
        );
    }
}

/// The median of ratios to the base, each within a round, as much of a second as the rounds have.
fn ratio(base: Option<&[Used]>, figures: &[Used], figure: Figure) -> String {
    let Some(base) = base else { return format!("{:>8}", "-") };
    let ratios = figures.iter().zip(base).map(|(one, base)| figure(one) / figure(base));
    format!("{:>6.3} x", median(ratios))
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}
