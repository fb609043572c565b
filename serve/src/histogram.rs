//! Histograms: the number of values up to each of some bounds.

/// Upper bounds of durations, in seconds.
pub const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0];
/// Upper bounds of the number of rows in a step.
pub const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

/// A histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Number of values in each bucket: above the previous bound and up to this bound. The last
    /// bucket has values above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram; bounds must ascend.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value.
    pub fn add(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at] += 1;
        self.sum += value;
    }

    /// Returns bounds, each with the number of values up to it; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((bound, *below))
        })
    }

    /// Returns the sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bucket_counts_values_up_to_its_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.0, 1.0, 1.5, 2.0, 2.5, 9.0].into_iter().for_each(|value| histogram.add(value));
        let buckets: Vec<_> = histogram.buckets().collect();
        assert_eq!(buckets, [(1.0, 2), (2.0, 4), (f64::INFINITY, 6)]);
        assert_eq!((histogram.sum(), histogram.count()), (16.0, 6));
    }
}
