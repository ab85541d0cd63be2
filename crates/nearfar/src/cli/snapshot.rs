//! `nearfar snapshot`: the evidence for a bug report in one JSON file: the machine's files, the doctor's report, the
//! status, and the last decisions of tiering and balancing.
//!
//! Names of users, cgroups and files, and serial numbers are left out; the file is text, to be read before it is sent.
//! `topology` is a recording as `nearfar topo --record` writes it, without serial numbers.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_command::new_file::NewFile;
use nearfar_command::{json, output};
use nearfar_kernel::fs;
use nearfar_kernel::journal::Journal;
use nearfar_topology::Tree;
use serde::Serialize;
use serde_json::Value;

use super::machine::MachineArgs;
use super::{doctor, status};

/// Arguments of `nearfar snapshot`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file to write (mode 0600); `-` prints it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Keys whose values name users, groups or files.
const PRIVATE: [&str; 8] =
    ["user", "cgroup", "scope", "record", "file", "config", "near_max", "near_min"];
/// Names of files with serial numbers.
const SERIAL: [&str; 2] = ["serial", "product_serial"];

/// The JSON of `nearfar.snapshot/1`.
#[derive(Debug, Serialize)]
struct Snapshot {
    schema: &'static str,
    version: &'static str,
    /// A recording; `nearfar topo --sysfs` shows it.
    topology: String,
    doctor: Value,
    status: Value,
    /// State of tiering, with the reason of the last decision; null if it does not run.
    tiering: Option<Value>,
    /// The same of balancing.
    balancing: Option<Value>,
}

/// Writes it.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let selected = args.machine.select();
    let fs = selected.open()?;
    let (tree, _) = fs::gather(fs.as_ref());
    let state = |name: &str| {
        let bytes = fs::read_own(&Journal::default_dir().join(name), STATE_MAX).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    let state = |name| if selected.is_live() { state(name).map(without_names) } else { None };
    let snapshot = Snapshot {
        schema: "nearfar.snapshot/1",
        version: env!("CARGO_PKG_VERSION"),
        topology: without_serials(&tree).record(),
        doctor: without_names(serde_json::to_value(doctor::of(&selected)?)?),
        status: without_names(serde_json::to_value(status::of(&selected)?)?),
        tiering: state("tier.json"),
        balancing: state("balance.json"),
    };
    if args.file == Path::new("-") {
        output::print_json(&snapshot)?;
        return Ok(ExitCode::SUCCESS);
    }
    write(&args.file, &snapshot).with_context(|| format!("can't write {}", args.file.display()))?;
    output::remark(format_args!(
        "wrote {}: no names or serial numbers; read it before you send it",
        args.file.display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Larger files are no states.
const STATE_MAX: u64 = 16 << 20;

fn write(file: &Path, snapshot: &Snapshot) -> anyhow::Result<()> {
    let mut whole = NewFile::begin(file, 0o600)?;
    whole.write_all(json::text(snapshot)?.as_bytes())?;
    whole.write_all(b"\n")?;
    Ok(whole.finish()?)
}

fn without_serials(tree: &Tree) -> Tree {
    let mut kept = Tree::new();
    for (path, text) in tree.iter() {
        let name = path.rsplit('/').next().unwrap_or(path);
        if !SERIAL.contains(&name) {
            kept.insert(path, text);
        }
    }
    kept
}

/// The value with private texts replaced, at any depth.
fn without_names(value: Value) -> Value {
    match value {
        Value::Array(all) => Value::Array(all.into_iter().map(without_names).collect()),
        Value::Object(all) => {
            let hidden = |(key, value): (String, Value)| {
                let hides = PRIVATE.contains(&key.as_str()) && !value.is_null();
                let shown = if hides { Value::from("(left out)") } else { without_names(value) };
                (key, shown)
            };
            Value::Object(all.into_iter().map(hidden).collect())
        }
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_left_out_at_any_depth_and_all_else_stays() {
        let state = json!({"cgroup": "/alice", "pid": 7, "nodes": [{"file": "/home/alice/x", "share_bp": 3}], "user": null});
        let expected = json!({"cgroup": "(left out)", "pid": 7, "nodes": [{"file": "(left out)", "share_bp": 3}], "user": null});
        assert_eq!(without_names(state), expected);
    }

    #[test]
    fn serial_numbers_are_left_out_of_the_recording() {
        let text = include_str!("../../../../fixtures/machines/cxl-region-two-devices.tree");
        let tree = Tree::parse(text);
        let kept = without_serials(&tree);
        assert!(tree.record().contains("/serial\n") && !kept.record().contains("/serial\n"));
        let (before, after) =
            (nearfar_topology::Topology::read(&tree), nearfar_topology::Topology::read(&kept));
        assert_eq!(before.0.inventory(), after.0.inventory());
    }
}
