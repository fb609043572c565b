//! A step of a generator: admits requests, computes rows, and samples tokens.
//!
//! ```text
//! admit ─▶ settle (masks) ─▶ rows ─▶ draft ─▶ compute ─▶ draw ─▶ truncate rejected drafts
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use ixc_grammar::GrammarError;
use ixc_runtime::engine::StepError;
use ixc_runtime::sample::log_probabilities_of;

use super::rows::Rows;
use super::{
    ActiveRequest, Callers, DraftCounts, End, Event, FinalState, Generator, LogProbs, MASK_WAIT_SHARE, MAX_MASK_WAIT,
    MIN_MASK_WAIT, Request, RequestId, StepRows,
};
use crate::Error;
use crate::loaded_model::LoadedModel;
use crate::masks::{Masks, Progress};
use crate::output_text::{OutputText, RestOfText, StopStrings};

/// Listener to the events of a step. `Break` after [`Event::Computed`] or [`Event::Token`] stops
/// the request.
pub(crate) type Listener<'l> = dyn FnMut(&LoadedModel, RequestId, Event) -> ControlFlow<()> + 'l;

/// Result of drawing tokens for a request.
#[derive(Debug)]
struct DrawnTokens {
    id: RequestId,
    /// Number of tokens of the sequence that belong to the request's text.
    text_len: usize,
    /// Tokens of the draft that were drawn.
    accepted: usize,
    end: Option<Result<End, Error>>,
}

impl Generator {
    /// Runs one step, if a request is waiting or active, and returns its events.
    pub fn step(&mut self) -> Vec<(RequestId, Event)> {
        let mut events = Vec::new();
        self.step_with(&mut |_, id, event| {
            events.push((id, event));
            ControlFlow::Continue(())
        });
        events
    }

    /// Runs one step, and calls the listener with each event as it happens. Waits a little if all
    /// requests wait for masks.
    pub(crate) fn step_with(&mut self, listener: &mut Listener<'_>) {
        self.steps += 1;
        let admitted = self.admit(listener);
        let settled = self.settle(admitted, listener);
        let mut rows = self.rows();
        let is_prompt = |number: usize| {
            self.slots[number].active_request.as_ref().is_some_and(|active| active.generated_tokens == 0)
        };
        let prompts = rows.iter().filter(|rows| is_prompt(rows.number)).map(|rows| rows.count).sum();
        if rows.is_empty() {
            self.last_rows = StepRows::default();
            // The last rows of a prompt that wait for a mask are not part of the step.
            if !(admitted || settled) && self.active_requests() > 0 {
                self.bell.wait(MAX_MASK_WAIT);
            }
            return;
        }
        // A step with prompts has enough rows already, and its time cannot be used to measure the
        // gain of drafts.
        let has_drafts = rows.iter().all(|rows| rows.count == 1) && prompts == 0;
        if has_drafts {
            self.draft(&mut rows);
        }
        let total = rows.iter().map(|rows| rows.count + rows.draft.len()).sum();
        self.last_rows = StepRows { total, prompt: prompts };
        let (begin, packing) = (Instant::now(), self.model.engine.packing_time());
        let computed = self.compute(&rows);
        self.last_step_time = begin.elapsed();
        if let Some(speculation) = self.speculation.as_mut().filter(|_| has_drafts && computed.is_ok()) {
            let packed = self.model.engine.packing_time().saturating_sub(packing);
            speculation.note_step(rows.len(), total, begin.elapsed().saturating_sub(packed));
        }
        if let Err(error) = computed {
            self.fail(&rows, &error, listener);
            return;
        }
        self.show_hidden_states(&rows);
        let (mut output, mut cuts) = (0, Vec::new());
        for rows in &rows {
            let Some(drawn) = self.draw(rows, output, listener) else { continue };
            output += 1 + rows.draft.len();
            if drawn.text_len < self.slots[rows.number].cached_tokens.len() {
                cuts.push((rows.number, drawn.text_len));
            }
            if has_drafts && let Some(speculation) = &mut self.speculation {
                speculation.note_draft(rows.number, rows.draft.len(), drawn.accepted);
            }
            if !rows.draft.is_empty() {
                let counts = DraftCounts { drafted: rows.draft.len(), accepted: drawn.accepted };
                let _ = listener(&self.model, drawn.id, Event::Drafted(counts));
            }
            if let Some(end) = drawn.end {
                self.end(rows.number, end, listener);
            }
        }
        // Truncation comes last, because truncating one sequence drops the logits of all. After a
        // context shift, the remaining text is a new prompt whose first tokens are cached.
        for (number, text_len) in cuts {
            self.truncate_slot(number, text_len);
        }
        self.forget_private();
    }

    /// Assigns free slots to waiting requests. Returns whether there were events.
    fn admit(&mut self, listener: &mut Listener<'_>) -> bool {
        let mut has_events = false;
        while let Some((id, request)) = self.waiting.pop_front() {
            let Some(number) = self.prepare_slot(&request.tokens, request.cache_prompt) else {
                self.waiting.push_front((id, request));
                break;
            };
            has_events = true;
            let active = match self.activate(id, request) {
                Ok(active) => active,
                Err(error) => {
                    let _ = listener(&self.model, id, Event::Failed(error));
                    continue;
                }
            };
            let slot = &mut self.slots[number];
            let event = Event::Begun { prompt: active.request.tokens.len(), reused: slot.cached_tokens.len() };
            (slot.is_private, slot.prompt_len) = (!active.request.cache_prompt, active.request.tokens.len());
            slot.active_request = Some(active);
            self.speculation.iter_mut().for_each(|speculation| speculation.begin(number));
            let _ = listener(&self.model, id, event);
        }
        has_events
    }

    /// Creates the sampler, the text and the masks of a request.
    fn activate(&self, id: RequestId, mut request: Request) -> Result<ActiveRequest, Error> {
        let sampler = request.sampler(&self.end_tokens)?;
        let follow =
            |grammar| Masks::follow(grammar, self.budget, &self.bell).map_err(Error::io("masks".as_ref(), "start"));
        // A request with a limit of 0 tokens needs no masks.
        let grammar = request.grammar.take().filter(|_| request.limit != Some(0));
        let masks = grammar.map(follow).transpose()?;
        let tokenizer = self.model.shared_tokenizer().ok().cloned();
        let output = OutputText::new(tokenizer, request.show_special, StopStrings::from(Arc::clone(&request.stop)));
        Ok(ActiveRequest { id, request, sampler, output, masks, pending_end: None, generated_tokens: 0 })
    }

    /// Waits a little for masks, and ends the requests whose grammars have ended or failed. If the
    /// grammar is complete before the first token, the request ends after its prompt is computed.
    /// Returns whether there were events; `admitted` tells whether there were events before.
    fn settle(&mut self, admitted: bool, listener: &mut Listener<'_>) -> bool {
        if self.callers == Callers::One {
            return false;
        }
        let (begin, mut ended) = (Instant::now(), false);
        loop {
            let (mut pending, mut others) = (false, false);
            for number in 0..self.slots.len() {
                let Some(active) = &mut self.slots[number].active_request else { continue };
                let end = match active.masks.as_mut().map(Masks::progress) {
                    Some(Err(error)) => Some(Err(error.into())),
                    Some(Ok(Progress::Ended)) if active.generated_tokens > 0 => Some(Ok(End::Grammar)),
                    Some(Ok(Progress::Making | Progress::Ready)) => active.pending_end.take().map(Ok),
                    _ => None,
                };
                let is_pending = active.masks.as_ref().is_some_and(Masks::is_pending);
                match end {
                    Some(end) => {
                        self.end(number, end, listener);
                        ended = true;
                    }
                    None if is_pending && self.needs_mask(number) => pending = true,
                    None => others = true,
                }
            }
            // If there are other requests, wait only for a fraction of a step's time.
            let most = if others { (self.last_step_time / MASK_WAIT_SHARE).max(MIN_MASK_WAIT) } else { MAX_MASK_WAIT };
            match most.checked_sub(begin.elapsed()) {
                Some(left) if pending && (!(admitted || ended) || others) => self.bell.wait(left),
                _ => break,
            }
        }
        self.forget_private();
        ended
    }

    /// Ends the request of a slot.
    fn end(&mut self, number: usize, end: Result<End, Error>, listener: &mut Listener<'_>) {
        let Some(ActiveRequest { id, request, sampler, output, .. }) = self.slots[number].active_request.take() else {
            return;
        };
        let event = match end {
            Ok(end) => {
                let RestOfText { text, stop } = output.finish();
                if !text.is_empty() {
                    let _ = listener(&self.model, id, Event::Text(text));
                }
                let state = FinalState { tokens: request.tokens, sampler: sampler.state() };
                Event::Ended { end: stop.map_or(end, End::StopString), state }
            }
            Err(error) => Event::Failed(error),
        };
        let _ = listener(&self.model, id, event);
    }

    /// Ends the requests of a step that failed.
    fn fail(&mut self, rows: &[Rows], error: &StepError, listener: &mut Listener<'_>) {
        for &Rows { number, .. } in rows {
            let slot = &mut self.slots[number];
            let left = self.model.engine.sequence(slot.sequence).map_or(0, |sequence| sequence.position());
            slot.cached_tokens.truncate(left as usize);
            self.end(number, Err(error.clone().into()), listener);
        }
        self.forget_private();
    }

    /// Records the rows that a step computed for a slot. If the request's last row was among them,
    /// draws tokens; `output` is the index of their logits.
    fn draw(&mut self, rows: &Rows, output: usize, listener: &mut Listener<'_>) -> Option<DrawnTokens> {
        let Rows { number, count, draft } = rows;
        let slot = &mut self.slots[*number];
        let active = slot.active_request.as_mut()?;
        let id = active.id;
        let begin = slot.cached_tokens.len();
        slot.cached_tokens.extend_from_slice(&active.request.tokens[begin..begin + count]);
        slot.last_use = self.steps;
        // Tokens of the sequence that belong to the request's text.
        let mut text_len = slot.cached_tokens.len();
        let is_stopped = listener(&self.model, id, Event::Computed { tokens: *count, position: text_len }).is_break();
        if text_len < active.request.tokens.len() {
            if is_stopped {
                self.end(*number, Ok(End::Stopped), listener);
            }
            return None;
        }
        slot.cached_tokens.extend_from_slice(draft);
        let (context, mut accepted) = (self.model.engine.context() as usize, 0);
        // Each token is sampled as without speculation. If it equals the draft, the next logits are
        // available.
        let end = loop {
            if is_stopped {
                break Some(Ok(End::Stopped));
            }
            if active.request.limit == Some(0) {
                break Some(Ok(End::Limit));
            }
            if let Some(masks) = &mut active.masks {
                match prepare_mask(self.callers, masks) {
                    Err(error) => break Some(Err(error.into())),
                    Ok(true) => break Some(Ok(End::Grammar)),
                    Ok(false) => {}
                }
            }
            let logits = self.model.engine.logits(output + accepted);
            let mask = active.masks.as_ref().and_then(Masks::mask);
            let token = match active.sampler.sample_allowed(logits, mask, &self.model.engine) {
                Err(error) => break Some(Err(error.into())),
                Ok(token) if self.end_tokens.contains(&token) => break Some(Ok(End::Token(token))),
                Ok(token) => token,
            };
            let log_probs = active.request.top_logprobs.map(|count| {
                let (token, top) = match active.request.after_sampling {
                    true => active.sampler.log_probabilities(token, count),
                    false => log_probabilities_of(logits, token, count),
                };
                LogProbs { token, top }
            });
            active.generated_tokens += 1;
            active.request.tokens.push(token);
            let is_stop_token = active.request.stop_tokens.contains(&token);
            let text = if is_stop_token { String::new() } else { active.output.push(token) };
            let is_cancelled = listener(&self.model, id, Event::Token { token, text, log_probs }).is_break();
            // The text of a stop string is removed later, in `end`.
            if is_stop_token || active.output.stopped() {
                break Some(Ok(End::Token(token)));
            }
            if is_cancelled {
                break Some(Ok(End::Stopped));
            }
            let is_full = active.request.tokens.len() > context;
            let mut end = match active.request.limit {
                limit if limit == Some(active.generated_tokens) => Some(End::Limit),
                _ if is_full && self.shift.is_none() => Some(End::Context),
                _ => None,
            };
            if let Some(masks) = &mut active.masks {
                masks.accept(token);
                // A single caller waits for the grammar here, because a complete text ends the
                // request.
                match self.callers {
                    Callers::One => match masks.is_ended() {
                        Err(error) => break Some(Err(error.into())),
                        Ok(true) => end = Some(End::Grammar),
                        Ok(false) => {}
                    },
                    Callers::Many => active.pending_end = end.take(),
                }
            }
            if end.is_some() {
                break end.map(Ok);
            }
            if let Some(shift) = self.shift.filter(|_| is_full && active.pending_end.is_none()) {
                active.request.tokens = shift.remaining(&active.request.tokens, context);
                // The last token's logits are needed, even if its states are cached.
                let (_, before) = active.request.tokens.split_last()?;
                let common = slot.cached_tokens.iter().zip(before).take_while(|(a, b)| a == b).count();
                text_len = text_len.min(common);
                let _ = listener(&self.model, id, Event::Shifted);
            }
            // A full context has no room for drafted tokens.
            if is_full || active.pending_end.is_some() || draft.get(accepted) != Some(&token) {
                break None;
            }
            if let (Callers::Many, Some(masks)) = (self.callers, &mut active.masks) {
                match masks.wait(MIN_MASK_WAIT) {
                    Err(error) => break Some(Err(error.into())),
                    Ok(true) if masks.mask().is_some() => {}
                    Ok(_) => break None,
                }
            }
            accepted += 1;
            text_len += 1;
        };
        Some(DrawnTokens { id, text_len, accepted, end })
    }
}

/// Prepares the mask of a request's next token. Returns whether the text is already complete, which
/// is possible if the answer continues a given text.
fn prepare_mask(callers: Callers, masks: &mut Masks) -> Result<bool, GrammarError> {
    if callers == Callers::One {
        masks.wait_for_mask()?;
    }
    Ok(*masks.progress()? == Progress::Ended)
}
