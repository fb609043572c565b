//! Small model that drafts tokens for a larger one: a [`Drafter`].
//!
//! ```text
//! text             the cat sat on the          the small model reads its unread tokens
//! its likeliest    mat (0.9) | and (0.7) | is (0.2)
//! guess            mat | and                    up to the first token that it is not sure of
//! ```
//!
//! The small model has a sequence for each slot of the generator, with the same context. Rejected
//! draft tokens are truncated, so that the small model's KV cache always matches the text. It reads
//! a long prompt in parts ([`MAX_READ`]) between the larger model's steps, and drafts nothing
//! meanwhile.

use std::time::{Duration, Instant};

use ixc_runtime::engine::{Addition, Engine, FIRST, SequenceId, StepError};
use ixc_text::tokenizer::Tokenizer;

use crate::Error;
use crate::error::draft::DraftError;
use crate::loaded_model::LoadedModel;
use crate::speculate::{Drafter, Text};

/// Max number of tokens of a text that the small model has not read when it drafts. If there are
/// more, it reads them first, and drafts nothing.
const MAX_UNREAD: usize = 16;
/// Max number of tokens of a text that the small model reads between two steps of the larger model.
const MAX_READ: usize = 256;

/// Options of drafting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftModelOptions {
    /// Min probability of a draft token; a less likely token ends the draft.
    pub min_probability: f32,
}

impl Default for DraftModelOptions {
    fn default() -> DraftModelOptions {
        DraftModelOptions { min_probability: 0.5 }
    }
}

/// Sequence of the small model.
#[derive(Debug)]
struct DraftSequence {
    sequence: SequenceId,
    /// Tokens in the sequence's state.
    cached: Vec<u32>,
}

/// Small model that drafts for a larger one.
#[derive(Debug)]
pub struct DraftModel {
    engine: Engine,
    lanes: Vec<DraftSequence>,
    options: DraftModelOptions,
    /// Number of token ids that both vocabularies have.
    vocabulary: u32,
}

/// Tokens that are added to the sequence of a slot.
struct Part<T> {
    slot: usize,
    tokens: T,
}

impl DraftModel {
    /// Creates a drafter for as many texts as the small model has sequences.
    ///
    /// # Errors
    /// [`Error::Draft`] if the vocabularies differ, or the small model's states cannot be
    /// truncated. Also if there is not enough memory.
    pub fn new(small: LoadedModel, large: &LoadedModel, options: DraftModelOptions) -> Result<DraftModel, Error> {
        check(small.tokenizer()?, large.tokenizer()?)?;
        let vocabulary = small.vocabulary().min(large.vocabulary()) as u32;
        let mut engine = small.engine;
        if !engine.cuts_steps() {
            return Err(DraftError::Uncut.into());
        }
        engine.reset();
        let mut lanes = vec![DraftSequence { sequence: FIRST, cached: Vec::new() }];
        while lanes.len() < engine.sequences() as usize {
            lanes.push(DraftSequence { sequence: engine.add_sequence()?, cached: Vec::new() });
        }
        Ok(DraftModel { engine, lanes, options, vocabulary })
    }

    /// Truncates a sequence to its common prefix with a text, without the text's last token.
    fn cut(&mut self, slot: usize, tokens: &[u32]) -> Result<(), StepError> {
        let lane = &mut self.lanes[slot];
        let wanted = &tokens[..tokens.len() - 1];
        let common = lane.cached.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let left = self.engine.truncate_sequence(lane.sequence, common as u32)?;
        lane.cached.truncate(left as usize);
        Ok(())
    }

    /// Computes tokens of some sequences, and returns the likeliest next token of each, with its
    /// probability.
    fn read(&mut self, parts: &[Part<Vec<u32>>]) -> Result<Vec<(u32, f32)>, StepError> {
        let most = self.engine.max_tokens() as usize;
        let mut found = Vec::with_capacity(parts.len());
        let mut rest = parts;
        while let Some(Part { slot, tokens }) = rest.first() {
            if tokens.len() > most {
                // If a sequence has more tokens than a step allows, they take several steps.
                let sequence = self.lanes[*slot].sequence;
                let (all, last) = (tokens.chunks(most), tokens.len().div_ceil(most) - 1);
                for (number, part) in all.enumerate() {
                    let row = [part.len() as u32 - 1];
                    let outputs = if number == last { &row[..] } else { &[] };
                    self.step(&[Part { slot: *slot, tokens: part }], &[Addition { sequence, tokens: part, outputs }])?;
                }
                found.push(most_likely_token(self.engine.logits(0), self.vocabulary));
                rest = &rest[1..];
                continue;
            }
            let mut rows = 0;
            let fits = |part: &&Part<Vec<u32>>| {
                rows += part.tokens.len();
                rows <= most
            };
            let count = rest.iter().take_while(fits).count();
            let (now, later) = rest.split_at(count);
            let outputs: Vec<[u32; 1]> = now.iter().map(|part| [part.tokens.len() as u32 - 1]).collect();
            let additions: Vec<Addition<'_>> = now
                .iter()
                .zip(&outputs)
                .map(|(part, outputs)| {
                    let sequence = self.lanes[part.slot].sequence;
                    Addition { sequence, tokens: &part.tokens, outputs }
                })
                .collect();
            let parts: Vec<Part<&[u32]>> =
                now.iter().map(|part| Part { slot: part.slot, tokens: &part.tokens[..] }).collect();
            self.step(&parts, &additions)?;
            found.extend((0..count).map(|row| most_likely_token(self.engine.logits(row), self.vocabulary)));
            rest = later;
        }
        Ok(found)
    }

    fn step(&mut self, parts: &[Part<&[u32]>], additions: &[Addition<'_>]) -> Result<(), StepError> {
        self.engine.step_batch(additions)?;
        for Part { slot, tokens } in parts {
            self.lanes[*slot].cached.extend_from_slice(tokens);
        }
        Ok(())
    }
}

impl Drafter for DraftModel {
    fn name(&self) -> &'static str {
        "draft"
    }

    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error> {
        let (context, vocabulary) = (self.engine.context() as usize, self.engine.vocabulary());
        let (mut open, mut parts) = (Vec::new(), Vec::new());
        for (number, text) in texts.iter_mut().enumerate() {
            // The last draft token is not read, so it needs no position in the context.
            text.max_draft = text.max_draft.min(context.saturating_sub(text.tokens.len()) + 1);
            let fits = text.tokens.len() <= context && text.slot < self.lanes.len() && text.max_draft > 0;
            if !fits || text.tokens.iter().any(|token| *token >= vocabulary) {
                continue;
            }
            self.cut(text.slot, text.tokens)?;
            let unread = &text.tokens[self.lanes[text.slot].cached.len()..];
            if unread.len() > MAX_UNREAD {
                let part = &unread[..unread.len().min(MAX_READ).min(unread.len() - 1)];
                self.read(&[Part { slot: text.slot, tokens: part.to_vec() }])?;
                continue;
            }
            parts.push(Part { slot: text.slot, tokens: unread.to_vec() });
            open.push(number);
        }
        let begin = Instant::now();
        while !open.is_empty() {
            let found = self.read(&parts)?;
            parts.clear();
            let mut left = Vec::new();
            for (number, (token, probability)) in open.into_iter().zip(found) {
                let text = &mut texts[number];
                if probability < self.options.min_probability {
                    continue;
                }
                text.draft.push(token);
                if text.draft.len() < text.max_draft {
                    parts.push(Part { slot: text.slot, tokens: vec![token] });
                    left.push(number);
                }
            }
            open = left;
        }
        Ok(begin.elapsed())
    }
}

/// Returns the likeliest token below `vocabulary` and its probability; among equal ones, the
/// lowest.
pub(crate) fn most_likely_token(logits: &[f32], vocabulary: u32) -> (u32, f32) {
    let shared = (0..vocabulary).zip(logits);
    let best =
        shared.fold((0, f32::NEG_INFINITY), |best, (token, &logit)| if logit > best.1 { (token, logit) } else { best });
    let sum: f32 = logits.iter().map(|logit| (logit - best.1).exp()).sum();
    (best.0, 1.0 / sum)
}

/// Checks that tokens have the same text in both vocabularies. One vocabulary may have more tokens
/// at the end, since rows of embeddings are padded differently.
fn check(draft: &Tokenizer, model: &Tokenizer) -> Result<(), Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for id in 0..draft.token_count().min(model.token_count()) as u32 {
        let (own, other) = (draft.token_bytes(id)?, model.token_bytes(id)?);
        if own != other {
            return Err(DraftError::Token { id, draft: text(own), model: text(other) }.into());
        }
        let (draft_is_text, model_is_text) = (draft.is_text(id), model.is_text(id));
        if draft_is_text != model_is_text {
            return Err(DraftError::Kind { id, text: text(own), draft_is_text, model_is_text }.into());
        }
    }
    match (draft.add_bos(), model.add_bos()) {
        (draft, model) if draft != model => Err(DraftError::Begin { draft, model }.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::most_likely_token;

    #[test]
    fn draft_model_returns_likeliest_token_and_probability() {
        let logits = [1.0f32, 3.0, 3.0, 9.0];
        let (token, probability) = most_likely_token(&logits, 3);
        // Its probability is low, because a token that the larger model lacks has a higher logit.
        assert_eq!(token, 1);
        assert!((probability - 1.0 / (2.0 + (-2.0f32).exp() + 6.0f32.exp())).abs() < 1e-6);
        assert_eq!(most_likely_token(&[0.0], 1), (0, 1.0));
    }
}
