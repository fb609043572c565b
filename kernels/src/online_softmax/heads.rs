//! What attention is of: query heads that share a key head, what their scores are, which positions a row sees.

use ixc_ir::kernel::{KernelBuilder, Op, ValueId};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::cache::Cache;
use crate::generate::{GenerateError, MAX_POSITIONS, check};
use crate::math;
use crate::text::Bits;

/// Query heads that share a key head, and what they attend over.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// How many there are.
    pub group: u32,
    /// Elements of a query or key head.
    pub d: u32,
    /// Elements of a value head.
    pub dv: u32,
    /// Formats of keys and values.
    pub cache: Cache,
}

/// What scores are, besides products of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// Factor on products.
    pub scale: Bits,
    /// What scores are bent to stay within.
    pub cap: Option<Bits>,
    /// Whether each head has one more, without a value.
    pub sinks: bool,
    /// Whether each head's fall with distance, by a slope of its own.
    pub slopes: bool,
}

impl Scores {
    /// How they are called in a kernel's name.
    pub fn name(&self) -> String {
        let cap = self.cap.map_or(String::new(), |cap| format!("c{:x}", cap.0));
        let [sinks, slopes] =
            [(self.sinks, "_sinks"), (self.slopes, "_slopes")].map(|(has, of)| if has { of } else { "" });
        format!("s{:x}{cap}{sinks}{slopes}", self.scale.0)
    }

    /// The score of a product, in f64.
    pub fn of(&self, product: f64) -> f64 {
        self.bent(product * f64::from(self.scale.value()))
    }

    /// The score of a product with the factor on it.
    pub(super) fn bent(&self, score: f64) -> f64 {
        self.cap.map_or(score, |cap| f64::from(cap.value()) * (score / f64::from(cap.value())).tanh())
    }
}

/// Which positions up to its own a row sees.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The last so many.
    pub positions: u32,
    /// Or those from the last multiple of as many on: then it is a power of two.
    pub chunked: bool,
    /// Whether a text may end before a row's position, which is ahead of the row's own then: rows see both ways.
    pub both: bool,
}

impl Window {
    /// How it is called in a kernel's name.
    pub fn name(&self) -> String {
        let kind = match self {
            Window { chunked: true, .. } => "chunk",
            Window { both: true, .. } => "both",
            Window { .. } => "window",
        };
        format!("{kind}{}", self.positions)
    }

    /// The first position that the row at one sees.
    pub fn first(&self, position: u64) -> u64 {
        let positions = u64::from(self.positions.max(1));
        if self.chunked { position / positions * positions } else { (position + 1).saturating_sub(positions) }
    }

    /// The same as kernel IR, for positions `own`; it may be below 0 where nothing before the first is left out.
    pub fn first_of(&self, b: &mut KernelBuilder, own: ValueId) -> ValueId {
        let (ty, positions) = (b.ty(own), i64::from(self.positions));
        if self.chunked {
            let multiples = b.splat_int(ty, -positions);
            return b.same(Op::And, &[own, multiples]);
        }
        let before = b.splat_int(ty, 1 - positions);
        b.iadd(own, before)
    }

    /// Checks that it is one.
    pub fn check(&self, name: &str) -> Result<(), GenerateError> {
        let Window { positions, chunked, both } = *self;
        check(name, "chunks of rows that see both ways", both.into(), !(chunked && both), "none of them")?;
        let fits = (1..=MAX_POSITIONS).contains(&positions.into());
        check(name, "a window of positions", positions.into(), fits, format!("1 to {MAX_POSITIONS}"))?;
        let ok = !chunked || (positions.is_power_of_two() && positions >= ATTENTION_BLOCK);
        check(name, "a chunk of positions", positions.into(), ok, format!("a power of two, at least {ATTENTION_BLOCK}"))
    }
}

/// Checks that a cap is one.
pub fn check_cap(name: &str, cap: Option<Bits>) -> Result<(), GenerateError> {
    let Some(cap) = cap else { return Ok(()) };
    let expected = "the bits of a number above 0 with a finite inverse";
    check(name, "cap (its bits)", cap.0.into(), math::is_cap(cap.value()), expected)
}
