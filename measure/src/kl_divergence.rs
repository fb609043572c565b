//! Divergence of one model's predictions from another's.
//!
//! ```
//! use ixc_measure::kl_divergence::divergence;
//!
//! // Two positions, two words: the same at the first, another at the second.
//! let (right, other) = ([0.0, 1.0, 0.0, 0.0], [5.0, 6.0, 0.0, 1.0]);
//! let found = divergence(&right, &other, 2).unwrap();
//! assert_eq!((found.positions, found.agreement), (2, 0.5));
//! // Half of ln(0.5 / 0.27) and ln(0.5 / 0.73) each.
//! assert!((found.max - 0.1201).abs() < 1e-4 && (found.mean - found.max / 2.0).abs() < 1e-9);
//! ```

use serde::Serialize;

/// Divergence of a model's predictions from a reference model's, over the positions of a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Positions that were compared.
    pub positions: usize,
    /// Mean over all positions of the Kullback-Leibler divergence KL(reference || other), in nats.
    pub mean: f64,
    /// Max divergence at a position, in nats.
    pub max: f64,
    /// Share of the positions at which both models have the same likeliest token.
    pub agreement: f64,
}

/// Compares the logits `other` with those of the reference, `right`. Both are
/// `[positions, vocabulary]`. Returns `None` if their lengths differ, are zero or are no multiple
/// of `vocabulary`, or if a logit is NaN or infinite.
pub fn divergence(right: &[f32], other: &[f32], vocabulary: usize) -> Option<Divergence> {
    let positions = right.len().checked_div(vocabulary)?;
    let all_finite = right.iter().chain(other).all(|logit| logit.is_finite());
    if positions == 0 || right.len() != other.len() || positions * vocabulary != right.len() || !all_finite {
        return None;
    }
    let mut found = Divergence { positions, mean: 0.0, max: 0.0, agreement: 0.0 };
    for (right, other) in right.chunks_exact(vocabulary).zip(other.chunks_exact(vocabulary)) {
        let (all, all_other) = (log_sum_exp(right), log_sum_exp(other));
        let terms = right.iter().zip(other).map(|(&a, &b)| {
            let (a, b) = (f64::from(a) - all, f64::from(b) - all_other);
            a.exp() * (a - b)
        });
        // The divergence is negative only by rounding.
        let divergence = terms.sum::<f64>().max(0.0);
        found.mean += divergence / positions as f64;
        found.max = found.max.max(divergence);
        found.agreement += f64::from(u8::from(likeliest(right) == likeliest(other))) / positions as f64;
    }
    Some(found)
}

/// Returns the negative logarithm of the probability of token `next`, in nats. `None` if a logit is
/// NaN or infinite, or the vocabulary has no such token.
pub fn surprise(logits: &[f32], next: usize) -> Option<f64> {
    let logit = f64::from(*logits.get(next)?);
    logits.iter().all(|logit| logit.is_finite()).then(|| log_sum_exp(logits) - logit)
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    top + logits.iter().map(|&logit| (f64::from(logit) - top).exp()).sum::<f64>().ln()
}

/// Returns the index of the highest logit; among equal ones, the first.
fn likeliest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_equal_logits_is_zero_at_any_size() {
        let logits = [1e4f32, -1e4, 3.0, 2.0, 2.0, 1.0];
        let shifted: Vec<f32> = logits.iter().map(|logit| logit + 16.0).collect();
        let found = divergence(&logits, &shifted, 3).unwrap();
        assert!(found.max < 1e-9 && found.agreement == 1.0, "{found:?}");
    }

    #[test]
    fn certain_token_has_zero_surprise() {
        assert_eq!(surprise(&[0.0, 1e4], 1), Some(0.0));
        assert!((surprise(&[2.0; 8], 3).unwrap() - 8f64.ln()).abs() < 1e-12);
        assert_eq!((surprise(&[0.0], 1), surprise(&[0.0, f32::INFINITY], 0)), (None, None));
    }

    #[test]
    fn incomparable_logits_are_refused() {
        assert_eq!(divergence(&[], &[], 4), None);
        assert_eq!(divergence(&[1.0; 4], &[1.0; 8], 4), None);
        assert_eq!(divergence(&[1.0; 6], &[1.0; 6], 4), None);
        assert_eq!(divergence(&[1.0; 4], &[1.0; 4], 0), None);
        assert_eq!(divergence(&[f32::NAN; 4], &[1.0; 4], 4), None);
    }
}
