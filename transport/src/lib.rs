//! Messages between the *ranks* of one model. A rank computes a part of the model. It is a process,
//! or a group of threads in a process.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`local`] | the transport between threads of one process |
//! | [`linked`] | the transport between processes, over a link such as MPI |
//! | [`link`] | point-to-point operations of a message library |
//! | [`launch`] | the number that `mpirun` gave to this process |
//! | [`handshake`] | comparison of versions before a run |
//! | [`speed`] | measured speed of the links between ranks |
//!
//! A [`Transport`] has one operation, [`Transport::exchange`]. Sums and gathers consist of
//! exchanges, so their order and their bits do not depend on the transport. An exchange has two
//! halves, [`Transport::begin`] and [`Transport::finish`], between which a rank can compute.
//!
//! ```
//! use ixc_transport::{Incoming, Outgoing, Transport, local};
//!
//! std::thread::scope(|scope| {
//!     for transport in local::group(2) {
//!         scope.spawn(move || {
//!             let peer = 1 - transport.rank();
//!             let mut bytes = [0];
//!             transport
//!                 .exchange(
//!                     &[Outgoing { to: peer, bytes: &[transport.rank() as u8] }],
//!                     &mut [Incoming { from: peer, bytes: &mut bytes }],
//!                 )
//!                 .unwrap();
//!             assert_eq!(u32::from(bytes[0]), peer);
//!         });
//!     }
//! });
//! ```
//!
//! Invariant: messages of other ranks are untrusted. If a message does not have exactly the
//! expected length, the exchange fails.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod control;
mod frames;
pub mod handshake;
mod header;
pub mod launch;
pub mod link;
pub mod linked;
pub mod local;
mod membership;
#[cfg(test)]
mod memory;
pub mod speed;
mod sync;

use ixc_failure::Class;

use link::LinkError;

/// A message to another rank.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'b> {
    /// The rank that receives the message. It is not the sender.
    pub to: u32,
    /// Bytes of the message.
    pub bytes: &'b [u8],
}

/// A message from another rank.
#[derive(Debug)]
pub struct Incoming<'b> {
    /// The rank that sends the message. It is not the receiver.
    pub from: u32,
    /// Memory for the message. Its length must be that of the message.
    pub bytes: &'b mut [u8],
}

/// Memory for a message from another rank, owned by the transport while an exchange is open.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The rank that sends the message. It is not the receiver.
    pub from: u32,
    /// Memory for the message. Its length must be that of the message.
    pub bytes: Vec<u8>,
}

impl Receipt {
    /// Returns the message in the form that [`Transport::exchange`] takes.
    pub fn incoming(&mut self) -> Incoming<'_> {
        Incoming { from: self.from, bytes: &mut self.bytes }
    }
}

/// Connection of one rank to all others.
///
/// Messages from one rank to another arrive in the order in which they were sent. Threads of one
/// rank must not call [`Transport::exchange`], [`Transport::begin`] or [`Transport::finish`] at the
/// same time, because the order of the messages would be undefined.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Returns the number of this rank, which is less than [`Transport::ranks`].
    fn rank(&self) -> u32;

    /// Returns the number of ranks, at least 1.
    fn ranks(&self) -> u32;

    /// Sends and receives messages, and returns when all have arrived. All messages travel at the
    /// same time, so two ranks can send to each other without waiting for each other. Messages of
    /// open exchanges arrive first. While the other ranks are alive, there is no time limit,
    /// because a rank may wait for hours until the next request.
    ///
    /// # Errors
    /// Fails if another rank has ended or no longer answers, or if a message has an unexpected
    /// length.
    fn exchange(&self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), TransportError>;

    /// Begins an exchange and copies the messages. They travel while this rank computes, until
    /// [`Transport::finish`] is called. Several exchanges may be open at the same time.
    ///
    /// # Errors
    /// Fails if another rank has ended, or if a message cannot be sent.
    fn begin(&self, outgoing: &[Outgoing<'_>], incoming: Vec<Receipt>) -> Result<(), TransportError>;

    /// Finishes the oldest open exchange and returns its messages. Without an open exchange, it
    /// returns no messages.
    ///
    /// # Errors
    /// See [`Transport::exchange`].
    fn finish(&self) -> Result<Vec<Receipt>, TransportError>;

    /// Ends the group. Pending and later exchanges of all ranks then fail with
    /// [`TransportError::Ended`].
    fn end(&self, reason: &str);

    /// Returns whether a rank has reported the end of the group to the user.
    fn is_end_reported(&self) -> bool;

    /// Returns the reason why the group has ended, or `None` while its ranks can exchange messages.
    fn end_of_group(&self) -> Option<TransportError>;

    /// Leaves the group after the last exchange. Returns when all ranks leave, so that a rank that
    /// fails before then still ends the group.
    ///
    /// # Errors
    /// Fails if the group ends for another reason.
    fn close(&self) -> Result<(), TransportError> {
        Ok(())
    }
}

/// The reason why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// A message is addressed to its sender or to a rank that does not exist.
    #[error("rank {rank} exchanges a message with rank {peer}; expected another rank below {ranks}")]
    Peer {
        /// This rank.
        rank: u32,
        /// The rank to which the message is addressed.
        peer: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// A message has an unexpected length.
    #[error("found a message of {found} bytes from rank {from}; rank {rank} expected {expected} bytes")]
    Length {
        /// This rank.
        rank: u32,
        /// The rank that sent the message.
        from: u32,
        /// Length of the message in bytes.
        found: u64,
        /// Expected length in bytes.
        expected: u64,
    },
    /// A message is missing or was received twice.
    #[error("found message {found} of rank {from}; rank {rank} expected message {expected}")]
    Sequence {
        /// This rank.
        rank: u32,
        /// The rank that sent the message.
        from: u32,
        /// Number of the message.
        found: u64,
        /// The expected number.
        expected: u64,
    },
    /// A control message is not part of this protocol.
    #[error("rank {rank} found a malformed control message from rank {from}")]
    Control {
        /// This rank.
        rank: u32,
        /// The rank that sent the message.
        from: u32,
    },
    /// A rank has stopped sending heartbeats.
    #[error("rank {peer} has sent nothing to rank {rank} for {seconds} s: it hangs, or its machine or network failed")]
    Silent {
        /// This rank.
        rank: u32,
        /// The silent rank.
        peer: u32,
        /// Seconds since its last message.
        seconds: u64,
    },
    /// A call to the message library does not return.
    #[error("rank {rank}: the message library has not answered for {seconds} s")]
    Stuck {
        /// This rank.
        rank: u32,
        /// Seconds since the library last answered.
        seconds: u64,
    },
    /// The message library failed.
    #[error("rank {rank} cannot exchange messages")]
    Link {
        /// This rank.
        rank: u32,
        /// The reason.
        source: LinkError,
    },
    /// A rank ended the group.
    #[error("rank {by} ended the run: {reason}")]
    Ended {
        /// The rank that ended the group.
        by: u32,
        /// The reason that this rank gave.
        reason: String,
    },
}

impl TransportError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            TransportError::Peer { .. }
            | TransportError::Length { .. }
            | TransportError::Sequence { .. }
            | TransportError::Control { .. } => Class::Data,
            TransportError::Silent { .. }
            | TransportError::Stuck { .. }
            | TransportError::Link { .. }
            | TransportError::Ended { .. } => Class::Io,
        }
    }
}

/// Returns the text of an error and its causes, for use as a reason of [`Transport::end`].
pub fn reason(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.map(ToString::to_string) {
        // Some errors already contain the text of their cause.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Reason given by a rank that leaves the group while another rank still waits for it.
const FINISHED: &str = "it is finished";

/// Returns the reason given by a rank whose transport is dropped.
fn last_words() -> &'static str {
    if std::thread::panicking() { "it panicked; this is a bug" } else { FINISHED }
}

/// Checks that each message goes to or comes from another rank that exists. `senders` are the
/// senders of the incoming messages.
///
/// # Errors
/// Fails for the first message with a wrong sender or receiver.
pub fn check_peers(
    transport: &dyn Transport,
    outgoing: &[Outgoing<'_>],
    senders: impl IntoIterator<Item = u32>,
) -> Result<(), TransportError> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let receivers = outgoing.iter().map(|message| message.to);
    receivers
        .chain(senders)
        .find(|peer| *peer == rank || *peer >= ranks)
        .map_or(Ok(()), |peer| Err(TransportError::Peer { rank, peer, ranks }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_each_cause_once() {
        let call = "MPI_Isend";
        let source = LinkError::Library { call, message: "no route".to_owned() };
        let error = TransportError::Link { rank: 1, source };
        assert_eq!(reason(&error), "rank 1 cannot exchange messages: MPI_Isend failed: no route");
        let error = handshake::HandshakeError::from(error);
        assert_eq!(reason(&error), "rank 1 cannot exchange messages: MPI_Isend failed: no route");
    }
}
