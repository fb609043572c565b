//! A sampler that goes on where another one was: its draws, the tokens that penalties look at, and what mirostat allows. Settings are the sampler's own.

use super::{MAX_REPEAT_WINDOW, Random, Sampler};

/// Where a sampler is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerState {
    /// The generator of its draws.
    pub(crate) random: [u64; 4],
    /// The last tokens, oldest first.
    pub(crate) recent: Vec<u32>,
    /// The bits of the surprise that mirostat allows.
    pub(crate) surprise: u64,
}

/// Most tokens that it has.
pub(crate) const MAX_RECENT: u32 = MAX_REPEAT_WINDOW;

impl Sampler {
    /// Where it is.
    pub fn state(&self) -> SamplerState {
        SamplerState {
            random: self.random.state,
            recent: self.recent.iter().copied().collect(),
            surprise: self.surprise.to_bits(),
        }
    }

    /// Goes on with the draws and the last tokens of another; of these it keeps as many as its own window has.
    pub fn resume(&mut self, state: &SamplerState) {
        // All zeros would stay so: no generator was ever there.
        if state.random != [0; 4] {
            self.random = Random { state: state.random };
        }
        // Beside an infinite one nothing would ever count.
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
    fn a_sampler_that_goes_on_draws_what_the_first_one_would_have() {
        let settings =
            Settings { presence_penalty: 0.5, repeat_window: 3, seed: 11, mirostat: 2, ..Settings::default() };
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut first = Sampler::new(settings.clone()).unwrap();
        (0..20).for_each(|_| assert!(first.sample(&logits, &Exact).is_ok()));
        let mut second = Sampler::new(Settings { seed: 12, ..settings }).unwrap();
        second.resume(&first.state());
        let drawn = |sampler: &mut Sampler| [0; 40].map(|_| sampler.sample(&logits, &Exact).unwrap());
        assert_eq!(drawn(&mut first), drawn(&mut second));
    }
}
