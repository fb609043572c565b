//! The point-to-point operations that a [`LinkedTransport`](crate::linked::LinkedTransport) needs
//! of a message library, such as MPI. No operation waits.

use crate::TransportError;

/// A stream of messages between two ranks. Messages of one channel keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Messages of [`Transport::exchange`](crate::Transport::exchange).
    Data,
    /// Heartbeats, and the end of the group.
    Control,
}

/// Connection of this rank to all others.
pub trait Link: Send + std::fmt::Debug {
    /// Returns the number of this rank, below [`Link::ranks`].
    fn rank(&self) -> u32;

    /// Returns the number of ranks, at least 1.
    fn ranks(&self) -> u32;

    /// Begins to send a message, which is the concatenation of two parts. It copies them.
    ///
    /// # Errors
    /// Fails if the message library fails.
    fn send(&mut self, to: u32, channel: Channel, head: &[u8], rest: &[u8]) -> Result<(), LinkError>;

    /// Passes the next message of one rank, or of any rank, to `take`, together with its sender.
    /// Returns whether one had arrived.
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

    /// Returns whether all messages of this rank have left it.
    ///
    /// # Errors
    /// Fails if the message library fails.
    fn has_sent_all(&mut self) -> Result<bool, LinkError>;

    /// Ends the use of the message library, after all ranks have left the group.
    fn close(&mut self);
}

/// The reason why an operation of a [`Link`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A message is longer than any valid one.
    #[error("a message of rank {from} has {bytes} bytes; expected at most {limit}")]
    Oversized {
        /// The rank that sent the message.
        from: u32,
        /// Bytes of the message.
        bytes: u64,
        /// Most bytes of a valid message.
        limit: u64,
    },
    /// The message library failed.
    #[error("{call} failed: {message}")]
    Library {
        /// The function that failed.
        call: &'static str,
        /// The library's message.
        message: String,
    },
}

impl LinkError {
    /// Returns the error of a transport whose link failed.
    pub fn of_rank(self, rank: u32) -> TransportError {
        TransportError::Link { rank, source: self }
    }
}
