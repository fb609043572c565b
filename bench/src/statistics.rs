//! Medians, spreads and ratios.

use serde::{Deserialize, Serialize};

use crate::work::Unit;

/// Statistics of several samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// Number that a quarter of the samples is below.
    pub lower_quartile: f64,
    /// Number that a quarter of the samples is above.
    pub upper_quartile: f64,
}

impl Summary {
    /// Summarises samples; `None` without samples.
    pub fn from_samples(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let at = |share: f64| {
            // Interpolates linearly between the two nearest samples.
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Summary { median: at(0.5), min, max, lower_quartile: at(0.25), upper_quartile: at(0.75) })
    }
}

/// Advantage of one entrant over another: 2 means twice as good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Ratio of the medians.
    pub of_medians: f64,
    /// Least ratio of a round.
    pub min: f64,
    /// Largest ratio of a round.
    pub max: f64,
}

impl Ratio {
    /// Compares the samples of each round. A round counts if both entrants have samples of it.
    /// Returns `None` if no round counts.
    pub fn from_rounds(unit: Unit, ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> Option<Ratio> {
        let median = |samples: &[f64]| Some(Summary::from_samples(samples)?.median);
        let of_medians = unit.ratio(median(&ours.concat())?, median(&theirs.concat())?);
        let rounds =
            ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some(unit.ratio(median(ours)?, median(theirs)?)));
        let rounds = Summary::from_samples(&rounds.collect::<Vec<_>>())?;
        Some(Ratio { of_medians, min: rounds.min, max: rounds.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles() {
        let summary = Summary::from_samples(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((summary.min, summary.median, summary.max), (1.0, 3.0, 5.0));
        assert_eq!((summary.lower_quartile, summary.upper_quartile), (2.0, 4.0));
        assert_eq!(Summary::from_samples(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::from_samples(&[7.0]).unwrap().upper_quartile, 7.0);
        assert_eq!(Summary::from_samples(&[]), None);
    }

    #[test]
    fn ratios_above_one_mean_we_are_better() {
        let (ours, theirs) = ([vec![3.0], vec![4.0], vec![6.0]], [vec![2.0], vec![2.0], vec![2.0]]);
        let rates = Ratio::from_rounds(Unit::TokensPerSecond, &ours, &theirs).unwrap();
        assert_eq!((rates.of_medians, rates.min, rates.max), (2.0, 1.5, 3.0));
        let times = Ratio::from_rounds(Unit::Seconds, &theirs, &ours).unwrap();
        assert_eq!((times.of_medians, times.min, times.max), (2.0, 1.5, 3.0));
        // A round without samples of one entrant is left out of the spread.
        let gap = Ratio::from_rounds(Unit::TokensPerSecond, &ours, &[vec![2.0], vec![], vec![2.0]]).unwrap();
        assert_eq!((gap.min, gap.max), (1.5, 3.0));
        assert_eq!(Ratio::from_rounds(Unit::Bytes, &ours, &[]), None);
    }
}
