//! The last decisions of tiering and balancing, with the figures behind each, for `nearfar why`.
//!
//! They are in the state files of the running services, or the last ones of those that have ended; no privilege is needed.

use std::fmt::Write as _;
use std::time::Duration;

use nearfar_command::output::wrapped;
use nearfar_kernel::journal::Journal;
use serde::Serialize;

use crate::history::{Decision, History};
use crate::last::{self, Last};
use crate::owner::Service;
use crate::{balance, budget, tier};

/// The JSON of `nearfar.why/1`.
#[derive(Debug, Serialize)]
pub struct Report {
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
    /// How long it has run, or ran.
    running_s: u64,
    /// Since its end; null if it runs, or has left no decisions.
    ended_s_ago: Option<u64>,
    /// The oldest first.
    decisions: History,
    /// Why these are not of a running service: it does not run, has ended by itself, or its state can't be read.
    none: Option<String>,
}

/// Reads the decisions.
pub fn report() -> Report {
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
        one(
            Service::Tier,
            tiering,
            tier::state::read_ended(&dir),
            last::read(&tier::state::path(&dir)),
        ),
        one(
            Service::Balance,
            balancing,
            balance::state::read_ended(&dir),
            last::read(&balance::state::path(&dir)),
        ),
    ];
    Report { schema: "nearfar.why/1", services }
}

fn one(
    service: Service,
    found: Option<(u32, anyhow::Result<(u64, History)>)>,
    ended: Option<String>,
    last: Option<(Last, Duration)>,
) -> One {
    let name = service.word();
    let nothing = |pid, none| One {
        service: name,
        pid,
        running_s: 0,
        ended_s_ago: None,
        decisions: History::default(),
        none: Some(none),
    };
    let none = match (found, ended) {
        (Some((pid, Ok((running_s, decisions)))), _) => {
            let pid = Some(pid);
            return One { service: name, pid, running_s, ended_s_ago: None, decisions, none: None };
        }
        (Some((pid, Err(error))), _) => return nothing(Some(pid), format!("{error:#}")),
        (None, Some(why)) => format!("it has ended by itself: {why}"),
        (None, None) => format!("it does not run: nearfar {name} start"),
    };
    match last {
        Some((Last { running_s, history: decisions }, since)) => {
            One { running_s, ended_s_ago: Some(since.as_secs()), decisions, ..nothing(None, none) }
        }
        None => nothing(None, none),
    }
}

/// For terminals.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    for one in &report.services {
        let ended = one.ended_s_ago.map(|since| {
            format!("; its last decisions, in {} s until {since} s ago:", one.running_s)
        });
        match (&one.none, one.pid) {
            (Some(none), _) => {
                let none = format!("{none}{}", ended.unwrap_or_default());
                wrapped(&mut out, &format!("{}: ", one.service), &none, 2);
            }
            (None, pid) => {
                let pid = pid.unwrap_or_default();
                let _ = writeln!(out, "{} (process {pid}, for {} s)", one.service, one.running_s);
            }
        }
        for decision in one.decisions.iter().rev() {
            line(&mut out, decision, one.running_s.saturating_add(one.ended_s_ago.unwrap_or(0)));
        }
    }
    out
}

/// A decision: its age, `now_s` after the start of the service, the reason and the figures.
fn line(out: &mut String, decision: &Decision, now_s: u64) {
    let age = now_s.saturating_sub(decision.at_s);
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
    fn stopped_services_report_the_start_command_or_the_reason_of_their_end() {
        let services = vec![
            one(Service::Tier, None, None, None),
            one(Service::Balance, None, Some("no memory is left".into()), None),
            one(Service::Tier, Some((7, Err(anyhow::anyhow!("damaged")))), None, None),
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
        let told = |services| text(&Report { schema: "nearfar.why/1", services });
        let last =
            Some((Last { running_s: 50, history: history.clone() }, Duration::from_secs(100)));
        let text = told(vec![one(Service::Tier, None, None, last)]);
        let expected = "tier: it does not run: nearfar tier start; its last decisions, in 50 s until 100 s ago:\n\
                        \x20    110 s ago  0 over 1: exchanged\n";
        assert!(text.replace("\n  s", " s").starts_with(expected), "{text}");
        let text = told(vec![one(Service::Tier, Some((7, Ok((50, history)))), None, None)]);
        let expected = "tier (process 7, for 50 s)\n      10 s ago  0 over 1: exchanged\n                2 MiB\n\
                        \x20     40 s ago  0 over 1: measuring\n                1 MiB\n";
        assert_eq!(text, expected);
    }
}
