//! Comparison of versions, plans and models before a run.
//!
//! Each rank introduces itself to rank 0, which compares all introductions with its own. A
//! difference ends all ranks, with one message of rank 0. An introduction has the same length in
//! all versions, so that ranks of different versions understand each other this far.

use ixc_failure::Class;

use crate::{Incoming, Outgoing, Transport, TransportError};

/// Version of the messages between ranks. Any change of them increments it.
pub const PROTOCOL: u32 = 1;

/// Bytes of an introduction, in all versions of the protocol.
const BYTES: usize = 256;
/// Bytes of a text in an introduction.
const TEXT: usize = 64;
/// First bytes of an introduction, in all versions of the protocol.
const MAGIC: [u8; 8] = *b"ixc rank";
/// Answer of rank 0 to an introduction that equals its own.
const WELCOME: [u8; 1] = [1];

/// Facts that are the same on all ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Version of the program. Longer texts than 64 bytes are cut.
    pub version: String,
    /// Digest of the plan file.
    pub plan: [u8; 32],
    /// Digest of the model files.
    pub model: [u8; 32],
    /// Number of ranks for which the plan was compiled.
    pub ranks: u32,
    /// Target of the plan. Longer texts than 64 bytes are cut.
    pub target: String,
}

/// The reason why a run with other ranks cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Ranks differ.
    #[error("rank {rank} has {subject} {found}; rank 0 has {expected}")]
    Difference {
        /// The rank that differs from rank 0.
        rank: u32,
        /// The fact that differs.
        subject: &'static str,
        /// The fact on that rank.
        found: String,
        /// The fact on rank 0.
        expected: String,
    },
    /// A rank introduces itself with other bytes.
    #[error("rank {rank} does not introduce itself as a rank of ixc")]
    Foreign {
        /// That rank.
        rank: u32,
    },
    /// The number of processes is not the plan's number of ranks.
    #[error("the run has {}, but the plan is for {}: start {expected} (mpirun -n {expected})", ranks(*found), ranks(*expected))]
    Ranks {
        /// Processes of the run.
        found: u32,
        /// Ranks of the plan.
        expected: u32,
    },
    /// The exchange of introductions failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// Returns a number of ranks as a phrase.
fn ranks(count: u32) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}

impl HandshakeError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            HandshakeError::Difference { .. } | HandshakeError::Foreign { .. } => Class::Data,
            HandshakeError::Ranks { .. } => Class::Usage,
            HandshakeError::Transport(error) => error.class(),
        }
    }
}

/// Compares the introductions of all ranks. Rank 0 returns a difference, and the other ranks
/// return the end of the group.
///
/// # Errors
/// Fails if a rank differs from rank 0, if the plan is for another number of ranks, or if a rank
/// ends.
pub fn introduce(transport: &dyn Transport, own: &Introduction) -> Result<(), HandshakeError> {
    let result = match transport.rank() {
        0 => welcome_others(transport, own),
        _ => introduce_to_first(transport, own),
    };
    result.inspect_err(|error| match error {
        HandshakeError::Transport(_) => {}
        HandshakeError::Difference { .. } | HandshakeError::Foreign { .. } | HandshakeError::Ranks { .. } => {
            transport.end(&error.to_string());
        }
    })
}

fn introduce_to_first(transport: &dyn Transport, own: &Introduction) -> Result<(), HandshakeError> {
    let (introduction, mut answer) = (own.encode(), [0]);
    transport.exchange(&[Outgoing { to: 0, bytes: &introduction }], &mut [Incoming { from: 0, bytes: &mut answer }])?;
    if answer == WELCOME { Ok(()) } else { Err(HandshakeError::Foreign { rank: 0 }) }
}

fn welcome_others(transport: &dyn Transport, own: &Introduction) -> Result<(), HandshakeError> {
    let others = 1..transport.ranks();
    let mut introductions = vec![[0; BYTES]; others.len()];
    let mut incoming: Vec<_> =
        others.clone().zip(&mut introductions).map(|(from, bytes)| Incoming { from, bytes }).collect();
    transport.exchange(&[], &mut incoming)?;
    for (rank, bytes) in others.clone().zip(&introductions) {
        own.compare(rank, bytes)?;
    }
    if own.ranks != transport.ranks() {
        return Err(HandshakeError::Ranks { found: transport.ranks(), expected: own.ranks });
    }
    let outgoing: Vec<_> = others.map(|to| Outgoing { to, bytes: &WELCOME }).collect();
    Ok(transport.exchange(&outgoing, &mut [])?)
}

/// Reads the fields of an introduction, one after the other.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn take<const N: usize>(&mut self) -> Option<&'b [u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(field)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// Returns a text, in which other bytes than those of UTF-8 are replaced.
    fn text(&mut self) -> Option<String> {
        let bytes = self.take::<TEXT>()?;
        Some(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
    }
}

/// Returns a text in the form that an introduction has: cut, and filled with zeros.
fn text_field(text: &str) -> [u8; TEXT] {
    let text = &text.as_bytes()[..text.floor_char_boundary(TEXT)];
    let mut field = [0; TEXT];
    field[..text.len()].copy_from_slice(text);
    field
}

/// Returns the first digits of a digest, which suffice to see a difference.
fn digits(digest: &[u8; 32]) -> String {
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Introduction {
    /// Returns the bytes of this introduction.
    fn encode(&self) -> [u8; BYTES] {
        let fields = [
            &MAGIC[..],
            &PROTOCOL.to_le_bytes(),
            &text_field(&self.version),
            &self.plan,
            &self.model,
            &self.ranks.to_le_bytes(),
            &text_field(&self.target),
        ]
        .concat();
        let mut bytes = [0; BYTES];
        bytes[..fields.len()].copy_from_slice(&fields);
        bytes
    }

    /// Compares the introduction of another rank with this one.
    fn compare(&self, rank: u32, bytes: &[u8; BYTES]) -> Result<(), HandshakeError> {
        let foreign = || HandshakeError::Foreign { rank };
        let mut fields = Fields(bytes);
        if fields.take() != Some(&MAGIC) {
            return Err(foreign());
        }
        let equal = |subject, found: String, expected: String| {
            if found == expected { Ok(()) } else { Err(HandshakeError::Difference { rank, subject, found, expected }) }
        };
        let protocol = fields.number().ok_or_else(foreign)?;
        equal("version of the messages", protocol.to_string(), PROTOCOL.to_string())?;
        let own_bytes = self.encode();
        let mut own = Fields(&own_bytes[MAGIC.len() + size_of_val(&PROTOCOL)..]);
        let mut both = || Some((fields.text()?, own.text()?));
        let (found, expected) = both().ok_or_else(foreign)?;
        equal("version", found, expected)?;
        for (subject, own) in [("plan", &self.plan), ("model", &self.model)] {
            let found = fields.take::<32>().ok_or_else(foreign)?;
            if found != own {
                let (found, expected) = (digits(found), digits(own));
                return Err(HandshakeError::Difference { rank, subject, found, expected });
            }
        }
        let found = fields.number().ok_or_else(foreign)?;
        equal("a plan for ranks:", found.to_string(), self.ranks.to_string())?;
        let found = fields.text().ok_or_else(foreign)?;
        let target = text_field(&self.target);
        let expected = Fields(&target).text().ok_or_else(foreign)?;
        equal("target", found, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local;

    fn introduction() -> Introduction {
        Introduction { version: "0.1.0".to_owned(), plan: [3; 32], model: [4; 32], ranks: 3, target: "avx2".to_owned() }
    }

    /// Returns the results of all ranks. Rank 2 introduces itself with `last`.
    fn introduce_all(last: &Introduction) -> Vec<Result<(), HandshakeError>> {
        let all = [introduction(), introduction(), last.clone()];
        std::thread::scope(|scope| {
            let ranks = local::group(3).into_iter().zip(all);
            let ranks = ranks.map(|(transport, own)| scope.spawn(move || (introduce(&transport, &own), transport)));
            let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
            results.into_iter().map(|(result, _)| result).collect()
        })
    }

    #[test]
    fn equal_ranks_are_welcome() {
        assert_eq!(introduce_all(&introduction()), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn each_difference_ends_all_ranks_with_one_message() {
        let other = |change: &dyn Fn(&mut Introduction)| {
            let mut other = introduction();
            change(&mut other);
            other
        };
        let cases = [
            (other(&|o| o.version = "0.2.0".into()), "rank 2 has version 0.2.0; rank 0 has 0.1.0"),
            (other(&|o| o.plan[0] = 1), "rank 2 has plan 010303030303; rank 0 has 030303030303"),
            (other(&|o| o.model[0] = 1), "rank 2 has model 010404040404; rank 0 has 040404040404"),
            (other(&|o| o.ranks = 4), "rank 2 has a plan for ranks: 4; rank 0 has 3"),
            (other(&|o| o.target = "amx".into()), "rank 2 has target amx; rank 0 has avx2"),
        ];
        for (last, message) in cases {
            let results = introduce_all(&last);
            assert_eq!(results[0].as_ref().unwrap_err().to_string(), message);
            let ended = TransportError::Ended { by: 0, reason: message.to_owned() };
            assert_eq!(results[1..], [Err(ended.clone().into()), Err(ended.into())]);
        }
    }

    #[test]
    fn another_number_of_processes_is_refused() {
        let [first, second] = local::group(2).try_into().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || introduce(&second, &introduction()));
            let found = introduce(&first, &introduction()).unwrap_err();
            assert_eq!(found, HandshakeError::Ranks { found: 2, expected: 3 });
        });
    }

    #[test]
    fn long_texts_are_cut() {
        let mut long = introduction();
        long.version = "é".repeat(100);
        assert_eq!(long.compare(1, &long.encode()), Ok(()));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let own = introduction();
        assert_eq!(own.compare(1, &[0; BYTES]), Err(HandshakeError::Foreign { rank: 1 }));
        let mut other_protocol = own.encode();
        other_protocol[MAGIC.len()] = 9;
        let error = own.compare(1, &other_protocol).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 has version of the messages 9; rank 0 has 1");
        let mut no_text = own.encode();
        no_text[12..76].fill(0xff);
        assert!(matches!(own.compare(1, &no_text), Err(HandshakeError::Difference { subject: "version", .. })));
    }
}
