//! Measurements of the speed of the links between ranks.
//!
//! In a *round*, two ranks send each other a message at the same time, as ranks do in a sum. Pairs
//! are measured one after another, while all other ranks wait.
//!
//! Invariant: numbers and names from other ranks are untrusted. Whatever bytes arrive, the result
//! is finite.

use std::time::Instant;

use crate::{Incoming, Outgoing, Transport, TransportError};

/// Bytes of a short message.
pub const SHORT_BYTES: usize = 64;
/// Bytes of a long message.
pub const LONG_BYTES: usize = 4 << 20;
/// Number of measured rounds with short messages. Before them are [`WARM_ROUNDS`].
const SHORT_ROUNDS: usize = 200;
/// Number of measured rounds with long messages.
const LONG_ROUNDS: usize = 8;
/// Number of rounds before the first measured one. They are needed because a rank that has waited
/// for long reacts slowly.
const WARM_ROUNDS: usize = 20;
/// Max number of ranks for which all pairs of ranks are measured.
const ALL_PAIRS: u32 = 8;
/// Bytes of the name of a machine in a message. Linux limits names to 64 bytes.
const NAME_BYTES: usize = 64;

/// A pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The lower rank.
    pub low: u32,
    /// The higher rank.
    pub high: u32,
}

/// Speed of the link between two ranks that both send at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// The two ranks.
    pub pair: Pair,
    /// Median duration of a round with messages of [`SHORT_BYTES`], in seconds.
    pub short_seconds: f64,
    /// Median duration of a round with messages of [`LONG_BYTES`], in seconds.
    pub long_seconds: f64,
}

impl LinkSpeed {
    /// Returns the speed in one direction in bytes per second, without the latency.
    pub fn bytes_per_second(&self) -> f64 {
        let transfer = self.long_seconds - self.short_seconds;
        LONG_BYTES as f64 / if transfer > 0.0 { transfer } else { self.long_seconds }
    }
}

/// Speed of the links of a group of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpeed {
    /// Name of the machine of each rank.
    pub machines: Vec<String>,
    /// The measured links. With more than 8 ranks, each rank's links to the next rank and to the
    /// rank half the group away are measured. Otherwise, all are.
    pub links: Vec<LinkSpeed>,
    /// Median duration of an exchange in which each rank sends [`SHORT_BYTES`] to each other rank,
    /// in seconds.
    pub all_seconds: f64,
}

impl GroupSpeed {
    /// Returns the seconds that each message of an exchange takes in addition to the latency. For
    /// two ranks, which send only one message each, it returns `None`.
    pub fn message_seconds(&self) -> Option<f64> {
        let further = self.machines.len().checked_sub(2).filter(|further| *further > 0)?;
        let slowest = self.links.iter().map(|link| link.short_seconds).fold(0.0, f64::max);
        Some((self.all_seconds - slowest).max(0.0) / further as f64)
    }
}

/// Measures the links of a group. All ranks must call it, each with the name of its machine.
/// Returns the result on rank 0 and `None` on the other ranks.
///
/// # Errors
/// Fails if an exchange fails.
pub fn measure(transport: &dyn Transport, machine: &str) -> Result<Option<GroupSpeed>, TransportError> {
    let ranks = transport.ranks();
    let mut name = [0; NAME_BYTES];
    let length = machine.floor_char_boundary(NAME_BYTES);
    name[..length].copy_from_slice(&machine.as_bytes()[..length]);
    let names = gather(transport, &name)?;
    let mut links = Vec::new();
    for pair in pairs(ranks) {
        let peer = match transport.rank() {
            rank if rank == pair.low => Some(pair.high),
            rank if rank == pair.high => Some(pair.low),
            _ => None,
        };
        let mut own = [0; 16];
        if let Some(peer) = peer {
            let (short, long) = own.split_at_mut(8);
            short.copy_from_slice(&rounds(transport, &[peer], SHORT_BYTES, SHORT_ROUNDS)?.to_le_bytes());
            long.copy_from_slice(&rounds(transport, &[peer], LONG_BYTES, LONG_ROUNDS)?.to_le_bytes());
        }
        // Until the pair has finished, the other ranks wait here.
        let times = gather(transport, &own)?;
        links.extend(times.get(pair.low as usize).map(|times| LinkSpeed {
            pair,
            short_seconds: seconds(&times[..8]),
            long_seconds: seconds(&times[8..]),
        }));
    }
    let others: Vec<u32> = (0..ranks).filter(|other| *other != transport.rank()).collect();
    let all = rounds(transport, &others, SHORT_BYTES, SHORT_ROUNDS)?;
    let machines = names.iter().map(|name| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()).collect();
    let all_seconds = seconds(&all.to_le_bytes());
    Ok((transport.rank() == 0).then_some(GroupSpeed { machines, links, all_seconds }))
}

/// Returns the pairs of ranks whose links are measured.
fn pairs(ranks: u32) -> Vec<Pair> {
    let all = (0..ranks).flat_map(|low| (low + 1..ranks).map(move |high| Pair { low, high }));
    let is_measured = |pair: &Pair| {
        let distance = pair.high - pair.low;
        ranks <= ALL_PAIRS || distance == 1 || distance == ranks - 1 || distance == ranks / 2
    };
    all.filter(is_measured).collect()
}

/// Exchanges messages of a length with all `peers` in a number of rounds. Returns the median
/// duration of a round in nanoseconds. If one rank is always ahead of another, long and short
/// rounds alternate. So the median is that of the means of two consecutive rounds.
fn rounds(transport: &dyn Transport, peers: &[u32], bytes: usize, count: usize) -> Result<u64, TransportError> {
    let sent = vec![1; bytes];
    let mut received = vec![vec![0; bytes]; peers.len()];
    let mut times = Vec::with_capacity(count);
    let warm = if bytes == SHORT_BYTES { WARM_ROUNDS } else { 1 };
    for round in 0..warm + count {
        let outgoing: Vec<_> = peers.iter().map(|to| Outgoing { to: *to, bytes: &sent }).collect();
        let pairs = peers.iter().zip(&mut received);
        let mut incoming: Vec<_> = pairs.map(|(from, bytes)| Incoming { from: *from, bytes }).collect();
        let begin = Instant::now();
        transport.exchange(&outgoing, &mut incoming)?;
        if round >= warm {
            times.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    Ok(median_of_pairs(&times))
}

/// Returns the median of the means of two consecutive times.
fn median_of_pairs(times: &[u64]) -> u64 {
    let mut means: Vec<u64> = times.windows(2).map(|pair| pair[0].midpoint(pair[1])).collect();
    means.sort_unstable();
    means.get(means.len() / 2).copied().unwrap_or_default()
}

/// Converts the nanoseconds in a message to seconds. The result is at least one nanosecond.
fn seconds(nanoseconds: &[u8]) -> f64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(nanoseconds);
    u64::from_le_bytes(bytes).max(1) as f64 * 1e-9
}

/// Sends the bytes of each rank to rank 0, and waits until rank 0 has received all. Returns the
/// bytes of all ranks on rank 0, and an empty list on other ranks.
fn gather<const N: usize>(transport: &dyn Transport, own: &[u8; N]) -> Result<Vec<[u8; N]>, TransportError> {
    if transport.rank() > 0 {
        transport.exchange(&[Outgoing { to: 0, bytes: own }], &mut [])?;
        transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }])?;
        return Ok(Vec::new());
    }
    let mut all = vec![*own; transport.ranks() as usize];
    let others = (1..).zip(all.iter_mut().skip(1));
    let mut incoming: Vec<_> = others.map(|(from, bytes)| Incoming { from, bytes }).collect();
    transport.exchange(&[], &mut incoming)?;
    let outgoing: Vec<_> = (1..transport.ranks()).map(|to| Outgoing { to, bytes: &[1] }).collect();
    transport.exchange(&outgoing, &mut [])?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;

    #[test]
    fn all_pairs_of_few_ranks_and_neighbours_of_many_are_measured() {
        let pair = |low, high| Pair { low, high };
        assert_eq!(pairs(3), [pair(0, 1), pair(0, 2), pair(1, 2)]);
        assert_eq!(pairs(8).len(), 28);
        let many = pairs(10);
        assert_eq!(many.len(), 15);
        assert!(many.contains(&pair(0, 9)) && many.contains(&pair(4, 9)) && !many.contains(&pair(0, 2)), "{many:?}");
    }

    #[test]
    fn rank_0_has_the_speed_of_each_link() {
        let transports = local::group(3);
        let results = std::thread::scope(|scope| {
            let begin = |transport: local::LocalTransport| {
                scope.spawn(move || measure(&transport, &format!("machine-{}", transport.rank() / 2)).unwrap())
            };
            let threads: Vec<_> = transports.into_iter().map(begin).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!((&results[1], &results[2]), (&None, &None));
        let speed = results[0].as_ref().unwrap();
        assert_eq!(speed.machines, ["machine-0", "machine-0", "machine-1"]);
        assert_eq!(speed.links.iter().map(|link| link.pair).collect::<Vec<_>>(), pairs(3));
        assert!(speed.message_seconds().is_some());
    }

    #[test]
    fn alternating_rounds_have_the_time_between_them() {
        let times: Vec<u64> = (0..200).map(|round| if round % 2 == 0 { 10 } else { 190 }).collect();
        assert_eq!(median_of_pairs(&times), 100);
        assert_eq!((median_of_pairs(&[5, 7, 100]), median_of_pairs(&[u64::MAX; 3])), (53, u64::MAX));
    }

    #[test]
    fn hostile_times_give_finite_rates() {
        let pair = Pair { low: 0, high: 1 };
        for (short, long) in [(u64::MAX, 0), (0, u64::MAX), (0, 0)] {
            let [short_seconds, long_seconds] = [short, long].map(|time| seconds(&time.to_le_bytes()));
            let rate = LinkSpeed { pair, short_seconds, long_seconds }.bytes_per_second();
            assert!(rate.is_finite() && rate > 0.0, "{short} {long}");
        }
    }
}
