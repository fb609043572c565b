//! Roofline of a machine: its peak rates of reads and products.

use serde::Serialize;

/// Peak rates of this many threads together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Roofline {
    /// Number of threads.
    pub threads: usize,
    /// Bytes per second that all threads read from memory; `None` if too little memory is free for
    /// the measurement.
    pub bytes_per_second: Option<f64>,
    /// Bytes per second that the threads read from caches, the largest cache first.
    pub caches: Vec<CacheRate>,
    /// Reason why reading from memory was not measured.
    pub no_bandwidth: Option<String>,
    /// Operations per second of each kind that the target has, two for each multiply-add.
    pub products: Vec<ProductRate>,
    /// Reason that products were not measured: this machine cannot run the target's code, or the
    /// system gives no memory for code.
    pub refused: Option<String>,
}

/// A cache level, and the rate at which threads read from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CacheRate {
    /// The name: `L3` or `L2`.
    pub level: &'static str,
    /// Bytes that all threads read per second.
    pub bytes_per_second: f64,
}

/// A kind of products, and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProductRate {
    /// Type of the factors: `int8`, `bf16` or `f32`.
    pub of: &'static str,
    /// Operations of all threads per second.
    pub operations_per_second: f64,
}

impl Roofline {
    /// Returns the level of memory that feeds reads at this rate, and the share of the level's own
    /// rate. That level is memory, or the largest cache that is as fast. Faster reads come from the
    /// first cache level, which was not measured.
    pub fn feeding_level(&self, bytes_per_second: f64) -> Option<(&'static str, f64)> {
        /// Rates of one machine vary by this factor over time.
        const NOISE: f64 = 1.05;
        let memory = self.bytes_per_second.map(|rate| ("memory", rate));
        let mut levels =
            memory.into_iter().chain(self.caches.iter().map(|cache| (cache.level, cache.bytes_per_second)));
        let found = levels.find(|(_, rate)| *rate > 0.0 && bytes_per_second <= rate * NOISE);
        found.map(|(level, rate)| (level, bytes_per_second / rate))
    }

    /// Returns the rate of a kind of products.
    pub fn product_rate(&self, of: &str) -> Option<f64> {
        self.products.iter().find(|rate| rate.of == of).map(|rate| rate.operations_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_attributed_to_the_largest_fast_enough_level() {
        let cache = |level, bytes_per_second| CacheRate { level, bytes_per_second };
        let roofline = Roofline {
            threads: 2,
            bytes_per_second: Some(20e9),
            caches: vec![cache("L3", 50e9), cache("L2", 100e9)],
            no_bandwidth: None,
            products: Vec::new(),
            refused: None,
        };
        assert_eq!(roofline.feeding_level(10e9), Some(("memory", 0.5)));
        assert_eq!(roofline.feeding_level(25e9), Some(("L3", 0.5)));
        assert_eq!(roofline.feeding_level(80e9), Some(("L2", 0.8)));
        assert_eq!(roofline.feeding_level(200e9), None);
        let unmeasured = Roofline { bytes_per_second: None, caches: Vec::new(), ..roofline };
        assert_eq!(unmeasured.feeding_level(10e9), None);
    }
}
