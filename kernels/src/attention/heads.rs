//! Parameters that all kernels of attention share: sizes of heads, scores, windows, and their
//! buffers.

use ixc_ir::kernel::{KernelBuilder, Op, ValueId};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::generator::cache::Cache;
use crate::generator::generate::{GenerateError, MAX_POSITIONS, check};
use crate::generator::math;
use crate::generator::signature::{BufferContents, NamedValue, Signature};
use crate::generator::text::{Bits, spec};

spec! {
    /// Sizes of the query heads that share a key head.
    pub part Heads {
        /// Number of query heads that share a key head.
        pub group: u32,
        /// Number of elements of a query or key head.
        pub d: u32,
        /// Number of elements of a value head.
        pub dv: u32,
    }
}

spec! {
    /// Computation of the scores of attention, from products of queries and keys.
    pub part Scores {
        /// Factor on the products.
        pub scale: Bits,
        /// Bound of the scores, applied like `softcap`. `None` for no bound.
        #[serde(default)]
        pub cap: Option<Bits>,
        /// Whether each head has a sink, a score without a value.
        #[serde(default)]
        pub sinks: bool,
        /// Whether each head's scores decrease with distance, by the head's slope (ALiBi).
        #[serde(default)]
        pub slopes: bool,
    }
}

impl Heads {
    /// Returns the part of the kernel's name with these sizes.
    pub(super) fn name(&self) -> String {
        let Heads { group, d, dv } = *self;
        format!("g{group}d{d}v{dv}")
    }

    /// Returns the number of elements of a key and a value together.
    pub(super) fn elements(&self) -> u32 {
        self.d + self.dv
    }
}

/// Heads of a kernel of attention, their scores, and the formats of keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    pub(super) heads: Heads,
    pub(super) scores: Scores,
    pub(super) cache: Cache,
}

impl Operands {
    /// Returns the buffers in order: queries, positions, keys and values, the `more` keys and
    /// values, the sinks and slopes of heads, the result, and scratch memory.
    pub(super) fn signature(&self, more: &[NamedValue<BufferContents>], result: &'static str) -> Signature {
        let Operands { heads, scores, cache } = *self;
        let signature = Signature::new()
            .read("q", BufferContents::Floats)
            .read("position", BufferContents::Positions)
            .read("keys", cache.keys(heads.d).holds())
            .read("values", cache.values(heads.dv).holds());
        more.iter()
            .fold(signature, |signature, more| signature.read(more.name, more.value))
            .read_if(scores.sinks, "sinks", BufferContents::Floats)
            .read_if(scores.slopes, "slopes", BufferContents::Slopes)
            .write(result, BufferContents::Floats)
            .scratch("scratch")
    }
}

impl Scores {
    /// Returns a computation of scores with this factor, and without cap, sinks and slopes.
    pub fn with_scale(scale: f64) -> Scores {
        Scores { scale: Bits::from_value(scale), cap: None, sinks: false, slopes: false }
    }

    /// Returns the part of the kernel's name that describes the scores.
    pub fn name(&self) -> String {
        let cap = self.cap.map_or(String::new(), |cap| format!("c{:x}", cap.0));
        let [sinks, slopes] =
            [(self.sinks, "_sinks"), (self.slopes, "_slopes")].map(|(has, of)| if has { of } else { "" });
        format!("s{:x}{cap}{sinks}{slopes}", self.scale.0)
    }

    /// Returns the score of a product of a query and a key, in f64.
    pub fn score(&self, product: f64) -> f64 {
        self.bent(product * f64::from(self.scale.value()))
    }

    /// Applies the cap to a scaled product.
    pub(super) fn bent(&self, score: f64) -> f64 {
        self.cap.map_or(score, |cap| f64::from(cap.value()) * (score / f64::from(cap.value())).tanh())
    }
}

/// Range of the positions that a row sees, up to and including the kernel's position of the row.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Maximum number of positions that a row sees.
    pub positions: u32,
    /// Whether windows are chunks. A row then sees the positions from the last multiple of
    /// `positions` on, and `positions` is a power of two.
    pub chunked: bool,
    /// Whether rows also see positions after their own. If so, the kernel's position of a row is
    /// after the row's own position, and the text may end before it.
    pub both: bool,
}

impl Window {
    /// Returns the part of the kernel's name that describes the window.
    pub fn name(&self) -> String {
        let kind = match self {
            Window { chunked: true, .. } => "chunk",
            Window { both: true, .. } => "both",
            Window { .. } => "window",
        };
        format!("{kind}{}", self.positions)
    }

    /// Returns the first position that the row at `position` sees.
    pub fn first(&self, position: u64) -> u64 {
        let positions = u64::from(self.positions.max(1));
        if self.chunked { position / positions * positions } else { (position + 1).saturating_sub(positions) }
    }

    /// Emits [`Window::first`] as kernel IR, for the positions `own`. If a row sees all positions
    /// from the sequence's first on, the result may be below 0.
    pub fn first_of(&self, b: &mut KernelBuilder, own: ValueId) -> ValueId {
        let (ty, positions) = (b.ty(own), i64::from(self.positions));
        if self.chunked {
            let multiples = b.splat_int(ty, -positions);
            return b.same(Op::And, &[own, multiples]);
        }
        let before = b.splat_int(ty, 1 - positions);
        b.iadd(own, before)
    }

    /// Checks that the window is valid.
    pub fn check(&self, name: &str) -> Result<(), GenerateError> {
        let Window { positions, chunked, both } = *self;
        check(name, "chunks of rows that see both ways", both.into(), !(chunked && both), "none of them")?;
        let fits = (1..=MAX_POSITIONS).contains(&positions.into());
        check(name, "a window of positions", positions.into(), fits, format!("1 to {MAX_POSITIONS}"))?;
        let ok = !chunked || (positions.is_power_of_two() && positions >= ATTENTION_BLOCK);
        check(name, "a chunk of positions", positions.into(), ok, format!("a power of two, at least {ATTENTION_BLOCK}"))
    }
}

/// Checks that a cap is valid.
pub fn check_cap(name: &str, cap: Option<Bits>) -> Result<(), GenerateError> {
    let Some(cap) = cap else { return Ok(()) };
    let expected = "those of a number above 0 whose inverse is one";
    check(name, "cap (its bits)", cap.0.into(), math::is_cap(cap.value()), expected)
}
