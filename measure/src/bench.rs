//! Speed of a model: timed steps with arbitrary tokens.
//!
//! ```
//! use ixc_measure::bench::Bench;
//! use ixc_generate::loaded_model::{LoadedModel, LoadOptions};
//!
//! let mut bench = Bench::new(LoadedModel::open(None, &LoadOptions::default())?)?;
//! let (prefill, decode) = (bench.prefill(0, 32)?, bench.decode(0, 4)?);
//! assert_eq!((prefill.tokens, decode.tokens), (32, 4));
//! # Ok::<(), ixc_measure::Error>(())
//! ```

use ixc_runtime::progress::Activity;
use ixc_runtime::stats::Stats;

use crate::Error;
use ixc_generate::loaded_model::LoadedModel;
use ixc_generate::timing::{Meter, Phase};

/// Benchmark of a loaded model.
#[derive(Debug)]
pub struct Bench {
    model: LoadedModel,
    /// Tokens in the KV cache.
    cached: Vec<u32>,
    /// Number of tokens that were timed so far.
    measured: usize,
}

impl Bench {
    /// Creates a benchmark, and packs all weights, so that no timed step packs any.
    ///
    /// # Errors
    /// When packing fails.
    pub fn new(mut model: LoadedModel) -> Result<Bench, Error> {
        model.engine_mut().pack_weights()?;
        Ok(Bench { model, cached: Vec::new(), measured: 0 })
    }

    /// Returns the model.
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// Returns the statistics of time since the last call.
    pub fn take_stats(&mut self) -> Stats {
        self.model.take_stats()
    }

    /// Times the prefill of `tokens` tokens after `depth` earlier ones, which are computed before
    /// and not timed.
    ///
    /// # Errors
    /// When the tokens do not fit into the context.
    pub fn prefill(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        self.time(depth, tokens, Activity::Prompt, self.model.max_tokens())
    }

    /// Times the decode of `tokens` tokens, one at a time, after `depth` earlier ones, which are
    /// not timed.
    ///
    /// # Errors
    /// When the tokens do not fit into the context.
    pub fn decode(&mut self, depth: usize, tokens: usize) -> Result<Phase, Error> {
        self.time(depth, tokens, Activity::Tokens, 1)
    }

    /// Times steps of `step` tokens each.
    fn time(&mut self, depth: usize, tokens: usize, activity: Activity, step: usize) -> Result<Phase, Error> {
        let tokens = self.descend(depth, tokens)?;
        self.model.progress().begin(activity, tokens.len() as u64);
        let meter = Meter::new(self.model.engine());
        tokens.chunks(step).try_for_each(|part| self.feed(part))?;
        Ok(meter.phase(tokens.len(), self.model.engine()))
    }

    /// Computes the first `depth` tokens of the sequence, so that the KV cache has exactly these;
    /// cached tokens are reused. Returns the next `tokens` tokens.
    fn descend(&mut self, depth: usize, tokens: usize) -> Result<Vec<u32>, Error> {
        let before = self.some_tokens(0, depth);
        // Each measurement uses other tokens, so that experts which the previous measurement
        // streamed are not already in memory.
        let next = self.some_tokens(depth.saturating_add(self.measured), tokens);
        self.measured = self.measured.saturating_add(tokens);
        self.model.check(&[&before[..], &next].concat())?;
        let common = self.cached.iter().zip(&before).take_while(|(a, b)| a == b).count();
        let left = self.model.engine_mut().truncate(common as u32) as usize;
        self.cached.truncate(left);
        let missing = &before[left..];
        self.model.progress().begin(Activity::Prompt, missing.len() as u64);
        missing.chunks(self.model.max_tokens()).try_for_each(|part| self.feed(part))?;
        Ok(next)
    }

    /// Computes tokens in one step, with the logits of the last token.
    fn feed(&mut self, tokens: &[u32]) -> Result<(), Error> {
        let step = self.model.step(tokens, &[tokens.len() as u32 - 1]).map(drop);
        match step {
            Ok(()) => self.cached.extend_from_slice(tokens),
            // A failed step may have truncated the sequence.
            Err(_) => self.cached.truncate(self.model.engine().position() as usize),
        }
        Ok(step?)
    }

    /// Returns `count` tokens of a fixed sequence from `first` on. They differ from each other, so
    /// that routers choose as for text.
    fn some_tokens(&self, first: usize, count: usize) -> Vec<u32> {
        // Knuth's multiplicative hash.
        let hash = |index: u64| index.wrapping_add(1).wrapping_mul(2_654_435_761) >> 7;
        let vocabulary = (self.model.vocabulary() as u64).max(1);
        (0..count as u64).map(|index| (hash(index.wrapping_add(first as u64)) % vocabulary) as u32).collect()
    }
}
