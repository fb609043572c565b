//! Exchanges of rows with other ranks. One thread makes them at a barrier.
//!
//! For a sum, each rank has partial sums (its *part*). The parts are added in the order of the
//! ranks, element by element: `((p0 + p1) + p2) + ...`. The bits of the result therefore depend
//! neither on the transport nor on the method. With more than two ranks, large parts are divided
//! into pieces. Each rank adds one piece of all parts, and sends its sum to the other ranks.
//!
//! The sum of one half of the rows begins at one barrier and finishes at a later one. Between these
//! barriers, the transport owns copies of the sent rows and the memory for received rows. So
//! kernels and messages never use the same memory.
//!
//! Invariant: the lengths of messages come only from this rank's plan and step. The transport
//! refuses a message of any other length.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ixc_ir::plan::{BufferId, Exchange, Halves, adds_in_pieces};
use ixc_transport::{Incoming, Outgoing, Receipt, Transport, TransportError, reason};

use super::{ExecuteError, Pass};
use crate::program::halves::{Half, SumHalf};
use crate::stats::ExchangeCounts;

/// Bytes of a 32-bit float.
pub(crate) const FLOAT_BYTES: usize = 4;

/// The connection of an engine to the other ranks.
#[derive(Debug)]
pub(crate) struct RankLink {
    pub(crate) transport: Arc<dyn Transport>,
    /// Reused memory for the parts that other ranks send.
    received: Mutex<Vec<u8>>,
    /// Reused memory for the messages of sums of halves, while no such sum is pending.
    spare: Mutex<Vec<Vec<u8>>>,
    traffic: Traffic,
}

/// Counters of an engine's exchanges with other ranks.
#[derive(Debug, Default)]
struct Traffic {
    exchanges: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    /// Nanoseconds spent in calls of the transport.
    waited: AtomicU64,
    /// The counts since loading, at the time of the last call of [`RankLink::take_counts`].
    taken: Mutex<ExchangeCounts>,
}

impl Traffic {
    /// Counts the messages that this rank sends.
    fn count(&self, outgoing: &[Outgoing<'_>]) {
        let bytes: usize = outgoing.iter().map(|message| message.bytes.len()).sum();
        self.messages.fetch_add(outgoing.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Runs a call of the transport, and adds its time to the counter.
    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = call();
        let waited = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(waited, Ordering::Relaxed);
        result
    }
}

impl RankLink {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> RankLink {
        RankLink { transport, received: Mutex::default(), spare: Mutex::default(), traffic: Traffic::default() }
    }

    /// Ends the group of ranks after a failure of this rank. Does nothing if `error` is the end of
    /// the group by another rank.
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

    /// Returns the counts since the last call of this function.
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
        self.traffic.count(outgoing);
        self.traffic.time(|| self.transport.exchange(outgoing, incoming))
    }

    /// Returns whether the ranks add a part of `part` bytes in pieces.
    fn has_pieces(&self, part: usize) -> bool {
        adds_in_pieces(self.transport.ranks(), part as u64)
    }

    /// Returns the range of a part's bytes that rank `to` receives: its piece, or the whole part.
    fn sent_bytes(&self, part: usize, to: u32) -> Range<usize> {
        if self.has_pieces(part) { piece(part / FLOAT_BYTES, to, self.transport.ranks()) } else { 0..part }
    }

    /// Sends this rank's part, and begins to receive the parts of all other ranks for a sum.
    fn begin_sum(&self, part: &[u8]) -> Result<(), TransportError> {
        let sent = |to| Outgoing { to, bytes: &part[self.sent_bytes(part.len(), to)] };
        let outgoing: Vec<Outgoing<'_>> = self.peers().map(sent).collect();
        let bytes = self.sent_bytes(part.len(), self.transport.rank()).len();
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut receipt = |from| {
            let mut memory = spare.pop().unwrap_or_default();
            memory.resize(bytes, 0);
            Receipt { from, bytes: memory }
        };
        let incoming = self.peers().map(&mut receipt).collect();
        self.traffic.count(&outgoing);
        self.traffic.time(|| self.transport.begin(&outgoing, incoming))
    }

    /// Finishes the oldest pending sum. `part` is this rank's part, and the result is written to
    /// `sum`.
    fn finish_sum(&self, part: &[u8], sum: &mut [u8]) -> Result<(), TransportError> {
        let receipts = self.traffic.time(|| self.transport.finish())?;
        let own = self.transport.rank();
        let range = self.sent_bytes(part.len(), own);
        let mut parts: Vec<&[u8]> = receipts.iter().map(|receipt| &*receipt.bytes).collect();
        parts.insert((own as usize).min(parts.len()), &part[range.clone()]);
        add(&parts, &mut sum[range]);
        self.spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(receipts.into_iter().map(|receipt| receipt.bytes));
        if self.has_pieces(part.len()) { self.share_pieces(sum) } else { Ok(()) }
    }

    /// Sends `part` to all other ranks and receives theirs. Passes the parts of all ranks, in order
    /// of rank, to `use_parts`.
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

    /// Adds the parts of all ranks, and writes the result to `sum`.
    fn sum(&self, part: &[u8], sum: &mut [u8]) -> Result<(), TransportError> {
        if self.has_pieces(part.len()) {
            return self.sum_pieces(part, sum);
        }
        self.share(part, |parts| add(parts, sum))
    }

    /// Adds the parts of all ranks in pieces: each rank adds one piece of all parts, and sends its
    /// sum to the other ranks.
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
        drop(memory);
        self.share_pieces(sum)
    }

    /// Sends this rank's piece of `sum` to all other ranks, and receives the other pieces from
    /// them.
    fn share_pieces(&self, sum: &mut [u8]) -> Result<(), TransportError> {
        let (own, ranks) = (self.transport.rank(), self.transport.ranks());
        let floats = sum.len() / FLOAT_BYTES;
        // The memory of each rank's piece of the sum, in order of rank.
        let mut pieces: Vec<&mut [u8]> = Vec::with_capacity(ranks as usize);
        let mut rest = sum;
        for rank in 0..ranks {
            let (first, others) = rest.split_at_mut(piece(floats, rank, ranks).len());
            pieces.push(first);
            rest = others;
        }
        let own_sum: &[u8] = pieces.remove(own as usize);
        let outgoing: Vec<Outgoing<'_>> = self.peers().map(|to| Outgoing { to, bytes: own_sum }).collect();
        let mut incoming: Vec<Incoming<'_>> =
            self.peers().zip(pieces).map(|(from, bytes)| Incoming { from, bytes }).collect();
        self.exchange(&outgoing, &mut incoming)
    }

    /// Gathers the parts of all ranks: each row of `whole` is the concatenation of that row in all
    /// parts. `row` is the number of bytes of a row in a part.
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

/// Returns the first `bytes` bytes of `memory`, which grows if it is too small.
fn at_least(memory: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if memory.len() < bytes {
        memory.resize(bytes, 0);
    }
    &mut memory[..bytes]
}

/// Returns the byte range of a rank's piece, for a part of `floats` floats.
pub(crate) fn piece(floats: usize, rank: u32, ranks: u32) -> Range<usize> {
    let end = |rank: u32| (floats as u128 * u128::from(rank) / u128::from(ranks)) as usize * FLOAT_BYTES;
    end(rank)..end(rank + 1)
}

/// Adds the floats of all parts, in the order of the parts, into `sum`.
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

/// The buffers of an exchange: the rows that this rank sends, and the memory of its result.
struct ExchangeBuffers<'m> {
    sent: &'m [u8],
    result: &'m mut [u8],
}

impl Pass<'_> {
    /// Returns the buffers of an exchange in the arena.
    ///
    /// # Safety
    /// All other threads of this rank wait at the barrier until the buffers are no longer used, and
    /// the caller has no other buffers of an exchange.
    unsafe fn exchange_buffers(&self, sent: Option<BufferId>, result: Option<BufferId>) -> ExchangeBuffers<'_> {
        let region = |buffer: BufferId| self.arena(buffer.0 as usize);
        let (sent, result) = (sent.map(region), result.map(region));
        // SAFETY: the regions lie in the arena, which is mapped and initialised. All other threads
        // of this rank wait, as the caller guarantees. `Program::new` checked that the two regions
        // do not overlap.
        let sent: &[u8] =
            sent.map_or(&[], |sent| unsafe { std::slice::from_raw_parts(sent.base(), sent.bytes() as usize) });
        // SAFETY: the same reasons as for `sent` hold.
        let result: &mut [u8] = result.map_or(&mut [], |result| unsafe {
            std::slice::from_raw_parts_mut(result.base(), result.bytes() as usize)
        });
        ExchangeBuffers { sent, result }
    }

    fn link(&self) -> Result<&RankLink, ExecuteError> {
        self.store.ranks.as_ref().ok_or(ExecuteError::NoRanks)
    }

    /// Makes an exchange with other ranks. Only one thread calls this, while all other threads wait
    /// at the barrier.
    pub(super) fn exchange(&self, exchange: Exchange) -> Result<(), ExecuteError> {
        let link = self.link()?;
        // SAFETY: only the last thread at a barrier calls this, while the other threads wait.
        let buffers = unsafe { self.exchange_buffers(exchange.sent_buffer(), exchange.result()) };
        let ExchangeBuffers { sent, result } = buffers;
        // All ranks have the same numbers of rows, so all ranks skip the same exchanges.
        if sent.is_empty() && result.is_empty() {
            return Ok(());
        }
        link.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
        let row = |buffer: BufferId| self.program.buffers[buffer.0 as usize].row_bytes as usize;
        match exchange {
            Exchange::Sum { .. } | Exchange::SumHalves { .. } => link.sum(sent, result)?,
            Exchange::Gather { part, .. } => link.gather(sent, row(part), result)?,
            Exchange::Send { to, .. } => link.exchange(&[Outgoing { to, bytes: sent }], &mut [])?,
            Exchange::Receive { from, .. } => link.exchange(&[], &mut [Incoming { from, bytes: result }])?,
        }
        Ok(())
    }

    /// Begins the sum of a half of the rows; does so only in steps that compute halves. Only one
    /// thread calls this, as for [`Pass::exchange`].
    pub(super) fn begin_sum(&self, sum: SumHalf) -> Result<(), ExecuteError> {
        if self.has_halves(sum.rows) {
            let link = self.link()?;
            // SAFETY: only the last thread at a barrier calls this, while the other threads wait.
            let ExchangeBuffers { sent, .. } = unsafe { self.exchange_buffers(Some(sum.part), None) };
            link.begin_sum(&sent[self.half_bytes(sum.half, sent.len())])?;
        }
        Ok(())
    }

    /// Finishes the sum of a half of the rows. In steps that do not compute halves, sums all rows
    /// at the end of the first half. Only one thread calls this, as for [`Pass::exchange`].
    pub(super) fn finish_sum(&self, sum: SumHalf) -> Result<(), ExecuteError> {
        let SumHalf { half, part, sum: result, rows } = sum;
        match (self.has_halves(rows), half) {
            (false, Half::First) => self.exchange(Exchange::Sum { part, sum: result }),
            (false, Half::Second) => Ok(()),
            (true, half) => {
                let link = self.link()?;
                // SAFETY: only the last thread at a barrier calls this, while the other threads
                // wait.
                let ExchangeBuffers { sent, result } = unsafe { self.exchange_buffers(Some(part), Some(result)) };
                link.traffic.exchanges.fetch_add(1, Ordering::Relaxed);
                let bytes = self.half_bytes(half, sent.len());
                Ok(link.finish_sum(&sent[bytes.clone()], &mut result[bytes])?)
            }
        }
    }

    /// Returns the byte range of a half of the rows in a buffer of `bytes` bytes for all rows.
    fn half_bytes(&self, half: Half, bytes: usize) -> Range<usize> {
        let tokens = self.counts.tokens.max(1);
        let first = bytes / tokens as usize * Halves::first_rows(tokens) as usize;
        match half {
            Half::First => 0..first,
            Half::Second => first..bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_transport::local;

    use super::*;

    /// Returns a rank's floats, whose sum over ranks depends on the order of the additions.
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

    /// Returns, for each rank, the result of two sums of halves that are pending at the same time.
    fn halved_sums(ranks: u32, floats: usize) -> Vec<Vec<u8>> {
        let links = local::group(ranks).into_iter().map(|transport| RankLink::new(Arc::new(transport)));
        std::thread::scope(|scope| {
            let threads: Vec<_> = links
                .enumerate()
                .map(|(rank, link)| {
                    scope.spawn(move || {
                        let mut sum = vec![0; floats * FLOAT_BYTES];
                        let part = part(rank as u32, floats);
                        let middle = floats / 2 * FLOAT_BYTES;
                        let halves = [0..middle, middle..part.len()];
                        halves.iter().for_each(|half| link.begin_sum(&part[half.clone()]).unwrap());
                        for half in halves {
                            link.finish_sum(&part[half.clone()], &mut sum[half]).unwrap();
                        }
                        sum
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn sums_add_in_the_order_of_ranks_with_and_without_pieces() {
        for (ranks, floats) in [(1, 5), (2, 40_001), (3, 7), (3, 100_003), (4, 40_000)] {
            let parts: Vec<Vec<u8>> = (0..ranks).map(|rank| part(rank, floats)).collect();
            let mut expected = vec![0; floats * FLOAT_BYTES];
            add(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut expected);
            assert!(sums(ranks, floats).iter().all(|sum| *sum == expected), "{ranks} ranks, {floats} floats");
            let halves = halved_sums(ranks, floats);
            assert!(halves.iter().all(|sum| *sum == expected), "{ranks} ranks, {floats} floats in halves");
        }
    }
}
