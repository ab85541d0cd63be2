//! Weighted interleave, by each way.

use super::*;

#[test]
fn weighted_interleave_of_all_memory_is_the_policy_of_the_process() {
    let line = "qemu -m 2G,host-mem-type=0,,1,host-mem-policy=weighted-interleave";
    let plan = planned(line, &dram_and_cxl()).unwrap();
    assert_eq!(plan.process.as_ref().map(NodeSet::to_string).as_deref(), Some("0-1"));
    assert_eq!((plan.way.as_ref(), plan.mounts.len()), (Some(&Way::Process), 0));
    let text = shell::join(&plan.argv);
    assert!(text.contains("-object memory-backend-ram,id=nearfar-ram,size=2G -machine"), "{text}");
}

#[test]
fn weighted_interleave_of_some_memory_is_a_file_on_a_tmpfs() {
    let wish = "host-mem-type=0-1,host-mem-policy=weighted-interleave";
    for line in [
        format!("qemu -m 1G -object memory-backend-ram,id=b,size=1G,{wish}"),
        NUMA.replace("host-mem-type=cxl", wish),
    ] {
        let plan = planned(&line, &dram_and_cxl()).unwrap();
        let text = shell::join(&plan.argv);
        let object = "memory-backend-file,id=b,size=1G,mem-path=/run/nearfar/vm/b/memory,share=on";
        assert!(text.contains(object), "{text}");
        assert_eq!((plan.process, plan.way), (None, Some(Way::Tmpfs)));
        assert_eq!(plan.mounts[0].mpol, "weighted interleave:0-1");
    }
    let huge = format!("qemu -object memory-backend-memfd,id=b,size=1G,hugetlb=on,{wish}");
    assert!(
        refused(&huge).contains("weighted-interleave and hugetlb exclude"),
        "{}",
        refused(&huge)
    );
}

#[test]
fn a_bound_backend_beside_weighted_ones_does_not_need_a_tmpfs() {
    let line = NUMA
        .replace("size=1G,host", "size=1G,host-mem-policy=weighted-interleave,host")
        .replace("id=a,size=1G", "id=a,size=1G,host-mem-type=0");
    let plan = planned(&line, &dram_and_cxl()).unwrap();
    assert_eq!(plan.way, Some(Way::Process));
    assert!(shell::join(&plan.argv).contains("id=a,size=1G,host-nodes=0,policy=bind"));
}

#[test]
fn a_policy_that_qemu_has_itself_is_used() {
    let argv = words(
        "qemu -object memory-backend-ram,id=b,size=1G,host-mem-type=0-1,host-mem-policy=weighted-interleave",
    );
    let request = Request { native: Some("weighted"), ..Request::new(&argv) };
    let plan = plan(&request, &host(&dram_and_cxl())).unwrap();
    assert!(shell::join(&plan.argv).contains("host-nodes=0-1,policy=weighted"), "{:?}", plan.argv);
}

#[test]
fn a_preloaded_library_is_used_if_asked_for_and_no_other_memory_is_interleaved() {
    let plain = "-object memory-backend-ram,id=a,size=1G,host-mem-type=0-1,host-mem-policy=";
    let line = format!(
        "qemu {plain}weighted-interleave -object memory-backend-memfd,hugetlb=on,id=b,size=2M"
    );
    let machine = dram_and_cxl();
    let with = |line: &str| {
        let argv = words(line);
        plan(&Request { preload: true, ..Request::new(&argv) }, &host(&machine))
    };
    let preloaded = with(&line).unwrap();
    assert_eq!((preloaded.way, preloaded.mounts), (Some(Way::Preload), Vec::new()));
    let rewritten = shell::join(&preloaded.argv);
    assert!(rewritten.contains("id=a,size=1G,host-nodes=0-1,policy=interleave"), "{rewritten}");
    for other in
        ["host-nodes=0-1,policy=interleave", "host-mem-type=0-1,host-mem-policy=interleave"]
    {
        let error = with(&format!("{line},{other}")).unwrap_err().to_string();
        assert!(error.contains("--preload") && error.contains("leave one of them out"), "{error}");
    }
    let unweighted = format!("qemu {plain}interleave");
    assert_eq!(with(&unweighted).unwrap().way, None);
}
