//! The estimated probability that a guess (a predicted expert) is right. It depends on the guess's
//! rank, layer and expert.
//!
//! Strategies return the likeliest experts first. Experts that are in memory need no read. The
//! first guesses of a good strategy are right more often than its last guesses. But which expert is
//! guessed is equally important.
//!
//! An early router sees a residual stream without one layer's attention and experts. This shifts
//! the scores of some experts up and of others down, almost equally for all tokens. So an early
//! router predicts some experts again and again, although the layer's router never chooses them.
//! Because they are never chosen, they are not in memory. Without a correction, most reads would be
//! for such experts.
//!
//! Each guess therefore has log-odds. They are the sum of a weight for its rank, a weight for its
//! layer, and a weight for its expert in that layer. Online logistic regression learns the weights,
//! with the step sizes of Adagrad (Duchi et al. 2011). Guesses of experts that are not in memory
//! are then counted in classes of similar odds, and the counts give the probability. Each layer has
//! its own counts; for a layer with few guesses, the counts of all layers are used.
//!
//! The table shows measurements with early routers that predict 16 experts where 8 are needed. A
//! guess was used if it was right more often than not:
//!
//! | model, experts in memory | share of missed experts named | with ranks alone |
//! | --- | --- | --- |
//! | `moe4b`, 15 % (28 misses a token) | 44 % (79 % of guesses right) | 12 % (60 % right) |
//! | `moe4b`, 30 % | 19 % | 1 % |
//! | `moe30b`, 20 % | 28 % | 16 % |

/// Number of guesses in a class at which its counts are halved, so that recent text counts more.
const HALVED_AT: u32 = 512;
/// Weight of the counts of all layers, as an equivalent number of guesses in the layer.
const PRIOR: f64 = 8.0;
/// Weight of the regression's odds, as an equivalent number of guesses in all layers.
const ODDS_PRIOR: f64 = 4.0;
/// Number of classes. Each class is an interval of probability, and all have the same length.
const CLASSES: usize = 10;
/// Initial step sizes of Adagrad for the three kinds of weights.
const RANK_STEP: f64 = 0.5;
const GROUP_STEP: f64 = 0.5;
const EXPERT_STEP: f64 = 2.0;
/// Upper bound for the number of experts of a group in any model.
const MAX_EXPERTS: usize = 1 << 16;

/// A weight of the logistic regression.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    value: f64,
    /// Sum of the weight's squared gradients so far.
    squares: f64,
}

impl Weight {
    fn step(&mut self, gradient: f64, size: f64) {
        self.squares += gradient * gradient;
        self.value += size * gradient / (1.0 + self.squares).sqrt();
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    right: u32,
    all: u32,
}

impl Count {
    fn add(&mut self, right: bool) {
        self.right += u32::from(right);
        self.all += 1;
        if self.all >= HALVED_AT {
            self.right /= 2;
            self.all /= 2;
        }
    }

    /// Returns the fraction of right guesses, after adding `weight` guesses with the fraction
    /// `prior` of right ones.
    fn part(self, prior: f64, weight: f64) -> f64 {
        (f64::from(self.right) + weight * prior) / (f64::from(self.all) + weight)
    }
}

#[derive(Debug, Default)]
struct Group {
    all: Weight,
    experts: Vec<Weight>,
    classes: [Count; CLASSES],
}

/// Statistics of one strategy's guesses, from which their probabilities are estimated.
#[derive(Debug, Default)]
pub(super) struct GuessConfidence {
    ranks: Vec<Weight>,
    groups: Vec<Group>,
    classes: [Count; CLASSES],
}

/// A guess: a group, an expert, and the rank of the guess. The rank is the number of experts that
/// the strategy guessed before it for the same group.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedGuess {
    pub group: u32,
    pub rank: usize,
    pub expert: u32,
}

impl GuessConfidence {
    /// Returns the probability that the regression gives for a guess.
    pub fn odds(&self, guess: RankedGuess) -> f64 {
        let rank = self.ranks.get(guess.rank).map_or(0.0, |weight| weight.value);
        let group = self.groups.get(guess.group as usize).map_or(0.0, |group| {
            group.all.value + group.experts.get(guess.expert as usize).map_or(0.0, |weight| weight.value)
        });
        1.0 / (1.0 + (-rank - group).exp())
    }

    fn class(probability: f64) -> usize {
        ((probability * CLASSES as f64) as usize).min(CLASSES - 1)
    }

    /// Learns whether a guess was right. `probability` is the result of [`GuessConfidence::odds`]
    /// when the guess was made. `resident` is whether the expert was in memory.
    pub fn learn(&mut self, guess: RankedGuess, probability: f64, resident: bool, right: bool) {
        let (group, expert) = (guess.group as usize, guess.expert as usize);
        if expert >= MAX_EXPERTS {
            return;
        }
        if self.groups.len() <= group {
            self.groups.resize_with(group + 1, Group::default);
        }
        if self.ranks.len() <= guess.rank {
            self.ranks.resize(guess.rank + 1, Weight::default());
        }
        let group = &mut self.groups[group];
        if group.experts.len() <= expert {
            group.experts.resize(expert + 1, Weight::default());
        }
        let gradient = f64::from(u8::from(right)) - probability;
        self.ranks[guess.rank].step(gradient, RANK_STEP);
        group.all.step(gradient, GROUP_STEP);
        group.experts[expert].step(gradient, EXPERT_STEP);
        if !resident {
            let class = GuessConfidence::class(probability);
            group.classes[class].add(right);
            self.classes[class].add(right);
        }
    }

    /// Returns the estimated probability, 0 to 1, that a guess of an expert outside memory is
    /// right. `probability` is that of the regression. Without any data, the result is one half.
    pub fn smoothed_probability(&self, group: u32, probability: f64) -> f64 {
        let class = GuessConfidence::class(probability);
        let shared = self.classes[class].part(probability, ODDS_PRIOR);
        let own = self.groups.get(group as usize).map_or(Count::default(), |group| group.classes[class]);
        own.part(shared, PRIOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked_guess(group: u32, rank: usize, expert: u32) -> RankedGuess {
        RankedGuess { group, rank, expert }
    }

    impl GuessConfidence {
        fn probability(&self, guess: RankedGuess) -> f64 {
            self.smoothed_probability(guess.group, self.odds(guess))
        }
    }

    fn learn(sure: &mut GuessConfidence, guess: RankedGuess, resident: bool, right: bool) {
        sure.learn(guess, sure.odds(guess), resident, right);
    }

    #[test]
    fn confidence_distinguishes_experts_of_the_same_rank() {
        let mut sure = GuessConfidence::default();
        assert_eq!(sure.probability(ranked_guess(3, 7, 9)), 0.5);
        for token in 0..100 {
            // The first guess is one of ten experts, and is right unless it is expert 3. The second
            // guess is never right.
            let expert = token % 10;
            learn(&mut sure, ranked_guess(0, 0, expert), expert != 3, expert != 3);
            learn(&mut sure, ranked_guess(0, 1, 20 + expert), false, false);
        }
        assert!(sure.probability(ranked_guess(0, 0, 3)) < 0.2, "{}", sure.probability(ranked_guess(0, 0, 3)));
        assert!(sure.probability(ranked_guess(0, 0, 4)) > 0.7, "{}", sure.probability(ranked_guess(0, 0, 4)));
        // For an expert and a layer that were never seen, the rank alone still gives information.
        let [first, second] = [0, 1].map(|rank| sure.probability(ranked_guess(5, rank, 50)));
        assert!(first > 0.6 && second < 0.1, "{first}, {second}");
    }

    #[test]
    fn confidence_is_learned_per_layer() {
        let mut sure = GuessConfidence::default();
        // Guesses of the same rank are right in one layer and wrong in the other. Each expert
        // occurs only once.
        for token in 0..200 {
            learn(&mut sure, ranked_guess(0, 0, token), false, true);
            learn(&mut sure, ranked_guess(1, 0, token), false, false);
        }
        let [right, wrong] = [0, 1].map(|group| sure.probability(ranked_guess(group, 0, 1000)));
        assert!(right > 0.8 && wrong < 0.2, "{right}, {wrong}");
    }

    #[test]
    fn confidence_learns_only_from_experts_that_are_read() {
        let mut sure = GuessConfidence::default();
        // Guesses of experts in memory are right, and all other guesses are wrong.
        for token in 0..400 {
            learn(&mut sure, ranked_guess(0, 0, token % 4), token % 4 != 0, token % 4 != 0);
        }
        assert!(sure.probability(ranked_guess(0, 0, 0)) < 0.1 && sure.odds(ranked_guess(0, 0, 1)) > 0.9);
    }

    #[test]
    fn old_observations_lose_weight() {
        let mut sure = GuessConfidence::default();
        (0..10_000).for_each(|_| learn(&mut sure, ranked_guess(0, 0, 0), false, true));
        (0..600).for_each(|_| learn(&mut sure, ranked_guess(0, 0, 0), false, false));
        assert!(sure.probability(ranked_guess(0, 0, 0)) < 0.5, "{}", sure.probability(ranked_guess(0, 0, 0)));
    }

    #[test]
    fn invalid_expert_numbers_take_no_memory() {
        let mut sure = GuessConfidence::default();
        learn(&mut sure, ranked_guess(0, 0, u32::MAX), false, true);
        assert!(sure.groups.is_empty() && sure.probability(ranked_guess(0, 0, u32::MAX)) == 0.5);
    }
}
