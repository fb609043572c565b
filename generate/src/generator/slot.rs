//! Slots of a generator: their status, and their states in files.

use std::fs::File;
use std::path::Path;

use ixc_files::Output;
use ixc_runtime::engine::{Sequence, SequenceId};
use ixc_runtime::saved::{LoadedSequence, SavedError};

use super::{ActiveRequest, Generator};
use crate::{Error, slot_file};

/// Sequence of the engine, and the request that runs in the sequence.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) sequence: SequenceId,
    /// Tokens whose states the sequence holds.
    pub(super) cached_tokens: Vec<u32>,
    pub(super) active_request: Option<ActiveRequest>,
    /// Number of tokens of the last request's prompt. Tokens after it were computed one by one.
    pub(super) prompt_len: usize,
    /// Whether no other request may reuse the cached tokens.
    pub(super) is_private: bool,
    /// Step in which the slot was last used. The least recently used slot is the first to be
    /// reused.
    pub(super) last_use: u64,
}

/// Status of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotStatus {
    /// Number of tokens whose states the slot holds.
    pub cached_tokens: usize,
    /// Whether a request runs in the slot.
    pub has_request: bool,
    /// Bytes of the states.
    pub bytes: u64,
    /// Bytes in pages that other slots may share.
    pub shared_bytes: u64,
}

/// Size of the state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSize {
    /// Tokens that were saved, restored or erased.
    pub tokens: usize,
    /// Length of the file in bytes.
    pub bytes: u64,
}

impl Slot {
    pub(super) fn new(sequence: SequenceId) -> Slot {
        Slot {
            sequence,
            cached_tokens: Vec::new(),
            active_request: None,
            prompt_len: 0,
            is_private: false,
            last_use: 0,
        }
    }
}

impl Generator {
    /// Returns the status of each slot.
    pub fn slots(&self) -> impl Iterator<Item = SlotStatus> {
        self.slots.iter().map(|slot| {
            let sequence = self.model.engine.sequence(slot.sequence);
            let (bytes, shared_bytes) = sequence.map_or((0, 0), Sequence::bytes);
            let (cached_tokens, has_request) = (slot.cached_tokens.len(), slot.active_request.is_some());
            SlotStatus { cached_tokens, has_request, bytes, shared_bytes }
        })
    }

    /// Saves the state of a sequence.
    ///
    /// # Errors
    /// When there is no such sequence, the sequence is empty, or the file cannot be written.
    pub fn save_slot(&self, number: usize, output: Output) -> Result<SlotSize, Error> {
        let slot = self.slots.get(number).ok_or(Error::NoSlot { number, slots: self.slots.len() })?;
        let bytes = self.model.save(slot.sequence, &slot.cached_tokens, None, output)?;
        Ok(SlotSize { tokens: slot.cached_tokens.len(), bytes })
    }

    /// Restores an idle sequence from a file of [`Generator::save_slot`]. Links are not followed.
    ///
    /// # Errors
    /// When there is no such sequence, or the file is not a state of this model. The sequence is
    /// then unchanged.
    pub fn restore_slot(&mut self, number: usize, path: &Path) -> Result<SlotSize, Error> {
        let slots = self.slots.len();
        self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        let (file, bytes) = slot_file::open(path, &self.model.engine)?;
        self.store_prompt(number);
        self.load_slot(number, file, bytes).map_err(|source| slot_file::restore_error(path, source))?;
        Ok(SlotSize { tokens: self.slots[number].cached_tokens.len(), bytes })
    }

    /// Replaces the states of an idle slot by saved states. On an error, the slot is unchanged.
    pub(crate) fn load_slot(&mut self, number: usize, file: File, bytes: u64) -> Result<LoadedSequence, SavedError> {
        let (engine, slot) = (&mut self.model.engine, &mut self.slots[number]);
        // Damage after the header is found only while the sequence is overwritten, so a copy of the
        // old states is kept.
        let mut before = Vec::new();
        let saved = engine.save_state(slot.sequence, &slot.cached_tokens, None, &mut before);
        let mut input = std::io::BufReader::with_capacity(1 << 20, file);
        let loaded = engine.load_state(slot.sequence, &mut input, bytes).inspect_err(|_| {
            let length = before.len() as u64;
            let is_restored = saved.is_ok() && engine.load_state(slot.sequence, &mut &before[..], length).is_ok();
            if !is_restored {
                let _ = engine.truncate_sequence(slot.sequence, 0);
                slot.cached_tokens.clear();
            }
        })?;
        let position = engine.sequence(slot.sequence).map_or(0, |sequence| sequence.position()) as usize;
        slot.cached_tokens.clear();
        slot.cached_tokens.extend_from_slice(&loaded.tokens[..position]);
        // A restored slot counts as just used, so that it is not the next to be reused.
        (slot.prompt_len, slot.last_use) = (0, self.steps);
        Ok(loaded)
    }

    /// Returns the slot whose request computed last, if any has.
    pub fn recent_slot(&self) -> Option<usize> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.last_use > 0);
        used.max_by_key(|(_, slot)| slot.last_use).map(|(number, _)| number)
    }

    /// Returns an idle slot, preferably the one that was used least recently.
    pub fn idle_slot(&self) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.active_request.is_none());
        idle.min_by_key(|(_, slot)| slot.last_use).map(|(number, _)| number)
    }

    /// Empties an idle sequence, and returns the number of its tokens.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn erase_slot(&mut self, number: usize) -> Result<usize, Error> {
        let slots = self.slots.len();
        let slot = self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        let (sequence, tokens) = (slot.sequence, slot.cached_tokens.len());
        slot.cached_tokens.clear();
        self.model.engine.truncate_sequence(sequence, 0)?;
        Ok(tokens)
    }

    pub(super) fn free_slot(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number).filter(|slot| slot.active_request.is_none())
    }

    /// Empties the slots of finished private requests.
    pub(super) fn forget_private(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_private && slot.active_request.is_none()) {
            slot.is_private = false;
            slot.cached_tokens.clear();
            // Every sequence can be truncated to length 0.
            let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Truncates a sequence to its first `len` tokens.
    pub(super) fn truncate_slot(&mut self, number: usize, len: usize) {
        let slot = &mut self.slots[number];
        let left = self.model.engine.truncate_sequence(slot.sequence, len as u32);
        slot.cached_tokens.truncate(left.map_or(0, |left| left as usize));
    }
}
