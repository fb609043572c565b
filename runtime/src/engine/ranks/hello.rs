//! First messages of a group of ranks. Each rank sends its version, plan and options to rank 0,
//! which compares them with its own.

use std::hash::Hasher;

use ixc_transport::{Incoming, Outgoing, Transport};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::ranks::RanksError;
use crate::saved::Digest;

/// Bytes of the message from a rank to rank 0.
const HELLO_BYTES: usize = 64;
/// Bytes of the answer from rank 0.
const ANSWER_BYTES: usize = 4;
/// Byte range of [`Hello::min_rows`] in the message to rank 0.
const MIN_ROWS: std::ops::Range<usize> = 60..64;

/// Properties that must be the same on all ranks, except [`Hello::min_rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Version of plan files. It stands for the version of the program.
    pub(super) version: u32,
    /// Digest of the plans of all ranks and of their model files.
    pub(super) plan: Digest,
    pub(super) context: u32,
    pub(super) sequences: u32,
    pub(super) additions: u32,
    pub(super) exact: bool,
    /// Smallest number of rows on this rank: see
    /// [`Engine::min_rows`](crate::engine::Engine::min_rows). It is sent to rank 0, but not
    /// compared.
    pub(super) min_rows: u32,
}

/// Returns a digest of the ranks' plan digests, and of the lengths and checksums of the model
/// files.
pub(super) fn digest(plans: &[Digest], files: &[(u64, u32)]) -> Digest {
    let mut hasher = SipHasher13::new();
    plans.iter().for_each(|plan| hasher.write(&plan.0));
    for (bytes, crc) in files {
        hasher.write_u64(*bytes);
        hasher.write_u32(*crc);
    }
    Digest(hasher.finish128().as_bytes())
}

impl Hello {
    fn fields(&self) -> [u32; 5] {
        [self.version, self.context, self.sequences, self.additions, self.exact.into()]
    }

    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..16].copy_from_slice(&self.plan.0);
        for (field, to) in self.fields().into_iter().zip(bytes[16..].as_chunks_mut::<4>().0) {
            *to = field.to_le_bytes();
        }
        bytes[MIN_ROWS].copy_from_slice(&self.min_rows.to_le_bytes());
        bytes
    }

    /// Returns the name of the first property in which the message of another rank differs.
    fn difference(&self, other: &[u8; HELLO_BYTES]) -> Option<&'static str> {
        let own = self.encode();
        let names = ["version", "context", "number of sequences", "number of additions", "precision of batches"];
        let fields = own[16..].as_chunks::<4>().0.iter().zip(other[16..].as_chunks::<4>().0).zip(names);
        let field = fields.into_iter().find(|((own, other), _)| own != other).map(|(_, name)| name);
        field.or((own[..16] != other[..16]).then_some("plan or model file"))
    }

    /// Compares the properties of all ranks. Returns the largest [`Hello::min_rows`] of all ranks.
    ///
    /// # Errors
    /// [`RanksError::Differs`] on rank 0 if a property differs, and [`RanksError::Transport`] on
    /// any rank.
    pub(super) fn shake(&self, transport: &dyn Transport) -> Result<u32, RanksError> {
        if transport.rank() > 0 {
            transport.exchange(&[Outgoing { to: 0, bytes: &self.encode() }], &mut [])?;
            let mut answer = [0; ANSWER_BYTES];
            transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut answer }])?;
            return Ok(u32::from_le_bytes(answer));
        }
        let mut others = vec![[0; HELLO_BYTES]; transport.ranks().saturating_sub(1) as usize];
        let incoming = (1..).zip(&mut others).map(|(from, bytes)| Incoming { from, bytes });
        transport.exchange(&[], &mut incoming.collect::<Vec<_>>())?;
        let mut differences = (1..).zip(&others).filter_map(|(rank, other)| Some((rank, self.difference(other)?)));
        if let Some((rank, what)) = differences.next() {
            return Err(RanksError::Differs { rank, what });
        }
        let min_rows = |other: &[u8; HELLO_BYTES]| u32::from_le_bytes(other[MIN_ROWS].try_into().unwrap_or_default());
        let most = others.iter().map(min_rows).fold(self.min_rows, u32::max);
        let answer = most.to_le_bytes();
        let outgoing = (1..transport.ranks()).map(|to| Outgoing { to, bytes: &answer });
        transport.exchange(&outgoing.collect::<Vec<_>>(), &mut [])?;
        Ok(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_named() {
        let own = Hello {
            version: 1,
            plan: Digest([7; 16]),
            context: 2,
            sequences: 3,
            additions: 4,
            exact: false,
            min_rows: 6,
        };
        assert_eq!(own.difference(&Hello { min_rows: 7, ..own }.encode()), None);
        let others = [
            (Hello { version: 2, ..own }, "version"),
            (Hello { plan: Digest([8; 16]), ..own }, "plan or model file"),
            (Hello { context: 3, ..own }, "context"),
            (Hello { sequences: 4, ..own }, "number of sequences"),
            (Hello { additions: 5, ..own }, "number of additions"),
            (Hello { exact: true, ..own }, "precision of batches"),
        ];
        for (other, expected) in others {
            assert_eq!(own.difference(&other.encode()), Some(expected));
        }
    }
}
