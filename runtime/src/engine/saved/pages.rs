//! Pages and points: saved parts of a sequence. A sequence with the same prefix is assembled from
//! them.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ixc_ir::state::Rollback;

use super::{Digest, EngineIdentity, SavedError, SavedHeader, has_copies, read_copies, read_places, write};
use crate::engine::{Engine, Sequence, SequenceId};

impl Engine {
    /// Saves a page: the cache slots of some positions of a sequence. `first` is a multiple of 32.
    /// `before` is the digest of the tokens before; `tokens` are those of the positions.
    ///
    /// # Errors
    /// Fails if the sequence does not exist, or does not hold these positions.
    pub fn save_page(
        &self,
        id: SequenceId,
        before: Digest,
        first: u32,
        tokens: &[u32],
    ) -> Result<(SavedHeader, Vec<u8>), SavedError> {
        let sequence = self.saved_sequence(id)?;
        let positions = self.page_positions(sequence.position(), first, tokens)?;
        let facts = SavedHeader {
            identity: self.identity()?,
            before,
            tokens: tokens.to_vec(),
            firsts: sequence.states.firsts(&positions),
            copies: Vec::new(),
            sampler: None,
            positions,
        };
        let mut bytes = Vec::with_capacity(facts.bytes(sequence.states.declared_states()).unwrap_or(0) as usize);
        write(&facts, sequence, &mut bytes)?;
        Ok((facts, bytes))
    }

    /// Saves a point: a copy of the states without positions, after the last of these tokens.
    /// Returns `None` if there are no such states or no copy of them. The arguments are those of
    /// [`Engine::save_page`].
    ///
    /// # Errors
    /// See [`Engine::save_page`].
    pub fn save_point(
        &self,
        id: SequenceId,
        before: Digest,
        first: u32,
        tokens: &[u32],
    ) -> Result<Option<(SavedHeader, Vec<u8>)>, SavedError> {
        let sequence = self.saved_sequence(id)?;
        let positions = self.page_positions(sequence.position(), first, tokens)?;
        if !self.points(id).contains(&positions.end) {
            return Ok(None);
        }
        let facts = SavedHeader {
            identity: self.identity()?,
            before,
            tokens: tokens.to_vec(),
            firsts: Vec::new(),
            copies: vec![positions.end],
            sampler: None,
            positions,
        };
        let mut bytes = Vec::with_capacity(facts.bytes(sequence.states.declared_states()).unwrap_or(0) as usize);
        write(&facts, sequence, &mut bytes)?;
        Ok(Some((facts, bytes)))
    }

    fn page_positions(&self, held: u32, first: u32, tokens: &[u32]) -> Result<Range<u32>, SavedError> {
        let end = u32::try_from(tokens.len()).ok().and_then(|count| first.checked_add(count));
        let max = held.saturating_sub(first);
        let end = end.filter(|end| *end <= held && !tokens.is_empty());
        Ok(first..end.ok_or(SavedError::Tokens { found: tokens.len(), held, max })?)
    }

    /// Returns whether a sequence can be put together from pages only at the positions of points.
    pub fn needs_points(&self) -> bool {
        has_copies(self.states().0)
    }

    /// Returns the positions of a sequence at which a point can be saved: those of its copies, and
    /// its end. Empty if all states can be truncated, or if a state cannot be restored at all.
    pub fn points(&self, id: SequenceId) -> Vec<u32> {
        let (states, _) = self.states();
        let Some(sequence) = self.sequence(id).filter(|sequence| sequence.position() > 0) else { return Vec::new() };
        if !has_copies(states) || states.iter().any(|state| state.rollback == Rollback::None) {
            return Vec::new();
        }
        let mut points: Vec<u32> = sequence.states.copies().map(|(position, _)| position).collect();
        points.retain(|&position| position < sequence.position());
        points.push(sequence.position());
        points
    }

    /// Reads the facts at the beginning of saved bytes, and checks that they fit this engine.
    ///
    /// # Errors
    /// See [`SavedError`]. Fails if the bytes are of another model, cut short, or damaged before
    /// the cache slots.
    pub fn saved_facts(&self, input: &mut dyn std::io::Read, bytes: u64) -> Result<SavedHeader, SavedError> {
        SavedHeader::read(input, bytes, &self.identity()?, &self.engine_identity())
    }

    /// Returns whether these consecutive pages have all that a sequence needs to continue at
    /// `position`.
    pub fn can_load_pages(&self, id: SequenceId, pages: &[&SavedHeader], position: u32) -> bool {
        !self.is_divided() && self.stand(pages, position, id).is_ok()
    }

    /// Returns whether a sequence holds more than a page of the same positions and tokens. A state
    /// with a window may have dropped some of them when the page was saved.
    pub fn holds_more(&self, id: SequenceId, page: &SavedHeader) -> bool {
        let held = self.sequence(id).filter(|sequence| sequence.position() >= page.positions.end);
        let firsts = held.map(|sequence| sequence.states.firsts(&page.positions)).unwrap_or_default();
        firsts.iter().zip(&page.firsts).any(|(held, saved)| held < saved)
    }

    /// Puts a sequence together from pages that follow each other from position 0, and cuts it to a
    /// position in the last page. States that cannot be truncated to this position are restored
    /// from the point that was saved there. `read` returns the bytes of each page, in order; the
    /// bytes of a page are dropped before the next is read.
    ///
    /// # Errors
    /// See [`SavedError`]. The sequence is then empty.
    pub fn load_pages(
        &mut self,
        id: SequenceId,
        pages: &[&SavedHeader],
        read: &mut dyn FnMut(usize) -> io::Result<Arc<Vec<u8>>>,
        point: Option<&[u8]>,
        position: u32,
    ) -> Result<(), SavedError> {
        self.forget_logits();
        let loaded = self.put_together(id, pages, read, point, position);
        if loaded.is_err() {
            self.empty(id);
        }
        loaded
    }

    fn put_together(
        &mut self,
        id: SequenceId,
        pages: &[&SavedHeader],
        bytes_of: &mut dyn FnMut(usize) -> io::Result<Arc<Vec<u8>>>,
        point: Option<&[u8]>,
        position: u32,
    ) -> Result<(), SavedError> {
        self.saved_sequence(id)?;
        let (identity, of) = (self.identity()?, self.engine_identity());
        let read = |mut bytes: &[u8]| -> Result<(SavedHeader, usize), SavedError> {
            let all = bytes.len();
            let facts = SavedHeader::read(&mut bytes, all as u64, &identity, &of)?;
            Ok((facts, all - bytes.len()))
        };
        let mut end = 0;
        for page in pages {
            if page.positions.start != end || page.firsts.len() != of.states.len() {
                return Err(SavedError::From { found: page.positions.start, expected: end });
            }
            end = page.positions.end;
        }
        let last = pages.last().map_or(0, |page| page.positions.start);
        if position <= last || position > end {
            let expected = format!("above {last} and at most {end}");
            return Err(SavedError::Number { what: "to go on at".into(), found: position.into(), expected });
        }
        let whole = match (point, has_copies(of.states)) {
            (Some(bytes), true) => Some(point_at(bytes, position, &read, &of)?),
            (None, true) => {
                let expected = "a position with a point".into();
                return Err(SavedError::Number { what: "to go on at".into(), found: position.into(), expected });
            }
            (_, false) => None,
        };
        let stand = self.stand(pages, position, id)?;
        self.sequence_mut(id)?.stand_at(&stand);
        for (number, page) in pages.iter().enumerate() {
            let bytes = bytes_of(number)?;
            let mut rest = bytes.as_slice();
            if self.saved_facts(&mut rest, bytes.len() as u64)? != **page {
                let (found, expected) = (number as u64, "those that it was found by".to_owned());
                return Err(SavedError::Number { what: "other facts in page".into(), found, expected });
            }
            read_places(page, self.sequence_mut(id)?, &mut rest)?;
        }
        self.sequence_mut(id)?.go_back_with(position, whole);
        Ok(())
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, SavedError> {
        self.loaded.store.sequences.get_mut(id.0).ok_or(SavedError::NoSequence { id })
    }
}

/// A function that reads and checks the metadata of a page. It also returns the offset of its end.
type ReadFacts<'r> = dyn Fn(&[u8]) -> Result<(SavedHeader, usize), SavedError> + 'r;

/// Returns the copy of the states that a saved page contains, which must be at this position.
fn point_at(bytes: &[u8], position: u32, read: &ReadFacts<'_>, of: &EngineIdentity<'_>) -> Result<Vec<u8>, SavedError> {
    let (facts, after) = read(bytes)?;
    let copies = if facts.point() == Some(position) {
        read_copies(&facts, of.states, &mut &bytes[after..])?
    } else {
        Vec::new()
    };
    copies.into_iter().next_back().map(|(_, copy)| copy).ok_or_else(|| SavedError::Number {
        what: "a copy at".into(),
        found: facts.point().unwrap_or(0).into(),
        expected: position.to_string(),
    })
}
