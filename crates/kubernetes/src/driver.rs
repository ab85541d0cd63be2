//! Preparation of claims: reads a claim from the API server, checks it against the machine, writes its CDI file.
//!
//! There is no state but the CDI files: the same claim has the same answer again, also from another process. A claim
//! without a file is already reverted. Files of claims that no longer exist are removed at start ([`Driver::sweep`]).

use std::future::Future;

use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::cdi::{self, Store};
use crate::claims::{Part, placement};
use crate::devices::Device;
use crate::messages;

/// The cluster and the machine, as far as the driver uses them.
pub trait Host: Send + Sync + 'static {
    /// Reads a claim; `None` if there is none of this name.
    fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<ResourceClaim>, String>> + Send;
    /// The devices of the machine now.
    ///
    /// # Errors
    /// The reason why the machine can't be read.
    fn devices(&self) -> Result<Vec<Device>, String>;
    /// A line for the log: `event=... key=value`.
    fn log(&self, line: &str);
}

/// The driver of one node.
#[derive(Debug)]
pub struct Driver<H> {
    node: String,
    store: Store,
    host: H,
}

impl<H: Host> Driver<H> {
    /// The driver of the cluster's node `node`, with CDI files in `store`.
    pub fn new(node: impl Into<String>, store: Store, host: H) -> Self {
        Self { node: node.into(), store, host }
    }

    /// The cluster and the machine.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Prepares a claim; its devices, or the reason in words.
    ///
    /// # Errors
    /// The reason, with the claim's name.
    pub async fn prepare(&self, claim: &messages::Claim) -> Result<Vec<messages::Device>, String> {
        let done = self.prepared(claim).await;
        let names = names(claim);
        match &done {
            Ok(devices) => {
                let count = devices.len();
                self.host.log(&format!("event=prepared {names} devices={count}"));
            }
            Err(why) => self.host.log(&format!("event=refused {names} reason={}", quoted(why))),
        }
        done
    }

    async fn prepared(&self, wanted: &messages::Claim) -> Result<Vec<messages::Device>, String> {
        let name = format!("claim {}/{}", wanted.namespace, wanted.name);
        let found = self.host.claim(&wanted.namespace, &wanted.name).await;
        let found = found.map_err(|why| format!("{name}: can't read it: {why}"))?;
        let found = found.ok_or_else(|| format!("{name}: there is no such claim"))?;
        let uid = found.metadata.uid.as_deref().unwrap_or_default();
        if uid != wanted.uid {
            let old = &wanted.uid;
            return Err(format!(
                "{name}: it was replaced (uid {uid} instead of {old}); delete the pod"
            ));
        }
        let devices = self.host.devices().map_err(|why| format!("{name}: {why}"))?;
        let placement = placement(&found, &self.node, &devices).map_err(|why| why.to_string())?;
        let device = |(part, number): (&Part, u16)| {
            Some(messages::Device {
                request_names: vec![part.request.clone()],
                pool_name: part.pool.clone(),
                device_name: part.device.clone(),
                cdi_device_ids: vec![cdi::device(&placement.uid, number)?],
                share_id: part.share.clone(),
            })
        };
        let answer: Vec<_> = placement.parts.iter().zip(0u16..).filter_map(device).collect();
        let written = self.store.write(&placement);
        written.map_err(|why| format!("{name}: can't write its CDI file: {why}"))?;
        Ok(answer)
    }

    /// Reverts the preparation of a claim; one that is unknown is reverted already.
    ///
    /// # Errors
    /// The reason in words.
    pub fn unprepare(&self, claim: &messages::Claim) -> Result<(), String> {
        let names = names(claim);
        if !nearfar_containers::claims::is_uid(&claim.uid) {
            return Err(format!(
                "claim {}/{}: `{}` is no uid",
                claim.namespace, claim.name, claim.uid
            ));
        }
        match self.store.remove(&claim.uid) {
            Ok(was_there) => {
                self.host.log(&format!("event=unprepared {names} was_prepared={was_there}"));
                Ok(())
            }
            Err(why) => Err(format!(
                "claim {}/{}: can't remove its CDI file: {why}",
                claim.namespace, claim.name
            )),
        }
    }

    /// Removes CDI files of claims that no longer exist. A claim that can't be read keeps its file.
    pub async fn sweep(&self) {
        let prepared = match self.store.list() {
            Ok(prepared) => prepared,
            Err(why) => {
                let why = quoted(&why.to_string());
                self.host.log(&format!("event=sweep_failed reason={why}"));
                return;
            }
        };
        for one in prepared {
            let is_gone = if one.name.is_empty() {
                // A file without a claim's name was not written as a whole by this driver.
                Ok(true)
            } else {
                let found = self.host.claim(&one.namespace, &one.name).await;
                found.map(|claim| {
                    claim.and_then(|claim| claim.metadata.uid) != Some(one.uid.clone())
                })
            };
            let removed = match is_gone {
                Ok(false) => continue,
                Ok(true) => self.store.remove(&one.uid).map_err(|why| why.to_string()),
                Err(why) => Err(why),
            };
            let result = removed
                .map_or_else(|why| format!("kept reason={}", quoted(&why)), |_| "removed".into());
            self.host.log(&format!("event=leftover uid={} result={result}", one.uid));
        }
    }
}

fn names(claim: &messages::Claim) -> String {
    let name = format!("{}/{}", claim.namespace, claim.name);
    format!("claim={} uid={}", quoted(&name), quoted(&claim.uid))
}

/// A value in the log, as in JSON: without line breaks.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
