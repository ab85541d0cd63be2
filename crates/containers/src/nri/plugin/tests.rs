//! Tests of the plugin's answers on a machine with near and far memory.

use super::*;
use crate::nri::fake::Fake;
use std::path::Path;

/// A plugin that a runtime with this version of NRI has configured.
fn plugin(version: &str, on_mismatch: OnMismatch, host: &mut Fake) -> Plugin {
    let mut plugin = Plugin::new(Settings {
        name: "nearfar".into(),
        index: 10,
        on_mismatch,
        classes: Classes::new(),
        library: Some("/usr/lib/libnearfar_preload.so".into()),
        cdi_dir: "/var/run/cdi".into(),
    });
    assert_eq!(plugin.connect().plugin_idx, "10");
    let configure =
        nri::ConfigureRequest { nri_version: version.into(), ..nri::ConfigureRequest::default() };
    let answer = plugin.call("Configure", &configure.encode_to_vec(), host).unwrap();
    assert_eq!(nri::ConfigureResponse::decode(&answer[..]).unwrap().events, 8 | 64 | 512 | 1024);
    plugin
}

fn request(annotations: &[(&str, &str)], mems: &str) -> nri::CreateContainerRequest {
    let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into()));
    let pod = nri::PodSandbox {
        name: "p".into(),
        namespace: "n".into(),
        annotations: annotations.collect(),
        ..nri::PodSandbox::default()
    };
    let cpu = nri::LinuxCpu { mems: mems.into(), ..nri::LinuxCpu::default() };
    let resources = Some(nri::LinuxResources { cpu: Some(cpu) });
    let container = nri::Container {
        id: "c1".into(),
        name: "db".into(),
        state: nri::RUNNING,
        linux: Some(nri::LinuxContainer { resources }),
        pid: 7,
        ..nri::Container::default()
    };
    nri::CreateContainerRequest { pod: Some(pod), container: Some(container) }
}

fn created(
    plugin: &mut Plugin,
    host: &mut Fake,
    request: &nri::CreateContainerRequest,
) -> Result<Option<nri::ContainerAdjustment>, String> {
    let answer = plugin.call("CreateContainer", &request.encode_to_vec(), host);
    let answer = answer.map_err(|status| status.message)?;
    Ok(nri::CreateContainerResponse::decode(&answer[..]).unwrap().adjust)
}

#[test]
fn versions_with_memory_policies_are_known() {
    for (version, native) in [
        ("v0.12.0", true),
        ("v0.12.3", true),
        ("0.13.0-rc1", true),
        ("v1.0.0", true),
        ("v0.11.0", false),
        ("", false),
        ("x", false),
    ] {
        assert_eq!(is_native(version), native, "{version}");
    }
}

#[test]
fn a_container_without_annotations_is_not_adjusted() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    assert_eq!(created(&mut plugin, &mut host, &request(&[], "")), Ok(None));
    assert_eq!(host.metrics.adjusted, 0);
}

#[test]
fn policy_cpuset_and_heap_are_adjusted() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    let annotations = [
        ("nearfar.io/memory", "near"),
        ("memory.nearfar.io/container.db", "interleave:near,far"),
        ("nearfar.io/mems", "widen"),
        ("nearfar.io/heap", "far;limit=1g"),
    ];
    let adjust = created(&mut plugin, &mut host, &request(&annotations, "0")).unwrap().unwrap();
    let linux = adjust.linux.unwrap();
    let policy = linux.memory_policy.unwrap();
    assert_eq!((policy.mode, policy.nodes.as_str(), &policy.flags[..]), (3, "0-1", &[0][..]));
    assert_eq!(linux.resources.unwrap().cpu.unwrap().mems, "0-1");
    assert_eq!(adjust.mounts[0].source, "/usr/lib/libnearfar_preload.so");
    let env: Vec<_> = adjust.env.iter().map(|env| (env.key.as_str(), env.value.as_str())).collect();
    assert_eq!(env, [("LD_PRELOAD", LIBRARY), ("NEARFAR_CONF", "heap=far;limit=1g")]);
    assert!(Path::new(LIBRARY).is_absolute());
    assert_eq!(host.metrics.adjusted, 1);
}

#[test]
fn an_old_runtime_gets_a_cpuset_for_a_binding_and_refuses_other_policies() {
    let mut host = Fake::new();
    let mut plugin = plugin("", OnMismatch::Event, &mut host);
    let far = request(&[("nearfar.io/memory", "far")], "");
    let linux = created(&mut plugin, &mut host, &far).unwrap().unwrap().linux.unwrap();
    assert_eq!(linux.memory_policy, None);
    assert_eq!(linux.resources.unwrap().cpu.unwrap().mems, "1");
    let both = request(&[("nearfar.io/memory", "interleave:all")], "");
    let refused = created(&mut plugin, &mut host, &both).unwrap_err();
    assert!(refused.contains("NRI 0.12") && refused.contains("oci-runtime"), "{refused}");
    assert_eq!((host.metrics.adjusted, host.metrics.refused), (1, 1));
    // Then the cpuset is verified.
    host.fs.plant(&[("proc/7/status".into(), "Name:\tx\nMems_allowed_list:\t1\n")]);
    plugin.call("PostStartContainer", &far.encode_to_vec(), &mut host).unwrap();
    assert_eq!(host.metrics.verified, [1, 0, 0, 0]);
}

#[test]
fn impossible_annotations_refuse_the_container_with_the_reason() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    for (value, mems, part) in [("hbm", "", "hbm"), ("far", "0", "widen"), ("far", "x", "mems `x`")]
    {
        let request = request(&[("nearfar.io/memory", value)], mems);
        let refused = created(&mut plugin, &mut host, &request).unwrap_err();
        assert!(refused.contains("container db") && refused.contains(part), "{refused}");
    }
    assert_eq!(host.metrics.refused, 3);
}

#[test]
fn a_wrong_placement_is_reported_or_evicted() {
    let far = request(&[("nearfar.io/memory", "far")], "").encode_to_vec();
    for (on_mismatch, ended) in [(OnMismatch::Event, &[][..]), (OnMismatch::Evict, &[7])] {
        let mut host = Fake::new();
        let mut plugin = plugin("v0.12.3", on_mismatch, &mut host);
        host.fs.plant(&[("proc/7/numa_maps".into(), "7f00 default anon=1 N0=1\n")]);
        plugin.call("PostStartContainer", &far, &mut host).unwrap();
        assert_eq!(host.ended, ended);
        assert_eq!(host.metrics.verified, [0, 0, 1, 0]);
        let calls = plugin.take_calls();
        assert_eq!(calls.len(), ended.len());
        if let Some((method, payload)) = calls.first() {
            let request = nri::UpdateContainersRequest::decode(&payload[..]).unwrap();
            assert_eq!(
                (*method, request.evict[0].container_id.as_str()),
                ("UpdateContainers", "c1")
            );
            assert!(request.evict[0].reason.contains("policy default"), "{request:?}");
        }
        let line = host.lines.iter().find(|line| line.starts_with("event=verified")).unwrap();
        assert!(line.contains("pod=n/p container=db id=c1 pid=7 result=wrong"), "{line}");
    }
}

#[test]
fn existing_containers_are_verified_and_forgotten_once_stopped() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    host.fs.plant(&[("proc/7/numa_maps".into(), "7f00 bind=static:1 anon=1 N1=1\n")]);
    let nri::CreateContainerRequest { pod, container } =
        request(&[("nearfar.io/memory", "far")], "");
    let (mut pod, mut container) = (pod.unwrap(), container.unwrap());
    pod.id = "p1".into();
    container.pod_sandbox_id = "p1".into();
    // The pod comes in an earlier part than its container, or in a later one.
    let (pods, containers) = (vec![pod.clone()], vec![container.clone()]);
    for (verified, parts) in [
        (1, [(pods.clone(), vec![]), (vec![], containers.clone())]),
        (2, [(vec![], containers), (pods, vec![])]),
    ] {
        for ((pods, containers), more) in parts.into_iter().zip([true, false]) {
            let part = nri::SynchronizeRequest { pods, containers, more };
            let answer = plugin.call("Synchronize", &part.encode_to_vec(), &mut host).unwrap();
            assert_eq!(nri::SynchronizeResponse::decode(&answer[..]).unwrap().more, more);
        }
        assert!(plugin.has_unverified(), "after the answer");
        plugin.verify_next(&mut host);
        assert!(!plugin.has_unverified());
        assert_eq!((host.metrics.containers, host.metrics.verified), (1, [verified, 0, 0, 0]));
    }
    let event = Event::StopContainer as i32;
    let stop = nri::StateChangeEvent { event, pod: Some(pod), container: Some(container) };
    plugin.call("StateChange", &stop.encode_to_vec(), &mut host).unwrap();
    assert_eq!(host.metrics.containers, 0);
}

#[test]
fn unknown_methods_and_malformed_arguments_are_answered() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    let unknown = plugin.call("Dance", &[], &mut host).unwrap_err();
    assert_eq!(unknown.code, code::UNIMPLEMENTED);
    let malformed = plugin.call("CreateContainer", &[0x0a, 9], &mut host).unwrap_err();
    assert_eq!(malformed.code, code::INVALID_ARGUMENT);
    assert!(plugin.call("StartContainer", &[], &mut host).is_ok());
}

#[test]
fn a_budget_is_set_once_the_container_runs_and_a_failure_is_logged() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    for (max, result) in [("2g", "result=set"), ("1t", "result=failed")] {
        let request = request(&[("nearfar.io/near-max", max), ("nearfar.io/near-min", "64m")], "");
        assert_eq!(created(&mut plugin, &mut host, &request), Ok(None), "nothing to adjust");
        let (pod, container) = (request.pod, request.container);
        let event =
            nri::StateChangeEvent { event: Event::PostStartContainer as i32, pod, container };
        plugin.call("StateChange", &event.encode_to_vec(), &mut host).unwrap();
        let line = host.lines.last().unwrap();
        assert!(line.starts_with("event=budget ") && line.contains(result), "{line}");
    }
    assert_eq!(host.budgets[0], (7, Some(Bytes(2 << 30)), Some(Bytes(64 << 20))));
}

/// A container with a claim that the DRA driver has prepared.
fn claiming(value: &str, annotations: &[(&str, &str)], mems: &str) -> nri::CreateContainerRequest {
    let mut request = request(annotations, mems);
    let env = format!("NEARFAR_CLAIM_u_1_0={value}");
    if let Some(container) = &mut request.container {
        container.env = vec!["PATH=/bin".into(), env];
    }
    request
}

/// The CDI file of that claim.
fn prepare(value: &str, host: &Fake) {
    let env = format!("NEARFAR_CLAIM_u_1_0={value}");
    let text = format!(
        r#"{{"cdiVersion":"0.6.0","kind":"nearfar.io/memory","devices":[{{"name":"u-1-0","containerEdits":{{"env":["{env}"]}}}}]}}"#
    );
    host.fs.plant(&[("var/run/cdi/nearfar.io-memory_u-1.json".into(), text.as_str())]);
}

#[test]
fn claimed_memory_is_placed_and_the_claim_permits_nodes_outside_the_cpuset() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    let value = "policy:bind;nodes:1;bytes:1073741824;key:ab";
    prepare(value, &host);
    let request = claiming(value, &[], "0");
    let linux = created(&mut plugin, &mut host, &request).unwrap().unwrap().linux.unwrap();
    let policy = linux.memory_policy.unwrap();
    assert_eq!((policy.mode, policy.nodes.as_str()), (2, "1"));
    assert_eq!(linux.resources.unwrap().cpu.unwrap().mems, "0-1");
    // Then it is verified as an annotation is.
    host.fs.plant(&[("proc/7/numa_maps".into(), "7f00 bind=static:1 anon=1 N1=1\n")]);
    plugin.call("PostStartContainer", &request.encode_to_vec(), &mut host).unwrap();
    assert_eq!(host.metrics.verified, [1, 0, 0, 0]);
}

#[test]
fn a_forged_claim_and_one_that_contradicts_an_annotation_refuse_the_container() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    let value = "policy:bind;nodes:1;bytes:1;key:ab";
    let forged = created(&mut plugin, &mut host, &claiming(value, &[], "")).unwrap_err();
    assert!(forged.contains("NEARFAR_CLAIM_u_1_0") && forged.contains("remove it"), "{forged}");
    prepare(value, &host);
    let both = claiming(value, &[("nearfar.io/memory", "near")], "");
    let refused = created(&mut plugin, &mut host, &both).unwrap_err();
    for part in ["nearfar.io/memory=near", "claim u-1 (bind:1)", "remove the annotation"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(host.metrics.refused, 2);
}

#[test]
fn a_claim_of_near_and_far_memory_has_a_budget_and_annotations_may_only_lower_it() {
    let mut host = Fake::new();
    let mut plugin = plugin("v0.12.3", OnMismatch::Event, &mut host);
    let (near, far) = (
        "policy:interleave;nodes:0;bytes:4096;key:a",
        "policy:interleave;nodes:1;bytes:8192;key:a",
    );
    let env = format!("NEARFAR_CLAIM_u_1_0={near}\",\"NEARFAR_CLAIM_u_1_1={far}");
    prepare(env.trim_start_matches("NEARFAR_CLAIM_u_1_0="), &host);
    for (annotation, budget) in [(None, Ok(4096)), (Some("1k"), Ok(1024)), (Some("8k"), Err(()))] {
        let pairs: Vec<_> =
            annotation.map(|size| ("nearfar.io/near-max", size)).into_iter().collect();
        let mut request = claiming(near, &pairs, "");
        request.container.as_mut().unwrap().env.push(format!("NEARFAR_CLAIM_u_1_1={far}"));
        let adjusted = created(&mut plugin, &mut host, &request);
        let Ok(budget) = budget else {
            assert!(adjusted.unwrap_err().contains("above the claim"));
            continue;
        };
        let policy = adjusted.unwrap().unwrap().linux.unwrap().memory_policy.unwrap();
        assert_eq!((policy.mode, policy.nodes.as_str()), (3, "0-1"));
        plugin.call("PostStartContainer", &request.encode_to_vec(), &mut host).unwrap();
        assert_eq!(host.budgets.pop(), Some((7, Some(Bytes(budget)), None)));
    }
}
