//! A plan as text and as JSON.

use std::ffi::OsString;
use std::fmt::Write as _;

use nearfar_topology::NodeSet;
use nearfar_vm::qemu::{Mount, Placed, Plan, Way};
use nearfar_vm::shell;
use serde::Serialize;

/// `nearfar.vm-args/1`.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    schema: &'static str,
    /// The program and its arguments; bytes that are no UTF-8 are replaced.
    argv: Vec<String>,
    backends: &'a [Placed],
    /// The way to weighted interleave; null if no backend needs it.
    weighted: Option<&'a Way>,
    weighted_reason: Option<&'a str>,
    /// Nodes over which the process must interleave its memory by weights before it becomes QEMU.
    process_nodes: Option<String>,
    /// Mounts that must exist before QEMU starts.
    mounts: &'a [Mount],
    /// Rewritten copies of files of -readconfig.
    configs: Vec<Copied<'a>>,
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct Copied<'a> {
    path: &'a str,
    copy: &'a str,
}

impl<'a> Document<'a> {
    /// The document of `plan`, with the names of the copies of its files.
    pub(super) fn new(plan: &'a Plan, copies: &'a [String]) -> Self {
        let copied = |(config, copy): (&'a nearfar_vm::qemu::Config, &'a String)| Copied {
            path: &config.path,
            copy,
        };
        Self {
            schema: "nearfar.vm-args/1",
            argv: argv(&plan.argv),
            backends: &plan.backends,
            weighted: plan.way.as_ref(),
            weighted_reason: plan.why.as_deref(),
            process_nodes: plan.process.as_ref().map(NodeSet::to_string),
            mounts: &plan.mounts,
            configs: plan.configs.iter().zip(copies).map(copied).collect(),
            notes: &plan.notes,
        }
    }
}

/// Words as text.
pub(super) fn argv(words: &[OsString]) -> Vec<String> {
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The plan of `vm run`, as `--dry-run` prints it.
pub(super) fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "command  {}", shell::join(&plan.argv));
    for Placed { id, size, kind, nodes, policy } in &plan.backends {
        let _ = writeln!(out, "memory   {id}: {size}, {kind}, {policy} over nodes {nodes}");
    }
    if let (Some(way), Some(why)) = (&plan.way, &plan.why) {
        let way = match way {
            Way::Native(name) => format!("QEMU's policy {name}"),
            Way::Process => "the policy of QEMU's process".to_owned(),
            Way::Tmpfs => "a file on a tmpfs for each weighted backend".to_owned(),
            Way::Preload => "a library that QEMU loads first".to_owned(),
        };
        let _ = writeln!(out, "way      {way}: {why}");
    }
    if let Some(nodes) = &plan.process {
        let _ = writeln!(out, "process  weighted-interleave over nodes {nodes}, inherited by QEMU");
    }
    for Mount { id, mpol, size, .. } in &plan.mounts {
        let _ = writeln!(out, "tmpfs    {id}: {size}, mpol={mpol}");
    }
    for config in &plan.configs {
        let _ = writeln!(out, "config   a rewritten copy of {}:", config.path);
        for line in config.text.lines() {
            let _ = writeln!(out, "         {line}");
        }
    }
    for note in &plan.notes {
        let _ = writeln!(out, "note     {note}");
    }
    out
}
