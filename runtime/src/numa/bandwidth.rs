//! Measured speed of reading the memory of each node by the processors of each node.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread::scope;
use std::time::Instant;

use super::home::{Home, HomeBinding};
use super::placement::{RankPlace, place_ranks};
use super::topology::Topology;
use crate::processors;

/// Speed of reading the memory of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeRate {
    /// Node of the processors.
    pub from: u32,
    /// Node of the memory.
    pub to: u32,
    /// Bytes per second of all processors of the node together.
    pub bytes_per_second: f64,
}

/// Least bytes that are read: more than caches of most nodes have.
const MIN_BYTES: u64 = 64 << 20;
/// Max bytes that are read.
const MAX_BYTES: u64 = 1 << 30;
/// Multiple of the last-level cache that is read.
const CACHES: u64 = 4;
/// Reads of all bytes; the fastest counts.
const ROUNDS: u32 = 3;
/// Max nodes that are measured: the time grows with their square.
const MAX_NODES: usize = 8;
/// Words that a thread adds at a time, so that sums are independent.
const LANES: usize = 16;

/// Measures the speed from each node with memory and processors to each.
///
/// # Errors
/// If there is not enough memory.
pub fn measure(topology: &Topology) -> Result<Vec<NodeRate>, TryReserveError> {
    let nodes = topology.usable_nodes().count().clamp(1, MAX_NODES);
    let Ok(places) = place_ranks(topology, nodes, None) else { return Ok(Vec::new()) };
    let caches = topology.nodes.iter().filter_map(|node| node.l3_bytes).max().unwrap_or(0);
    let least = topology.usable_nodes().map(|node| node.memory_bytes).min().unwrap_or(0);
    let bytes = caches.saturating_mul(CACHES).clamp(MIN_BYTES, MAX_BYTES).min(least / 4);
    let mut rates = Vec::with_capacity(nodes * nodes);
    for to in &places {
        let words = {
            let home = Home::new(to.clone());
            let _binding = HomeBinding::enter(&home);
            let mut words: Vec<u64> = Vec::new();
            words.try_reserve_exact(bytes as usize / size_of::<u64>())?;
            // The bound thread writes each page first, which gives it the thread's node.
            words.resize(bytes as usize / size_of::<u64>(), 1);
            words
        };
        for from in &places {
            let node = |place: &RankPlace| place.nodes.first().copied().unwrap_or(0);
            let bytes_per_second = read(&words, &from.processors);
            rates.push(NodeRate { from: node(from), to: node(to), bytes_per_second });
        }
    }
    Ok(rates)
}

/// Reads words with a thread on each processor, and returns bytes per second.
fn read(words: &[u64], on: &[usize]) -> f64 {
    let barrier = Barrier::new(on.len());
    let part = words.len().div_ceil(on.len().max(1)).max(LANES);
    let seconds: Vec<Vec<f64>> = scope(|scope| {
        let thread = |(number, &processor): (usize, &usize)| {
            let (barrier, part) = (&barrier, words.chunks(part).nth(number).unwrap_or_default());
            scope.spawn(move || {
                // An unbound thread measures a mixture of nodes.
                let _ = processors::bind(&[processor]);
                let round = |_| {
                    barrier.wait();
                    let begin = Instant::now();
                    black_box(sum(black_box(part)));
                    begin.elapsed().as_secs_f64()
                };
                (0..ROUNDS).map(round).collect::<Vec<f64>>()
            })
        };
        let threads: Vec<_> = on.iter().enumerate().map(thread).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // A round ends with its last thread.
    let round = |number: usize| seconds.iter().filter_map(|thread| thread.get(number)).copied().fold(0.0, f64::max);
    let best = (0..ROUNDS as usize).map(round).fold(f64::INFINITY, f64::min);
    size_of_val(words) as f64 / best.max(1e-9)
}

/// Adds words. Overflow wraps, because the sum is of no interest.
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
        let rates = measure(&topology).unwrap();
        let pairs: Vec<(u32, u32)> = rates.iter().map(|rate| (rate.to, rate.from)).collect();
        let expected: Vec<(u32, u32)> = nodes.iter().flat_map(|to| nodes.iter().map(|from| (*to, *from))).collect();
        assert!(rates.iter().all(|rate| rate.bytes_per_second > 1e6), "{rates:?}");
        assert!(pairs == expected, "{pairs:?}");
    }

    #[test]
    fn sums_include_every_word() {
        let words: Vec<u64> = (1..=100).collect();
        assert_eq!((sum(&words), sum(&words[..7]), sum(&[])), (5050, 28, 0));
    }
}
