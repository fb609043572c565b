//! Rows of a step: which slots have rows, how many, and the drafts that follow them.

use ixc_ir::plan::MAX_OUTPUTS;
use ixc_runtime::engine::{Addition, StepError};

use super::{ActiveRequest, CHUNK, Callers, Generator, PROMPT_PART, Slot};
use crate::masks::Masks;
use crate::speculate::{HiddenStates, Text};

/// Rows that a step computes for a slot.
#[derive(Debug)]
pub(super) struct Rows {
    /// Number of the slot.
    pub(super) number: usize,
    /// Number of the request's tokens in the step.
    pub(super) count: usize,
    /// Drafted tokens that follow the rows.
    pub(super) draft: Vec<u32>,
}

impl Rows {
    fn new(number: usize, count: usize) -> Rows {
        Rows { number, count, draft: Vec::new() }
    }
}

impl Generator {
    /// Returns whether the next rows of a slot give logits that need a mask.
    pub(super) fn needs_mask(&self, number: usize) -> bool {
        let slot = &self.slots[number];
        let left = |active: &ActiveRequest| active.request.tokens.len() - slot.cached_tokens.len();
        slot.active_request.as_ref().is_some_and(|active| left(active) <= 1 || active.pending_end.is_some())
    }

    /// Drafts tokens for a step that computes only the last token of each request.
    pub(super) fn draft(&mut self, rows: &mut [Rows]) {
        let Some(speculation) = &mut self.speculation else { return };
        let engine = &self.model.engine;
        let most = engine.max_tokens().min(engine.max_additions()).min(MAX_OUTPUTS) as usize;
        let room = most.saturating_sub(rows.len());
        let context = engine.context() as usize;
        let slots = &self.slots;
        let text = |rows: &Rows| {
            let ActiveRequest { request, generated_tokens, .. } = slots[rows.number].active_request.as_ref()?;
            let left = request.limit.map_or(usize::MAX, |limit| limit.saturating_sub(generated_tokens + 1));
            let max_draft = context.saturating_sub(request.tokens.len()).min(left);
            Some(Text { slot: rows.number, tokens: &request.tokens, max_draft, draft: Vec::new() })
        };
        let texts: Vec<Text<'_>> = rows.iter().filter_map(text).collect();
        if texts.len() == rows.len() {
            let drafts = speculation.draft(texts, room);
            rows.iter_mut().zip(drafts).for_each(|(rows, draft)| rows.draft = draft);
        }
    }

    /// Passes the hidden states of a step to a drafter that uses them.
    pub(super) fn show_hidden_states(&mut self, rows: &[Rows]) {
        let Some(speculation) = self.speculation.as_mut().filter(|speculation| speculation.needs_hidden_states())
        else {
            return;
        };
        let engine = &self.model.engine;
        let (mut hidden, width) = (engine.hidden_states(), engine.gives_hidden().unwrap_or(0) as usize);
        let mut texts = Vec::with_capacity(rows.len());
        for Rows { number, count, draft } in rows {
            let slot = &self.slots[*number];
            let Some(active) = &slot.active_request else { continue };
            let begin = slot.cached_tokens.len();
            let own = hidden.split_off(..(count + draft.len()) * width).unwrap_or(&[]);
            let tokens = &active.request.tokens[begin..begin + count];
            texts.push(HiddenStates { slot: *number, before: &slot.cached_tokens, tokens, draft, hidden: own });
        }
        speculation.observe(&texts);
    }

    /// Chooses the rows of the next step, without drafts.
    pub(super) fn rows(&self) -> Vec<Rows> {
        let most = self.model.max_tokens();
        let active = || {
            self.slots
                .iter()
                .enumerate()
                .filter_map(|(number, slot)| Some((number, slot, slot.active_request.as_ref()?)))
        };
        let left = |slot: &Slot, active: &ActiveRequest| active.request.tokens.len() - slot.cached_tokens.len();
        let is_pending = |active: &ActiveRequest| active.masks.as_ref().is_some_and(Masks::is_pending);
        let waits = |active: &ActiveRequest| self.callers == Callers::Many && is_pending(active);
        let (mut single, mut prompts): (Vec<_>, Vec<_>) = active()
            .filter(|(_, _, active)| active.pending_end.is_none())
            .partition(|(_, slot, active)| left(slot, active) == 1);
        single.retain(|(_, _, active)| !waits(active));
        // If a step has fewer rows than there are sequences, the sequences that have waited longest
        // come first, and one row is left for a prompt.
        single.sort_by_key(|(_, slot, _)| slot.last_use);
        let most_single = if prompts.is_empty() { most } else { most.saturating_sub(1).max(1) };
        let mut rows: Vec<Rows> = single.iter().map(|(number, ..)| Rows::new(*number, 1)).take(most_single).collect();
        let mut room = most - rows.len();
        if !rows.is_empty() {
            room = room.min(self.prompt_rows);
        }
        // The remaining rows of a step may be fewer than a part of a prompt.
        let unit = if room < PROMPT_PART { CHUNK } else { PROMPT_PART };
        prompts.sort_by_key(|(.., active)| active.id);
        for (number, slot, active) in prompts {
            let left = left(slot, active);
            let count = self.part(left, room, unit);
            // The last row of a prompt returns logits. It waits until the mask is ready.
            if count > 0 && !(count == left && waits(active)) {
                rows.push(Rows::new(number, count));
                room -= count;
            }
        }
        rows
    }

    /// Returns how many of a prompt's `left` remaining tokens are computed in the next step: all,
    /// or a multiple of `unit`. Neither the computed tokens nor the tokens after them are fewer
    /// than [`Generator::min_rows`].
    fn part(&self, left: usize, room: usize, unit: usize) -> usize {
        if left <= room || self.callers == Callers::One {
            return left.min(room);
        }
        // Number of prompt rows that is always available, even if all other slots have a token in
        // the step.
        let always = self.prompt_rows.min((self.model.max_tokens() + 1).saturating_sub(self.slots.len()));
        if always < 2 * (self.min_rows + CHUNK) {
            // Steps are too short to guarantee the min number of rows.
            return if room < unit { room } else { room - room % unit };
        }
        let whole = room - room % unit;
        let short = self.min_rows.saturating_sub(left - whole);
        let count = whole.saturating_sub(short.next_multiple_of(CHUNK));
        if count < self.min_rows { 0 } else { count }
    }

    /// Computes the rows of a step. Each drafted token is a separate part of the step, so that its
    /// results are bit-identical to a step of one token.
    pub(super) fn compute(&mut self, rows: &[Rows]) -> Result<(), StepError> {
        let mut parts = Vec::with_capacity(rows.len());
        for Rows { number, count, draft } in rows {
            let slot = &self.slots[*number];
            let Some(active) = &slot.active_request else { continue };
            let begin = slot.cached_tokens.len();
            let last = (begin + count == active.request.tokens.len()).then_some(*count as u32 - 1);
            parts.push((slot.sequence, &active.request.tokens[begin..begin + count], last));
            parts.extend(draft.chunks(1).map(|token| (slot.sequence, token, Some(0))));
        }
        let additions: Vec<Addition<'_>> = parts
            .iter()
            .map(|(sequence, tokens, last)| Addition { sequence: *sequence, tokens, outputs: last.as_slice() })
            .collect();
        self.model.engine.step_batch(&additions).map(drop)
    }
}
