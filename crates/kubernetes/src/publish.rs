//! The driver's objects in the API server: reads claims, publishes slices and node labels, withdraws them.
//!
//! A node's slices are found by driver and node name, so a restarted driver takes over those of the earlier one. They
//! are written only if the devices differ, under a higher generation of the pool, as the scheduler reads only that.
//! Kubelet deletes the slices of a driver that is away for a while; each round creates missing ones again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::DRIVER;
use crate::devices::Device;
use crate::objects::{self, NodeRef};

/// Time for a connection, and for an answer.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Labels by key: a value, or `None` for a label that must not exist.
pub type Labels = BTreeMap<String, Option<String>>;

/// A failed request to the API server, or no way to reach it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// There is no usable configuration.
    #[error(
        "no access to a cluster: {why}; name a file with --kubeconfig, or run in a pod with a service account"
    )]
    Config {
        /// The reason.
        why: String,
    },
    /// A request failed.
    #[error("can't {action}: {why}")]
    Request {
        /// The request in words.
        action: String,
        /// The reason.
        why: String,
    },
}

/// An API server.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// A round of publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Devices in the slices.
    pub devices: usize,
    /// The pool's generation.
    pub generation: i64,
    /// Slices created, replaced or deleted.
    pub slices_changed: usize,
    /// Whether labels of the node were changed.
    pub labels_changed: bool,
}

/// Removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    /// Slices.
    pub slices: usize,
    /// Nodes with labels.
    pub nodes: usize,
}

fn text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (status {})", status.message, status.code),
        other => {
            // The outer messages name only the layer.
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(error) = source {
                let inner = error.to_string();
                if !text.contains(&inner) {
                    text = format!("{text}: {inner}");
                }
                source = error.source();
            }
            text
        }
    }
}

fn failed(action: impl Into<String>) -> impl FnOnce(kube::Error) -> ClusterError {
    let action = action.into();
    move |error| ClusterError::Request { action, why: text(&error) }
}

/// The result, or `None` if the object does not exist.
fn if_there<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

impl Cluster {
    /// The API server of this kubeconfig; without one that of `$KUBECONFIG`, of the user's file, or of the pod's service
    /// account. Makes no connection yet.
    ///
    /// # Errors
    /// [`ClusterError::Config`].
    pub async fn new(kubeconfig: Option<&Path>) -> Result<Self, ClusterError> {
        let wrong = |why: String| ClusterError::Config { why };
        let mut config = match kubeconfig {
            None => Config::infer().await.map_err(|error| wrong(error.to_string()))?,
            Some(path) => {
                let named = |why: String| wrong(format!("{}: {why}", path.display()));
                let file = Kubeconfig::read_from(path).map_err(|error| named(error.to_string()))?;
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(|error| named(error.to_string()))?
            }
        };
        config.connect_timeout = Some(CONNECT_MAX);
        config.read_timeout = Some(ANSWER_MAX);
        config.reset_reader_on_write = true;
        let client = Client::try_from(config).map_err(|error| wrong(text(&error)))?;
        Ok(Self { client })
    }

    fn slices(&self) -> Api<ResourceSlice> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Reads a claim; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`ClusterError::Request`].
    pub async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, ClusterError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = claims.get_opt(name).await;
        found.map_err(failed(format!("read resource claim {namespace}/{name}")))
    }

    /// Publishes the devices and labels of a node, as far as the API server has others.
    ///
    /// # Errors
    /// [`ClusterError::Request`]; a later round completes a publication that failed in the middle.
    pub async fn publish(
        &self,
        node: &str,
        devices: &[Device],
        labels: &Labels,
    ) -> Result<Published, ClusterError> {
        let found = self.nodes().get(node).await.map_err(failed(format!("read node {node}")))?;
        let node_ref = NodeRef { name: node.into(), uid: found.metadata.uid.clone() };
        let known = self.known_slices(Some(node)).await?;
        let newest = known.iter().map(|slice| slice.spec.pool.generation).max();
        let mut wanted = objects::slices(devices, &node_ref, newest.unwrap_or(0));
        let is_same = known.len() == wanted.len()
            && known.iter().zip(&wanted).all(|(known, wanted)| {
                known.spec == wanted.spec
                    && known.metadata.owner_references == wanted.metadata.owner_references
            });
        let mut slices_changed = 0;
        if !is_same {
            wanted = objects::slices(devices, &node_ref, newest.unwrap_or(0) + 1);
            slices_changed = self.replace(known, &wanted).await?;
        }
        let labels_changed = self.label(&found, labels).await?;
        let generation = wanted.first().map_or(0, |slice| slice.spec.pool.generation);
        Ok(Published { devices: devices.len(), generation, slices_changed, labels_changed })
    }

    /// The driver's slices, of one node or of all, in the order of their devices.
    async fn known_slices(&self, node: Option<&str>) -> Result<Vec<ResourceSlice>, ClusterError> {
        let node = node.map_or_else(String::new, |node| format!(",spec.nodeName={node}"));
        let list = ListParams::default().fields(&format!("spec.driver={DRIVER}{node}"));
        let found = self.slices().list(&list).await.map_err(failed("list resource slices"))?;
        let mut found = found.items;
        let first = |slice: &ResourceSlice| {
            let devices = slice.spec.devices.as_ref();
            let first = devices.and_then(|devices| devices.first());
            first.and_then(|device| crate::devices::node_of(&device.name))
        };
        found.sort_by_key(|slice| (first(slice), slice.metadata.name.clone()));
        Ok(found)
    }

    /// Makes `known` slices the wanted ones; returns the number of requests.
    async fn replace(
        &self,
        known: Vec<ResourceSlice>,
        wanted: &[ResourceSlice],
    ) -> Result<usize, ClusterError> {
        let count = known.len().max(wanted.len());
        let mut known = known.into_iter();
        for wanted in wanted {
            let Some(old) = known.next() else {
                let created = self.slices().create(&PostParams::default(), wanted).await;
                created.map_err(failed("create a resource slice"))?;
                continue;
            };
            let name = old.metadata.name.clone().unwrap_or_default();
            let mut new = wanted.clone();
            new.metadata.name = Some(name.clone());
            new.metadata.resource_version = old.metadata.resource_version;
            let replaced = self.slices().replace(&name, &PostParams::default(), &new).await;
            replaced.map_err(failed(format!("replace resource slice {name}")))?;
        }
        for surplus in known {
            self.delete(&surplus).await?;
        }
        Ok(count)
    }

    async fn delete(&self, slice: &ResourceSlice) -> Result<bool, ClusterError> {
        let name = slice.metadata.name.clone().unwrap_or_default();
        let deleted = self.slices().delete(&name, &DeleteParams::default()).await;
        let deleted = if_there(deleted).map_err(failed(format!("delete resource slice {name}")))?;
        Ok(deleted.is_some())
    }

    /// Changes labels of a node that differ; true if any did.
    async fn label(&self, node: &Node, labels: &Labels) -> Result<bool, ClusterError> {
        let name = node.metadata.name.clone().unwrap_or_default();
        let known = node.metadata.labels.clone().unwrap_or_default();
        let differs = |(key, value): &(&String, &Option<String>)| known.get(*key) != value.as_ref();
        let changes: Labels = labels
            .iter()
            .filter(differs)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if changes.is_empty() {
            return Ok(false);
        }
        let patch = serde_json::json!({"metadata": {"labels": changes}});
        let patched = patch_if_there(&self.nodes(), &name, &patch).await;
        patched.map_err(failed(format!("label node {name}")))?;
        Ok(true)
    }

    /// Removes the slices and labels of one node, or of all.
    ///
    /// # Errors
    /// [`ClusterError::Request`].
    pub async fn withdraw(&self, node: Option<&str>) -> Result<Withdrawn, ClusterError> {
        let mut done = Withdrawn::default();
        for slice in self.known_slices(node).await? {
            done.slices += usize::from(self.delete(&slice).await?);
        }
        let found = match node {
            Some(name) => {
                let found = if_there(self.nodes().get(name).await);
                found.map_err(failed(format!("read node {name}")))?.into_iter().collect()
            }
            None => {
                let all = self.nodes().list(&ListParams::default()).await;
                all.map_err(failed("list nodes"))?.items
            }
        };
        let none = objects::no_labels();
        for node in &found {
            done.nodes += usize::from(self.label(node, &none).await?);
        }
        Ok(done)
    }
}

async fn patch_if_there<K, P>(api: &Api<K>, name: &str, patch: &P) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + Debug,
    P: Serialize + Debug,
{
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if_there(patched).map(|_| ())
}
