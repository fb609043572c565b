//! The probability that a guess is right, by its rank and its expert.
//!
//! Strategies name the likeliest experts first, and experts in memory need no reading. The first
//! guesses of a good strategy are right more often than the last ones. The guessed expert matters
//! just as much.
//!
//! An early router sees a residual without one layer's attention and experts. This shifts the
//! scores of some experts up and of others down, almost equally for all tokens. So some experts are
//! named again and again and never chosen. Such experts are not in memory, because they are never
//! chosen. Most of the reads would be for them.
//!
//! Each guess therefore has log-odds: the sum of a weight for its rank, one for its layer, and one
//! for its expert in that layer. Online logistic regression learns the weights, with the step sizes
//! of Adagrad (Duchi et al. 2011). Guesses of experts outside memory are then counted in classes of
//! similar odds, and the count gives the probability. Counts are per layer; a layer with few
//! guesses uses the counts of all layers.
//!
//! Measured with early routers that name 16 experts where 8 are needed; guesses that are right more
//! often than not:
//!
//! | model, experts in memory | share of missed experts named | with ranks alone |
//! | --- | --- | --- |
//! | `moe4b`, 15 % (28 misses a token) | 44 % (79 % of guesses right) | 12 % (60 % right) |
//! | `moe4b`, 30 % | 19 % | 1 % |
//! | `moe30b`, 20 % | 28 % | 16 % |

/// Number of guesses at which the counts of a class are halved, so that recent text counts more.
const HALVED_AT: u32 = 512;
/// Weight of the counts over all layers, as a number of equivalent guesses in the layer.
const PRIOR: f64 = 8.0;
/// Weight of the predicted odds, as a number of equivalent guesses over all layers.
const ODDS_PRIOR: f64 = 4.0;
/// Number of classes: equal intervals of probability.
const CLASSES: usize = 10;
/// Initial step sizes of Adagrad.
const RANK_STEP: f64 = 0.5;
const GROUP_STEP: f64 = 0.5;
const EXPERT_STEP: f64 = 2.0;
/// Upper bound of the experts of a group in any model.
const MAX_EXPERTS: usize = 1 << 16;

/// A weight of the regression.
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

    /// Returns the share of right guesses, with `prior` added as `weight` guesses.
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

/// Statistics of one strategy's guesses.
#[derive(Debug, Default)]
pub(super) struct GuessConfidence {
    ranks: Vec<Weight>,
    groups: Vec<Group>,
    classes: [Count; CLASSES],
}

/// A guess: group, expert, and the number of experts of the group named before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankedGuess {
    pub group: u32,
    pub rank: usize,
    pub expert: u32,
}

impl GuessConfidence {
    /// Returns the probability that corresponds to the log-odds of a guess.
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

    /// Learns from a guess, which had `probability` when it was made and was right or not.
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

    /// Returns the probability that a guess of an expert outside memory is right, 0 to 1; one half
    /// if nothing is known.
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
            // The first guess is one of ten experts, and right unless it is expert 3. The second is
            // never right.
            let expert = token % 10;
            learn(&mut sure, ranked_guess(0, 0, expert), expert != 3, expert != 3);
            learn(&mut sure, ranked_guess(0, 1, 20 + expert), false, false);
        }
        assert!(sure.probability(ranked_guess(0, 0, 3)) < 0.2, "{}", sure.probability(ranked_guess(0, 0, 3)));
        assert!(sure.probability(ranked_guess(0, 0, 4)) > 0.7, "{}", sure.probability(ranked_guess(0, 0, 4)));
        // For an unseen expert and layer, the rank still gives information.
        let [first, second] = [0, 1].map(|rank| sure.probability(ranked_guess(5, rank, 50)));
        assert!(first > 0.6 && second < 0.1, "{first}, {second}");
    }

    #[test]
    fn confidence_is_learned_per_layer() {
        let mut sure = GuessConfidence::default();
        // The same rank is right in one layer and wrong in the other; each expert occurs only once.
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
        // Guesses are right for experts in memory, and wrong for the others.
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
