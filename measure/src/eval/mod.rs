//! Perplexity of a text, and the divergence of a model's predictions from another model's at each
//! position.
//!
//! The text is divided into pieces as in llama-perplexity, so that the results are equal. Pieces
//! have `context` tokens; a shorter last piece is ignored. If the model needs a BOS, it replaces
//! the first token of each piece. Only the second half of each piece is scored, whose tokens have
//! at least half a context before them.
//!
//! ```
//! use ixc_measure::eval::{PieceScores, Text, summary};
//! use ixc_generate::loaded_model::{LoadedModel, LoadOptions};
//!
//! let mut model = LoadedModel::open(None, &LoadOptions::default())?; // The demo model.
//! let sentence = "The borrow checker rejects a reference that outlives what it refers to.";
//! let text = Text::new(&model, sentence, 8)?;
//! let scores = (0..text.pieces()).map(|piece| text.score(piece, &mut model, None));
//! let pieces = scores.collect::<Result<Vec<PieceScores>, _>>()?;
//! let found = summary(&pieces).unwrap();
//! assert!(found.perplexity > 1.0 && found.positions == 3 * text.pieces());
//! # Ok::<(), ixc_measure::Error>(())
//! ```

pub mod record;

use ixc_compile::Error as CompileError;
use ixc_ir::plan::MAX_OUTPUTS;
use ixc_text::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::kl_divergence;
use ixc_generate::loaded_model::{LoadedModel, with_bos};

/// Default number of tokens in a piece, the same as in llama-perplexity.
pub const DEFAULT_CONTEXT: usize = 512;
/// Min number of tokens in a piece: with three tokens, the second half has one token whose
/// successor is known.
pub const MIN_CONTEXT: usize = 3;

/// A text as tokens, divided into pieces.
#[derive(Clone, Debug)]
pub struct Text {
    tokens: Vec<u32>,
    bos: Option<u32>,
    context: usize,
}

impl Text {
    /// Encodes a text with this model's tokenizer; names of special tokens are encoded as text.
    /// Drops one final newline.
    ///
    /// # Errors
    /// [`Error::ShortText`] if the text has fewer tokens than a piece, [`CompileError::Context`] if
    /// a piece does not fit into the model's context. Also if the model has no tokenizer.
    pub fn new(model: &LoadedModel, text: &str, context: usize) -> Result<Text, Error> {
        let tokenizer = model.tokenizer()?;
        let tokens = with_bos(tokenizer, tokenizer.encode(text.strip_suffix('\n').unwrap_or(text), false)?);
        Text::from_tokens(model, tokens, tokenizer, context)
    }

    fn from_tokens(
        model: &LoadedModel,
        tokens: Vec<u32>,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Text, Error> {
        let context = context.max(MIN_CONTEXT);
        if context > model.context() {
            let (tokens, trained) = (context, model.facts().context);
            return Err(CompileError::Context { tokens, context: model.context(), model: trained }.into());
        }
        if tokens.len() < context {
            return Err(Error::ShortText { tokens: tokens.len(), context });
        }
        Ok(Text { tokens, bos: tokenizer.add_bos(), context })
    }

    /// Returns all tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.tokens.len() / self.context
    }

    /// Returns the first position of a piece whose prediction is scored.
    pub fn first_scored(&self) -> usize {
        self.context / 2
    }

    /// Returns the number of scored positions in a piece; the last position has no known successor.
    pub fn scored_positions(&self) -> usize {
        self.context - 1 - self.first_scored()
    }

    /// Returns a piece's tokens as the model gets them.
    fn piece(&self, piece: usize) -> Vec<u32> {
        let mut tokens = self.tokens[piece * self.context..][..self.context].to_vec();
        if let Some(bos) = self.bos {
            tokens[0] = bos;
        }
        tokens
    }

    /// Scores the predictions of a model at a piece, and compares them with those of a reference
    /// model.
    ///
    /// # Errors
    /// When a step fails, the models have vocabularies of different sizes, or a logit is NaN.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn score(
        &self,
        piece: usize,
        model: &mut LoadedModel,
        mut right: Option<&mut LoadedModel>,
    ) -> Result<PieceScores, Error> {
        let (tokens, first) = (self.piece(piece), self.first_scored());
        let mut step = model.max_tokens().min(MAX_OUTPUTS as usize);
        model.begin(&tokens)?;
        if let Some(right) = &mut right {
            let vocabularies = [model.vocabulary(), right.vocabulary()];
            if vocabularies[0] != vocabularies[1] {
                return Err(Error::OtherVocabulary { vocabularies });
            }
            right.begin(&tokens)?;
            step = step.min(right.max_tokens());
        }
        let row = model.vocabulary();
        let mut found = PieceScores::default();
        let mut compared = right.is_some().then(ReferenceScores::default);
        for begin in (0..tokens.len()).step_by(step) {
            let part = begin..tokens.len().min(begin + step);
            let scored: Vec<usize> =
                part.clone().filter(|at| (first..first + self.scored_positions()).contains(at)).collect();
            let rows: Vec<u32> = scored.iter().map(|at| (at - begin) as u32).collect();
            let logits = model.step(&tokens[part.clone()], &rows)?;
            let right = match &mut right {
                Some(right) => Some(right.step(&tokens[part.clone()], &rows)?),
                None => None,
            };
            for (index, at) in scored.into_iter().enumerate() {
                let (next, logits) = (tokens[at + 1] as usize, &logits[index * row..][..row]);
                let not_finite = || Error::LogitsNotFinite { piece, position: at };
                found.surprise.push(kl_divergence::surprise(logits, next).ok_or_else(not_finite)? as f32);
                if let (Some(right), Some(compared)) = (right, &mut compared) {
                    let right = &right[index * row..][..row];
                    compared.surprise.push(kl_divergence::surprise(right, next).ok_or_else(not_finite)? as f32);
                    let at_one = kl_divergence::divergence(right, logits, row).ok_or_else(not_finite)?;
                    compared.divergence.push(at_one.mean as f32);
                    compared.same.push(at_one.agreement > 0.5);
                }
            }
        }
        found.against = compared;
        Ok(found)
    }
}

/// Scores of a piece at its scored positions, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceScores {
    /// Negative logarithm of the probability that the model gave to the next token, in nats.
    pub surprise: Vec<f32>,
    /// The comparison with another model's predictions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub against: Option<ReferenceScores>,
}

/// Comparison with the predictions of a reference model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceScores {
    /// The reference model's surprise.
    pub surprise: Vec<f32>,
    /// Kullback-Leibler divergence KL(reference || model) of the predicted distributions, in nats.
    pub divergence: Vec<f32>,
    /// Whether both models have the same likeliest token.
    pub same: Vec<bool>,
}

impl PieceScores {
    /// Returns whether each score has one number for each position. With `compared`, the comparison
    /// must exist and be complete. All numbers must be finite and not negative, because they are
    /// negative logarithms of probabilities, and divergences.
    pub fn is_complete(&self, positions: usize, compared: bool) -> bool {
        let is_right = |number: &f32| number.is_finite() && *number >= 0.0;
        let numbers = |list: &[f32]| list.len() == positions && list.iter().all(is_right);
        let against = |other: &ReferenceScores| {
            numbers(&other.surprise) && numbers(&other.divergence) && other.same.len() == positions
        };
        numbers(&self.surprise) && self.against.is_some() == compared && self.against.as_ref().is_none_or(against)
    }
}

/// Mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// Mean of the samples.
    pub mean: f64,
    /// Standard error, for independent positions.
    pub error: f64,
}

impl Mean {
    fn from_values(values: impl Iterator<Item = f64> + Clone) -> Mean {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
        Mean { mean, error: if count > 1.0 { (variance / (count - 1.0)).sqrt() } else { 0.0 } }
    }
}

/// Results over all positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Positions that were scored.
    pub positions: usize,
    /// Exponential of the mean surprise.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub perplexity_error: f64,
    /// The comparison with another model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Comparison>,
}

/// A comparison over all positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The other model's perplexity.
    pub perplexity: f64,
    /// Standard error of the other model's perplexity.
    pub perplexity_error: f64,
    /// Logarithm of this model's perplexity over the other's. The errors of both are correlated, so
    /// the error of the ratio is much smaller.
    pub log_ratio: Mean,
    /// Mean divergence.
    pub divergence: Mean,
    /// Median divergence.
    pub divergence_median: f64,
    /// 99th percentile of the divergence.
    pub divergence_99: f64,
    /// 99.9th percentile of the divergence.
    pub divergence_999: f64,
    /// Max divergence.
    pub divergence_max: f64,
    /// Share of the positions at which both models have the same likeliest token.
    pub same: Mean,
    /// Mean of the difference between both models' probabilities of the next token.
    pub change: Mean,
    /// Root of the mean square of the change in probability.
    pub change_rms: f64,
}

/// Summarises the scores of pieces; `None` if they have no positions.
pub fn summary(pieces: &[PieceScores]) -> Option<Summary> {
    let surprise = pieces.iter().flat_map(|piece| &piece.surprise).map(|&nats| f64::from(nats));
    let positions = surprise.clone().count();
    if positions == 0 {
        return None;
    }
    let perplexity = |mean: Mean| (mean.mean.exp(), mean.error * mean.mean.exp());
    let (own, error) = perplexity(Mean::from_values(surprise.clone()));
    let compared: Vec<&ReferenceScores> = pieces.iter().filter_map(|piece| piece.against.as_ref()).collect();
    let against = (compared.len() == pieces.len()).then(|| {
        let right = compared.iter().flat_map(|piece| &piece.surprise).map(|&nats| f64::from(nats));
        let both = surprise.zip(right.clone());
        let mut sorted: Vec<f64> =
            compared.iter().flat_map(|piece| &piece.divergence).map(|&nats| f64::from(nats)).collect();
        let divergence = Mean::from_values(sorted.iter().copied());
        sorted.sort_unstable_by(f64::total_cmp);
        let (other, other_error) = perplexity(Mean::from_values(right));
        let change = both.clone().map(|(own, right)| (-own).exp() - (-right).exp());
        Comparison {
            perplexity: other,
            perplexity_error: other_error,
            log_ratio: Mean::from_values(both.map(|(own, right)| own - right)),
            divergence,
            divergence_median: quantile(&sorted, 0.5),
            divergence_99: quantile(&sorted, 0.99),
            divergence_999: quantile(&sorted, 0.999),
            divergence_max: quantile(&sorted, 1.0),
            same: Mean::from_values(
                compared.iter().flat_map(|piece| &piece.same).map(|&same| f64::from(u8::from(same))),
            ),
            change_rms: Mean::from_values(change.clone().map(|change| change * change)).mean.sqrt(),
            change: Mean::from_values(change),
        }
    });
    Some(Summary { positions, perplexity: own, perplexity_error: error, against })
}

/// Returns a quantile of a sorted list, interpolated between two elements.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, rest) = (place.floor() as usize, place.fract());
    let above = sorted[sorted.len().min(below + 2) - 1];
    sorted[below] * (1.0 - rest) + above * rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(surprise: &[f32], right: &[f32], divergence: &[f32], same: &[bool]) -> PieceScores {
        let against =
            ReferenceScores { surprise: right.to_vec(), divergence: divergence.to_vec(), same: same.to_vec() };
        PieceScores { surprise: surprise.to_vec(), against: Some(against) }
    }

    #[test]
    fn summary_weights_all_positions_equally() {
        // Pieces have different lengths here, so that a mean of the pieces' means would differ from
        // the mean over positions.
        let pieces = [
            piece(&[1.0, 2.0, 3.0], &[1.0, 1.0, 1.0], &[0.0, 0.5, 0.25], &[true, true, false]),
            piece(&[6.0], &[1.0], &[0.125], &[false]),
        ];
        let found = summary(&pieces).unwrap();
        assert_eq!((found.positions, found.perplexity), (4, 3f64.exp()));
        // Variance of the deviations -2, -1, 0 and 3: the sum of squares 14, over 4 positions and 3
        // degrees of freedom.
        let error = (3.5f64 / 3.0).sqrt();
        assert!((found.perplexity_error - error * 3f64.exp()).abs() < 1e-9);
        let other = found.against.unwrap();
        assert_eq!((other.perplexity, other.perplexity_error), (1f64.exp(), 0.0));
        assert_eq!((other.log_ratio.mean, other.divergence.mean, other.same.mean), (2.0, 0.21875, 0.5));
        assert_eq!((other.divergence_median, other.divergence_max), (0.1875, 0.5));
        // The 99th percentile of 0, 0.125, 0.25, 0.5 is at index 2.97, between the third and the
        // fourth number.
        assert!((other.divergence_99 - (0.25 + 0.97 * 0.25)).abs() < 1e-9);
        let changes: Vec<f64> = [1.0, 2.0, 3.0, 6.0].map(|own: f64| (-own).exp() - (-1f64).exp()).to_vec();
        assert!((other.change.mean - changes.iter().sum::<f64>() / 4.0).abs() < 1e-12);
    }

    #[test]
    fn empty_evaluation_has_no_summary_or_comparison() {
        assert_eq!(summary(&[]), None);
        let mut pieces = vec![piece(&[1.0], &[1.0], &[0.0], &[true]), piece(&[1.0], &[1.0], &[0.0], &[true])];
        pieces[1].against = None;
        assert_eq!(summary(&pieces).unwrap().against, None);
    }

    #[test]
    fn whole_pieces_have_all_values_and_no_invalid_ones() {
        let whole = piece(&[1.0, 2.0], &[1.0, 2.0], &[0.0, 0.0], &[true, false]);
        assert!(whole.is_complete(2, true) && !whole.is_complete(2, false) && !whole.is_complete(3, true));
        let mut short = whole.clone();
        short.against.as_mut().unwrap().same.pop();
        assert!(!short.is_complete(2, true));
        for wrong in [f32::NAN, f32::INFINITY, -0.5] {
            assert!(!PieceScores { surprise: vec![wrong, 1.0], against: None }.is_complete(2, false));
            assert!(!piece(&[1.0], &[1.0], &[wrong], &[true]).is_complete(1, true));
        }
    }
}
