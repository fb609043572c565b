//! Commands of rank 0 to the other ranks: the operations of its engine that change sequences.
//!
//! A message has a fixed length and begins with the length of the encoded command. The rest of a
//! long command follows in a second message, whose length is then known.
//!
//! Invariant: messages are untrusted. Their memory is limited by their length
//! ([`decode`]), and the engine checks a command like any caller's.

use ixc_failure::Class;
use ixc_ir::plan::decode::{self, DecodeError};
use ixc_transport::{Incoming, Outgoing, Transport, TransportError};
use serde::{Deserialize, Serialize};

use crate::engine::step::{Addition, SequenceId};

/// Bytes of the first message: a step of one token for some sequences fits.
const FIRST_BYTES: usize = 256;
/// Bytes of the length at its beginning.
const LENGTH_BYTES: usize = 4;
/// Max bytes of a command: a step of the most tokens takes less.
const MAX_BYTES: usize = 1 << 26;

/// An operation that all ranks do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) enum Command {
    /// Runs a step.
    Step(Vec<OwnedAddition>),
    /// Adds a sequence, which gets this number.
    Add { sequence: u32 },
    /// Removes a sequence.
    Remove { sequence: u32 },
    /// Truncates a sequence to `tokens`, after which rank 0 has `left`.
    Truncate { sequence: u32, tokens: u32, left: u32 },
    /// Copies the first tokens of a sequence, after which rank 0 has `copied`.
    Copy { from: u32, to: u32, tokens: u32, copied: u32 },
    /// Saves the present position of the first sequence.
    Save,
    /// Ends the run.
    End,
    /// Sends the counters of each rank to rank 0.
    Count,
    /// Sends each rank's part of a sequence to rank 0.
    SaveState { sequence: u32 },
    /// Loads each rank's part of a sequence, which rank 0 sends.
    LoadState { sequence: u32 },
}

/// Tokens that a step adds to a sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct OwnedAddition {
    pub(in crate::engine) sequence: u32,
    pub(in crate::engine) tokens: Vec<u32>,
    pub(in crate::engine) outputs: Vec<u32>,
}

impl Command {
    /// Returns the command for a step.
    pub(in crate::engine) fn step(additions: &[Addition<'_>]) -> Command {
        Command::Step(additions.iter().map(OwnedAddition::from_addition).collect())
    }
}

impl OwnedAddition {
    fn from_addition(addition: &Addition<'_>) -> OwnedAddition {
        OwnedAddition {
            sequence: addition.sequence.0,
            tokens: addition.tokens.to_vec(),
            outputs: addition.outputs.to_vec(),
        }
    }

    pub(in crate::engine) fn borrow(&self) -> Addition<'_> {
        Addition { sequence: SequenceId(self.sequence), tokens: &self.tokens, outputs: &self.outputs }
    }
}

/// The reason why a command did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The message did not arrive.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The message announces too many bytes.
    #[error("rank 0 sent a command of {found} bytes; the limit is {MAX_BYTES}")]
    Length {
        /// Length that the message announces, in bytes.
        found: usize,
    },
    /// The message is not a command.
    #[error("rank 0 sent a message that is not a command: {0}")]
    Decode(#[from] DecodeError),
}

impl CommandError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CommandError::Transport(error) => error.class(),
            CommandError::Length { .. } => Class::Data,
            CommandError::Decode(error) => error.class(),
        }
    }
}

/// Sends a command to all other ranks.
pub(in crate::engine) fn send(transport: &dyn Transport, command: &Command) -> Result<(), CommandError> {
    let encoded = postcard::to_allocvec(command).map_err(DecodeError::from)?;
    if encoded.len() > MAX_BYTES {
        return Err(CommandError::Length { found: encoded.len() });
    }
    let mut first = [0; FIRST_BYTES];
    first[..LENGTH_BYTES].copy_from_slice(&(encoded.len() as u32).to_le_bytes());
    let (begin, rest) = encoded.split_at(encoded.len().min(FIRST_BYTES - LENGTH_BYTES));
    first[LENGTH_BYTES..][..begin.len()].copy_from_slice(begin);
    for bytes in [&first[..], rest] {
        if !bytes.is_empty() {
            let outgoing: Vec<Outgoing<'_>> = (1..transport.ranks()).map(|to| Outgoing { to, bytes }).collect();
            transport.exchange(&outgoing, &mut [])?;
        }
    }
    Ok(())
}

/// Receives a command from rank 0.
pub(in crate::engine) fn receive(transport: &dyn Transport) -> Result<Command, CommandError> {
    let mut first = [0; FIRST_BYTES];
    transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut first }])?;
    let (length, begin) = first.split_at(LENGTH_BYTES);
    let found = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
    if found > MAX_BYTES {
        return Err(CommandError::Length { found });
    }
    let mut encoded = begin[..found.min(begin.len())].to_vec();
    if found > begin.len() {
        let mut rest = vec![0; found - begin.len()];
        transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut rest }])?;
        encoded.append(&mut rest);
    }
    match decode::take_from_bytes(&encoded)? {
        (command, []) => Ok(command),
        _ => Err(DecodeError::Encoding(postcard::Error::SerdeDeCustom).into()),
    }
}

#[cfg(test)]
mod tests {
    use ixc_transport::local;

    use super::*;

    #[test]
    fn commands_of_any_length_arrive() {
        let transports = local::group(2);
        for tokens in [1, 200, 251, 252, 4000] {
            let addition = OwnedAddition { sequence: 3, tokens: vec![7; tokens], outputs: vec![0] };
            let command = Command::Step(vec![addition]);
            send(&transports[0], &command).unwrap();
            assert_eq!(receive(&transports[1]), Ok(command));
        }
    }

    #[test]
    fn messages_that_are_no_commands_are_refused() {
        let transports = local::group(2);
        let message = |length: u32, byte: u8| {
            let mut first = [byte; FIRST_BYTES];
            first[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
            transports[0].exchange(&[Outgoing { to: 1, bytes: &first }], &mut []).unwrap();
            receive(&transports[1]).unwrap_err()
        };
        assert!(matches!(message(u32::MAX, 0), CommandError::Length { .. }));
        assert!(matches!(message(1, 99), CommandError::Decode(_)));
        assert!(matches!(message(0, 0), CommandError::Decode(_)));
        // A step without additions, and a byte after it.
        assert!(matches!(message(3, 0), CommandError::Decode(_)));
    }
}
