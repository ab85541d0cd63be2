//! A read through the library beside memcpy of the same bytes, on this machine: medians over alternating rounds.

use std::hint::black_box;

use nearfar_alloc::Replicated;
use nearfar_topology::median;

use crate::clock;

/// Bytes per read: sizes that fit in the CPU caches, and sizes that do not.
const LENGTHS: [usize; 6] = [8, 64, 512, 4096, 65_536, 1 << 20];
const SIZES: [usize; 2] = [256 << 10, 256 << 20];
/// Bytes read in a round, as long as the number of reads stays below the limit.
const BYTES: usize = 512 << 20;
const READS: usize = 2_000_000;

pub(crate) fn compare(rounds: usize) -> Result<(), String> {
    println!("a read of a region beside memcpy, this machine, one thread: ns each");
    for size in SIZES {
        let mut region = Replicated::new("", size).map_err(|error| error.to_string())?;
        let plain = vec![1_u8; size];
        region.write(0, &plain).map_err(|error| error.to_string())?;
        region.sync();
        for length in LENGTHS.into_iter().filter(|length| *length <= size) {
            // A pseudo-random order of places, the same for all.
            let places = size / length;
            let reads = (BYTES / length).min(READS);
            let step = (places / 2 + 1) | 1;
            let place = |read: usize| read.wrapping_mul(step) % places * length;
            let mut into = vec![0_u8; length];
            let mut found: [Vec<f64>; 3] = Default::default();
            for _ in 0..rounds {
                let nanoseconds = |seconds: f64| seconds * 1e9 / reads as f64;
                found[0].push(nanoseconds(clock::seconds(|| {
                    for read in 0..reads {
                        let at = place(read);
                        into.copy_from_slice(black_box(&plain[at..at + length]));
                        black_box(&mut into);
                    }
                })));
                found[1].push(nanoseconds(clock::seconds(|| {
                    for read in 0..reads {
                        // Always within the region.
                        let _ = black_box(region.read(place(read), &mut into));
                    }
                })));
                let view = region.view();
                found[2].push(nanoseconds(clock::seconds(|| {
                    for read in 0..reads {
                        let at = place(read);
                        into.copy_from_slice(black_box(&view.bytes()[at..at + length]));
                        black_box(&mut into);
                    }
                })));
            }
            let [plain, read, view] = found.map(|one| median(one).unwrap_or(f64::NAN));
            println!(
                "  {length:>8} bytes of {:>4} MiB: memcpy {plain:10.1}   read {read:10.1}  {:5.2} x   view {view:10.1}  {:5.2} x",
                size >> 20,
                read / plain,
                view / plain
            );
        }
    }
    Ok(())
}
