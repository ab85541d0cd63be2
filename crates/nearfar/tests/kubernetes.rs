//! `nearfar dra`: its printed objects and the Helm chart; with a real API server the whole way of a claim.
//!
//! The test with an API server needs the programs etcd and kube-apiserver in `$NEARFAR_KUBERNETES_BIN` (`make kubernetes`).
//! With kube-scheduler there, it allocates the claim; otherwise the test does.

#![expect(clippy::unwrap_used, clippy::panic, reason = "this is a test program")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nearfar_kubernetes::grpc::Sockets;
use nearfar_kubernetes::messages::Claim;
use serde_json::{Value, json};

#[path = "kubernetes/cluster.rs"]
mod cluster;
#[path = "../../kubernetes/tests/common/mod.rs"]
mod common;

use cluster::{Cluster, DRIVER};
use common::Kubelet;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const NODE: &str = "/api/v1/nodes/worker";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn recording(name: &str) -> PathBuf {
    root().join("fixtures/machines").join(name).with_extension("tree")
}

fn nearfar(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).args(arguments).output().unwrap()
}

/// Objects of the machine with CXL memory.
fn printed() -> Value {
    let machine = recording("cxl-region-two-devices");
    let machine = machine.to_str().unwrap();
    let output =
        nearfar(&["dra", "--print", "--json", "--node-name", "worker", "--sysfs", machine]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn chart(name: &str) -> String {
    std::fs::read_to_string(root().join("kubernetes/chart").join(name)).unwrap()
}

#[test]
fn printed_objects_match_the_machine_and_the_chart() {
    let printed = printed();
    assert_eq!(printed["schema"], "nearfar.dra/1");
    let devices = printed["slices"][0]["spec"]["devices"].as_array().unwrap();
    let kinds: Vec<_> =
        devices.iter().map(|device| device["attributes"]["kind"]["string"].as_str()).collect();
    assert_eq!(kinds, [Some("dram"), Some("dram"), Some("cxl")]);
    assert_eq!(printed["labels"]["nearfar.io/cxl"], "true");
    let text = chart("templates/deviceclasses.yaml");
    for class in printed["classes"].as_array().unwrap() {
        let name = class["metadata"]["name"].as_str().unwrap();
        let expression = class["spec"]["selectors"][0]["cel"]["expression"].as_str().unwrap();
        assert!(text.contains(&format!("name: {name}\n")), "{name}");
        assert!(text.contains(&format!("expression: '{expression}'\n")), "{expression}");
    }
    let table = nearfar(&[
        "dra",
        "--print",
        "--node-name",
        "worker",
        "--sysfs",
        recording("laptop").to_str().unwrap(),
    ]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("node0") && table.contains("class cxl.nearfar.io"), "{table}");
}

#[test]
fn usage_errors_are_refused_before_anything_starts() {
    let machine = recording("cxl-region-two-devices");
    let machine = machine.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let none = format!("{dir}/none");
    for (arguments, status, part) in [
        (&["--reserve", "9=1g"][..], 2, "no node 9 with memory"),
        (&["--reserve", "2=9t"], 2, "node 2 has"),
        (&["--reserve", "fast=1g"], 2, "`fast` is no node"),
        (&["--node-name", "Worker_1"], 2, "kubectl get nodes"),
        (&["--registry-dir", &none], 1, "start kubelet"),
        (&["--registry-dir", dir, "--kubeconfig", &none], 1, "--kubeconfig"),
        (&["--json"], 2, "--print"),
    ] {
        let common = ["dra", "--sysfs", machine, "--plugins-dir", &none, "--cdi-dir", &none];
        let output = nearfar(&[&common[..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert!(!Path::new(&none).exists(), "{arguments:?}");
    }
}

/// The value names that templates use: `.Values.dra.reserve`.
fn values_used(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '.';
    let of = |rest: &str| rest.chars().take_while(|c| is_name(*c)).collect::<String>();
    text.split(".Values.").skip(1).map(of).collect()
}

#[test]
fn the_charts_values_and_options_exist() {
    let values = chart("values.yaml");
    let templates = root().join("kubernetes/chart/templates");
    let mut used = Vec::new();
    for entry in std::fs::read_dir(templates).unwrap() {
        used.extend(values_used(&std::fs::read_to_string(entry.unwrap().path()).unwrap()));
    }
    assert!(used.len() > 20, "{used:?}");
    for name in used {
        // Top-level keys start a line, those of a section are indented by two.
        let mut section = values.as_str();
        for (depth, key) in name.split('.').enumerate() {
            let line = format!("\n{}{key}:", "  ".repeat(depth));
            let at = section.find(&line);
            section = &section[at.unwrap_or_else(|| panic!("values.yaml has no {name}"))..];
        }
    }
    let text = chart("templates/daemonset.yaml");
    for command in ["nri", "dra"] {
        let help = String::from_utf8(nearfar(&[command, "--help"]).stdout).unwrap();
        let start = text.find(&format!("- {command}\n            - --")).unwrap();
        let arguments = text[start..].split("extraArgs").next().unwrap();
        let options = arguments.split("- --").skip(1);
        let options: Vec<_> = options.filter_map(|rest| rest.split('=').next()).collect();
        assert!(options.len() >= 4, "{options:?}");
        for option in options {
            assert!(help.contains(&format!("--{option} ")), "nearfar {command} --{option}");
        }
    }
}

#[test]
fn helm_accepts_the_chart() {
    let dir = root().join("kubernetes/chart");
    let Ok(output) = Command::new(helm()).arg("lint").arg("--strict").arg(&dir).output() else {
        std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: no helm\n").unwrap();
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let sets = "nri.preload=/usr/lib/x.so,dra.reserve={dram=8g},imagePullSecrets[0].name=s";
    let mut template = Command::new(helm());
    template.args(["template", "nearfar"]).arg(&dir).args(["--set", sets]);
    let rendered = template.output().unwrap();
    let text = String::from_utf8_lossy(&rendered.stdout).into_owned();
    assert!(rendered.status.success() && text.contains("--reserve=dram=8g"), "{rendered:?}");
}

/// Helm, if it is installed.
fn helm() -> PathBuf {
    let built = std::env::var_os("NEARFAR_KUBERNETES_BIN").map(|dir| Path::new(&dir).join("helm"));
    built.filter(|path| path.is_file()).unwrap_or_else(|| "helm".into())
}

/// The driver as a process.
struct Driver {
    process: cluster::Process,
    log: PathBuf,
}

impl Driver {
    fn start(dir: &Path, kubeconfig: &Path, machine: &Path) -> Self {
        let log = dir.join("dra.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.arg("dra").args(arguments(dir, kubeconfig)).arg("--interval").arg("300ms");
        command.arg("--sysfs").arg(machine);
        Self { process: cluster::Process::start(&mut command, &log), log }
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Ends it as kubelet ends a container.
    fn stop(&mut self) {
        assert!(self.process.terminate().success(), "{}", self.log_text());
        assert!(self.log_text().contains("event=stopped"), "{}", self.log_text());
    }
}

fn arguments(dir: &Path, kubeconfig: &Path) -> Vec<String> {
    let path = |path: &Path| path.to_str().unwrap().to_string();
    [
        ("--node-name", "worker".into()),
        ("--kubeconfig", path(kubeconfig)),
        ("--cdi-dir", path(&dir.join("cdi"))),
        ("--plugins-dir", path(&dir.join("plugins"))),
        ("--registry-dir", path(&dir.join("registry"))),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_string(), value])
    .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A claim of this much CXL memory, as in the example.
fn claim(name: &str, size: &str, policy: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {
            "requests": [{"name": "far", "exactly": {
                "deviceClassName": "memory.nearfar.io",
                "selectors": [{"cel": {"expression": "device.attributes[\"memory.nearfar.io\"].kind == \"cxl\""}}],
                "capacity": {"requests": {"memory": size}}
            }}],
            "config": [{"opaque": {"driver": DRIVER, "parameters":
                {"apiVersion": "nearfar.io/v1", "kind": "MemoryConfig", "policy": policy}}}]
        }}
    })
}

/// Creates and allocates a claim; a reference to it as kubelet sends it.
async fn allocated(cluster: &Cluster, name: &str, size: &str, policy: &str) -> Claim {
    let created = cluster.create(CLAIMS, &claim(name, size, policy)).await;
    let uid = created["metadata"]["uid"].as_str().unwrap().to_string();
    if cluster.has_scheduler() {
        cluster.schedule(name).await;
    } else {
        cluster.allocate(&format!("{CLAIMS}/{name}"), "node2", size).await;
    }
    Claim { namespace: "default".into(), uid, name: name.into() }
}

/// Creates the device classes, and a template of claims.
async fn define(cluster: &Cluster) {
    for class in printed()["classes"].as_array().unwrap() {
        cluster.create("/apis/resource.k8s.io/v1/deviceclasses", class).await;
    }
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "cxl-16g"}, "spec": {"spec": claim("x", "16Gi", "bind")["spec"]}});
    let templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
    cluster.create(templates, &template).await;
}

/// The driver has published the objects of `--print`, once.
async fn published(cluster: &Cluster, driver: &Driver) {
    let slices = cluster.wait(SLICES, |list| list["items"][0].is_object()).await;
    assert_eq!(slices["items"].as_array().unwrap().len(), 1);
    assert_eq!(slices["items"][0]["spec"]["devices"], printed()["slices"][0]["spec"]["devices"]);
    assert_eq!(slices["items"][0]["metadata"]["ownerReferences"][0]["name"], "worker");
    let labels = |node: &Value| node["metadata"]["labels"]["nearfar.io/cxl"] == "true";
    cluster.wait(NODE, labels).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = cluster.get(SLICES).await;
    let version = |list: &Value| list["items"][0]["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&again), version(&slices), "{}", driver.log_text());
}

/// The driver may not touch another node.
async fn denied(cluster: &Cluster, kubeconfig: &Path) {
    let foreign = cluster.as_driver(kubeconfig).await;
    let mut slice = printed()["slices"][0].clone();
    slice["spec"]["nodeName"] = "other".into();
    slice["spec"]["pool"]["name"] = "other".into();
    let denied = foreign.try_create(SLICES, &slice).await.unwrap_err();
    assert!(denied.contains("node worker may not change objects of node other"), "{denied}");
}

/// Removal, here with a file left: nothing of it stays.
async fn removed(cluster: &Cluster, driver: &mut Driver, dir: &Path, kubeconfig: &Path) {
    std::fs::write(dir.join("cdi/nearfar.io-memory_left.json"), "{}").unwrap();
    let remove = || {
        nearfar(
            &[
                &["dra", "--remove"][..],
                &arguments(dir, kubeconfig).iter().map(String::as_str).collect::<Vec<_>>(),
            ]
            .concat(),
        )
    };
    let running = remove();
    assert!(
        !running.status.success()
            && String::from_utf8_lossy(&running.stderr).contains("stop it first")
    );
    driver.stop();
    let removed = remove();
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(cluster.get(SLICES).await["items"], json!([]));
    let labels = cluster.get(NODE).await["metadata"]["labels"].clone();
    assert!(!labels.to_string().contains("nearfar.io"), "{labels}");
    assert_eq!(names(&dir.join("cdi")), [""; 0]);
    assert_eq!((names(&dir.join("registry")), names(&dir.join("plugins"))), (vec![], vec![]));
}

#[tokio::test]
#[ignore = "needs kube-apiserver and etcd: make kubernetes"]
async fn a_claim_is_allocated_prepared_reverted_and_everything_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let cluster = Cluster::start(dir).await;
    cluster.create("/api/v1/nodes", &cluster::node("worker")).await;
    cluster.create("/api/v1/nodes", &cluster::node("other")).await;
    cluster.ready("worker").await;
    let kubeconfig =
        cluster.install(&chart("templates/rbac.yaml"), &chart("templates/admission.yaml")).await;
    define(&cluster).await;

    // The driver publishes the objects of `--print`, once.
    std::fs::create_dir(dir.join("registry")).unwrap();
    let machine = dir.join("machine.tree");
    std::fs::copy(recording("cxl-region-two-devices"), &machine).unwrap();
    let mut driver = Driver::start(dir, &kubeconfig, &machine);
    published(&cluster, &driver).await;

    // Kubelet registers it, and prepares claims.
    let sockets = Sockets::new(&dir.join("plugins"), &dir.join("registry"));
    let kubelet = Kubelet::connect(&sockets).await;
    assert_eq!(kubelet.info().await.name, DRIVER);
    kubelet.notify("").await;
    let good = allocated(&cluster, "good", "16Gi", "prefer").await;
    let bad = allocated(&cluster, "bad", "1Gi", "fastest").await;
    let first = kubelet.prepare(&good).await;
    assert_eq!((first.error.as_str(), first.devices[0].device_name.as_str()), ("", "node2"));
    let text = std::fs::read_to_string(dir.join("cdi").join(&names(&dir.join("cdi"))[0])).unwrap();
    let value =
        format!("{}_0=policy:prefer;nodes:2;bytes:17179869184;", good.uid.replace('-', "_"));
    assert!(text.contains(&value), "{text}");
    let refused = kubelet.prepare(&bad).await.error;
    assert!(
        refused.contains("claim default/bad") && refused.contains("no policy fastest"),
        "{refused}"
    );
    assert_eq!(names(&dir.join("cdi")).len(), 1);

    denied(&cluster, &kubeconfig).await;

    // Another start gives the same answer; unprepare takes the file away, also twice.
    driver.stop();
    assert_eq!(names(&dir.join("registry")), [""; 0]);
    let mut driver = Driver::start(dir, &kubeconfig, &machine);
    let kubelet = Kubelet::connect(&sockets).await;
    assert_eq!(kubelet.prepare(&good).await, first);
    // CXL memory goes offline: a new generation, without it.
    std::fs::copy(recording("two-sockets"), &machine).unwrap();
    let slices =
        cluster.wait(SLICES, |list| list["items"][0]["spec"]["pool"]["generation"] == 2).await;
    assert_eq!(slices["items"][0]["spec"]["devices"].as_array().unwrap().len(), 2);
    cluster.wait(NODE, |node| node["metadata"]["labels"].get("nearfar.io/cxl").is_none()).await;
    let gone = kubelet.prepare(&good).await.error;
    assert!(gone.contains("node2 is gone"), "{gone}");
    for _ in 0..2 {
        assert_eq!(kubelet.unprepare(&good).await.error, "");
        assert_eq!(names(&dir.join("cdi")), [""; 0]);
    }

    removed(&cluster, &mut driver, dir, &kubeconfig).await;
}
