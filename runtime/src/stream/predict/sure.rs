//! How sure guesses are: what part of those at a rank were right, counted layer by layer.
//!
//! Strategies name the likeliest experts first, and what is in memory needs no reading. Of the rest, the first ones of a good strategy
//! nearly always come, and the last ones seldom; a wrong one costs as much of the drive as a right one. So each rank is judged by
//! itself, and by all layers together where a layer has not seen enough.

/// Counts are halved when a rank has so many: texts change.
const HALVED_AT: u32 = 512;
/// What all layers say of a rank counts as much as so many guesses of the layer.
const PRIOR: f64 = 8.0;

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
}

/// The counts of one strategy.
#[derive(Debug, Default)]
pub(super) struct Sureness {
    /// By layer and rank.
    layers: Vec<Vec<Count>>,
    /// By rank.
    all: Vec<Count>,
}

impl Sureness {
    /// A guess of this rank, of an expert that was not in memory, was right or not.
    pub fn learn(&mut self, layer: u32, rank: usize, right: bool) {
        let layer = layer as usize;
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        for counts in [&mut self.layers[layer], &mut self.all] {
            if counts.len() <= rank {
                counts.resize(rank + 1, Count::default());
            }
            counts[rank].add(right);
        }
    }

    /// The part of such guesses that are right, 0 to 1: a half where nobody knows.
    pub fn of(&self, layer: u32, rank: usize) -> f64 {
        let of = |counts: Option<&Vec<Count>>| counts.and_then(|counts| counts.get(rank)).copied().unwrap_or_default();
        let (own, all) = (of(self.layers.get(layer as usize)), of(Some(&self.all)));
        let shared = (f64::from(all.right) + 1.0) / (f64::from(all.all) + 2.0);
        (f64::from(own.right) + PRIOR * shared) / (f64::from(own.all) + PRIOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_judged_by_itself_as_soon_as_it_has_seen_enough() {
        let mut sure = Sureness::default();
        assert_eq!(sure.of(3, 7), 0.5);
        for _ in 0..100 {
            sure.learn(0, 0, true);
            sure.learn(0, 1, false);
        }
        assert!(sure.of(0, 0) > 0.99 && sure.of(0, 1) < 0.01);
        assert!(sure.of(5, 0) > 0.97 && sure.of(5, 1) < 0.03, "what others say");
        for _ in 0..20 {
            sure.learn(5, 0, false);
        }
        assert!(sure.of(5, 0) < 0.4 && sure.of(0, 0) > 0.95);
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let mut sure = Sureness::default();
        (0..10_000).for_each(|_| sure.learn(0, 0, true));
        (0..600).for_each(|_| sure.learn(0, 0, false));
        assert!(sure.of(0, 0) < 0.5, "{}", sure.of(0, 0));
    }
}
