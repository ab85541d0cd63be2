//! The driver's services over real unix sockets: registration, preparation, restarts, malformed claims, an API server
//! that can't be reached. The cluster is a table of claims.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::resource::v1::ResourceClaim;
use nearfar_containers::claims::{CdiSpec, Share};
use nearfar_kubernetes::DRIVER;
use nearfar_kubernetes::cdi::Store;
use nearfar_kubernetes::devices::{Device, Reserves, devices};
use nearfar_kubernetes::driver::{Driver, Host};
use nearfar_kubernetes::grpc::{self, Sockets};
use nearfar_kubernetes::messages as api;
use nearfar_topology::{Topology, testkit};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};

mod common;
use common::Kubelet;

const UID: &str = "0f6d3c1e-aaaa-4bbb-8ccc-0123456789ab";

/// Claims by namespace and name; `None` is an API server that can't be reached.
type Claims = Arc<Mutex<Option<BTreeMap<(String, String), ResourceClaim>>>>;

#[derive(Clone)]
struct Cluster {
    claims: Claims,
    machine: Arc<Mutex<Topology>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Host for Cluster {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        let claims = self.claims.lock().unwrap();
        let claims = claims.as_ref().ok_or("connection refused")?;
        Ok(claims.get(&(namespace.into(), name.into())).cloned())
    }

    fn devices(&self) -> Result<Vec<Device>, String> {
        Ok(devices(&self.machine.lock().unwrap(), &Reserves::new()))
    }

    fn log(&self, line: &str) {
        self.log.lock().unwrap().push(line.into());
    }
}

impl Cluster {
    fn new() -> Self {
        Self {
            claims: Arc::new(Mutex::new(Some(BTreeMap::new()))),
            machine: Arc::new(Mutex::new(testkit::dram_and_cxl())),
            log: Arc::default(),
        }
    }

    /// Adds a claim with this allocation; a reference to it as kubelet sends it.
    fn add(&self, name: &str, uid: &str, results: &[Value]) -> api::Claim {
        let claim = serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "shop", "uid": uid}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}}
        }));
        let mut claims = self.claims.lock().unwrap();
        let key = ("shop".into(), name.into());
        claims.as_mut().unwrap().insert(key, claim.unwrap());
        api::Claim { namespace: "shop".into(), uid: uid.into(), name: name.into() }
    }

    fn has_logged(&self, start: &str) -> bool {
        self.log.lock().unwrap().iter().any(|line| line.starts_with(start))
    }
}

fn far(size: &str) -> Value {
    json!({"driver": DRIVER, "pool": "worker", "device": "node1", "request": "far",
           "consumedCapacity": {"memory": size}, "shareID": "7"})
}

/// A driver that serves until it is stopped.
struct Running {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
    registered: Arc<Notify>,
    kubelet: Kubelet,
}

impl Running {
    async fn start(dir: &Path, cluster: &Cluster) -> Self {
        let sockets = sockets(dir);
        let driver = Driver::new("worker", Store::new(cdi(dir)), cluster.clone());
        let driver = Arc::new(driver);
        driver.sweep().await;
        let (stop, stopped) = oneshot::channel::<()>();
        let registered = Arc::new(Notify::new());
        let task = tokio::spawn({
            let (sockets, registered) = (sockets.clone(), Arc::clone(&registered));
            async move {
                let stop = async { drop(stopped.await) };
                grpc::serve(driver, &sockets, registered, stop).await
            }
        });
        let kubelet = Kubelet::connect(&sockets).await;
        Self { stop, task, registered, kubelet }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn sockets(dir: &Path) -> Sockets {
    let registry = dir.join("plugins_registry");
    std::fs::create_dir_all(&registry).unwrap();
    Sockets::new(&dir.join("plugins"), &registry)
}

fn cdi(dir: &Path) -> PathBuf {
    dir.join("cdi")
}

fn cdi_files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cdi(dir)).into_iter().flatten();
    entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

#[tokio::test]
async fn kubelet_registers_the_driver_and_its_end_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let running = Running::start(dir.path(), &cluster).await;
    let info = running.kubelet.info().await;
    assert_eq!((info.kind.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
    let services = sockets(dir.path()).services;
    assert_eq!(Path::new(&info.endpoint), services);
    running.kubelet.notify("").await;
    running.registered.notified().await;
    running.kubelet.notify("no such version").await;
    assert!(cluster.has_logged("event=not_registered reason=\"no such version\""));
    // A second driver at the same place is refused and does not take the sockets away.
    let second = Arc::new(Driver::new("worker", Store::new(cdi(dir.path())), cluster.clone()));
    let stop = std::future::pending();
    let refused = grpc::serve(second, &sockets(dir.path()), Arc::default(), stop).await;
    assert!(refused.unwrap_err().to_string().contains("another driver"));
    running.kubelet.info().await;
    running.stop().await;
    assert!(!services.exists() && !services.parent().unwrap().exists());
    assert_eq!(std::fs::read_dir(dir.path().join("plugins_registry")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_claim_is_prepared_and_prepared_again_after_a_restart_with_the_same_answer() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let claim = cluster.add("data", UID, &[far("4Gi")]);
    let running = Running::start(dir.path(), &cluster).await;
    let first = running.kubelet.prepare(&claim).await;
    assert_eq!(first.error, "");
    let device = &first.devices[0];
    assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("worker", "node1"));
    assert_eq!(device.request_names, ["far"]);
    assert_eq!(device.cdi_device_ids, [format!("nearfar.io/memory={UID}-0")]);
    assert_eq!(device.share_id.as_deref(), Some("7"));
    let files = cdi_files(dir.path());
    let spec: CdiSpec = serde_json::from_str(&files[0]).unwrap();
    let (variable, value) = spec.devices[0].container_edits.env[0].split_once('=').unwrap();
    assert_eq!(variable, format!("NEARFAR_CLAIM_{}_0", UID.replace('-', "_")));
    let share: Share = value.parse().unwrap();
    assert_eq!((share.nodes.to_string().as_str(), share.bytes.0), ("1", 4 << 30));
    assert_eq!(running.kubelet.prepare(&claim).await, first);
    running.stop().await;
    let running = Running::start(dir.path(), &cluster).await;
    assert_eq!(running.kubelet.prepare(&claim).await, first);
    assert_eq!(cdi_files(dir.path()), files);
    for _ in 0..2 {
        assert_eq!(running.kubelet.unprepare(&claim).await.error, "");
        assert_eq!(cdi_files(dir.path()), [""; 0]);
    }
    running.stop().await;
}

#[tokio::test]
async fn claims_that_are_not_possible_have_an_error_each_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let good = cluster.add("good", UID, &[far("1Gi")]);
    let large = cluster.add("large", "u-large", &[far("64Gi")]);
    let none = cluster.add("none", "u-none", &[]);
    let mut replaced = cluster.add("replaced", "u-new", &[far("1Gi")]);
    replaced.uid = "u-old".into();
    let absent = api::Claim { namespace: "shop".into(), uid: "u".into(), name: "absent".into() };
    let running = Running::start(dir.path(), &cluster).await;
    let claims = [good, large, none, replaced, absent];
    let answer = running.kubelet.dra("NodePrepareResources", &claims).await;
    let answer: api::PrepareResponse = answer.unwrap();
    assert_eq!(answer.claims.len(), claims.len());
    assert_eq!(answer.claims[UID].error, "");
    for (uid, part) in [
        ("u-large", "claim shop/large: request far: 64 GiB of node1"),
        ("u-none", "no device of driver memory.nearfar.io in pool worker"),
        ("u-old", "replaced (uid u-new instead of u-old)"),
        ("u", "claim shop/absent: there is no such claim"),
    ] {
        let error = &answer.claims[uid].error;
        assert!(error.contains(part) && answer.claims[uid].devices.is_empty(), "{error}");
    }
    assert_eq!(cdi_files(dir.path()).len(), 1);
    // A node that goes away is reported, and does not change other answers.
    *cluster.machine.lock().unwrap() = testkit::machine([testkit::node(0).cpus(0..4).gib(16)]);
    let error = running.kubelet.prepare(&claims[0]).await.error;
    assert!(error.contains("node1 is gone") && error.contains("node0"), "{error}");
    running.stop().await;
}

#[tokio::test]
async fn an_unreachable_api_server_is_an_error_of_the_claim_and_unprepare_needs_none() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let claim = cluster.add("data", UID, &[far("4Gi")]);
    let running = Running::start(dir.path(), &cluster).await;
    assert_eq!(running.kubelet.prepare(&claim).await.error, "");
    let known = cluster.claims.lock().unwrap().take();
    let error = running.kubelet.prepare(&claim).await.error;
    assert!(error.contains("shop/data") && error.contains("connection refused"), "{error}");
    assert!(cluster.has_logged("event=refused claim=\"shop/data\""));
    // A start without the API server keeps files, as their pods may run.
    running.stop().await;
    let running = Running::start(dir.path(), &cluster).await;
    assert_eq!(cdi_files(dir.path()).len(), 1);
    assert_eq!(running.kubelet.unprepare(&claim).await.error, "");
    assert_eq!(cdi_files(dir.path()).len(), 0);
    // One that finds the claim gone removes them.
    *cluster.claims.lock().unwrap() = known;
    running.kubelet.prepare(&claim).await;
    std::fs::write(cdi(dir.path()).join("other.json"), "{}").unwrap();
    running.stop().await;
    cluster.claims.lock().unwrap().as_mut().unwrap().clear();
    let running = Running::start(dir.path(), &cluster).await;
    assert_eq!(cdi_files(dir.path()), ["{}"]);
    assert!(cluster.has_logged(&format!("event=leftover uid={UID} result=removed")));
    running.stop().await;
}

#[tokio::test]
async fn malformed_calls_are_refused_and_the_driver_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new();
    let running = Running::start(dir.path(), &cluster).await;
    let unknown = running.kubelet.dra::<api::PrepareResponse>("Dance", &[]).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::Unimplemented);
    let many = vec![api::Claim::default(); 2000];
    let many = running.kubelet.dra::<api::PrepareResponse>("NodePrepareResources", &many).await;
    assert_eq!(many.unwrap_err().code(), tonic::Code::InvalidArgument);
    let outside = api::Claim { uid: "../../../etc/x".into(), ..api::Claim::default() };
    let error = running.kubelet.unprepare(&outside).await.error;
    assert!(error.contains("no uid"), "{error}");
    let claim = cluster.add("x", "../../../etc/x", &[far("1Gi")]);
    let error = running.kubelet.prepare(&claim).await.error;
    assert!(error.contains("no uid"), "{error}");
    running.stop().await;
}
