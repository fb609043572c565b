//! Messages over nonblocking MPI calls, and the buffers that MPI uses until a call is complete.
//!
//! A message is received in three steps: MPI reports its length, a buffer of at least that length
//! is allocated, and MPI writes the message. So no buffer is too short for its message.

use std::collections::VecDeque;
use std::ffi::c_int;

use ixc_transport::link::{Channel, Link, LinkError};

use crate::ending::EndingUniverse;
use crate::library::{Arrival, Operation, probe};

/// Maximum number of spare buffers.
const SPARE: usize = 16;
/// Maximum bytes of a spare buffer. Larger buffers are needed only for prefill, so they are freed.
const SPARE_BYTES: usize = 1 << 20;

/// Returns MPI's tag of a channel.
const fn tag(channel: Channel) -> c_int {
    match channel {
        Channel::Data => 1,
        Channel::Control => 2,
    }
}

/// A message that MPI is writing into its buffer.
#[derive(Debug)]
struct Receiving {
    from: u32,
    channel: Channel,
    bytes: usize,
    operation: Operation,
}

/// The link of this process to all other ranks.
#[derive(Debug)]
pub(crate) struct MpiLink {
    rank: u32,
    ranks: u32,
    sending: VecDeque<Operation>,
    receiving: Vec<Receiving>,
    /// Buffers of completed operations. They are reused, so that messages of decode steps allocate
    /// no memory.
    spare: Vec<Vec<u8>>,
    /// The initialised MPI of this process; `None` after it was finalised.
    universe: Option<EndingUniverse>,
}

impl MpiLink {
    /// Creates the link of an initialised MPI.
    pub fn new(universe: EndingUniverse, rank: u32, ranks: u32) -> MpiLink {
        let universe = Some(universe);
        MpiLink { rank, ranks, sending: VecDeque::new(), receiving: Vec::new(), spare: Vec::new(), universe }
    }

    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE && buffer.capacity() <= SPARE_BYTES {
            self.spare.push(buffer);
        }
    }

    /// Begins to receive the next message, if one has arrived. Returns whether one has.
    fn begin_to_receive(&mut self, from: Option<u32>, channel: Channel, limit: usize) -> Result<bool, LinkError> {
        let Some(Arrival { message, from, bytes }) = probe(from, tag(channel))? else { return Ok(false) };
        let Some(bytes) = bytes.filter(|bytes| *bytes <= limit) else {
            // The message stays in MPI, because the group of ranks ends after this error.
            let bytes = bytes.map_or(u64::MAX, |bytes| bytes as u64);
            return Err(LinkError::Oversized { from, bytes, limit: limit as u64 });
        };
        let mut buffer = self.spare.pop().unwrap_or_default();
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let operation = Operation::receive(message, buffer, bytes)?;
        self.receiving.push(Receiving { from, channel, bytes, operation });
        Ok(true)
    }
}

impl Link for MpiLink {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn send(&mut self, to: u32, channel: Channel, head: &[u8], rest: &[u8]) -> Result<(), LinkError> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(head);
        buffer.extend_from_slice(rest);
        self.sending.push_back(Operation::send(to, tag(channel), buffer)?);
        Ok(())
    }

    fn receive(
        &mut self,
        from: Option<u32>,
        channel: Channel,
        limit: usize,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, LinkError> {
        let is_wanted =
            |message: &Receiving| message.channel == channel && from.is_none_or(|from| from == message.from);
        let place = match self.receiving.iter().position(is_wanted) {
            Some(place) => place,
            None if self.begin_to_receive(from, channel, limit)? => self.receiving.len() - 1,
            None => return Ok(false),
        };
        let Some(buffer) = self.receiving[place].operation.complete()? else { return Ok(false) };
        let Receiving { from, bytes, .. } = self.receiving.swap_remove(place);
        // The caller's limit may be smaller than at the call that found the message.
        if bytes > limit {
            return Err(LinkError::Oversized { from, bytes: bytes as u64, limit: limit as u64 });
        }
        take(from, &buffer[..bytes]);
        self.recycle(buffer);
        Ok(true)
    }

    fn has_sent_all(&mut self) -> Result<bool, LinkError> {
        // Each test of an operation costs time in MPI, so testing stops at the first incomplete
        // operation.
        while let Some(operation) = self.sending.front_mut() {
            let Some(buffer) = operation.complete()? else { return Ok(false) };
            self.sending.pop_front();
            self.recycle(buffer);
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.universe.take().into_iter().for_each(EndingUniverse::end);
    }
}

impl Drop for MpiLink {
    fn drop(&mut self) {
        self.universe.take().into_iter().for_each(EndingUniverse::abandon);
    }
}
