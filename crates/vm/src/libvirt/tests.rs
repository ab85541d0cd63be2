//! Tests of the changes to domain XML, also against libvirt's own schema.

use std::process::Command;

use nearfar_topology::testkit::{dram_and_cxl, machine, node};
use nearfar_topology::{MemoryKind, Topology};
use proptest::prelude::*;

use super::*;

const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

const PLAIN: &str = "<?xml version='1.0'?>
<!-- of the test -->
<domain type='kvm'>
  <name>vm</name>
  <memory unit='GiB'>4</memory>
  <vcpu>4</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu>
    <numa>
      <cell id='0' cpus='0-3' memory='2' unit='GiB'/>
      <cell id='1' memory='2' unit='GiB'></cell>
    </numa>
  </cpu>
</domain>
";

fn host(machine: &Topology) -> Host<'_> {
    let room = machine.nodes.iter().map(|(id, node)| (*id, node.free)).collect();
    Host { machine, room, huge: Default::default(), figures: Figures::of_firmware(machine) }
}

fn patched(xml: &str, cells: &[&str]) -> Result<Domain, VmError> {
    let machine = dram_and_cxl();
    let cells: Vec<Cell> = cells.iter().map(|cell| cell.parse().unwrap()).collect();
    patch(xml, &cells, &host(&machine), false)
}

#[test]
fn a_cell_gets_its_nodes_and_the_guest_its_hmat() {
    let domain = patched(PLAIN, &["1=cxl"]).unwrap();
    let expected = PLAIN
        .replace(
            "  <cpu>",
            "  <numatune>
    <memnode cellid='1' mode='strict' nodeset='1'/>
  </numatune>
  <cpu>",
        )
        .replace(
            "cpus='0-3' memory='2' unit='GiB'/>",
            "cpus='0-3' memory='2' unit='GiB'>
        <distances>
          <sibling id='0' value='10'/>
          <sibling id='1' value='20'/>
        </distances>
      </cell>",
        )
        .replace(
            "'GiB'></cell>",
            "'GiB'>
        <distances>
          <sibling id='0' value='20'/>
          <sibling id='1' value='10'/>
        </distances>
      </cell>
      <interconnects>
        <latency initiator='0' target='0' type='access' value='100'/>
        <latency initiator='0' target='1' type='access' value='250'/>
        <bandwidth initiator='0' target='0' type='access' value='40960000' unit='KiB'/>
        <bandwidth initiator='0' target='1' type='access' value='13312000' unit='KiB'/>
      </interconnects>",
        );
    assert_eq!(domain.text, expected);
    assert_eq!(domain.notes, ["the guest's HMAT has the host's figures, from firmware"]);
}

#[test]
fn a_second_pass_changes_nothing_more() {
    let once = patched(PLAIN, &["1=cxl,preferred"]).unwrap().text;
    assert!(once.contains("mode='preferred'"), "{once}");
    let twice = patched(&once, &["1=cxl,preferred"]).unwrap();
    assert_eq!(twice.text, once);
    assert!(twice.notes.iter().any(|note| note.contains("left as they are")), "{:?}", twice.notes);
}

#[test]
fn a_memnode_that_exists_is_replaced_and_others_stay() {
    let tune = "<numatune><memory mode='strict' nodeset='0'/><memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid=\"1\" mode='strict' nodeset='7'/></numatune>\n  <cpu>";
    let text = patched(&PLAIN.replace("<cpu>", tune), &["1=1,interleave"]).unwrap().text;
    let expected = "<memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='interleave' nodeset='1'/></numatune>";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn one_cell_without_requests_leaves_the_document_unchanged() {
    let one = PLAIN.replace("      <cell id='1' memory='2' unit='GiB'></cell>\n", "");
    assert_eq!(patched(&one, &[]).unwrap().text, one);
}

#[test]
fn a_compact_document_stays_compact() {
    let compact: String = PLAIN.lines().skip(2).map(str::trim).collect();
    let text = patched(&compact, &["1=cxl"]).unwrap().text;
    assert!(
        !text.contains('\n') && text.contains("<distances><sibling id='0' value='10'/>"),
        "{text}"
    );
}

#[test]
fn invalid_documents_and_requests_are_refused() {
    let automatic = PLAIN.replace("<cpu>", "<numatune><memory placement='auto'/></numatune><cpu>");
    for (xml, cell, part) in [
        ("<domain>\n <a></domain>", "1=cxl", "2:5"),
        ("<network/>", "1=cxl", "<network>, not <domain>"),
        ("<domain/>", "1=cxl", "no cells"),
        ("<domain type='xen'/>", "1=cxl", "the domain is of type xen"),
        (PLAIN, "2=cxl", "its cells are 0, 1"),
        (PLAIN, "1=hbm", "names no node here"),
        (PLAIN, "1=cxl,weighted-interleave", "libvirt has no such mode"),
        (&automatic, "1=cxl", "placement='auto'"),
        (
            &PLAIN.replace("memory='2' unit='GiB'></cell>", "memory='9' unit='GiB'/>"),
            "1=cxl",
            "cell 1: 9 GiB",
        ),
    ] {
        let error = patched(xml, &[cell]).unwrap_err().to_string();
        assert!(error.contains(part), "{cell}: {error}");
    }
    for text in ["", "1", "x=cxl", "1="] {
        assert!(text.parse::<Cell>().unwrap_err().contains("1=cxl"), "{text}");
    }
}

#[test]
fn the_result_validates_against_the_schema_of_libvirt() {
    let dir = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    let file = dir.join(format!("nearfar-domain-{}.xml", std::process::id()));
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let lint =
            Command::new("xmllint").args(["--noout", "--relaxng", SCHEMA]).arg(&file).output();
        lint.map(|output| {
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        })
    };
    if !std::path::Path::new(SCHEMA).exists() || check(PLAIN).is_err() {
        println!("SKIPPED: no {SCHEMA} or no xmllint (make test installs both)");
        return;
    }
    let machine = machine([
        node(0).cpus(0..4).access(100, 60_000, 60_000),
        node(2).kind(MemoryKind::Cxl).access(250, 27_000, 27_000),
        node(3).kind(MemoryKind::Cxl).access(250, 27_000, 27_000),
    ]);
    for wish in ["1=cxl", "1=2,preferred", "1=2-3,interleave"] {
        let text = patch(PLAIN, &[wish.parse().unwrap()], &host(&machine), false).unwrap().text;
        let (is_valid, message) = check(&text).unwrap();
        assert!(is_valid, "{wish}: {message}\n{text}");
    }
    let broken = PLAIN.replace(
        "<cpu>",
        "<numatune><memnode cellid='1' mode='weighted-interleave' nodeset='1'/></numatune><cpu>",
    );
    assert!(!check(&broken).unwrap().0, "the schema accepts everything");
    let _ = std::fs::remove_file(file);
}

proptest! {
    #[test]
    fn any_text_is_refused_or_stays_xml(text in "(<domain>|</domain>|<cpu>|</cpu>|<numa>|</numa>|<cell memory='1'/>|<numatune/>|[ \n&é]){0,12}") {
        if let Ok(domain) = patched(&text, &["0=cxl"]) {
            prop_assert!(Document::parse(&domain.text).is_ok(), "{}", domain.text);
        }
    }

    #[test]
    fn removing_the_additions_gives_the_document_back(blank in "[ \t]{0,3}", comment in "[a-z é]{0,9}") {
        let xml = PLAIN.replace("  <cpu>", &format!("{blank}<cpu><!--{comment}-->"));
        let text = patched(&xml, &["1=cxl"]).unwrap().text;
        // Every byte of the document is in the result, in order.
        let mut rest = text.bytes();
        let is_kept = xml.replace("/>", ">").bytes().all(|byte| rest.any(|other| other == byte));
        prop_assert!(is_kept, "{text}");
    }
}
