//! An allocated resource claim as a placement on this node: nodes, sizes and a policy. Pure.
//!
//! A claim may state a policy in its configuration for this driver; that of a class applies if it does not:
//!
//! ```yaml
//! config:
//! - opaque:
//!     driver: memory.nearfar.io
//!     parameters: {apiVersion: nearfar.io/v1, kind: MemoryConfig, policy: interleave}
//! ```
//!
//! The policy is one for the whole claim: a container has one memory policy, and most use all requests of a claim.

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use nearfar_containers::claims::{ClaimPolicy, is_uid};
use nearfar_topology::{Bytes, NodeId};
use serde::Deserialize;

use crate::DRIVER;
use crate::devices::{Device, node_of};
use crate::objects::MEMORY;
use crate::quantity;

const VERSION: &str = "nearfar.io/v1";
const KIND: &str = "MemoryConfig";

/// The parameters of a configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    api_version: String,
    kind: String,
    policy: Option<String>,
}

/// Memory that a claim has on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The claim's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its policy.
    pub policy: ClaimPolicy,
    /// Its parts, one for each allocated device.
    pub parts: Vec<Part>,
}

/// A part of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The request of the claim.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
    /// The number that the scheduler gave to this part of the device.
    pub share: Option<String>,
    /// The NUMA node.
    pub node: NodeId,
    /// The size.
    pub bytes: Bytes,
}

/// A claim that can't be prepared, with its name, the value at fault and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim}: {why}")]
pub struct ClaimError {
    /// The claim, as NAMESPACE/NAME.
    pub claim: String,
    /// The reason.
    pub why: Reason,
}

/// The reason why a claim can't be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It has no proper uid.
    #[error("its uid `{0}` is no uid; it was not made by Kubernetes")]
    Uid(String),
    /// It is not allocated.
    #[error("it is not allocated; the scheduler allocates it once a pod uses it")]
    NotAllocated,
    /// It has no device of this node.
    #[error("it has no device of driver {DRIVER} in pool {0}; it is allocated on another node")]
    Elsewhere(String),
    /// The device is not one of this machine now.
    #[error(
        "device {device} is gone: this node has {has}; delete the pod so that the claim is allocated again"
    )]
    Gone {
        /// The device.
        device: String,
        /// The devices there are.
        has: String,
    },
    /// An allocation without a size.
    #[error(
        "request {request}: its allocation on {device} has no usable consumedCapacity {MEMORY} ({found}); the scheduler needs the \
         feature gate DRAConsumableCapacity (Kubernetes 1.36)"
    )]
    Size {
        /// The request.
        request: String,
        /// The device.
        device: String,
        /// The size's text.
        found: String,
    },
    /// More than the node has.
    #[error(
        "request {request}: {bytes} of {device} are more than its {has}; claim less, or delete the pod so that the claim is allocated again"
    )]
    TooLarge {
        /// The request.
        request: String,
        /// The device.
        device: String,
        /// The size.
        bytes: Bytes,
        /// The capacity.
        has: Bytes,
    },
    /// Administrative access.
    #[error("request {0}: adminAccess has no meaning for memory; remove it")]
    Admin(String),
    /// A configuration that is none.
    #[error(
        "its configuration {text} is not understood: {why}; write apiVersion: {VERSION}, kind: {KIND}, policy: {}",
        words()
    )]
    Config {
        /// The parameters.
        text: String,
        /// The reason.
        why: String,
    },
    /// Two configurations that contradict each other.
    #[error(
        "request {first} has the policy {one} and request {second} {other}; a claim has one policy: state it once for all requests, \
         or make two claims"
    )]
    Policies {
        /// A request.
        first: String,
        /// Its policy.
        one: &'static str,
        /// Another request, or the same.
        second: String,
        /// The other policy.
        other: &'static str,
    },
}

fn words() -> String {
    ClaimPolicy::ALL.map(ClaimPolicy::word).join("|")
}

/// The placement of `claim` on the node `pool` with these devices.
///
/// # Errors
/// [`ClaimError`].
pub fn placement(
    claim: &ResourceClaim,
    pool: &str,
    devices: &[Device],
) -> Result<Placement, ClaimError> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    let read = || {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        if !is_uid(&uid) {
            return Err(Reason::Uid(uid));
        }
        let status = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let allocation = status.ok_or(Reason::NotAllocated)?.devices.clone().unwrap_or_default();
        let results = allocation.results.unwrap_or_default();
        let ours = |result: &&DeviceRequestAllocationResult| {
            result.driver == DRIVER && result.pool == pool
        };
        let parts = results.iter().filter(ours).map(|result| part(result, devices));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() {
            return Err(Reason::Elsewhere(pool.into()));
        }
        let policy = policy(&allocation.config.unwrap_or_default(), &parts)?;
        let (namespace, name) = (namespace.clone(), name.clone());
        Ok(Placement { uid, namespace, name, policy, parts })
    };
    read().map_err(|why| ClaimError { claim: format!("{namespace}/{name}"), why })
}

fn part(result: &DeviceRequestAllocationResult, devices: &[Device]) -> Result<Part, Reason> {
    let request = result.request.clone();
    if result.admin_access == Some(true) {
        return Err(Reason::Admin(request));
    }
    let node = node_of(&result.device);
    let device = devices.iter().find(|device| Some(device.node) == node);
    let Some(device) = device else {
        let names: Vec<_> = devices.iter().map(Device::name).collect();
        let has = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(Reason::Gone { device: result.device.clone(), has });
    };
    let consumed = result.consumed_capacity.as_ref().and_then(|sizes| sizes.get(MEMORY));
    let bytes = consumed.and_then(|size| quantity::parse(&size.0)).filter(|size| size.0 > 0);
    let bytes = bytes.ok_or_else(|| Reason::Size {
        request: request.clone(),
        device: result.device.clone(),
        found: consumed.map_or_else(|| "none".into(), |size| size.0.clone()),
    })?;
    if bytes > device.capacity {
        let (device, has) = (result.device.clone(), device.capacity);
        return Err(Reason::TooLarge { request, device, bytes, has });
    }
    Ok(Part {
        request,
        pool: result.pool.clone(),
        device: result.device.clone(),
        share: result.share_id.clone(),
        node: device.node,
        bytes,
    })
}

/// The policy of all parts.
fn policy(
    configs: &[DeviceAllocationConfiguration],
    parts: &[Part],
) -> Result<ClaimPolicy, Reason> {
    let mut stated = Vec::new();
    for config in configs {
        let opaque = config.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER);
        let Some(opaque) = opaque else { continue };
        if let Some(policy) = stated_policy(&opaque.parameters.0)? {
            stated.push((config, policy));
        }
    }
    let mut known: Option<(&str, ClaimPolicy)> = None;
    for part in parts {
        let all = |source: &str| {
            let of = stated
                .iter()
                .filter(|(config, _)| config.source == source && applies(config, &part.request));
            of.map(|(_, policy)| *policy).collect::<Vec<_>>()
        };
        let own = all("FromClaim");
        // Of a class the last statement applies; a claim overrides it, and must not contradict itself.
        let class = all("FromClass").last().copied().into_iter().collect::<Vec<_>>();
        let stated = if own.is_empty() { class } else { own };
        let stated = if stated.is_empty() { vec![ClaimPolicy::default()] } else { stated };
        for policy in stated {
            let (first, one) = *known.get_or_insert((&part.request, policy));
            if one != policy {
                return Err(Reason::Policies {
                    first: first.into(),
                    one: one.word(),
                    second: part.request.clone(),
                    other: policy.word(),
                });
            }
        }
    }
    Ok(known.map(|(_, policy)| policy).unwrap_or_default())
}

/// Whether a configuration is for this request; one for a request is also for its subrequests.
fn applies(config: &DeviceAllocationConfiguration, request: &str) -> bool {
    let main = request.split('/').next().unwrap_or_default();
    let requests = config.requests.as_deref().unwrap_or_default();
    requests.is_empty() || requests.iter().any(|one| one == request || one == main)
}

fn stated_policy(parameters: &serde_json::Value) -> Result<Option<ClaimPolicy>, Reason> {
    const SHOWN: usize = 200;
    let wrong = |why: String| {
        let text = parameters.to_string().chars().take(SHOWN).collect();
        Reason::Config { text, why }
    };
    let config = Config::deserialize(parameters).map_err(|why| wrong(why.to_string()))?;
    if config.api_version != VERSION || config.kind != KIND {
        return Err(wrong(format!("it is {} {}", config.api_version, config.kind)));
    }
    let named = |word: String| {
        ClaimPolicy::named(&word).ok_or_else(|| wrong(format!("there is no policy {word}")))
    };
    config.policy.map(named).transpose()
}

#[cfg(test)]
#[path = "claims/tests.rs"]
mod tests;
