//! Memory read bandwidth: the bound on decoding, since every token reads every weight that it uses once.
//!
//! Each thread sums its own slice of a buffer that is larger than the caches; the best of several rounds counts, since
//! everything that disturbs a round makes it slower.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

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
        // Written by the thread that reads it, so that it lies on its own node; in large pages, as packed weights are, which are read a tenth faster.
        let mut memory = Large::of(words);
        let slice = memory.words();
        for (at, word) in slice.iter_mut().enumerate() {
            *word = at as u64;
        }
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            // Before the barrier: behind it, this thread may be kept from running until the others are done.
            let begin = Instant::now();
            start.wait();
            black_box(sum(black_box(slice)));
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

/// Words in large pages, where the system gives some.
enum Large {
    Mapped(MmapMut),
    /// Where it maps nothing.
    Plain(Vec<u64>),
}

impl Large {
    fn of(words: usize) -> Large {
        let Ok(map) = MmapMut::map_anon(words * size_of::<u64>()) else { return Large::Plain(vec![0; words]) };
        // Only a hint.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Large::Mapped(map)
    }

    fn words(&mut self) -> &mut [u64] {
        match self {
            // SAFETY: every pattern of bytes is a word.
            Large::Mapped(map) => unsafe { map.align_to_mut().1 },
            Large::Plain(words) => words,
        }
    }
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2, as was just checked.
        return unsafe { sum_avx2(words) };
    }
    sum_plain(words)
}

/// [`sum_plain`] with 32-byte loads, written out so that a debug build measures the memory and not itself: without closures, which are calls where
/// the compiler does not see that they may use AVX2 (and then take five times as long as memory).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi64, _mm256_loadu_si256, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };
    /// Words that are fetched ahead: a page, at whose end hardware prefetchers stop.
    const AHEAD: usize = 4096 / size_of::<u64>();
    let (mut a, mut b, mut c, mut d) =
        (_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256());
    let (chunks, rest) = words.as_chunks::<16>();
    for chunk in chunks {
        let at: *const __m256i = chunk.as_ptr().cast();
        // A chunk is two lines. Prefetching reads nothing, wherever it points.
        let ahead = chunk.as_ptr().wrapping_add(AHEAD).cast::<i8>();
        _mm_prefetch::<_MM_HINT_T0>(ahead);
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(64));
        // SAFETY: a chunk has 16 words of 8 bytes: 4 vectors of 32 bytes, read without alignment.
        unsafe {
            a = _mm256_add_epi64(a, _mm256_loadu_si256(at));
            b = _mm256_add_epi64(b, _mm256_loadu_si256(at.add(1)));
            c = _mm256_add_epi64(c, _mm256_loadu_si256(at.add(2)));
            d = _mm256_add_epi64(d, _mm256_loadu_si256(at.add(3)));
        }
    }
    let mut lanes = [0u64; 4];
    let sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    // SAFETY: 4 words of 8 bytes have room for a vector of 32 bytes, stored without alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
    lanes.iter().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
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
