//! Ratio of two sets of measurements, with a confidence interval.
//!
//! The ratio is the median of the ratios of all pairs (Hodges and Lehmann 1963, for logarithms).
//! Its interval is bounded by two ratios in the sorted list of all pairs. Their ranks come from the
//! Mann-Whitney distribution. The only assumption is that both sets have the same distribution up
//! to a factor. A single outlier changes both bounds little.
//!
//! ```
//! use ixc_measure::ratio::Ratio;
//!
//! let (new, old) = ([100.0, 101.0, 99.0, 100.5], [120.0, 121.0, 119.5, 120.2]);
//! let ratio = Ratio::from_samples(&new, &old).unwrap();
//! assert!((ratio.median - 1.2).abs() < 0.01 && ratio.low > 1.15 && ratio.high < 1.25);
//! // With four measurements of each, no interval has a higher confidence than this one.
//! assert!(ratio.confidence > 0.95);
//! assert!(Ratio::from_samples(&[], &[1.0]).is_none());
//! ```

use serde::Serialize;

/// Confidence of an interval if there are enough measurements.
pub const CONFIDENCE: f64 = 0.95;
/// Max number of measurements in a set. Further ones are ignored, because all pairs are compared.
pub const MAX_MEASUREMENTS: usize = 500;

/// Ratio of the second of two sets of measurements to the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median over all pairs.
    pub median: f64,
    /// Lower bound of the interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Confidence of the interval, 0 to 1: at least [`CONFIDENCE`], or the max for few
    /// measurements.
    pub confidence: f64,
}

impl Ratio {
    /// Computes the ratio of positive measurements; `None` if a side is empty or has a value that
    /// is not positive and finite.
    pub fn from_samples(a: &[f64], b: &[f64]) -> Option<Ratio> {
        let sound = |all: &[f64]| !all.is_empty() && all.iter().all(|value| value.is_finite() && *value > 0.0);
        if !sound(a) || !sound(b) {
            return None;
        }
        let (a, b) = (&a[..a.len().min(MAX_MEASUREMENTS)], &b[..b.len().min(MAX_MEASUREMENTS)]);
        let mut ratios: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| b / a)).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        let median = match ratios.len() % 2 {
            0 => (ratios[middle - 1] * ratios[middle]).sqrt(),
            _ => ratios[middle],
        };
        let (left_out, confidence) = left_out(a.len(), b.len());
        Some(Ratio { median, low: ratios[left_out], high: ratios[ratios.len() - 1 - left_out], confidence })
    }

    /// Returns whether the second set is significantly larger or smaller. Returns `None` if the
    /// interval contains 1. Changes of less than `min_change` do not count.
    pub fn significant_change(&self, min_change: f64) -> Option<std::cmp::Ordering> {
        if self.low > 1.0 && self.median >= 1.0 + min_change {
            return Some(std::cmp::Ordering::Greater);
        }
        (self.high < 1.0 && self.median <= 1.0 / (1.0 + min_change)).then_some(std::cmp::Ordering::Less)
    }
}

/// Returns the number of sorted ratios below the interval, which is also the number above it, and
/// the confidence.
fn left_out(n: usize, m: usize) -> (usize, f64) {
    // Probability of each number of pairs whose second value is smaller, if both sets have the same
    // distribution.
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let probable = mann_whitney(n, m);
    let (mut below, mut left_out, mut outside) = (0.0, 0, None);
    for (count, probability) in probable.iter().enumerate().take(n * m / 2 + 1) {
        below += probability;
        if below > tail {
            break;
        }
        (left_out, outside) = (count, Some(below));
    }
    // A bound at rank `count` excludes outcomes with at most `count` pairs beyond it.
    let outside = outside.unwrap_or(probable[0]);
    (left_out, (1.0 - 2.0 * outside).max(0.0))
}

/// Returns the probabilities of the Mann-Whitney statistic, 0 to `n * m`, for two samples of one
/// distribution. Large samples use a normal distribution.
fn mann_whitney(n: usize, m: usize) -> Vec<f64> {
    /// Max number of orders of all measurements that are counted exactly. The counts are f64, which
    /// represents whole numbers up to this size.
    const MAX_EXACT_ORDERS: f64 = (1u64 << 51) as f64;
    let orders = (1..=n.min(m)).fold(1.0, |orders, i| orders * (n.max(m) + i) as f64 / i as f64);
    if orders > MAX_EXACT_ORDERS {
        let (mean, pairs) = ((n * m) as f64 / 2.0, n * m);
        let variance = (n * m * (n + m + 1)) as f64 / 12.0;
        let density = |count: usize| (-(count as f64 - mean).powi(2) / (2.0 * variance)).exp();
        let all: Vec<f64> = (0..=pairs).map(density).collect();
        let sum: f64 = all.iter().sum();
        return all.into_iter().map(|value| value / sum).collect();
    }
    // The generating function is the Gaussian binomial: a product of (1 - x^(m + i)) / (1 - x^i)
    // for i in 1..=n.
    let mut counts = vec![0.0; n * m + 1];
    counts[0] = 1.0;
    for i in 1..=n {
        for at in (m + i..counts.len()).rev() {
            counts[at] -= counts[at - m - i];
        }
        for at in i..counts.len() {
            counts[at] += counts[at - i];
        }
    }
    let sum: f64 = counts.iter().sum();
    counts.into_iter().map(|count| count / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Ordering;

    #[test]
    fn confidence_ranks_match_mann_whitney_tables() {
        // Critical values of U for two sides of 0.05 (Mann and Whitney 1947): 5 and 5: 2; 8 and 8:
        // 13; 10 and 7: 14.
        assert_eq!([(5, 5), (8, 8), (10, 7), (4, 4)].map(|(n, m)| left_out(n, m).0), [2, 13, 14, 0]);
        // With three measurements of each, one of the 20 possible orders is outside at each end.
        let (ends, confidence) = left_out(3, 3);
        assert!(ends == 0 && (confidence - 0.9).abs() < 1e-12, "{confidence}");
        assert!(left_out(1, 1).1.abs() < 1e-12);
        for (n, m) in [(1, 1), (3, 7), (1, 500), (26, 26), (40, 40), (500, 500)] {
            let all = mann_whitney(n, m);
            assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9 && all.iter().all(|p| *p >= 0.0), "{n} {m}");
        }
        // The exact and the normal distribution nearly agree at the size at which the code changes
        // from one to the other.
        let near = |n: usize| left_out(n, n).0 as f64 / (n * n) as f64;
        assert!((near(26) - near(30)).abs() < 0.02, "{} {}", near(26), near(30));
    }

    #[test]
    fn change_is_reported_only_beyond_noise() {
        let changed = |a: &[f64], b: &[f64]| Ratio::from_samples(a, b).unwrap().significant_change(0.01);
        let base = [100.0, 103.0, 98.0, 101.0, 99.0];
        assert_eq!(changed(&base, &base), None);
        assert_eq!(changed(&base, &base.map(|x| x * 1.1)), Some(Ordering::Greater));
        assert_eq!(changed(&base, &base.map(|x| x * 0.9)), Some(Ordering::Less));
        // The first change is within the spread. The second is significant, but smaller than
        // `min_change`.
        assert_eq!(changed(&base, &base.map(|x| x * 1.02)), None);
        assert_eq!(changed(&[100.0, 100.01, 100.02, 100.03], &[100.5, 100.51, 100.52, 100.53]), None);
        // One outlier among five rounds changes both bounds little.
        let mut bad = base.map(|x| x * 1.2);
        bad[0] = 20.0;
        assert_eq!(changed(&base, &bad), None);
        assert_eq!(changed(&base.repeat(2), &[&bad[..], &base.map(|x| x * 1.2)].concat()), Some(Ordering::Greater));
        let ratio = Ratio::from_samples(&[1.0], &[2.0]).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.confidence), (2.0, 2.0, 2.0, 0.0));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Ratio::from_samples(&[1.0], &[wrong]), None);
        }
    }
}
