//! Parts of sequences, of which others with the same beginning are put together: pages of positions, and points.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ixc_ir::state::Rollback;

use super::{Digest, Facts, Of, SavedError, has_copies, read_copies, read_places, write};
use crate::engine::{Engine, Sequence, SequenceId};

impl Engine {
    /// The places of some positions of a sequence, from a multiple of 32 on. `before` stands for the tokens before, `tokens` are those of the positions.
    ///
    /// # Errors
    /// When there is no such sequence, or it does not hold these positions.
    pub fn save_page(
        &self,
        id: SequenceId,
        before: Digest,
        first: u32,
        tokens: &[u32],
    ) -> Result<(Facts, Vec<u8>), SavedError> {
        let sequence = self.saved_sequence(id)?;
        let positions = self.page_positions(sequence.position(), first, tokens)?;
        let facts = Facts {
            identity: self.identity(),
            before,
            tokens: tokens.to_vec(),
            firsts: sequence.states.firsts(&positions),
            copies: Vec::new(),
            sampler: None,
            positions,
        };
        let mut bytes = Vec::with_capacity(facts.bytes(sequence.states.declared()).unwrap_or(0) as usize);
        write(&facts, sequence, &mut bytes)?;
        Ok((facts, bytes))
    }

    /// What has no positions, behind the last of these tokens, where there is such a thing and a copy of it. Otherwise as [`Engine::save_page`].
    ///
    /// # Errors
    /// As [`Engine::save_page`].
    pub fn save_point(
        &self,
        id: SequenceId,
        before: Digest,
        first: u32,
        tokens: &[u32],
    ) -> Result<Option<(Facts, Vec<u8>)>, SavedError> {
        let sequence = self.saved_sequence(id)?;
        let positions = self.page_positions(sequence.position(), first, tokens)?;
        if !self.points(id).contains(&positions.end) {
            return Ok(None);
        }
        let facts = Facts {
            identity: self.identity(),
            before,
            tokens: tokens.to_vec(),
            firsts: Vec::new(),
            copies: vec![positions.end],
            sampler: None,
            positions,
        };
        let mut bytes = Vec::with_capacity(facts.bytes(sequence.states.declared()).unwrap_or(0) as usize);
        write(&facts, sequence, &mut bytes)?;
        Ok(Some((facts, bytes)))
    }

    fn page_positions(&self, held: u32, first: u32, tokens: &[u32]) -> Result<Range<u32>, SavedError> {
        let end = u32::try_from(tokens.len()).ok().and_then(|count| first.checked_add(count));
        let most = held.saturating_sub(first);
        let end = end.filter(|end| *end <= held && !tokens.is_empty());
        Ok(first..end.ok_or(SavedError::Tokens { found: tokens.len(), held, most })?)
    }

    /// Whether sequences are put together of pages at some positions alone: those of points.
    pub fn needs_points(&self) -> bool {
        has_copies(self.states().0)
    }

    /// Positions of a sequence where a point can be saved: where copies are, and where it is. None where all can be cut, or something can not be put
    /// back at all.
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

    /// What saved bytes say of themselves, for this engine.
    ///
    /// # Errors
    /// See [`SavedError`]: where they are of another model, cut short, or damaged before their places.
    pub fn saved_facts(&self, input: &mut dyn std::io::Read, bytes: u64) -> Result<Facts, SavedError> {
        Facts::read(input, bytes, &self.identity(), &self.of())
    }

    /// Whether these pages, one behind the other, have what a sequence needs that goes on at `position`.
    pub fn can_load_pages(&self, id: SequenceId, pages: &[&Facts], position: u32) -> bool {
        self.stand(pages, position, id).is_ok()
    }

    /// Whether a sequence holds more than a page of the same positions and tokens has: of a window, positions that another one had lost when the page was
    /// saved.
    pub fn holds_more(&self, id: SequenceId, page: &Facts) -> bool {
        let held = self.sequence(id).filter(|sequence| sequence.position() >= page.positions.end);
        let firsts = held.map(|sequence| sequence.states.firsts(&page.positions)).unwrap_or_default();
        firsts.iter().zip(&page.firsts).any(|(held, saved)| held < saved)
    }

    /// Makes a sequence of pages, one behind the other from the first position on, and goes back to a position of the last; of states that cannot be cut
    /// there, with the point that was saved there. `read` gives the bytes of each page, one after the other; none is needed behind the next.
    ///
    /// # Errors
    /// See [`SavedError`]. The sequence is empty then.
    pub fn load_pages(
        &mut self,
        id: SequenceId,
        pages: &[&Facts],
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
        pages: &[&Facts],
        bytes_of: &mut dyn FnMut(usize) -> io::Result<Arc<Vec<u8>>>,
        point: Option<&[u8]>,
        position: u32,
    ) -> Result<(), SavedError> {
        let (identity, of) = (self.identity(), self.of());
        let read = |mut bytes: &[u8]| -> Result<(Facts, usize), SavedError> {
            let all = bytes.len();
            let facts = Facts::read(&mut bytes, all as u64, &identity, &of)?;
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

/// Facts that fit the sequence, and where they end.
type ReadFacts<'r> = dyn Fn(&[u8]) -> Result<(Facts, usize), SavedError> + 'r;

/// The copy of a point at a position.
fn point_at(bytes: &[u8], position: u32, read: &ReadFacts<'_>, of: &Of<'_>) -> Result<Vec<u8>, SavedError> {
    let (facts, behind) = read(bytes)?;
    let copies = if facts.point() == Some(position) {
        read_copies(&facts, of.states, &mut &bytes[behind..])?
    } else {
        Vec::new()
    };
    copies.into_iter().next_back().map(|(_, copy)| copy).ok_or_else(|| SavedError::Number {
        what: "a copy at".into(),
        found: facts.point().unwrap_or(0).into(),
        expected: position.to_string(),
    })
}
