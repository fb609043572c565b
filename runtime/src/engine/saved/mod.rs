//! A sequence as bytes, so that another run can continue it: its states, its tokens, its sampler.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | `IXSTATE` and a newline |
//! | 8..12 | version, little-endian as all numbers are |
//! | 12..16 | CRC-32 of bytes 16..112 |
//! | 16..32 | hash of the plan ([`Identity`]) |
//! | 32..48 | hash of its weights |
//! | 48..64 | the [`Digest`] of all tokens before these positions, 0 without such tokens |
//! | 64..72 | positions of the sequence: the first, and the end |
//! | 72..76 | number of tokens that follow, from the first position on: at least one each |
//! | 76..80 | number of states whose cache slots follow, 0 without slots |
//! | 80..84 | number of copies that follow, of states without positions |
//! | 84..88 | number of the sampler's last tokens that follow, 2^32 - 1 without a sampler |
//! | 88..92 | CRC-32 of the bytes between the header and the cache slots |
//! | 92..112 | 0 |
//! | 112.. | tokens; the first stored cache slot of each state; positions of the copies |
//! | | of the sampler: its generator, mirostat's surprise, its last tokens |
//! | | cache slots of each state, by column ([`parts`](crate::states::parts)), and a CRC-32 |
//! | | each copy, and its CRC-32 |
//!
//! The length depends on the number of positions, in whole blocks of 32. The bytes are the same for
//! any context and any number of threads. A *whole* state begins at position 0. If the model has
//! states without positions, it has a copy of them at its end. A *page* has the cache slots of some
//! positions of a sequence. A *point* has a copy at one position, and no cache slots. A sequence
//! can be put together again from pages and a point ([`Engine::load_pages`]). The state of a model
//! on several ranks has a part of each rank (`ranks`).
//!
//! Invariant: bytes are hostile until they are checked. Each length is compared with the plan's
//! states and the bytes present before it is used. A part is used only if its checksum is right. If
//! loading fails, the sequence is empty.

mod error;
pub(crate) mod identity;
mod pages;
mod ranks;

use std::io::{Read, Write};
use std::ops::Range;

use ixc_files::Kind;
use ixc_files::changed::ChangedFile;
use ixc_ir::plan::{ATTENTION_BLOCK, State};

use crate::engine::sample::{MAX_RECENT, SamplerState};
use crate::engine::{Engine, SequenceId};
use crate::executor::sequences::Sequence;
use crate::states::SNAPSHOTS;
use crate::states::parts::{Stand, copy_bytes, has_copies, place_bytes, places};

pub use error::SavedError;
pub use identity::{Digest, Identity};

/// First bytes of a saved state.
pub const MAGIC: [u8; 8] = *b"IXSTATE\n";
/// A saved state.
pub const KIND: Kind = Kind { name: "saved state", is: |head| head.starts_with(&MAGIC), streams: false, private: true };
/// Version of the encoding; other versions are refused.
pub const VERSION: u32 = 1;
/// Bytes of the header, before the tokens.
pub const HEADER_BYTES: usize = 112;
/// Bytes of a checksum.
const CRC_BYTES: u64 = 4;
/// The length of the sampler's tokens if no sampler is saved.
const NO_SAMPLER: u32 = u32::MAX;
/// Max tokens after the last computed position: the last drawn token, or a prompt that is not
/// computed yet.
const MAX_PENDING: u32 = 1 << 20;

/// Metadata at the beginning of a saved state: the sequence's tokens and positions, without the
/// states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedHeader {
    /// The plan and weights that the saved state belongs to.
    pub identity: Identity,
    /// Digest of all tokens before [`SavedHeader::positions`].
    pub before: Digest,
    /// Positions of the sequence whose states are saved.
    pub positions: Range<u32>,
    /// Tokens from the first position on.
    pub tokens: Vec<u32>,
    /// The first stored cache slot of each state; empty if no slots are stored.
    firsts: Vec<u32>,
    /// Positions of the copies.
    copies: Vec<u32>,
    /// State of the sampler, if saved.
    pub sampler: Option<SamplerState>,
}

/// The fields of a header.
#[derive(Clone, Copy, Debug)]
struct Header {
    identity: Identity,
    before: Digest,
    from: u32,
    to: u32,
    tokens: u32,
    states: u32,
    copies: u32,
    recent: u32,
    facts_crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(16, &self.identity.plan.0);
        put(32, &self.identity.weights.0);
        put(48, &self.before.0);
        let numbers = [self.from, self.to, self.tokens, self.states, self.copies, self.recent, self.facts_crc];
        (64..).step_by(4).zip(numbers).for_each(|(at, number)| put(at, &number.to_le_bytes()));
        let crc = crc32fast::hash(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, SavedError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let digest = |at: usize| Digest(std::array::from_fn(|i| bytes[at + i]));
        let magic = std::array::from_fn(|i| bytes[i]);
        if magic != MAGIC {
            return Err(SavedError::Magic { found: magic, expected: MAGIC });
        }
        if word(8) == ranks::RANKS_VERSION {
            return Err(SavedError::Ranks { found: word(12), expected: 1 });
        }
        if word(8) != VERSION {
            return Err(SavedError::Version { found: word(8) });
        }
        compare_crc("its header", crc32fast::hash(&bytes[16..]), word(12))?;
        Ok(Header {
            identity: Identity { plan: digest(16), weights: digest(32) },
            before: digest(48),
            from: word(64),
            to: word(68),
            tokens: word(72),
            states: word(76),
            copies: word(80),
            recent: word(84),
            facts_crc: word(88),
        })
    }

    /// Checks that the state belongs to this plan and these weights.
    fn check_identity(&self, identity: &Identity) -> Result<(), SavedError> {
        let (found, expected) = (self.identity, identity);
        if found.plan != expected.plan {
            return Err(SavedError::OtherPlan { found: found.plan.to_string(), expected: expected.plan.to_string() });
        }
        if found.weights != expected.weights {
            let (found, expected) = (found.weights.to_string(), expected.weights.to_string());
            return Err(SavedError::OtherModel { found, expected });
        }
        Ok(())
    }

    /// Refuses header fields that no sequence of this engine can have.
    fn check(&self, of: &EngineIdentity<'_>) -> Result<(), SavedError> {
        let &Header { from, to, tokens, states, copies, recent, .. } = self;
        let number = |what: &str, found: u32, expected: String| {
            Err(SavedError::Number { what: what.to_owned(), found: found.into(), expected })
        };
        if to > of.context {
            return Err(SavedError::Positions { found: to, context: of.context });
        }
        if from >= to || !from.is_multiple_of(ATTENTION_BLOCK) {
            return number("first position", from, format!("a multiple of {ATTENTION_BLOCK} below {to}"));
        }
        let max = (to - from).saturating_add(MAX_PENDING);
        if !(to - from..=max).contains(&tokens) {
            return number("tokens", tokens, format!("from {} to {max}", to - from));
        }
        if states != 0 && states as usize != of.states.len() {
            return number("states", states, of.states.len().to_string());
        }
        if copies as usize > SNAPSHOTS + 1 {
            return number("copies", copies, format!("at most {}", SNAPSHOTS + 1));
        }
        if recent != NO_SAMPLER && recent > MAX_RECENT {
            return number("tokens of the sampler", recent, format!("at most {MAX_RECENT}"));
        }
        Ok(())
    }

    /// Returns the number of bytes between the header and the cache slots.
    fn facts_bytes(&self) -> u64 {
        let sampler = if self.recent == NO_SAMPLER { 0 } else { 40 + 4 * u64::from(self.recent) };
        4 * (u64::from(self.tokens) + u64::from(self.states) + u64::from(self.copies)) + sampler
    }
}

/// The properties of an engine that saved states are checked against.
#[derive(Clone, Copy, Debug)]
struct EngineIdentity<'e> {
    states: &'e [State],
    context: u32,
    vocabulary: u32,
}

fn compare_crc(part: &str, found: u32, expected: u32) -> Result<(), SavedError> {
    match found == expected {
        true => Ok(()),
        false => Err(SavedError::Checksum { part: part.to_owned(), found, expected }),
    }
}

impl SavedHeader {
    fn header(&self, facts_crc: u32) -> Header {
        // The casts are exact: the lengths were checked when the facts were made or read.
        let [tokens, states, copies] = [self.tokens.len(), self.firsts.len(), self.copies.len()].map(|n| n as u32);
        let recent = self.sampler.as_ref().map_or(NO_SAMPLER, |sampler| sampler.recent.len() as u32);
        let &SavedHeader { identity, before, positions: Range { start: from, end: to }, .. } = self;
        Header { identity, before, from, to, tokens, states, copies, recent, facts_crc }
    }

    fn encode(&self) -> Vec<u8> {
        let words = self.tokens.iter().chain(&self.firsts).chain(&self.copies);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        if let Some(SamplerState { random, recent, surprise }) = &self.sampler {
            bytes.extend(random.iter().chain([surprise]).flat_map(|word| word.to_le_bytes()));
            bytes.extend(recent.iter().flat_map(|token| token.to_le_bytes()));
        }
        bytes
    }

    /// Reads the facts at the beginning of a saved state of `bytes` bytes.
    fn read(
        input: &mut dyn Read,
        bytes: u64,
        identity: &Identity,
        of: &EngineIdentity<'_>,
    ) -> Result<SavedHeader, SavedError> {
        if bytes < HEADER_BYTES as u64 {
            let mut found = Vec::new();
            input.take(bytes).read_to_end(&mut found)?;
            if !MAGIC.starts_with(&found[..found.len().min(MAGIC.len())]) {
                let magic = std::array::from_fn(|i| found.get(i).copied().unwrap_or(0));
                return Err(SavedError::Magic { found: magic, expected: MAGIC });
            }
            return Err(SavedError::Length { found: bytes, expected: HEADER_BYTES as u64 });
        }
        let mut header = [0; HEADER_BYTES];
        input.read_exact(&mut header)?;
        let header = Header::decode(&header)?;
        header.check_identity(identity)?;
        header.check(of)?;
        let after = HEADER_BYTES as u64 + header.facts_bytes();
        if bytes < after {
            return Err(SavedError::Length { found: bytes, expected: after });
        }
        // The allocation is safe, because the input has as many bytes.
        let mut facts = vec![0; header.facts_bytes() as usize];
        input.read_exact(&mut facts)?;
        compare_crc("its tokens", crc32fast::hash(&facts), header.facts_crc)?;
        let facts = SavedHeader::decode(&header, &facts);
        facts.check(of)?;
        let expected = facts.bytes(of.states);
        match expected == Some(bytes) {
            true => Ok(facts),
            false => Err(SavedError::Length { found: bytes, expected: expected.unwrap_or(u64::MAX) }),
        }
    }

    /// Decodes facts from bytes of the length in the header.
    fn decode(header: &Header, bytes: &[u8]) -> SavedHeader {
        let mut words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let mut take = |count: u32| words.by_ref().take(count as usize).collect::<Vec<u32>>();
        let (tokens, firsts, copies) = (take(header.tokens), take(header.states), take(header.copies));
        let sampler = (header.recent != NO_SAMPLER).then(|| {
            let halves = take(10);
            let word = |i: usize| u64::from(halves[2 * i]) | u64::from(halves[2 * i + 1]) << 32;
            let (random, surprise) = (std::array::from_fn(word), word(4));
            SamplerState { random, recent: take(header.recent), surprise }
        });
        let &Header { identity, before, from, to, .. } = header;
        SavedHeader { identity, before, positions: from..to, tokens, firsts, copies, sampler }
    }

    /// Refuses metadata that no sequence of this engine can have.
    fn check(&self, of: &EngineIdentity<'_>) -> Result<(), SavedError> {
        let drawn = self.sampler.iter().flat_map(|sampler| &sampler.recent);
        for (index, &id) in self.tokens.iter().chain(drawn).enumerate() {
            if id >= of.vocabulary {
                return Err(SavedError::Token { index, id, vocabulary: of.vocabulary });
            }
        }
        for (state, &first) in of.states.iter().zip(&self.firsts) {
            let Range { start, end } = places(state, &self.positions);
            // A state with a window may have dropped its first cache slots.
            let last = if state.window.is_some() { end } else { start };
            if !(start..=last).contains(&first) || !first.is_multiple_of(ATTENTION_BLOCK) {
                let what = format!("first place of {}", state.name);
                let expected = format!("a multiple of {ATTENTION_BLOCK} from {start} to {last}");
                return Err(SavedError::Number { what, found: first.into(), expected });
            }
        }
        let mut before = self.positions.start;
        for &position in &self.copies {
            if position <= before || position > self.positions.end {
                let expected = format!("above {before} and at most {}", self.positions.end);
                return Err(SavedError::Number { what: "a copy at".into(), found: position.into(), expected });
            }
            before = position;
        }
        Ok(())
    }

    /// Returns the stored cache slots of a state.
    fn places(&self, number: usize, state: &State) -> Option<Range<u32>> {
        Some(*self.firsts.get(number)?..places(state, &self.positions).end)
    }

    /// Returns the number of bytes of the whole saved state; `None` if the sum overflows.
    fn bytes(&self, states: &[State]) -> Option<u64> {
        let mut bytes = HEADER_BYTES as u64 + self.header(0).facts_bytes();
        for (number, state) in states.iter().enumerate() {
            let Some(places) = self.places(number, state) else { continue };
            bytes = bytes.checked_add(place_bytes(state, places.end - places.start)?)?.checked_add(CRC_BYTES)?;
        }
        for &position in &self.copies {
            bytes = bytes.checked_add(self.copy_bytes(states, position)?)?.checked_add(CRC_BYTES)?;
        }
        Some(bytes)
    }

    /// Returns the number of bytes of a copy. The copy at the end has all states without positions;
    /// earlier copies have only those that can be restored.
    fn copy_bytes(&self, states: &[State], position: u32) -> Option<u64> {
        copy_bytes(states, position == self.positions.end)
    }

    /// Returns the position of a copy that is saved alone; `None` for a whole state or a page.
    pub fn point(&self) -> Option<u32> {
        self.copies.last().copied().filter(|_| self.firsts.is_empty())
    }
}

/// Writes the states of a sequence that the metadata lists.
fn write(facts: &SavedHeader, sequence: &Sequence, out: &mut dyn Write) -> Result<(), SavedError> {
    let encoded = facts.encode();
    out.write_all(&facts.header(crc32fast::hash(&encoded)).encode())?;
    out.write_all(&encoded)?;
    let states = &sequence.states;
    for (number, state) in states.declared_states().iter().enumerate() {
        let Some(places) = facts.places(number, state) else { continue };
        let mut crc = crc32fast::Hasher::new();
        states.read_places(number, &places, &mut |bytes| {
            crc.update(bytes);
            out.write_all(bytes)
        })?;
        out.write_all(&crc.finalize().to_le_bytes())?;
    }
    for &position in &facts.copies {
        let mut crc = crc32fast::Hasher::new();
        let mut put = |bytes: &[u8]| {
            crc.update(bytes);
            out.write_all(bytes)
        };
        match states.copies().find(|(at, _)| *at == position && position != sequence.position()) {
            Some((_, copy)) => put(copy)?,
            None => states.read_whole(&mut put)?,
        }
        out.write_all(&crc.finalize().to_le_bytes())?;
    }
    Ok(())
}

/// Reads the cache slots of a saved state into a sequence whose states end at the same position.
/// The facts are read already.
fn read_places(facts: &SavedHeader, sequence: &mut Sequence, input: &mut dyn Read) -> Result<(), SavedError> {
    let declared = sequence.states.declared_states().to_vec();
    for (number, state) in declared.iter().enumerate() {
        let Some(places) = facts.places(number, state) else { continue };
        let mut crc = crc32fast::Hasher::new();
        sequence.states.write_places(number, &places, &mut |bytes| {
            input.read_exact(bytes)?;
            crc.update(bytes);
            Ok(())
        })?;
        let mut expected = [0; CRC_BYTES as usize];
        input.read_exact(&mut expected)?;
        compare_crc(&format!("state {}", state.name), crc.finalize(), u32::from_le_bytes(expected))?;
    }
    Ok(())
}

/// Reads the copies of a saved state. The cache slots have been read already.
fn read_copies(facts: &SavedHeader, states: &[State], input: &mut dyn Read) -> Result<Vec<(u32, Vec<u8>)>, SavedError> {
    let mut copies = Vec::new();
    for &position in &facts.copies {
        // The size was checked when the facts were read.
        let mut bytes = vec![0; facts.copy_bytes(states, position).unwrap_or(0) as usize];
        input.read_exact(&mut bytes)?;
        let mut expected = [0; CRC_BYTES as usize];
        input.read_exact(&mut expected)?;
        let part = format!("the copy at position {position}");
        compare_crc(&part, crc32fast::hash(&bytes), u32::from_le_bytes(expected))?;
        copies.push((position, bytes));
    }
    Ok(copies)
}

/// The tokens and the sampler of a loaded sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedSequence {
    /// All tokens; those after the sequence's position are not computed yet.
    pub tokens: Vec<u32>,
    /// State of the sampler, if it was saved.
    pub sampler: Option<SamplerState>,
}

impl Engine {
    /// Returns the plan and weights that saved states belong to. The first call reads some bytes of
    /// each weight.
    ///
    /// # Errors
    /// If a file of weights changed before its bytes were read.
    pub fn identity(&self) -> Result<Identity, ChangedFile> {
        self.loaded.identity()
    }

    fn engine_identity(&self) -> EngineIdentity<'_> {
        let (states, _) = self.states();
        EngineIdentity { states, context: self.context(), vocabulary: self.vocabulary() }
    }

    /// Returns a sequence whose pages can be saved.
    fn saved_sequence(&self, id: SequenceId) -> Result<&Sequence, SavedError> {
        if self.is_divided() {
            return Err(SavedError::Divided);
        }
        self.sequence(id).ok_or(SavedError::NoSequence { id })
    }

    /// Returns the metadata of a whole sequence; see [`Engine::save_state`].
    fn whole_facts(
        &self,
        id: SequenceId,
        tokens: &[u32],
        sampler: Option<&SamplerState>,
    ) -> Result<SavedHeader, SavedError> {
        let sequence = self.sequence(id).ok_or(SavedError::NoSequence { id })?;
        let held = sequence.position();
        let max = held.saturating_add(MAX_PENDING);
        if held == 0 || !(held as usize..=max as usize).contains(&tokens.len()) {
            return Err(SavedError::Tokens { found: tokens.len(), held, max });
        }
        let states = &sequence.states;
        let mut copies: Vec<u32> = states.copies().map(|(position, _)| position).filter(|&at| at < held).collect();
        copies.extend(has_copies(states.declared_states()).then_some(held));
        Ok(SavedHeader {
            identity: self.identity()?,
            before: Digest::default(),
            positions: 0..held,
            tokens: tokens.to_vec(),
            firsts: states.firsts(&(0..held)),
            copies,
            sampler: sampler.cloned(),
        })
    }

    /// Writes this rank's part of a sequence.
    fn write_part(&self, id: SequenceId, facts: &SavedHeader, out: &mut dyn Write) -> Result<(), SavedError> {
        write(facts, self.sequence(id).ok_or(SavedError::NoSequence { id })?, out)
    }

    /// Restores this rank's part of a saved sequence; see [`Engine::load_state`].
    fn load_part(&mut self, id: SequenceId, input: &mut dyn Read, bytes: u64) -> Result<LoadedSequence, SavedError> {
        let facts = SavedHeader::read(input, bytes, &self.identity()?, &self.engine_identity())?;
        if facts.positions.start != 0 {
            return Err(SavedError::From { found: facts.positions.start, expected: 0 });
        }
        let Range { end, .. } = facts.positions;
        let complete = facts.firsts.len() == self.engine_identity().states.len()
            && (!has_copies(self.engine_identity().states) || facts.copies.last() == Some(&end));
        if !complete {
            let (what, found) = ("a copy at".to_owned(), facts.copies.last().copied().unwrap_or(0).into());
            return Err(SavedError::Number {
                what,
                found,
                expected: format!("{end}, after the cache slots of all states"),
            });
        }
        self.forget_logits();
        let stand = self.stand(&[&facts], end, id)?;
        let sequence = self.loaded.store.sequences.get_mut(id.0).ok_or(SavedError::NoSequence { id })?;
        sequence.stand_at(&stand);
        let mut load = || {
            read_places(&facts, sequence, input)?;
            let declared = sequence.states.declared_states().to_vec();
            for (position, bytes) in read_copies(&facts, &declared, input)? {
                match position == end {
                    true => sequence.states.write_whole(&bytes),
                    false => sequence.states.add_copy(position, bytes),
                }
            }
            Ok(())
        };
        let loaded = load();
        if loaded.is_err() {
            self.empty(id);
        }
        loaded.map(|()| LoadedSequence { tokens: facts.tokens, sampler: facts.sampler })
    }

    fn empty(&mut self, id: SequenceId) {
        self.loaded.store.sequences.get_mut(id.0).into_iter().for_each(|sequence| {
            sequence.truncate(0);
        });
    }

    /// Returns the positions of the states after these pages are loaded, if positions up to
    /// `position` are used.
    fn stand(&self, pages: &[&SavedHeader], position: u32, id: SequenceId) -> Result<Stand, SavedError> {
        let sequence = self.sequence(id).ok_or(SavedError::NoSequence { id })?;
        let used = pages.last().map_or(position, |page| page.positions.end);
        let mut bases = Vec::new();
        for (number, state) in sequence.states.declared_states().iter().enumerate() {
            let Some(needed) = sequence.states.first_needed(number, position) else {
                bases.push(0);
                continue;
            };
            let room = sequence.states.room(number);
            let base = first_held(pages, number).max(used.next_multiple_of(ATTENTION_BLOCK).saturating_sub(room));
            if needed < base {
                return Err(SavedError::NotHeld { position, state: state.name.clone() });
            }
            bases.push(base);
        }
        Ok(Stand { used, bases })
    }
}

/// Returns the first cache slot of a state from which on the pages have all slots.
fn first_held(pages: &[&SavedHeader], state: usize) -> u32 {
    let mut first = u32::MAX;
    for page in pages.iter().rev() {
        first = page.firsts.get(state).copied().unwrap_or(first);
        if first != page.positions.start {
            break;
        }
    }
    first
}
