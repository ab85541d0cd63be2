//! `nearfar vm show` and `nearfar vm verify`: requested and actual placement of the memory of a running QEMU.
//!
//! The request is the one that QEMU reports for a backend, or the user's (`--want`), as for memory under a policy of the
//! whole process, of which QEMU knows nothing. Facts are the kernel's. Both are compared in `nearfar_vm::running::verify`;
//! here are the arguments, the reading, and the table. A verification changes nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Context as _;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_kernel::fs::{Fs, RootFs};
use nearfar_kernel::{mapped, residency, weights};
use nearfar_policy::traffic::PAGE;
use nearfar_topology::{Bytes, NodeExpr, NodeId, NodeSet, Topology};
use nearfar_vm::Policy;
use nearfar_vm::policy::UnknownPolicy;
use nearfar_vm::running::machine::{Backend, Machine, Target};
use nearfar_vm::running::verify::{self, Fact, Request, Verdict};
use serde_json::{Value, json};

use super::super::machine::MachineArgs;

/// Environment variable in which `nearfar vm run` leaves placements that QEMU's own options can't express.
pub(super) const REQUESTS: &str = "NEARFAR_VM_REQUESTS";

/// Arguments of `nearfar vm show`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct Args {
    /// The virtual machine: the process id of QEMU, or the path of a QMP socket
    #[arg(value_name = "PID|QMP")]
    machine: String,
    /// Count page by page instead of by mapping: exact, but a tenth of a second per gigabyte
    #[arg(long)]
    pages: bool,
    /// Print JSON (schema nearfar.vm/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    topology: MachineArgs,
}

/// Arguments of `nearfar vm verify`.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Expect this placement of a backend, instead of the one that QEMU was asked for: far0=cxl,
    /// m0=weighted-interleave:near,far; may be repeated
    #[arg(long = "want", value_name = "ID=[POLICY:]NODES")]
    wants: Vec<Want>,
    #[command(flatten)]
    show: Args,
}

const HELP: &str = "\
A process id is enough if QEMU's command line has a QMP socket (-qmp unix:PATH,server=on,wait=off). A monitor serves one \
client at a time; where libvirt holds it, give QEMU a second one.

Verdicts: as requested; unattached (no part of the guest); untouched (no page is resident yet); elsewhere (a preferred node was full, which the policy \
permits); WRONG, with the reason; no request (policy default). Only WRONG makes `verify` end with status 1; it ends with 2 if there is no \
verdict, as QEMU can't be asked or its memory not be read.";

/// A placement that the user expects.
#[derive(Clone, Debug)]
struct Want {
    id: String,
    policy: Option<Policy>,
    nodes: NodeExpr,
}

impl FromStr for Want {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, placement) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no placement; write ID=NODES or ID=POLICY:NODES")
        })?;
        let named = placement
            .split_once(':')
            .and_then(|(word, nodes)| Some((requested(word).ok()?, nodes)));
        let (policy, nodes) = named.unwrap_or((Some(Policy::Bind), placement));
        let nodes = nodes.parse().map_err(|error| format!("{id}: {error}"))?;
        Ok(Self { id: id.to_owned(), policy, nodes })
    }
}

/// QEMU's word for a policy; `None` for its default.
fn requested(word: &str) -> Result<Option<Policy>, UnknownPolicy> {
    if word == "default" { Ok(None) } else { word.parse().map(Some) }
}

/// A backend with its comparison.
struct Row {
    backend: Backend,
    request: Request,
    fact: Fact,
    verdict: Verdict,
}

/// Runs `show`.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (rows, machine, pid) = rows(args, &[])?;
    print(args, &rows, &machine, pid)?;
    Ok(Exit::Done.into())
}

/// Runs `verify`.
pub(super) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    // Without a verdict: status 1 would say that memory is placed wrongly.
    let (rows, machine, pid) = rows(&args.show, &args.wants).ends_with(Exit::Usage)?;
    print(&args.show, &rows, &machine, pid)?;
    let is_wrong = rows.iter().any(|row| matches!(row.verdict, Verdict::Wrong(_)));
    Ok(if is_wrong { Exit::Failed } else { Exit::Done }.into())
}

fn rows(args: &Args, wants: &[Want]) -> anyhow::Result<(Vec<Row>, Topology, u32)> {
    let fs = RootFs::live()?;
    let select = args.topology.select();
    let (topology, _) = select.read(select.open()?.as_ref())?;
    let mut machine = Machine::connect(&fs, &Target::parse(&args.machine))?;
    let backends = machine.backends()?;
    if let Some(want) = wants.iter().find(|want| !backends.iter().any(|one| one.id == want.id)) {
        let has: Vec<&str> = backends.iter().map(|backend| backend.id.as_str()).collect();
        return Err(anyhow::anyhow!(
            "--want {}: there is no such backend; there are {}",
            want.id,
            has.join(", ")
        ))
        .ends_with(Exit::Usage);
    }
    let pid = machine.pid;
    let started = started_with(&fs, pid);
    let mappings = mapped::of_process(&fs, pid).with_context(|| {
        format!("can't read the mappings of process {pid}; needs its user's rights, or root")
    })?;
    let mut rows = Vec::new();
    for backend in backends {
        let request = request(&fs, &backend, &[wants, &started].concat(), &topology)?;
        let fact = verify::fact(&backend.ranges(), &mappings, args.pages, |start, end| {
            count(pid, start, end)
        });
        let verdict = match backend.blocks.is_empty() {
            true => Verdict::Unattached,
            false => verify::compare(&request, &fact, (backend.size, backend.page())),
        };
        rows.push(Row { backend, request, fact, verdict });
    }
    Ok((rows, topology, pid))
}

/// Placements that `nearfar vm run` has left in the environment of QEMU's process; none if something else started it.
fn started_with(fs: &dyn Fs, pid: u32) -> Vec<Want> {
    let environment = fs.read(&format!("proc/{pid}/environ")).ok().flatten().unwrap_or_default();
    let value =
        environment.split('\0').find_map(|entry| entry.strip_prefix(REQUESTS)?.strip_prefix('='));
    value.unwrap_or_default().split(';').filter_map(|want| want.parse().ok()).collect()
}

/// The placement requested for a backend: the user's, that of `nearfar vm run`, or else QEMU's.
fn request(
    fs: &dyn Fs,
    backend: &Backend,
    wants: &[Want],
    machine: &Topology,
) -> anyhow::Result<Request> {
    let Some(want) = wants.iter().find(|want| want.id == backend.id) else {
        let policy = requested(&backend.policy).unwrap_or_default();
        return Ok(Request { policy, nodes: backend.nodes.clone(), weights: BTreeMap::new() });
    };
    let nodes = want.nodes.resolve(machine, &[]);
    let nodes = nodes.with_context(|| format!("--want {}", want.id)).ends_with(Exit::Usage)?;
    let weights = match want.policy {
        Some(Policy::WeightedInterleave) => weights::read(fs)?.over(nodes.iter()),
        _ => None,
    };
    let weights = weights.map(|weights| weights.iter().collect()).unwrap_or_default();
    Ok(Request { policy: want.policy, nodes, weights })
}

/// Resident bytes by node of an address range, page by page; none if the process has ended.
pub(super) fn count(pid: u32, start: u64, end: u64) -> BTreeMap<NodeId, Bytes> {
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    residency::of_range(Some(pid), number(start), number(end.saturating_sub(start)), number(PAGE))
        .unwrap_or_default()
}

fn print(args: &Args, rows: &[Row], machine: &Topology, pid: u32) -> anyhow::Result<()> {
    if args.json {
        return output::print_json(&json!({
            "schema": "nearfar.vm/1",
            "pid": pid,
            "backends": rows.iter().map(|row| json_of(row, machine)).collect::<Vec<_>>(),
        }));
    }
    output::print(&text(rows, machine, pid))
}

fn json_of(row: &Row, machine: &Topology) -> Value {
    let by_node = |nodes: &BTreeMap<NodeId, Bytes>| {
        nodes
            .iter()
            .map(|(node, bytes)| (node.to_string(), json!(bytes.0)))
            .collect::<serde_json::Map<_, _>>()
    };
    // For machines that read this: the kind and the tier of each node.
    let about = |node: &NodeId| {
        let kind = machine.nodes.get(node).map(|node| node.kind.word());
        (node.to_string(), json!({ "kind": kind, "tier": machine.tier_of(*node) }))
    };
    let nodes: serde_json::Map<_, _> = row.fact.nodes.keys().map(about).collect();
    let reason = match &row.verdict {
        Verdict::Wrong(reason) => json!(reason),
        _ => Value::Null,
    };
    json!({
        "id": row.backend.id,
        "size": row.backend.size.0,
        "requested": { "policy": row.request.policy.map_or("default", Policy::word), "nodes": ids(&row.request.nodes) },
        "kernel_policies": row.fact.policies,
        "resident": by_node(&row.fact.nodes),
        "nodes": nodes,
        "verdict": row.verdict.word(),
        "reason": reason,
    })
}

fn ids(nodes: &NodeSet) -> Vec<u16> {
    nodes.iter().map(|node| node.0).collect()
}

fn text(rows: &[Row], machine: &Topology, pid: u32) -> String {
    let mut out = format!("Memory of process {pid}\n\n");
    if rows.is_empty() {
        out.push_str("QEMU reports no memory backends.\n");
    }
    for row in rows {
        let asked = match row.request.policy {
            None => "no request".to_owned(),
            Some(policy) => format!("{policy} of nodes {}", row.request.nodes),
        };
        let _ =
            writeln!(out, "{:<12} {:>9}  {asked}", row.backend.id, row.backend.size.to_string());
        for (node, bytes) in &row.fact.nodes {
            let percent = bytes.0.saturating_mul(100) / row.fact.resident().0.max(1);
            let tier =
                machine.tier_of(*node).map(|tier| format!(", tier:{tier}")).unwrap_or_default();
            let kind = machine.nodes.get(node).map(|node| node.kind.word()).unwrap_or_default();
            let _ = writeln!(
                out,
                "  node {node:<4} {:>11} {percent:>4} %  {kind}{tier}",
                bytes.to_string()
            );
        }
        if row.fact.policies.iter().any(|policy| policy != "default") {
            let _ = writeln!(out, "  kernel's policy: {}", row.fact.policies.join("; "));
        }
        let verdict = match &row.verdict {
            Verdict::AsRequested => "as requested".to_owned(),
            Verdict::NoRequest if row.fact.resident() == Bytes(0) => "not yet touched".to_owned(),
            Verdict::NoRequest => "placed by the default policy".to_owned(),
            Verdict::Unattached => "no part of the guest: QEMU reports no address of it".to_owned(),
            Verdict::Untouched => {
                "not yet touched: no page is resident, so none is placed".to_owned()
            }
            Verdict::Elsewhere(bytes) => {
                format!("{bytes} elsewhere: the preferred nodes were full when it was touched")
            }
            Verdict::Wrong(reason) => format!("WRONG: {reason}"),
        };
        output::wrapped(&mut out, "  ", &verdict, 4);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expected_placement_names_a_policy_or_a_binding() {
        let want: Want = "far0=cxl".parse().unwrap();
        assert_eq!((want.policy, want.nodes.to_string()), (Some(Policy::Bind), "cxl".to_owned()));
        let want: Want = "m0=preferred:tier:1".parse().unwrap();
        assert_eq!(
            (want.policy, want.nodes.to_string()),
            (Some(Policy::Preferred), "tier:1".to_owned())
        );
        let want: Want = "m0=tier:1".parse().unwrap();
        assert_eq!(want.nodes.to_string(), "tier:1");
        assert!("m0".parse::<Want>().unwrap_err().contains("write ID=NODES"));
        assert!("m0=fat".parse::<Want>().unwrap_err().starts_with("m0: `fat` is not a node set"));
    }
}
