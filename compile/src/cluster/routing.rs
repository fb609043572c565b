//! Expected number of a token's experts on each rank, if experts are divided among ranks. The
//! routing is assumed to be uniform: each set of `k` experts is equally likely.

use ixc_ir::graph::Group;

/// Experts of a layer, divided among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DividedExperts {
    /// Number of experts on all ranks together.
    pub experts: u64,
    /// Number of experts that a token uses.
    pub top_k: u64,
    /// Number of ranks.
    pub ranks: u32,
}

impl DividedExperts {
    /// Returns the expected number of a token's experts on the rank that has the most of these
    /// experts.
    ///
    /// The number of sets with at most `m` experts on each rank is the coefficient of `x^k` in a
    /// product of polynomials. A rank with `e` experts contributes the factor
    /// `sum over j <= m of C(e, j) x^j`.
    pub fn busiest(self) -> f64 {
        let k = self.top_k.min(self.experts);
        let all = binomial(self.experts, k);
        if all <= 0.0 || !all.is_finite() {
            return self.mean();
        }
        let at_most = |most: u64| -> f64 {
            // Coefficients up to x^k, divided by the number of all sets of `k` experts, which keeps
            // them finite.
            let mut ways = vec![0.0; k as usize + 1];
            ways[0] = 1.0 / all;
            for rank in 0..self.ranks {
                let own = self.expert_count(rank);
                let choices: Vec<f64> = (0..=most.min(k)).map(|j| binomial(own, j)).collect();
                let next = (0..ways.len())
                    .map(|sum| (0..choices.len().min(sum + 1)).map(|j| choices[j] * ways[sum - j]).sum());
                ways = next.collect();
            }
            ways[k as usize]
        };
        (0..k).map(|most| (1.0 - at_most(most)).max(0.0)).sum()
    }

    /// Returns the mean number of a token's experts on a rank.
    pub fn mean(self) -> f64 {
        self.top_k.min(self.experts) as f64 / f64::from(self.ranks.max(1))
    }

    /// Returns the number of experts of a rank, as the pass `shard` divides them.
    fn expert_count(self, rank: u32) -> u64 {
        let group = Group { rank, ranks: self.ranks };
        let end = |rank: u32| (u128::from(self.experts) * u128::from(rank) / u128::from(group.ranks)) as u64;
        end(group.rank + 1) - end(group.rank)
    }
}

/// Returns the number of sets of `k` elements out of `n`.
fn binomial(n: u64, k: u64) -> f64 {
    if k > n {
        return 0.0;
    }
    (0..k).fold(1.0, |product, i| product * (n - i) as f64 / (i + 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busiest(experts: u64, top_k: u64, ranks: u32) -> f64 {
        DividedExperts { experts, top_k, ranks }.busiest()
    }

    #[test]
    fn expected_load_of_the_busiest_rank_is_that_of_hand_counted_sets() {
        // There are 6 pairs of 4 experts. In 2 pairs, both experts are on one rank; 4 pairs have
        // one on each rank: (2 * 2 + 4) / 6.
        assert!((busiest(4, 2, 2) - 8.0 / 6.0).abs() < 1e-12);
        // A single expert is always on one rank. If a token uses all experts, they are divided
        // evenly.
        assert!((busiest(256, 1, 16) - 1.0).abs() < 1e-12);
        assert!((busiest(8, 8, 4) - 2.0).abs() < 1e-12);
        assert!((busiest(128, 8, 1) - 8.0).abs() < 1e-12);
        // There are three experts, one on rank 0 and two on rank 1. The pairs {0,1} and {0,2} give
        // a load of 1; {1,2} gives 2.
        assert!((busiest(3, 2, 2) - 4.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn busiest_rank_has_at_least_the_mean_and_at_most_all() {
        for ranks in [1, 2, 4, 8, 16, 64, 128] {
            let load = busiest(256, 8, ranks);
            let least = (8.0 / f64::from(ranks)).max(1.0);
            assert!((least - 1e-9..=8.0).contains(&load), "{ranks}: {load}");
        }
    }
}
