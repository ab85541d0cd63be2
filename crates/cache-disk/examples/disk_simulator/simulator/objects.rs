//! Keys and values: a value encodes its key and version, so that a read can be checked.

use nearfar_cache_disk::Item;
use nearfar_cache_disk::Meta;

use super::dice::mix;
use super::model::KEYS;

/// Keys share hashes now and then, so that an entry leads to another key's object.
pub(super) fn hash(key: usize) -> u64 {
    mix((key % (KEYS - 3)) as u64 + 1)
}

pub(super) fn name(key: usize) -> [u8; 8] {
    (key as u64 + 1).to_be_bytes()
}

pub(super) fn meta(version: u64) -> Meta {
    Meta { flags: version as u32, cas: version, ..Meta::default() }
}

/// Bytes that follow from key, version and length.
pub(super) fn value(key: usize, version: u64, len: usize) -> Vec<u8> {
    let mut out = version.to_le_bytes().to_vec();
    let mut word = mix(version ^ (key as u64) << 40);
    while out.len() < len {
        out.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    }
    out.truncate(len.max(8));
    out
}

/// The version of a value that is whole and this key's.
pub(super) fn version_of(key: usize, found: &Item<'_>) -> Option<u64> {
    let version = u64::from_le_bytes(found.value.get(..8)?.try_into().ok()?);
    let is_it =
        value(key, version, found.value.len()) == found.value && found.meta == meta(version);
    is_it.then_some(version)
}
