//! Saved sequences of a model on several ranks: the parts of all ranks in one file, which rank 0
//! writes and reads.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | `IXSTATE` and a newline |
//! | 8..12 | [`RANKS_VERSION`] |
//! | 12..16 | number of ranks |
//! | | bytes of each rank's part, 8 bytes each, and the CRC-32 of these and of the number |
//! | | each rank's part, which is a saved state of its plan |
//!
//! The parts of other ranks have no text: their tokens are 0. A part travels in messages of at most
//! [`CHUNK`] bytes, and the receiver asks for each one, so that no rank holds a whole part.
//!
//! Invariant: reports and lengths of other ranks are untrusted. If a rank cannot load its part, the
//! sequence is empty on all ranks.

use std::io::{self, Read, Write};
use std::sync::Arc;

use ixc_transport::{Incoming, Outgoing, Transport, TransportError, reason};

use super::{LoadedSequence, MAGIC, SavedError, SavedHeader, compare_crc};
use crate::engine::ranks::command::Command;
use crate::engine::sample::SamplerState;
use crate::engine::{Engine, SequenceId};

/// Version of a file with the parts of several ranks. The parts have a version of their own.
pub(super) const RANKS_VERSION: u32 = 1 << 16 | 1;
/// Bytes before the lengths of the parts.
const BEGIN_BYTES: usize = 16;
/// Place of the number of ranks.
const RANKS_PLACE: usize = 12;
/// Max bytes of a message with a piece of a part.
const CHUNK: usize = 1 << 20;
/// Message that requests the next piece.
const NEXT: [u8; 1] = [1];
/// Max bytes of a part.
const MAX_PART: u64 = 1 << 44;
/// Bytes of a report.
const REPORT_BYTES: usize = 256;
/// Place of the reason in a report.
const REASON_PLACE: std::ops::Range<usize> = 16..REPORT_BYTES;

/// Report of a rank to rank 0: a number, or the reason of a failure.
struct Report(Result<u64, String>);

impl Report {
    fn encode(&self) -> [u8; REPORT_BYTES] {
        let mut bytes = [0; REPORT_BYTES];
        match &self.0 {
            Ok(number) => bytes[8..16].copy_from_slice(&number.to_le_bytes()),
            Err(reason) => {
                let end = reason.floor_char_boundary(REASON_PLACE.len());
                bytes[0] = 1;
                bytes[REASON_PLACE][..end].copy_from_slice(&reason.as_bytes()[..end]);
            }
        }
        bytes
    }

    fn decode(bytes: &[u8; REPORT_BYTES]) -> Report {
        if bytes[0] == 0 {
            return Report(Ok(u64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]))));
        }
        let reason = String::from_utf8_lossy(&bytes[REASON_PLACE]);
        Report(Err(reason.trim_end_matches('\0').to_owned()))
    }

    fn send(&self, transport: &dyn Transport) -> Result<(), TransportError> {
        transport.exchange(&[Outgoing { to: 0, bytes: &self.encode() }], &mut [])
    }

    /// Receives the number of another rank.
    fn receive(transport: &dyn Transport, from: u32) -> Result<u64, SavedError> {
        let mut bytes = [0; REPORT_BYTES];
        transport.exchange(&[], &mut [Incoming { from, bytes: &mut bytes }])?;
        Report::decode(&bytes).0.map_err(|reason| SavedError::Rank { rank: from, reason })
    }
}

/// A part that this rank sends. Only as many bytes may be written as were announced.
struct PartWriter<'t> {
    transport: &'t dyn Transport,
    to: u32,
    piece: Vec<u8>,
    /// Bytes that are not written yet.
    rest: u64,
}

impl<'t> PartWriter<'t> {
    fn new(transport: &'t dyn Transport, to: u32, bytes: u64) -> PartWriter<'t> {
        PartWriter { transport, to, piece: Vec::new(), rest: bytes }
    }

    /// Sends the piece when the receiver asks for it.
    fn send(&mut self) -> Result<(), TransportError> {
        let (peer, mut next) = (self.to, [0]);
        self.transport.exchange(&[], &mut [Incoming { from: peer, bytes: &mut next }])?;
        self.transport.exchange(&[Outgoing { to: peer, bytes: &self.piece }], &mut [])?;
        self.piece.clear();
        Ok(())
    }

    /// Adds bytes, and sends a complete piece. Returns the number of bytes taken.
    fn add(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        let room = (CHUNK - self.piece.len()).min(usize::try_from(self.rest).unwrap_or(usize::MAX));
        let taken = bytes.len().min(room);
        self.piece.extend_from_slice(&bytes[..taken]);
        self.rest -= taken as u64;
        if taken > 0 && (self.piece.len() == CHUNK || self.rest == 0) {
            self.send()?;
        }
        Ok(taken)
    }

    /// Sends 0 in place of the bytes that were not written.
    fn fill(&mut self) -> Result<(), TransportError> {
        while self.rest > 0 {
            self.add(&[0; 4096])?;
        }
        Ok(())
    }
}

impl Write for PartWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part that arrives from another rank.
struct PartReader<'t> {
    transport: &'t dyn Transport,
    from: u32,
    piece: Vec<u8>,
    /// Bytes of the piece that have been read.
    read: usize,
    /// Bytes of the rank's part after this piece.
    rest: u64,
}

impl<'t> PartReader<'t> {
    fn new(transport: &'t dyn Transport, from: u32, bytes: u64) -> PartReader<'t> {
        PartReader { transport, from, piece: Vec::new(), read: 0, rest: bytes }
    }

    /// Receives the next piece.
    fn receive(&mut self) -> Result<(), TransportError> {
        let bytes = self.rest.min(CHUNK as u64);
        self.piece.resize(bytes as usize, 0);
        let next = [Outgoing { to: self.from, bytes: &NEXT }];
        self.transport.exchange(&next, &mut [Incoming { from: self.from, bytes: &mut self.piece }])?;
        (self.read, self.rest) = (0, self.rest - bytes);
        Ok(())
    }

    /// Reads the rest of the part and discards it.
    fn drain(&mut self) -> Result<(), TransportError> {
        while self.rest > 0 {
            self.receive()?;
        }
        Ok(())
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.read == self.piece.len() && self.rest > 0 {
            self.receive().map_err(io::Error::other)?;
        }
        let taken = to.len().min(self.piece.len() - self.read);
        to[..taken].copy_from_slice(&self.piece[self.read..][..taken]);
        self.read += taken;
        Ok(taken)
    }
}

/// Returns the bytes before the first part.
fn begin_bytes(ranks: u32) -> u64 {
    (BEGIN_BYTES + size_of::<u32>()) as u64 + u64::from(ranks) * size_of::<u64>() as u64
}

/// Returns the bytes at the beginning of a file.
fn encode_lengths(lengths: &[u64]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &RANKS_VERSION.to_le_bytes(), &(lengths.len() as u32).to_le_bytes()].concat();
    bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let crc = crc32fast::hash(&bytes[RANKS_PLACE..]);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Reads the lengths of all parts of a file of `bytes` bytes.
fn read_lengths(input: &mut dyn Read, bytes: u64, expected: u32) -> Result<Vec<u64>, SavedError> {
    let begin_bytes = begin_bytes(expected);
    if bytes < begin_bytes {
        return Err(SavedError::Length { found: bytes, expected: begin_bytes });
    }
    let mut begin = [0; BEGIN_BYTES];
    input.read_exact(&mut begin)?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| begin[at + i]));
    let magic = std::array::from_fn(|i| begin[i]);
    if magic != MAGIC {
        return Err(SavedError::Magic { found: magic, expected: MAGIC });
    }
    let found = if word(MAGIC.len()) == RANKS_VERSION { word(RANKS_PLACE) } else { 1 };
    if found != expected {
        return Err(SavedError::Ranks { found, expected });
    }
    let mut lengths = vec![0; 8 * expected as usize];
    let mut crc = [0; 4];
    input.read_exact(&mut lengths)?;
    input.read_exact(&mut crc)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&begin[RANKS_PLACE..]);
    hasher.update(&lengths);
    compare_crc("the lengths of its parts", hasher.finalize(), u32::from_le_bytes(crc))?;
    let lengths: Vec<u64> = lengths.as_chunks::<8>().0.iter().map(|length| u64::from_le_bytes(*length)).collect();
    let sum = lengths.iter().try_fold(begin_bytes, |sum, length| sum.checked_add(*length));
    if sum != Some(bytes) {
        return Err(SavedError::Length { found: bytes, expected: sum.unwrap_or(u64::MAX) });
    }
    Ok(lengths)
}

impl Engine {
    /// Writes a whole sequence. `tokens` are the tokens of the sequence, then tokens that are not
    /// computed yet, such as the last drawn one. Returns the number of bytes written.
    ///
    /// # Errors
    /// Fails if the sequence does not exist or is empty, if `tokens` are fewer than it holds, or if
    /// `out` fails.
    pub fn save_state(
        &self,
        id: SequenceId,
        tokens: &[u32],
        sampler: Option<&SamplerState>,
        out: &mut dyn Write,
    ) -> Result<u64, SavedError> {
        let facts = self.whole_facts(id, tokens, sampler)?;
        match self.transport_of_ranks()? {
            None => {
                self.write_part(id, &facts, out)?;
                Ok(facts.bytes(self.states().0).unwrap_or(u64::MAX))
            }
            Some(transport) => self.save_parts(&*transport, id, &facts, out),
        }
    }

    /// Restores a saved sequence from `input`, which has `bytes` bytes.
    ///
    /// # Errors
    /// See [`SavedError`]. The sequence is then empty. It is unchanged if the saved state is of
    /// another model, or damaged before its cache slots.
    pub fn load_state(
        &mut self,
        id: SequenceId,
        input: &mut dyn Read,
        bytes: u64,
    ) -> Result<LoadedSequence, SavedError> {
        match self.transport_of_ranks()? {
            None => self.load_part(id, input, bytes),
            Some(transport) => self.load_parts(&*transport, id, input, bytes),
        }
    }

    /// Returns the connection to the other ranks; `None` for a whole model.
    fn transport_of_ranks(&self) -> Result<Option<Arc<dyn Transport>>, SavedError> {
        let member = self.ranks.as_ref().filter(|_| self.is_divided());
        match member.map(|member| Arc::clone(&member.transport)) {
            Some(transport) if transport.rank() > 0 => Err(SavedError::NotFirst { rank: transport.rank() }),
            transport => Ok(transport),
        }
    }

    /// Sends a command to the other ranks.
    fn command(&self, command: Command) -> Result<(), SavedError> {
        let told = self.ranks.as_ref().map_or(Ok(()), |member| member.tell(|| command));
        told.map_err(|error| SavedError::Io { source: io::Error::other(error) })
    }

    /// Writes the parts of all ranks.
    fn save_parts(
        &self,
        transport: &dyn Transport,
        id: SequenceId,
        facts: &SavedHeader,
        out: &mut dyn Write,
    ) -> Result<u64, SavedError> {
        self.command(Command::SaveState { sequence: id.0 })?;
        let announced: Vec<Result<u64, SavedError>> =
            (1..transport.ranks()).map(|from| Report::receive(transport, from)).collect();
        let (mut lengths, mut saved) = (vec![facts.bytes(self.states().0).unwrap_or(u64::MAX)], Ok(()));
        for length in announced {
            lengths.push(*length.as_ref().unwrap_or(&0));
            saved = saved.and(length.and_then(check_length));
        }
        saved = saved.and_then(|()| {
            out.write_all(&encode_lengths(&lengths))?;
            self.write_part(id, facts, out)
        });
        for (from, &length) in (1..).zip(&lengths[1..]) {
            let mut part = PartReader::new(transport, from, length.min(MAX_PART));
            saved = saved.and_then(|()| Ok(io::copy(&mut part, out).map(drop)?));
            // Even if an earlier part could not be written, the rank sends its part.
            part.drain()?;
        }
        saved.map(|()| lengths.iter().fold(begin_bytes(transport.ranks()), |sum, length| sum.saturating_add(*length)))
    }

    /// Reads a saved sequence: loads the part of rank 0, and sends the other ranks their parts.
    fn load_parts(
        &mut self,
        transport: &dyn Transport,
        id: SequenceId,
        input: &mut dyn Read,
        bytes: u64,
    ) -> Result<LoadedSequence, SavedError> {
        let lengths = read_lengths(input, bytes, transport.ranks())?;
        let own = lengths.first().copied().unwrap_or(0);
        let loaded = self.load_part(id, &mut (&mut *input).take(own), own);
        let loaded = loaded.and_then(|loaded| self.send_parts(transport, id, input, &lengths).map(|()| loaded));
        if loaded.is_err() && self.sequence(id).is_some_and(|sequence| sequence.position() == 0) {
            // If the group has ended, the next step fails.
            let _ = self.command(Command::Truncate { sequence: id.0, tokens: 0, left: 0 });
        }
        loaded
    }

    /// Sends each other rank its part of a saved sequence, and waits until they have loaded these
    /// parts. After a failure, the loaded sequence is empty.
    fn send_parts(
        &mut self,
        transport: &dyn Transport,
        id: SequenceId,
        input: &mut dyn Read,
        lengths: &[u64],
    ) -> Result<(), SavedError> {
        self.command(Command::LoadState { sequence: id.0 })?;
        let mut loaded = Ok(());
        for (to, &length) in (1..).zip(lengths.iter().skip(1)) {
            transport.exchange(&[Outgoing { to, bytes: &length.to_le_bytes() }], &mut [])?;
            let mut part = PartWriter::new(transport, to, length);
            let copied = io::copy(&mut (&mut *input).take(length), &mut part);
            loaded = loaded.and(copied.map(drop).map_err(SavedError::from));
            // The rank refuses other bytes than those that were saved.
            part.fill()?;
        }
        let expected = self.sequence(id).map_or(0, |sequence| sequence.position());
        for from in 1..transport.ranks() {
            let found = Report::receive(transport, from);
            loaded = loaded.and(found.and_then(|found| match found == u64::from(expected) {
                true => Ok(()),
                false => {
                    let what = format!("positions of rank {from}");
                    Err(SavedError::Number { what, found, expected: expected.to_string() })
                }
            }));
        }
        if loaded.is_err() {
            self.empty(id);
        }
        loaded
    }

    /// Sends this rank's part of a sequence to rank 0.
    pub(in crate::engine) fn send_part(&self, transport: &dyn Transport, id: SequenceId) -> Result<(), TransportError> {
        let tokens = vec![0; self.sequence(id).map_or(0, |sequence| sequence.position()) as usize];
        let facts = self.whole_facts(id, &tokens, None);
        let length = |facts: &SavedHeader| facts.bytes(self.states().0).unwrap_or(u64::MAX);
        Report(facts.as_ref().map(length).map_err(|error| reason(error))).send(transport)?;
        let Ok(facts) = facts else { return Ok(()) };
        let mut part = PartWriter::new(transport, 0, length(&facts));
        // Writing fails only if the transport does.
        let _ = self.write_part(id, &facts, &mut part);
        part.fill()
    }

    /// Loads this rank's part of a sequence, which rank 0 sends.
    pub(in crate::engine) fn receive_part(
        &mut self,
        transport: &dyn Transport,
        id: SequenceId,
    ) -> Result<(), TransportError> {
        let mut length = [0; size_of::<u64>()];
        transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut length }])?;
        let length = u64::from_le_bytes(length);
        let mut part = PartReader::new(transport, 0, length);
        let loaded = self.load_part(id, &mut part, length);
        part.drain()?;
        let position = self.sequence(id).map_or(0, |sequence| sequence.position());
        Report(loaded.map(|_| u64::from(position)).map_err(|error| reason(&error))).send(transport)
    }
}

/// Refuses a part that is longer than any valid one.
fn check_length(found: u64) -> Result<(), SavedError> {
    match found <= MAX_PART {
        true => Ok(()),
        false => {
            let (what, expected) = ("bytes of a part".to_owned(), format!("at most {MAX_PART}"));
            Err(SavedError::Number { what, found, expected })
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_transport::local;

    use super::*;

    #[test]
    fn parts_of_all_sizes_arrive() {
        for bytes in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
            let [first, second] = local::group(2).try_into().unwrap();
            let sent: Vec<u8> = (0..bytes).map(|i| (i * i % 251) as u8).collect();
            let expected = sent.clone();
            let sender = std::thread::spawn(move || {
                let mut part = PartWriter::new(&second, 0, sent.len() as u64);
                part.write_all(&sent).unwrap();
                // No more than announced is sent.
                assert!(part.write_all(&[1]).is_err());
                part.fill().unwrap();
                // Dropped after the other rank has received all.
                second.exchange(&[], &mut [Incoming { from: 0, bytes: &mut [0] }]).unwrap();
            });
            let mut found = Vec::new();
            PartReader::new(&first, 1, bytes as u64).read_to_end(&mut found).unwrap();
            assert!(found == expected, "{bytes} bytes");
            first.exchange(&[Outgoing { to: 1, bytes: &[0] }], &mut []).unwrap();
            sender.join().unwrap();
        }
    }

    #[test]
    fn a_part_that_cannot_be_read_is_filled_and_drained() {
        let [first, second] = local::group(2).try_into().unwrap();
        let bytes = CHUNK as u64 + 7;
        let reader = std::thread::spawn(move || {
            let mut part = PartReader::new(&second, 0, bytes);
            let mut begin = [0; 3];
            part.read_exact(&mut begin).unwrap();
            part.drain().unwrap();
            begin
        });
        let mut part = PartWriter::new(&first, 1, bytes);
        part.write_all(&[5, 6]).unwrap();
        part.fill().unwrap();
        assert_eq!(reader.join().unwrap(), [5, 6, 0]);
        // If the transport has failed, filling the part returns the transport's error.
        let ended: Arc<dyn Transport> = Arc::new(first);
        let mut part = PartWriter::new(&*ended, 1, 1);
        assert!(matches!(part.fill(), Err(TransportError::Ended { by: 1, .. })));
    }

    #[test]
    fn reports_survive_encoding() {
        for report in [Ok(1 << 40), Err("the drive is full".to_owned()), Err("é".repeat(REPORT_BYTES))] {
            let found = Report::decode(&Report(report.clone()).encode()).0;
            match (found, report) {
                (Err(found), Err(reason)) => assert!(reason.starts_with(&found) && found.len() > 10, "{found}"),
                (found, report) => assert_eq!(found, report),
            }
        }
    }

    #[test]
    fn lengths_of_parts_are_checked() {
        let lengths = [100, 200];
        let begin = encode_lengths(&lengths);
        let all = begin.len() as u64 + 300;
        assert_eq!(begin.len() as u64, begin_bytes(2));
        let read = |begin: &[u8], bytes, ranks| read_lengths(&mut &begin[..], bytes, ranks);
        assert_eq!(read(&begin, all, 2).unwrap(), lengths);
        assert!(matches!(read(&begin, all, 3), Err(SavedError::Ranks { found: 2, expected: 3 })));
        assert!(matches!(read(&begin, all + 1, 2), Err(SavedError::Length { .. })));
        assert!(matches!(read(&begin, 20, 2), Err(SavedError::Length { .. })));
        let changed = |place: usize| {
            let mut begin = begin.clone();
            begin[place] ^= 1;
            begin
        };
        assert!(matches!(read(&changed(0), all, 2), Err(SavedError::Magic { .. })));
        assert!(matches!(read(&changed(8), all, 2), Err(SavedError::Ranks { found: 1, expected: 2 })));
        assert!(matches!(read(&changed(20), all, 2), Err(SavedError::Checksum { .. })));
        let endless = encode_lengths(&[u64::MAX, 2]);
        assert!(matches!(read(&endless, all, 2), Err(SavedError::Length { .. })));
    }
}
