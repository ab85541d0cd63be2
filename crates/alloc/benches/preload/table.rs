//! Prints the results as a table.

use crate::child::Used;
use crate::{Rounds, Way};

/// Selects one figure of the resource usage.
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

/// One line per program: CPU time and memory of each configuration as ratios to the base; then the total time of all
/// programs and the geometric mean of their ratios.
pub(crate) fn print_programs(all: &[(&'static str, Rounds)]) {
    let Some((_, first)) = all.first() else { return };
    println!("programs: CPU time and peak memory as ratios within a round, medians of rounds");
    print!("  {:<22} {:>8}", "", "base s");
    first.iter().filter(|(way, _)| !way.is_base).for_each(|(way, _)| print!("  {:>26}", way.name));
    println!();
    let mut sums = vec![(0.0, 0.0); first.len()];
    for (name, rounds) in all {
        let base =
            rounds.iter().find(|(way, _)| way.is_base).map(|(_, figures)| figures.as_slice());
        let Some(base) = base else { continue };
        print!("  {name:<22} {:>8.3}", median(base.iter().map(|used| used.seconds)));
        for ((way, figures), (seconds, log)) in rounds.iter().zip(&mut sums) {
            *seconds += median(figures.iter().map(|used| used.seconds));
            let ratios = figures.iter().zip(base).map(|(one, base)| one.seconds / base.seconds);
            *log += median(ratios).ln();
            if !way.is_base {
                let [time, peak]: [Figure; 2] = [|used| used.seconds, |used| used.peak_kib];
                let (time, peak) =
                    (ratio(Some(base), figures, time), ratio(Some(base), figures, peak));
                print!("  {:>26}", format!("{} {}", time.trim(), peak.trim()));
            }
        }
        println!();
    }
    let base = first.iter().position(|(way, _)| way.is_base).unwrap_or(0);
    print!("  {:<22} {:>8.3}", "together, and mean", sums[base].0);
    for ((way, _), (seconds, log)) in first.iter().zip(&sums) {
        if !way.is_base {
            let mean = (log / all.len() as f64).exp();
            print!("  {:>26}", format!("{:.3} x {mean:.3} x", seconds / sums[base].0));
        }
    }
    println!();
}

/// The median of the ratios to the base, each within a round, over the rounds that both have.
fn ratio(base: Option<&[Used]>, figures: &[Used], figure: Figure) -> String {
    let Some(base) = base else { return format!("{:>8}", "-") };
    let ratios = figures.iter().zip(base).map(|(one, base)| figure(one) / figure(base));
    format!("{:>6.3} x", median(ratios))
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    nearfar_topology::median(figures).unwrap_or(f64::NAN)
}
