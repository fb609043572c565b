//! Measurement of this machine's roofline ([`ixc_measure::roofline`]). `ixc doctor` prints it, and
//! `ixc run --stats` compares a run's rates with it.

use ixc_ir::units::Bytes;
use ixc_kernels::generator::work::Arithmetic;
use ixc_measure::roofline::{CacheRate, ProductRate, Roofline};
use ixc_targets::Target;
use ixc_targets::cpu::{Caches, caches};

use super::bench::peak;
use crate::error::Error;
use ixc_compile::machine::bandwidth;
use ixc_compile::machine::system::{cgroup_left, memory};

/// Rounds of each loop of products. The result is their median.
const ROUNDS: u32 = 5;

/// Measures the peak rates for code of a target. Takes at most `budget` bytes, and at most a
/// part of the memory that the machine and this process's control groups have left.
pub fn measure(target: Target, threads: usize, budget: Option<u64>) -> Roofline {
    let sizes = caches();
    let (bytes_per_second, no_bandwidth) = match read_bytes(budget, &sizes) {
        Ok(bytes) => (Some(bandwidth::measure(threads, bytes)), None),
        Err(why) => (None, Some(why)),
    };
    let (products, refused) = match products(target, threads) {
        Ok(products) => (products, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Roofline {
        threads,
        bytes_per_second,
        caches: cache_rates(threads, budget, &sizes),
        no_bandwidth,
        products,
        refused,
    }
}

fn products(target: Target, threads: usize) -> Result<Vec<ProductRate>, Error> {
    let mut products = Vec::new();
    for arithmetic in [Arithmetic::Int8, Arithmetic::Bf16, Arithmetic::F32] {
        if let Some(peak) = peak(arithmetic, target, threads, ROUNDS)? {
            products.push(ProductRate { of: arithmetic.name(), operations_per_second: peak.operations_per_second });
        }
    }
    Ok(products)
}

/// Min bytes to read if the size of the last cache level is unknown.
const MIN_BYTES: u64 = 64 << 20;

/// Returns how many bytes to read in the measurement. It is at most a quarter of the free memory,
/// half of what the control groups still allow, and the budget.
///
/// # Errors
/// Returns the reason if memory cannot be measured. The bytes would be less than twice the last
/// cache level, so most reads would hit the cache.
fn read_bytes(budget: Option<u64>, sizes: &Caches) -> Result<usize, String> {
    let free = memory().available.map(|free| free / 4);
    let group = cgroup_left().map(|left| left / 2);
    let max = [free, group, budget].into_iter().flatten().min().unwrap_or(u64::MAX).min(bandwidth::BUFFER_BYTES as u64);
    let min = sizes.l3.or(sizes.l2).map_or(MIN_BYTES, |bytes| 2 * bytes).min(bandwidth::BUFFER_BYTES as u64);
    if max < min {
        return Err(format!("the measurement needs {} of memory; only {} may be used", Bytes(min), Bytes(max)));
    }
    Ok(usize::try_from(max).unwrap_or(usize::MAX))
}

/// Measures reads from a part of each cache: one or a few megabytes. A cache whose part exceeds the
/// budget is left out.
fn cache_rates(threads: usize, budget: Option<u64>, sizes: &Caches) -> Vec<CacheRate> {
    /// Max bytes for one cache. A part of a large cache is enough.
    const MAX_CACHE_BYTES: u64 = 8 << 20;
    // Only a quarter of the last level is read, since other processes may use the rest.
    let shared = sizes.l3.map(|bytes| ("L3", (bytes / 4).min(MAX_CACHE_BYTES)));
    let own = sizes.l2.map(|bytes| ("L2", bytes / 2 * threads.max(1) as u64));
    let larger = own.map_or(0, |(_, bytes)| 2 * bytes);
    let levels = shared.filter(|(_, bytes)| *bytes > larger).into_iter().chain(own);
    let fits = |(_, bytes): &(_, u64)| budget.is_none_or(|budget| *bytes <= budget);
    levels
        .filter(fits)
        .map(|(level, bytes)| CacheRate { level, bytes_per_second: bandwidth::measure(threads, bytes as usize) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_bandwidth_is_measured_only_within_the_budget() {
        let sizes = Caches { l1d: None, l2: Some(1 << 20), l3: Some(8 << 20) };
        assert_eq!(read_bytes(Some(20 << 20), &sizes), Ok(20 << 20));
        assert_eq!(
            read_bytes(Some(15 << 20), &sizes).unwrap_err(),
            "the measurement needs 16 MiB of memory; only 15 MiB may be used"
        );
        assert!(read_bytes(Some(63 << 20), &Caches::default()).is_err());
    }
}
