//! Counters of exchanges and memory of all ranks, which rank 0 collects.
//!
//! A message with counters has a fixed length. Each rank counts its exchanges from the time when
//! its engine was loaded.

use std::time::Duration;

use ixc_transport::{Incoming, Outgoing, Transport, TransportError};

use super::command::Command;
use crate::engine::load;
use crate::engine::sequence::Engine;
use crate::engine::step::StepError;
use crate::error::execute::ExecuteError;
use crate::stats::ExchangeCounts;

/// Number of 64-bit counters in a message.
const NUMBERS: usize = 5;
/// Bytes of a message with counters.
const BYTES: usize = NUMBERS * size_of::<u64>();

/// Counters of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankCounts {
    /// Counts of exchanges since the engine was loaded.
    pub exchanged: ExchangeCounts,
    /// Resident memory of the rank's process, in bytes. Ranks in the same process report the same
    /// number.
    pub memory_bytes: u64,
}

impl RankCounts {
    fn encode(self) -> [u8; BYTES] {
        let ExchangeCounts { exchanges, messages, bytes, waited } = self.exchanged;
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let mut encoded = [0; BYTES];
        let numbers = [exchanges, messages, bytes, waited, self.memory_bytes];
        for (to, number) in encoded.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *to = number.to_le_bytes();
        }
        encoded
    }

    fn decode(encoded: &[u8; BYTES]) -> RankCounts {
        let mut numbers = [0; NUMBERS];
        for (number, from) in numbers.iter_mut().zip(encoded.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*from);
        }
        let [exchanges, messages, bytes, waited, memory_bytes] = numbers;
        let waited = Duration::from_nanos(waited);
        RankCounts { exchanged: ExchangeCounts { exchanges, messages, bytes, waited }, memory_bytes }
    }
}

/// Sends the counters of a rank to rank 0.
pub(super) fn send(transport: &dyn Transport, counts: RankCounts) -> Result<(), TransportError> {
    transport.exchange(&[Outgoing { to: 0, bytes: &counts.encode() }], &mut [])
}

/// Receives the counters of all other ranks, in order of rank.
fn receive(transport: &dyn Transport) -> Result<Vec<RankCounts>, TransportError> {
    let mut others = vec![[0; BYTES]; transport.ranks().saturating_sub(1) as usize];
    let incoming = (1..).zip(&mut others).map(|(from, bytes)| Incoming { from, bytes });
    transport.exchange(&[], &mut incoming.collect::<Vec<_>>())?;
    Ok(others.iter().map(RankCounts::decode).collect())
}

impl Engine {
    /// Returns the counters of this rank.
    pub(super) fn own_counts(&self) -> RankCounts {
        let exchanged = self.loaded.store.ranks.as_ref().map(|link| link.counts());
        RankCounts { exchanged: exchanged.unwrap_or_default(), memory_bytes: load::resident_bytes() }
    }

    /// Collects the counters of all ranks, in order of rank. Rank 0 calls this between two steps.
    /// The result is empty for a whole model, and on ranks other than 0.
    ///
    /// # Errors
    /// Fails if another rank has ended.
    pub fn rank_counts(&mut self) -> Result<Vec<RankCounts>, StepError> {
        let Some(member) = self.ranks.as_ref().filter(|member| member.transport.rank() == 0) else {
            return Ok(Vec::new());
        };
        member.tell(|| Command::Count)?;
        let others = receive(&*member.transport).map_err(ExecuteError::Transport)?;
        Ok([self.own_counts()].into_iter().chain(others).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_encoding() {
        let waited = Duration::from_micros(1234);
        let exchanged = ExchangeCounts { exchanges: 1, messages: 2, bytes: 1 << 40, waited };
        let counts = RankCounts { exchanged, memory_bytes: 5 };
        assert_eq!(RankCounts::decode(&counts.encode()), counts);
    }
}
