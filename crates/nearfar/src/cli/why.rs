//! `nearfar why`: the last decisions of tiering and balancing, with the figures behind each.
//!
//! It reads the state files of the running services, and needs no privilege.

use std::fmt::Write as _;
use std::process::ExitCode;

use nearfar_command::exit::Exit;
use nearfar_command::output::{self, wrapped};
use nearfar_daemon::history::{Decision, History};
use nearfar_daemon::owner::Service;
use nearfar_daemon::{balance, budget, tier};
use nearfar_kernel::journal::Journal;
use serde::Serialize;

/// Arguments of `nearfar why`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.why/1)
    #[arg(long)]
    json: bool,
}

/// The JSON of `nearfar.why/1`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    services: Vec<One>,
}

/// A service.
#[derive(Debug, Serialize)]
struct One {
    /// `tier` or `balance`.
    service: &'static str,
    /// Its process; null if it does not run.
    pid: Option<u32>,
    running_s: u64,
    /// The oldest first.
    decisions: History,
    /// Why there are none: it does not run, has ended by itself, or its state can't be read.
    none: Option<String>,
}

/// Prints the decisions.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = Journal::default_dir();
    let budgets = Service::Tier.described(budget::state::read, |state| state.identity);
    let tiering = Service::Tier.described(tier::state::read, |state| state.identity);
    let tiering = tiering.map(|(process, state)| {
        let state = if matches!(budgets, Some((_, Ok(_)))) {
            Err(anyhow::anyhow!("it keeps cgroups within budgets: nearfar tier status"))
        } else {
            state
        };
        (process.pid, state.map(|state| (state.running_s, state.history)))
    });
    let balancing = Service::Balance.described(balance::state::read, |state| state.identity);
    let balancing = balancing
        .map(|(process, state)| (process.pid, state.map(|state| (state.running_s, state.history))));
    let services = vec![
        one(Service::Tier, tiering, tier::state::read_ended(&dir)),
        one(Service::Balance, balancing, balance::state::read_ended(&dir)),
    ];
    let report = Report { schema: "nearfar.why/1", services };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&text(&report))?;
    }
    Ok(Exit::Done.into())
}

fn one(
    service: Service,
    found: Option<(u32, anyhow::Result<(u64, History)>)>,
    ended: Option<String>,
) -> One {
    let name = service.word();
    let nothing = |pid, none| One {
        service: name,
        pid,
        running_s: 0,
        decisions: History::default(),
        none: Some(none),
    };
    match (found, ended) {
        (Some((pid, Ok((running_s, decisions)))), _) => {
            One { service: name, pid: Some(pid), running_s, decisions, none: None }
        }
        (Some((pid, Err(error))), _) => nothing(Some(pid), format!("{error:#}")),
        (None, Some(why)) => nothing(None, format!("it has ended by itself: {why}")),
        (None, None) => nothing(None, format!("it does not run: nearfar {name} start")),
    }
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    for one in &report.services {
        match (&one.none, one.pid) {
            (Some(none), _) => wrapped(&mut out, &format!("{}: ", one.service), none, 2),
            (None, pid) => {
                let pid = pid.unwrap_or_default();
                let _ = writeln!(out, "{} (process {pid}, for {} s)", one.service, one.running_s);
                for decision in one.decisions.iter().rev() {
                    line(&mut out, decision, one.running_s);
                }
            }
        }
    }
    out
}

/// A decision: its age, the reason and the figures.
fn line(out: &mut String, decision: &Decision, running_s: u64) {
    let age = running_s.saturating_sub(decision.at_s);
    let about =
        if decision.about.is_empty() { String::new() } else { format!("{}: ", decision.about) };
    let why = if decision.why.is_empty() { "starting" } else { &decision.why };
    wrapped(out, &format!("  {age:>6} s ago  "), &format!("{about}{why}"), 16);
    if !decision.figures.is_empty() {
        wrapped(out, &" ".repeat(16), &decision.figures, 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_do_not_run_say_how_they_start_or_why_they_ended() {
        let services = vec![
            one(Service::Tier, None, None),
            one(Service::Balance, None, Some("no memory is left".into())),
            one(Service::Tier, Some((7, Err(anyhow::anyhow!("damaged")))), None),
        ];
        let text = text(&Report { schema: "nearfar.why/1", services });
        for part in ["nearfar tier start", "balance: it has ended by itself: no memory", "damaged"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_newest_decision_comes_first_with_its_age_and_figures() {
        let history: History = serde_json::from_str(
            r#"[{"at_s":10,"about":"0 over 1","reason":"seeks","why":"measuring","figures":"1 MiB"},
                {"at_s":40,"about":"0 over 1","reason":"exchange","why":"exchanged","figures":"2 MiB"}]"#,
        )
        .unwrap();
        let services = vec![one(Service::Tier, Some((7, Ok((50, history)))), None)];
        let text = text(&Report { schema: "nearfar.why/1", services });
        let expected = "tier (process 7, for 50 s)\n      10 s ago  0 over 1: exchanged\n                2 MiB\n\
                        \x20     40 s ago  0 over 1: measuring\n                1 MiB\n";
        assert_eq!(text, expected);
    }
}
