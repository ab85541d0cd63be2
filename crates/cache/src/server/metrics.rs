//! Figures as Prometheus reads them: what `stats` tells, each with its unit of meaning, and tiers as labels.

use core::fmt::Write as _;

use super::shared::Shared;
use crate::proto::{COUNTED, Host as _};

/// What stands for how things are now; what else the server tells of itself only grows.
const GAUGES: [(&str, &str); 7] = [
    ("uptime", "Seconds since the server started"),
    ("max_connections", "Connections that may be open"),
    ("curr_connections", "Connections that are open"),
    ("connection_structures", "Connections that are open"),
    ("read_buf_bytes", "Bytes that connections hold for what is half sent or not taken"),
    ("accepting_conns", "Whether connections are accepted"),
    ("threads", "Threads that serve connections"),
];
const GROWING: [(&str, &str); 7] = [
    ("rusage_user", "Seconds of CPU time in user mode"),
    ("rusage_system", "Seconds of CPU time in the kernel"),
    ("total_connections", "Connections ever accepted"),
    ("rejected_connections", "Connections refused, as too many were open"),
    ("listen_disabled_num", "Times that accepting was paused"),
    ("time_in_listen_disabled_us", "Microseconds that accepting was paused"),
    ("accept_errors", "Connections that could not be accepted"),
];
const STORED_GROWING: [&str; 8] = [
    "total_items",
    "evictions",
    "demoted",
    "promoted",
    "reclaimed",
    "expired_unfetched",
    "crawler_reclaimed",
    "crawler_items_checked",
];

fn push(out: &mut String, name: &str, (what, kind): (&str, &str), value: &dyn core::fmt::Display) {
    let end = if kind == "counter" { "_total" } else { "" };
    // Writing into a string does not fail.
    let _ = write!(
        out,
        "# HELP nearfar_cache_{name}{end} {what}.\n# TYPE nearfar_cache_{name}{end} {kind}\n\
         nearfar_cache_{name}{end} {value}\n"
    );
}

/// The number in `tier_<number>_<name>`, and the name.
fn tier(name: &str) -> Option<(u32, &str)> {
    let (number, name) = name.strip_prefix("tier_")?.split_once('_')?;
    Some((number.parse().ok()?, name))
}

/// All figures of a server.
pub(super) fn text(shared: &Shared) -> String {
    let mut out = String::new();
    super::shared::Teller(std::sync::Arc::clone(&shared.state)).stats(&mut |name, value| {
        let named = |list: &[(&str, &'static str)]| {
            list.iter().find(|(one, _)| *one == name).map(|(_, what)| *what)
        };
        if let Some(what) = named(&GAUGES) {
            push(&mut out, name, (what, "gauge"), value);
        } else if let Some(what) = named(&GROWING) {
            push(&mut out, name, (what, "counter"), value);
        }
    });
    for ((name, what), value) in COUNTED.iter().zip(shared.service.counted()) {
        push(&mut out, name, (what, "counter"), &value);
    }
    let mut tiers: Vec<(String, u32, u64)> = Vec::new();
    shared.service.stored(&*shared.store, &mut |name, value| match tier(name) {
        Some((number, name)) => tiers.push((name.to_owned(), number, value)),
        None => push(&mut out, name, ("As the store tells", kind(name)), &value),
    });
    // All samples of one name belong together.
    tiers.sort();
    let mut before = None;
    for (name, number, value) in &tiers {
        let kind = kind(name);
        let end = if kind == "counter" { "_total" } else { "" };
        if before != Some(name) {
            let _ = writeln!(out, "# TYPE nearfar_cache_tier_{name}{end} {kind}");
        }
        let _ = writeln!(out, "nearfar_cache_tier_{name}{end}{{tier=\"{number}\"}} {value}");
        before = Some(name);
    }
    out
}

fn kind(name: &str) -> &'static str {
    if STORED_GROWING.contains(&name) { "counter" } else { "gauge" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_a_label() {
        assert_eq!(tier("tier_3_limit_bytes"), Some((3, "limit_bytes")));
        assert_eq!(tier("tier_x_items"), None);
        assert_eq!(tier("evictions"), None);
    }
}
