//! The words of QEMU's command line, as options.
//!
//! QEMU decides by the option whether the next word is its value, also if that word begins with a dash. The options
//! without a value are few, and new ones rarely come; an option unknown here is taken to have one.

use std::ffi::OsString;

/// Options without a value, of QEMU 4 to 10 and all targets.
const FLAGS: [&str; 51] = [
    "h",
    "help",
    "version",
    "mem-prealloc",
    "snapshot",
    "usb",
    "nographic",
    "portrait",
    "full-screen",
    "fullscreen",
    "alt-grab",
    "ctrl-grab",
    "no-frame",
    "no-quit",
    "sdl",
    "curses",
    "win2k-hack",
    "no-fd-bootchk",
    "no-acpi",
    "no-hpet",
    "rtc-td-hack",
    "preconfig",
    "S",
    "s",
    "singlestep",
    "enable-kvm",
    "no-kvm",
    "xen-attach",
    "xen-create",
    "xen-domid-restrict",
    "no-reboot",
    "no-shutdown",
    "daemonize",
    "only-migratable",
    "nodefaults",
    "no-user-config",
    "nodefconfig",
    "semihosting",
    "old-param",
    "enable-sync-profile",
    "perfmap",
    "jitdump",
    "enable-fips",
    "tdf",
    "no-kvm-irqchip",
    "no-kvm-pit",
    "no-kvm-pit-reinjection",
    "show-cursor",
    "virtfs_synth",
    "async-teardown",
    "enable-nesting",
];

/// An option with a value that is UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opt {
    /// Its name without dashes; `machine` also for `M`.
    pub(crate) name: String,
    /// The index of the word with its value.
    pub(crate) word: usize,
    /// The value.
    pub(crate) value: String,
}

/// The options of a command line whose first word is the program. Flags and options with other values are left out.
pub(crate) fn options(words: &[OsString]) -> Vec<Opt> {
    let mut found = Vec::new();
    let mut at = 1;
    while let Some(word) = words.get(at) {
        at += 1;
        let Some(name) = word.to_str().and_then(|word| word.strip_prefix('-')) else { continue };
        let name = name.strip_prefix('-').unwrap_or(name);
        if FLAGS.contains(&name) {
            continue;
        }
        if let Some(value) = words.get(at).and_then(|value| value.to_str()) {
            let name = if name == "M" { "machine" } else { name };
            found.push(Opt { name: name.to_owned(), word: at, value: value.to_owned() });
        }
        at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<String> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        options(&words).into_iter().map(|opt| format!("{}={}", opt.name, opt.value)).collect()
    }

    #[test]
    fn both_dashes_and_short_names_are_known() {
        assert_eq!(
            read("qemu -M q35 --object a -nographic -m 4G disk.img -machine x"),
            ["machine=q35", "object=a", "m=4G", "machine=x"]
        );
    }

    #[test]
    fn a_value_that_looks_like_an_option_is_a_value() {
        assert_eq!(read("qemu -append -object -S -m 1"), ["append=-object", "m=1"]);
        assert_eq!(read("qemu -object"), [""; 0]);
    }
}
