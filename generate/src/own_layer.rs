//! The model's own draft layer ("nextn", multi-token prediction): a [`Drafter`].
//!
//! ```text
//! text             the cat sat on the             read by the model, except its last token
//!                  one entry for each token but the first, in the layer's own keys and values:
//! entries          (h of the, cat) (h of cat, sat) (h of sat, on) (h of on, the)
//! guess            mat, from the last entry | and, from (the layer's own h there, mat)
//! ```
//!
//! After every step, the layer receives the model's hidden states ([`HiddenStates`]). A hidden
//! state is queued until the next token is known. At the next draft, or when the queue is long,
//! queued states become entries of the layer's KV cache.
//!
//! Entries of draft tokens are removed again, because they contain the layer's hidden states
//! instead of the model's. If the model's sequence is truncated, the entries of its removed tokens
//! are removed, too. The states of the model's sequence may come from a copy, a file or the prompt
//! cache. Their tokens have no entries, and the layer drafts without them.
//!
//! The first draft layer drafts all tokens, each from its own output for the previous token.
//!
//! Invariant: each entry belongs to a token of the text, and follows the entries of earlier tokens.
//! Missing entries change drafts, but never the generated tokens.

use std::time::{Duration, Instant};

use ixc_runtime::engine::{Addition, Engine, FIRST, SequenceId, StepError};

use crate::Error;
use crate::draft_model::{DraftModelOptions, most_likely_token};
use crate::error::draft::OwnLayerError;
use crate::loaded_model::LoadedModel;
use crate::speculate::{Drafter, HiddenStates, MAX_ROWS, Text};

/// Max number of queued hidden states; if there are more, they become entries. A step with drafts
/// has at most this many rows, and the queue is empty before it. So no draft token becomes an entry
/// before it is accepted.
const MAX_WAITING: usize = MAX_ROWS;

/// The layer's state for a text.
#[derive(Debug)]
struct LayerSequence {
    sequence: SequenceId,
    /// Entries in the layer's keys and values, in order: position in the text, and token.
    entries: Vec<(usize, u32)>,
    /// Tokens that the model has read.
    text: Vec<u32>,
    /// Hidden states of the last tokens, which are not yet in entries.
    hidden: Vec<f32>,
}

/// Tokens that become entries of a sequence, each with the hidden state of the previous token.
#[derive(Debug)]
struct EntryBatch {
    slot: usize,
    tokens: Vec<u32>,
    hidden: Vec<f32>,
}

/// Prediction after the last entry of a batch.
#[derive(Debug)]
struct Prediction {
    token: u32,
    probability: f32,
    hidden: Vec<f32>,
}

/// The model's own draft layer.
#[derive(Debug)]
pub struct OwnLayer {
    engine: Engine,
    lanes: Vec<LayerSequence>,
    options: DraftModelOptions,
    /// Elements of a hidden state.
    width: usize,
}

impl OwnLayer {
    /// Creates a drafter for as many texts as the layer has sequences. The layer must be loaded
    /// with [`Nextn::Alone`](ixc_architectures::Nextn::Alone), and the model with
    /// [`Nextn::Fed`](ixc_architectures::Nextn::Fed).
    ///
    /// # Errors
    /// [`Error::OwnLayer`] if the layer does not match the model. Also if there is not enough
    /// memory.
    pub fn new(layer: LoadedModel, model: &LoadedModel, options: DraftModelOptions) -> Result<OwnLayer, Error> {
        let mut engine = layer.engine;
        let Some(input_width) = engine.takes_hidden().filter(|input_width| engine.gives_hidden() == Some(*input_width))
        else {
            return Err(OwnLayerError::Layer.into());
        };
        let output_width = model.engine.gives_hidden();
        if output_width != Some(input_width) {
            return Err(OwnLayerError::Hidden { takes: input_width, gives: output_width }.into());
        }
        let [of_layer, of_model] = [&engine, &model.engine].map(Engine::vocabulary);
        if of_layer != of_model {
            return Err(OwnLayerError::Vocabulary { layer: of_layer, model: of_model }.into());
        }
        if !engine.cuts_steps() {
            return Err(OwnLayerError::Uncut.into());
        }
        engine.reset();
        let lane = |sequence| LayerSequence { sequence, entries: Vec::new(), text: Vec::new(), hidden: Vec::new() };
        let mut lanes = vec![lane(FIRST)];
        while lanes.len() < engine.sequences() as usize {
            lanes.push(lane(engine.add_sequence()?));
        }
        Ok(OwnLayer { engine, lanes, options, width: input_width as usize })
    }

    /// Prepares a sequence for a text: the model has computed the tokens `read`, and `next`
    /// follows.
    fn prepare_sequence(&mut self, slot: usize, read: &[u32], next: Option<u32>) -> Result<(), StepError> {
        let (lane, width) = (&mut self.lanes[slot], self.width);
        let common = lane.text.iter().zip(read).take_while(|(a, b)| a == b).count();
        let first = lane.text.len() - lane.hidden.len() / width;
        lane.text.truncate(common);
        lane.hidden.truncate(common.saturating_sub(first) * width);
        if common < read.len() {
            // The model's state was not computed here (a copy, a file or the prompt cache), so
            // hidden states are missing.
            lane.hidden.clear();
            lane.text.extend_from_slice(&read[common..]);
        }
        let token = |at: usize| read.get(at).copied().or(next.filter(|_| at == read.len()));
        let is_entry_of_text = |(at, entry): &&(usize, u32)| *at <= common && token(*at) == Some(*entry);
        let kept_entries = lane.entries.iter().take_while(is_entry_of_text).count();
        if kept_entries < lane.entries.len() {
            let left = self.engine.truncate_sequence(lane.sequence, kept_entries as u32)?;
            lane.entries.truncate(left as usize);
        }
        Ok(())
    }

    /// Takes the queued hidden states of a sequence whose next tokens are known; `next` is the
    /// token after the computed ones.
    fn take_waiting(&mut self, slot: usize, next: Option<u32>) -> EntryBatch {
        let (lane, width) = (&mut self.lanes[slot], self.width);
        let first = lane.text.len() - lane.hidden.len() / width;
        let tokens: Vec<u32> = lane.text.iter().skip(first + 1).copied().chain(next).collect();
        let tokens = if lane.hidden.is_empty() { Vec::new() } else { tokens };
        let rest = lane.hidden.split_off(tokens.len() * width);
        let hidden = std::mem::replace(&mut lane.hidden, rest);
        lane.entries.extend(tokens.iter().enumerate().map(|(at, token)| (first + 1 + at, *token)));
        EntryBatch { slot, tokens, hidden }
    }

    /// Adds entries, in as many steps as necessary. If `wanted`, returns the prediction after the
    /// last entry of each part.
    fn add_entries(&mut self, parts: &[EntryBatch], wanted: bool) -> Result<Vec<Prediction>, StepError> {
        let (most, width) = (self.engine.max_tokens() as usize, self.width);
        // Pieces of the parts, at most as long as a step, each with whether the prediction after it
        // is needed.
        let pieces = parts.iter().flat_map(|part| {
            let (tokens, hidden) = (part.tokens.chunks(most), part.hidden.chunks(most * width));
            let last = part.tokens.len().div_ceil(most).saturating_sub(1);
            tokens.zip(hidden).enumerate().map(move |(at, piece)| (part.slot, piece, wanted && at == last))
        });
        let pieces: Vec<_> = pieces.collect();
        let (mut rest, mut predictions) = (&pieces[..], Vec::new());
        while !rest.is_empty() {
            let mut rows = 0;
            let fits = |(_, (tokens, _), _): &&(usize, (&[u32], &[f32]), bool)| {
                rows += tokens.len();
                rows <= most
            };
            let count = rest.iter().take(self.engine.max_additions() as usize).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            let outputs: Vec<[u32; 1]> = now.iter().map(|(_, (tokens, _), _)| [tokens.len() as u32 - 1]).collect();
            let additions: Vec<Addition<'_>> = now
                .iter()
                .zip(&outputs)
                .map(|((slot, (tokens, _), ends), last)| Addition {
                    sequence: self.lanes[*slot].sequence,
                    tokens,
                    outputs: if *ends { last } else { &[] },
                })
                .collect();
            let hidden: Vec<f32> = now.iter().flat_map(|(_, (_, hidden), _)| *hidden).copied().collect();
            self.engine.step_hidden(&additions, &hidden)?;
            let (mut row, mut output) = (0, 0);
            for (_, (tokens, _), ends) in now {
                row += tokens.len();
                if *ends {
                    let (token, probability) = most_likely_token(self.engine.logits(output), self.engine.vocabulary());
                    let hidden = self.engine.hidden_states()[(row - 1) * width..row * width].to_vec();
                    predictions.push(Prediction { token, probability, hidden });
                    output += 1;
                }
            }
            rest = later;
        }
        Ok(predictions)
    }
}

impl Drafter for OwnLayer {
    fn name(&self) -> &'static str {
        "nextn"
    }

    fn needs_hidden_states(&self) -> bool {
        true
    }

    fn observe(&mut self, texts: &[HiddenStates<'_>]) -> Result<(), Error> {
        let mut parts = Vec::new();
        let lanes = self.lanes.len();
        for &HiddenStates { slot, before, tokens, draft, hidden } in texts.iter().filter(|text| text.slot < lanes) {
            let added = || tokens.iter().chain(draft).copied();
            self.prepare_sequence(slot, before, added().next())?;
            let (lane, width) = (&mut self.lanes[slot], self.width);
            lane.text.extend(added());
            // If a text was computed in several steps, only the hidden states of the last step are
            // available.
            match (tokens.len() + draft.len()) * width == hidden.len() {
                true => lane.hidden.extend_from_slice(hidden),
                false => lane.hidden.clear(),
            }
            if lane.hidden.len() > MAX_WAITING * width {
                parts.push(self.take_waiting(slot, None));
            }
        }
        self.add_entries(&parts, false)?;
        Ok(())
    }

    fn draft(&mut self, texts: &mut [Text<'_>]) -> Result<Duration, Error> {
        let begin = Instant::now();
        let context = self.engine.context() as usize;
        let (mut open, mut parts) = (Vec::new(), Vec::new());
        for (number, text) in texts.iter_mut().enumerate() {
            let (Some((&last, read)), true) = (text.tokens.split_last(), text.slot < self.lanes.len()) else {
                continue;
            };
            self.prepare_sequence(text.slot, read, Some(last))?;
            let part = self.take_waiting(text.slot, Some(last));
            // The last token of a draft needs no entry.
            let room = context.saturating_sub(self.lanes[text.slot].entries.len()) + 1;
            text.max_draft = text.max_draft.min(room);
            if !part.tokens.is_empty() {
                open.push(number);
                parts.push(part);
            }
        }
        while !parts.is_empty() {
            let found = self.add_entries(&parts, true)?;
            parts.clear();
            let mut left = Vec::new();
            for (number, Prediction { token, probability, hidden }) in open.into_iter().zip(found) {
                let text = &mut texts[number];
                if probability < self.options.min_probability || text.max_draft == 0 {
                    continue;
                }
                text.draft.push(token);
                if text.draft.len() < text.max_draft {
                    parts.push(EntryBatch { slot: text.slot, tokens: vec![token], hidden });
                    left.push(number);
                }
            }
            open = left;
        }
        // Remove the entries of drafts, because they contain the layer's hidden states instead of
        // the model's.
        for text in texts.iter() {
            let Some(lane) = self.lanes.get_mut(text.slot) else { continue };
            let left = self.engine.truncate_sequence(lane.sequence, lane.entries.len() as u32)?;
            lane.entries.truncate(left as usize);
        }
        Ok(begin.elapsed())
    }
}
