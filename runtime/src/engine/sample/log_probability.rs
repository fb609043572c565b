//! Log-probabilities of tokens from the model's logits, without samplers.
//! [`Sampler::log_probabilities`](super::Sampler::log_probabilities) returns the log-probabilities
//! after the samplers.

use super::largest;

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProb {
    /// Id of the token.
    pub token: u32,
    /// Natural logarithm of the token's probability; minus infinity for probability 0.
    pub log_probability: f32,
}

/// Returns the log-probability of `token`, and the `count` likeliest tokens, likeliest first.
/// Logits are finite or minus infinity.
pub fn log_probabilities_of(logits: &[f32], token: u32, count: usize) -> (TokenLogProb, Vec<TokenLogProb>) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let scale = max + sum.ln();
    let one = |token: u32| {
        let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        TokenLogProb { token, log_probability: (f64::from(logit) - scale) as f32 }
    };
    let mut best = Vec::new();
    match count.min(logits.len()) {
        0 => {}
        count => largest(logits, count, &mut best),
    }
    (one(token), best.into_iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::log_probabilities_of;

    #[test]
    fn log_probabilities_of_top_tokens() {
        let probabilities = [0.1f64, 0.6, 0.25, 0.05];
        let logits = probabilities.map(|p| (p.ln() + 3.0) as f32);
        let (own, best) = log_probabilities_of(&logits, 2, 2);
        assert!((f64::from(own.log_probability) - 0.25f64.ln()).abs() < 1e-6 && own.token == 2);
        assert_eq!(best.iter().map(|one| one.token).collect::<Vec<_>>(), [1, 2]);
        assert!((f64::from(best[0].log_probability) - 0.6f64.ln()).abs() < 1e-6);
        assert_eq!(log_probabilities_of(&logits, 0, 100).1.len(), 4);
        let (own, best) = log_probabilities_of(&[0.0, f32::NEG_INFINITY], 1, 0);
        assert_eq!((own.log_probability, best.len()), (f32::NEG_INFINITY, 0));
    }
}
