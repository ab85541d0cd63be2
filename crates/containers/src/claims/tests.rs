//! Tests of claims as variables: both texts read back, forged variables are refused, shares merge.

use super::*;
use nearfar_kernel::fake::FakeFs;
use nearfar_topology::{NodeId, Tree, testkit};
use proptest::prelude::*;

const UID: &str = "0f6d3c1e-aaaa-4bbb-8ccc-0123456789ab";
const OTHER: &str = "1f6d3c1e-aaaa-4bbb-8ccc-0123456789ab";

fn entry(uid: &str, number: u16, value: &str) -> String {
    format!("{}={value}", ShareId::new(uid, number).unwrap().variable())
}

/// Files of a machine whose driver has prepared claims with these variables.
fn files(claims: &[(&str, &[String])]) -> FakeFs {
    let fs = FakeFs::new(Tree::new());
    for (uid, env) in claims {
        let edits = CdiEdits { env: env.to_vec() };
        let device = CdiDevice { name: format!("{uid}-0"), container_edits: edits };
        let spec = CdiSpec { kind: CDI_KIND.into(), devices: vec![device], ..CdiSpec::default() };
        let text = serde_json::to_string(&spec).unwrap();
        fs.plant(&[(format!("var/run/cdi/{}", cdi_file(uid)), text.as_str())]);
    }
    fs
}

fn read(env: &[String], fs: &FakeFs) -> Result<Option<Claimed>, String> {
    Claimed::read(env, CDI_DIR, fs).map_err(|why| why.to_string())
}

#[test]
fn a_container_without_claims_claims_nothing() {
    let env = ["PATH=/bin".to_string(), "NEARFAR_CONF=heap=far".into()];
    assert_eq!(read(&env, &files(&[])), Ok(None));
}

#[test]
fn shares_of_several_claims_combine_into_one_placement() {
    let near = entry(UID, 0, "policy:weighted;nodes:0;bytes:1024;key:ab");
    let far = entry(UID, 1, "policy:weighted;nodes:1;bytes:4096;key:ab");
    let more = entry(OTHER, 0, "policy:weighted;nodes:0;bytes:10;key:cd");
    let fs = files(&[(UID, &[near.clone(), far.clone()]), (OTHER, std::slice::from_ref(&more))]);
    let machine = testkit::dram_and_cxl();
    let claimed = read(&[more.clone(), far.clone(), near], &fs).unwrap().unwrap();
    assert_eq!(claimed.kind(), "weighted:0-1");
    assert_eq!(claimed.names, format!("{UID}, {OTHER}"));
    assert_eq!(claimed.near_max(&machine), Some(Bytes(1034)));
    assert_eq!(read(&[far], &fs).unwrap().unwrap().near_max(&machine), None);
    assert_eq!(read(&[more], &fs).unwrap().unwrap().near_max(&machine), None);
}

#[test]
fn a_forged_claim_variable_is_rejected() {
    let real = entry(UID, 0, "policy:bind;nodes:1;bytes:1;key:ab");
    let fs = files(&[(UID, std::slice::from_ref(&real))]);
    for forged in [
        entry(UID, 0, "policy:bind;nodes:0;bytes:1;key:ab"),
        entry(UID, 0, "policy:bind;nodes:1;bytes:1;key:ac"),
        entry(UID, 1, "policy:bind;nodes:1;bytes:1;key:ab"),
        entry(OTHER, 0, "policy:bind;nodes:1;bytes:1;key:ab"),
    ] {
        let why = read(&[real.clone(), forged.clone()], &fs).unwrap_err();
        let name = forged.split('=').next().unwrap();
        assert!(why.starts_with(name) && why.contains("resources.claims"), "{why}");
    }
    let path = format!("{VARIABLE}../../etc/passwd_0=policy:bind;nodes:1;bytes:1;key:ab");
    for text in [path.as_str(), "NEARFAR_CLAIM_x=y", "NEARFAR_CLAIM_", "NEARFAR_CLAIM_a_00=1"] {
        let why = read(&[text.to_string()], &fs).unwrap_err();
        assert!(why.contains("writes no such variable"), "{why}");
    }
}

#[test]
fn foreign_and_malformed_cdi_files_authorise_no_claim() {
    let real = entry(UID, 0, "policy:bind;nodes:1;bytes:1;key:ab");
    let path = format!("var/run/cdi/{}", cdi_file(UID));
    let other = format!(
        r#"{{"cdiVersion":"0.6.0","kind":"other.io/x","devices":[{{"name":"a","containerEdits":{{"env":["{real}"]}}}}]}}"#
    );
    for text in [other.as_str(), "{", "[]", ""] {
        let fs = FakeFs::new(Tree::new());
        fs.plant(&[(path.clone(), text)]);
        assert!(read(std::slice::from_ref(&real), &fs).is_err(), "{text}");
    }
}

#[test]
fn different_policies_of_a_container_are_refused_with_both_claims() {
    let bind = entry(UID, 0, "policy:bind;nodes:1;bytes:1;key:ab");
    let prefer = entry(OTHER, 0, "policy:prefer;nodes:1;bytes:1;key:ab");
    let fs = files(&[(UID, std::slice::from_ref(&bind)), (OTHER, std::slice::from_ref(&prefer))]);
    let why = read(&[bind, prefer], &fs).unwrap_err();
    for part in [UID, OTHER, "bind", "prefer"] {
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn uids_must_be_safe_file_names() {
    for (text, good) in [
        (UID, true),
        ("a", true),
        ("", false),
        ("-a", false),
        ("a-", false),
        ("a/b", false),
        ("..", false),
        ("a_b", false),
    ] {
        assert_eq!(is_uid(text), good, "{text}");
    }
    assert!(!is_uid(&"a".repeat(UID_MAX + 1)));
}

proptest! {
    #[test]
    fn both_text_forms_round_trip(
        uid in "[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?",
        number in any::<u16>(),
        policy in prop::sample::select(ClaimPolicy::ALL.to_vec()),
        nodes in prop::collection::btree_set(0u16..1024, 1..5),
        bytes in any::<u64>(),
        key in "[0-9a-f]{1,64}",
    ) {
        let id = ShareId::new(&uid, number).unwrap();
        prop_assert_eq!(ShareId::of_variable(&id.variable()), Some(id));
        let nodes = nodes.into_iter().map(NodeId).collect();
        let share = Share { policy, nodes, bytes: Bytes(bytes), key };
        prop_assert_eq!(share.to_string().parse(), Ok(share));
    }

    #[test]
    fn any_text_is_read_or_refused(name in "\\PC*", value in "\\PC*") {
        if let Ok(share) = value.parse::<Share>() {
            prop_assert!(!share.nodes.is_empty());
        }
        if let Some(id) = ShareId::of_variable(&name) {
            prop_assert_eq!(id.variable(), name);
        }
    }
}
