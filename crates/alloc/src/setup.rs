//! Making the program's heap what `NEARFAR_CONF` or `CXLMALLOC_CONF` say, once, before `main`.
#![expect(unsafe_code, reason = "a function for the program's end")]

use std::format;
use std::string::{String, ToString as _};
use std::sync::OnceLock;
use std::vec::Vec;

use nearfar_policy::interleave::Rule;

use crate::conf::{Conf, ConfError, Full, Wrong};
use crate::front::{self, Heap};
use crate::smdk::{self, BothFull, Smdk};
use crate::{adapt, machine, nodes, stats, sys};

/// Sizes from here on are no limit.
const TIB: u64 = 1 << 40;

/// Reads `NEARFAR_CONF`, or else `CXLMALLOC_CONF`, and makes the heap what they say. What is wrong is said on stderr, once, and
/// memory stays where the system puts it.
pub fn begin() {
    // What is no text has a mark in its place, so that it is read as wrong and not as absent.
    let read = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
    let (variable, done) = match (read("NEARFAR_CONF"), read("CXLMALLOC_CONF")) {
        (Some(text), _) => ("NEARFAR_CONF", configure(&text)),
        (None, Some(text)) => ("CXLMALLOC_CONF", configure_smdk(&text)),
        (None, None) => return,
    };
    if let Err(why) = done {
        sys::say(&format!("nearfar: {variable}: {why}; memory stays where the system puts it\n"));
    }
}

fn configure(text: &str) -> Result<(), String> {
    let conf: Conf = text.parse().map_err(|why: ConfError| why.to_string())?;
    let kind = match (&conf.heap, conf.adapt) {
        // Plain memory as it is, not a kind that is like it.
        (Some(kind), _) if kind == "default" => None,
        (Some(kind), _) => Some(machine::create(kind).map_err(|why| why.to_string())?),
        (None, Some(rule)) => Some(adapt::begin(rule, None)?),
        (None, None) => None,
    };
    if let Some(kind) = kind {
        let Conf { from, mmap: mappings, full, .. } = conf;
        front::set(Heap { kind, from, mappings, raises: false, aborts: full == Full::Abort });
    }
    if conf.wrong == Wrong::Abort && !cfg!(feature = "checked") {
        sys::say(
            "nearfar: wrong=abort: this build does not look at what is given back; see docs/alloc.md\n",
        );
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
    let (smdk, wrong) = smdk::parse(text);
    wrong.iter().for_each(|why| sys::say(&format!("{why}\n")));
    if std::env::var_os("NEARFAR_PRINT_SMDK").is_some() {
        sys::say(&smdk.lines());
    }
    if !smdk.use_exmem {
        return Ok(());
    }
    if let Some(rule) = smdk.adaptive {
        let only = smdk.interleave_nodes.as_deref().filter(|_| rule == Rule::Weighted);
        let kind = adapt::begin(rule, only)?;
        front::set(Heap { kind, from: 0, mappings: Some(0), raises: false, aborts: false });
        return Ok(());
    }
    let (near, far) = types(smdk.exmem_nodes.as_deref())?;
    let mut kind = None;
    // What gives when the others are full is made first.
    for (nodes, budget) in order(&smdk, near, far).iter().rev() {
        let ids: Vec<_> = nodes.iter().map(ToString::to_string).collect();
        let limit = budget.map(|size| format!(";limit={size}")).unwrap_or_default();
        let words = format!("bind:{}{limit}", ids.join(","));
        kind = Some(machine::create_over(&words, kind).map_err(|why| why.to_string())?);
    }
    if let Some(kind) = kind {
        let raises = smdk.when_both_are_full == BothFull::Interleave;
        front::set(Heap { kind, from: 0, mappings: Some(0), raises, aborts: false });
    }
    Ok(())
}

/// Nodes with their budgets, in the order in which they give; none if near memory gives without end, which is plain memory.
fn order(smdk: &Smdk, near: Vec<u32>, far: Vec<u32>) -> Vec<(Vec<u32>, Option<u64>)> {
    let budget = |size: Option<u64>| size.filter(|size| *size < TIB);
    let normal = (near, budget(smdk.normal_size));
    let exmem = (far, budget(smdk.exmem_size));
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

/// Nodes with CPUs, and nodes without that are in `only`, if that is given and leaves any.
fn types(only: Option<&str>) -> Result<(Vec<u32>, Vec<u32>), String> {
    let all = nodes::of_set("all").map_err(|why| why.to_string())?;
    let has_cpus = |node: &u32| nodes::about(*node).is_some_and(|node| node.cpus > 0);
    let (near, far): (Vec<_>, Vec<_>) = all.into_iter().partition(has_cpus);
    let Some(only) = only else { return Ok((near, far)) };
    let wanted = nodes::of_set(only).unwrap_or_default();
    let chosen: Vec<_> = far.iter().copied().filter(|node| wanted.contains(node)).collect();
    if chosen.is_empty() {
        sys::say(&format!(
            "nearfar: exmem_partition_range:{only}: no node of these has memory and no CPUs; ignored\n"
        ));
        return Ok((near, far));
    }
    Ok((near, chosen))
}

/// Where figures go when the program ends: a file, or else this copy of stderr.
static REPORT: OnceLock<(String, i32)> = OnceLock::new();

fn report_at_end(place: String) {
    // Some programs close stderr before they end.
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
    if let Err(why) = std::fs::write(&place, text) {
        sys::say(&format!("nearfar: report={place}: {why}\n"));
    }
}
