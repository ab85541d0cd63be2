//! Which processes are virtual machines, by their command lines.
//!
//! A VMM has no register of its own, and not each is managed: so processes are looked at. A wrapper (a shell, `taskset`,
//! `nearfar vm run`) becomes the VMM, or has it as a child. Firmware and helpers of a VMM (`virtiofsd`, `swtpm`,
//! `qemu-img`) have other names.

use std::ffi::OsString;
use std::path::Path;

use crate::qemu::{keyval, words};

/// A virtual machine monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU.
    Qemu,
    /// Cloud Hypervisor.
    CloudHypervisor,
}

impl Vmm {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }
}

/// A virtual machine's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its monitor.
    pub vmm: Vmm,
    /// Whether libvirt has started it.
    pub libvirt: bool,
    /// The guest's name, if it has one.
    pub name: Option<String>,
}

/// The virtual machine that a command line starts; `None` if it starts none.
#[must_use]
pub fn of_command_line(line: &[OsString]) -> Option<Found> {
    let line = started(line);
    let program = Path::new(line.first()?).file_name()?.to_str()?;
    if program == "cloud-hypervisor" {
        return Some(Found { vmm: Vmm::CloudHypervisor, libvirt: false, name: None });
    }
    if !program.starts_with("qemu-system-") && !["qemu-kvm", "kvm"].contains(&program) {
        return None;
    }
    let options = words::options(line);
    let names = options.iter().filter(|option| option.name == "name");
    let mut names = names.filter_map(|option| {
        keyval::get(&keyval::parse(&option.value, Some("guest")), "guest").map(str::to_owned)
    });
    let libvirt = options.iter().any(|option| option.value.contains("/libvirt/qemu/"));
    Some(Found { vmm: Vmm::Qemu, libvirt, name: names.next_back() })
}

/// The command line without the dynamic linker before it, with which some packages start their programs (ld.so(8)).
fn started(line: &[OsString]) -> &[OsString] {
    let name = |word: &OsString| {
        Path::new(word).file_name().map(|name| name.to_string_lossy().into_owned())
    };
    let is_linker = line
        .first()
        .and_then(name)
        .is_some_and(|name| name.starts_with("ld-linux") || name.starts_with("ld.so"));
    if !is_linker {
        return line;
    }
    let mut at = 1;
    while let Some(option) =
        line.get(at).and_then(|word| word.to_str()).filter(|word| word.starts_with("--"))
    {
        let has_value = ["--library-path", "--argv0", "--preload", "--audit", "--inhibit-rpath"]
            .contains(&option);
        at += if has_value { 2 } else { 1 };
    }
    line.get(at..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Option<Found> {
        of_command_line(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn monitors_are_distinguished_from_other_programs() {
        let qemu = |libvirt, name: Option<&str>| {
            Some(Found { vmm: Vmm::Qemu, libvirt, name: name.map(str::to_owned) })
        };
        for (line, expected) in [
            ("/usr/bin/qemu-system-x86_64 -m 1G", qemu(false, None)),
            ("qemu-system-aarch64 -name web,debug-threads=on -m 1G", qemu(false, Some("web"))),
            ("/usr/libexec/qemu-kvm --name guest=a,,b -S", qemu(false, Some("a,b"))),
            (
                "qemu-system-x86_64 -name guest=db -object \
                 {\"qom-type\":\"secret\",\"file\":\"/var/lib/libvirt/qemu/domain-1-db/master-key.aes\"}",
                qemu(true, Some("db")),
            ),
            (
                "cloud-hypervisor --memory size=1G",
                Some(Found { vmm: Vmm::CloudHypervisor, libvirt: false, name: None }),
            ),
            (
                "/lib/ld-linux-x86-64.so.2 --inhibit-cache --library-path /a:/b /c/qemu-system-x86_64 -name x",
                qemu(false, Some("x")),
            ),
            ("/lib/ld-linux-x86-64.so.2 --library-path", None),
            ("taskset -c 0 qemu-system-x86_64", None),
            ("qemu-img convert a b", None),
            ("qemu-x86_64 /bin/true", None),
            ("", None),
        ] {
            assert_eq!(found(line), expected, "{line}");
        }
    }
}
