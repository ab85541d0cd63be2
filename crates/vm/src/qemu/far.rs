//! `--far 2G:cxl`: far memory in addition to that of `-m`, from a command line without any.
//!
//! Shape `numa`: a guest node with the memory of `-m` and all CPUs, and one without CPUs for each far memory. Shape `type3`: a
//! CXL memory device for each; its fixed memory window is emulated I/O under KVM, slow, and fatal for some instructions, so
//! that shape is for tests under TCG.

use std::ffi::OsString;
use std::str::FromStr;

use nearfar_topology::Bytes;

use super::words::{self, Opt};
use super::{keyval, plain};
use crate::error::VmError;
use crate::size;
use crate::splice::{self, Splice};
use crate::wish::TYPE;

/// The id of the near memory.
const NEAR: &str = "nearfar-near";
/// Ids of far memory begin so.
pub(super) const FAR: &str = "nearfar-far";
/// Sizes of fixed memory windows are multiples of this.
const WINDOW: u64 = 256 << 20;

/// Far memory to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    /// Its size.
    pub size: Bytes,
    /// Its type.
    pub kind: String,
}

impl FromStr for Far {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, kind) = text.split_once(':').unwrap_or((text, "far"));
        let size = size::parse(size, 1).filter(|size| size.0 > 0 && size.0.is_multiple_of(1 << 20));
        let size = size.ok_or("write SIZE or SIZE:TYPE, such as 2G or 2G:cxl, in whole MiB")?;
        Ok(Self { size, kind: kind.to_owned() })
    }
}

/// The form in which the guest sees far memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// A node without CPUs.
    #[default]
    Numa,
    /// A CXL type-3 device.
    Type3,
}

/// Adds the far memory as options with our keys, and the memory of `-m` with `wish`, if that is needed.
///
/// Returns whether it has used `wish`.
pub(super) fn expand(
    words: &mut Vec<OsString>,
    far: &[Far],
    (shape, wish): (Shape, Option<&str>),
) -> Result<bool, VmError> {
    if far.is_empty() {
        return Ok(false);
    }
    let objects = far.iter().enumerate().flat_map(|(index, one)| {
        let (size, kind) = (size::print(one.size), keyval::escape(&one.kind));
        let object = format!("memory-backend-ram,id={FAR}{index},size={size},{TYPE}={kind}");
        ["-object".to_owned(), object]
    });
    let objects: Vec<String> = objects.collect();
    let options = words::options(words);
    let added = match shape {
        Shape::Numa => numa(words, far, wish)?,
        Shape::Type3 => type3(&options, far)?,
    };
    words.extend(objects.into_iter().chain(added).map(OsString::from));
    Ok(shape == Shape::Numa)
}

/// The guest's nodes. The memory of `-m` grows by the far memory, as QEMU counts all nodes there.
fn numa(
    words: &mut Vec<OsString>,
    far: &[Far],
    wish: Option<&str>,
) -> Result<Vec<String>, VmError> {
    let options = words::options(words);
    free(&options)?;
    let near = plain::memory(&options)?;
    let total = far.iter().fold(near.0, |sum, one| sum.saturating_add(one.size.0));
    resize(words, &options, Bytes(total));
    let wish = wish.map(|wish| format!(",{wish}")).unwrap_or_default();
    let last = cpus(&options)?.saturating_sub(1);
    let cpus = if last == 0 { "0".to_owned() } else { format!("0-{last}") };
    let mut added = vec![
        "-object".to_owned(),
        format!("memory-backend-ram,id={NEAR},size={}{wish}", size::print(near)),
        "-numa".to_owned(),
        format!("node,nodeid=0,cpus={cpus},memdev={NEAR}"),
    ];
    for index in 0..far.len() {
        let node = format!("node,nodeid={},memdev={FAR}{index}", index + 1);
        added.extend(["-numa".to_owned(), node]);
    }
    Ok(added)
}

/// Sets the size of the last `-m`, or adds one.
fn resize(words: &mut Vec<OsString>, options: &[Opt], total: Bytes) {
    let total = size::print(total);
    let mut sized = options.iter().filter(|opt| opt.name == "m").filter_map(|opt| {
        let fields = keyval::parse(&opt.value, Some("size"));
        let field = fields.into_iter().rfind(|field| field.key == "size")?;
        Some((opt, field))
    });
    match sized.next_back() {
        Some((opt, field)) => {
            let text = if field.is_implied { total } else { format!("size={total}") };
            let text = splice::apply(&opt.value, vec![Splice::new(field.span, text)]);
            words[opt.word] = text.into();
        }
        None => words.extend(["-m".into(), total.into()]),
    }
}

/// Refuses options that divide the guest's memory already.
fn free(options: &[Opt]) -> Result<(), VmError> {
    for opt in options {
        let fields = keyval::parse(&opt.value, Some("type"));
        let has_backend = keyval::get(&fields, "memory-backend").is_some();
        let has = |group| fields.iter().any(|field| field.key.starts_with(group));
        let own = "write host-mem-type on the -object of a node instead";
        let (theirs, remedy) = match opt.name.as_str() {
            "numa" => ("-numa", own),
            "mem-path" => ("-mem-path", own),
            "machine" if has_backend => ("-machine memory-backend=", own),
            "machine" if has("memory.") => {
                ("-machine memory.*=", "write -m SIZE, which is the same")
            }
            "machine" if has("smp.") => ("-machine smp.*=", "write -smp CPUS, which is the same"),
            _ => continue,
        };
        let (place, ours) = ("--far".into(), "--far".into());
        let (theirs, remedy) = (theirs.into(), remedy.into());
        return Err(VmError::Conflict { place, ours, theirs, remedy });
    }
    Ok(())
}

/// The number of CPUs that the guest may have.
fn cpus(options: &[Opt]) -> Result<u64, VmError> {
    const LEVELS: [&str; 8] =
        ["drawers", "books", "sockets", "dies", "clusters", "modules", "cores", "threads"];
    // Parameters of several -smp count together, the last of each.
    let all = options.iter().filter(|opt| opt.name == "smp");
    let fields: Vec<_> = all.flat_map(|opt| keyval::parse(&opt.value, Some("cpus"))).collect();
    let number = |key: &str| {
        let text = keyval::get(&fields, key)?;
        let number = text.parse::<u64>().ok().filter(|number| (1..=4096).contains(number));
        Some(number.ok_or_else(|| VmError::Value {
            place: "-smp".into(),
            key: key.into(),
            text: text.into(),
            problem: "not a number of CPUs".into(),
        }))
    };
    if let Some(number) = number("maxcpus").or_else(|| number("cpus")) {
        return number;
    }
    LEVELS
        .iter()
        .filter_map(|level| number(level))
        .try_fold(1_u64, |product, number| Ok(product.saturating_mul(number?).min(4096)))
}

/// Refuses a machine without CXL: `configured` is its type in a configuration file.
pub(super) fn needs_cxl(options: &[Opt], configured: Option<&str>) -> Result<(), VmError> {
    let mut types = options.iter().filter(|opt| opt.name == "machine").filter_map(|opt| {
        keyval::get(&keyval::parse(&opt.value, Some("type")), "type").map(str::to_owned)
    });
    let named = types.next_back().or_else(|| configured.map(str::to_owned));
    let has_cxl =
        |name: &str| ["q35", "pc-q35", "virt"].iter().any(|known| name.starts_with(known));
    if named.as_deref().is_some_and(has_cxl) {
        return Ok(());
    }
    Err(VmError::Conflict {
        place: "--far".into(),
        ours: "--shape type3".into(),
        theirs: named.map_or("QEMU's default machine".into(), |name| format!("-machine {name}")),
        remedy: "only some machines have CXL: add -M q35, or leave --shape out".into(),
    })
}

/// The devices, behind one host bridge of their own.
fn type3(options: &[Opt], far: &[Far]) -> Result<Vec<String>, VmError> {
    let takes = |opt: &&Opt| opt.name == "machine" && opt.value.contains("cxl-fmw");
    if options.iter().any(|opt| takes(&opt)) {
        return Err(VmError::Conflict {
            place: "--far".into(),
            ours: "--shape type3".into(),
            theirs: "-machine cxl-fmw".into(),
            remedy: "write host-mem-type on the -object of the device instead".into(),
        });
    }
    let total = far.iter().fold(0_u64, |sum, one| sum.saturating_add(one.size.0));
    let window = size::print(Bytes(total.div_ceil(WINDOW).saturating_mul(WINDOW)));
    let mut added = vec![
        "-machine".to_owned(),
        format!("cxl=on,cxl-fmw.0.targets.0=nearfar-cxl,cxl-fmw.0.size={window}"),
        "-device".to_owned(),
        "pxb-cxl,id=nearfar-cxl,bus=pcie.0,bus_nr=192".to_owned(),
    ];
    for index in 0..far.len() {
        let port = format!(
            "cxl-rp,id=nearfar-port{index},bus=nearfar-cxl,port={index},chassis=192,slot={index}"
        );
        let device = format!(
            "cxl-type3,id=nearfar-mem{index},bus=nearfar-port{index},volatile-memdev={FAR}{index}"
        );
        added.extend(["-device".to_owned(), port, "-device".to_owned(), device]);
    }
    Ok(added)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str, far: &[&str], shape: Shape) -> Result<String, VmError> {
        let mut words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let far: Vec<Far> = far.iter().map(|text| text.parse().unwrap()).collect();
        expand(&mut words, &far, (shape, None))?;
        Ok(crate::shell::join(&words))
    }

    #[test]
    fn the_memory_of_the_machine_grows_by_the_far_memory() {
        let line = "qemu -smp 4,maxcpus=8 -m size=4G,slots=2";
        let expected = "qemu -smp 4,maxcpus=8 -m size=6G,slots=2 \
            -object memory-backend-ram,id=nearfar-far0,size=2G,host-mem-type=cxl \
            -object memory-backend-ram,id=nearfar-near,size=4G \
            -numa node,nodeid=0,cpus=0-7,memdev=nearfar-near \
            -numa node,nodeid=1,memdev=nearfar-far0";
        assert_eq!(expanded(line, &["2G:cxl"], Shape::Numa).unwrap(), expected);
    }

    #[test]
    fn without_m_the_default_of_qemu_counts() {
        let text = expanded("qemu", &["256M:1-2", "1G:tier:1"], Shape::Numa).unwrap();
        assert!(
            text.contains(" -m 1408M ") && text.contains("id=nearfar-near,size=128M"),
            "{text}"
        );
        assert!(text.contains("id=nearfar-far1,size=1G,host-mem-type=tier:1"), "{text}");
        assert!(text.contains("nodeid=0,cpus=0,") && text.contains("nodeid=2,"), "{text}");
    }

    #[test]
    fn cpus_are_counted_as_qemu_counts_them() {
        for (smp, count) in
            [("4", 4), ("cpus=2", 2), ("2,maxcpus=6", 6), ("sockets=2,cores=3,threads=2", 12)]
        {
            let words = ["qemu", "-smp", smp].map(OsString::from);
            assert_eq!(cpus(&words::options(&words)).unwrap(), count, "{smp}");
        }
        let words = ["qemu", "-smp", "many"].map(OsString::from);
        assert!(cpus(&words::options(&words)).is_err());
    }

    #[test]
    fn a_machine_divided_already_is_refused() {
        let error = expanded("qemu -numa node", &["1G"], Shape::Numa).unwrap_err().to_string();
        assert!(error.contains("--far and -numa exclude each other"), "{error}");
        let line = "qemu -M q35,cxl=on,cxl-fmw.0.size=4G";
        assert!(expanded(line, &["1G"], Shape::Type3).is_err());
    }

    #[test]
    fn a_machine_without_cxl_is_refused() {
        let checked = |line: &str, configured: Option<&str>| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            let checked = needs_cxl(&words::options(&words), configured);
            checked.map_err(|error| error.to_string())
        };
        for line in
            ["qemu -M q35", "qemu -machine type=pc-q35-9.0,cxl=on", "qemu -M q35 -M accel=kvm"]
        {
            assert_eq!(checked(line, None), Ok(()), "{line}");
        }
        assert_eq!(checked("qemu -m 1G", Some("q35")), Ok(()));
        for (line, theirs) in [
            ("qemu -m 1G", "QEMU's default machine"),
            ("qemu -M pc", "-machine pc"),
            ("qemu -M q35 -M microvm", "-machine microvm"),
        ] {
            let error = checked(line, None).unwrap_err();
            assert!(error.contains(theirs) && error.contains("add -M q35"), "{error}");
        }
    }

    #[test]
    fn devices_have_a_window_for_all_of_them() {
        let text = expanded("qemu -m 1G", &["300M", "300M"], Shape::Type3).unwrap();
        assert!(text.contains("cxl-fmw.0.size=768M") && text.contains("-m 1G"), "{text}");
        assert!(text.contains("bus=nearfar-port1,volatile-memdev=nearfar-far1"), "{text}");
    }
}
