//! Measured choices that replace choices of `tile`, by the shape of a weight. A choice has the
//! weight rows of an item, the activation rows of an item, and a kernel's pace (prefetch distance
//! and unrolling).
//!
//! ```text
//! q4_k_r16 x=a8_super n=2048 k=2048: gemv x16@2048/2        bands of 16, half a page ahead, unrolled twice
//! q4_k_r16 x=a8_super n=2048 k=2048: rows=16 gemm/48        items of 16 weight rows and 48 rows of activations
//! q4_k_r16 x=a8_super n=768 k=2048 products=2 block=256/32: gemm/24
//! ```
//!
//! A choice never changes the kernel for each number of rows, because kernels differ in the order
//! of sums of float weights. Every part of a choice must be a candidate of the weight, which `tile`
//! checks. Tuning therefore changes no bits.

use std::fmt;
use std::str::FromStr;

use ixc_ir::format::Format;
use ixc_kernels::MatmulStrategy;
use ixc_kernels::Pace;
use ixc_kernels::candidates::Weight;
use ixc_kernels::tiling::Use;

use crate::options::OptionValue;

/// Measured tilings, by the shape of a weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunedChoices(pub Vec<TunedChoice>);

/// Measured choice for one kernel and one shape of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedChoice {
    /// The weight, with the properties that its products depend on.
    pub weight: Weight,
    /// Weight rows of an item, if chosen. Only a choice for the kernel for the most rows sets it.
    pub rows: Option<u64>,
    /// Kernel to which the choice applies.
    pub strategy: MatmulStrategy,
    /// Max rows of activations of an item, if chosen.
    pub row_chunk: Option<u32>,
    /// Number of weight rows of a band, if the choice has bands.
    pub band: Option<u32>,
    /// Prefetch distance and unrolling of the kernel.
    pub pace: Pace,
}

/// A kernel of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightKernel {
    /// The weight.
    pub weight: Weight,
    /// Kernel for products with the weight.
    pub strategy: MatmulStrategy,
}

impl TunedChoice {
    /// Returns the weight and kernel to which the choice applies. If several choices have the same
    /// weight and kernel, the last one counts.
    pub fn kernel(&self) -> WeightKernel {
        WeightKernel { weight: self.weight, strategy: self.strategy }
    }
}

impl fmt::Display for TunedChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Weight { format, x, n, k, products, block, sub_block } = self.weight;
        write!(f, "{format} x={x} n={n} k={k}")?;
        if products != 1 {
            write!(f, " products={products}")?;
        }
        if (block, sub_block) != (1, 1) {
            write!(f, " block={block}/{sub_block}")?;
        }
        f.write_str(":")?;
        if let Some(rows) = self.rows {
            write!(f, " rows={rows}")?;
        }
        write!(f, " {}", self.strategy)?;
        if let Some(chunk) = self.row_chunk {
            write!(f, "/{chunk}")?;
        }
        if let Some(band) = self.band {
            write!(f, " x{band}")?;
        }
        if self.pace != Pace::default() {
            write!(f, "@{}", self.pace)?;
        }
        Ok(())
    }
}

/// Reads a strategy from its word in the text of tilings.
fn strategy(word: &str) -> Option<MatmulStrategy> {
    format!("{word}/1").parse::<Use>().ok().map(|each| each.strategy)
}

fn positive<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number| *number >= T::from(1))
}

impl FromStr for TunedChoice {
    type Err = ();

    fn from_str(text: &str) -> Result<TunedChoice, ()> {
        read(text).ok_or(())
    }
}

fn read(text: &str) -> Option<TunedChoice> {
    let (shape, chosen) = text.split_once(':')?;
    let mut words = shape.split_whitespace();
    let format = Format::from_name(words.next()?)?;
    let (mut x, mut n, mut k, mut products, mut block) = (None, None, None, None, None);
    for word in words {
        let (name, value) = word.split_once('=')?;
        // Each key may occur once.
        let is_first = match name {
            "x" => x.replace(Format::from_name(value)?).is_none(),
            "n" => n.replace(positive(value)?).is_none(),
            "k" => k.replace(positive(value)?).is_none(),
            "products" => products.replace(positive::<u32>(value).filter(|products| *products <= 2)?).is_none(),
            "block" => {
                let (whole, sub) = value.split_once('/')?;
                block.replace((positive(whole)?, positive(sub)?)).is_none()
            }
            _ => false,
        };
        if !is_first {
            return None;
        }
    }
    let (block, sub_block) = block.unwrap_or((1, 1));
    let weight = Weight { format, x: x?, n: n?, k: k?, products: products.unwrap_or(1), block, sub_block };
    let (chosen, pace) = match chosen.split_once('@') {
        Some((chosen, pace)) => (chosen, pace.parse().ok()?),
        None => (chosen, Pace::default()),
    };
    let mut words = chosen.split_whitespace().peekable();
    let rows = words.next_if(|word| word.starts_with("rows="));
    let rows = match rows {
        Some(word) => Some(positive(&word["rows=".len()..])?),
        None => None,
    };
    let kernel = words.next()?;
    let (word, row_chunk) = match kernel.split_once('/') {
        Some((word, chunk)) => (word, Some(positive(chunk)?)),
        None => (kernel, None),
    };
    let band = match words.next() {
        Some(word) => Some(positive(word.strip_prefix('x')?)?),
        None => None,
    };
    let choice = TunedChoice { weight, rows, strategy: strategy(word)?, row_chunk, band, pace };
    words.next().is_none().then_some(choice)
}

impl OptionValue for TunedChoices {
    const EXPECTED: &'static str =
        "FORMAT x=FORMAT n=ROWS k=COLUMNS: KERNEL, such as q4_k_r16 x=a8_super n=2048 k=2048: rows=16 gemm/48@2048/2";

    fn read(text: &str) -> Option<TunedChoices> {
        let texts = text.split(';').map(str::trim).filter(|text| !text.is_empty());
        texts.map(|text| text.parse().ok()).collect::<Option<_>>().map(TunedChoices)
    }

    fn text(&self) -> String {
        self.0.iter().map(TunedChoice::to_string).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back_and_other_text_is_refused() {
        let text = "q4_k_r16 x=a8_super n=2048 k=2048: gemv x16@2048/2; \
                    q4_k_r16 x=a8_super n=768 k=2048 products=2 block=256/32: rows=256 gemm/24@0/1";
        assert_eq!(<TunedChoices as OptionValue>::read(text).unwrap().text(), text);
        for wrong in [
            "q4_k_r16",
            "q9 x=a8_super n=1 k=1: gemm",
            "q4_k_r16 x=a8_super n=1: gemm",
            "q4_k_r16 x=a8_super n=1 n=1 k=1: gemm",
            "q4_k_r16 x=a8_super n=0 k=1: gemm",
            "q4_k_r16 x=a8_super n=1 k=1 products=3: gemm",
            "q4_k_r16 x=a8_super n=1 k=1: fast",
            "q4_k_r16 x=a8_super n=1 k=1: gemm/0",
            "q4_k_r16 x=a8_super n=1 k=1: gemm y16",
            "q4_k_r16 x=a8_super n=1 k=1: gemm x16 x16",
            "q4_k_r16 x=a8_super n=1 k=1: gemm@17/1",
        ] {
            assert_eq!(<TunedChoices as OptionValue>::read(wrong), None, "{wrong}");
        }
    }
}
