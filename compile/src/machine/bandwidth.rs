//! Measurement of memory read bandwidth. The bandwidth limits decode, since every token reads each
//! weight that it uses once.
//!
//! Each thread sums its own slice of a buffer that is larger than the caches, with the CPU's widest
//! loads. The buffer is on large pages if there are any. A thread reads in address order, or as two
//! streams side by side; both are tried with and without prefetching. The fastest of all rounds
//! counts, because every disturbance makes a round slower.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

/// Bytes that all threads read in a round. This is several times a machine's share of the largest
/// last-level caches.
pub const BUFFER_BYTES: usize = 256 << 20;
/// Min bytes that a thread reads in a round.
const LEAST_READ: usize = 16 << 20;
/// Default number of rounds for each way of reading.
const ROUNDS: usize = 3;

/// Returns the bytes per second that `threads` threads read together, from a buffer of about
/// `bytes` bytes.
pub fn measure(threads: usize, bytes: usize) -> f64 {
    measure_rounds(threads, bytes, ROUNDS)
}

/// Measures like [`measure`], with a given number of rounds for each way of reading.
pub fn measure_rounds(threads: usize, bytes: usize, rounds: usize) -> f64 {
    let threads = threads.max(1);
    let words = (bytes / 8 / threads).next_multiple_of(1 << 10).max(1 << 10);
    // A slice that fits in a cache is read many times. The different start times of the threads
    // then do not matter.
    let passes = (LEAST_READ / 8 / words).max(1);
    let start = Barrier::new(threads);
    let ways = ways();
    // Returns the start and end of each round in one thread.
    let work = || -> Vec<(Instant, Instant)> {
        // Each thread writes its slice before it reads it, so that the slice is on the thread's own
        // memory node.
        let mut memory = Large::allocate(words);
        let slice = memory.words();
        for (at, word) in slice.iter_mut().enumerate() {
            *word = at as u64;
        }
        let mut times = Vec::new();
        for way in &ways {
            for _ in 0..rounds.max(1) {
                start.wait();
                let begin = Instant::now();
                for _ in 0..passes {
                    black_box(way(black_box(slice)));
                }
                times.push((begin, Instant::now()));
            }
        }
        times
    };
    let times: Vec<Vec<_>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().filter_map(|thread| thread.join().ok()).chain([own]).collect()
    });
    (words * 8 * threads * passes) as f64 / best_round(&times).max(1e-9)
}

/// Returns the seconds of the fastest round, from the start of the first thread to the end of the
/// last one. The time of a single thread would be too short if the thread started late.
fn best_round(times: &[Vec<(Instant, Instant)>]) -> f64 {
    let rounds = times.iter().map(Vec::len).min().unwrap_or(0);
    let seconds = (0..rounds).filter_map(|round| {
        let begin = times.iter().map(|thread| thread[round].0).min()?;
        let end = times.iter().map(|thread| thread[round].1).max()?;
        Some(end.duration_since(begin).as_secs_f64())
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// Buffer of words in large pages, if the system has some.
enum Large {
    Mapped(MmapMut),
    /// Memory from the Rust allocator, if `mmap` fails.
    Plain(Vec<u64>),
}

impl Large {
    fn allocate(words: usize) -> Large {
        let Ok(map) = MmapMut::map_anon(words * size_of::<u64>()) else { return Large::Plain(vec![0; words]) };
        // The system may ignore this request for large pages.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Large::Mapped(map)
    }

    fn words(&mut self) -> &mut [u64] {
        match self {
            // SAFETY: every bit pattern is a valid word.
            Large::Mapped(map) => unsafe { map.align_to_mut().1 },
            Large::Plain(words) => words,
        }
    }
}

type Sum = Box<dyn Fn(&[u64]) -> u64 + Sync>;

/// Returns the functions for reading that this CPU supports.
fn ways() -> Vec<Sum> {
    let mut ways: Vec<Sum> = vec![Box::new(sum_plain)];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        ways.push(Box::new(|words| {
            // SAFETY: the CPU has AVX2, as was just checked.
            unsafe { sum_avx2(words) }
        }));
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        ways.push(Box::new(|words| {
            // SAFETY: the CPU has AVX-512F, as was just checked.
            unsafe { wide::sum::<0>(words) }
        }));
        ways.push(Box::new(|words| {
            // SAFETY: as above.
            unsafe { wide::sum::<4096>(words) }
        }));
        ways.push(Box::new(|words| {
            let (low, high) = words.split_at(words.len() / 2);
            // SAFETY: as above.
            unsafe { wide::sum_two(low, high) }
        }));
    }
    ways
}

/// Sums words with thirty-two independent sums, so that loads are the limit, not additions. The
/// compiler turns the sums into vectors.
fn sum_plain(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let (chunks, rest) = words.as_chunks::<32>();
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |total, word| total.wrapping_add(*word))
}

/// [`sum_plain`] with 32-byte loads. It has no closures, so that a debug build also measures the
/// memory. Closures are compiled without AVX2 and become calls, which take five times as long as
/// the memory.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi64, _mm256_loadu_si256, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };
    /// Distance of prefetches in words: a page, because hardware prefetchers stop at a page's end.
    const AHEAD: usize = 4096 / size_of::<u64>();
    let (mut a, mut b, mut c, mut d) =
        (_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256());
    let (chunks, rest) = words.as_chunks::<16>();
    for chunk in chunks {
        let at: *const __m256i = chunk.as_ptr().cast();
        // A chunk is two cache lines. A prefetch may have any address, since it reads nothing.
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

/// Sums of the read data with 64-byte loads.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi64, _mm512_loadu_si512, _mm512_reduce_add_epi64,
        _mm512_setzero_si512,
    };

    /// Returns the sum of the words. Prefetches `AHEAD` bytes ahead of each load, or not at all if
    /// `AHEAD` is 0.
    #[target_feature(enable = "avx512f")]
    pub fn sum<const AHEAD: usize>(words: &[u64]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 4];
        let (chunks, rest) = words.as_chunks::<32>();
        for chunk in chunks {
            let base = chunk.as_ptr();
            if AHEAD > 0 {
                for line in 0..4 {
                    _mm_prefetch::<_MM_HINT_T0>(base.wrapping_byte_add(AHEAD + line * 64).cast());
                }
            }
            add(&mut sums, chunk);
        }
        rest.iter().fold(total(sums), |total, word| total.wrapping_add(*word))
    }

    /// Returns the sum of two slices of the same length, which are read side by side.
    #[target_feature(enable = "avx512f")]
    pub fn sum_two(low: &[u64], high: &[u64]) -> u64 {
        let (mut low_sums, mut high_sums) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        let (low, low_rest) = low.as_chunks::<32>();
        let (high, high_rest) = high.as_chunks::<32>();
        for (low, high) in low.iter().zip(high) {
            add(&mut low_sums, low);
            add(&mut high_sums, high);
        }
        let sum = total(low_sums).wrapping_add(total(high_sums));
        // If the lengths differ, the longer slice has chunks left.
        let rest = high.iter().skip(low.len()).flatten().chain(low.iter().skip(high.len()).flatten());
        rest.chain(low_rest).chain(high_rest).fold(sum, |total, word| total.wrapping_add(*word))
    }

    #[target_feature(enable = "avx512f")]
    fn add(sums: &mut [__m512i; 4], chunk: &[u64; 32]) {
        for (index, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a chunk has 4 vectors of 8 words; they are read without alignment.
            let vector = unsafe { _mm512_loadu_si512(chunk.as_ptr().add(index * 8).cast()) };
            *sum = _mm512_add_epi64(*sum, vector);
        }
    }

    #[target_feature(enable = "avx512f")]
    fn total(sums: [__m512i; 4]) -> u64 {
        sums.iter().fold(0u64, |total, sum| total.wrapping_add(_mm512_reduce_add_epi64(*sum).cast_unsigned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_summing_functions_agree() {
        let words: Vec<u64> = (0..1003).collect();
        for way in ways() {
            assert_eq!(way(&words), 1002 * 1003 / 2);
        }
    }

    #[test]
    fn round_time_spans_first_start_to_last_end() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + std::time::Duration::from_secs_f64(seconds);
        // In the first round, the second thread began when the first was done.
        let times = [vec![(at(0.0), at(1.0)), (at(2.0), at(3.5))], vec![(at(1.0), at(2.0)), (at(2.0), at(3.0))]];
        assert!((best_round(&times) - 1.5).abs() < 1e-6);
    }

    #[test]
    fn measured_bandwidth_is_positive() {
        assert!(measure_rounds(2, 1 << 20, 1) > 0.0);
        assert!(measure(1, 0) > 0.0);
    }
}
