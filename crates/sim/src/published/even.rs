//! The traffic studies' two programs without hot pages: four steady states for any parameters, in place of hundreds of
//! draws of pages.
//!
//! Used to refit parameters without a row, and to compare the approximate solver with the exact one. Figures differ by
//! one or two per cent from the mean over draws; `Fitted::left_out` corrects each row by that factor.

use super::{How, Row, fit};
use crate::flow::{Demand, Flow, exact, solve};
use crate::machine::Machine;
use crate::metrics::imbalance;
use crate::workload::{self, PCA, STREAMCLUSTER, Shared};

/// Rows of a program, in this order; those of both programs follow each other.
const ROWS: [&str; 5] = [
    "latency, first touch",
    "latency, interleaved",
    "interconnect imbalance, first touch",
    "interconnect imbalance, interleaved",
    "gain of interleaving",
];
/// Tables of the programs.
const TABLES: [&str; 2] = ["Carrefour, streamcluster", "Carrefour, PCA"];
/// Parameters: concurrent operation, probes, link bandwidth, N and Z of each program.
const PARAMETERS: usize = 7;

/// The parameters that latencies and gains determine, and those that the imbalances of links do.
const GROUPS: [&[usize]; 2] = [&[0, 3, 4, 5, 6], &[1, 2]];

/// Whether a row is an imbalance of links.
fn is_of_links(row: usize) -> bool {
    matches!(row % ROWS.len(), 2 | 3)
}

/// Demands of each node's CPUs: under first touch, and interleaved.
fn demands(of: &Shared, machine: &Machine, (lines, think_ns): (f64, f64)) -> [Vec<Demand>; 2] {
    let rows = machine.cpu_nodes.len();
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let (other, even) = ((1.0 - of.first) / (rows - 1).max(1) as f64, 1.0 / rows as f64);
    let first: Vec<f64> = (0..rows).map(|row| if row == 0 { of.first } else { other }).collect();
    [first, vec![even; rows]].map(|touched| {
        let mut shares = vec![0.0; machine.nodes.len()];
        for (share, node) in touched.iter().zip(&machine.cpu_nodes) {
            shares[*node] += share;
        }
        let demand = |row: usize| Demand {
            row,
            lines: lines * of.lines[usize::from(row > 0)] / of.lines[0],
            think_ns,
            reads: 1.0,
            shares: shares.clone(),
        };
        (0..rows).map(demand).collect()
    })
}

fn latency(machine: &Machine, flow: &Flow) -> f64 {
    let lines: f64 = flow.served.iter().map(|of| of.per_ns).sum();
    machine.cycles(flow.served.iter().map(|of| of.per_ns * of.latency_ns).sum::<f64>() / lines)
}

fn lines(flow: &Flow) -> f64 {
    flow.served.iter().map(|of| of.per_ns).sum()
}

/// The parameters in use, for refitting.
pub(super) struct Fitted<'a> {
    machine: &'a Machine,
    start: [f64; PARAMETERS],
}

impl<'a> Fitted<'a> {
    pub(super) fn of(machine: &'a Machine) -> Self {
        let z = |of: &Shared| of.think_cycles / machine.clock_ghz;
        let start = [
            machine.concurrent_ns,
            machine.probe_lines,
            machine.links.first().map_or(0.0, |link| link.gbps),
            STREAMCLUSTER.lines[0],
            z(&STREAMCLUSTER),
            PCA.lines[0],
            z(&PCA),
        ];
        Self { machine, start }
    }

    /// All rows with these parameters; not numbers if they make no machine.
    fn rows(&self, at: &[f64]) -> Vec<f64> {
        let mut builder = (**self.machine).clone();
        (builder.concurrent_ns, builder.probe_lines) = (at[0], at[1]);
        builder.links.iter_mut().for_each(|link| link.gbps = at[2]);
        let Ok(machine) = builder.build() else { return vec![f64::NAN; 2 * ROWS.len()] };
        let mut rows = Vec::new();
        for (program, loops) in [(&STREAMCLUSTER, (at[3], at[4])), (&PCA, (at[5], at[6]))] {
            let [first, even] =
                demands(program, &machine, loops).map(|of| solve(&machine, &of, &[]));
            rows.extend([&first, &even].map(|flow| latency(&machine, flow)));
            rows.extend([&first, &even].map(|flow| imbalance(&flow.links)));
            rows.push(lines(&even) / lines(&first) - 1.0);
        }
        rows
    }

    /// Refits the parameters of each fitted row to the other rows of its group, of both programs, and notes how far the
    /// row then is off.
    pub(super) fn left_out(&self, rows: &mut [Row]) {
        let find = |(table, what): (&str, &str), rows: &[Row]| {
            rows.iter().position(|row| row.table == table && row.what == what)
        };
        let names = TABLES.iter().flat_map(|table| ROWS.iter().map(move |what| (*table, *what)));
        let Some(places) = names.map(|name| find(name, rows)).collect::<Option<Vec<_>>>() else {
            return;
        };
        let plain = self.rows(&self.start);
        let corrected = |at: &[f64]| -> Vec<f64> {
            let rows_of = places.iter().zip(self.rows(at)).zip(&plain);
            rows_of
                .map(|((place, now), plain)| {
                    now * rows[*place].model / plain / rows[*place].paper - 1.0
                })
                .collect()
        };
        let out: Vec<(usize, Option<f64>)> = (0..places.len())
            .filter(|row| rows[places[*row]].how == How::Fitted)
            .map(|row| {
                let free = GROUPS[usize::from(is_of_links(row))];
                let all = |at: &[f64]| {
                    let mut all = self.start;
                    free.iter().zip(at).for_each(|(which, value)| all[*which] = *value);
                    corrected(&all)
                };
                let without = |at: &[f64]| {
                    let errors = all(at).into_iter().enumerate();
                    let others =
                        errors.filter(|(at, _)| *at != row && is_of_links(*at) == is_of_links(row));
                    others.map(|(_, error)| error).collect()
                };
                let start: Vec<f64> = free.iter().map(|which| self.start[*which]).collect();
                (places[row], fit::fit(&start, &without).map(|found| all(&found)[row]))
            })
            .collect();
        for (place, off) in out {
            rows[place].left_out = off;
        }
    }
}

/// A latency by the approximate and by the exact solver.
#[derive(Clone, Debug, PartialEq)]
pub struct Solvers {
    /// The program.
    pub program: &'static str,
    /// The placement.
    pub placement: &'static str,
    /// Whole numbers of outstanding lines, of the first node's CPUs and of every other node's.
    pub lines: [f64; 2],
    /// Cycles by the solver in use (Schweitzer's approximation).
    pub approximate: f64,
    /// Cycles by exact mean value analysis.
    pub exact: f64,
    /// Published, in cycles.
    pub paper: f64,
}

/// Both programs and placements with lines rounded to whole numbers. None on a machine that they do not support.
#[must_use]
pub fn solvers(machine: &Machine) -> Vec<Solvers> {
    let programs =
        [("streamcluster", &STREAMCLUSTER, [1169.0, 471.0]), ("pca", &PCA, [665.0, 480.0])];
    let mut found = Vec::new();
    for (program, of, paper) in programs {
        if workload::find(program, machine).is_err() {
            continue;
        }
        let lines = of.lines.map(f64::round);
        let whole = Shared { lines, ..*of };
        let placed = demands(&whole, machine, (lines[0], of.think_cycles / machine.clock_ghz));
        for (at, demands) in placed.iter().enumerate() {
            let Ok(exact) = exact::flow(machine, demands) else { continue };
            found.push(Solvers {
                program,
                placement: ["first touch", "interleaved"][at],
                lines,
                approximate: latency(machine, &solve(machine, demands, &[])),
                exact: latency(machine, &exact),
                paper: paper[at],
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::carrefour;
    use crate::testkit::ring;

    #[test]
    fn exact_analysis_waits_less_than_the_approximation() {
        let found = solvers(&ring());
        assert_eq!(found.len(), 4);
        for of in &found {
            assert!(of.exact < of.approximate && of.exact > 0.9 * of.approximate, "{of:?}");
        }
        let pca = &found[2];
        assert_eq!(pca.lines, [10.0, 7.0]);
        assert!(
            (pca.exact - 619.0).abs() < 6.0 && (pca.approximate - 653.0).abs() < 6.0,
            "{pca:?}"
        );
    }

    #[test]
    fn a_row_is_not_predicted_if_the_others_do_not_fix_its_parameters() {
        let machine = ring();
        let mut rows = carrefour::rows(&machine).unwrap();
        let of = Fitted::of(&machine);
        // Without hot pages, figures are near the mean over draws.
        let names = TABLES.iter().flat_map(|of| ROWS.map(|what| (*of, what)));
        for (name, plain) in names.zip(of.rows(&of.start)) {
            let row = rows.iter().find(|row| (row.table, row.what.as_str()) == name).unwrap();
            assert!((plain / row.model - 1.0).abs() < 0.08, "{row:?} {plain}");
        }
        of.left_out(&mut rows);
        let out: Vec<_> = rows.iter().filter(|row| row.left_out.is_some()).collect();
        assert!(out.iter().all(|row| row.left_out.unwrap().abs() < 0.2), "{out:#?}");
        assert!(out.iter().all(|row| row.how == How::Fitted && row.left_out != Some(0.0)));
        // The other rows do not determine their parameters.
        for (table, what) in [
            ("Carrefour, PCA", "controller imbalance, first touch"),
            ("Carrefour, PCA", "local accesses, first touch"),
            // Without the gain, think time and lines grow together without bound.
            ("Carrefour, PCA", "gain of interleaving"),
            ("Carrefour, streamcluster", "controller imbalance, interleaved"),
        ] {
            let row = rows.iter().find(|row| row.table == table && row.what == what).unwrap();
            assert_eq!((row.how, row.left_out), (How::Fitted, None));
        }
    }
}
