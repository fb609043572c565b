//! Measurement of the speed at which the processors of each NUMA node read the memory of each node.

use std::hint::black_box;
use std::io;
use std::sync::{Barrier, OnceLock};
use std::thread::{Builder, scope};
use std::time::Instant;

use super::error::NumaError;
use super::home::{Home, HomeBinding};
use super::placement::{RankPlace, place_ranks};
use super::topology::Topology;
use crate::processors;

/// Speed at which one node's processors read the memory of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeRate {
    /// Number of the node with the processors.
    pub from: u32,
    /// Number of the node with the memory.
    pub to: u32,
    /// Bytes per second of all processors of the node together.
    pub bytes_per_second: f64,
}

/// Minimum number of bytes that are read. The caches of most nodes are smaller.
const MIN_BYTES: u64 = 64 << 20;
/// Maximum number of bytes that are read.
const MAX_BYTES: u64 = 4 << 30;
/// Divisor of the available memory: at most this fraction of it is read.
const MEMORY_PART: u64 = 4;
/// Number of bytes that are read, as a multiple of the last-level cache.
const CACHES: u64 = 4;
/// Minimum multiple of the last-level cache. With less memory, the measured speed would be that of
/// the cache.
const LEAST_CACHES: u64 = 2;
/// Number of times that all bytes are read; the fastest time counts.
const ROUNDS: u32 = 3;
/// Maximum number of nodes that are measured, because the time grows with the square of the number.
const MAX_NODES: usize = 8;
/// Number of sums that a thread computes at a time, so that additions do not wait for each other.
const LANES: usize = 16;

/// Measures the speed from each node to each node, among the nodes with memory and processors.
/// `available` is the memory that the system and the process's control groups still allow, if
/// known.
///
/// # Errors
/// Fails if there is not enough memory, or if a thread cannot be started.
pub fn measure(topology: &Topology, available: Option<u64>) -> Result<Vec<NodeRate>, NumaError> {
    let nodes = topology.usable_nodes().count().clamp(1, MAX_NODES);
    let Ok(places) = place_ranks(topology, nodes, None) else { return Ok(Vec::new()) };
    let caches = topology.nodes.iter().filter_map(|node| node.l3_bytes).max().unwrap_or(0);
    let least = topology.usable_nodes().map(|node| node.memory_bytes).min().unwrap_or(0);
    let bytes = bytes_to_read(caches, least, available)?;
    let mut rates = Vec::with_capacity(nodes * nodes);
    for to in &places {
        let words = {
            let home = Home::new(to.clone());
            let _binding = HomeBinding::enter(&home);
            let mut words: Vec<u64> = Vec::new();
            words.try_reserve_exact(bytes as usize / size_of::<u64>())?;
            // The bound thread is the first to write each page, so the page lies on the thread's
            // node.
            words.resize(bytes as usize / size_of::<u64>(), 1);
            words
        };
        for from in &places {
            let node = |place: &RankPlace| place.nodes.first().copied().unwrap_or(0);
            let bytes_per_second = read(&words, &from.processors, |thread| thread)?;
            rates.push(NodeRate { from: node(from), to: node(to), bytes_per_second });
        }
    }
    Ok(rates)
}

/// Returns the number of bytes to read: more than the caches have, and at most a fraction of each
/// node's memory and of the available memory.
fn bytes_to_read(caches: u64, least_node: u64, available: Option<u64>) -> Result<u64, NumaError> {
    let wanted = caches.saturating_mul(CACHES).clamp(MIN_BYTES, MAX_BYTES);
    let limit = available.unwrap_or(u64::MAX).min(least_node);
    let least = caches.saturating_mul(LEAST_CACHES).max(MIN_BYTES);
    if limit / MEMORY_PART < least {
        return Err(NumaError::LittleMemory { available: limit, needed: least.saturating_mul(MEMORY_PART) });
    }
    Ok(wanted.min(limit / MEMORY_PART))
}

/// Reads `words` with one thread on each processor of `on`, and returns bytes per second. `builder`
/// can change the settings of each thread.
///
/// # Errors
/// Fails if a thread cannot be started. The other threads then end without reading.
fn read(words: &[u64], on: &[usize], builder: impl Fn(Builder) -> Builder) -> Result<f64, NumaError> {
    let part = words.len().div_ceil(on.len().max(1)).max(LANES);
    // Threads wait for this value. It is a barrier for the rounds, or `None` if a thread could not
    // be started.
    let start = OnceLock::<Option<Barrier>>::new();
    let seconds: io::Result<Vec<Vec<f64>>> = scope(|scope| {
        let thread = |(number, &processor): (usize, &usize)| {
            let (start, part) = (&start, words.chunks(part).nth(number).unwrap_or_default());
            let rounds = move || {
                let Some(barrier) = start.wait() else { return Vec::new() };
                // If binding fails, the thread may run on any node, and the speed is a mixture.
                let _ = processors::bind(&[processor]);
                let round = |_| {
                    barrier.wait();
                    let begin = Instant::now();
                    black_box(sum(black_box(part)));
                    begin.elapsed().as_secs_f64()
                };
                (0..ROUNDS).map(round).collect::<Vec<f64>>()
            };
            builder(Builder::new()).spawn_scoped(scope, rounds)
        };
        let threads: io::Result<Vec<_>> = on.iter().enumerate().map(thread).collect();
        let barrier = threads.as_ref().ok().map(|threads| Barrier::new(threads.len()));
        // Setting cannot fail, because no other code sets the value.
        let _ = start.set(barrier);
        Ok(threads?.into_iter().filter_map(|thread| thread.join().ok()).collect())
    });
    let seconds = seconds.map_err(|source| NumaError::Thread { source })?;
    // The time of a round is that of its last thread.
    let round = |number: usize| seconds.iter().filter_map(|thread| thread.get(number)).copied().fold(0.0, f64::max);
    let best = (0..ROUNDS as usize).map(round).fold(f64::INFINITY, f64::min);
    Ok(size_of_val(words) as f64 / best.max(1e-9))
}

/// Adds all words. Overflow wraps, because the result is not used.
fn sum(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<LANES>();
    let mut lanes = [0u64; LANES];
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_reads_each() {
        let topology = Topology::detect().unwrap();
        let nodes: Vec<u32> = topology.usable_nodes().map(|node| node.number).take(MAX_NODES).collect();
        let rates = measure(&topology, None).unwrap();
        let pairs: Vec<(u32, u32)> = rates.iter().map(|rate| (rate.to, rate.from)).collect();
        let expected: Vec<(u32, u32)> = nodes.iter().flat_map(|to| nodes.iter().map(|from| (*to, *from))).collect();
        assert!(rates.iter().all(|rate| rate.bytes_per_second > 1e6), "{rates:?}");
        assert!(pairs == expected, "{pairs:?}");
    }

    #[test]
    fn a_thread_that_cannot_start_ends_the_others() {
        let started = std::sync::atomic::AtomicUsize::new(0);
        // No machine has enough memory for the stack of the third thread, so it cannot start.
        let builder = |builder: Builder| match started.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            2 => builder.stack_size(1 << 62),
            _ => builder,
        };
        let result = read(&[1; 1000], &[0; 5], builder);
        assert!(matches!(result, Err(NumaError::Thread { .. })), "{result:?}");
        assert_eq!(started.into_inner(), 3);
        assert!(read(&[1; 1000], &[0; 5], |builder| builder).unwrap() > 0.0);
    }

    #[test]
    fn available_memory_and_caches_limit_the_bytes() {
        const GIB: u64 = 1 << 30;
        assert_eq!(bytes_to_read(0, 8 * GIB, None).unwrap(), MIN_BYTES);
        assert_eq!(bytes_to_read(32 << 20, 8 * GIB, None).unwrap(), 128 << 20);
        assert_eq!(bytes_to_read(GIB, 100 * GIB, Some(100 * GIB)).unwrap(), 4 * GIB);
        assert_eq!(bytes_to_read(GIB, 100 * GIB, Some(8 * GIB)).unwrap(), 2 * GIB);
        assert_eq!(bytes_to_read(GIB / 8, GIB, Some(100 * GIB)).unwrap(), GIB / 4);
        for (caches, available) in [(0, 255 << 20), (GIB, 7 * GIB)] {
            let little = bytes_to_read(caches, 8 * GIB, Some(available)).unwrap_err();
            assert!(matches!(little, NumaError::LittleMemory { available, needed } if available < needed), "{little}");
        }
    }

    #[test]
    fn sums_include_every_word() {
        let words: Vec<u64> = (1..=100).collect();
        assert_eq!((sum(&words), sum(&words[..7]), sum(&[])), (5050, 28, 0));
    }
}
