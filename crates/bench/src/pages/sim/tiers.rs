//! Two tiers over time: controllers by phase of contention, and against adversarial workloads. As JSON, as text, as
//! charts.

use nearfar_report::style;
use std::fmt::Write as _;

use maud::{Markup, html};
use nearfar_sim::Policy;
use nearfar_sim::studies::adversaries::{Adversary, Stood};
use nearfar_sim::studies::tiers::{self, PHASES, Row};
use serde::Serialize;

use super::SIMULATED;
use super::page::{class, pictured};
use nearfar_command::output::wrapped;
use nearfar_report::chart::{self, Caption, Dots, Line};
use nearfar_report::document;

/// The results: JSON `nearfar.sim-tiers/2`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    simulated: bool,
    nearfar: &'static str,
    seed: u64,
    phase_seconds: Vec<u32>,
    rate_gbps: f64,
    counters: &'static str,
    rows: Vec<Shown>,
    adversaries: Vec<Against>,
}

#[derive(Debug, Serialize)]
struct Shown {
    far_ns: f64,
    phase_seconds: u32,
    policy: &'static str,
    /// Throughput over all phases, including the time until they are settled.
    whole_of_oracle: f64,
    phases: Vec<Phase>,
}

#[derive(Debug, Serialize)]
struct Phase {
    contention: f64,
    throughput_gbps: f64,
    of_oracle: f64,
    moved_bytes: u64,
    churn_gbps: f64,
    churn: f64,
}

/// A policy against an adversarial workload.
#[derive(Debug, Serialize)]
struct Against {
    adversary: String,
    far_ns: f64,
    policy: &'static str,
    of_off: f64,
    moved_gbps: f64,
    churn: f64,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct How {
    /// Seed of random numbers.
    pub seed: u64,
    /// Lengths of phases in seconds, each with rows of its own.
    pub phase_seconds: Vec<u32>,
    /// Limit of migration in GB/s.
    pub rate_gbps: f64,
    /// Available counters.
    pub counters: &'static str,
}

impl Document {
    /// The document of these rows, given by the length of phases.
    pub fn of(how: How, rows: &[(u32, Vec<Row>)]) -> Self {
        let phase = |of: &tiers::Phase| Phase {
            contention: of.contention,
            throughput_gbps: of.gbps,
            of_oracle: of.of_oracle(),
            moved_bytes: of.moved_bytes,
            churn_gbps: of.churn_gbps,
            churn: of.churn(),
        };
        let shown = |seconds: u32, row: &Row| Shown {
            far_ns: row.far_ns,
            phase_seconds: seconds,
            policy: row.policy.name(),
            whole_of_oracle: row.whole_of_oracle(),
            phases: row.phases.iter().map(phase).collect(),
        };
        let all = || rows.iter().flat_map(|(seconds, rows)| rows.iter().map(|row| (*seconds, row)));
        let order: Vec<Policy> = all().map(|(_, row)| row.policy).collect();
        let place = |policy| order.iter().position(|known| *known == policy);
        let mut sorted: Vec<(u32, &Row)> = all().collect();
        sorted.sort_by(|(_, a), (_, b)| {
            a.far_ns.total_cmp(&b.far_ns).then(place(a.policy).cmp(&place(b.policy)))
        });
        Self {
            schema: "nearfar.sim-tiers/2",
            simulated: true,
            nearfar: env!("CARGO_PKG_VERSION"),
            seed: how.seed,
            phase_seconds: how.phase_seconds,
            rate_gbps: how.rate_gbps,
            counters: how.counters,
            rows: sorted.into_iter().map(|(seconds, row)| shown(seconds, row)).collect(),
            adversaries: Vec::new(),
        }
    }

    /// Adds a policy's results against adversarial workloads.
    pub fn stood(&mut self, policy: Policy, against: &[Adversary], stood: &[Stood]) {
        let one = |(of, stood): (&Adversary, &Stood)| Against {
            adversary: of.what.clone(),
            far_ns: of.far_ns,
            policy: policy.name(),
            of_off: stood.of_off,
            moved_gbps: stood.moved_gbps,
            churn: stood.churn,
        };
        self.adversaries.extend(against.iter().zip(stood).map(one));
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::from(
            "SIMULATED two tiers, the near one contended: throughput as a share of the oracle's, once settled\n\n",
        );
        let _ = write!(out, "{:>6}  {:<12} {:>6}", "far", "contention", "phases");
        for contention in PHASES {
            let _ = write!(out, " {:>6}", format!("{contention}x"));
        }
        let _ = writeln!(out, " {:>6}  {:>9} {:>12}", "whole", "moved", "steady churn");
        for row in &self.rows {
            let seconds = format!("{} s", row.phase_seconds);
            let _ = write!(out, "{:>3} ns  {:<12} {seconds:>6}", row.far_ns, row.policy);
            for of in &row.phases {
                let _ = write!(out, " {:>6.3}", of.of_oracle);
            }
            let (whole, churn) = (row.whole_of_oracle, 100.0 * row.churn());
            let _ = writeln!(out, " {whole:>6.3}  {:>9} {churn:>10.2} %", row.moved());
        }
        wrapped(&mut out, "\n", MEANING, 0);
        if !self.adversaries.is_empty() {
            self.adversaries_text(&mut out);
        }
        wrapped(&mut out, "", SIMULATED, 0);
        out
    }

    fn adversaries_text(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n{:<66} {:>6} {:<11} {:>7} {:>9} {:>7}",
            "adversary", "far", "policy", "of off", "moved", "churn"
        );
        for of in &self.adversaries {
            let _ = writeln!(
                out,
                "{:<66} {:>3} ns {:<11} {:>7.3} {:>4.2} GB/s {:>5.2} %",
                of.adversary,
                of.far_ns,
                of.policy,
                of.of_off,
                of.moved_gbps,
                100.0 * of.churn
            );
        }
        wrapped(out, "\n", AGAINST, 0);
    }

    /// A page with charts.
    pub fn html(&self) -> String {
        let style = [style::COLORS, style::PAGE, style::CHART];
        let main = html! {
            header {
                p.brand { "nearfar sim tiers" }
                h1 { "Two tiers, the near one contended, simulated" }
                p {
                    "Throughput as a share of the oracle's, once settled. "
                    "Seed " (self.seed) ", phases of " (self.lengths()) " s."
                }
                p.note role="note" { (SIMULATED) }
            }
            section {
                ul.key { @for policy in self.policies() { li { (document::swatch(class(policy))) span { (policy) } } } }
                div.grid {
                    @for of in self.charts() { div.card { h3 { (self.title(of)) } (self.dots(of)) } }
                }
                (self.table())
                p { (MEANING) }
            }
            @if !self.adversaries.is_empty() {
                section { h2 { "What they stand up to" } (self.adversaries_table()) p { (AGAINST) } }
            }
            footer { "nearfar " (self.nearfar) " · " (self.schema) }
        };
        document::document("nearfar sim tiers", &style, &main)
    }

    /// A picture of the charts.
    pub fn svg(&self) -> String {
        let titles: Vec<String> = self.charts().iter().map(|of| self.title(*of)).collect();
        let charts: Vec<(&str, Markup)> = titles
            .iter()
            .map(String::as_str)
            .zip(self.charts().into_iter().map(|of| self.dots(of)))
            .collect();
        let policies: Vec<String> =
            self.policies().iter().map(|policy| format!("{policy} {}", colour(policy))).collect();
        let heading = "Throughput as a share of the oracle's, once settled";
        let key = policies.join(", ");
        pictured(("nearfar sim tiers", heading, &key), chart::axis_height(PHASES.len()), &charts)
    }

    /// Far latency and length of phases of each chart.
    fn charts(&self) -> Vec<(f64, u32)> {
        let mut latencies: Vec<f64> = self.rows.iter().map(|row| row.far_ns).collect();
        latencies.dedup();
        let all = |ns: f64| self.phase_seconds.iter().map(move |seconds| (ns, *seconds));
        latencies.into_iter().flat_map(all).collect()
    }

    fn title(&self, (far_ns, seconds): (f64, u32)) -> String {
        let far = format!("Far memory of {far_ns} ns");
        if self.phase_seconds.len() > 1 { format!("{far}, phases of {seconds} s") } else { far }
    }

    fn lengths(&self) -> String {
        self.phase_seconds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn policies(&self) -> Vec<&'static str> {
        let first = self.rows.first().map(|row| (row.far_ns, row.phase_seconds));
        let is_first = |row: &&Shown| Some((row.far_ns, row.phase_seconds)) == first;
        self.rows.iter().filter(is_first).map(|row| row.policy).collect()
    }

    /// A row for each phase, a mark for each policy, from 0.4 to 1 of the oracle.
    fn dots(&self, (far_ns, seconds): (f64, u32)) -> Markup {
        const FROM: f64 = 0.4;
        let at = |share: f64| (share - FROM) / (1.0 - FROM) * 0.97;
        let is_shown = |row: &&Shown| row.far_ns == far_ns && row.phase_seconds == seconds;
        let rows: Vec<&Shown> = self.rows.iter().filter(is_shown).collect();
        let dots: Vec<Dots> = PHASES
            .iter()
            .enumerate()
            .map(|(phase, contention)| {
                let share = |row: &&Shown| row.phases.get(phase).map_or(0.0, |of| of.of_oracle);
                let last = rows.last().map_or(0.0, share);
                Dots {
                    line: Line {
                        name: format!("{contention}× contention"),
                        value: format!("{last:.3}"),
                        strong: false,
                    },
                    at: rows.iter().map(|row| (class(row.policy), at(share(row)))).collect(),
                }
            })
            .collect();
        let said: Vec<String> =
            dots.iter().map(|of| format!("{}: {}", of.line.name, of.line.value)).collect();
        let title = format!(
            "Share of the oracle's throughput by contention, {}",
            self.title((far_ns, seconds))
        );
        let caption = Caption {
            id: &format!("far-{far_ns}-{seconds}"),
            title: &title,
            description: &format!(
                "{}: {}",
                rows.last().map_or("", |row| row.policy),
                said.join("; ")
            ),
        };
        let ticks: Vec<(f64, String)> =
            [0.4, 0.6, 0.8, 1.0].map(|tick| (at(tick), format!("{tick}"))).into();
        chart::dots(caption, &dots, &ticks)
    }

    fn table(&self) -> Markup {
        html! {
            div.scroll {
                table {
                    thead { tr {
                        th scope="col" { "far memory" } th scope="col" { "policy" } th scope="col" { "phases" }
                        @for contention in PHASES { th scope="col" { (contention) "×" } }
                        th scope="col" { "whole" } th scope="col" { "moved" } th scope="col" { "steady churn" }
                    } }
                    tbody {
                        @for row in &self.rows {
                            tr {
                                th scope="row" { (row.far_ns) " ns" } td { (row.policy) } td { (row.phase_seconds) " s" }
                                @for of in &row.phases { td { (format!("{:.3}", of.of_oracle)) } }
                                td { (format!("{:.3}", row.whole_of_oracle)) }
                                td { (row.moved()) } td { (format!("{:.2} %", 100.0 * row.churn())) }
                            }
                        }
                    }
                }
            }
        }
    }

    fn adversaries_table(&self) -> Markup {
        html! {
            div.scroll {
                table {
                    thead { tr {
                        @for name in ["adversary", "far memory", "policy", "of off", "moved", "churn"] {
                            th scope="col" { (name) }
                        }
                    } }
                    tbody {
                        @for of in &self.adversaries {
                            tr {
                                th scope="row" { (of.adversary) } td { (of.far_ns) " ns" } td { (of.policy) }
                                td { (format!("{:.3}", of.of_off)) } td { (format!("{:.2} GB/s", of.moved_gbps)) }
                                td { (format!("{:.2} %", 100.0 * of.churn)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Shown {
    fn moved(&self) -> String {
        let moved: u64 = self.phases.iter().map(|of| of.moved_bytes).sum();
        nearfar_topology::Bytes(moved).to_string()
    }

    /// The maximum over all phases.
    fn churn(&self) -> f64 {
        self.phases.iter().map(|of| of.churn).fold(0.0, f64::max)
    }
}

/// The name of a colour, where there is no space for a key.
fn colour(policy: &str) -> &'static str {
    match class(policy) {
        "near" => "(blue)",
        "far" | "far2" | "far3" => "(orange)",
        "auto" => "(green)",
        _ => "(grey)",
    }
}

const MEANING: &str = "first-touch fills near memory with the hottest pages and leaves them. The oracle is the best near share \
     for each phase, found by search: it knows contention and heat, is never late and moves nothing. Whole is the throughput of \
     all phases from their first second on, as a share of the oracle's. Churn is the migration \
     in the last quarter of a phase, as a share of the workload's own traffic, the maximum of all phases.";
const AGAINST: &str = "Of off: throughput over that of moving nothing, over the whole run. Churn: migration in the second \
     half of the run, as a share of the workload's own traffic.";
