//! Configures the program's heap from `NEARFAR_CONF` or `CXLMALLOC_CONF`, once, before `main`.
#![expect(unsafe_code, reason = "a function for the program's end")]

use std::format;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::string::{String, ToString as _};
use std::sync::OnceLock;
use std::vec::Vec;

use nearfar_kernel::environment;
use nearfar_policy::interleave::Rule;
use nearfar_spec::smdk::{self, BothFull, Smdk};

use crate::choice::{self, Heap};
use crate::conf::{Conf, ConfError, Full, Wrong};
use crate::{adapt, machine, nodes, program, stats, sys};

/// Reads `NEARFAR_CONF`, or else `CXLMALLOC_CONF`, and configures the heap. Errors are reported on stderr, once, and
/// memory stays where the system puts it.
///
/// `malloc` is the function that programs should call: if this program calls another, that is reported, too.
pub fn begin(malloc: usize) {
    // Bytes that are not UTF-8 are replaced, so that the value is reported as wrong and not treated as missing.
    let read = |name: &str| Some(environment::var(name)?.to_string_lossy().into_owned());
    let (variable, done) = match (read("NEARFAR_CONF"), read("CXLMALLOC_CONF")) {
        (Some(text), _) => ("NEARFAR_CONF", configure(&text)),
        (None, Some(text)) => ("CXLMALLOC_CONF", configure_smdk(&text)),
        (None, None) => return,
    };
    if let Err(why) = done {
        sys::say(&format!("nearfar: {variable}: {why}; memory stays where the system puts it\n"));
    }
    if choice::is_placed() && !program::calls(malloc) {
        sys::say(&format!(
            "nearfar: {variable}: this program has a malloc of its own, so its objects are not placed; {}\n",
            choice::placed_otherwise()
        ));
    }
}

fn configure(text: &str) -> Result<(), String> {
    let conf: Conf = text.parse().map_err(|why: ConfError| why.to_string())?;
    let kind = match (&conf.heap, conf.adapt) {
        // Plain memory itself, not a kind with the same placement.
        (Some(kind), _) if kind == "default" => None,
        (Some(kind), _) => Some(machine::create(kind).map_err(|why| why.to_string())?),
        (None, Some(rule)) => Some(adapt::begin(rule, None)?),
        (None, None) => None,
    };
    if let Some(kind) = kind {
        let Conf { from, mmap: mappings, full, .. } = conf;
        choice::set(Heap { kind, from, mappings, raises: false, aborts: full == Full::Abort });
    }
    if conf.wrong == Wrong::Abort && !cfg!(feature = "checked") {
        sys::say("nearfar: wrong=abort: this build does not check frees; see docs/alloc.md\n");
    }
    if let Some(place) = conf.report {
        report_at_end(place);
    }
    if conf.print_smdk {
        sys::say(&Smdk::default().lines());
    }
    Ok(())
}

fn configure_smdk(text: &str) -> Result<(), String> {
    let (smdk, wrong) = smdk::parse(text, adapt::has_daemon);
    wrong.iter().for_each(|why| sys::say(&format!("{why}\n")));
    if environment::var("NEARFAR_PRINT_SMDK")
        .is_some_and(|value| !["", "0"].contains(&&*value.to_string_lossy()))
    {
        sys::say(&smdk.lines());
    }
    if !smdk.use_exmem {
        return Ok(());
    }
    if let Some(rule) = smdk.adaptive {
        let only = smdk.interleave_nodes.as_deref().filter(|_| rule == Rule::Weighted);
        let kind = adapt::begin(rule, only)?;
        choice::set(Heap { kind, from: 0, mappings: Some(0), raises: false, aborts: false });
        return Ok(());
    }
    let (near, far) = types(smdk.exmem_nodes.as_deref())?;
    let mut kind = None;
    // Creates the last kind in the order first, because the others spill to it.
    for (nodes, budget) in order(&smdk, near, far).iter().rev() {
        let ids: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let limit = budget.map(|size| format!(";limit={size}")).unwrap_or_default();
        let words = format!("bind:{}{limit}", ids.join(","));
        kind = Some(machine::create_over(&words, kind).map_err(|why| why.to_string())?);
    }
    if let Some(kind) = kind {
        let raises = smdk.when_both_are_full == BothFull::Interleave;
        choice::set(Heap { kind, from: 0, mappings: Some(0), raises, aborts: false });
    }
    Ok(())
}

/// Nodes with their budgets, in order of use; empty if near memory has no limit, which is plain memory.
fn order(smdk: &Smdk, near: Vec<u32>, far: Vec<u32>) -> Vec<(Vec<u32>, Option<u64>)> {
    let normal = (near, smdk::budget(smdk.normal_size));
    let exmem = (far, smdk::budget(smdk.exmem_size));
    let mut order = if smdk.exmem_first { [exmem, normal] } else { [normal, exmem] }.to_vec();
    order.retain(|(nodes, _)| !nodes.is_empty());
    let normal_only = !smdk.exmem_first && order.first().is_none_or(|(_, budget)| budget.is_none());
    if normal_only {
        return Vec::new();
    }
    if let Some(last) = order.last_mut().filter(|_| smdk.when_both_are_full == BothFull::Remain) {
        last.1 = None;
    }
    order
}

/// Nodes with CPUs, and nodes without; of the latter those in `only`, if that is given and leaves any.
fn types(only: Option<&str>) -> Result<(Vec<u32>, Vec<u32>), String> {
    let all = nodes::of_set("all").map_err(|why| why.to_string())?;
    let has_cpus = |node: &u32| nodes::about(*node).is_some_and(|node| node.cpus > 0);
    let (near, far): (Vec<_>, Vec<_>) = all.into_iter().partition(has_cpus);
    let Some(only) = only else { return Ok((near, far)) };
    let (chosen, left_out) = chosen(only, &far);
    let said = match (&*chosen, &*left_out) {
        ([], _) => "no node of these has memory and no CPUs; ignored".to_string(),
        (_, []) => return Ok((near, chosen)),
        (_, left_out) => {
            format!("{} has no memory of its own, or has CPUs; left out", left_out.join(","))
        }
    };
    sys::say(&format!("nearfar: exmem_partition_range:{only}: {said}\n"));
    Ok((near, if chosen.is_empty() { far } else { chosen }))
}

/// The nodes of `far` that a list names, and the parts of the list that name none.
fn chosen(list: &str, far: &[u32]) -> (Vec<u32>, Vec<String>) {
    let (mut chosen, mut left_out) = (Vec::new(), Vec::new());
    for part in list.split(',') {
        let mut ends = part.splitn(2, '-').map(|end| end.trim().parse::<u32>().ok());
        let (first, last) = (ends.next().flatten(), ends.next());
        let range = first.zip(last.unwrap_or(first)).filter(|(first, last)| first <= last);
        let Some((first, last)) = range else {
            left_out.push(part.to_string());
            continue;
        };
        // A range may be longer than any machine's node numbers.
        let there = far.iter().copied().filter(|node| (first..=last).contains(node));
        chosen.extend(there);
        let absent = (first..=last.min(1023)).filter(|node| !far.contains(node));
        left_out.extend(absent.map(|node| format!("node {node}")));
    }
    chosen.sort_unstable();
    chosen.dedup();
    (chosen, left_out)
}

/// Destination of the exit report: a file, or else this duplicate of stderr.
static REPORT: OnceLock<(String, i32)> = OnceLock::new();

fn report_at_end(place: String) {
    // Some programs close stderr before they exit.
    let stderr = if place == "stderr" { sys::keep_stderr() } else { -1 };
    if REPORT.set((place, stderr)).is_ok() {
        // SAFETY: a function that may be called when the program ends.
        unsafe { libc::atexit(report) };
    }
}

extern "C" fn report() {
    let (Some((place, stderr)), Ok(mut text)) = (REPORT.get(), stats::json(None)) else { return };
    text.push('\n');
    if place == "stderr" {
        sys::write(*stderr, &text);
        return;
    }
    let place = place.replace("%p", &std::process::id().to_string());
    if let Err(why) = write_report(&place, &text) {
        sys::say(&format!("nearfar: report={place}: {why}\n"));
    }
}

/// Writes a file that only its owner may read. Does not follow a symbolic link, and leaves anything but a regular file
/// unchanged.
fn write_report(place: &str, text: &str) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut file =
        OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(flags).open(place)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file, and was left as it is"));
    }
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_node_of_a_partition_range_does_not_drop_those_that_are_there() {
        let far = [1, 2, 5];
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(chosen("1,2", &far), (Vec::from([1, 2]), Vec::new()));
        assert_eq!(chosen("5,1-3", &far), (Vec::from([1, 2, 5]), texts(&["node 3"])));
        assert_eq!(chosen("7", &far), (Vec::new(), texts(&["node 7"])));
        assert_eq!(chosen("x,2,3-1,2", &far), (Vec::from([2]), texts(&["x", "3-1"])));
        assert_eq!(chosen("1-4294967295", &far).0, far);
    }
}
