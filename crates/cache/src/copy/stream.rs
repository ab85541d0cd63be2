//! The two ways in which a CPU copies: through its caches and around them.
//!
//! A store that goes around the caches (non-temporal) doesn't read the line it is about to overwrite, and puts out nothing
//! that others use; but who reads the bytes soon reads them from memory. Such stores are weakly ordered: [`fence`] comes before
//! anybody is told of them. They exist on x86-64 only; elsewhere both ways are the plain one.
//!
//! Rules: all is by [`Job`], whose maker promises both places. What is copied around caches begins and ends with up to 63
//! bytes through them, so that stores are whole aligned lines. Miri runs the plain way.
#![expect(unsafe_code, reason = "memory is copied by address")]

use super::job::Job;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How wide the stores are that go around caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lanes {
    /// There are none: all is copied through caches.
    None,
    /// 16 bytes: SSE2, which each x86-64 has.
    Sse2,
    /// 32 bytes: AVX, which each machine with AVX2 has.
    Avx,
    /// 64 bytes: AVX-512.
    Avx512,
}

impl Lanes {
    /// The widest that this machine has.
    #[must_use]
    pub fn widest() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if is_x86_feature_detected!("avx512f") {
                Self::Avx512
            } else if is_x86_feature_detected!("avx") {
                Self::Avx
            } else {
                Self::Sse2
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Self::None
    }

    /// All that this machine has, narrowest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let widest = Self::widest();
        [Self::Sse2, Self::Avx, Self::Avx512].into_iter().filter(|lanes| *lanes <= widest).collect()
    }
}

/// Lanes that this machine was seen to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present(Lanes);

impl Present {
    /// Those wished for, or the widest that there are.
    pub(super) fn at_most(wish: Lanes) -> Self {
        Self(wish.min(Lanes::widest()))
    }
}

/// Copies through the caches.
pub(super) fn cached(job: &Job) {
    if job.overlaps() {
        return;
    }
    // SAFETY: `Job::new` was promised both places for `length` bytes, and that they are nobody else's meanwhile; they do not
    // overlap, as was just seen, and bytes need no alignment.
    unsafe { job.source().copy_to_nonoverlapping(job.destination(), job.length()) }
}

/// Copies around the caches. [`fence`] is to follow.
pub(super) fn streamed(job: &Job, lanes: Present) {
    let head = job.destination().addr().wrapping_neg() % LINE;
    if job.overlaps() || lanes.0 == Lanes::None || job.length() < head + LINE {
        return cached(job);
    }
    let lines = (job.length() - head) / LINE;
    cached(&job.part(0, head));
    whole_lines(&job.part(head, lines * LINE), lines, lanes);
    cached(&job.part(head + lines * LINE, LINE));
}

#[cfg(target_arch = "x86_64")]
fn whole_lines(job: &Job, lines: usize, lanes: Present) {
    let (from, to) = (job.source(), job.destination());
    match lanes.0 {
        Lanes::None => cached(job),
        // SAFETY: the job has so many lines at both ends, which don't overlap, and its destination begins with a line; each
        // x86-64 has SSE2.
        Lanes::Sse2 => unsafe { x86::sse2(from, to, lines) },
        // SAFETY: as above; `Present` has no AVX unless the machine was seen to have it.
        Lanes::Avx => unsafe { x86::avx(from, to, lines) },
        // SAFETY: as above, with AVX-512.
        Lanes::Avx512 => unsafe { x86::avx512(from, to, lines) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn whole_lines(job: &Job, _: usize, _: Present) {
    cached(job);
}

/// Has all that was stored around caches be seen before whatever is stored from now on.
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: each x86-64 has SSE, which is all this needs.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::LINE;

    macro_rules! whole_lines {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident, [$($at:literal),+]) => {
            /// # Safety
            /// The machine has the feature. `lines` lines from `from` and from `to` on are readable and writable, apart from each
            /// other and nobody else's; `to` begins with a line.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(from: *const u8, to: *mut u8, lines: usize) {
                for line in 0..lines {
                    let (from, to) = (from.wrapping_add(line * LINE), to.wrapping_add(line * LINE));
                    $(
                        // SAFETY: within the line that the caller promises; this load needs no alignment.
                        let vector = unsafe { $load(from.wrapping_add($at).cast::<$vector>()) };
                        // SAFETY: within the line that the caller promises, at a multiple of the vector's size, as `to` begins
                        // with a line.
                        unsafe { $store(to.wrapping_add($at).cast::<$vector>(), vector) };
                    )+
                }
            }
        };
    }

    whole_lines!(sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128, [0, 16, 32, 48]);
    whole_lines!(avx, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256, [0, 32]);
    whole_lines!(avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512, [0]);
}
