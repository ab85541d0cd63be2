//! Conversions between numbers and bytes or other widths.
//!
//! All formats of the disk tier are little-endian. Reading beyond the end gives 0: formats are verified by checksums,
//! so missing bytes are never taken for data. Lengths and addresses are 64 bits wide on all supported machines.

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..at + N).and_then(|part| part.try_into().ok());
    found.unwrap_or([0; N])
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Writes bytes into a range that is known to be large enough.
pub(super) fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// Whether all bytes are zeros; compared in blocks, because a loop over bytes is slow in unoptimised builds.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

/// A length or address in memory.
#[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits, see the head")]
pub(super) const fn size(number: u64) -> usize {
    number as usize
}

/// A length on the device.
pub(super) const fn wide(number: usize) -> u64 {
    number as u64
}

/// The low 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(super) const fn low32(number: u64) -> u32 {
    number as u32
}

/// A number that fits 32 bits by the limits of the format.
pub(super) fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A number that fits 16 bits by the limits of the format.
pub(super) fn short(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Mixes a hash, so that its bits here are independent of bits already used elsewhere.
pub(super) const fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ (hash >> 32)
}
