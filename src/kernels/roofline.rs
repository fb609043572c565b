//! The roofline of this machine, the most that it reads and multiplies in a second: what `ixc doctor` shows, and what `ixc run --stats` sets a run's rates against.

use ixc_kernels::work::Arithmetic;
use ixc_targets::Target;
use serde::Serialize;

use super::bench::peak;
use crate::error::Error;
use crate::machine::bandwidth;
use crate::machine::system::memory;

/// Rounds of each loop of products; the median counts.
const ROUNDS: u32 = 5;

/// What so many threads do together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Roofline {
    /// Threads.
    pub threads: usize,
    /// Bytes per second that they read from memory.
    pub bytes_per_second: f64,
    /// Operations per second of each kind that the target has, two for each multiply-add.
    pub products: Vec<ProductRate>,
    /// Why products were not measured, where they were not: this machine cannot run the target's code, or the system gives no memory for code.
    pub refused: Option<String>,
}

/// A kind of products, and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProductRate {
    /// What is multiplied: `int8`, `bf16` or `f32`.
    pub of: &'static str,
    /// Operations per second.
    pub operations_per_second: f64,
}

impl Roofline {
    /// Measures them, for code of a target.
    pub fn measure(target: Target, threads: usize) -> Roofline {
        let bytes_per_second = bandwidth::measure(threads, read_bytes());
        match products(target, threads) {
            Ok(products) => Roofline { threads, bytes_per_second, products, refused: None },
            Err(error) => {
                Roofline { threads, bytes_per_second, products: Vec::new(), refused: Some(error.to_string()) }
            }
        }
    }

    /// The rate of a kind of products.
    pub fn products_of(&self, of: &str) -> Option<f64> {
        self.products.iter().find(|rate| rate.of == of).map(|rate| rate.operations_per_second)
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

/// Bytes to measure reading with: a quarter of what is free at most, so that looking never hurts.
fn read_bytes() -> usize {
    let free = memory().available.map_or(bandwidth::BUFFER_BYTES as u64, |free| free / 4);
    usize::try_from(free).unwrap_or(usize::MAX).min(bandwidth::BUFFER_BYTES)
}
