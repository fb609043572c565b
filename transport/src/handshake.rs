//! Comparison of the program's versions on all ranks before a run.
//!
//! Each rank sends an introduction to rank 0, which compares all of them with its own. If one
//! differs, rank 0 reports it and ends all ranks. An introduction has the same length in all
//! versions, so even ranks of different versions can compare their introductions. Engines compare
//! plans, models and options later, when they have read them.

use ixc_failure::Class;

use crate::{Incoming, Outgoing, Transport, TransportError};

/// Version of the protocol between ranks. It is increased whenever messages change.
pub const PROTOCOL: u32 = 2;

/// Length of an introduction in bytes, in all versions of the protocol.
const BYTES: usize = 256;
/// First bytes of an introduction, in all versions of the protocol.
const MAGIC: [u8; 8] = *b"ixc rank";
/// Position of the protocol's version in an introduction.
const PROTOCOL_PLACE: std::ops::Range<usize> = MAGIC.len()..MAGIC.len() + size_of::<u32>();
/// Position of the program's version in an introduction. Longer versions are truncated.
const VERSION_PLACE: std::ops::Range<usize> = PROTOCOL_PLACE.end..BYTES;
/// Answer of rank 0 to an introduction that is equal to its own.
const WELCOME: [u8; 1] = [1];

/// The reason why a run with other ranks cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A rank differs from rank 0.
    #[error("rank {rank} has {subject} {found}; rank 0 has {expected}")]
    Difference {
        /// The rank that differs from rank 0.
        rank: u32,
        /// The property that differs.
        subject: &'static str,
        /// The value of the property on that rank.
        found: String,
        /// The value of the property on rank 0.
        expected: String,
    },
    /// A rank has sent bytes that are no introduction.
    #[error("rank {rank} did not send the greeting of an ixc rank; start ixc on all ranks")]
    Foreign {
        /// The sending rank.
        rank: u32,
    },
    /// Introductions could not be exchanged.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl HandshakeError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            HandshakeError::Difference { .. } | HandshakeError::Foreign { .. } => Class::Data,
            HandshakeError::Transport(error) => error.class(),
        }
    }
}

/// Compares the program's versions on all ranks. If one differs, rank 0 returns an error. The other
/// ranks wait for the answer of rank 0. If rank 0 calls [`Transport::end`], they return the end of
/// the group.
///
/// # Errors
/// Fails if a rank differs from rank 0, or if a rank ends.
pub fn introduce(transport: &dyn Transport, version: &str) -> Result<(), HandshakeError> {
    let own = introduction(version);
    if transport.rank() == 0 {
        return welcome_others(transport, &own);
    }
    let mut answer = [0];
    transport.exchange(&[Outgoing { to: 0, bytes: &own }], &mut [Incoming { from: 0, bytes: &mut answer }])?;
    if answer == WELCOME { Ok(()) } else { Err(HandshakeError::Foreign { rank: 0 }) }
}

fn welcome_others(transport: &dyn Transport, own: &[u8; BYTES]) -> Result<(), HandshakeError> {
    let others = 1..transport.ranks();
    let mut introductions = vec![[0; BYTES]; others.len()];
    let mut incoming: Vec<_> =
        others.clone().zip(&mut introductions).map(|(from, bytes)| Incoming { from, bytes }).collect();
    transport.exchange(&[], &mut incoming)?;
    for (rank, found) in others.clone().zip(&introductions) {
        compare(rank, found, own)?;
    }
    let outgoing: Vec<_> = others.map(|to| Outgoing { to, bytes: &WELCOME }).collect();
    Ok(transport.exchange(&outgoing, &mut [])?)
}

/// Returns the introduction of this rank.
fn introduction(version: &str) -> [u8; BYTES] {
    let version = &version.as_bytes()[..version.floor_char_boundary(VERSION_PLACE.len())];
    let mut bytes = [0; BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[PROTOCOL_PLACE].copy_from_slice(&PROTOCOL.to_le_bytes());
    bytes[VERSION_PLACE][..version.len()].copy_from_slice(version);
    bytes
}

/// Compares the introduction of a rank with that of rank 0.
fn compare(rank: u32, found: &[u8; BYTES], own: &[u8; BYTES]) -> Result<(), HandshakeError> {
    if !found.starts_with(&MAGIC) {
        return Err(HandshakeError::Foreign { rank });
    }
    let number = |bytes: &[u8; BYTES]| {
        let digits = bytes[PROTOCOL_PLACE].iter().rev();
        digits.fold(0, |number: u32, byte| number << 8 | u32::from(*byte)).to_string()
    };
    // Bytes that are not valid UTF-8 are replaced.
    let text = |bytes: &[u8; BYTES]| String::from_utf8_lossy(&bytes[VERSION_PLACE]).trim_end_matches('\0').to_owned();
    let facts = [("messages of version", number(found), number(own)), ("version", text(found), text(own))];
    match facts.into_iter().find(|(_, found, expected)| found != expected) {
        None => Ok(()),
        Some((subject, found, expected)) => Err(HandshakeError::Difference { rank, subject, found, expected }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;

    /// Returns the results of three ranks. The last rank has the version `last`.
    fn introduce_all(last: &str) -> Vec<Result<(), HandshakeError>> {
        let begin = |(transport, version): (local::LocalTransport, String)| {
            let result = introduce(&transport, &version);
            if let Err(error) = &result {
                transport.end(&error.to_string());
            }
            (result, transport)
        };
        std::thread::scope(|scope| {
            let versions = ["0.1.0", "0.1.0", last].map(str::to_owned);
            let ranks = local::group(3).into_iter().zip(versions);
            let ranks: Vec<_> = ranks.map(|rank| scope.spawn(move || begin(rank))).collect();
            // If a transport were dropped earlier, the group would end.
            let results: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            results.into_iter().map(|(result, _)| result).collect()
        })
    }

    #[test]
    fn equal_ranks_are_welcome() {
        assert_eq!(introduce_all("0.1.0"), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn another_version_ends_all_ranks_with_one_message() {
        let message = "rank 2 has version 0.2.0; rank 0 has 0.1.0";
        let results = introduce_all("0.2.0");
        assert_eq!(results[0].as_ref().unwrap_err().to_string(), message);
        let ended = TransportError::Ended { by: 0, reason: message.to_owned() };
        assert_eq!(results[1..], [Err(ended.clone().into()), Err(ended.into())]);
    }

    #[test]
    fn long_versions_are_cut_and_foreign_bytes_refused() {
        let own = introduction(&"é".repeat(BYTES));
        assert_eq!(compare(1, &own, &own), Ok(()));
        assert_eq!(compare(1, &[0; BYTES], &own), Err(HandshakeError::Foreign { rank: 1 }));
        let mut other_protocol = own;
        other_protocol[PROTOCOL_PLACE.start] = 9;
        let error = compare(1, &other_protocol, &own).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 has messages of version 9; rank 0 has 2");
        let mut no_text = own;
        no_text[VERSION_PLACE].fill(0xff);
        assert!(matches!(compare(1, &no_text, &own), Err(HandshakeError::Difference { subject: "version", .. })));
    }
}
