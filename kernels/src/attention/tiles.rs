//! Attention of many rows over the KV cache, with tile products, on machines that have them. The
//! products of queries and keys, and those of weights and values, have bf16 factors and f32 sums.
//! The online softmax is that of [`super::online_softmax`], over runs of [`RUN`] positions.
//!
//! ```text
//! for each run of positions                   // runs that all rows see whole, runs with a mask,
//!                                             // and the blocks before and after them
//!   panels of bf16: keys in two parts, values // once for all queries of the item:
//!                                             // f16 -> f32 -> tile<16x32xbf16>
//!   for every 32 queries
//!     scores[32][RUN] = q k'                  // 2 x 2 sums in tiles over d, per 32 positions
//!     for every 16 of them: maxima, in a vector with a lane for each query
//!     for each query: p = 2^(score - maximum), as bf16
//!                     sums, acc *= 2^(old maximum - maximum); sums += p
//!     acc[32][dv] += p v                      // 2 x 2 sums in tiles over the run's positions
//! ```
//!
//! The products and the computation of weights take about the same time, and use different units of
//! a core. In runs without a mask, each step of the score products for the *next* 32 queries is
//! therefore followed by the weights of some queries. An out-of-order core then works on both at
//! once. The step after the last 32 queries multiplies arbitrary bytes, and its result is not used.
//! This costs 2 % of the time; an exact count would need separate code.
//!
//! The rows of a tile are queries: the heads of a row that share a key head, then the heads of the
//! next row. A product has two tiles of queries, a pair of 32 queries in all, so rows come in units
//! of 32 / gcd(32, heads). Missing rows of the last unit are computed as queries of zeros. Weights
//! are powers of two: queries are multiplied by the factor on scores and by log2 e, and a cap by
//! log2 e. A cap (Gemma 2) is applied after the products and before the maxima. Slopes, times log2
//! e, are applied there too ([`super::online_softmax`] describes them).
//!
//! **Rounding.** Scores are exponents of weights, so their absolute error matters. If one element
//! is large in all keys (models with a bias on keys), a single bf16 is not precise enough. Keys and
//! queries are therefore split into two bf16 each, and a product becomes three (high * high, low *
//! high, high * low). The split of keys is exact: an f16 has 11 significant bits, a bf16 has 8, and
//! the second bf16 has the remaining bits. Weights and values are one bf16 each, with one product.
//! A result is a mean whose terms have relative errors within 2^-7. The next product rounds the
//! result again, to bf16 at best. Let S be the maximum of scale * sum of |q k|, w the weights (with
//! the sum 1), and v the values:
//!
//! ```text
//! |error| <= (2 (e^(S / 2^14) - 1) + 2^-7) * sum of w |v|
//!            + rounding of f32 sums, which is a thousandth of that
//! ```
//!
//! If the next product has float weights, its activations have 16 bits, and an error of 2^-7 is too
//! large. The error of the golden f16 model would rise from 2e-7 to 2e-5. Kernels with `exact`
//! therefore split weights and values into two bf16 too, with three products. Their bound has 2^-14
//! instead of 2^-7. The reference and the tests compare results with these bounds.
//!
//! Keys and values in block formats ([`ixc_ir::cache`]) are converted to f32 in registers, and then
//! to panels of bf16. An integer times an f16 has up to 19 bits. Two truncated bf16 represent it
//! with a relative error of at most 2^-15. A single rounded bf16 has the same relative error as for
//! any other number.
//!
//! **Windows.** With a `window`, a row sees only the last positions, including its own. The item
//! begins with the first block that its first row sees, so that no unseen block is read. Blocks at
//! either end that some row does not see whole are masked:
//!
//! ```text
//! window 300, rows at 500 to 507: blocks 6 to 15  // first row sees 201 to 500, last 208 to 507
//! 6 7 | 8 to 11 | 12 to 15   // lead, a full run, a masked run; runs begin at multiples of 4
//! ```
//!
//! **A row's result** does not depend on the other rows of its item, or on its place among them.
//! Runs begin at multiples of [`RUN`] in the sequence, for any first row of the item and any begin
//! of a window's memory. Masked positions add zeros to sums, and rows of a tile are independent.
//! The rounding differs from that of the kernels for few rows ([`crate::Attention`],
//! [`crate::AttentionWindow`]).

mod attend;
mod items;
mod panels;
mod scratch;

use std::ops::Range;

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::{ATTENTION_BLOCK, DimInput};

pub use self::items::{FEW_ROWS, SHORT_ROWS};
use super::heads::{Heads, Operands, Scores, Window, check_cap};
use super::request::{AttentionRequest, ItemDivision, KernelOffer, LargerItems, Reason};
use crate::catalogue::{Row, row};
use crate::generator::blocks::{self, Runs};
use crate::generator::cache::{Cache, Field};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::math::SOFTCAP_BOUND;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{Dim, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Arithmetic, Call, Work};

/// Number of blocks of positions in a run. For heads of 128 elements, a run's panels have 96 KiB,
/// and fit into the L2 cache together with the queries. With shorter runs, the accumulators would
/// be loaded, scaled and stored more often. Runs of 64 positions would cost 0.3 cycles more for
/// each query and position.
const RUN_BLOCKS: u32 = 4;
/// Number of positions in a run.
const RUN: i64 = (RUN_BLOCKS * ATTENTION_BLOCK) as i64;
/// Number of queries that are computed together: the rows of two tiles.
const PAIR: u32 = 32;
/// Maximum number of queries of an item. It is larger than the number of queries of any unit of
/// rows.
const MAX_QUERIES: u32 = PAIR << 8;

spec! {
    /// Attention of `group` query heads over one key head by tile products. An item is up to `rows`
    /// rows and one column; columns are key heads. Rows of `q` and `y` have all `heads * group`
    /// query heads. Positions after the row's position, or before its window, have weight 0.
    pub struct AttentionTiles "attention_tiles" {
        ..heads: Heads,
        ..scores: Scores,
        /// Number of key heads of a row, which determines the distance between rows.
        pub key_heads as "heads": u32,
        /// Maximum number of rows of an item, in whole units.
        pub rows: u32,
        /// Whether each attention weight and each value is also split into two bf16, as queries and
        /// keys always are.
        pub exact: bool,
        /// Number of positions that a row sees, including its own. `None` if a row sees all
        /// positions up to its own.
        pub window: Option<u32>,
        /// Whether windows are chunks. A row then sees the positions from the last multiple of
        /// `window` on.
        pub chunked: bool,
        /// Whether rows see the same number of positions after their own as before it. If so, the
        /// kernel's position of a row is half a window after the row's own position, and the text
        /// may end before it.
        #[serde(default)]
        pub both: bool,
        /// Formats of keys and values.
        #[serde(default)]
        pub cache: Cache = Cache::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("attention_tiles_64", 70, "attention_tiles group=4 d=64 dv=64 scale=0.125 heads=8 rows=72"),
    row("attention_tiles_128", 32, "attention_tiles group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=32"),
    row("attention_tiles_exact", 32, "attention_tiles group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=32 exact"),
    row("attention_tiles_cap", 64, "attention_tiles group=2 d=256 dv=256 scale=0.0625 cap=50.0 heads=4 rows=64"),
    row("attention_tiles_slopes", 64, "attention_tiles group=1 d=128 dv=128 scale=0.088388346 slopes heads=32 rows=64"),
    row("attention_tiles_window", 20, "attention_tiles group=8 d=64 dv=64 scale=0.125 heads=8 rows=20 window=128"),
    row("attention_tiles_window_1024", 32, "attention_tiles group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=32 window=1024"),
    row("attention_tiles_chunk", 64, "attention_tiles group=5 d=128 dv=128 scale=0.088388346 heads=8 rows=64 window=256 chunked"),
    row("attention_tiles_both", 64, "attention_tiles group=1 d=64 dv=64 scale=0.125 heads=12 rows=64 window=129 both"),
    row("attention_tiles_q8_0", 32, "attention_tiles group=8 d=128 dv=128 scale=0.088388346 heads=4 rows=32 cache=q8_0/q8_0"),
    row("attention_tiles_q4_0", 20, "attention_tiles group=8 d=64 dv=64 scale=0.125 heads=8 rows=20 exact window=128 cache=q4_0/q4_0"),
];

/// Relative error of rounding to bf16: half a unit of the last of 8 significant bits.
const BF16: f64 = 1.0 / 256.0;
/// Relative error of a product of two factors that are split into two bf16 each. One factor has an
/// error of up to 2^-16; keys and values are exact. The product of the two low parts is omitted. A
/// low part is up to 2^-8 of its factor if the high part is rounded, and up to 2^-7 if it is
/// truncated.
const TWO_BF16: f64 = 1.0 / 16384.0;
/// Relative error of a number with more bits that is split into two truncated bf16.
const CUT: f64 = 1.0 / 32768.0;
/// Default position of the first row in tests, which is in the third run.
const FIRST: u64 = 300;

impl AttentionTiles {
    fn window(&self) -> Option<Window> {
        self.window.map(|positions| Window { positions, chunked: self.chunked, both: self.both })
    }

    fn operands(&self) -> Operands {
        Operands { heads: self.heads, scores: self.scores, cache: self.cache }
    }

    /// Returns the spec of this kernel for a request, and the sizes of its items.
    ///
    /// # Errors
    /// Returns the first reason why the kernel does not accept the request.
    pub fn accepts(request: &AttentionRequest) -> Result<KernelOffer, Reason> {
        let AttentionRequest { heads, scores, cache, key_heads, exact, .. } = *request;
        Reason::NoTiles.refuse_if(!request.tiles)?;
        Reason::Entries.refuse_if(request.entries.is_some())?;
        Reason::Sinks.refuse_if(scores.sinks)?;
        Reason::Chosen.refuse_if(request.chosen)?;
        let seen = request.sight()?;
        Reason::FewRows.refuse_if(request.rows <= FEW_ROWS)?;
        let window = seen.map(|window| window.positions);
        let [chunked, both] = [seen.is_some_and(|seen| seen.chunked), seen.is_some_and(|seen| seen.both)];
        let rows = items::rows(heads.group, window);
        let row_chunk = if request.rows <= SHORT_ROWS { items::short_rows(heads.group, rows) } else { rows };
        const SHORT: &str = "16 threads have an item each of half as many queries";
        Ok(KernelOffer {
            spec: AttentionTiles { heads, scores, key_heads, rows, exact, window, chunked, both, cache }.into(),
            row_chunk,
            division: ItemDivision::Whole,
            why: "tiles convert keys and values once for the queries of many rows",
            larger: (row_chunk < rows).then_some(LargerItems { row_chunk: rows, why: SHORT }),
        })
    }

    /// Returns the number of rows of a unit. The queries of a unit fill whole pairs of tiles.
    pub fn unit(group: u32) -> u32 {
        PAIR >> group.trailing_zeros().min(PAIR.trailing_zeros())
    }

    /// Returns the number of rows that have about `queries` queries, in whole units and at least
    /// one unit.
    pub fn rows_of(group: u32, queries: u32) -> u32 {
        let unit = AttentionTiles::unit(group);
        (queries / unit.saturating_mul(group).max(1)).max(1).saturating_mul(unit)
    }

    /// Returns the values of the dims for an item of rows at these positions. The memory of the
    /// state begins at position 0.
    pub fn dims(&self, rows: Range<u64>) -> Vec<i64> {
        let seen = |position: u64| self.window().map_or(0, |window| window.first(position));
        let (first, last) = (seen(rows.start) / u64::from(ATTENTION_BLOCK), rows.end.saturating_sub(1));
        let value = |input| match input {
            DimInput::Rows => last + 1 - rows.start,
            DimInput::First => rows.start,
            DimInput::Last | DimInput::Position => last,
            DimInput::WindowBegin => seen(last),
            DimInput::PartBegin | DimInput::Skipped => first,
            DimInput::PartEnd => u64::MAX,
            // In this test, the text ends a little before the last position in the last row's
            // window.
            DimInput::TextEnd => last.saturating_sub(3),
            DimInput::Parts => 1,
            DimInput::Band | DimInput::Tokens | DimInput::Outputs | DimInput::Capacity => 0,
        };
        let dims = self.signature().dims;
        // Evaluation cannot fail: dims only divide by constants, and positions are far below 2^64.
        let value = |dim: &Dim| dim.value.as_ref().map_or(Ok(0), |dim| dim.evaluate(value)).unwrap_or(0);
        dims.iter().map(|dim| value(dim).cast_signed()).collect()
    }
}

impl Definition for AttentionTiles {
    fn name(&self) -> String {
        let AttentionTiles { heads, scores, key_heads, rows, exact, cache, .. } = *self;
        let exact = if exact { "_exact" } else { "" };
        let window = self.window().map_or(String::new(), |window| format!("_{}", window.name()));
        let (heads, scores, cache) = (heads.name(), scores.name(), cache.suffix());
        format!("attention_tiles{window}_{heads}h{key_heads}m{rows}{exact}_{scores}{cache}")
    }

    fn signature(&self) -> Signature {
        let unit = AttentionTiles::unit(self.heads.group);
        let signature = self.operands().signature(&[], "y");
        let runs = Runs::from_length(RUN_BLOCKS);
        let signature = match self.window {
            None => signature,
            Some(_) => signature.dim("first", blocks::first()).dim("run_lead", runs.lead).dim("head_runs", runs.head),
        };
        signature
            .dim("full_runs", runs.full)
            .dim("masked_runs", runs.masked)
            .dim("run_rest", runs.rest)
            .dim("units", DimInput::Rows / unit)
            .dim("rest", DimInput::Rows % unit)
            .dim("partial", (DimInput::Rows % unit).min(1))
            .dim_if(self.both, "end", DimInput::TextEnd)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let AttentionTiles { heads: Heads { group, d, dv }, scores, key_heads, rows, chunked, cache, .. } = *self;
        let tiles = vectors.tiles;
        check(&name, "tile registers of the target", tiles.into(), tiles, "8, for attention by tiles")?;
        for (what, n) in [
            ("query heads", group),
            ("elements of a key head", d),
            ("elements of a value head", dv),
            ("key heads", key_heads),
        ] {
            check(&name, what, n.into(), n > 0, "at least 1")?;
        }
        check_cap(&name, scores.cap)?;
        check(&name, "sinks", scores.sinks.into(), !scores.sinks, "none")?;
        if let Some(window) = self.window() {
            window.check(&name)?;
        }
        let of_window = self.window.is_some() && !scores.slopes;
        check(
            &name,
            "rows that see both ways",
            self.both.into(),
            of_window || !self.both,
            "those of a window, without slopes",
        )?;
        check(
            &name,
            "chunks",
            chunked.into(),
            self.window.is_some() || !chunked,
            "no chunks, because there is no window",
        )?;
        cache.check(&name, d, dv)?;
        let unit = AttentionTiles::unit(group);
        check(&name, "rows", rows.into(), rows > 0 && rows % unit == 0, format!("a multiple of {unit}"))?;
        let queries = u64::from(rows) * u64::from(group);
        check(&name, "queries", queries, queries <= MAX_QUERIES.into(), format!("at most {MAX_QUERIES}"))?;
        Ok(attend::kernel(name, self))
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let AttentionTiles { heads: Heads { group, d, dv }, scores: of, key_heads, exact, window, cache, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let (of_keys, of_values) = (cache.keys(d), cache.values(dv));
        let cut = |field: &Field| if field.codes().is_some() { CUT } else { 0.0 };
        let of_products = TWO_BF16 + cut(&of_keys);
        let rounding = if exact { TWO_BF16 + cut(&of_values) } else { 2.0 * BF16 };
        let (group, d, dv, heads) = (group as usize, d as usize, dv as usize, key_heads as usize);
        let (q, y) = (input.floats("q")?, output.floats("y")?);
        let slopes = if of.slopes { Some(input.floats("slopes")?) } else { None };
        let (key, value) = (of_keys.reader(&input, "keys")?, of_values.reader(&input, "values")?);
        let factor = f64::from(of.scale.value());
        // The buffers begin with the first block that the item reads.
        let begins = window.map_or(0, |_| ATTENTION_BLOCK as usize * run.dim("first") as usize);
        for (r, own) in input.ints("position")?.into_iter().enumerate() {
            let end = own as usize + 1 - begins;
            let from = self.window().map_or(0, |window| window.first(end as u64 - 1) as usize);
            let end = if self.both { end.min(run.dim("end") as usize + 1 - begins) } else { end };
            for h in 0..group {
                let q = &q[(r * heads * group + h) * d..][..d];
                let slope = slopes.as_ref().map_or(0.0, |slopes| slopes[h]);
                // Each score, and the sum of the magnitudes of its terms.
                let scores: Vec<(f64, f64)> = (from..end)
                    .map(|p| {
                        let product = (0..d)
                            .map(|e| q[e] * key(p, e))
                            .fold((0.0, 0.0), |(s, m): (f64, f64), x| (s + x, m + x.abs()));
                        let fall = -slope * (end - 1 - p) as f64;
                        (of.score(product.0) + fall, product.1 * factor.abs())
                    })
                    .collect();
                let max = scores.iter().map(|score| score.0).fold(f64::MIN, f64::max);
                let magnitude = scores.iter().map(|score| score.1).fold(0.0, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score.0 - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                // The slope of a cap is at most 1, so it keeps the error of a score, and adds its
                // own.
                let of_cap = of.cap.map_or(0.0, |cap| f64::from(cap.value()) * SOFTCAP_BOUND);
                // Errors from the rounding of the slope, of its product with the distance, and of
                // the sum with a score.
                let of_slope = 3.0 * UNIT * slope * (end - from) as f64;
                let of_scores = magnitude * (of_products + (d as f64 + 2.0) * UNIT) + of_cap + of_slope;
                let relative = 2.0 * (of_scores.exp() - 1.0) + rounding + EXP_BOUND * scores.len() as f64;
                for e in 0..dv {
                    let terms = (from..end).zip(&weights).map(|(p, w)| w * value(p, e) / sum);
                    let (expected, size) = terms.fold((0.0, 0.0), |(s, m), x| (s + x, m + x.abs()));
                    let found = y[(r * heads * group + h) * dv + e];
                    close(format_args!("y[{r}, {h}, {e}]"), found, expected, relative * size + 1e-30)?;
                }
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        let rows = rows.clamp(1, self.rows.max(1));
        let first = FIRST + self.window.map_or(0, u64::from);
        self.dims(first..first + u64::from(rows))
    }

    fn max_rows(&self) -> u32 {
        self.rows
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let rows = call.bytes("position") / 4;
        let positions = call.bytes("values") / self.cache.values(self.heads.dv).position_bytes().max(1).unsigned_abs();
        let multiply_adds = u64::from(self.heads.group) * u64::from(self.heads.elements()) * rows * positions;
        Work { bytes: call.bytes("keys") + call.bytes("values"), multiply_adds, arithmetic: Arithmetic::Bf16 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::generator::generate::MAX_POSITIONS;
    use crate::generator::limits::limit;
    use ixc_targets::Target;

    #[test]
    fn invalid_windows_are_refused() {
        let kernel = |window: u32| {
            let text = format!("attention_tiles group=4 d=8 dv=8 scale=1.0 heads=1 rows=8 window={window}");
            generate(&text.parse().unwrap(), Target::AMX).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!([1, MAX_POSITIONS as u32].map(kernel), [Ok(()), Ok(())]);
        for window in [0, MAX_POSITIONS as u32 + 1, u32::MAX] {
            let error = kernel(window).unwrap_err();
            assert!(error.contains("a window of positions") && error.ends_with("1 to 16777216"), "{error}");
        }
    }

    #[test]
    fn every_group_size_divides_into_whole_units() {
        let most = limit("group");
        for group in 1..=most {
            let (unit, rows) = (AttentionTiles::unit(group), AttentionTiles::rows_of(group, 256));
            assert!((unit * group).is_multiple_of(PAIR) && (unit == 1 || !(unit / 2 * group).is_multiple_of(PAIR)));
            assert!(rows.is_multiple_of(unit) && (rows == unit || rows * group <= 256), "{group}: {rows}");
            let spec = AttentionTiles {
                heads: Heads { group, d: 8, dv: 8 },
                scores: Scores::with_scale(1.0),
                key_heads: 1,
                rows,
                exact: false,
                window: None,
                chunked: false,
                both: false,
                cache: Cache::default(),
            };
            generate(&spec.into(), Target::AMX).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!([1, 3, 8, 32, 64].map(AttentionTiles::unit), [32, 32, 4, 1, 1]);
        assert_eq!([1, 3, 5, 8, 64].map(|group| AttentionTiles::rows_of(group, 256)), [256, 64, 32, 32, 4]);
    }
}
