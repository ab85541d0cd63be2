//! `nearfar dra`: the DRA driver of Kubernetes for the memory of this node, as a service; `--print` shows its objects,
//! `--remove` takes everything it has made away.
//!
//! The driver is crate kubernetes; here are options, the machine and the output.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nearfar_kernel::fs;
use nearfar_kubernetes::devices::{self, Device, Place, Reserves};
use nearfar_kubernetes::objects::{self, NodeRef};
use nearfar_kubernetes::service::{self, Machine, Options};
use nearfar_topology::{Bytes, Overrides, Topology};

use super::machine::MachineArgs;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::{machine, output};

/// Arguments of `nearfar dra`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct Args {
    /// The cluster's name of this node [default: $NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Access to the API server [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The directory of CDI files that the container runtime reads
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// Kubelet's directory of plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins")]
    plugins_dir: PathBuf,
    /// Kubelet's directory of registration sockets
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
    /// Do not offer this much of a node's memory, or of each node of a kind (0=4g, dram=8g); may be repeated
    #[arg(long = "reserve", value_name = "NODE|KIND=SIZE", value_parser = devices::reserve)]
    reserves: Vec<(Place, Bytes)>,
    /// Time between two readings of the machine
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = super::record::duration)]
    interval: Duration,
    /// Show devices, labels and classes, and end; contacts no API server
    #[arg(long)]
    print: bool,
    /// Print JSON with --print (schema nearfar.dra/1): Kubernetes' objects as they would be published
    #[arg(long, requires = "print")]
    json: bool,
    /// Remove slices, node labels, CDI files and sockets of this node, and end; stop the driver and pods with claims first
    #[arg(long, conflicts_with = "print")]
    remove: bool,
    /// With --remove: slices and labels of all nodes in the cluster, and nothing on this machine
    #[arg(long, requires = "remove")]
    all_nodes: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

const HELP: &str = "\
Each node with memory becomes a device of the driver memory.nearfar.io, with its kind, tier, latency, bandwidth and capacity. \
Pods claim memory of a device class (docs/kubernetes.md); `nearfar nri` places it. Needs Kubernetes 1.34 with the feature gate \
DRAConsumableCapacity (enabled by default since 1.36).

The driver ends on SIGTERM and removes its sockets; slices, labels and CDI files stay for the next start. Messages are lines of \
event=... on standard error. Needs root for kubelet's directories and the CDI files.";

const SCHEMA: &str = "nearfar.dra/1";

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let node = node_name(args)?;
    let reserves: Reserves = args.reserves.iter().copied().collect();
    let options = Options {
        node,
        kubeconfig: args.kubeconfig.clone(),
        cdi_dir: args.cdi_dir.clone(),
        plugins_dir: args.plugins_dir.clone(),
        registry_dir: args.registry_dir.clone(),
        interval: args.interval,
        reserves,
    };
    if args.remove {
        let removed = service::remove(&options, args.all_nodes).context("--remove")?;
        output::remark(format_args!(
            "event=removed slices={} labelled_nodes={} cdi_files={} sockets={}",
            removed.slices, removed.nodes, removed.files, removed.sockets
        ));
        return Ok(Exit::Done.into());
    }
    let selected = args.machine.select();
    let (machine, _) = selected.read(selected.open()?.as_ref())?;
    devices::check(&machine, &options.reserves).ends_with(Exit::Usage)?;
    if args.print {
        print(&machine, &options, args.json)?;
        return Ok(Exit::Done.into());
    }
    service::run(&options, reader(selected), Box::new(|line| output::note(line)))?;
    Ok(Exit::Done.into())
}

/// Reads the machine again: nodes come and go.
fn reader(selected: machine::Machine) -> Machine {
    let overrides: Overrides = selected.kinds.iter().copied().collect();
    Box::new(move || {
        let files = selected.open().map_err(|error| format!("{error:#}"))?;
        Ok(fs::topology(files.as_ref(), &overrides).0)
    })
}

/// The node's name, which must be one that Kubernetes allows.
fn node_name(args: &Args) -> anyhow::Result<String> {
    const LONGEST: usize = 253;
    let stated = args.node_name.clone().or_else(|| std::env::var("NODE_NAME").ok());
    let name = stated.unwrap_or_else(|| {
        rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase()
    });
    let is_part = |part: &str| {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| is_word(*byte));
        let inner = bytes.iter().all(|byte| is_word(*byte) || *byte == b'-');
        inner && is_end(bytes.first()) && is_end(bytes.last())
    };
    if name.len() <= LONGEST && name.split('.').all(is_part) {
        return Ok(name);
    }
    let error = anyhow::anyhow!(
        "--node-name {name}: no name of a node in Kubernetes (lower-case letters, digits, - and .); `kubectl get nodes` lists them"
    );
    Err(error).ends_with(Exit::Usage)
}

fn print(machine: &Topology, options: &Options, is_json: bool) -> anyhow::Result<()> {
    let found = devices::devices(machine, &options.reserves);
    let labels = objects::labels(machine);
    let labels: std::collections::BTreeMap<_, _> =
        labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let node = NodeRef { name: options.node.clone(), uid: None };
    if is_json {
        let slices = objects::slices(&found, &node, 1);
        return output::print_json(&serde_json::json!({
            "schema": SCHEMA,
            "node": options.node,
            "labels": labels,
            "slices": slices,
            "classes": objects::classes(),
        }));
    }
    let mut text = format!("node {}, driver {}\n", options.node, nearfar_kubernetes::DRIVER);
    text.push_str("device    kind     near  tier  latency  read bandwidth  capacity\n");
    found.iter().for_each(|device| text.push_str(&row(device)));
    for (key, value) in labels {
        text.push_str(&format!("label {key}={value}\n"));
    }
    for class in objects::classes() {
        text.push_str(&format!("class {}\n", class.metadata.name.unwrap_or_default()));
    }
    output::print(&text)
}

fn row(device: &Device) -> String {
    fn known(value: Option<impl ToString>) -> String {
        value.map_or_else(|| "-".into(), |value| value.to_string())
    }
    format!(
        "{:<8}  {:<7}  {:<4}  {:>4}  {:>7}  {:>14}  {}\n",
        device.name(),
        device.kind,
        if device.near { "yes" } else { "no" },
        known(device.tier),
        known(device.read_latency),
        known(device.read_bandwidth),
        device.capacity,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_follow_the_rules_of_kubernetes() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let named = |name: &str| {
            let name = format!("--node-name={name}");
            let line = <Line as clap::Parser>::try_parse_from(["dra", name.as_str()]);
            node_name(&line.unwrap().args)
        };
        assert_eq!(named("worker-1.example.com").unwrap(), "worker-1.example.com");
        for name in ["", "Worker", "a..b", "-a", "a,spec.driver=x", "a/b"] {
            assert!(named(name).unwrap_err().to_string().contains("kubectl get nodes"), "{name}");
        }
    }
}
