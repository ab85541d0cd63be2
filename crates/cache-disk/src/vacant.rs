//! Detects foreign data in a file or device.
//!
//! The first and the last MiB must be zeros: all file systems, partition tables, RAID and volume managers known here
//! have a label in one of them. The table below gives the names of known labels for messages; any other non-zero byte
//! is refused as well. Some labels begin far from the front: btrfs at 64 KiB, ZFS at 16 KiB.

use std::io;

use super::buffer::{Aligned, BLOCK};
use super::device::Device;
use super::words::{is_zero, size, wide};

/// Bytes that are checked at either end.
const ENDS: u64 = 1 << 20;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// The version of the pairs in a ZFS label: XDR, made on a little-endian machine.
const ZFS: &[u8] = &[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];

/// Labels: name, address from the front, bytes.
const LABELS: [(&str, u64, &[u8]); 25] = [
    ("a cache of nearfar that is damaged", 0, b"nearfar\xd1"),
    ("a cache of nearfar that is damaged", 4096, b"nearfar\xd1"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 16_384, b"SKUL\xba\xbe"),
    ("XFS", 0, b"XFSB"),
    ("Ceph BlueStore", 0, b"bluestore block device"),
    ("squashfs", 0, b"hsqs"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 54, b"FAT"),
    ("FAT", 82, b"FAT32"),
    ("LVM2", 512, b"LABELONE"),
    ("LVM2", 0, b"LABELONE"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("erofs", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("ext2, ext3 or ext4", 1080, &[0x53, 0xef]),
    ("md RAID", 4096, MD),
    ("bcache", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("swap", 4086, b"SWAPSPACE2"),
    ("a ZFS label", 16_384, ZFS),
    ("ISO 9660", 32_769, b"CD001"),
    ("btrfs", 65_600, b"_BHRfS_M"),
    ("a boot sector or an MBR partition table", 510, &[0x55, 0xaa]),
];

/// Labels near the end: name, the multiple of bytes down to which the end is rounded, the distance from there, bytes.
const LABELS_AT_END: [(&str, u64, u64, &[u8]); 6] = [
    ("a GPT partition table", 512, 512, b"EFI PART"),
    ("a GPT partition table", 4096, 4096, b"EFI PART"),
    ("md RAID", 4096, 8192, MD),
    ("md RAID", 64 << 10, 64 << 10, MD),
    ("a ZFS label", 256 << 10, (256 << 10) - 16_384, ZFS),
    ("a ZFS label", 256 << 10, (512 << 10) - 16_384, ZFS),
];

/// These labels with their addresses on a device of `len` bytes.
fn at_end(len: u64) -> impl Iterator<Item = (&'static str, Option<u64>, &'static [u8])> {
    let at = move |step: u64, distance: u64| (len / step * step).checked_sub(distance);
    LABELS_AT_END
        .iter()
        .map(move |(name, step, distance, label)| (*name, at(*step, *distance), *label))
}

/// Foreign data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Others {
    /// The address of the label, or of the first byte that is not zero.
    pub(super) at: u64,
    /// The label's name.
    pub(super) name: &'static str,
}

/// Searches for foreign data in the first and the last MiB.
///
/// # Errors
/// The device's.
pub(super) fn others(device: &dyn Device, len: u64) -> io::Result<Option<Others>> {
    match part(device, len, 0..ENDS.min(len))? {
        None if len > ENDS => behind(device, len, 0),
        found => Ok(found),
    }
}

/// Searches for foreign data in the last MiB, from `from` on, a multiple of a block.
///
/// # Errors
/// The device's.
pub(super) fn behind(device: &dyn Device, len: u64, from: u64) -> io::Result<Option<Others>> {
    let begin = from.max(len.saturating_sub(ENDS) / wide(BLOCK) * wide(BLOCK));
    part(device, len, begin..len.max(begin))
}

/// Searches for a known label near the end, beyond `from`: a mirror may have one there and our data at the front.
///
/// # Errors
/// The device's.
pub(super) fn label_at_end(device: &dyn Device, len: u64, from: u64) -> io::Result<Option<Others>> {
    for at in at_end(len).filter_map(|(_, at, _)| at).filter(|at| *at >= from) {
        let block = at / wide(BLOCK) * wide(BLOCK);
        let found = part(device, len, block..len.min(block + wide(BLOCK)))?;
        if let Some(found) = found.filter(|found| found.at == at) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Checks one part, which begins at a multiple of a block.
///
/// # Errors
/// The device's.
pub(super) fn part(
    device: &dyn Device,
    len: u64,
    part: core::ops::Range<u64>,
) -> io::Result<Option<Others>> {
    // Nearly always all bytes are zeros, which is detected without a large buffer.
    let mut piece = Aligned::new(PIECE).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut at = part.start;
    while at < part.end {
        let read = device.read_at(&mut piece, at)?;
        if !is_zero(&piece[..read.min(size(part.end - at))]) {
            break;
        }
        at += wide(PIECE);
    }
    if at >= part.end {
        return Ok(None);
    }
    let bytes = size(part.end - part.start);
    let mut buffer = Aligned::new(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    let read = device.read_at(&mut buffer, part.start)?;
    let found = &buffer[..read.min(bytes)];
    let Some(first) = found.iter().position(|byte| *byte != 0) else { return Ok(None) };
    let is_there = |at: u64, label: &[u8]| {
        let from = at.checked_sub(part.start).map(size);
        from.and_then(|from| found.get(from..from + label.len())) == Some(label)
    };
    let mut labels =
        LABELS.iter().map(|(name, at, label)| (*name, Some(*at), *label)).chain(at_end(len));
    let label = labels.find_map(|(name, at, label)| {
        at.filter(|at| is_there(*at, label)).map(|at| Others { at, name })
    });
    Ok(Some(label.unwrap_or(Others { at: part.start + wide(first), name: "unknown data" })))
}
