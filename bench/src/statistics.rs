//! Medians, spreads and ratios.

use serde::{Deserialize, Serialize};

use crate::work::Unit;

/// What several samples say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// A quarter is below.
    pub lower_quartile: f64,
    /// A quarter is above.
    pub upper_quartile: f64,
}

impl Summary {
    /// Of samples; `None` where there are none.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let at = |share: f64| {
            // Between the two samples that are nearest, in proportion.
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Summary { median: at(0.5), min, max, lower_quartile: at(0.25), upper_quartile: at(0.75) })
    }
}

/// How many times better one entrant is than another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Of the medians.
    pub of_medians: f64,
    /// The least of the rounds'.
    pub min: f64,
    /// The most of the rounds'.
    pub max: f64,
}

impl Ratio {
    /// From the samples of each round. A round counts where both have samples of it; `None` where none does.
    pub fn of(unit: Unit, ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> Option<Ratio> {
        let median = |samples: &[f64]| Some(Summary::of(samples)?.median);
        let of_medians = unit.ratio(median(&ours.concat())?, median(&theirs.concat())?);
        let rounds =
            ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some(unit.ratio(median(ours)?, median(theirs)?)));
        let rounds = Summary::of(&rounds.collect::<Vec<_>>())?;
        Some(Ratio { of_medians, min: rounds.min, max: rounds.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let summary = Summary::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((summary.min, summary.median, summary.max), (1.0, 3.0, 5.0));
        assert_eq!((summary.lower_quartile, summary.upper_quartile), (2.0, 4.0));
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[7.0]).unwrap().upper_quartile, 7.0);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn ratios_say_how_many_times_better_we_are() {
        let (ours, theirs) = ([vec![3.0], vec![4.0], vec![6.0]], [vec![2.0], vec![2.0], vec![2.0]]);
        let rates = Ratio::of(Unit::TokensPerSecond, &ours, &theirs).unwrap();
        assert_eq!((rates.of_medians, rates.min, rates.max), (2.0, 1.5, 3.0));
        let times = Ratio::of(Unit::Seconds, &theirs, &ours).unwrap();
        assert_eq!((times.of_medians, times.min, times.max), (2.0, 1.5, 3.0));
        // A round that one of them lacks is left out of the spread.
        let gap = Ratio::of(Unit::TokensPerSecond, &ours, &[vec![2.0], vec![], vec![2.0]]).unwrap();
        assert_eq!((gap.min, gap.max), (1.5, 3.0));
        assert_eq!(Ratio::of(Unit::Bytes, &ours, &[]), None);
    }
}
