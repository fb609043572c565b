//! Embeddings: vectors of texts, from the hidden states after a model's last norm.
//!
//! ```text
//! tokens ─▶ hidden states of each ─▶ mean, first or last of them ─▶ vector of length 1
//! ```
//!
//! Texts are computed together, each in a sequence of the engine. A step has rows of all texts in
//! progress, so weights are read once for them. A text's vector does not depend on the other texts,
//! bit for bit.
//!
//! Long texts take several steps. Encoders are the exception: their attention is not causal, so
//! every token sees all others, and a step has a whole text.
//!
//! ```
//! use ixc_generate::embedding::Embedder;
//! use ixc_generate::loaded_model::{LoadedModel, LoadOptions};
//!
//! let options = LoadOptions { embeddings: true, ..LoadOptions::default() };
//! let mut embedder = Embedder::new(LoadedModel::open(None, &options)?, None)?; // The demo model.
//! let texts = ["The borrow checker", "A trait"].map(|text| embedder.encode(text)).into_iter().collect::<Result<Vec<_>, _>>()?;
//! let vectors = embedder.embed(texts)?;
//! assert!(vectors.len() == 2 && vectors[0].len() == embedder.width());
//! # Ok::<(), ixc_generate::Error>(())
//! ```

use std::collections::VecDeque;

use ixc_ir::plan::{Output, Pooling};
use ixc_runtime::engine::{Addition, EvictError, FIRST, RankCounts, SequenceId, StepError};
use ixc_runtime::homes::NodeUse;
use ixc_runtime::streaming::store::EvictionResult;

use crate::Error;
use crate::generator::SlotStatus;
use crate::loaded_model::{self, LoadedModel};

/// Number of tokens in each part of a text except the last. Parts have a fixed length, so that
/// states computed in chunks are always rounded at the same positions.
const PART: usize = 64;
/// Default pooling, unless the model declares one: only the last token of a decoder has seen the
/// whole text.
pub const DEFAULT_POOLING: Pooling = Pooling::Last;

/// The number of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(u64);

/// Text in progress, with the sum of its rows so far.
#[derive(Debug)]
struct ActiveText {
    id: TextId,
    tokens: Vec<u32>,
    /// Number of computed tokens.
    computed: usize,
    sum: Vec<f64>,
}

/// Model that returns hidden states, with its queue of texts.
#[derive(Debug)]
pub struct Embedder {
    model: LoadedModel,
    pooling: Pooling,
    /// Whether vectors have length 1.
    unit: bool,
    slots: Vec<(SequenceId, Option<ActiveText>)>,
    waiting: VecDeque<(TextId, Vec<u32>)>,
    /// Number of texts submitted so far.
    count: u64,
    /// Rows of the last step.
    rows: usize,
}

impl Embedder {
    /// Creates an embedder of a model that was loaded for embeddings. `pooling` replaces the
    /// model's own pooling.
    ///
    /// # Errors
    /// When the model returns logits, or there is not enough memory for a sequence.
    pub fn new(mut model: LoadedModel, pooling: Option<Pooling>) -> Result<Embedder, Error> {
        let Output::Hidden { pooling: own, unit, .. } = model.engine.output() else {
            return Err(Error::OtherOutput { embeddings: true });
        };
        let mut slots = vec![(FIRST, None)];
        for _ in 1..model.engine.sequences() {
            slots.push((model.engine.add_sequence()?, None));
        }
        // Every token of an encoder sees all of its text.
        let usual = if model.engine.reads_whole() { Pooling::Mean } else { DEFAULT_POOLING };
        let pooling = pooling.or(own).unwrap_or(usual);
        Ok(Embedder { model, pooling, unit, slots, waiting: VecDeque::new(), count: 0, rows: 0 })
    }

    /// Returns the model.
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// Evicts the streamed experts of a layer: [`LoadedModel::evict_experts`].
    ///
    /// # Errors
    /// See [`LoadedModel::evict_experts`].
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        self.model.evict_experts(layer, pinned)
    }

    /// Collects the counters of all ranks, as
    /// [`Engine::rank_counts`](ixc_runtime::engine::Engine::rank_counts) does.
    ///
    /// # Errors
    /// If another rank has ended.
    pub fn rank_counts(&mut self) -> Result<Vec<RankCounts>, StepError> {
        self.model.engine_mut().rank_counts()
    }

    /// Returns the use of NUMA nodes, as
    /// [`Engine::node_use`](ixc_runtime::engine::Engine::node_use) does.
    pub fn node_use(&self) -> Vec<NodeUse> {
        self.model.engine().node_use()
    }

    /// Returns the pooling.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Returns the first numbers of a vector, for models with nested vectors (Matryoshka). The
    /// result has length 1 if vectors have length 1.
    pub fn cut(&self, vector: &[f32], dimensions: usize) -> Vec<f32> {
        if self.unit { cut(vector, dimensions) } else { vector.iter().take(dimensions).copied().collect() }
    }

    /// Returns the length of a vector.
    pub fn width(&self) -> usize {
        self.model.engine.output_width() as usize
    }

    /// Encodes a text, between BOS and EOS if the model needs them. Names of special tokens become
    /// those tokens.
    ///
    /// # Errors
    /// When there is no tokenizer, or it cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let tokens = self.model.encode_more(text)?;
        Ok(loaded_model::with_ends(self.model.tokenizer()?, tokens))
    }

    /// Submits a text.
    ///
    /// # Errors
    /// When the text is empty, has invalid tokens, or does not fit in the context. Also when it
    /// does not fit in a step that must take it whole.
    pub fn submit(&mut self, tokens: Vec<u32>) -> Result<TextId, Error> {
        self.model.check(&tokens)?;
        let most = self.model.max_tokens();
        if self.model.engine.reads_whole() && tokens.len() > most {
            return Err(Error::TextBeyondStep { tokens: tokens.len(), most });
        }
        let id = TextId(self.count);
        self.count += 1;
        self.waiting.push_back((id, tokens));
        Ok(id)
    }

    /// Removes a text that has no vector yet.
    pub fn cancel(&mut self, id: TextId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        for (_, slot) in &mut self.slots {
            if slot.as_ref().is_some_and(|active| active.id == id) {
                *slot = None;
            }
        }
    }

    /// Returns whether there is no text to compute.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(|(_, active)| active.is_none())
    }

    /// Returns the number of rows of the last step.
    pub fn last_rows(&self) -> usize {
        self.rows
    }

    /// Returns the status of each sequence.
    pub fn slots(&self) -> impl Iterator<Item = SlotStatus> {
        self.slots.iter().map(|(_, active)| SlotStatus {
            cached_tokens: active.as_ref().map_or(0, |active| active.computed),
            has_request: active.is_some(),
            ..SlotStatus::default()
        })
    }

    /// Computes a step, and returns the vectors of finished texts. If the step fails, all of its
    /// texts fail.
    pub fn step(&mut self) -> Vec<(TextId, Result<Vec<f32>, Error>)> {
        self.rows = 0;
        let width = self.width();
        for (sequence, active) in &mut self.slots {
            if active.is_none()
                && let Some((id, tokens)) = self.waiting.pop_front()
            {
                // Each text starts in an empty sequence.
                let emptied = self.model.engine.truncate_sequence(*sequence, 0);
                debug_assert_eq!(emptied, Ok(0));
                *active = Some(ActiveText { id, tokens, computed: 0, sum: vec![0.0; width] });
            }
        }
        let every_row = self.pooling == Pooling::Mean;
        let whole = self.model.engine.reads_whole();
        let (mut rows, mut output_room) = (self.model.max_tokens(), self.model.engine.max_outputs() as usize);
        let (mut parts, mut outputs) = (Vec::new(), Vec::new());
        let mut order: Vec<usize> = (0..self.slots.len()).collect();
        if whole {
            // A long text waits for a step with enough room. The oldest text comes first, so it
            // gets a whole step.
            order.sort_by_key(|&number| self.slots.get(number).and_then(|(_, active)| Some(active.as_ref()?.id)));
        }
        for number in order {
            let Some((_, Some(active))) = self.slots.get(number) else { continue };
            let left = active.tokens.len() - active.computed;
            let room = match every_row {
                true => rows.min(output_room),
                false if output_room > 0 => rows,
                false => 0,
            };
            // The first text gets all of a short step, even if it is less than a part.
            let cut = if room >= PART || !parts.is_empty() { room / PART * PART } else { room };
            let part = match room >= left {
                true => left,
                false if whole => 0,
                false => cut,
            };
            if part == 0 {
                continue;
            }
            let ends = part == left;
            let of: Vec<u32> = match self.pooling {
                Pooling::Mean => (0..part as u32).collect(),
                Pooling::First if active.computed == 0 => vec![0],
                Pooling::Last if ends => vec![part as u32 - 1],
                Pooling::First | Pooling::Last => Vec::new(),
            };
            (rows, output_room) = (rows - part, output_room - of.len());
            parts.push((number, part));
            outputs.push(of);
        }
        let additions: Vec<Addition<'_>> = parts
            .iter()
            .zip(&outputs)
            .filter_map(|(&(number, part), outputs)| {
                let (sequence, active) = self.slots.get(number)?;
                let active = active.as_ref()?;
                let tokens = active.tokens.get(active.computed..active.computed + part)?;
                Some(Addition { sequence: *sequence, tokens, outputs })
            })
            .collect();
        if additions.is_empty() {
            return Vec::new();
        }
        self.rows = parts.iter().map(|(_, part)| part).sum();
        let outputs_of_step = match self.model.engine.step_batch(&additions) {
            Ok(outputs_of_step) => outputs_of_step,
            Err(error) => {
                let failed = parts.iter().filter_map(|(number, _)| self.slots.get_mut(*number)?.1.take());
                return failed.map(|active| (active.id, Err(error.clone().into()))).collect();
            }
        };
        let (mut outputs_of_step, mut ended) = (outputs_of_step.chunks_exact(width), Vec::new());
        for ((number, part), outputs) in parts.into_iter().zip(&outputs) {
            let Some((_, slot)) = self.slots.get_mut(number) else { continue };
            let Some(active) = slot else { continue };
            for row in outputs_of_step.by_ref().take(outputs.len()) {
                active.sum.iter_mut().zip(row).for_each(|(sum, &number)| *sum += f64::from(number));
            }
            active.computed += part;
            if let Some(active) = slot.take_if(|active| active.computed == active.tokens.len()) {
                ended.push((active.id, Ok(vector(&active, self.pooling, self.unit))));
            }
        }
        ended
    }

    /// Returns the vectors of texts, in order. Each has [`Embedder::width`] numbers. Its length is
    /// 1 if the model's vectors have length 1.
    ///
    /// # Errors
    /// When a text is empty, has invalid tokens or does not fit in the context, and when a step
    /// fails.
    pub fn embed(&mut self, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<f32>>, Error> {
        let mut ids = Vec::with_capacity(texts.len());
        let result = self.embed_all(texts, &mut ids);
        if result.is_err() {
            ids.into_iter().for_each(|id| self.cancel(id));
        }
        result
    }

    /// Computes the vectors of texts. After an error, `ids` holds the submitted texts.
    fn embed_all(&mut self, texts: Vec<Vec<u32>>, ids: &mut Vec<TextId>) -> Result<Vec<Vec<f32>>, Error> {
        for tokens in texts {
            ids.push(self.submit(tokens)?);
        }
        let mut vectors = Vec::with_capacity(ids.len());
        while !self.is_idle() {
            for (id, vector) in self.step() {
                vectors.push((id, vector?));
            }
        }
        vectors.sort_unstable_by_key(|(id, _)| *id);
        Ok(vectors.into_iter().map(|(_, vector)| vector).collect())
    }
}

/// Returns the vector of a text from the sum of its rows.
fn vector(text: &ActiveText, pooling: Pooling, unit: bool) -> Vec<f32> {
    let rows = if pooling == Pooling::Mean { text.tokens.len() as f64 } else { 1.0 };
    match unit {
        true => normalise(&text.sum),
        false => text.sum.iter().map(|sum| (sum / rows) as f32).collect(),
    }
}

/// Returns the vector with this direction and length 1, or zeros. A sum is enough: a mean has the
/// same direction.
fn normalise(sum: &[f64]) -> Vec<f32> {
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
    sum.iter().map(|x| (x * factor) as f32).collect()
}

/// Returns the first numbers of a vector, scaled to length 1, for models with nested vectors
/// (Matryoshka).
pub fn cut(vector: &[f32], dimensions: usize) -> Vec<f32> {
    let first: Vec<f64> = vector.iter().take(dimensions).map(|&x| x.into()).collect();
    normalise(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one() {
        assert_eq!(normalise(&[3.0, 0.0, -4.0]), [0.6, 0.0, -0.8]);
        assert_eq!(normalise(&[0.0; 2]), [0.0; 2]);
        assert_eq!(cut(&[0.6, 0.0, -0.8], 2), [1.0, 0.0]);
    }
}
