//! Choice of the slot for a request, with reuse of the prompt's beginning.
//!
//! ```text
//! slots    0: system prompt, agent a      1: empty                         2: another text
//! agent b  copies the system prompt from 0 to the empty slot 1, and computes its own tokens there
//! agent a  continues in 0, and agent b in 1: their earlier tokens are there
//! agent c  copies the system prompt to 2, the least recently used slot
//! ```
//!
//! A request continues in the free slot with the longest common prefix, if the slot loses little
//! else by that. Otherwise that slot stays unchanged. A copy of the common prefix then goes into
//! the free slot that was used least recently; both share the copied pages. So alternating texts
//! keep their tokens while there are enough slots, and the least recently used ones are lost.
//!
//! Invariant: a busy slot can be copied and never changes.

use std::cmp::Reverse;

use ixc_runtime::engine::SequenceId;

use super::{CHUNK, Callers, Generator, Slot};
use crate::prompt_cache::{LEAST_GAIN, Match};

/// Max number of lookups of a prompt in the prompt cache, if entries turn out to be damaged or
/// missing. Reading an entry takes time.
const MOST_TRIES: usize = 3;
/// Max number of tokens that a slot may lose to a request that continues in it, while there are
/// other slots. A repeated text differs at its end: in the template's words before an answer, and
/// in tokens of words that were split differently.
const MOST_CUT: usize = LEAST_GAIN;

/// Slot in which a prompt continues.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// The free slot for the request.
    into: usize,
    /// Number of its tokens that stay.
    stays: usize,
    /// Another slot with more of the prompt, which is copied first, and the number of tokens.
    copied: Option<(usize, usize)>,
    /// The free slot that was used least recently.
    oldest: usize,
}

impl Choice {
    /// Returns the number of reused prompt tokens.
    fn held(&self) -> usize {
        self.copied.map_or(self.stays, |(_, held)| held)
    }
}

/// Result of looking a prompt up in the prompt cache.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// The entry was loaded into this slot.
    Loaded(usize),
    /// The entry could not be loaded, and was removed.
    Lost,
    /// There is no entry that is worth loading.
    Nothing,
}

impl Generator {
    /// Prepares a slot for a request, so that it holds a prefix of the request's tokens and nothing
    /// else. If the prompt cache has a longer prefix, it is loaded into the least recently used
    /// slot. `None` if no slot is free.
    pub(super) fn choose(&mut self, tokens: &[u32], reuses: bool) -> Option<usize> {
        if !reuses {
            return self.choose_empty();
        }
        // The last tokens are always computed, with enough rows to give the bits of a new prompt.
        let computed = match self.callers {
            Callers::One => 1,
            Callers::Many => self.least.max(1),
        };
        let most = tokens.len().saturating_sub(computed);
        let wanted = &tokens[..if self.in_chunks() { most - most % CHUNK } else { most }];
        // An entry that cannot be loaded is removed, so that the next best is tried.
        for _ in 0..MOST_TRIES {
            match self.load_kept(wanted)? {
                Kept::Loaded(number) => return Some(number),
                Kept::Nothing => break,
                Kept::Lost => {}
            }
        }
        let Choice { into: number, stays, copied, .. } = self.choice(wanted)?;
        if self.slots[number].cached.len() >= stays + LEAST_GAIN {
            self.keep(number);
        }
        let engine = &mut self.model.engine;
        let left = match copied {
            Some((other, held)) => {
                engine.copy_sequence(self.slots[other].sequence, self.slots[number].sequence, held as u32)
            }
            None => engine.truncate_sequence(self.slots[number].sequence, stays as u32),
        };
        let slot = &mut self.slots[number];
        slot.cached.clear();
        slot.cached.extend_from_slice(&wanted[..left.map_or(0, |left| left as usize).min(wanted.len())]);
        Some(number)
    }

    /// Whether kernels group the rows of a part. Bits then depend on where parts of a prompt begin.
    fn in_chunks(&self) -> bool {
        // Attention alone needs two rows.
        self.callers == Callers::Many && (self.least > 2 || !self.model.engine.cuts_steps())
    }

    /// Empties the least recently used free slot; `None` if all slots are in use.
    fn choose_empty(&mut self) -> Option<usize> {
        let number = self.choice(&[])?.oldest;
        self.keep(number);
        let slot = &mut self.slots[number];
        slot.cached.clear();
        // A sequence is cut to its beginning in any case.
        let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        Some(number)
    }

    /// Chooses the slot for a prompt; `None` if no slot is free.
    fn choice(&self, wanted: &[u32]) -> Option<Choice> {
        let in_chunks = self.in_chunks();
        let common = |slot: &Slot| {
            if slot.is_private {
                return 0;
            }
            let mut equal = slot.cached.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            let Some(sequence) = self.model.engine.sequence(slot.sequence) else { return 0 };
            loop {
                let reach = sequence.reach(equal as u32) as usize;
                // Rounding of recurrent states depends on where chunks begin. Generated tokens were
                // not in chunks.
                let excess = if in_chunks && reach <= slot.prompt { reach % CHUNK } else { 0 };
                match excess {
                    0 => return reach,
                    excess => equal = reach - excess,
                }
            }
        };
        let held: Vec<usize> = self.slots.iter().map(common).collect();
        let free = || (0..self.slots.len()).filter(|&number| self.slots[number].active.is_none());
        let cut = |number: usize| self.slots[number].cached.len() - held[number];
        let oldest = free().min_by_key(|&number| (!self.slots[number].cached.is_empty(), self.slots[number].used))?;
        let most = held.iter().copied().max().unwrap_or(0);
        let goes_on = free().filter(|&number| held[number] == most && cut(number) <= MOST_CUT).min_by_key(|&n| cut(n));
        let into = goes_on.unwrap_or(oldest);
        // Among slots with equally many tokens, prefer the most recently used, whose pages are in
        // caches.
        let other =
            (0..held.len()).filter(|&number| held[number] == most).max_by_key(|&n| (self.slots[n].used, Reverse(n)));
        let copied = other.filter(|_| held[into] < most).map(|number| (number, most));
        Some(Choice { into, stays: if copied.is_some() { 0 } else { held[into] }, copied, oldest })
    }

    /// Loads a prompt's cached prefix into a slot, if it is longer than those in all slots; `None`
    /// if no slot is free.
    fn load_kept(&mut self, wanted: &[u32]) -> Option<Kept> {
        let choice = self.choice(wanted)?;
        let oldest = choice.oldest;
        let id = self.slots[oldest].sequence;
        let is_more = |found: &Match| found.position as usize >= choice.held() + LEAST_GAIN;
        if !self.find_kept(id, wanted).is_some_and(|found| is_more(&found)) {
            return Some(Kept::Nothing);
        }
        self.keep(oldest);
        // Storing the old state may have evicted the entry, so look it up again.
        let Some(found) = self.find_kept(id, wanted).filter(is_more) else { return Some(Kept::Nothing) };
        let loaded = self.cache.as_mut().is_some_and(|cache| cache.load(&mut self.model.engine, id, &found));
        let slot = &mut self.slots[oldest];
        slot.cached.clear();
        if !loaded {
            let _ = self.model.engine.truncate_sequence(id, 0);
            return Some(Kept::Lost);
        }
        let position = found.position as usize;
        slot.cached.extend_from_slice(&wanted[..position]);
        if self.in_chunks() && self.model.engine.cuts_steps() {
            self.cut(oldest, position - position % CHUNK);
        }
        Some(Kept::Loaded(oldest))
    }

    /// Returns the prompt cache's entry for a prompt.
    fn find_kept(&self, id: SequenceId, wanted: &[u32]) -> Option<Match> {
        self.cache.as_ref().and_then(|cache| cache.find_prefix(&self.model.engine, id, wanted))
    }
}
