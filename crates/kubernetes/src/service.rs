//! The driver as a service: publishes the node's memory, answers kubelet, and ends on SIGTERM or SIGINT.
//!
//! At its end it removes its sockets, so that kubelet deregisters it. Slices, labels and CDI files stay: a restarted
//! driver continues with them, and running pods need theirs. [`remove`] takes all of them away.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim;
use nearfar_topology::Topology;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::cdi::Store;
use crate::devices::{Device, Reserves, devices};
use crate::driver::{Driver, Host, quoted};
use crate::grpc::{self, Sockets};
use crate::objects;
use crate::publish::{Cluster, ClusterError};

/// Reads the machine's memory; the reason in words if it can't.
pub type Machine = Box<dyn Fn() -> Result<Topology, String> + Send + Sync>;
/// Takes lines of the log.
pub type Log = Box<dyn Fn(&str) + Send + Sync>;

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster's name of this node.
    pub node: String,
    /// Access to the API server; `None` for the usual places.
    pub kubeconfig: Option<PathBuf>,
    /// The directory of CDI files.
    pub cdi_dir: PathBuf,
    /// Kubelet's directory of plugins.
    pub plugins_dir: PathBuf,
    /// Kubelet's directory of registration sockets.
    pub registry_dir: PathBuf,
    /// Time between two readings of the machine.
    pub interval: Duration,
    /// Memory that is not offered.
    pub reserves: Reserves,
}

/// The reason why the service can't start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The API server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A file or socket.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is no kubelet.
    #[error(
        "there is no directory {0}: kubelet makes it as it starts; start kubelet, or name its directory with --registry-dir"
    )]
    NoKubelet(PathBuf),
}

/// The live cluster and machine.
struct Live {
    cluster: Cluster,
    machine: Machine,
    reserves: Reserves,
    log: Log,
}

impl Host for Live {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        self.cluster.claim(namespace, name).await.map_err(|why| why.to_string())
    }

    fn devices(&self) -> Result<Vec<Device>, String> {
        (self.machine)().map(|machine| devices(&machine, &self.reserves))
    }

    fn log(&self, line: &str) {
        (self.log)(line);
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// [`ServiceError`]: it could not start, or a socket failed. An API server that can't be reached is tried again.
pub fn run(options: &Options, machine: Machine, log: Log) -> Result<(), ServiceError> {
    if !options.registry_dir.is_dir() {
        return Err(ServiceError::NoKubelet(options.registry_dir.clone()));
    }
    runtime()?.block_on(async {
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        };
        let cluster = Cluster::new(options.kubeconfig.as_deref()).await?;
        let reserves = options.reserves.clone();
        let host = Live { cluster, machine, reserves, log };
        let store = Store::new(&options.cdi_dir);
        let driver = Arc::new(Driver::new(options.node.clone(), store, host));
        let registered = Arc::new(Notify::new());
        let sockets = Sockets::new(&options.plugins_dir, &options.registry_dir);
        let publishing = async {
            driver.sweep().await;
            publish(&driver, &registered, options.interval).await;
        };
        tokio::select! {
            served = grpc::serve(Arc::clone(&driver), &sockets, Arc::clone(&registered), stop) => served?,
            () = publishing => {}
        }
        driver.host().log("event=stopped");
        Ok(())
    })
}

/// Publishes again and again: at the start, once kubelet has registered the driver, and after each interval.
async fn publish(driver: &Driver<Live>, registered: &Notify, interval: Duration) {
    let mut failures = 0u32;
    loop {
        let wait = match round(driver).await {
            Ok(()) => {
                failures = 0;
                interval
            }
            Err(why) => {
                // 1 s, 2 s, 4 s, up to the interval.
                let wait = Duration::from_secs(1 << failures.min(6)).min(interval);
                failures += 1;
                let reason = quoted(&why);
                let retry = wait.as_millis();
                driver
                    .host()
                    .log(&format!("event=publish_failed retry_ms={retry} reason={reason}"));
                wait
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = registered.notified() => {}
        }
    }
}

async fn round(driver: &Driver<Live>) -> Result<(), String> {
    let host = driver.host();
    let machine = (host.machine)()?;
    let (devices, labels) = (devices(&machine, &host.reserves), objects::labels(&machine));
    let published = host.cluster.publish(driver.node(), &devices, &labels).await;
    let published = published.map_err(|why| why.to_string())?;
    if published.slices_changed > 0 || published.labels_changed {
        host.log(&format!(
            "event=published node={} devices={} generation={} slices_changed={} labels_changed={}",
            driver.node(),
            published.devices,
            published.generation,
            published.slices_changed,
            published.labels_changed
        ));
    }
    Ok(())
}

/// Removed things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Slices in the API server.
    pub slices: usize,
    /// Nodes with labels.
    pub nodes: usize,
    /// CDI files.
    pub files: usize,
    /// Whether there were sockets.
    pub sockets: bool,
}

/// Removes all that the driver has made: of this node, or slices and labels of all nodes of the cluster.
///
/// # Errors
/// [`ServiceError`]: the API server can't be reached, a file can't be removed, or a driver is still running here.
pub fn remove(options: &Options, all_nodes: bool) -> Result<Removed, ServiceError> {
    runtime()?.block_on(async {
        let sockets = Sockets::new(&options.plugins_dir, &options.registry_dir);
        let mut removed = Removed::default();
        if !all_nodes {
            if sockets.is_served().await {
                let path = sockets.services.display();
                let error = format!("a driver is running (it serves at {path}); stop it first");
                return Err(io::Error::other(error).into());
            }
            removed.sockets = sockets.remove()?;
            let store = Store::new(&options.cdi_dir);
            for prepared in store.list()? {
                removed.files += usize::from(store.remove(&prepared.uid)?);
            }
        }
        let cluster = Cluster::new(options.kubeconfig.as_deref()).await?;
        let node = Some(options.node.as_str()).filter(|_| !all_nodes);
        let withdrawn = cluster.withdraw(node).await?;
        (removed.slices, removed.nodes) = (withdrawn.slices, withdrawn.nodes);
        Ok(removed)
    })
}
