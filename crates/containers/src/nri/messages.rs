//! Messages of `nri.pkg.api.v1alpha1`, as far as this plugin uses them; fields that are left out are skipped when read.
//!
//! Names and numbers of fields are those of NRI's api.proto, version 0.12 (github.com/containerd/nri).

use std::collections::BTreeMap;

use crate::policy::{MemoryPolicy, flags_set};

/// The service that a plugin calls.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The service that a plugin provides.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// An event that a plugin can subscribe to, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Before a container is created: its settings may be adjusted.
    CreateContainer = 4,
    /// After its process was started.
    PostStartContainer = 7,
    /// It was stopped.
    StopContainer = 10,
    /// It was removed.
    RemoveContainer = 11,
}

impl Event {
    /// Its bit in the mask of [`ConfigureResponse`].
    #[must_use]
    pub const fn bit(self) -> i32 {
        1 << (self as i32 - 1)
    }
}

/// A message without fields.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// The plugin introduces itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterPluginRequest {
    /// Its name.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Two digits: its place in the order of plugins.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
    /// The version of NRI that it was made for.
    #[prost(string, tag = "3")]
    pub nri_version: String,
}

/// The plugin's unsolicited changes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateContainersRequest {
    /// Containers to evict.
    #[prost(message, repeated, tag = "2")]
    pub evict: Vec<ContainerEviction>,
}

/// A request to end a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerEviction {
    /// The container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// The reason.
    #[prost(string, tag = "2")]
    pub reason: String,
}

/// The runtime introduces itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfigureRequest {
    /// Its name.
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    /// The time an answer may take, in milliseconds.
    #[prost(int64, tag = "5")]
    pub request_timeout: i64,
    /// Its version of NRI, since 0.12.
    #[prost(string, tag = "6")]
    pub nri_version: String,
}

/// The plugin's subscription.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ConfigureResponse {
    /// The events, each by its bit.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// Pods and containers that exist already, possibly in several parts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SynchronizeRequest {
    /// Pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    /// Containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    /// Whether another part follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The answer to a part.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct SynchronizeResponse {
    /// That of the request: parts are understood.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// A container is about to be created. Other events of a container have the same form.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainerRequest {
    /// Its pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    /// It.
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
}

/// The changes of its settings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateContainerResponse {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
}

/// An event as runtimes before NRI 0.12 send it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StateChangeEvent {
    /// The event's number.
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// The pod.
    #[prost(message, optional, tag = "2")]
    pub pod: Option<PodSandbox>,
    /// The container.
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

/// A pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandbox {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its annotations.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The id of its pod.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its state; 3 is running.
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Its own annotations.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    /// Its variables, `KEY=VALUE`.
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    /// Its settings for Linux.
    #[prost(message, optional, tag = "11")]
    pub linux: Option<LinuxContainer>,
    /// Its first process; 0 if there is none.
    #[prost(uint32, tag = "12")]
    pub pid: u32,
}

/// The state of a running container.
pub const RUNNING: i32 = 3;

/// A container's settings for Linux.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainer {
    /// Its resources.
    #[prost(message, optional, tag = "3")]
    pub resources: Option<LinuxResources>,
}

/// Resources.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxResources {
    /// CPUs and nodes.
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<LinuxCpu>,
}

/// A cpuset.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxCpu {
    /// Its CPUs, as a list.
    #[prost(string, tag = "6")]
    pub cpus: String,
    /// Its nodes, as a list.
    #[prost(string, tag = "7")]
    pub mems: String,
}

/// A mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// Its place in the container.
    #[prost(string, tag = "1")]
    pub destination: String,
    /// Its type.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// Its source on the host.
    #[prost(string, tag = "3")]
    pub source: String,
    /// Its options.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// A variable.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Changes of a container's settings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAdjustment {
    /// Additional mounts.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<Mount>,
    /// Variables; a name with a leading `-` removes one.
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<KeyValue>,
    /// Settings for Linux.
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxContainerAdjustment>,
}

/// Changes of settings for Linux.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainerAdjustment {
    /// Resources.
    #[prost(message, optional, tag = "2")]
    pub resources: Option<LinuxResources>,
    /// The memory policy, since NRI 0.12.
    #[prost(message, optional, tag = "12")]
    pub memory_policy: Option<LinuxMemoryPolicy>,
}

/// A memory policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxMemoryPolicy {
    /// Linux's number of the mode.
    #[prost(int32, tag = "1")]
    pub mode: i32,
    /// The nodes, as a list.
    #[prost(string, tag = "2")]
    pub nodes: String,
    /// Flags: 0 static nodes, 1 relative nodes, 2 NUMA balancing.
    #[prost(int32, repeated, tag = "3")]
    pub flags: Vec<i32>,
}

impl From<&MemoryPolicy> for LinuxMemoryPolicy {
    fn from(policy: &MemoryPolicy) -> Self {
        let flags = (0..).zip(flags_set(policy.flags)).filter(|(_, is_set)| *is_set);
        Self {
            mode: policy.mode as i32,
            nodes: policy.nodes.to_string(),
            flags: flags.map(|(number, _)| number).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn events_have_the_bits_of_nri() {
        // (1 << 3) | (1 << 6) | (1 << 9) | (1 << 10), as NRI numbers them from 1.
        let events = [
            Event::CreateContainer,
            Event::PostStartContainer,
            Event::StopContainer,
            Event::RemoveContainer,
        ];
        assert_eq!(events.map(Event::bit), [8, 64, 512, 1024]);
    }

    #[test]
    fn an_adjustment_has_the_fields_of_nri() {
        let policy =
            MemoryPolicy::from_numa_maps("weighted interleave=static|balancing:0-2").unwrap().0;
        let linux = LinuxContainerAdjustment {
            memory_policy: Some((&policy).into()),
            ..LinuxContainerAdjustment::default()
        };
        let adjust = ContainerAdjustment { linux: Some(linux), ..ContainerAdjustment::default() };
        // Field 6, in it 12, in it 1 = 6, 2 = "0-2", 3 = packed 0 and 2.
        let policy = [&[0x08, 6, 0x12, 3][..], b"0-2", &[0x1a, 2, 0, 2]].concat();
        let length = u8::try_from(policy.len()).unwrap();
        let expected = [&[0x32, length + 2, 0x62, length][..], &policy].concat();
        assert_eq!(adjust.encode_to_vec(), expected);
    }

    #[test]
    fn unknown_fields_are_skipped() {
        // A pod with name (2), labels (5) and ips (10).
        let bytes = [&[0x12, 1][..], b"p", &[0x2a, 6, 0x0a, 1, b'k', 0x12, 1, b'v', 0x52, 1, b'1']]
            .concat();
        let pod = PodSandbox::decode(bytes.as_slice()).unwrap();
        assert_eq!(pod.name, "p");
        assert!(PodSandbox::decode(&[0x12, 9][..]).is_err());
    }
}
