//! Choice of the slot for a request, with reuse of the prompt's beginning.
//!
//! ```text
//! slots    0: system prompt, agent a      1: empty                         2: another text
//! agent b  copies the system prompt from 0 to the empty slot 1, and computes its own tokens there
//! agent a  continues in 0, and agent b in 1: their earlier tokens are there
//! agent c  copies the system prompt to 2, the least recently used slot
//! ```
//!
//! A request continues in the free slot with the longest common prefix, if few other tokens of the
//! slot are lost. Otherwise that slot stays unchanged. A copy of the common prefix then goes into
//! the free slot that was used least recently; both share the copied pages. So alternating texts
//! keep their tokens while there are enough slots. If there are not, the least recently used texts
//! are lost.
//!
//! Invariant: a busy slot can be copied and never changes.

use std::cmp::Reverse;

use ixc_runtime::engine::SequenceId;

use super::{CHUNK, Callers, Generator, Slot};
use crate::prompt_cache::{MIN_GAIN, Match};

/// Max number of lookups of a prompt in the prompt cache, if entries turn out to be damaged or
/// missing. Reading an entry takes time.
const MAX_LOOKUPS: usize = 3;
/// Max number of tokens that a slot may lose if a request continues in it, while there are other
/// slots. A repeated text often differs only at its end: in the template's text before an answer,
/// or in words that are tokenized differently.
const MAX_LOST_TOKENS: usize = MIN_GAIN;

/// Slot in which a prompt continues.
#[derive(Clone, Copy, Debug)]
struct SlotChoice {
    /// The free slot for the request.
    target: usize,
    /// Number of the slot's tokens that are kept.
    common_tokens: usize,
    /// Copy of a longer prefix from another slot, which is made before the prompt continues.
    copy: Option<SlotCopy>,
    /// The free slot that was used least recently.
    oldest: usize,
}

impl SlotChoice {
    /// Returns the number of reused prompt tokens.
    fn reused_tokens(&self) -> usize {
        self.copy.map_or(self.common_tokens, |copy| copy.tokens)
    }
}

/// Copy of the first tokens of a slot.
#[derive(Clone, Copy, Debug)]
struct SlotCopy {
    source: usize,
    tokens: usize,
}

/// Result of looking a prompt up in the prompt cache.
#[derive(Clone, Copy, Debug)]
enum PrefixLookup {
    /// The cached prefix was loaded into this slot.
    Loaded(usize),
    /// The entry could not be loaded, and was removed.
    Damaged,
    /// There is no entry that is worth loading.
    Absent,
}

impl Generator {
    /// Prepares a slot for a request, so that it holds a prefix of the request's tokens and nothing
    /// else. If the prompt cache has a longer prefix, it is loaded into the least recently used
    /// slot. `None` if no slot is free.
    pub(super) fn prepare_slot(&mut self, tokens: &[u32], reuses: bool) -> Option<usize> {
        if !reuses {
            return self.prepare_empty_slot();
        }
        // The last tokens are always computed again, in enough rows for results that are
        // bit-identical to those of an uncached prompt.
        let computed = match self.callers {
            Callers::One => 1,
            Callers::Many => self.min_rows.max(1),
        };
        let longest = tokens.len().saturating_sub(computed);
        let prefix = &tokens[..if self.in_chunks() { longest - longest % CHUNK } else { longest }];
        // An entry that cannot be loaded is removed, so that the next best is tried.
        for _ in 0..MAX_LOOKUPS {
            match self.load_cached_prefix(prefix)? {
                PrefixLookup::Loaded(number) => return Some(number),
                PrefixLookup::Absent => break,
                PrefixLookup::Damaged => {}
            }
        }
        let SlotChoice { target: number, common_tokens, copy, .. } = self.choose_slot(prefix)?;
        if self.slots[number].cached_tokens.len() >= common_tokens + MIN_GAIN {
            self.store_prompt(number);
        }
        let engine = &mut self.model.engine;
        let left = match copy {
            Some(SlotCopy { source, tokens }) => {
                engine.copy_sequence(self.slots[source].sequence, self.slots[number].sequence, tokens as u32)
            }
            None => engine.truncate_sequence(self.slots[number].sequence, common_tokens as u32),
        };
        let slot = &mut self.slots[number];
        slot.cached_tokens.clear();
        slot.cached_tokens.extend_from_slice(&prefix[..left.map_or(0, |left| left as usize).min(prefix.len())]);
        Some(number)
    }

    /// Returns whether kernels process the rows of a part in groups. Results then depend on where
    /// parts of a prompt begin.
    fn in_chunks(&self) -> bool {
        // For models with only attention, `min_rows` is two.
        self.callers == Callers::Many && (self.min_rows > 2 || !self.model.engine.cuts_steps())
    }

    /// Empties the least recently used free slot; `None` if all slots are in use.
    fn prepare_empty_slot(&mut self) -> Option<usize> {
        let number = self.choose_slot(&[])?.oldest;
        self.store_prompt(number);
        let slot = &mut self.slots[number];
        slot.cached_tokens.clear();
        // Every sequence can be truncated to length 0.
        let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        Some(number)
    }

    /// Chooses the slot for a prompt; `None` if no slot is free.
    fn choose_slot(&self, prefix: &[u32]) -> Option<SlotChoice> {
        let in_chunks = self.in_chunks();
        let common = |slot: &Slot| {
            if slot.is_private {
                return 0;
            }
            let mut equal = slot.cached_tokens.iter().zip(prefix).take_while(|(a, b)| a == b).count();
            let Some(sequence) = self.model.engine.sequence(slot.sequence) else { return 0 };
            loop {
                let reach = sequence.reach(equal as u32) as usize;
                // The rounding of recurrent states depends on where chunks begin, so a multiple of
                // a chunk is reused. Generated tokens were not computed in chunks.
                let excess = if in_chunks && reach <= slot.prompt_len { reach % CHUNK } else { 0 };
                match excess {
                    0 => return reach,
                    excess => equal = reach - excess,
                }
            }
        };
        let reused_tokens: Vec<usize> = self.slots.iter().map(common).collect();
        let free = || (0..self.slots.len()).filter(|&number| self.slots[number].active_request.is_none());
        let lost_tokens = |number: usize| self.slots[number].cached_tokens.len() - reused_tokens[number];
        let oldest =
            free().min_by_key(|&number| (!self.slots[number].cached_tokens.is_empty(), self.slots[number].last_use))?;
        let longest = reused_tokens.iter().copied().max().unwrap_or(0);
        let continued = free()
            .filter(|&number| reused_tokens[number] == longest && lost_tokens(number) <= MAX_LOST_TOKENS)
            .min_by_key(|&n| lost_tokens(n));
        let target = continued.unwrap_or(oldest);
        // Among slots with equally long common prefixes, prefer the most recently used, whose pages
        // are in the CPU's caches.
        let source = (0..reused_tokens.len())
            .filter(|&number| reused_tokens[number] == longest)
            .max_by_key(|&n| (self.slots[n].last_use, Reverse(n)));
        let copy =
            source.filter(|_| reused_tokens[target] < longest).map(|source| SlotCopy { source, tokens: longest });
        Some(SlotChoice { target, common_tokens: if copy.is_some() { 0 } else { reused_tokens[target] }, copy, oldest })
    }

    /// Loads a prompt's cached prefix into a slot, if it is longer than the common prefix of every
    /// slot. `None` if no slot is free.
    fn load_cached_prefix(&mut self, prefix: &[u32]) -> Option<PrefixLookup> {
        let choice = self.choose_slot(prefix)?;
        let oldest = choice.oldest;
        let id = self.slots[oldest].sequence;
        let is_more = |found: &Match| found.position as usize >= choice.reused_tokens() + MIN_GAIN;
        if !self.find_cached_prefix(id, prefix).is_some_and(|found| is_more(&found)) {
            return Some(PrefixLookup::Absent);
        }
        self.store_prompt(oldest);
        // Storing the slot's old state may have evicted the entry, so look it up again.
        let Some(found) = self.find_cached_prefix(id, prefix).filter(is_more) else {
            return Some(PrefixLookup::Absent);
        };
        let loaded = self.cache.as_mut().is_some_and(|cache| cache.load(&mut self.model.engine, id, &found));
        let slot = &mut self.slots[oldest];
        slot.cached_tokens.clear();
        if !loaded {
            let _ = self.model.engine.truncate_sequence(id, 0);
            return Some(PrefixLookup::Damaged);
        }
        let position = found.position as usize;
        slot.cached_tokens.extend_from_slice(&prefix[..position]);
        if self.in_chunks() && self.model.engine.cuts_steps() {
            self.truncate_slot(oldest, position - position % CHUNK);
        }
        Some(PrefixLookup::Loaded(oldest))
    }

    /// Returns the prompt cache's entry for a prompt.
    fn find_cached_prefix(&self, id: SequenceId, prefix: &[u32]) -> Option<Match> {
        self.cache.as_ref().and_then(|cache| cache.find_prefix(&self.model.engine, id, prefix))
    }
}
