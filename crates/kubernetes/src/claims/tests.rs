//! Tests of placements: allocations as the scheduler writes them, on a machine with near and far memory.

use super::*;
use crate::devices::{Reserves, devices};
use nearfar_topology::testkit::dram_and_cxl;
use proptest::prelude::*;
use serde_json::{Value, json};

const UID: &str = "0f6d3c1e-aaaa-4bbb-8ccc-0123456789ab";

fn result(request: &str, device: &str, size: &str) -> Value {
    json!({"driver": DRIVER, "pool": "worker", "device": device, "request": request,
           "consumedCapacity": {"memory": size}, "shareID": "5"})
}

fn config(source: &str, requests: &[&str], policy: &str) -> Value {
    let parameters = json!({"apiVersion": VERSION, "kind": KIND, "policy": policy});
    json!({"source": source, "requests": requests, "opaque": {"driver": DRIVER, "parameters": parameters}})
}

fn claim(results: &[Value], configs: &[Value]) -> ResourceClaim {
    serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "data", "namespace": "shop", "uid": UID}, "spec": {},
        "status": {"allocation": {"devices": {"results": results, "config": configs}}}
    }))
    .unwrap()
}

fn placed(claim: &ResourceClaim) -> Result<Placement, String> {
    let devices = devices(&dram_and_cxl(), &Reserves::new());
    placement(claim, "worker", &devices).map_err(|why| why.to_string())
}

#[test]
fn an_allocation_resolves_to_nodes_and_sizes() {
    let mut other = result("gpu", "gpu-0", "1");
    other["driver"] = "gpu.example.com".into();
    let two =
        claim(&[result("far", "node1", "4Gi"), result("near", "node0", "1073741824"), other], &[]);
    let placement = placed(&two).unwrap();
    assert_eq!((placement.uid.as_str(), placement.policy), (UID, ClaimPolicy::Bind));
    let parts: Vec<_> = placement.parts.iter().map(|part| (part.node.0, part.bytes.0)).collect();
    assert_eq!(parts, [(1, 4 << 30), (0, 1 << 30)]);
    assert_eq!(placement.parts[0].share.as_deref(), Some("5"));
}

#[test]
fn a_claims_policy_overrides_that_of_its_class_and_applies_to_subrequests() {
    let results = [result("far/a", "node1", "4Gi")];
    for (configs, policy) in [
        (vec![config("FromClass", &[], "prefer")], ClaimPolicy::Prefer),
        (
            vec![config("FromClass", &[], "prefer"), config("FromClaim", &["far"], "weighted")],
            ClaimPolicy::Weighted,
        ),
        (vec![config("FromClaim", &["far/a"], "interleave")], ClaimPolicy::Interleave),
        (vec![config("FromClaim", &["far/b"], "interleave")], ClaimPolicy::Bind),
    ] {
        assert_eq!(placed(&claim(&results, &configs)).unwrap().policy, policy, "{configs:?}");
    }
}

#[test]
fn contradicting_policies_are_refused_and_both_are_named() {
    let results = [result("far", "node1", "4Gi"), result("near", "node0", "1Gi")];
    for configs in [
        vec![config("FromClaim", &[], "prefer"), config("FromClaim", &[], "bind")],
        vec![config("FromClaim", &["far"], "prefer"), config("FromClaim", &["near"], "bind")],
        vec![config("FromClaim", &["far"], "prefer")],
    ] {
        let why = placed(&claim(&results, &configs)).unwrap_err();
        for part in ["claim shop/data", "prefer", "bind", "one policy"] {
            assert!(why.contains(part), "{why}");
        }
    }
}

#[test]
fn impossible_claims_name_the_claim_the_value_and_the_remedy() {
    let far = || result("far", "node1", "4Gi");
    let with = |key: &str, value: Value| {
        let mut result = far();
        result[key] = value;
        claim(&[result], &[])
    };
    let mut not_allocated = claim(&[], &[]);
    not_allocated.status = None;
    let mut no_uid = claim(&[far()], &[]);
    no_uid.metadata.uid = Some("../x".into());
    let mut strange = config("FromClaim", &[], "bind");
    strange["opaque"]["parameters"]["nodes"] = "0".into();
    let mut version = config("FromClaim", &[], "bind");
    version["opaque"]["parameters"]["apiVersion"] = "nearfar.io/v2".into();
    for (claim, parts) in [
        (not_allocated, ["not allocated", "scheduler"]),
        (no_uid, ["`../x`", "no uid"]),
        (with("pool", "other".into()), ["pool worker", "another node"]),
        (with("device", "node7".into()), ["node7 is gone", "node0, node1"]),
        (with("device", "../../x".into()), ["../../x is gone", "delete the pod"]),
        (with("consumedCapacity", json!({"memory": "9Gi"})), ["9 GiB of node1", "its 8 GiB"]),
        (with("consumedCapacity", json!({"memory": "x"})), ["request far", "(x)"]),
        (with("consumedCapacity", json!({})), ["(none)", "DRAConsumableCapacity"]),
        (with("adminAccess", true.into()), ["adminAccess", "remove it"]),
        (claim(&[far()], &[config("FromClaim", &[], "fast")]), ["no policy fast", "bind|prefer"]),
        (claim(&[far()], &[strange]), ["nodes", "policy: bind"]),
        (claim(&[far()], &[version]), ["nearfar.io/v2", "nearfar.io/v1"]),
    ] {
        let why = placed(&claim).unwrap_err();
        assert!(why.starts_with("claim shop/data: "), "{why}");
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

proptest! {
    #[test]
    fn a_placement_is_within_the_node(size in 0u64..20 << 30, device in 0u16..4) {
        let name = format!("node{device}");
        let claim = claim(&[result("r", &name, &size.to_string())], &[]);
        let devices = devices(&dram_and_cxl(), &Reserves::new());
        let there = devices.iter().find(|found| found.node.0 == device);
        match placement(&claim, "worker", &devices) {
            Ok(placed) => prop_assert_eq!(placed.parts[0].bytes.0, size),
            Err(_) => prop_assert!(size == 0 || there.is_none_or(|device| size > device.capacity.0)),
        }
    }
}
