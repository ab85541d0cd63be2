//! Tests of annotations: precedence, contradictions, unknown keys and values.

use super::*;
use proptest::prelude::*;

fn annotations(pairs: &[(&str, &str)]) -> Annotations {
    pairs.iter().map(|(key, value)| ((*key).to_string(), (*value).to_string())).collect()
}

fn read(pairs: &[(&str, &str)]) -> Result<Request, AnnotationError> {
    let interleave = "mode: MPOL_INTERLEAVE\nnodes: all".parse().unwrap();
    let classes = [("interleave-all".to_string(), interleave)].into();
    Request::read(&annotations(pairs), Some("db"), &classes)
}

fn key_of(pairs: &[(&str, &str)]) -> Option<String> {
    read(pairs).unwrap().memory.map(|memory| memory.key)
}

#[test]
fn foreign_annotations_are_ignored() {
    let others = [("io.kubernetes.cri.container-type", "container"), ("example.com/memory", "x")];
    assert_eq!(read(&others).unwrap(), Request::default());
    assert!(read(&others).unwrap().is_empty());
}

#[test]
fn each_key_is_read() {
    let request = read(&[
        ("nearfar.io/memory", "prefer:far"),
        ("nearfar.io/heap", "far;limit=4g"),
        ("nearfar.io/mems", "widen"),
        ("nearfar.io/near-max", "4g"),
        ("nearfar.io/near-min", "512m"),
    ])
    .unwrap();
    let memory = request.memory.unwrap();
    assert_eq!(memory.value, Memory::Kind("prefer:far".parse().unwrap()));
    assert_eq!((memory.key.as_str(), memory.text.as_str()), ("nearfar.io/memory", "prefer:far"));
    assert_eq!(request.heap.unwrap().value, "far;limit=4g");
    assert!(request.widens);
    assert_eq!(
        (request.near_max, request.near_min),
        (Some(Bytes(4 << 30)), Some(Bytes(512 << 20)))
    );
}

#[test]
fn a_containers_own_annotation_overrides_that_of_its_pod() {
    let pod = ("nearfar.io/memory", "near");
    let own = ("memory.nearfar.io/container.db", "far");
    let other = ("memory.nearfar.io/container.web", "all");
    assert_eq!(key_of(&[pod, own, other]).as_deref(), Some(own.0));
    assert_eq!(key_of(&[pod, other]).as_deref(), Some(pod.0));
    assert_eq!(key_of(&[other]), None);
    let intel = ("policy.memory-policy.nri.io/container.db", "mode: MPOL_LOCAL");
    assert_eq!(key_of(&[pod, intel]).as_deref(), Some(intel.0));
    let class = ("class.memory-policy.nri.io", "interleave-all");
    assert_eq!(key_of(&[class, intel]).as_deref(), Some(intel.0));
    assert_eq!(key_of(&[class]).as_deref(), Some(class.0));
    assert_eq!(key_of(&[("class.memory-policy.nri.io", "")]), None);
}

#[test]
fn annotation_errors_report_the_key_the_value_and_the_remedy() {
    for (pairs, parts) in [
        (&[("nearfar.io/memroy", "far")][..], ["nearfar.io/memroy", "nearfar.io/memory,"]),
        (&[("memory.nearfar.io/db", "far")], ["memory.nearfar.io/db", "container.NAME"]),
        (&[("nearfar.io/memory", "nowhere")], ["nearfar.io/memory=nowhere", "bind:"]),
        (&[("nearfar.io/memory", "far;limit=4g")], ["limit=", "nearfar.io/heap=far;limit=4g"]),
        (&[("nearfar.io/memory", "far;spill=near")], ["spill=", "prefer:"]),
        (&[("nearfar.io/memory", "far;huge=yes")], ["huge=", "nearfar.io/heap"]),
        (&[("nearfar.io/memory", "weighted:0=3,1=1")], ["machine's weights", "nearfar.io/heap"]),
        (&[("nearfar.io/near-max", "lots")], ["nearfar.io/near-max=lots", "512m"]),
        (&[("nearfar.io/near-min", "0")], ["nearfar.io/near-min=0", "above zero"]),
        (&[("nearfar.io/mems", "shrink")], ["nearfar.io/mems=shrink", "widen"]),
        (
            &[("nearfar.io/near-max", "1g"), ("nearfar.io/near-min", "2g")],
            ["nearfar.io/near-min=2g", "swap them"],
        ),
        (
            &[("nearfar.io/memory", "far"), ("policy.memory-policy.nri.io", "mode: MPOL_LOCAL")],
            ["nearfar.io/memory=far", "remove one"],
        ),
        (&[("class.memory-policy.nri.io", "slow")], ["=slow", "interleave-all"]),
        (&[("policy.memory-policy.nri.io", "mode: X")], ["policy.memory-policy.nri.io", "`X`"]),
        (&[("size.memory-policy.nri.io", "X")], ["size.memory-policy.nri.io", "no such key"]),
    ] {
        let said = read(pairs).unwrap_err().to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{pairs:?}: {said}");
    }
}

#[test]
fn the_default_is_for_containers_without_a_placement() {
    let own = read(&[("nearfar.io/memory", "near")]).unwrap();
    let own = own.or_memory("NEARFAR_OCI_MEMORY", Some("far")).unwrap().memory.unwrap();
    assert_eq!(own.text, "near");
    let none = Request::default().or_memory("NEARFAR_OCI_MEMORY", Some("far")).unwrap();
    assert_eq!(none.memory.unwrap().key, "NEARFAR_OCI_MEMORY");
    let wrong = Request::default().or_memory("NEARFAR_OCI_MEMORY", Some("fast")).unwrap_err();
    assert!(wrong.to_string().starts_with("NEARFAR_OCI_MEMORY=fast: "), "{wrong}");
}

#[test]
fn classes_are_policies_by_name() {
    let text = r#"{"a": {"mode": "MPOL_BIND", "nodes": "all", "flags": ["MPOL_F_STATIC_NODES"]}}"#;
    let read = classes(text).unwrap();
    assert!(read["a"].flags.static_nodes);
    let wrong = classes(r#"{"b": {"mode": "MPOL_BIND"}}"#).unwrap_err();
    assert!(wrong.contains("class b: ") && wrong.contains("needs nodes"), "{wrong}");
    assert!(classes("[]").is_err());
}

proptest! {
    #[test]
    fn any_annotations_are_understood_or_refused(
        pairs in prop::collection::btree_map("[a-z]{1,8}\\.?(nearfar|memory-policy\\.nri)\\.io(/[a-z.-]{0,12})?", ".{0,20}", 0..4)
    ) {
        let _ = Request::read(&pairs, Some("db"), &Classes::new());
    }
}
