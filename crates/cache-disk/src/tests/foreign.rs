//! Files and devices with foreign data are refused and unchanged, even if they look nearly blank.
//!
//! Images are made by the real programs: btrfs-progs, e2fsprogs, xfsprogs, cryptsetup-bin, util-linux and fdisk
//! (`scripts/setup test`). The labels of ZFS, LVM2 and md RAID are written here by their on-disk formats, as their
//! programs need kernel modules or a device mapper.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::*;
use super::testkit::*;

const MIB: u64 = 1 << 20;

fn open(path: &Path, config: &Config) -> Result<(Disk, Opened), Error> {
    Disk::open(path, config, &mut |_| {})
}

/// An empty file that no other user can write to, with any umask.
fn create(path: &Path) -> File {
    let file = File::create(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap();
    file
}

/// Runs a program that must be there and succeed.
fn run(program: &str, arguments: &[&str], input: &str) {
    let path = "/usr/sbin:/sbin:/usr/bin:/bin";
    let mut command = Command::new(program);
    command.args(arguments).env("PATH", path).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{program}: {error}; install what tests need with: scripts/setup test")
    });
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{program} {arguments:?}");
}

/// A sum of all bytes; holes are not read into memory at once.
fn sum(path: &Path) -> u32 {
    let (mut file, mut sum, mut part) = (File::open(path).unwrap(), 0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut part).unwrap() {
            0 => return sum,
            len => sum = crc32c::crc32c_append(sum, &part[..len]),
        }
    }
}

/// Asserts that `open` and `check` refuse the file, with and without `format`, and that no byte changes.
fn refuse(path: &Path, found: &str, at: u64) {
    let (before, size) = (sum(path), fs::metadata(path).unwrap().len());
    let bytes = size.max(config().bytes);
    for format in [false, true] {
        let config = Config { format, bytes, ..config() };
        let opened = open(path, &config).map(drop);
        for refused in [opened, Disk::check(path, &config)] {
            let error = refused.expect_err(found);
            let said = error.to_string();
            assert!(said.contains(&format!("holds {found} at byte {at}, ")), "{said}");
            assert!(matches!(error, Error::Foreign { .. }), "{said}");
        }
    }
    assert_eq!((sum(path), fs::metadata(path).unwrap().len()), (before, size), "{found}");
}

#[test]
fn file_systems_and_volumes_of_other_programs_are_refused_by_name_and_left_unchanged() {
    let folder = folder();
    let path = folder.path().join("image");
    let image = path.to_str().unwrap();
    type Row<'a> = (u64, &'a str, &'a [&'a str], &'a str, &'a str, u64);
    let rows: [Row<'_>; 9] = [
        (300, "mkfs.btrfs", &["-q"], "", "btrfs", 65_600),
        (64, "mkfs.ext4", &["-q", "-F"], "", "ext2, ext3 or ext4", 1080),
        (320, "mkfs.xfs", &["-q", "-f"], "", "XFS", 0),
        (16, "mkswap", &["-q"], "", "swap", 4086),
        (32, "sfdisk", &["-q"], "label: gpt\nsize=8MiB\n", "a GPT partition table", 512),
        (
            32,
            "sfdisk",
            &["-q"],
            "label: dos\nsize=8MiB\n",
            "a boot sector or an MBR partition table",
            510,
        ),
        (32, "mkfs.ext2", &["-q", "-F"], "", "ext2, ext3 or ext4", 1080),
        (
            32,
            "cryptsetup",
            &["-q", "luksFormat", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"],
            "secret",
            "LUKS",
            0,
        ),
        (
            32,
            "cryptsetup",
            &["-q", "luksFormat", "--type=luks1", "--pbkdf-force-iterations=1000"],
            "secret",
            "LUKS",
            0,
        ),
    ];
    for (mib, program, arguments, input, found, at) in rows {
        create(&path).set_len(mib * MIB).unwrap();
        run(program, &[arguments, &[image]].concat(), input);
        refuse(&path, found, at);
    }
}

#[test]
fn labels_far_from_the_front_are_found() {
    let folder = folder();
    let path = file(&folder);
    let zfs = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let size = 64 * MIB;
    let rows: [(u64, &[u8], &str, u64); 8] = [
        // Two labels of 256 KiB are at either end; the first 8 KiB of each are blank, pairs begin at 16 KiB.
        (16 << 10, &zfs, "a ZFS label", 16 << 10),
        (size - (512 << 10) + (16 << 10), &zfs, "a ZFS label", size - (512 << 10) + (16 << 10)),
        (size - (256 << 10) + (16 << 10), &zfs, "a ZFS label", size - (256 << 10) + (16 << 10)),
        // A physical volume's label is in the second sector.
        (512, b"LABELONE\x01\0\0\0\0\0\0\0", "LVM2", 512),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "md RAID", 4096),
        (size - 512, b"EFI PART", "a GPT partition table", size - 512),
        (MIB - 1, &[7], "unknown data", MIB - 1),
        (size - MIB, &[7], "unknown data", size - MIB),
    ];
    for (at, bytes, found, said) in rows {
        let made = create(&path);
        made.set_len(size).unwrap();
        made.write_all_at(bytes, at).unwrap();
        refuse(&path, found, said);
    }
    // Short files are read whole.
    for (size, found) in [(100, 99), (5000, 4999), (MIB + 700, MIB + 699)] {
        let made = create(&path);
        made.set_len(size).unwrap();
        made.write_all_at(&[1], found).unwrap();
        refuse(&path, "unknown data", found);
    }
    create(&path).write_all(&b"#!/bin/sh\n".repeat(2000)).unwrap();
    refuse(&path, "unknown data", 0);
}

#[test]
fn a_cache_file_grows_only_over_blank_data() {
    let folder = folder();
    let path = file(&folder);
    open(&path, &config()).unwrap().0.close().unwrap();
    let larger = Config { bytes: 4 * config().bytes, format: true, ..config() };
    let there = File::options().write(true).open(&path).unwrap();
    there.write_all_at(&[7], larger.bytes - 1).unwrap();
    let before = sum(&path);
    let said = open(&path, &larger).map(drop).unwrap_err().to_string();
    assert!(said.contains("unknown data") && sum(&path) == before, "{said}");
    assert!(!open(&path, &config()).unwrap().1.is_new, "the present size is as it was");
    there.write_all_at(&[0], larger.bytes - 1).unwrap();
    assert!(open(&path, &larger).unwrap().1.is_new);
}

#[test]
fn a_cache_with_a_label_of_another_program_is_refused() {
    let folder = folder();
    let path = file(&folder);
    let config = Config { bytes: 32 * MIB, ..config() };
    let image = path.to_str().unwrap();
    let made = || {
        let _ = fs::remove_file(&path);
        open(&path, &config).unwrap().0.close().unwrap();
    };
    let refused = |format| {
        let before = sum(&path);
        let refused = open(&path, &Config { format, ..config.clone() });
        let said = refused.expect_err("others have it now").to_string();
        assert_eq!(sum(&path), before);
        said
    };
    for label in ["gpt", "dos"] {
        made();
        run("sfdisk", &["-q", image], &format!("label: {label}\nsize=8MiB\n"));
        assert!([false, true].into_iter().all(|format| refused(format).contains("holds ")));
    }
    for program in ["mkfs.ext4", "mkswap"] {
        made();
        let force = if program == "mkswap" { "-f" } else { "-F" };
        run(program, &["-q", force, image], "");
        assert!([false, true].into_iter().all(|format| refused(format).contains("holds ")));
    }
    // zpool leaves the first 8 KiB alone, mdadm the first 4.
    for (at, bytes) in [(16 << 10, &[1, 1, 0, 0][..]), (4096, &[0xfc, 0x4e, 0x2b, 0xa9])] {
        made();
        let mut file = File::options().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
        assert!([false, true].into_iter().all(|format| refused(format).contains("holds ")));
    }
}

#[test]
fn a_cache_on_one_half_of_a_mirror_is_refused() {
    let folder = folder();
    let path = file(&folder);
    let config = Config { bytes: 32 * MIB, format: true, ..config() };
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    // Metadata 1.0 is 8 KiB before the end, 0.90 in the last whole 64 KiB but one; the array's data begin at 0.
    for (size, at) in [
        (33 * MIB, 33 * MIB - 8192),
        (33 * MIB + 512, 33 * MIB - 8192),
        (33 * MIB, 33 * MIB - 65_536),
        (33 * MIB + 12_288, 33 * MIB - 65_536),
    ] {
        let made = create(&path);
        made.set_len(size).unwrap();
        drop(open(&path, &config).unwrap());
        drop(open(&path, &config).unwrap());
        made.write_all_at(&md, at).unwrap();
        let refused = open(&path, &config).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains(&format!("holds md RAID at byte {at}, ")), "{said}");
        made.write_all_at(&[0; 4], at).unwrap();
        drop(open(&path, &config).unwrap());
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_blank_file_is_overwritten_only_if_that_is_allowed() {
    let folder = folder();
    let path = file(&folder);
    let format = Config { format: true, ..config() };
    for size in [1, 5000, config().bytes, 8 * MIB] {
        create(&path).set_len(size).unwrap();
        let error = open(&path, &config()).unwrap_err();
        assert!(matches!(error, Error::Unformatted { bytes, .. } if bytes == size), "{error}");
        assert!(error.to_string().contains("--disk-format"), "{error}");
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
        Disk::check(&path, &format).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
        assert!(open(&path, &format).unwrap().1.is_new);
        assert!(
            !open(&path, &format).unwrap().1.is_new,
            "an existing cache is not formatted again"
        );
    }
    // An empty file has no owner's data.
    create(&path);
    assert!(open(&path, &config()).unwrap().1.is_new);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    fs::remove_file(&path).unwrap();
    Disk::check(&path, &config()).unwrap();
    assert!(!path.exists());
    drop(open(&path, &config()).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_new_tier_finds_no_objects_of_an_earlier_one_in_its_place() {
    let (folder, index) = (folder(), Index::default());
    let path = file(&folder);
    let large = Config { bytes: 16 * MIB, region_bytes: 256 << 10, small_bytes: 0, ..config() };
    let disk = open(&path, &large).unwrap().0;
    (0..800).for_each(|number| assert!(store(&disk, &index, number, 5, 9000)));
    drop(disk);
    // A user wipes the ends, and permits formatting.
    let made = File::options().write(true).open(&path).unwrap();
    made.write_all_at(&vec![0; 1 << 20], 0).unwrap();
    made.write_all_at(&vec![0; 1 << 20], 15 * MIB).unwrap();
    let large = Config { format: true, ..large };
    assert!(open(&path, &large).unwrap().1.is_new);
    let index = Index::default();
    let (_disk, opened) = Disk::open(&path, &large, &mut index.recover()).unwrap();
    assert_eq!((opened.is_new, opened.objects), (false, 0));
}

#[test]
fn links_special_files_and_files_that_others_may_write_to_are_refused() {
    let folder = folder();
    let (path, link) = (file(&folder), folder.path().join("link"));
    for target in ["cache", "absent"] {
        let _ = fs::remove_file(&link);
        symlink(folder.path().join(target), &link).unwrap();
        assert!(matches!(open(&link, &config()), Err(Error::Link { .. })));
        assert!(matches!(Disk::check(&link, &config()), Err(Error::Link { .. })));
    }
    assert!(!path.exists());
    assert!(matches!(open(Path::new("/dev/null"), &config()), Err(Error::Kind { .. })));
    assert!(matches!(open(folder.path(), &config()), Err(Error::Kind { .. })));
    for mode in [0o620, 0o602, 0o666] {
        create(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let said = open(&path, &config()).unwrap_err().to_string();
        assert!(
            said.contains(&format!("(mode {mode:o})")) && said.contains("chmod go-w"),
            "{said}"
        );
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(open(&path, &config()).is_ok());
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1001), None).unwrap();
        let said = open(&path, &config()).unwrap_err().to_string();
        assert!(said.contains("is owned by user 1001"), "{said}");
    } else {
        println!("SKIPPED: only root can give a file to another user");
    }
}

/// Names change hands all the time, as by an attacker who may write to the directory: the foreign file stays as it is.
#[test]
fn a_file_swapped_during_open_is_never_written() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let folder = folder();
    let (path, foreign) = (file(&folder), folder.path().join("foreign"));
    drop(open(&path, &config()).unwrap());
    create(&foreign).write_all(&vec![7; usize::try_from(config().bytes).unwrap()]).unwrap();
    let (both, before) = ([sum(&path), sum(&foreign)], sum(&foreign));
    assert_ne!(both[0], both[1]);
    let over = AtomicBool::new(false);
    let exchange = || {
        let cwd = rustix::fs::CWD;
        rustix::fs::renameat_with(cwd, &path, cwd, &foreign, rustix::fs::RenameFlags::EXCHANGE)
    };
    let (mut opened, mut refused) = (0, 0);
    let unexpected = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                exchange().unwrap();
            }
        });
        let mut unexpected = None;
        while unexpected.is_none() && (opened < 20 || refused < 20) {
            let format = (opened + refused) % 2 == 0;
            match open(&path, &Config { format, ..config() }) {
                Ok(_) => opened += 1,
                Err(Error::Foreign { .. } | Error::Unformatted { .. }) => refused += 1,
                Err(other) => unexpected = Some(other),
            }
        }
        over.store(true, Relaxed);
        unexpected
    });
    assert!(unexpected.is_none(), "{unexpected:?}");
    let sums = [sum(&path), sum(&foreign)];
    assert!(sums.contains(&before), "{sums:?}: the foreign file had {before}");
}

/// A loop device over a file; absent where loop devices are unsupported.
struct Loop(String);

impl Loop {
    fn over(image: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| Self(name.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_mounted_device_is_refused_and_a_blank_one_needs_permission() {
    let folder = folder();
    let (image, mount) = (folder.path().join("image"), folder.path().join("mount"));
    create(&image).set_len(16 * MIB).unwrap();
    let Some(device) = Loop::over(&image) else {
        println!("SKIPPED: no loop devices here (losetup -f --show FILE fails)");
        return;
    };
    let path = Path::new(&device.0);
    let format = Config { format: true, ..config() };
    assert!(matches!(open(path, &config()), Err(Error::Unformatted { .. })));
    assert!(open(path, &format).unwrap().1.is_new);
    assert!(!open(path, &config()).unwrap().1.is_new);
    let disk = open(path, &config()).unwrap().0;
    assert!(matches!(open(path, &config()), Err(Error::InUse { .. })));
    drop(disk);
    let huge = Config { bytes: 17 * MIB, format: true, ..config() };
    assert!(matches!(Disk::check(path, &huge), Err(Error::Full { .. })));
    for (program, foreign, usual) in [("chmod", "o+w", "o-w"), ("chown", "1001", "0")] {
        run(program, &[foreign, &device.0], "");
        let refused = open(path, &config()).map(drop);
        run(program, &[usual, &device.0], "");
        assert!(matches!(refused, Err(Error::Untrusted { .. })), "{foreign}: {refused:?}");
    }
    assert!(!open(path, &config()).unwrap().1.is_new);
    drop(device);
    fs::create_dir(&mount).unwrap();
    for (program, force, mib, label) in
        [("mkfs.ext4", "-F", 16, "ext2, ext3 or ext4"), ("mkfs.btrfs", "-f", 300, "btrfs")]
    {
        let image = folder.path().join(label);
        create(&image).set_len(mib * MIB).unwrap();
        let device = Loop::over(&image).unwrap();
        let path = Path::new(&device.0);
        run(program, &["-q", force, &device.0], "");
        run("mount", &[&device.0, mount.to_str().unwrap()], "");
        let refused = [open(path, &format).map(drop), Disk::check(path, &format)];
        run("umount", &[mount.to_str().unwrap()], "");
        for refused in refused {
            assert!(matches!(refused, Err(Error::InUse { .. })), "{label}: {refused:?}");
        }
        let said = open(path, &format).unwrap_err().to_string();
        assert!(said.contains(label), "{said}");
    }
}
