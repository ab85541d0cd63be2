//! memcached's protocol: whatever is said, and however it is parted, nothing panics and the answers are the same. The first eight
//! bytes are the lengths of parts, the rest is what is said.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nearfar_cache::proto::testkit::fuzz(data));
