//! How fast this machine reads memory: the bound on decoding.
//!
//! Several threads sum their slices of a buffer of gigabytes, with 64-byte loads where the CPU has them, once in the order of
//! addresses and once with two streams each, with and without prefetching, on huge pages where there are any. The best of all rounds counts:
//! whatever disturbs a round makes it slower.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Measures how fast memory is read, and prints JSON.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Threads.
    #[arg(short, long, default_value_t = 1)]
    threads: usize,
    /// Size of the buffer in GiB; a quarter of the memory that is free where that is less.
    #[arg(long, default_value_t = 2.0)]
    size: f64,
    /// Rounds.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Threads that read.
    pub threads: usize,
    /// Bytes of the buffer.
    pub buffer: u64,
    /// Bytes read in a second, all threads together, in the best round.
    pub bytes_per_second: f64,
}

impl Args {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        ensure!(self.threads > 0 && self.rounds > 0 && self.size > 0.0, "threads, rounds and size must be above 0");
        let available = ixc::machine::system::memory();
        let available = [available.available, available.cgroup_limit].into_iter().flatten().min().unwrap_or(1 << 30);
        let bytes = ((self.size * f64::from(1 << 30)) as u64).min(available / 4);
        let bandwidth = measure(self.threads, usize::try_from(bytes)?, self.rounds)?;
        println!("{}", serde_json::to_string(&bandwidth)?);
        Ok(())
    }
}

/// Reads a buffer of about `bytes` bytes with `threads` threads.
fn measure(threads: usize, bytes: usize, rounds: usize) -> anyhow::Result<Bandwidth> {
    let words = (bytes / 8 / threads).next_multiple_of(1 << 10);
    let start = Barrier::new(threads);
    let ways = ways();
    // When each round of a thread began and ended; `None` where it had no memory.
    let work = || -> Option<Vec<(Instant, Instant)>> {
        // Written by the thread that reads it, so that it lies on its own node.
        let buffer = Pages::new(words);
        // All threads must come to the barrier, also where one has no memory.
        let slice = buffer.as_ref().map(Pages::words).unwrap_or(&[]);
        let mut times = Vec::new();
        for way in &ways {
            for _ in 0..rounds {
                start.wait();
                let begin = Instant::now();
                black_box(way(black_box(slice)));
                times.push((begin, Instant::now()));
            }
        }
        buffer.map(|_| times)
    };
    let times: Option<Vec<_>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let buffer = (words * 8 * threads) as u64;
    let times = times.with_context(|| format!("there is no memory for a buffer of {buffer} bytes"))?;
    let seconds = best_round(&times);
    Ok(Bandwidth { threads, buffer, bytes_per_second: buffer as f64 / seconds.max(1e-9) })
}

/// Seconds of the best round: from when the first thread began until the last one ended. One thread's time is not enough, since it
/// may have been kept from beginning until the others were done.
fn best_round(times: &[Vec<(Instant, Instant)>]) -> f64 {
    let rounds = times.iter().map(Vec::len).min().unwrap_or(0);
    let seconds = (0..rounds).filter_map(|round| {
        let begin = times.iter().map(|thread| thread[round].0).min()?;
        let end = times.iter().map(|thread| thread[round].1).max()?;
        Some(end.duration_since(begin).as_secs_f64())
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// Words in pages of their own, in huge ones where the system gives them.
struct Pages {
    base: *mut u64,
    words: usize,
}

impl Pages {
    fn new(words: usize) -> Option<Pages> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at no address in particular, overlaps nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), words * 8, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the range is the mapping just made. Where there are no huge pages, small ones do.
        let _ = unsafe { libc::madvise(base, words * 8, libc::MADV_HUGEPAGE) };
        let base = base.cast::<u64>();
        for word in 0..words {
            // SAFETY: the mapping has `words` words, and is writable. Different values, so that no two pages are merged.
            unsafe { base.add(word).write(word as u64) };
        }
        Some(Pages { base, words })
    }

    fn words(&self) -> &[u64] {
        // SAFETY: the mapping has `words` words, all written, aligned to a page, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base, self.words) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.words * 8) };
    }
}

type Sum = Box<dyn Fn(&[u64]) -> u64 + Sync>;

/// The ways to read that this CPU has.
fn ways() -> Vec<Sum> {
    let mut ways: Vec<Sum> = vec![Box::new(sum_plain)];
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

/// Thirty-two independent sums: loads and not additions are what limits. The compiler makes vectors of them.
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

/// Sums with 64-byte loads.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi64, _mm512_loadu_si512, _mm512_reduce_add_epi64,
        _mm512_setzero_si512,
    };

    /// The sum, with a prefetch so many bytes ahead of each load; 0 is none.
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

    /// The sum of two slices of the same length that are read side by side.
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
        // Lengths that are not the same leave chunks over.
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
    fn all_ways_sum_all_words() {
        let words: Vec<u64> = (0..1003).collect();
        for way in ways() {
            assert_eq!(way(&words), 1002 * 1003 / 2);
        }
    }

    #[test]
    fn a_round_lasts_from_the_first_begin_to_the_last_end() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + std::time::Duration::from_secs_f64(seconds);
        // In the first round, the second thread began when the first was done.
        let times = [vec![(at(0.0), at(1.0)), (at(2.0), at(3.5))], vec![(at(1.0), at(2.0)), (at(2.0), at(3.0))]];
        assert!((best_round(&times) - 1.5).abs() < 1e-6);
    }

    #[test]
    fn rates_are_positive() {
        let bandwidth = measure(2, 1 << 20, 1).unwrap();
        assert!(bandwidth.bytes_per_second > 0.0 && bandwidth.buffer >= 1 << 20, "{bandwidth:?}");
    }
}
