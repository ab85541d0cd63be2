//! The raw loops, and the memory they run over. All unsafe code of this crate is in this folder.
//!
//! Rules: a [`Region`] owns its mapping and lends it as `&mut [Line]`; the loops work on such a borrow, so the borrow
//! checker ensures that a chase and a stream never share lines and that nothing outlives the mapping. Loads and stores
//! are volatile: each is made exactly once, none is merged or left out. A read stream loads one 8-byte word per line,
//! because on any processor memory transfers whole lines; and under emulation fewer instructions per line leave a
//! larger part of the time to memory.
//!
//! Checked by Miri (`cargo +nightly miri test -p nearfar-probe --lib -- loops::chase loops::stream work::`), and
//! with `region.rs` and `numa.rs`, whose system calls Miri does not know, by the address sanitizer
//! (`RUSTFLAGS=-Zsanitizer=address cargo +nightly test -p nearfar-probe --lib --target x86_64-unknown-linux-gnu`).

mod chase;
mod numa;
mod region;
mod stream;

pub(crate) use chase::Chase;
pub(crate) use region::Region;
pub use region::RegionError;
pub(crate) use stream::{modify, read, spin};

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line(pub(crate) [u64; 8]);

/// Bytes of a [`Line`].
pub(crate) const LINE: usize = size_of::<Line>();
