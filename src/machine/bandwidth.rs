//! Memory read bandwidth: the bound on decoding, since every token reads every weight that it uses once.
//!
//! Each thread sums its own slice of a buffer that is larger than the caches; the best of several rounds counts, since
//! everything that disturbs a round makes it slower.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Bytes that a measurement reads in a round: several times the largest last-level caches that are shared out to a machine.
pub const BUFFER_BYTES: usize = 256 << 20;
/// Rounds; the best counts.
const ROUNDS: usize = 4;

/// Bytes per second that `threads` threads read together, from a buffer of about `bytes` bytes.
pub fn measure(threads: usize, bytes: usize) -> f64 {
    let threads = threads.max(1);
    let words = (bytes / 8 / threads).max(1 << 10);
    let start = Barrier::new(threads);
    let finish = Barrier::new(threads);
    let work = |leader: bool| {
        // Written by the thread that reads it, so that it lies on its own node.
        let slice: Vec<u64> = (0..words as u64).collect();
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            // Before the barrier: behind it, this thread may be kept from running until the others are done.
            let begin = Instant::now();
            start.wait();
            black_box(sum(black_box(&slice)));
            finish.wait();
            if leader {
                best = best.min(begin.elapsed().as_secs_f64());
            }
        }
        best
    };
    let seconds = std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| work(false));
        }
        work(true)
    });
    (words * 8 * threads) as f64 / seconds.max(1e-9)
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2, as was just checked.
        return unsafe { sum_avx2(words) };
    }
    sum_plain(words)
}

/// [`sum_plain`] with 32-byte loads, written out so that a debug build measures the memory and not itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    use std::arch::x86_64::{__m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256};
    let mut sums = [_mm256_setzero_si256(); 4];
    let (chunks, rest) = words.as_chunks::<16>();
    for chunk in chunks {
        let chunk: *const __m256i = chunk.as_ptr().cast();
        // SAFETY: a chunk has 16 words of 8 bytes: 4 vectors of 32 bytes, read without alignment.
        let vectors = unsafe { [0, 1, 2, 3].map(|index| _mm256_loadu_si256(chunk.add(index))) };
        sums = [0, 1, 2, 3].map(|index| _mm256_add_epi64(sums[index], vectors[index]));
    }
    let mut lanes = [[0u64; 4]; 4];
    for (lanes, sum) in lanes.iter_mut().zip(sums) {
        // SAFETY: 4 words of 8 bytes have room for a vector of 32 bytes, stored without alignment.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
    }
    lanes.iter().flatten().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
}

/// Sixteen independent sums: loads and not additions are what limits.
fn sum_plain(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let (chunks, rest) = words.as_chunks::<16>();
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_and_rates_are_positive() {
        let words: Vec<u64> = (0..1003).collect();
        assert_eq!(sum(&words), 1002 * 1003 / 2);
        assert_eq!(sum_plain(&words), 1002 * 1003 / 2);
        assert!(measure(2, 1 << 20) > 0.0);
    }
}
