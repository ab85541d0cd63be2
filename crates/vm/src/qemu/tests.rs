//! Tests of whole command lines, and laws for any of them.

use std::collections::BTreeMap;

use nearfar_topology::testkit::{dram_and_cxl, machine, node};
use nearfar_topology::{MemoryKind, NodeId, Topology};
use proptest::prelude::*;

use super::*;
use crate::figures::Figures;
use crate::shell;

mod weighted;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

pub(super) fn host(machine: &Topology) -> Host<'_> {
    let room = machine.nodes.iter().map(|(id, node)| (*id, node.free)).collect();
    Host { machine, room, huge: Default::default(), figures: Figures::of_firmware(machine) }
}

/// Two sockets and two CXL devices, 4 GiB each, half of it free.
fn two_devices() -> Topology {
    machine([
        node(0).cpus(0..2).access(100, 60_000, 60_000),
        node(1).cpus(2..4).access(100, 60_000, 60_000),
        node(2).kind(MemoryKind::Cxl).access(250, 27_000, 27_000),
        node(3).kind(MemoryKind::Cxl).access(300, 13_000, 13_000),
    ])
}

fn planned(line: &str, machine: &Topology) -> Result<Plan, VmError> {
    plan(&Request::new(&words(line)), &host(machine))
}

fn rewritten(line: &str) -> String {
    shell::join(&planned(line, &dram_and_cxl()).unwrap().argv)
}

fn refused(line: &str) -> String {
    planned(line, &dram_and_cxl()).unwrap_err().to_string()
}

#[test]
fn a_backend_that_no_option_names_has_a_note() {
    let object = "qemu -m 4G -object memory-backend-ram,id=far0,size=1G,host-mem-type=cxl";
    let notes = |line: &str| planned(line, &dram_and_cxl()).unwrap().notes;
    let notes_of = notes(object);
    assert!(notes_of[0].contains("does not use the memory of backend `far0`"), "{notes_of:?}");
    for user in ["-numa node,memdev=far0", "-device virtio-mem-pci,id=m,memdev=far0"] {
        let notes = notes(&format!("{object} {user}"));
        assert!(!notes.iter().any(|note| note.contains("does not use")), "{user}: {notes:?}");
    }
}

#[test]
fn a_type_is_replaced_by_nodes_and_policy_and_the_rest_is_kept() {
    let line = |wish: &str| {
        format!("qemu -m 4G -object memory-backend-ram,id=a,size=1G,{wish},share=on -S")
    };
    assert_eq!(
        rewritten(&line("host-mem-type=cxlram")),
        line("host-nodes=1,policy=bind").replace("\n", "")
    );
    assert_eq!(
        rewritten(&line("host-mem-policy=interleave,host-mem-type=0,,cxl")),
        line("policy=interleave,host-nodes=0-1")
    );
    assert_eq!(
        rewritten(&line("policy=preferred,host-mem-type=far")),
        line("policy=preferred,host-nodes=1"),
        "QEMU's own policy with our type, as in the proposal"
    );
    let dashes = line("host-mem-type=cxl").replace("-object", "--object");
    assert_eq!(rewritten(&dashes), dashes.replace("host-mem-type=cxl", "host-nodes=1,policy=bind"));
}

#[test]
fn two_devices_are_named_apart_or_together() {
    let machine = two_devices();
    let nodes = |kind: &str| {
        let line = format!("qemu -object memory-backend-ram,id=a,size=1G,host-mem-type={kind}");
        planned(&line, &machine).unwrap().backends[0].nodes.to_string()
    };
    assert_eq!([nodes("2"), nodes("3"), nodes("cxl")], ["2", "3", "2-3"]);
    let both = "qemu -object memory-backend-ram,id=a,size=1G,host-mem-type=2 \
        -object memory-backend-memfd,id=b,size=1G,host-mem-type=3,host-mem-policy=preferred";
    let line = shell::join(&planned(both, &machine).unwrap().argv);
    assert!(line.contains("id=a,size=1G,host-nodes=2,policy=bind"), "{line}");
    assert!(line.contains("id=b,size=1G,host-nodes=3,policy=preferred"), "{line}");
}

#[test]
fn plain_memory_becomes_a_backend_of_the_machine() {
    assert_eq!(
        rewritten("qemu -m 1G,slots=2,host-mem-type=cxl,maxmem=8G -M q35"),
        "qemu -m 1G,slots=2,maxmem=8G -M q35 \
            -object memory-backend-ram,id=nearfar-ram,size=1G,host-nodes=1,policy=bind \
            -machine memory-backend=nearfar-ram"
    );
    assert!(rewritten("qemu -m size=512,host-mem-type=cxl").contains("id=nearfar-ram,size=512M,"));
    for (line, part) in [
        ("qemu -m host-mem-type=cxl", "write the size first"),
        ("qemu -m 1G,host-mem-type=cxl -m 2G,host-mem-type=cxl", "another -m"),
        ("qemu -m x,host-mem-type=cxl", "not a size"),
        ("qemu -m 1G,host-mem-type=cxl -machine q35,memory-backend=a", "memory-backend="),
        ("qemu -m 1G,host-mem-type=cxl -numa node,memdev=a", "memdev="),
        ("qemu -m 1G,host-mem-type=cxl -mem-path /dev/hugepages", "-mem-path"),
        ("qemu -machine q35,host-mem-type=cxl", "write it on -m"),
        ("qemu -m 1G,host-mem-policy=bind", "-m: host-mem-type is missing"),
        ("qemu -m 1G,host-mem-type=hbm", "-m: node set `hbm` names no node"),
    ] {
        assert!(refused(line).contains(part), "{line}: {}", refused(line));
    }
}

#[test]
fn contradicting_requests_are_refused() {
    let object = |keys: &str| format!("qemu -object memory-backend-ram,id=a,size=1G,{keys}");
    for (keys, part) in [
        ("host-mem-type=cxl,host-nodes=1", "host-mem-type and host-nodes exclude each other"),
        (
            "host-mem-type=cxl,host-mem-policy=bind,policy=bind",
            "host-mem-policy and policy=bind exclude",
        ),
        ("host-mem-type=cxl,policy=default", "policy=default"),
        ("host-mem-policy=bind", "host-mem-type is missing"),
        ("host-mem-type=cxl,host-mem-type=0", "another host-mem-type"),
        ("host-mem-type=cxl,host-mem-policy=strict", "host-mem-policy=strict is unknown"),
        ("host-mem-type=hmb", "this machine has node 0 (dram, 16 GiB), node 1 (cxl, 8 GiB)"),
        ("host-mem-type=hbm", "names no node here"),
        ("host-mem-type=1-3", "no node 2-3 with memory"),
        ("host-mem-type=dram,cxlram", "a comma within a value is written twice: dram,,cxlram"),
        ("host-mem-type=0,1,share=on", "0,,1"),
    ] {
        let error = refused(&object(keys));
        assert!(error.starts_with("-object a: ") && error.contains(part), "{keys}: {error}");
    }
    for (line, part) in [
        ("qemu -object memory-backend-ram,size=1G,host-mem-type=cxl", "id is missing"),
        ("qemu -m 1G,host-mem-type=near,far", "near,,far"),
        ("qemu -m 1G,host-mem-type=cxl,host-nodes=0", "host-mem-type and host-nodes= exclude"),
        ("qemu -m 1G,policy=bind,host-mem-type=cxl", "host-mem-type and policy= exclude"),
        ("qemu -object memory-backend-ram,id=a,host-mem-type=cxl", "size is missing"),
        ("qemu -object memory-backend-ram,id=a,size=1Q,host-mem-type=cxl", "not a size"),
        (
            "qemu -object memory-backend-epc,id=a,size=1G,host-mem-type=cxl",
            "memory-backend-ram, -file",
        ),
        (
            "qemu -object rng-random,id=a -object memory-backend-ram,id=a,size=1G,host-mem-type=cxl",
            "the id a",
        ),
        ("qemu -object {\"id\":,\"host-mem-type\":1}", "column 7"),
    ] {
        assert!(refused(line).contains(part), "{line}: {}", refused(line));
    }
}

#[test]
fn memory_that_does_not_fit_is_refused_before_anything_starts() {
    let line = "qemu -object memory-backend-ram,id=a,size=3G,host-mem-type=cxl \
        -object memory-backend-ram,id=b,size=2G,host-nodes=1,policy=bind";
    let error = refused(line);
    assert!(error.starts_with("a, b: 5 GiB are to be bound to node 1, which has 4 GiB"), "{error}");
    let words = words(line);
    let request = Request { overcommit: true, ..Request::new(&words) };
    assert!(plan(&request, &host(&dram_and_cxl())).is_ok());
    assert!(
        planned(&line.replace("=cxl", "=cxl,host-mem-policy=preferred"), &dram_and_cxl()).is_ok()
    );
}

const NUMA: &str = "qemu -m 2G -smp 2 -object memory-backend-ram,id=a,size=1G \
    -object memory-backend-ram,id=b,size=1G,host-mem-type=cxl \
    -numa node,nodeid=0,cpus=0-1,memdev=a -numa node,nodeid=1,memdev=b";

#[test]
fn a_node_without_cpus_is_described_to_the_guest() {
    let plan = planned(NUMA, &dram_and_cxl()).unwrap();
    let expected = NUMA
        .replace("host-mem-type=cxl", "host-nodes=1,policy=bind")
        .replace("memdev=a", "memdev=a,initiator=0")
        .replace("memdev=b", "memdev=b,initiator=0")
        + " -numa dist,src=0,dst=1,val=20 -machine hmat=on \
            -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=100 \
            -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=40000M \
            -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=250 \
            -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=13000M";
    assert_eq!(shell::join(&plan.argv), shell::join(&words(&expected)));
    assert_eq!(plan.notes, ["the guest's HMAT has the host's figures, from firmware"]);
}

#[test]
fn interleaved_nodes_are_described_by_their_sum() {
    let line = NUMA.replace("host-mem-type=cxl", "host-mem-type=cxl,host-mem-policy=interleave");
    let text = shell::join(&planned(&line, &two_devices()).unwrap().argv);
    assert!(text.contains("latency,latency=275"), "the mean: {text}");
    assert!(text.contains("bandwidth,bandwidth=26000M"), "twice the slower one: {text}");
}

#[test]
fn a_description_by_the_user_is_left_alone_and_named() {
    for (theirs, note) in [
        ("-machine q35,hmat=off", "-machine hmat= is given"),
        ("-numa hmat-lb,initiator=0,target=0", "-numa hmat-lb is given"),
        ("-numa dist,src=0,dst=1,val=30", "-numa dist is given"),
    ] {
        let plan = planned(&format!("{NUMA} {theirs}"), &dram_and_cxl()).unwrap();
        let text = shell::join(&plan.argv);
        assert!(plan.notes.iter().any(|one| one.contains(note)), "{theirs}: {:?}", plan.notes);
        let part = theirs.split(',').next().unwrap();
        assert_eq!(text.matches(part).count(), 1, "{text}");
        assert_eq!(text.contains("hmat=on"), theirs.contains("dist"), "{text}");
    }
    let own = NUMA.replace("memdev=b", "memdev=b,initiator=0");
    let plan = planned(&own, &dram_and_cxl()).unwrap();
    assert!(!shell::join(&plan.argv).contains("hmat"), "{:?}", plan.argv);
}

#[test]
fn without_figures_the_guest_gets_no_hmat_and_the_user_the_reason() {
    let machine = machine([node(0).cpus(0..4), node(1).kind(MemoryKind::Cxl)]);
    let plan = planned(NUMA, &machine).unwrap();
    assert!(plan.notes[0].contains("run nearfar probe first"), "{:?}", plan.notes);
    assert!(!shell::join(&plan.argv).contains("hmat"), "{:?}", plan.argv);
}

#[test]
fn far_memory_is_added_in_both_shapes() {
    let far: Vec<Far> = vec!["2G:cxl".parse().unwrap()];
    let argv = words("qemu -m 4G,host-mem-type=dram -smp 4 -M q35");
    let request = Request { far: &far, ..Request::new(&argv) };
    let plan = |request| plan(request, &host(&dram_and_cxl())).unwrap();
    let text = shell::join(&plan(&request).argv);
    assert!(text.starts_with("qemu -m 6G -smp 4 -M q35 "), "{text}");
    assert!(text.contains("id=nearfar-near,size=4G,host-nodes=0,policy=bind"), "{text}");
    assert!(text.contains("id=nearfar-far0,size=2G,host-nodes=1,policy=bind"), "{text}");
    assert!(text.contains("hmat=on") && text.contains("cpus=0-3"), "{text}");
    let devices = Request { shape: Shape::Type3, ..request };
    let text = shell::join(&plan(&devices).argv);
    assert!(text.contains("-m 4G -smp") && text.contains("volatile-memdev=nearfar-far0"), "{text}");
    assert!(text.contains("id=nearfar-ram,size=4G,host-nodes=0,policy=bind"), "{text}");
}

#[test]
fn a_configuration_file_is_copied_with_its_requests_rewritten() {
    let text = "# mine\n[object \"b\"]\n  qom-type = \"memory-backend-ram\"\n  size = \"1G\"\n  host-mem-type = \"far\"\n";
    let read =
        |path: &str| (path == "vm.cfg").then(|| text.to_owned()).ok_or_else(|| "absent".into());
    let argv = words("qemu -readconfig vm.cfg -readconfig other.cfg");
    let request = Request { read: &read, ..Request::new(&argv) };
    let plan = plan(&request, &host(&dram_and_cxl())).unwrap();
    let expected =
        text.replace("host-mem-type = \"far\"", "host-nodes.0 = \"1\"\n  policy = \"bind\"");
    assert_eq!((plan.configs[0].word, plan.configs[0].text.as_str()), (2, expected.as_str()));
    assert_eq!(plan.argv, argv);
    assert!(plan.notes[0].contains("other.cfg: not searched"), "{:?}", plan.notes);
}

#[test]
fn inputs_of_the_fuzz_target_pass() {
    for text in [
        "",
        "qemu\n-object\nmemory-backend-ram,id=a,size=1G,host-mem-type=0,,1",
        "qemu\n-readconfig\nf\n\n[object \"a\"]\nqom-type = \"memory-backend-ram\"\nsize = \"1G\"\nhost-mem-type = \"0\"\n",
        "qemu\n-m\n1G,host-mem-type=1\n-object\n{\"host-mem-type\":\"x\"}",
    ] {
        fuzz(text.as_bytes());
    }
}

/// Words as people and programs write them, without our keys.
fn any_word() -> impl Strategy<Value = OsString> {
    use std::os::unix::ffi::OsStringExt as _;
    prop_oneof![
        Just("-object".into()),
        Just("--object".into()),
        Just("-m".into()),
        Just("-numa".into()),
        Just("-machine".into()),
        Just("-readconfig".into()),
        Just("node,nodeid=0,memdev=a,cpus=0".into()),
        "memory-backend-(ram|file|memfd),id=[ab],size=[12]G(,host-nodes=[01],policy=bind)?"
            .prop_map(OsString::from),
        "\\{\"qom-type\":\"memory-backend-ram\",\"id\":\"[ab]\"\\}".prop_map(OsString::from),
        "[a-z0-9=,{}\"' -]{0,16}".prop_map(OsString::from),
        proptest::collection::vec(1_u8.., 0..6).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #[test]
    fn without_nearfars_keys_every_word_is_unchanged(words in proptest::collection::vec(any_word(), 1..12)) {
        let plan = plan(&Request::new(&words), &host(&dram_and_cxl())).unwrap();
        prop_assert_eq!(plan.argv, words);
        prop_assert!(plan.backends.is_empty() && plan.configs.is_empty());
    }

    #[test]
    fn only_words_with_nearfars_keys_change(
        before in proptest::collection::vec(any_word(), 0..6),
        keys in "(,share=on|,x=a,,b|,prealloc=off){0,2}",
        is_json: bool,
        after in proptest::collection::vec(any_word(), 0..6),
    ) {
        let (object, expected) = if is_json {
            let text = |with: &str| format!(r#"{{"qom-type":"memory-backend-ram", {with} ,"id":"w","size":64}}"#);
            (text(r#""host-mem-type":"cxl""#), text(r#""host-nodes":[1],"policy":"bind""#))
        } else {
            let text = |with: &str| format!("memory-backend-ram,id=w,size=64{keys},{with}");
            (text("host-mem-type=cxl"), text("host-nodes=1,policy=bind"))
        };
        let line = |middle: &str| -> Vec<OsString> {
            let middle = ["-S".into(), "-object".into(), OsString::from(middle)];
            [vec!["qemu".into()], before.clone(), middle.into(), after.clone()].concat()
        };
        match plan(&Request::new(&line(&object)), &host(&dram_and_cxl())) {
            // The words before may have an object with the same id twice, or take the option as a value.
            Err(VmError::DuplicateId { .. }) => {}
            Err(error) => prop_assert!(false, "{error}"),
            Ok(plan) if plan.backends.is_empty() => prop_assert_eq!(plan.argv, line(&object)),
            Ok(plan) => prop_assert_eq!(plan.argv, line(&expected)),
        }
    }

    #[test]
    fn any_input_is_planned_or_refused(text in "(-object\n|-m\n|-readconfig\nf\n|memory-backend-ram,|id=a,|size=1G,|host-mem-type=|host-mem-policy=|0|1|bind|,,|,|\n|\\[object \"a\"\\]\n|\\{|\"|:|\\}|é){0,14}") {
        fuzz(text.as_bytes());
    }
}

#[test]
fn unknown_nodes_have_no_free_memory() {
    let machine = dram_and_cxl();
    let host = Host { room: BTreeMap::from([(NodeId(0), Bytes(1 << 40))]), ..host(&machine) };
    let argv = words("qemu -object memory-backend-ram,id=a,size=1G,host-mem-type=cxl");
    assert!(plan(&Request::new(&argv), &host).is_err());
}

#[test]
fn huge_pages_are_counted_in_their_own_pools() {
    let machine = dram_and_cxl();
    let gib = |number: u64| Bytes(number << 30);
    let with = |line: &str, free: u64, requested: &str| {
        let pool = BTreeMap::from([(NodeId(1), gib(free))]);
        let huge = crate::HugePages {
            default: Some(Bytes(2 << 20)),
            free: BTreeMap::from([(Bytes(2 << 20), pool.clone()), (gib(1), pool)]),
        };
        let at = |path: &str| path.starts_with("/dev/hugepages").then_some(Bytes(2 << 20));
        let words =
            words(&format!("qemu -object {line},id=a,size=1G,host-mem-type=cxl {requested}"));
        let request = Request { huge_pages_at: &at, ..Request::new(&words) };
        let host = Host { huge, room: BTreeMap::new(), ..host(&machine) };
        plan(&request, &host).map(drop).map_err(|error| error.to_string())
    };
    for line in [
        "memory-backend-memfd,hugetlb=on",
        "memory-backend-memfd,hugetlb=on,hugetlbsize=1G",
        "memory-backend-file,mem-path=/dev/hugepages/a",
    ] {
        assert_eq!(with(line, 1, ""), Ok(()), "{line}");
        let error = with(line, 0, "").unwrap_err();
        assert!(error.contains("node 1, which has 0 B in free huge pages of"), "{error}");
    }
    // A path is no evidence by its name.
    let error = with("memory-backend-file,mem-path=/srv/huge/a", 1, "").unwrap_err();
    assert!(error.contains("free or in reclaimable file cache"), "{error}");
    let device = "-device virtio-mem-pci,memdev=a,requested-size=512M";
    let error = with("memory-backend-memfd,hugetlb=on", 0, device).unwrap_err();
    assert!(error.contains("1 GiB are to be bound"), "pages are reserved: {error}");
    let error = with("memory-backend-memfd,hugetlb=on,reserve=off", 0, device).unwrap_err();
    assert!(error.contains("512 MiB are to be bound"), "{error}");
    let none = "-device {\"driver\":\"virtio-mem-pci\",\"memdev\":\"a\"}";
    assert_eq!(
        with("memory-backend-ram,reserve=off", 0, none),
        Ok(()),
        "none is plugged at the start"
    );
}

#[test]
fn misspelt_keys_and_policies_unknown_to_qemu_are_refused() {
    let error = refused("qemu -object memory-backend-ram,id=a,size=1G,host-mem-typ=cxl");
    assert!(
        error.contains("host-mem-typ is unknown; the keys are host-mem-type and host-mem-policy"),
        "{error}"
    );
    let error = refused("qemu -machine q35,host-mem-kind=cxl");
    assert!(error.contains("write it on -m"), "{error}");
    let error = refused(
        "qemu -object memory-backend-ram,id=a,size=1G,host-mem-type=0,,1,policy=weighted-interleave",
    );
    assert!(error.contains("write host-mem-policy=weighted-interleave"), "{error}");
    assert_eq!(rewritten("qemu -append host-mem-kind=1"), "qemu -append host-mem-kind=1");
}

#[test]
fn a_file_that_divides_the_memory_is_refused_beside_ours() {
    let machine = dram_and_cxl();
    let refused = |text: &str, line: &str, far: &[Far]| {
        let read = |_: &str| Ok(text.to_owned());
        let words = words(line);
        let request = Request { read: &read, far, ..Request::new(&words) };
        plan(&request, &host(&machine)).map(drop).map_err(|error| error.to_string())
    };
    let far: Vec<Far> = vec!["1G:cxl".parse().unwrap()];
    for (text, section) in [
        ("[memory]\nsize = \"2G\"\n", "[memory]"),
        ("[smp-opts]\ncpus = \"4\"\n", "[smp-opts]"),
        ("[machine]\nmemory-backend = \"a\"\n", "[machine]"),
    ] {
        let error = refused(text, "qemu -readconfig f", &far).unwrap_err();
        assert!(error.contains(section) && error.contains("--far"), "{error}");
        let error = refused(text, "qemu -readconfig f -m 1G,host-mem-type=cxl", &[]).unwrap_err();
        assert!(error.contains(section) && error.contains("-m and"), "{error}");
        assert_eq!(refused(text, "qemu -readconfig f -m 1G", &[]), Ok(()));
    }
    assert_eq!(refused("[machine]\ntype = \"q35\"\n", "qemu -readconfig f", &far), Ok(()));
}

#[test]
fn a_file_on_a_tmpfs_has_no_keys_of_other_backends() {
    let line = "qemu -object memory-backend-memfd,seal=off,hugetlb=off,id=a,size=1G,host-mem-type=0,,1,host-mem-policy=weighted-interleave \
        -object memory-backend-ram,id=b,size=1G";
    let text = rewritten(line);
    assert!(
        text.contains(
            "-object memory-backend-file,id=a,size=1G,mem-path=/run/nearfar/vm/a/memory,share=on "
        ),
        "{text}"
    );
}
