//! Replicated regions on machines with several nodes: each copy is on its node, and each node's CPUs read their own.
#![expect(unsafe_code, reason = "a C interface is called")]

use std::ffi::{CStr, CString};
use std::process::Command;
use std::ptr::null_mut;

use nearfar_alloc::ffi::*;
use nearfar_kernel::affinity;
use nearfar_topology::CpuId;

use crate::alloc::compiled;

const MIB: usize = 1 << 20;

/// A region that is used from several threads.
#[derive(Clone, Copy)]
struct Region(*mut nf_replicated_t);

// SAFETY: regions are for that.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(words: &str, size: usize) -> Self {
        let words = CString::new(words).unwrap();
        // SAFETY: a string.
        let region = unsafe { nf_replicated_create(words.as_ptr(), size) };
        // SAFETY: a string that stays until the next error.
        assert!(!region.is_null(), "{:?}", unsafe { CStr::from_ptr(nf_error()) });
        Self(region)
    }

    fn nodes(self) -> Vec<u8> {
        let mut nodes = vec![0; 64];
        // SAFETY: `nodes` has room for the length passed.
        let count = unsafe { nf_replicated_nodes(self.0, nodes.as_mut_ptr(), nodes.len()) };
        nodes.truncate(usize::try_from(count).unwrap());
        nodes.into_iter().map(|node: u32| node.try_into().unwrap()).collect()
    }

    fn write(self, offset: usize, bytes: &[u8]) {
        // SAFETY: as many bytes.
        let done =
            unsafe { nf_replicated_write(self.0, offset, bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(done, 0);
    }

    fn read(self, offset: usize, length: usize) -> Vec<u8> {
        let mut into = vec![0; length];
        // SAFETY: room for as many.
        let done = unsafe { nf_replicated_read(self.0, offset, into.as_mut_ptr().cast(), length) };
        assert_eq!(done, 0);
        into
    }

    fn sync(self) {
        // SAFETY: a region.
        assert_eq!(unsafe { nf_replicated_sync(self.0) }, 0);
    }

    /// Where the calling thread's copy is.
    fn view(self) -> usize {
        // SAFETY: a region.
        unsafe { nf_replicated_view(self.0) as usize }
    }

    fn destroy(self) {
        // SAFETY: no reference to the region is left.
        assert_eq!(unsafe { nf_replicated_destroy(self.0) }, 0);
    }
}

/// Does `act` on a CPU.
fn on_cpu<T: Send>(cpu: u8, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(move || {
            affinity::set(&[CpuId(cpu.into())]).unwrap();
            act()
        });
        done.join().unwrap()
    })
}

/// Bytes of a range on nodes 0 to 3.
fn on_nodes(at: usize, length: usize) -> [u64; 4] {
    let mut bytes = [0; 4];
    // SAFETY: room for four nodes.
    assert_eq!(unsafe { nf_residency(at as *const _, length, bytes.as_mut_ptr(), 4) }, 0);
    bytes
}

fn bytes(at: usize, length: usize) -> &'static [u8] {
    // SAFETY: the copies are mapped, and nothing writes to them during the read.
    unsafe { std::slice::from_raw_parts(at as *const u8, length) }
}

/// Writes into a copy without the library, so that it can be distinguished from others.
fn mark(copy: usize, mark: u8) {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page of a copy, which the test may spoil.
    assert_eq!(unsafe { libc::mprotect(copy as *mut _, 4096, rights) }, 0);
    // SAFETY: as above.
    unsafe { (copy as *mut u8).write_bytes(mark, 16) };
}

pub(crate) fn each_copy_is_on_its_node_and_read_from_there() {
    const SIZE: usize = 8 * MIB;
    // CPU and node have the same number.
    for (words, nodes) in [("", vec![0, 1, 2, 3]), (";home=2", vec![2, 0, 1, 3])] {
        let region = Region::new(words, SIZE);
        assert_eq!(region.nodes(), nodes);
        let content: Vec<u8> = (0..=250_u8).cycle().take(SIZE).collect();
        region.write(0, &content);
        region.sync();
        let views: Vec<usize> = (0..4).map(|cpu| on_cpu(cpu, || region.view())).collect();
        for (cpu, view) in (0..4_u8).zip(&views) {
            // Looked at from another node: pages are where they were bound all the same.
            on_cpu((cpu + 1) % 4, || assert!(bytes(*view, SIZE) == content));
            let mut all_here = [0; 4];
            all_here[usize::from(cpu)] = SIZE as u64;
            assert_eq!(on_nodes(*view, SIZE), all_here, "the copy of node {cpu}");
            mark(*view, 100 + cpu);
        }
        for cpu in 0..4_u8 {
            let found = on_cpu(cpu, || region.read(0, 16));
            assert_eq!(found, [100 + cpu; 16], "what node {cpu} reads is its own copy");
        }
        // Written, it is read at home by all, until it is copied again.
        region.write(20, b"new");
        let home = 100 + nodes[0];
        for cpu in 0..4 {
            let found = on_cpu(cpu, || region.read(0, 23));
            assert_eq!((found[0], &found[20..]), (home, &b"new"[..]), "node {cpu} reads at home");
        }
        region.sync();
        views.iter().for_each(|view| assert_eq!(bytes(*view, 16), [home; 16]));
        region.destroy();
    }
}

pub(crate) fn copies_are_created_only_on_nodes_that_read_them() {
    const SIZE: usize = 4 * MIB;
    let region = Region::new(";quiet=0ms", SIZE);
    on_cpu(3, || region.write(0, &vec![7; SIZE]));
    let resident = || {
        let mut text = vec![0_u8; 1 << 20];
        // SAFETY: the buffer has the length passed.
        let length =
            unsafe { nf_stats_text(NF_NONE, NF_JSON, text.as_mut_ptr().cast(), text.len()) };
        let json: serde_json::Value = serde_json::from_slice(&text[..length]).unwrap();
        let of = &json["regions"][0]["resident"];
        [0, 1, 2, 3].map(|node| of[node.to_string()].as_u64().unwrap_or(0) >> 20)
    };
    assert_eq!(resident(), [4, 0, 0, 0], "written by another node, at home");
    assert_eq!(on_cpu(2, || region.read(0, SIZE)), vec![7; SIZE]);
    assert_eq!(resident(), [4, 0, 4, 0]);
    region.destroy();
}

pub(crate) fn a_node_without_cpus_has_a_copy_only_if_named() {
    for (words, nodes) in [("", vec![0]), ("all", vec![0, 1]), ("far", vec![1])] {
        let region = Region::new(words, MIB);
        assert_eq!(region.nodes(), nodes, "{words}");
        region.write(0, &[7; MIB]);
        region.sync();
        // The CPUs' own copy, or the only one.
        let mut expected = [0; 4];
        expected[usize::from(nodes[0])] = MIB as u64;
        assert_eq!(bytes(region.view(), MIB), [7; MIB]);
        assert_eq!(on_nodes(region.view(), MIB), expected, "{words}");
        region.destroy();
    }
}

pub(crate) fn a_region_larger_than_a_node_is_refused_and_the_node_named() {
    let words = c"0-2";
    // SAFETY: a string.
    let region = unsafe { nf_replicated_create(words.as_ptr(), 2 << 30) };
    assert_eq!(region, null_mut());
    let errno = std::io::Error::last_os_error().raw_os_error();
    // SAFETY: a string that stays until the next error.
    let said = unsafe { CStr::from_ptr(nf_error()) }.to_str().unwrap();
    assert!(errno == Some(libc::ENOMEM) && said.contains("node 0 has"), "{said}");
}

pub(crate) fn threads_on_all_nodes_read_consistent_rows_that_never_go_back() {
    let program =
        compiled("libnearfar/tests/replicated.c", "../crates/alloc/include", &["-lnearfar"]);
    for words in ["", ";quiet=0ms;collapses=any", "1,3;quiet=1ms", "0-3;home=3;granule=256"] {
        let output = Command::new(&program).arg(words).output().unwrap();
        assert!(output.status.success(), "{words}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("100 rows, each whole"));
    }
}
