//! The machine as QEMU's arguments: nodes with their firmware tables, the shared directories, the port.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::files::{RunFiles, escaped};
use super::stacks;
use super::timing::Method;
use crate::fetch::Kernel;
use crate::guest::PORT;
use crate::machine::{self, Machine};

/// Parameters of every guest kernel: all console messages from the first on (they tell how far a boot got, and
/// whether it goes on), and a power-off on a panic. The time-stamp counter is the host's and needs no watchdog: that of
/// Linux 7.2 compares CPUs while all others wait, and with more of them than the host has it may never end. The emulated CPU does not
/// speculate, so mitigations are off; a fixed layout of the kernel and of programs makes runs repeatable (the modelled
/// first level is direct-mapped: with random layouts, Redis ran up to 6 % faster or slower from boot to boot). Under
/// emulation a boot takes a few seconds, a quarter of it in the ciphers' self-tests, type information for BPF programs
/// and key rings, which are unrelated to memory and so disabled; so are watchdogs, sampling checks, and the search for
/// serial ports.
const KERNEL_PARAMETERS: &str = "console=ttyS0 earlyprintk=ttyS0 panic=-1 tsc=reliable mitigations=off nokaslr norandmaps \
    cryptomgr.notests random.trust_cpu=on no_timer_check nowatchdog kfence.sample_interval=0 audit=0 apparmor=0 \
    8250.nr_uarts=1 initcall_blacklist=bpf_dummy_struct_ops_init,bpf_tcp_ca_kfunc_init,init_encrypted,\
    load_system_certificate_list,jent_mod_init,crypto_kdf108_init";

/// The inputs of the arguments.
#[derive(Debug)]
pub(super) struct Board<'a> {
    pub(super) machine: &'a Machine,
    pub(super) kernel: &'a Kernel,
    pub(super) files: &'a RunFiles,
    pub(super) out: Option<&'a Path>,
    pub(super) method: &'a Method,
    pub(super) append: &'a str,
    pub(super) firmware: &'a [PathBuf],
}

/// QEMU's arguments.
pub(super) fn arguments(board: &Board<'_>) -> Vec<OsString> {
    let machine = board.machine;
    let device = machine.nodes.iter().any(|node| node.cxl_device.is_some());
    let mut args = Args::default();
    args.add("-nodefaults");
    args.add("-no-user-config");
    args.add("-no-reboot");
    args.pair("-display", "none");
    for dir in board.firmware {
        args.0.extend(["-L".into(), dir.into()]);
    }
    args.pair("-accel", "tcg,thread=multi");
    // Without fast string moves programs and the kernel copy eight bytes at a time: the emulator executes `rep movsb` byte
    // by byte, which takes twice as long here and, by the model, there.
    let cpu = "max,-erms,-fsrm".to_owned();
    // The driver refuses CXL regions in a guest: it must flush caches, which guests can't. So the hypervisor flag is
    // hidden.
    args.pair("-cpu", &(cpu + if device { ",-hypervisor" } else { "" }));
    args.pair("-machine", &board_type(machine, device));
    args.pair("-smp", &cpus(machine));
    args.pair("-m", &format!("{}M", machine.ram() >> 20));
    nodes(&mut args, machine);
    hmat(&mut args, machine, board.method.slow_motion());
    // QEMU does not treat the memory of an emulated CXL device as RAM. Another device's DMA to it goes through bounce
    // buffers of 4 KiB; a larger request breaks the device ("virtio: bogus descriptor or out of resources"), and the
    // guest waits for it for ever. The buffer size can be set for devices that translate addresses, which
    // iommu_platform selects.
    let bounce = if device {
        ",disable-legacy=on,iommu_platform=on,x-max-bounce-buffer-size=67108864"
    } else {
        ""
    };
    shares(&mut args, board.out, bounce);
    args.path("-chardev", "file,id=console,path=", &board.files.console(), "");
    args.pair("-serial", "chardev:console");
    // The port's other end is our standard input: a socket that no other process has.
    args.pair("-chardev", "socket,id=port,fd=0");
    args.pair("-device", &format!("virtio-serial-pci,bus=pcie.0{bounce}"));
    args.pair("-device", &format!("virtserialport,chardev=port,name={PORT}"));
    let monitor = board.files.monitor();
    args.path("-chardev", "socket,id=monitor,server=on,wait=off,path=", &monitor, "");
    args.pair("-mon", "chardev=monitor,mode=control");
    if board.method.plugin().is_some() {
        args.path("-chardev", "socket,id=pmu,server=on,wait=off,path=", &board.files.pmu(), "");
        args.pair(
            "-device",
            &format!("virtserialport,chardev=pmu,name={}", nearfar_timing::pmu::PORT),
        );
    }
    args.0.extend(["-kernel".into(), board.kernel.image.clone().into()]);
    args.0.extend(["-initrd".into(), board.files.image().into()]);
    let own = board.method.kernel_parameters(board.kernel);
    let parameters = [KERNEL_PARAMETERS, stacks::KERNEL_PARAMETERS, &own, board.append].join(" ");
    args.pair("-append", parameters.trim());
    if let Some(plugin) = board.method.plugin() {
        let mut value = escaped(plugin).into_vec();
        value.extend(b",config=");
        value.extend(escaped(&board.files.timing()).as_bytes());
        args.0.extend(["-plugin".into(), OsString::from_vec(value)]);
    }
    args.0
}

#[derive(Debug, Default)]
struct Args(Vec<OsString>);

impl Args {
    fn add(&mut self, arg: &str) {
        self.0.push(arg.into());
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.0.extend([name.into(), value.into()]);
    }

    fn path(&mut self, name: &str, before: &str, path: &Path, after: &str) {
        let mut value = OsString::from(before);
        value.push(escaped(path));
        value.push(after);
        self.0.extend([name.into(), value]);
    }
}

fn board_type(machine: &Machine, device: bool) -> String {
    let mut text =
        "q35,hmat=on,usb=off,smbus=off,sata=off,vmport=off,i8042=off,graphics=off".to_owned();
    if device {
        // The window for regions: room for the device, in the granularity of the firmware table.
        let size: u64 =
            machine.nodes.iter().filter_map(|n| n.cxl_device.as_ref().map(|_| n.size.0)).sum();
        let window = size.next_multiple_of(256 << 20) >> 20;
        text += &format!(",cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size={window}M");
    }
    text
}

/// The CPU topology: one socket per node with CPUs, if all have the same number.
fn cpus(machine: &Machine) -> String {
    let all = machine.cpus();
    let mut shares = machine.nodes.iter().map(|node| node.cpus).filter(|cpus| *cpus > 0);
    let first = shares.next().unwrap_or(1);
    let (sockets, cores) =
        if shares.all(|share| share == first) { (all / first, first) } else { (all, 1) };
    format!("{all},sockets={sockets},cores={cores},threads=1")
}

fn nodes(args: &mut Args, machine: &Machine) {
    let mut cpu = 0;
    let ids = || (0u16..).zip(&machine.nodes).filter(|(_, node)| node.cxl_device.is_none());
    for (id, node) in ids() {
        let size = node.size.0 >> 20;
        args.pair("-object", &format!("memory-backend-ram,id=ram{id},size={size}M"));
        let own = if node.cpus > 0 {
            let first = cpu;
            cpu += node.cpus;
            format!(",cpus={first}-{}", cpu - 1)
        } else {
            String::new()
        };
        let initiator = machine.initiator(id);
        args.pair("-numa", &format!("node,nodeid={id}{own},memdev=ram{id},initiator={initiator}"));
    }
    for (from, _) in ids() {
        for (to, _) in ids() {
            let distance = machine.distance(from, to);
            args.pair("-numa", &format!("dist,src={from},dst={to},val={distance}"));
        }
    }
    for (id, node) in (0u16..).zip(&machine.nodes) {
        let Some(device) = &node.cxl_device else { continue };
        let size = node.size.0 >> 20;
        args.pair("-object", &format!("memory-backend-ram,id=ram{id},size={size}M"));
        args.pair("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1");
        args.pair("-device", "cxl-rp,port=0,bus=cxl.1,id=root0,chassis=0,slot=2");
        let serial = device.serial;
        args.pair(
            "-device",
            &format!("cxl-type3,bus=root0,volatile-memdev=ram{id},id=cxl-mem0,sn={serial:#x}"),
        );
    }
}

/// The HMAT for each pair of CPU node and memory node, scaled by the slow-motion factor.
fn hmat(args: &mut Args, machine: &Machine, slow_motion: f64) {
    for from in machine.cpu_nodes() {
        for (to, node) in (0u16..).zip(&machine.nodes).filter(|(_, node)| node.cxl_device.is_none())
        {
            let latency = whole(machine.latency(from, to).unwrap_or(1.0) * slow_motion);
            let limit = machine.path(from, to).and_then(machine::Path::reads_gbps);
            let limit = limit.unwrap_or(f64::INFINITY);
            // The kernel reads the unit as 10^6 bytes a second, QEMU takes it as 2^20: the number is the same.
            let megabytes = |gbps: f64| whole(gbps.min(limit) * 1000.0 / slow_motion);
            let pair = format!("hmat-lb,initiator={from},target={to},hierarchy=memory,data-type");
            args.pair("-numa", &format!("{pair}=access-latency,latency={latency}"));
            for (what, gbps) in [("read", node.read_gbps), ("write", node.write_gbps)] {
                let bandwidth = megabytes(gbps);
                args.pair("-numa", &format!("{pair}={what}-bandwidth,bandwidth={bandwidth}M"));
            }
        }
    }
}

/// A value for a firmware table: a whole number of at least one.
fn whole(figure: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped, far below 2^53"
    )]
    let number = figure.round().clamp(1.0, 1e12) as u64;
    number
}

fn shares(args: &mut Args, out: Option<&Path>, bounce: &str) {
    args.pair("-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap");
    let device = format!("virtio-9p-pci,bus=pcie.0{bounce},fsdev=");
    args.pair("-device", &format!("{device}host,mount_tag=host"));
    if let Some(out) = out {
        args.path("-fsdev", "local,id=out,path=", out, ",security_model=none,multidevs=remap");
        args.pair("-device", &format!("{device}out,mount_tag=out"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::catalog;

    #[test]
    fn a_comma_in_a_path_is_escaped() {
        assert_eq!(escaped(Path::new("/a,b")), OsString::from("/a,,b"));
    }

    #[test]
    fn cpus_are_assigned_to_sockets_with_their_nodes() {
        let ring = catalog::built_in("numa-4node").unwrap();
        assert_eq!(cpus(&ring), "4,sockets=4,cores=1,threads=1");
        assert_eq!(cpus(&ring.with_cpus(6).unwrap()), "6,sockets=6,cores=1,threads=1");
        assert_eq!(cpus(&catalog::built_in("cxl-2tier").unwrap()), "6,sockets=1,cores=6,threads=1");
    }

    #[test]
    fn the_hmat_has_the_figures_of_the_machine_file() {
        let mut args = Args::default();
        hmat(&mut args, &catalog::built_in("cxl-2tier").unwrap(), 1.0);
        let text = args.0.join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        for part in [
            "target=0,hierarchy=memory,data-type=access-latency,latency=116",
            "target=1,hierarchy=memory,data-type=access-latency,latency=250",
            "target=0,hierarchy=memory,data-type=read-bandwidth,bandwidth=54900M",
            "target=1,hierarchy=memory,data-type=write-bandwidth,bandwidth=27000M",
        ] {
            assert!(text.contains(part), "{part} not in {text}");
        }
    }
}
