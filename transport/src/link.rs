//! Point-to-point operations that a [`LinkedTransport`](crate::linked::LinkedTransport) needs from
//! a message library such as MPI. None of them waits.

use crate::TransportError;

/// A stream of messages between two ranks. Messages of one channel arrive in the order in which
/// they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Messages of [`Transport::exchange`](crate::Transport::exchange).
    Data,
    /// Heartbeats, and messages about the end of the group.
    Control,
}

/// Connection of this rank to all others.
pub trait Link: Send + std::fmt::Debug {
    /// Returns the number of this rank, which is less than [`Link::ranks`].
    fn rank(&self) -> u32;

    /// Returns the number of ranks, at least 1.
    fn ranks(&self) -> u32;

    /// Begins to send a message that consists of two parts, one after the other. Copies both parts.
    ///
    /// # Errors
    /// Fails if the message library fails.
    fn send(&mut self, to: u32, channel: Channel, head: &[u8], rest: &[u8]) -> Result<(), LinkError>;

    /// Passes the next message, from one rank or from any rank, to `take` together with its sender.
    /// Returns whether a message had arrived.
    ///
    /// # Errors
    /// Fails if the message has more than `limit` bytes, or if the message library fails.
    fn receive(
        &mut self,
        from: Option<u32>,
        channel: Channel,
        limit: usize,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, LinkError>;

    /// Returns whether all messages that this rank sends have left it.
    ///
    /// # Errors
    /// Fails if the message library fails.
    fn has_sent_all(&mut self) -> Result<bool, LinkError>;

    /// Ends the use of the message library. All ranks must have left the group before.
    fn close(&mut self);
}

/// The reason why an operation of a [`Link`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A message is longer than any valid message.
    #[error("a message of rank {from} has {bytes} bytes; expected at most {limit}")]
    Oversized {
        /// The rank that sent the message.
        from: u32,
        /// Length of the message in bytes.
        bytes: u64,
        /// Max length of a valid message in bytes.
        limit: u64,
    },
    /// The message library failed.
    #[error("{call} failed: {message}")]
    Library {
        /// The function that failed.
        call: &'static str,
        /// The error message of the library.
        message: String,
    },
}

impl LinkError {
    /// Returns the error of the transport of `rank`, whose link failed.
    pub fn of_rank(self, rank: u32) -> TransportError {
        TransportError::Link { rank, source: self }
    }
}
