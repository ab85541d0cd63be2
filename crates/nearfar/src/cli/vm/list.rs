//! `nearfar vm list`: the virtual machines that run here, with the bytes of each on the host's nodes.
//!
//! Bytes are those of the whole process, the VMM's own included, from the kernel's table of its mappings. That table is
//! for its user and root alone: other users' machines are listed without.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::mapped;
use nearfar_topology::{Bytes, NodeId, Topology};
use nearfar_vm::running::list::{Found, of_command_line};
use serde_json::{Value, json};

use super::super::machine::MachineArgs;

/// Arguments of `nearfar vm list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON (schema nearfar.vm-list/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    topology: MachineArgs,
}

/// A virtual machine.
struct Row {
    pid: u32,
    found: Found,
    /// Resident bytes by node; `None` if this user may not read them.
    nodes: Option<BTreeMap<NodeId, Bytes>>,
}

/// Runs it.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = RootFs::live()?;
    let select = args.topology.select();
    let (topology, _) = select.read(select.open()?.as_ref())?;
    let mut rows: Vec<Row> = fs
        .list("proc")?
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| row(&fs, entry.name.parse().ok()?))
        .collect();
    rows.sort_by_key(|row| row.pid);
    if args.json {
        output::print_json(&json!({
            "schema": "nearfar.vm-list/1",
            "machines": rows.iter().map(|row| json_of(row, &topology)).collect::<Vec<_>>(),
        }))?;
    } else {
        output::print(&text(&rows, &topology))?;
    }
    Ok(Exit::Done.into())
}

fn row(fs: &RootFs, pid: u32) -> Option<Row> {
    // Bytes of a name need not be UTF-8.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = line.strip_suffix(b"\0")?;
    let words: Vec<OsString> =
        line.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    let found = of_command_line(&words)?;
    Some(Row { pid, found, nodes: nodes(fs, pid) })
}

fn nodes(fs: &RootFs, pid: u32) -> Option<BTreeMap<NodeId, Bytes>> {
    let text = fs.read(&format!("proc/{pid}/numa_maps")).ok()??;
    let mut nodes: BTreeMap<NodeId, Bytes> = BTreeMap::new();
    for line in text.lines().filter_map(mapped::line) {
        for (node, pages) in line.pages {
            let sum = nodes.entry(node).or_default();
            sum.0 = sum.0.saturating_add(pages.saturating_mul(line.page));
        }
    }
    Some(nodes)
}

/// Bytes in each tier of the machine.
fn tiers(nodes: &BTreeMap<NodeId, Bytes>, machine: &Topology) -> Vec<Bytes> {
    let of = |nodes_of_tier: &nearfar_topology::NodeSet| {
        let bytes = nodes.iter().filter(|(node, _)| nodes_of_tier.contains(**node));
        Bytes(bytes.map(|(_, bytes)| bytes.0).sum())
    };
    machine.tiers.iter().map(|tier| of(&tier.nodes)).collect()
}

fn json_of(row: &Row, machine: &Topology) -> Value {
    let by_node = row.nodes.as_ref().map(|nodes| {
        nodes
            .iter()
            .map(|(node, bytes)| (node.to_string(), json!(bytes.0)))
            .collect::<serde_json::Map<_, _>>()
    });
    let by_tier = row
        .nodes
        .as_ref()
        .map(|nodes| tiers(nodes, machine).iter().map(|bytes| bytes.0).collect::<Vec<_>>());
    json!({
        "pid": row.pid,
        "vmm": row.found.vmm.word(),
        "libvirt": row.found.libvirt,
        "name": row.found.name,
        "resident_by_node": by_node,
        "resident_by_tier": by_tier,
    })
}

fn text(rows: &[Row], machine: &Topology) -> String {
    if rows.is_empty() {
        return "No virtual machine of QEMU or Cloud Hypervisor runs here.\n".to_owned();
    }
    let name = |row: &Row| row.found.name.clone().unwrap_or_else(|| "-".to_owned());
    let wide = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).clamp(4, 40);
    let vmm = |row: &Row| {
        let by = if row.found.libvirt { " (libvirt)" } else { "" };
        format!("{}{by}", row.found.vmm.word())
    };
    let mut out = format!("{:>7}  {:<wide$}  {:<16}", "PID", "NAME", "VMM");
    for (rank, tier) in machine.tiers.iter().enumerate() {
        let kinds = tier.nodes.iter().filter_map(|node| machine.nodes.get(&node));
        let mut kinds: Vec<&str> = kinds.map(|node| node.kind.word()).collect();
        kinds.dedup();
        out.push_str(&format!("  {:>16}", format!("TIER {rank} ({})", kinds.join(","))));
    }
    out.push('\n');
    for row in rows {
        out.push_str(&format!("{:>7}  {:<wide$}  {:<16}", row.pid, name(row), vmm(row)));
        match &row.nodes {
            Some(nodes) => {
                for bytes in tiers(nodes, machine) {
                    out.push_str(&format!("  {:>16}", bytes.to_string()));
                }
            }
            None => out.push_str("  another user's: root may read its memory"),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::dram_and_cxl;
    use nearfar_vm::running::list::Vmm;

    #[test]
    fn the_table_has_a_line_for_each_machine_and_a_column_for_each_tier() {
        let machine = dram_and_cxl();
        let row = |pid, name: Option<&str>, nodes: Option<&[(u16, u64)]>| Row {
            pid,
            found: Found { vmm: Vmm::Qemu, libvirt: pid == 7, name: name.map(str::to_owned) },
            nodes: nodes.map(|nodes| {
                nodes.iter().map(|(node, mib)| (NodeId(*node), Bytes(mib << 20))).collect()
            }),
        };
        let rows = [
            row(7, Some("database"), Some(&[(0, 512), (1, 128)])),
            row(12, None, Some(&[])),
            row(13, None, None),
        ];
        let text = text(&rows, &machine);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["PID", "NAME", "VMM", "TIER"], "{text}");
        assert_eq!(
            lines[1][..],
            ["7", "database", "qemu", "(libvirt)", "512", "MiB", "128", "MiB"]
        );
        assert_eq!(lines[2][..], ["12", "-", "qemu", "0", "B", "0", "B"]);
        assert!(text.contains("another user's"), "{text}");
        let json = json_of(&rows[0], &machine);
        assert_eq!(json["resident_by_tier"], json!([512 << 20, 128 << 20]));
        assert_eq!(json["resident_by_node"]["1"], json!(128 << 20));
    }
}
