//! The plugin's answers to a runtime's calls, without I/O: placement as a container is created, verification after its
//! start.
//!
//! A runtime of NRI 0.12 or later gets the memory policy as an adjustment. Older ones, which announce no version, accept
//! it and ignore it, so a kind that binds becomes the container's `cpuset.mems`, which all versions know; other policies
//! can't be expressed there, and the container is refused. Refusals are answers with a reason, which the runtime shows
//! as the error of the container.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::process::Identity;
use nearfar_topology::{Bytes, Topology};
use prost::Message;

use super::log::{names, reason, word};
use super::messages as nri;
use super::messages::Event;
use super::metrics::Metrics;
use super::ttrpc::{Status, code};
use crate::annotations::{Annotations, Classes, Request};
use crate::bundle::{LIBRARY, LIBRARY_OPTIONS, heap_variables};
use crate::claims::Claimed;
use crate::policy::{MemoryPolicy, Mode};
use crate::resolve::{Resolved, resolve};
use crate::seat::Seat;
use crate::verify::{Report, Verdict, confined, verify};

/// Verifications of a container after its start, until the result is not wrong: its program may replace the runtime's
/// process a moment later.
const TRIES: usize = 5;

/// The reaction to a placement that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    /// It is reported.
    Event,
    /// The runtime is asked to evict the container, and its first process is ended.
    Evict,
}

/// The plugin's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name.
    pub name: String,
    /// Its place in the order of plugins: 0 to 99.
    pub index: u8,
    /// The reaction to a wrong placement.
    pub on_mismatch: OnMismatch,
    /// Policies by class.
    pub classes: Classes,
    /// The preload library on the host; `None` refuses containers with a heap.
    pub library: Option<PathBuf>,
    /// The directory of CDI files, where the DRA driver puts those of claims.
    pub cdi_dir: String,
}

/// The system on which the plugin runs.
pub trait Host {
    /// Its files.
    fn fs(&self) -> &dyn Fs;
    /// Its memory now: nodes come and go.
    fn machine(&self) -> Topology;
    /// A line for the log: `event=... key=value`.
    fn log(&mut self, line: &str);
    /// The counters have changed.
    fn publish(&mut self, metrics: &Metrics);
    /// The process that has this id now.
    fn process(&self, pid: u32) -> Option<Identity>;
    /// Ends a process, if it still runs.
    ///
    /// # Errors
    /// The kernel's.
    fn end(&mut self, process: Identity) -> io::Result<()>;
    /// Sets the budget of near memory (maximum, minimum) of the cgroup of process `pid`, until the cgroup is removed.
    ///
    /// # Errors
    /// The reason in words.
    fn set_budget(
        &mut self,
        pid: u32,
        max: Option<Bytes>,
        min: Option<Bytes>,
    ) -> Result<(), String>;
    /// Waits a moment before another try.
    fn pause(&self);
}

/// The plugin.
#[derive(Debug)]
pub struct Plugin {
    settings: Settings,
    metrics: Metrics,
    /// Placements by container.
    placed: BTreeMap<String, MemoryPolicy>,
    /// Pods and containers of the parts of a synchronisation.
    pods: BTreeMap<String, nri::PodSandbox>,
    containers: Vec<nri::Container>,
    /// Containers found running, which are still to be verified.
    unverified: VecDeque<(nri::PodSandbox, nri::Container, Identity)>,
    /// Whether the runtime knows memory policies.
    is_native: bool,
    /// Calls of the runtime to be made: method and argument.
    outbox: Vec<(&'static str, Vec<u8>)>,
}

type Answer = Result<Vec<u8>, Status>;

fn failed(code: i32, message: impl Into<String>) -> Status {
    Status { code, message: message.into() }
}

fn decoded<M: Message + Default>(payload: &[u8]) -> Result<M, Status> {
    M::decode(payload).map_err(|error| failed(code::INVALID_ARGUMENT, error.to_string()))
}

/// Whether a runtime with this version of NRI (`v0.12.3`) knows memory policies.
#[must_use]
pub fn is_native(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
    matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (0, 12))
}

impl Plugin {
    /// A plugin without a connection.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            metrics: Metrics::default(),
            placed: BTreeMap::new(),
            pods: BTreeMap::new(),
            containers: Vec::new(),
            unverified: VecDeque::new(),
            is_native: false,
            outbox: Vec::new(),
        }
    }

    /// Starts a connection: drops the state that the runtime will synchronize again. Returns the plugin's introduction.
    pub fn connect(&mut self) -> nri::RegisterPluginRequest {
        self.placed.clear();
        self.pods.clear();
        self.containers.clear();
        self.unverified.clear();
        self.outbox.clear();
        self.is_native = false;
        self.metrics.connections += 1;
        nri::RegisterPluginRequest {
            plugin_name: self.settings.name.clone(),
            plugin_idx: format!("{:02}", self.settings.index),
            nri_version: "v0.12.0".into(),
        }
    }

    /// Calls of the runtime that are to be made now.
    pub fn take_calls(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        std::mem::take(&mut self.outbox)
    }

    /// Answers a call.
    ///
    /// # Errors
    /// The status that the runtime gets.
    pub fn call(&mut self, method: &str, payload: &[u8], host: &mut dyn Host) -> Answer {
        let empty = Ok(Vec::new());
        match method {
            "Configure" => return self.configure(&decoded(payload)?, host),
            "Synchronize" => return self.synchronize(decoded(payload)?, host),
            "CreateContainer" => return self.create(decoded(payload)?, host),
            "PostStartContainer" | "StopContainer" | "RemoveContainer" => {
                let event: nri::CreateContainerRequest = decoded(payload)?;
                let number = match method {
                    "PostStartContainer" => Event::PostStartContainer,
                    "StopContainer" => Event::StopContainer,
                    _ => Event::RemoveContainer,
                };
                self.event(number as i32, event.pod, event.container, host);
            }
            "StateChange" => {
                let event: nri::StateChangeEvent = decoded(payload)?;
                self.event(event.event, event.pod, event.container, host);
            }
            // Events without a subscription are sent by no runtime; an answer without changes is right for all.
            "Shutdown"
            | "RunPodSandbox"
            | "UpdatePodSandbox"
            | "PostUpdatePodSandbox"
            | "StopPodSandbox"
            | "RemovePodSandbox"
            | "PostCreateContainer"
            | "StartContainer"
            | "UpdateContainer"
            | "PostUpdateContainer" => {}
            _ => return Err(failed(code::UNIMPLEMENTED, format!("no method {method}"))),
        }
        self.metrics.containers = self.placed.len() as u64;
        host.publish(&self.metrics);
        empty
    }

    fn configure(&mut self, request: &nri::ConfigureRequest, host: &mut dyn Host) -> Answer {
        self.is_native = is_native(&request.nri_version);
        let version = Some(request.nri_version.as_str()).filter(|version| !version.is_empty());
        host.log(&format!(
            "event=configured runtime={} version={} nri={} policies={}",
            word(&request.runtime_name),
            word(&request.runtime_version),
            version.unwrap_or("before-0.12"),
            if self.is_native { "native" } else { "cpuset-only" },
        ));
        host.publish(&self.metrics);
        let events = [
            Event::CreateContainer,
            Event::PostStartContainer,
            Event::StopContainer,
            Event::RemoveContainer,
        ];
        let events = events.into_iter().map(Event::bit).sum();
        Ok(nri::ConfigureResponse { events }.encode_to_vec())
    }

    /// Notes the running containers. A runtime waits two seconds for the answer, and pods may come in a later part than their
    /// containers, so the containers are verified afterwards, one by one.
    fn synchronize(&mut self, request: nri::SynchronizeRequest, host: &mut dyn Host) -> Answer {
        self.pods.extend(request.pods.into_iter().map(|pod| (pod.id.clone(), pod)));
        let running = request.containers.into_iter().filter(|one| one.state == nri::RUNNING);
        self.containers.extend(running);
        if !request.more {
            let pods = std::mem::take(&mut self.pods);
            for container in self.containers.drain(..) {
                let pod = pods.get(&container.pod_sandbox_id).cloned().unwrap_or_default();
                let process = host.process(container.pid);
                self.unverified.extend(process.map(|process| (pod, container, process)));
            }
        }
        host.publish(&self.metrics);
        Ok(nri::SynchronizeResponse { more: request.more }.encode_to_vec())
    }

    /// Whether containers are still to be verified, while the runtime has no call.
    #[must_use]
    pub fn has_unverified(&self) -> bool {
        !self.unverified.is_empty()
    }

    /// Verifies the next of them.
    pub fn verify_next(&mut self, host: &mut dyn Host) {
        let Some((pod, container, process)) = self.unverified.pop_front() else { return };
        // Its id may be another's by now.
        if host.process(container.pid) == Some(process) {
            self.started(&pod, &container, host);
            self.metrics.containers = self.placed.len() as u64;
            host.publish(&self.metrics);
        }
    }

    /// The settings of a container, if its annotations or claims ask for any.
    fn resolved(
        &self,
        pod: &nri::PodSandbox,
        container: &nri::Container,
        host: &dyn Host,
    ) -> Result<Resolved, String> {
        let mut annotations: Annotations = pod.annotations.clone();
        annotations.extend(container.annotations.clone());
        let classes = &self.settings.classes;
        let mut wanted = Request::read(&annotations, Some(&container.name), classes)
            .map_err(|why| why.to_string())?;
        let claimed = Claimed::read(&container.env, &self.settings.cdi_dir, host.fs())
            .map_err(|why| why.to_string())?;
        if wanted.is_empty() && claimed.is_none() {
            return Ok(Resolved::default());
        }
        let resources = container.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let cpu = resources.and_then(|resources| resources.cpu.clone()).unwrap_or_default();
        let machine = host.machine();
        if let Some(claimed) = claimed {
            let near_max = claimed.near_max(&machine);
            wanted = wanted.with_claimed(&claimed, near_max).map_err(|why| why.to_string())?;
        }
        let seat = Seat::new(&machine, (&cpu.mems, &cpu.cpus), &wanted, host.fs())
            .map_err(|why| why.to_string())?;
        resolve(&wanted, &seat).map_err(|why| why.to_string())
    }

    fn create(&mut self, request: nri::CreateContainerRequest, host: &mut dyn Host) -> Answer {
        let (pod, container) =
            (request.pod.unwrap_or_default(), request.container.unwrap_or_default());
        let resolved = self.resolved(&pod, &container, host);
        let adjusted =
            resolved.and_then(|resolved| Ok((self.adjustment(&resolved, &container)?, resolved)));
        let answer = match adjusted {
            Ok((None, _)) => return Ok(nri::CreateContainerResponse::default().encode_to_vec()),
            Ok((adjust, resolved)) => {
                self.metrics.adjusted += 1;
                for note in &resolved.notes {
                    host.log(&format!("event=note {} {}", names(&pod, &container), reason(note)));
                }
                let policy = resolved.policy.as_ref().map(ToString::to_string);
                host.log(&format!(
                    "event=adjusted {} policy={} heap={}",
                    names(&pod, &container),
                    word(&policy.unwrap_or_else(|| "none".into())),
                    word(resolved.heap.as_deref().unwrap_or("none")),
                ));
                Ok(nri::CreateContainerResponse { adjust }.encode_to_vec())
            }
            Err(why) => {
                self.metrics.refused += 1;
                host.log(&format!("event=refused {} {}", names(&pod, &container), reason(&why)));
                Err(failed(code::UNKNOWN, format!("nearfar: container {}: {why}", container.name)))
            }
        };
        host.publish(&self.metrics);
        answer
    }

    /// The changes of a container's settings; `None` without any.
    fn adjustment(
        &self,
        resolved: &Resolved,
        container: &nri::Container,
    ) -> Result<Option<nri::ContainerAdjustment>, String> {
        let mut adjust = nri::ContainerAdjustment::default();
        let mut linux = nri::LinuxContainerAdjustment::default();
        let mut mems = resolved.mems.clone();
        match &resolved.policy {
            Some(policy) if self.is_native => linux.memory_policy = Some(policy.into()),
            Some(policy) if policy.mode == Mode::Bind => mems = Some(policy.nodes.clone()),
            Some(policy) if policy.mode == Mode::Default => {}
            Some(policy) => {
                return Err(format!(
                    "{policy}: this container runtime can't set memory policies (they need NRI 0.12, as in containerd 2.3); \
                     bind to nodes (nearfar.io/memory: far), or run the container with nearfar oci-runtime"
                ));
            }
            None => {}
        }
        if let Some(mems) = mems {
            let cpu = nri::LinuxCpu { mems: mems.to_string(), ..nri::LinuxCpu::default() };
            linux.resources = Some(nri::LinuxResources { cpu: Some(cpu) });
        }
        if let Some(conf) = &resolved.heap {
            let library = self.settings.library.as_ref().ok_or(
                "nearfar.io/heap: the plugin found no libnearfar_preload.so; start it with NEARFAR_PRELOAD=PATH",
            )?;
            adjust.mounts.push(nri::Mount {
                destination: LIBRARY.into(),
                kind: "bind".into(),
                source: library.to_string_lossy().into_owned(),
                options: LIBRARY_OPTIONS.map(String::from).into(),
            });
            let variables = heap_variables(&container.env, conf);
            let variables = variables.map(|(key, value)| nri::KeyValue { key: key.into(), value });
            adjust.env.extend(variables);
        }
        adjust.linux = (linux != nri::LinuxContainerAdjustment::default()).then_some(linux);
        Ok((adjust != nri::ContainerAdjustment::default()).then_some(adjust))
    }

    fn event(
        &mut self,
        number: i32,
        pod: Option<nri::PodSandbox>,
        container: Option<nri::Container>,
        host: &mut dyn Host,
    ) {
        let Some(container) = container else { return };
        let pod = pod.unwrap_or_default();
        if number == Event::PostStartContainer as i32 {
            self.started(&pod, &container, host);
        } else if [Event::StopContainer as i32, Event::RemoveContainer as i32].contains(&number) {
            self.placed.remove(&container.id);
            self.unverified.retain(|(_, other, _)| other.id != container.id);
        }
    }

    /// Verifies a running container, and sets its budget.
    fn started(&mut self, pod: &nri::PodSandbox, container: &nri::Container, host: &mut dyn Host) {
        match self.resolved(pod, container, host) {
            Ok(resolved) => {
                if let Some(policy) = &resolved.policy {
                    self.verify(policy, (pod, container), host);
                }
                if let Some(budget) = resolved.near {
                    set_budget(budget, (pod, container), host);
                }
            }
            Err(why) => {
                host.log(&format!("event=unresolved {} {}", names(pod, container), reason(&why)))
            }
        }
    }

    fn verify(
        &mut self,
        policy: &MemoryPolicy,
        (pod, container): (&nri::PodSandbox, &nri::Container),
        host: &mut dyn Host,
    ) {
        let process = host.process(container.pid);
        let mut report = self.check(policy, container.pid, host.fs());
        for _ in 1..TRIES {
            if !matches!(report.verdict, Verdict::Wrong(_)) {
                break;
            }
            host.pause();
            report = self.check(policy, container.pid, host.fs());
        }
        self.metrics.count(&report.verdict);
        self.placed.insert(container.id.clone(), policy.clone());
        host.log(&format!(
            "event=verified {} pid={} result={} {}",
            names(pod, container),
            container.pid,
            report.verdict.word(),
            reason(&report.to_string()),
        ));
        let is_wrong = matches!(report.verdict, Verdict::Wrong(_));
        if is_wrong && self.settings.on_mismatch == OnMismatch::Evict {
            self.evict(&report, (pod, container, process), host);
        }
    }

    fn check(&self, policy: &MemoryPolicy, pid: u32, fs: &dyn Fs) -> Report {
        if self.is_native || policy.mode != Mode::Bind {
            verify(fs, pid, policy)
        } else {
            confined(fs, pid, policy)
        }
    }

    /// Asks the runtime to evict the container. As runtimes of NRI 0.12 take no notice, its process is ended as well; the
    /// pod's restart policy applies.
    fn evict(
        &mut self,
        report: &Report,
        (pod, container, process): (&nri::PodSandbox, &nri::Container, Option<Identity>),
        host: &mut dyn Host,
    ) {
        let eviction = nri::ContainerEviction {
            container_id: container.id.clone(),
            reason: format!("nearfar: memory placement is {report}"),
        };
        let request = nri::UpdateContainersRequest { evict: vec![eviction] };
        self.outbox.push(("UpdateContainers", request.encode_to_vec()));
        self.metrics.evicted += 1;
        let ended = process.map_or(Ok(()), |process| host.end(process));
        let result = ended.map_or_else(|error| error.to_string(), |()| "ended".into());
        host.log(&format!("event=evicted {} {}", names(pod, container), reason(&result)));
    }
}

/// Sets a container's budget of near memory and logs the result.
fn set_budget(
    (max, min): (Option<Bytes>, Option<Bytes>),
    (pod, container): (&nri::PodSandbox, &nri::Container),
    host: &mut dyn Host,
) {
    let text = |size: Option<Bytes>| size.map_or_else(|| "none".into(), |size| size.0.to_string());
    let result = match host.set_budget(container.pid, max, min) {
        Ok(()) => "result=set".to_owned(),
        Err(why) => format!("result=failed {}", reason(&why)),
    };
    host.log(&format!(
        "event=budget {} near_max={} near_min={} {result}",
        names(pod, container),
        text(max),
        text(min)
    ));
}

#[cfg(test)]
#[path = "plugin/tests.rs"]
mod tests;
