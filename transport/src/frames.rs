//! Transmission of a link's messages in frames, and the exchanges that wait for them.
//!
//! A message is divided into frames of up to [`FRAME`] bytes. The frames from one rank to another
//! have consecutive numbers across all messages. Messages of other ranks are untrusted, so each
//! header is checked.

use std::collections::VecDeque;

use crate::header::Header;
use crate::link::{Channel, Link, LinkError};
use crate::membership::Membership;
use crate::sync::Instant;
use crate::{Incoming, Outgoing, Receipt, TransportError};

/// Max bytes of a frame without its header.
pub(crate) const FRAME: usize = 16 << 20;

/// The link and the membership, which only one thread at a time can use.
#[derive(Debug)]
pub(crate) struct State<L> {
    pub link: L,
    pub membership: Membership,
    /// Number of frames sent to each rank.
    sent: Vec<u64>,
    /// Number of frames received from each rank.
    received: Vec<u64>,
    /// Open exchanges, the oldest first. An exchange receives its messages only after those of all
    /// older exchanges.
    pub open: VecDeque<OpenExchange>,
}

/// An exchange that has begun and is not finished.
#[derive(Debug)]
pub(crate) struct OpenExchange {
    incoming: Vec<Receipt>,
    pending: Pending,
}

/// Progress of the messages that an exchange receives.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Number of bytes of each message that have arrived, or `None` if the message is complete.
    arrived: Vec<Option<usize>>,
}

impl Pending {
    pub fn new(messages: usize) -> Pending {
        Pending { arrived: vec![Some(0); messages] }
    }

    fn is_empty(&self) -> bool {
        self.arrived.iter().all(Option::is_none)
    }

    /// Returns the senders of incomplete messages. `all` contains the senders of all messages.
    pub fn senders(&self, all: impl Iterator<Item = u32>) -> impl Iterator<Item = u32> {
        self.arrived.iter().zip(all).filter(|(arrived, _)| arrived.is_some()).map(|(_, from)| from)
    }

    /// Returns how many bytes of a message have arrived, if the next frame of its sender belongs to
    /// it.
    fn next_of(&self, place: usize, incoming: &[Incoming<'_>]) -> Option<usize> {
        let from = incoming[place].from;
        let arrived = self.arrived[place]?;
        let waits = (0..place).any(|other| self.arrived[other].is_some() && incoming[other].from == from);
        (!waits).then_some(arrived)
    }
}

impl OpenExchange {
    pub fn new(incoming: Vec<Receipt>) -> OpenExchange {
        let pending = Pending::new(incoming.len());
        OpenExchange { incoming, pending }
    }

    /// Returns the senders of incomplete messages.
    pub fn senders(&self) -> Vec<u32> {
        self.pending.senders(self.incoming.iter().map(|receipt| receipt.from)).collect()
    }

    /// Returns the messages, which must all have arrived.
    pub fn into_messages(self) -> Vec<Receipt> {
        self.incoming
    }
}

impl<L: Link> State<L> {
    pub fn new(link: L, membership: Membership) -> State<L> {
        let frames = vec![0; link.ranks() as usize];
        State { link, membership, sent: frames.clone(), received: frames, open: VecDeque::new() }
    }

    /// Sends a message, divided into frames.
    pub fn send(&mut self, message: &Outgoing<'_>) -> Result<(), LinkError> {
        let sent = &mut self.sent[message.to as usize];
        let message_bytes = message.bytes.len() as u64;
        // An empty message also has one frame.
        let mut rest = message.bytes;
        loop {
            let (frame, later) = rest.split_at(rest.len().min(FRAME));
            let header = Header { sequence: *sent, message_bytes };
            self.link.send(message.to, Channel::Data, &header.encode(), frame)?;
            *sent += 1;
            rest = later;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Receives the next frame of a message, after the `done` bytes that have arrived before.
    /// Returns the number of bytes in the frame, or `None` if it has not arrived.
    fn receive(&mut self, rank: u32, message: &mut Incoming<'_>, done: usize) -> Result<Option<usize>, TransportError> {
        let (from, expected) = (message.from, message.bytes.len());
        let room = &mut message.bytes[done..];
        let frame_bytes = room.len().min(FRAME);
        let sequence = self.received[from as usize];
        let length = |found| TransportError::Length { rank, from, found, expected: expected as u64 };
        let mut checked = Ok(());
        let mut take = |_, frame: &[u8]| {
            checked = match Header::split(frame) {
                None => Err(length(0)),
                Some((header, _)) if header.sequence != sequence => {
                    Err(TransportError::Sequence { rank, from, found: header.sequence, expected: sequence })
                }
                Some((header, _)) if header.message_bytes != expected as u64 => Err(length(header.message_bytes)),
                Some((_, contents)) if contents.len() != frame_bytes => Err(length((done + contents.len()) as u64)),
                Some((_, contents)) => {
                    room[..frame_bytes].copy_from_slice(contents);
                    Ok(())
                }
            };
        };
        let limit = Header::BYTES + frame_bytes;
        match self.link.receive(Some(from), Channel::Data, limit, &mut take) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(LinkError::Oversized { bytes, .. }) => return Err(length(bytes.saturating_sub(Header::BYTES as u64))),
            Err(error) => return Err(error.of_rank(rank)),
        }
        checked?;
        self.received[from as usize] += 1;
        Ok(Some(frame_bytes))
    }

    /// Receives those frames of open exchanges that have arrived.
    pub fn receive_open(&mut self, rank: u32) -> Result<(), TransportError> {
        let mut open = std::mem::take(&mut self.open);
        let mut received = Ok(());
        for exchange in &mut open {
            let mut incoming: Vec<Incoming<'_>> = exchange.incoming.iter_mut().map(Receipt::incoming).collect();
            received = self.receive_all(rank, &mut incoming, &mut exchange.pending);
            if received.is_err() || !exchange.pending.is_empty() {
                break;
            }
        }
        self.open = open;
        received
    }

    /// Receives those frames of open exchanges that have arrived, and continues to send messages.
    pub fn move_open(&mut self, rank: u32) -> Result<(), TransportError> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.receive_open(rank)?;
        self.link.has_sent_all().map(drop).map_err(|error| error.of_rank(rank))
    }

    /// Receives those frames of an exchange that have arrived.
    pub fn receive_all(
        &mut self,
        rank: u32,
        incoming: &mut [Incoming<'_>],
        pending: &mut Pending,
    ) -> Result<(), TransportError> {
        for place in 0..incoming.len() {
            while let Some(before) = pending.next_of(place, incoming) {
                let message = &mut incoming[place];
                let Some(bytes) = self.receive(rank, message, before)? else { break };
                let arrived = before + bytes;
                pending.arrived[place] = (arrived < message.bytes.len()).then_some(arrived);
                self.membership.heard(message.from, Instant::now());
            }
        }
        Ok(())
    }
}
