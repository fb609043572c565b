//! Exchanges with other ranks, which one thread makes at a barrier.
//!
//! A sum adds the parts in the order of the ranks, element by element: `((p0 + p1) + p2) + ...`.
//! Its bits therefore depend neither on the transport nor on the method. Large parts of more than
//! two ranks are summed in pieces: each rank adds one piece, and sends the sum to the others.
//!
//! Invariant: lengths come from this rank's plan and step alone. The transport refuses a message of
//! any other length.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ixc_ir::plan::{BufferId, Exchange, adds_in_pieces};
use ixc_transport::{Incoming, Outgoing, Transport, TransportError, reason};

use super::{ExecuteError, Pass};
use crate::stats::ExchangeCounts;

/// Bytes of a float.
const FLOAT_BYTES: usize = 4;

/// The connection of an engine to the other ranks.
#[derive(Debug)]
pub(crate) struct RankLink {
    pub(crate) transport: Arc<dyn Transport>,
    /// Memory for the parts of other ranks.
    received: Mutex<Vec<u8>>,
    traffic: Traffic,
}

/// Counters of an engine's exchanges.
#[derive(Debug, Default)]
struct Traffic {
    exchanges: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// Nanoseconds in exchanges.
    waited: AtomicU64,
    /// Counts at the last call of [`RankLink::take_counts`].
    taken: Mutex<ExchangeCounts>,
}

impl RankLink {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> RankLink {
        RankLink { transport, received: Mutex::default(), traffic: Traffic::default() }
    }

    /// Ends the group after a failure of this rank. The failure of another rank has ended it.
    pub(crate) fn fail(&self, error: &ExecuteError) {
        if !matches!(error, ExecuteError::Transport(TransportError::Ended { .. })) {
            self.transport.end(&reason(error));
        }
    }

    /// Returns the counts since the engine was loaded.
    pub(crate) fn counts(&self) -> ExchangeCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Traffic { exchanges, messages, bytes, waited, .. } = &self.traffic;
        let waited = Duration::from_nanos(count(waited));
        ExchangeCounts { exchanges: count(exchanges), messages: count(messages), bytes: count(bytes), waited }
    }

    /// Returns the counts since the last call.
    pub(crate) fn take_counts(&self) -> ExchangeCounts {
        let mut taken = self.traffic.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.counts();
        let before = std::mem::replace(&mut *taken, counts);
        counts - before
    }

    fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.transport.rank();
        (0..self.transport.ranks()).filter(move |rank| *rank != own)
    }

    fn exchange(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError> {
        let bytes: usize = outgoing.iter().map(|message| message.bytes.len()).sum();
        self.traffic.messages.fetch_add(outgoing.len() as u64, Ordering::Relaxed);
        self.traffic.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let begin = Instant::now();
        let exchanged = self.transport.exchange(outgoing, incoming);
        let waited = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.traffic.waited.fetch_add(waited, Ordering::Relaxed);
        exchanged
    }

    /// Sends `part` to all other ranks, and passes the parts of all ranks to `use_parts`, in their
    /// order.
    fn share(&self, part: &[u8], use_parts: impl FnOnce(&[&[u8]])) -> Result<(), TransportError> {
        let mut memory = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.peers().count();
        let received = at_least(&mut memory, part.len() * count);
        let outgoing: Vec<Outgoing<'_>> = self.peers().map(|to| Outgoing { to, bytes: part }).collect();
        let slots = received.chunks_exact_mut(part.len().max(1));
        let mut incoming: Vec<Incoming<'_>> =
            self.peers().zip(slots).map(|(from, bytes)| Incoming { from, bytes }).collect();
        self.exchange(&outgoing, &mut incoming)?;
        let mut parts: Vec<&[u8]> = incoming.iter().map(|message| &*message.bytes).collect();
        parts.insert(self.transport.rank() as usize, part);
        use_parts(&parts);
        Ok(())
    }

    /// Adds the parts of all ranks.
    fn sum(&self, part: &[u8], sum: &mut [u8]) -> Result<(), TransportError> {
        if adds_in_pieces(self.transport.ranks(), part.len() as u64) {
            return self.sum_pieces(part, sum);
        }
        self.share(part, |parts| add(parts, sum))
    }

    /// Adds the parts of all ranks in pieces: each rank adds one, and sends the sum to the others.
    fn sum_pieces(&self, part: &[u8], sum: &mut [u8]) -> Result<(), TransportError> {
        let (own, ranks) = (self.transport.rank(), self.transport.ranks());
        let piece = |rank: u32| piece(part.len() / FLOAT_BYTES, rank, ranks);
        let own_piece = piece(own);
        let mut memory = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.peers().count();
        let received = at_least(&mut memory, own_piece.len() * count);
        let outgoing: Vec<Outgoing<'_>> = self.peers().map(|to| Outgoing { to, bytes: &part[piece(to)] }).collect();
        let slots = received.chunks_exact_mut(own_piece.len().max(1));
        let mut incoming: Vec<Incoming<'_>> =
            self.peers().zip(slots).map(|(from, bytes)| Incoming { from, bytes }).collect();
        self.exchange(&outgoing, &mut incoming)?;
        let mut parts: Vec<&[u8]> = incoming.iter().map(|message| &*message.bytes).collect();
        parts.insert(own as usize, &part[own_piece.clone()]);
        add(&parts, &mut sum[own_piece.clone()]);
        // All pieces of the sum, in the order of the ranks.
        let mut pieces: Vec<&mut [u8]> = Vec::with_capacity(ranks as usize);
        let mut rest = sum;
        for rank in 0..ranks {
            let (first, others) = rest.split_at_mut(piece(rank).len());
            pieces.push(first);
            rest = others;
        }
        let own_sum: &[u8] = pieces.remove(own as usize);
        let outgoing: Vec<Outgoing<'_>> = self.peers().map(|to| Outgoing { to, bytes: own_sum }).collect();
        let mut incoming: Vec<Incoming<'_>> =
            self.peers().zip(pieces).map(|(from, bytes)| Incoming { from, bytes }).collect();
        self.exchange(&outgoing, &mut incoming)
    }

    /// Concatenates rows of all ranks. `row` are the bytes of a row of a part.
    fn gather(&self, part: &[u8], row: usize, whole: &mut [u8]) -> Result<(), TransportError> {
        self.share(part, |parts| {
            for (number, rows) in whole.chunks_exact_mut((row * parts.len()).max(1)).enumerate() {
                for (to, from) in rows.chunks_exact_mut(row.max(1)).zip(parts) {
                    to.copy_from_slice(&from[number * row..][..row]);
                }
            }
        })
    }
}

/// Returns the first bytes of memory, which grows if needed.
fn at_least(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    &mut memory[..bytes]
}

/// Returns the bytes of a rank's piece of this many floats.
fn piece(floats: usize, rank: u32, ranks: u32) -> Range<usize> {
    let end = |rank: u32| (floats as u128 * u128::from(rank) / u128::from(ranks)) as usize * FLOAT_BYTES;
    end(rank)..end(rank + 1)
}

/// Adds floats of all parts, in their order.
fn add(parts: &[&[u8]], sum: &mut [u8]) {
    let [first, others @ ..] = parts else { return };
    sum.copy_from_slice(first);
    for part in others {
        let sums = sum.as_chunks_mut::<FLOAT_BYTES>().0;
        for (sum, x) in sums.iter_mut().zip(part.as_chunks::<FLOAT_BYTES>().0) {
            *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*x)).to_le_bytes();
        }
    }
}

impl Pass<'_> {
    /// Makes an exchange. Only one thread calls this, while all others wait at the barrier.
    pub(super) fn exchange(&self, exchange: Exchange) -> Result<(), ExecuteError> {
        let Some(link) = &self.store.ranks else { return Err(ExecuteError::NoRanks) };
        let region = |buffer: BufferId| self.arena(buffer.0 as usize);
        let (sent, result) = (exchange.sent_buffer().map(region), exchange.result().map(region));
        // SAFETY: the regions lie in the arena, which is mapped and initialised. All other threads
        // of this rank wait at the barrier. The program's check found that both regions are apart.
        let sent: &[u8] =
            sent.map_or(&[], |sent| unsafe { std::slice::from_raw_parts(sent.base(), sent.bytes() as usize) });
        // SAFETY: as above.
        let result: &mut [u8] = result.map_or(&mut [], |result| unsafe {
            std::slice::from_raw_parts_mut(result.base(), result.bytes() as usize)
        });
        // All ranks have the same numbers of rows, so all skip the same exchanges.
        if sent.is_empty() && result.is_empty() {
            return Ok(());
        }
        link.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
        let row = |buffer: BufferId| self.program.buffers[buffer.0 as usize].row_bytes as usize;
        match exchange {
            Exchange::Sum { .. } => link.sum(sent, result)?,
            Exchange::Gather { part, .. } => link.gather(sent, row(part), result)?,
            Exchange::Send { to, .. } => link.exchange(&[Outgoing { to, bytes: sent }], &mut [])?,
            Exchange::Receive { from, .. } => link.exchange(&[], &mut [Incoming { from, bytes: result }])?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ixc_transport::local;

    use super::*;

    /// Returns the bytes of floats whose sum depends on the order of the additions.
    fn part(rank: u32, floats: usize) -> Vec<u8> {
        let float = |i: usize| [1e8f32, -1e8, 0.5, 3.25][(rank as usize + i) % 4] * (1.0 + i as f32 / 977.0);
        (0..floats).flat_map(|i| float(i).to_le_bytes()).collect()
    }

    fn sums(ranks: u32, floats: usize) -> Vec<Vec<u8>> {
        let links = local::group(ranks).into_iter().map(|transport| RankLink::new(Arc::new(transport)));
        let threads: Vec<_> = links
            .enumerate()
            .map(|(rank, link)| {
                std::thread::spawn(move || {
                    let mut sum = vec![0; floats * FLOAT_BYTES];
                    link.sum(&part(rank as u32, floats), &mut sum).map(|()| sum)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    }

    #[test]
    fn sums_add_in_the_order_of_ranks_with_and_without_pieces() {
        for (ranks, floats) in [(1, 5), (2, 40_001), (3, 7), (3, 100_003), (4, 40_000)] {
            let parts: Vec<Vec<u8>> = (0..ranks).map(|rank| part(rank, floats)).collect();
            let mut expected = vec![0; floats * FLOAT_BYTES];
            add(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut expected);
            assert!(sums(ranks, floats).iter().all(|sum| *sum == expected), "{ranks} ranks, {floats} floats");
        }
    }
}
