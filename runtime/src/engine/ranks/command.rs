//! Commands that rank 0 sends to the other ranks. Each command is an operation of the engine that
//! changes or reads sequences.
//!
//! The first message of a command has a fixed length and begins with the length of the encoded
//! command. If the command does not fit, a second message has its remaining bytes. The receiver
//! then knows the length of that message.
//!
//! Invariant: messages are untrusted. The memory for decoding is limited by the length of a message
//! ([`decode`]). The engine checks the arguments of a command like those of a caller.

use ixc_failure::Class;
use ixc_ir::plan::decode::{self, DecodeError};
use ixc_transport::{Incoming, Outgoing, Transport, TransportError};
use serde::{Deserialize, Serialize};

use crate::engine::step::{Addition, SequenceId};

/// Bytes of a command's first message. They suffice for a step of one token in each of a few
/// sequences.
const FIRST_BYTES: usize = 256;
/// Bytes of the command's length at the beginning of the first message.
const LENGTH_BYTES: usize = 4;
/// Maximum bytes of an encoded command. The largest possible step takes less.
const MAX_BYTES: usize = 1 << 26;

/// An operation that every rank executes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) enum Command {
    /// Runs a step.
    Step(Vec<OwnedAddition>),
    /// Adds a sequence; rank 0 has given it this number.
    Add { sequence: u32 },
    /// Removes a sequence.
    Remove { sequence: u32 },
    /// Truncates a sequence to `tokens` tokens. `left` is the number of tokens that rank 0 has
    /// afterwards.
    Truncate { sequence: u32, tokens: u32, left: u32 },
    /// Copies the first tokens of a sequence. `copied` is the number of tokens that rank 0 copied.
    Copy { from: u32, to: u32, tokens: u32, copied: u32 },
    /// Saves copies of the states of the first sequence at its present position.
    Save,
    /// Ends the run: the ranks stop waiting for commands.
    End,
    /// Sends the counters of each rank to rank 0.
    Count,
    /// Sends each rank's part of a sequence's state to rank 0, to be saved.
    SaveState { sequence: u32 },
    /// Receives each rank's part of a sequence's state from rank 0, and loads it.
    LoadState { sequence: u32 },
}

/// Tokens that a step adds to one sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine) struct OwnedAddition {
    pub(in crate::engine) sequence: u32,
    pub(in crate::engine) tokens: Vec<u32>,
    pub(in crate::engine) outputs: Vec<u32>,
}

impl Command {
    /// Returns the command that runs a step with these additions.
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

/// The reason why a command was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The transport failed before the message arrived.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The message announces a longer command than the limit.
    #[error("rank 0 sent a command of {found} bytes; the limit is {MAX_BYTES}")]
    Length {
        /// Length of the command that the message announces, in bytes.
        found: usize,
    },
    /// The message cannot be decoded as a command.
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
        // The message has a byte after a step without additions.
        assert!(matches!(message(3, 0), CommandError::Decode(_)));
    }
}
