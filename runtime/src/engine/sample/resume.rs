//! The state of a sampler, with which another sampler can continue: its random generator, its
//! recent tokens, and mirostat's limit for the surprise. The settings are not part of the state.

use super::{MAX_REPEAT_WINDOW, Random, Sampler};

/// The state of a sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerState {
    /// State of the random generator.
    pub(crate) random: [u64; 4],
    /// The most recent tokens, oldest first.
    pub(crate) recent: Vec<u32>,
    /// Bit pattern of the `f64` limit that mirostat has for the surprise of a token.
    pub(crate) surprise: u64,
}

/// Maximum number of recent tokens in a sampler's state.
pub(crate) const MAX_RECENT: u32 = MAX_REPEAT_WINDOW;

impl Sampler {
    /// Returns the sampler's state.
    pub fn state(&self) -> SamplerState {
        SamplerState {
            random: self.random.state,
            recent: self.recent.iter().copied().collect(),
            surprise: self.surprise.to_bits(),
        }
    }

    /// Continues with the random generator, recent tokens and mirostat limit of another sampler.
    /// Keeps at most as many recent tokens as this sampler's windows need.
    pub fn resume(&mut self, state: &SamplerState) {
        // A generator whose state is all zeros would only return zeros. A seed never leads to that
        // state.
        if state.random != [0; 4] {
            self.random = Random { state: state.random };
        }
        // Mirostat could never change an infinite limit again, so it is ignored.
        let surprise = f64::from_bits(state.surprise);
        if surprise.is_finite() {
            self.surprise = surprise;
        }
        self.recent.clear();
        state.recent.iter().for_each(|&token| self.accept(token));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Exact;
    use super::super::*;

    #[test]
    fn resumed_sampler_continues_the_same_sequence() {
        let settings = SamplerSettings {
            presence_penalty: 0.5,
            repeat_window: 3,
            seed: 11,
            mirostat: 2,
            ..SamplerSettings::default()
        };
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut first = Sampler::new(settings.clone()).unwrap();
        (0..20).for_each(|_| assert!(first.sample(&logits, &Exact).is_ok()));
        let mut second = Sampler::new(SamplerSettings { seed: 12, ..settings }).unwrap();
        second.resume(&first.state());
        let drawn = |sampler: &mut Sampler| [0; 40].map(|_| sampler.sample(&logits, &Exact).unwrap());
        assert_eq!(drawn(&mut first), drawn(&mut second));
    }
}
