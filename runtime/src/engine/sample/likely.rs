//! How likely tokens were, for those who want to know: log-probabilities as the model gives them, before any sampler. What samplers leave, [`Sampler::drawn`](super::Sampler::drawn) says.

use super::largest;

/// How likely a token was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likely {
    /// The token.
    pub token: u32,
    /// The logarithm of its probability; minus infinity is none.
    pub log_probability: f32,
}

/// How likely a token was, and the `count` likeliest, these first. Logits are numbers, or minus infinity.
pub fn likely(logits: &[f32], token: u32, count: usize) -> (Likely, Vec<Likely>) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let scale = max + sum.ln();
    let one = |token: u32| {
        let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        Likely { token, log_probability: (f64::from(logit) - scale) as f32 }
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
    use super::likely;

    #[test]
    fn logarithms_of_probabilities() {
        let probabilities = [0.1f64, 0.6, 0.25, 0.05];
        let logits = probabilities.map(|p| (p.ln() + 3.0) as f32);
        let (own, best) = likely(&logits, 2, 2);
        assert!((f64::from(own.log_probability) - 0.25f64.ln()).abs() < 1e-6 && own.token == 2);
        assert_eq!(best.iter().map(|one| one.token).collect::<Vec<_>>(), [1, 2]);
        assert!((f64::from(best[0].log_probability) - 0.6f64.ln()).abs() < 1e-6);
        assert_eq!(likely(&logits, 0, 100).1.len(), 4);
        let (own, best) = likely(&[0.0, f32::NEG_INFINITY], 1, 0);
        assert_eq!((own.log_probability, best.len()), (f32::NEG_INFINITY, 0));
    }
}
