//! Metrics in Prometheus's format: the figures of `stats`, named by Prometheus's rules: a unit in each name, `_total`
//! for counters, and variants (hits and misses, tiers) as labels. A sum over labels has no metric of its own.

use core::fmt::{Display, Write as _};

use super::shared::{Shared, Teller};
use crate::proto::{COUNTED, Host as _};

/// A figure of `stats`, and its metric: name, labels, description. Without a name: it is the sum of others, or not a
/// metric.
type Row = (&'static str, &'static str, &'static str, &'static str);

const CONNECTIONS_CLOSED: &str = "Connections closed by the server";
const KEYS: &str = "Keys requested";
const REFUSED: &str = "Values refused";
const CPU: &str = "CPU time of the process";
const TLS_ERRORS: &str = "TLS connections that failed";
const EXPIRED: &str = "Expired items freed";
const REGIONS: &str = "Regions of the disk";

const ROWS: &[Row] = &[
    ("pid", "", "", ""),
    ("uptime", "uptime_seconds", "", "Time since the server started"),
    ("rusage_user", "cpu_seconds_total", "mode=\"user\"", CPU),
    ("rusage_system", "cpu_seconds_total", "mode=\"system\"", CPU),
    ("threads", "threads", "", "Threads that serve connections"),
    ("max_connections", "connections_limit", "", "Maximum number of connections"),
    ("curr_connections", "connections", "", "Connections that are open"),
    ("connection_structures", "", "", ""),
    ("total_connections", "connections_accepted_total", "", "Connections accepted"),
    ("rejected_connections", "connections_rejected_total", "", "Connections above the limit"),
    ("accepting_conns", "accepting", "", "Whether connections are accepted"),
    ("accept_errors", "accept_errors_total", "", "Connections that could not be accepted"),
    ("listen_disabled_num", "accept_pauses_total", "", "Times that accepting was paused"),
    (MICROSECONDS, "accept_paused_seconds_total", "", "Time that accepting was paused"),
    ("idle_kicks", "connections_closed_total", "reason=\"idle\"", CONNECTIONS_CLOSED),
    ("slow_kicks", "connections_closed_total", "reason=\"stalled\"", CONNECTIONS_CLOSED),
    ("read_buf_oom", "connections_closed_total", "reason=\"buffers\"", CONNECTIONS_CLOSED),
    ("binary_refused", "connections_closed_total", "reason=\"binary\"", CONNECTIONS_CLOSED),
    ("ssl_handshake_errors", "tls_errors_total", "stage=\"handshake\"", TLS_ERRORS),
    ("ssl_proto_errors", "tls_errors_total", "stage=\"protocol\"", TLS_ERRORS),
    ("conn_yields", "yields_total", "", "Turns of connections that ended by -R"),
    ("read_buf_bytes", "buffer_bytes", "", "Memory for partial requests and unsent replies"),
    ("bytes_read", "received_bytes_total", "", "Bytes received from clients"),
    ("bytes_written", "sent_bytes_total", "", "Bytes sent to clients"),
    ("cmd_get", "", "", ""),
    ("cmd_touch", "", "", ""),
    ("cmd_set", "stores_total", "", "Storage commands with a value, stored or not"),
    ("cmd_flush", "flushes_total", "", "flush_all commands"),
    ("cmd_meta", "meta_commands_total", "", "Meta commands"),
    ("get_hits", "keys_total", "command=\"get\",result=\"hit\"", KEYS),
    ("get_misses", "keys_total", "command=\"get\",result=\"miss\"", KEYS),
    ("touch_hits", "keys_total", "command=\"touch\",result=\"hit\"", KEYS),
    ("touch_misses", "keys_total", "command=\"touch\",result=\"miss\"", KEYS),
    ("delete_hits", "keys_total", "command=\"delete\",result=\"hit\"", KEYS),
    ("delete_misses", "keys_total", "command=\"delete\",result=\"miss\"", KEYS),
    ("incr_hits", "keys_total", "command=\"incr\",result=\"hit\"", KEYS),
    ("incr_misses", "keys_total", "command=\"incr\",result=\"miss\"", KEYS),
    ("decr_hits", "keys_total", "command=\"decr\",result=\"hit\"", KEYS),
    ("decr_misses", "keys_total", "command=\"decr\",result=\"miss\"", KEYS),
    ("cas_hits", "keys_total", "command=\"cas\",result=\"hit\"", KEYS),
    ("cas_misses", "keys_total", "command=\"cas\",result=\"miss\"", KEYS),
    ("cas_badval", "keys_total", "command=\"cas\",result=\"conflict\"", KEYS),
    ("store_too_large", "stores_refused_total", "reason=\"too_large\"", REFUSED),
    ("store_no_memory", "stores_refused_total", "reason=\"no_memory\"", REFUSED),
    ("bytes", "", "", ""),
    ("curr_items", "", "", ""),
    ("limit_maxbytes", "", "", ""),
    ("evictions", "", "", ""),
    ("total_items", "stored_items_total", "", "Items stored"),
    ("index_crowded", "index_crowded_total", "", "Items evicted because the index was full"),
    ("reclaimed", "expired_items_total", "found=\"by_demand\"", EXPIRED),
    ("crawler_reclaimed", "expired_items_total", "found=\"by_scan\"", EXPIRED),
    ("expired_unfetched", "expired_unread_items_total", "", "Expired items that were never read"),
    ("evicted_unfetched", "evicted_unread_items_total", "", "Evicted items that were never read"),
    ("crawler_items_checked", "scanned_slots_total", "", "Slots scanned for expired items"),
    ("tier_bytes", "tier_used_bytes", "", "Memory or disk in use"),
    ("tier_limit_bytes", "tier_limit_bytes", "", "Size of the tier"),
    ("tier_items", "tier_items", "", "Items in the tier"),
    ("tier_demoted", "tier_demoted_items_total", "", "Items moved to the next slower tier"),
    (
        "tier_promoted",
        "tier_promoted_items_total",
        "",
        "Items moved to this tier from a slower one; for the disk, from it to memory",
    ),
    ("tier_evictions", "tier_evicted_items_total", "", "Items evicted"),
    (
        "tier_slabs_dealt",
        "tier_slabs_reassigned_total",
        "",
        "Slabs reassigned to another size class",
    ),
    ("disk_written", "disk_written_items_total", "", "Items written to disk"),
    ("disk_recovered", "disk_recovered_items", "", "Items found when the disk was opened"),
    ("disk_regions_total", "", "", ""),
    ("disk_regions_free", "disk_regions", "state=\"free\"", REGIONS),
    ("disk_regions_used", "disk_regions", "state=\"used\"", REGIONS),
    ("disk_regions_retired", "disk_regions", "state=\"retired\"", REGIONS),
    ("disk_small_waiting_bytes", "disk_small_waiting_bytes", "", "Small objects not yet written"),
    ("disk_sets_retired", "disk_sets_retired", "", "Sets no longer used because of errors"),
    ("disk_budget_left", "disk_budget_left_bytes", "", "Bytes that may be written now"),
    ("disk_table_bytes", "disk_table_bytes", "", "Memory for tables and filters"),
];
const MICROSECONDS: &str = "time_in_listen_disabled_us";

/// One line: the metric's name, its description, its labels, its value.
type Sample = (String, &'static str, String, String);

/// The number in `tier_<number>_<name>`, and the name.
fn tier(name: &str) -> Option<(u32, &str)> {
    let (number, name) = name.strip_prefix("tier_")?.split_once('_')?;
    Some((number.parse().ok()?, name))
}

/// The sample of a figure. One without a row is a counter of the disk.
fn sample(stat: &str, value: &dyn Display) -> Option<Sample> {
    let (stat, labels) = match tier(stat) {
        Some((number, name)) => (format!("tier_{name}"), format!("tier=\"{number}\"")),
        None => (stat.to_owned(), String::new()),
    };
    let Some((_, name, own, what)) = ROWS.iter().find(|(one, ..)| *one == stat) else {
        return Some((format!("{stat}_total"), "Counted by the store", labels, value.to_string()));
    };
    let value = match stat.as_str() {
        MICROSECONDS => (value.to_string().parse().unwrap_or(0.0) / 1e6).to_string(),
        _ => value.to_string(),
    };
    let labels = if labels.is_empty() { (*own).to_owned() } else { labels };
    (!name.is_empty()).then(|| ((*name).to_owned(), *what, labels, value))
}

/// All figures of a server.
pub(super) fn text(shared: &Shared) -> String {
    let build = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let mut samples: Vec<Sample> =
        vec![("build_info".to_owned(), "The server's version", build, "1".to_owned())];
    let mut add = |stat: &str, value: &dyn Display| samples.extend(sample(stat, value));
    Teller(std::sync::Arc::clone(&shared.state)).stats(&mut add);
    for ((stat, _), value) in COUNTED.iter().zip(shared.service.counted()) {
        add(stat, &value);
    }
    shared.service.stored(&*shared.store, &mut |stat, value| add(stat, &value));
    // All samples of one name belong together.
    samples.sort();
    let (mut out, mut before) = (String::new(), String::new());
    for (name, what, labels, value) in samples {
        if before != name {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            // Writing into a string does not fail.
            let _ = write!(
                out,
                "# HELP nearfar_cache_{name} {what}.\n# TYPE nearfar_cache_{name} {kind}\n"
            );
            before.clone_from(&name);
        }
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "nearfar_cache_{name}{labels} {value}");
    }
    out + &shared.state.latencies.text("nearfar_cache_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::latency::{ABOUT, NAME};

    #[test]
    fn a_tier_is_a_label() {
        assert_eq!(tier("tier_3_limit_bytes"), Some((3, "limit_bytes")));
        assert_eq!(tier("tier_x_items"), None);
        assert_eq!(tier("evictions"), None);
    }

    #[test]
    fn every_counter_of_the_protocol_has_a_row() {
        for (stat, _) in COUNTED {
            assert!(ROWS.iter().any(|(one, ..)| one == stat), "{stat}: add a row for it");
        }
    }

    const HEAD: &str = "# Metrics of the cache server\n\n\
        `nearfar cache serve --metrics ADDRESS:PORT` answers `GET /metrics` in Prometheus's format\n\
        ([the protocol](cache-protocol.md#metrics)). Each name below begins with `nearfar_cache_`. Most figures are those of\n\
        `stats`; metrics of tiers have the label `tier` (0 is the fastest; the disk is the last). Counters of the disk that are\n\
        not listed are named as in `stats`, with `_total`.\n\n\
        | metric | labels | type | meaning | in `stats` |\n|---|---|---|---|---|\n";

    #[test]
    fn the_page_lists_every_metric() {
        let row = |(stat, name, labels, what): &Row| {
            let is_tier = stat.starts_with("tier_");
            let stat = stat.replacen("tier_", if is_tier { "tier_N_" } else { "tier_" }, 1);
            let labels = match (is_tier, labels.is_empty()) {
                (true, _) => "`tier`".to_owned(),
                (_, true) => String::new(),
                (_, false) => format!("`{}`", labels.replace('"', "")),
            };
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            format!("| `{name}` | {labels} | {kind} | {what} | `{stat}` |\n")
        };
        let rows: String = ROWS.iter().filter(|(_, name, ..)| !name.is_empty()).map(row).collect();
        let build = "| `build_info` | `version` | gauge | The server's version | |\n";
        let histogram = format!("| `{NAME}` | `le` | histogram | {ABOUT} | |\n");
        let page = HEAD.to_owned() + build + &rows + &histogram;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cache-metrics.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), page, "UPDATE=1 writes it");
    }

    #[test]
    fn times_are_in_seconds() {
        let (name, _, _, value) = sample(MICROSECONDS, &1_500_000).unwrap();
        assert_eq!((name.as_str(), value.as_str()), ("accept_paused_seconds_total", "1.5"));
    }
}
